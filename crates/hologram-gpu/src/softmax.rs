//! `softmax` and `log_softmax` over the last dimension: x [.., n] of `f32`; of `f16` and `bf16`, and the logarithm, on
//! NVIDIA GPUs.

use hologram_device::{DType, KernelSpec, Operation};
use hologram_isa::Type;

use super::kernels::cuda::softmax_lines::Rows;
use super::kernels::softmax::Softmax;
use super::launch::{Count, FEW, Places, all_f32, launch, number, row_in_registers, single};
use super::{NativeKernel, Target};

/// The native kernel for `softmax`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let Operation::Softmax { log: false, axis } = spec.op else { return None };
    if axis as usize + 1 != x.shape.len() || spec.in_place.is_some() || !all_f32([x]) || spec.output != *x {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let (x, y) = (places.input(0, 0), places.output(0));
    let args = Softmax { x, y, rows: places.counted(rows), n: number(n)? };
    let (entry, threads) = match row_in_registers(n, rows.max(), target, FEW) {
        Some((fours, threads)) => (format!("softmax_{fours}"), threads),
        None => ("softmax_any".into(), 1024),
    };
    Some(single(launch(args, entry, [rows.max(), 1], threads)?))
}

/// Elements of the rows that a form holds in registers, with the rows of a workgroup.
const FORMS: [(usize, usize); 4] = [(256, 8), (1024, 8), (2048, 1), (8192, 1)];

/// The native kernel for rows of other types than `f32`, and for the logarithm.
pub(super) fn find_rows(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let ([x], Operation::Softmax { log, axis }) = (spec.inputs.as_slice(), &spec.op) else { return None };
    let served = *axis as usize + 1 == x.shape.len()
        && spec.in_place.is_none()
        && spec.output == *x
        && x.row_len() > 0
        && matches!(x.format, DType::Plain(Type::F32 | Type::F16 | Type::BF16))
        && target.has(80);
    if !served {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let args = Rows {
        x: places.input(0, 0),
        y: places.output(0),
        rows: places.counted(rows),
        n: number(n)?,
        whole: n.is_multiple_of(8).into(),
        log: (*log).into(),
    };
    let form = FORMS.iter().find(|(most, _)| n <= *most);
    let (form, together) = form.map_or(("long".into(), 1), |(most, rows)| (most.to_string(), *rows));
    let entry = format!("softmax_{form}_{}", x.format.name());
    Some(single(launch(args, entry, [rows.max().div_ceil(together), 1], 256)?))
}

#[cfg(test)]
mod tests {
    use hologram_device::{Extent, TensorSpec};

    use super::*;
    use crate::Part;

    #[test]
    fn rows_of_any_length_have_a_form() {
        let launch = |format: DType, log: bool, n: usize| {
            let x = TensorSpec { format, shape: vec![Extent::Fixed(100), Extent::Fixed(n)] };
            let op = Operation::Softmax { log, axis: 1 };
            let spec = KernelSpec { op, inputs: vec![x.clone()], output: x, in_place: None };
            let kernel = crate::find(&spec, Target::nvidia(90, 132, 227 * 1024))?;
            match kernel.parts.into_iter().next()? {
                Part::Kernel(launch) => Some((launch.entry, launch.grid[0])),
                Part::Blas(_) => None,
            }
        };
        for (format, log, n, want) in [
            (DType::BF16, false, 1024, Some(("softmax_1024_bf16", 13))),
            (DType::F16, true, 8192, Some(("softmax_8192_f16", 100))),
            (DType::F32, true, 50_257, Some(("softmax_long_f32", 100))),
            (DType::F32, false, 1024, Some(("softmax_2", 100))),
            (DType::F64, false, 1024, None),
        ] {
            let want = want.map(|(entry, groups)| (entry.to_string(), groups));
            assert_eq!(launch(format, log, n), want, "{} {log} {n}", format.name());
        }
    }
}
