//! `rms_norm`, alone or with the conversion or the gate after it: x f32 [.., n], w f32 [n] → f32; bf16, f16; i8 groups.

use hologram_device::{
    Conversion, DType, Extent, Fused, GroupSpec, KernelSpec, NormConvert, NormGate, Norms, Operation, TensorSpec,
};

use super::kernels::rms_norm::{Norm, NormPair, NormQuantize, RmsNormGate};
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

/// The native kernel for two norms of `[tokens, rows of a token, n]`.
pub(super) fn find_pair(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::Norms(Norms { x, norms }) = group.fused else { return None };
    let [(x0, w0), (x1, w1)] = [0, 1].map(|i| (group.inputs.get(x[i]), group.inputs.get(norms[i].weights)));
    let (x0, x1) = (x0?, x1?);
    let ([tokens, Extent::Fixed(h0), n], [others, Extent::Fixed(h1), m]) = (&x0.shape[..], &x1.shape[..]) else {
        return None;
    };
    let eps = norms[0].eps;
    if !fits(x0, w0?) || !fits(x1, w1?) || (tokens, n) != (others, m) || eps.to_bits() != norms[1].eps.to_bits() {
        return None;
    }
    let (places, count, n) = (Places::of_results(group), Count::of(&[*tokens])?, x0.row_len());
    let [first, second] = [h0, h1].map(|h| Some(count.times(*h)?.max()));
    let rows = first?.checked_add(second?)?;
    let (fours, threads) = row_in_registers(n, rows, target, FEW)?;
    let each = rows_of_workgroup(threads, rows, target);
    let args = NormPair {
        x0: places.input(x[0], 0),
        w0: places.input(norms[0].weights, 0),
        y0: places.output(0),
        x1: places.input(x[1], 0),
        w1: places.input(norms[1].weights, 0),
        y1: places.output(1),
        tokens: places.counted(count),
        h0: number(*h0)?,
        h1: number(*h1)?,
        first: number(first?)?,
        n: number(n)?,
        eps,
        each: number(each)?,
    };
    Some(single(launch(args, format!("rms_norms_{fours}"), [rows.div_ceil(each), 1], threads * each)?))
}

/// The native kernel for `[rms_norm, swiglu]`.
pub(super) fn find_gated(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::NormGate(NormGate { x, norm, gate }) = group.fused else { return None };
    let (tensor, weights) = (group.inputs.get(x)?, group.inputs.get(norm.weights)?);
    let n = tensor.row_len();
    if !fits(tensor, weights) || group.inputs.get(gate) != Some(tensor) || !n.is_multiple_of(4) || n > 2048 {
        return None;
    }
    let (places, rows, threads) = (Places::of_group(group, tensor), Count::rows(tensor)?, n.div_ceil(256) * 32);
    let each = rows_of_workgroup(threads, rows.max(), target);
    let args = RmsNormGate {
        x: places.input(x, 0),
        w: places.input(norm.weights, 0),
        gate: places.input(gate, 0),
        y: places.output(0),
        rows: places.counted(rows),
        n: number(n)?,
        eps: norm.eps,
        each: number(each)?,
    };
    Some(single(launch(args, "rms_norm_gate", [rows.max().div_ceil(each), 1], threads * each)?))
}

/// Rows of a workgroup: of many that a SIMD-group holds, eight, because starting a workgroup takes longer than such a
/// row.
fn rows_of_workgroup(threads: usize, rows: usize, target: Target) -> usize {
    if threads == 32 && rows > 4 * FEW * target.multiprocessors as usize { 8 } else { 1 }
}

fn fits(x: &TensorSpec, w: &TensorSpec) -> bool {
    all_f32([x, w]) && x.row_len() > 0 && w.shape == [Extent::Fixed(x.row_len())] && x.shape.last() == w.shape.last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hologram_device::{Elementwise, GroupNode, Operand};

    #[test]
    fn a_gate_joins_the_norm_of_heads() {
        let find = |n: usize| {
            let spec = |shape: &[usize]| TensorSpec {
                format: DType::F32,
                shape: shape.iter().map(|n| Extent::Fixed(*n)).collect(),
            };
            let (x, inputs) = (spec(&[3, 32, n]), vec![spec(&[3, 32, n]), spec(&[n]), spec(&[3, 32, n])]);
            let node = |op, operands: &[Operand]| GroupNode {
                op,
                operands: operands.to_vec(),
                output: x.clone(),
                in_place: None,
            };
            let eps = 1e-6.into();
            let nodes = vec![
                node(Operation::RmsNorm { eps }, &[Operand::Input(0), Operand::Input(1)]),
                node(Elementwise::Swiglu.into(), &[Operand::Input(2), Operand::Node(0)]),
            ];
            find_gated(&GroupSpec::new(inputs, nodes, vec![1])?, Target::APPLE)
        };
        let kernel = find(128).unwrap();
        let [crate::Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
        assert_eq!((launch.entry.as_str(), launch.grid, launch.block[0]), ("rms_norm_gate", [96, 1, 1], 32));
        let args = launch.filled::<RmsNormGate>();
        let places = (args.x, args.w, args.gate, args.y);
        assert_eq!(places, ([0, 1, 2, 3].map(crate::Memory::Binding)).into());
        assert!(find(130).is_none());
        assert_eq!(rows_of_workgroup(32, 36 * 2048, Target::APPLE), 8);
        assert_eq!([rows_of_workgroup(32, 36, Target::APPLE), rows_of_workgroup(64, 36 * 2048, Target::APPLE)], [1, 1]);
    }
}
