//! `rms_norm`, alone or with the conversion that follows it: x f32 [.., n], w f32 [n] → f32; bf16, f16; i8 groups.

use super::launch::{Count, FEW, FEW_QUANTIZED, Places, all_f32, launch, row_in_registers, single};
use super::quantize::groups;
use super::{Arg, NativeKernel, Target};
use crate::{Conversion, Extent, Format, Fused, GroupSpec, KernelSpec, NormConvert, Operation, TensorSpec};

const IMAGE: &str = "rms_norm";

/// The native kernel for `rms_norm`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x, w] = spec.inputs.as_slice() else { return None };
    let Operation::RmsNorm { eps } = spec.op else { return None };
    if spec.in_place.is_some() || spec.output != *x || !fits(x, w) {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let mut args = vec![places.input(0, 0), places.input(1, 0), places.output(0), places.step()];
    args.extend(rows.numbers());
    args.extend([Arg::U32(u32::try_from(n).ok()?), Arg::F32(eps.get())]);
    let (entry, threads) = match row_in_registers(n, rows.max(), target, FEW) {
        Some((fours, threads)) => (format!("rms_norm_f32_{fours}"), threads),
        None => ("rms_norm_any".into(), 1024),
    };
    Some(single(launch(IMAGE, entry, [rows.max(), 1], threads, args)?))
}

/// The native kernel for `[rms_norm, quantize]` and `[rms_norm, cast]` of which only the last value is wanted.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::NormConvert(NormConvert { x, norm, conversion }) = group.fused else { return None };
    let (tensor, weights, out) = (group.inputs.get(x)?, group.inputs.get(norm.weights)?, &group.nodes.last()?.output);
    if !fits(tensor, weights) {
        return None;
    }
    let (places, rows, n) = (Places::of_group(group, out), Count::rows(tensor)?, tensor.row_len());
    let few = if matches!(conversion, Conversion::Quantize { .. }) { FEW_QUANTIZED } else { FEW };
    let (fours, threads) = row_in_registers(n, rows.max(), target, few)?;
    let mut args = vec![places.input(x, 0), places.input(norm.weights, 0), places.output(0)];
    let (entry, last) = match (conversion, out.format) {
        (Conversion::Quantize { group, floor }, _) if groups(n, group) => {
            args.push(places.output(1));
            ("i8", vec![Arg::U32(group), Arg::F32(floor)])
        }
        (Conversion::Cast, Format::F16) => ("f16", Vec::new()),
        (Conversion::Cast, Format::BF16) => ("bf16", Vec::new()),
        _ => return None,
    };
    args.push(places.step());
    args.extend(rows.numbers());
    args.extend([Arg::U32(u32::try_from(n).ok()?), Arg::F32(norm.eps)]);
    args.extend(last);
    Some(single(launch(IMAGE, format!("rms_norm_{entry}_{fours}"), [rows.max(), 1], threads, args)?))
}

fn fits(x: &TensorSpec, w: &TensorSpec) -> bool {
    all_f32([x, w]) && x.row_len() > 0 && w.shape == [Extent::Fixed(x.row_len())] && x.shape.last() == w.shape.last()
}
