//! `rms_norm`, alone or with the conversion that follows it: x f32 [.., n], w f32 [n] → f32; bf16, f16; i8 groups.

use super::kernels::rms_norm::{Norm, NormQuantize};
use super::launch::{Count, FEW, FEW_QUANTIZED, Places, all_f32, launch, number, row_in_registers, single};
use super::quantize::groups;
use super::{NativeKernel, Target};
use crate::{Extent, Format, GroupSpec, KernelSpec, Operand, TensorSpec};
use hologram_isa::Type;

/// The native kernel for `rms_norm`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x, w] = spec.inputs.as_slice() else { return None };
    if spec.op != "rms_norm" || spec.in_place.is_some() || spec.output != *x || !fits(x, w) {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let args = Norm {
        x: places.input(0, 0),
        w: places.input(1, 0),
        y: places.output(0),
        rows: places.counted(rows),
        n: number(n)?,
        eps: spec.attr_f32("eps")?,
    };
    let (entry, threads) = match row_in_registers(n, rows.max(), target, FEW) {
        Some((fours, threads)) => (format!("rms_norm_f32_{fours}"), threads),
        None => ("rms_norm_any".into(), 1024),
    };
    Some(single(launch(args, entry, [rows.max(), 1], threads)?))
}

/// The native kernel for `[rms_norm, quantize]` and `[rms_norm, cast]` of which only the last value is wanted.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let [norm, convert] = group.nodes.as_slice() else { return None };
    let [Operand::Input(x), Operand::Input(w)] = norm.operands[..] else { return None };
    let (tensor, out) = (group.inputs.get(x)?, &convert.output);
    let served = norm.op == "rms_norm"
        && convert.operands[..] == [Operand::Node(0)]
        && group.outputs[..] == [1]
        && norm.output == *tensor
        && out.shape == tensor.shape
        && fits(tensor, group.inputs.get(w)?);
    if !served {
        return None;
    }
    let (places, rows, n) = (Places::of_group(group, out), Count::rows(tensor)?, tensor.row_len());
    let few = if convert.op == "quantize" { FEW_QUANTIZED } else { FEW };
    let (fours, threads) = row_in_registers(n, rows.max(), target, few)?;
    let (x, w, eps) = (places.input(x, 0), places.input(w, 0), norm.attr_f32("eps")?);
    let (y, rows, n, grid) = (places.output(0), places.counted(rows), number(n)?, [rows.max(), 1]);
    let cast = |ty| launch(Norm { x, w, y, rows, n, eps }, format!("rms_norm_{ty}_{fours}"), grid, threads);
    let launch = match (convert.op, out.format) {
        ("quantize", Format::I8Groups { group }) if groups(tensor.row_len(), group) => {
            let (scales, least) = (places.output(1), convert.attr_f32("floor")?);
            let args = NormQuantize { x, w, codes: y, scales, rows, n, eps, group, least };
            launch(args, format!("rms_norm_i8_{fours}"), grid, threads)?
        }
        ("cast", Format::Plain(Type::F16)) => cast("f16")?,
        ("cast", Format::Plain(Type::BF16)) => cast("bf16")?,
        _ => return None,
    };
    Some(single(launch))
}

fn fits(x: &TensorSpec, w: &TensorSpec) -> bool {
    all_f32([x, w]) && x.row_len() > 0 && w.shape == [Extent::Fixed(x.row_len())] && x.shape.last() == w.shape.last()
}
