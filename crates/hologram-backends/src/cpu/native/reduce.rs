//! `reduce_sum` and `reduce_mean` of rows: x f32 [.., d] → f32 [..]. Long rows are divided among the workers.

use std::sync::Arc;

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::simd::{Isa, simd_entry};
use super::stream::sum_with;
use super::{elements, input, is_dense};
use crate::{Extent, Format, KernelSpec, TensorSpec};

struct Sum {
    isa: Isa,
    /// Whether the sums are divided by the rows' length.
    mean: bool,
    output: TensorSpec,
    d: usize,
    uses_step: bool,
}

/// The longest part of a row that is summed at once, so that which worker sums what changes nothing.
const PART: usize = 64 << 10;
/// Elements of a piece of work, in whole rows.
const PIECE: usize = 16 << 10;

/// The native kernel for sums and means of rows; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let (Extent::Fixed(d), rows) = x.shape.split_last()? else { return None };
    let mean = spec.op == "reduce_mean";
    let served = (spec.op == "reduce_sum" || mean)
        && spec.in_place.is_none()
        && spec.attr_u32("axis").is_some_and(|axis| axis as usize + 1 == x.shape.len())
        && [x, &spec.output].iter().all(|t| t.format == Format::F32)
        && *d > 0
        && rows == spec.output.shape.as_slice()
        && is_dense(&spec.output);
    let kernel =
        || Sum { isa: Isa::widest(features), mean, output: spec.output.clone(), d: *d, uses_step: spec.uses_step() };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl Sum {
    /// Parts of a row.
    fn parts(&self) -> usize {
        self.d.div_ceil(PART)
    }

    /// What is made of a row's sum.
    fn result(&self, sum: f32) -> f32 {
        if self.mean { sum / self.d as f32 } else { sum }
    }

    fn max_rows(&self) -> usize {
        self.output.shape.iter().map(|e| e.max()).product()
    }
}

impl NativeKernel for Sum {
    fn phases(&self) -> usize {
        if self.parts() > 1 { 2 } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        if self.parts() > 1 { self.max_rows() * self.parts() * 4 } else { 0 }
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let rows = elements(&self.output, if self.uses_step { args.step() } else { &[] });
        let (d, parts) = (self.d, self.parts());
        let x = input::<f32>(args, 0, rows * d)?;
        input::<f32>(args, 1, rows)?;
        // SAFETY: each row is claimed by one worker.
        let out = unsafe { args.write::<f32>(1) };
        if parts == 1 {
            let together = (PIECE / d).max(1);
            while let Some(piece) = worker.next(rows.div_ceil(together)) {
                for row in piece * together..((piece + 1) * together).min(rows) {
                    out[row] = self.result(sum(self.isa, &x[row * d..(row + 1) * d]));
                }
            }
            return Ok(());
        }
        let partial = worker.shared_scratch().data.cast::<f32>();
        if phase == 0 {
            while let Some(index) = worker.next(rows * parts) {
                let (row, part) = (index / parts, index % parts);
                let from = row * d + part * PART;
                let total = sum(self.isa, &x[from..(from + PART).min((row + 1) * d)]);
                // SAFETY: the scratch has a float for each part of each row, and this worker has claimed this one.
                unsafe { partial.add(index).write(total) };
            }
        } else {
            while let Some(row) = worker.next(rows) {
                // SAFETY: the parts were written in the phase before.
                let partial = unsafe { std::slice::from_raw_parts(partial.add(row * parts), parts) };
                out[row] = self.result(sum(self.isa, partial));
            }
        }
        Ok(())
    }
}

simd_entry! {
    fn sum(x: &[f32]) -> f32 = sum_with
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attr;
    use crate::cpu::testing::{Memory, Random, feature_sets, launch};

    #[test]
    fn sums_short_and_long_rows() {
        for (rows, d, workers) in [(0u32, 5, 1), (1, 1, 2), (7, 100, 2), (3, PART, 3), (2, 3 * PART + 17, 2)] {
            let step = Extent::Step { slot: 0, max: 8 };
            let x = TensorSpec { format: Format::F32, shape: vec![step, Extent::Fixed(d)] };
            let output = TensorSpec { format: Format::F32, shape: vec![step] };
            let values = Random(d as u64).floats(8 * d);
            let cases = [("reduce_sum", 1.0), ("reduce_mean", d as f64)];
            for (features, (op, divisor)) in feature_sets().into_iter().flat_map(|f| cases.map(|case| (f, case))) {
                let (inputs, attrs) = (vec![x.clone()], vec![("axis", Attr::U32(1))]);
                let spec = KernelSpec { op, inputs, output: output.clone(), in_place: None, attrs };
                let kernel = find(&spec, features).expect("served");
                let mut memory = [Memory::of(&values), Memory::filled(8 * 4, 0xff), Memory::of(&[rows])];
                launch(&*kernel, &mut memory, workers).expect("runs");
                let (out, rest) = memory[1].elements::<f32>().split_at(rows as usize);
                for (x, y) in values.chunks(d).zip(out) {
                    let want = x.iter().map(|v| f64::from(*v)).sum::<f64>() / divisor;
                    let bound = x.iter().map(|v| f64::from(v.abs())).sum::<f64>() / divisor * 1e-6;
                    assert!((f64::from(*y) - want).abs() <= bound, "{features:?} {rows} × {d}: {y} {want}");
                }
                assert!(rest.iter().all(|y| y.is_nan()), "wrote behind the run's rows");
            }
        }
    }
}
