//! `rms_norm`, alone or with the conversion after it: x f32 [.., n], w f32 [n] → f32; bf16, f16; i8 groups.

use hologram_device::{Conversion, DType, Extent, Fused, GroupSpec, KernelSpec, NormConvert, Operation, TensorSpec};

use super::kernels::rms_norm::{Norm, NormQuantize};
use super::launch::{Count, FEW, FEW_QUANTIZED, Places, all_f32, launch, number, row_in_registers, single};
use super::quantize::groups;
use super::{NativeKernel, Target};

/// The native kernel for `rms_norm`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x, w] = spec.inputs.as_slice() else { return None };
    let Operation::RmsNorm { eps } = spec.op else { return None };
    if spec.in_place.is_some() || spec.output != *x || !fits(x, w) {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let args = Norm {
        x: places.input(0, 0),
        w: places.input(1, 0),
        y: places.output(0),
        rows: places.counted(rows),
        n: number(n)?,
        eps: eps.get(),
    };
    let (entry, threads) = match row_in_registers(n, rows.max(), target, FEW) {
        Some((fours, threads)) => (format!("rms_norm_f32_{fours}"), threads),
        None => ("rms_norm_any".into(), 1024),
    };
    Some(single(launch(args, entry, [rows.max(), 1], threads)?))
}

/// The native kernel for `[rms_norm, quantize]` and `[rms_norm, cast]` if only the last value is required.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::NormConvert(NormConvert { x, norm, conversion }) = group.fused else { return None };
    let (tensor, weights, out) = (group.inputs.get(x)?, group.inputs.get(norm.weights)?, &group.nodes.last()?.output);
    if !fits(tensor, weights) {
        return None;
    }
    let (places, rows, n) = (Places::of_group(group, out), Count::rows(tensor)?, tensor.row_len());
    let few = if matches!(conversion, Conversion::Quantize { .. }) { FEW_QUANTIZED } else { FEW };
    let (fours, threads) = row_in_registers(n, rows.max(), target, few)?;
    let (x, w, eps) = (places.input(x, 0), places.input(norm.weights, 0), norm.eps);
    let (y, grid, rows, n, len) = (places.output(0), [rows.max(), 1], places.counted(rows), number(n)?, n);
    let cast = |ty| launch(Norm { x, w, y, rows, n, eps }, format!("rms_norm_{ty}_{fours}"), grid, threads);
    let launch = match (conversion, out.format) {
        (Conversion::Quantize { group, floor }, _) if groups(len, group) => {
            let args = NormQuantize { x, w, codes: y, scales: places.output(1), rows, n, eps, group, least: floor };
            launch(args, format!("rms_norm_i8_{fours}"), grid, threads)?
        }
        (Conversion::Cast, DType::F16) => cast("f16")?,
        (Conversion::Cast, DType::BF16) => cast("bf16")?,
        _ => return None,
    };
    Some(single(launch))
}

fn fits(x: &TensorSpec, w: &TensorSpec) -> bool {
    all_f32([x, w]) && x.row_len() > 0 && w.shape == [Extent::Fixed(x.row_len())] && x.shape.last() == w.shape.last()
}
