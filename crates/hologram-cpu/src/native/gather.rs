//! `gather`: table [rows, d] in any weight format, ids u32 [n] → f32 [n, d], or [n, s] → [n, s * d].

use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::decode::{decode, is_weight_format};
use super::only_slowest_varies;

struct Gather {
    table: TensorSpec,
    ids: TensorSpec,
    dynamic: bool,
}

/// The native kernel for `gather`; `None` for any other spec.
pub fn find(spec: &KernelSpec, _features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [table, ids] = spec.inputs.as_slice() else { return None };
    let served = spec.op == Operation::Gather
        && spec.in_place.is_none()
        && is_weight_format(table.format)
        && ids.format == DType::U32
        && spec.output.format == DType::F32
        && table.shape.len() == 2
        && matches!(ids.shape.len(), 1 | 2)
        && ids.shape[1..].iter().all(|s| matches!(s, Extent::Fixed(_)))
        && spec.output.shape.first() == ids.shape.first()
        && spec.output.row_len() == slots(ids) * table.row_len()
        && only_slowest_varies(table)
        && table.format.bytes(table.max_rows(), table.row_len()).is_some();
    let kernel = || Gather { table: table.clone(), ids: ids.clone(), dynamic: spec.uses_step() };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

/// Ids for each row of the result.
fn slots(ids: &TensorSpec) -> usize {
    ids.shape.get(1).map_or(1, |s| s.max())
}

impl NativeKernel for Gather {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let step = if self.dynamic { args.step() } else { &[] };
        let (rows, d, format) = (self.table.rows(step), self.table.row_len(), self.table.format);
        let views = format.views(1, d).len();
        let (table, ids): (&[u8], &[u32]) = (args.read(0), args.read(views));
        let ids = &ids[..self.ids.shape[0].value(step) * slots(&self.ids)];
        let row_bytes = format.bytes(1, d).unwrap_or(0);
        while let Some(t) = worker.next(ids.len()) {
            let id = ids[t] as usize;
            if id >= rows {
                return Err(format!("index {id} outside a table of {rows} rows"));
            }
            // SAFETY: this worker has claimed the row.
            let out = unsafe { args.output::<f32>(views + 1).part(t * d..(t + 1) * d) };
            decode(format, &table[id * row_bytes..(id + 1) * row_bytes], out);
        }
        Ok(())
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use half::{bf16, f16};

    use super::super::super::testing::{Memory, launch};
    use super::*;

    fn spec(format: DType, rows: usize, d: usize) -> KernelSpec {
        let n = Extent::step(0, 4);
        KernelSpec {
            op: Operation::Gather,
            inputs: vec![
                TensorSpec { format, shape: vec![Extent::Fixed(rows), Extent::Fixed(d)] },
                TensorSpec { format: DType::U32, shape: vec![n] },
            ],
            output: TensorSpec { format: DType::F32, shape: vec![n, Extent::Fixed(d)] },
            in_place: None,
        }
    }

    /// Row r of each table holds (r + 1)·c for some codes c; the result is the same number in every format.
    fn table(format: DType, rows: usize) -> (Vec<u8>, Vec<f32>, usize) {
        let d = 256;
        let code = |i: usize| (i * 7 % 3) as f32 - 1.0;
        let mut bytes = Vec::new();
        for row in 0..rows {
            let scale = f16::from_f32(row as f32 + 1.0).to_le_bytes();
            let value = |i: usize| (row as f32 + 1.0) * code(i);
            match format {
                DType::F32 => (0..d).for_each(|i| bytes.extend(value(i).to_le_bytes())),
                DType::F16 => (0..d).for_each(|i| bytes.extend(f16::from_f32(value(i)).to_le_bytes())),
                DType::BF16 => (0..d).for_each(|i| bytes.extend(bf16::from_f32(value(i)).to_le_bytes())),
                DType::Q8_0 => (0..d / 32).for_each(|b| {
                    bytes.extend(scale);
                    bytes.extend((0..32).map(|i| code(32 * b + i) as i8 as u8));
                }),
                DType::Q4_0 => (0..d / 32).for_each(|b| {
                    bytes.extend(scale);
                    let nibble = |i: usize| (code(32 * b + i) as i8 + 8) as u8;
                    bytes.extend((0..16).map(|i| nibble(i) | nibble(i + 16) << 4));
                }),
                _ => {
                    let bits = |i: usize| (code(i) as i8 + 1) as u8;
                    let byte = |at: usize| {
                        let first = at / 32 * 128 + at % 32;
                        (0..4).fold(0, |byte, l| byte | bits(first + 32 * l) << (2 * l))
                    };
                    bytes.extend((0..64).map(byte));
                    bytes.extend(scale);
                }
            }
        }
        let values = (0..rows * d).map(|i| (i / d) as f32 * code(i % d) + code(i % d)).collect();
        (bytes, values, d)
    }

    pub(crate) fn decodes_rows_of_every_format() {
        for format in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::TQ2_0] {
            let (bytes, values, d) = table(format, 5);
            let kernel = find(&spec(format, 5, d), Features::detect()).expect("served");
            let run = |ids: [u32; 4], n: u32| {
                let mut memory: Vec<_> = format.views(5, d).iter().map(|_| Memory::of(&bytes)).collect();
                memory.extend([Memory::of(&ids), Memory::filled(4 * d * 4, 0xff), Memory::of(&[n])]);
                let result = launch(&*kernel, &mut memory, 2);
                result.map(|()| memory[memory.len() - 2].elements::<f32>().to_vec())
            };
            let out = run([4, 0, 2, 9], 3).expect("runs");
            for (t, id) in [4, 0, 2].into_iter().enumerate() {
                assert_eq!(out[t * d..(t + 1) * d], values[id * d..(id + 1) * d], "{format:?} row {id}");
            }
            assert!(out[3 * d].is_nan(), "a row beyond the run's was written");
            assert_eq!(run([0, 9, 0, 0], 2).expect_err("9 is outside"), "index 9 outside a table of 5 rows");
        }
    }
}
