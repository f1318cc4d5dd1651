//! `reduce` of `f32`, `f16` and `bf16` along any dimension on NVIDIA GPUs, computed in `f32`. Lines too few for the
//! device are reduced in pieces, then the pieces, always in the same order.

use hologram_device::{DType, Extent, KernelSpec, Operation, Reduction};
use hologram_isa::Type;

use super::arguments::{Actual, Counted};
use super::kernels::cuda::reduce_lines::{self as text, AS_BF16, AS_F16, AS_F32, Lines, MEAN};
use super::launch::{Count, Places, launch, number};
use super::{KernelLaunch, Memory, NativeKernel, Part, Target};

/// Columns of a workgroup, and its warps.
const COLUMNS: usize = text::COLUMNS as usize;
const WARPS: usize = text::WARPS as usize;
/// The fewest rows of a piece of columns, and elements of a piece of a row.
const LEAST_ROWS: usize = 64;
const LEAST_ELEMENTS: usize = 4096;
/// Workgroups that keep a multiprocessor busy.
const BUSY: usize = 8;
/// A tensor `[outer, n, inner]` of which `n` is reduced.
#[derive(Clone, Copy)]
struct Tensor {
    outer: Counted,
    most: usize,
    n: Extent,
    inner: usize,
    all: Actual,
}

/// The native kernel for a reduction.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let ([x], Operation::Reduce { reduction, axis }) = (spec.inputs.as_slice(), &spec.op) else { return None };
    let (DType::Plain(ty), axis) = (x.format, *axis as usize) else { return None };
    let result = match ty {
        Type::F32 => AS_F32,
        Type::F16 => AS_F16,
        Type::BF16 => AS_BF16,
        _ => return None,
    };
    // Distances of lines are those of the maximum sizes, so only the slowest dimension may vary.
    let dense = x.shape.iter().skip(1).all(|e| matches!(e, Extent::Fixed(_)));
    if spec.in_place.is_some() || spec.output.format != x.format || !dense || !target.has(80) {
        return None;
    }
    let (name, mean) = match reduction {
        Reduction::Sum => ("sum", 0),
        Reduction::Mean => ("sum", MEAN),
        Reduction::Prod => ("prod", 0),
        Reduction::Max => ("max", 0),
        Reduction::Min => ("min", 0),
    };
    let (before, rest) = x.shape.split_at_checked(axis)?;
    let (n, after) = rest.split_first()?;
    let inner: usize = after.iter().map(|e| e.max()).product();
    let (places, outer) = (Places::of(spec), Count::of(before)?);
    if inner == 0 || outer.max() == 0 {
        return None;
    }
    let tensor = Tensor { outer: places.counted(outer), most: outer.max(), n: *n, inner, all: Actual::of(*n)? };
    // Pieces of a line.
    let (groups, least) = match inner {
        1 => (outer.max().checked_mul(warps(n.max()))?.div_ceil(WARPS), LEAST_ELEMENTS),
        _ => (outer.max().checked_mul(inner.div_ceil(COLUMNS))?, LEAST_ROWS),
    };
    let wanted = (BUSY * target.multiprocessors as usize).div_ceil(groups);
    let chunk = n.max().div_ceil(wanted.clamp(1, n.max().div_ceil(least).max(1))).max(1).next_multiple_of(4);
    let chunks = n.max().div_ceil(chunk).max(1);
    let (from, to) = (places.input(0, 0), places.output(0));
    if chunks == 1 {
        let only = part(tensor, name, ty, [from, to], [chunk, 1], result | mean)?;
        return Some(NativeKernel { parts: vec![Part::Kernel(only)], scratch: 0, counters: 0, phase: None });
    }
    let sums = Memory::Scratch(0);
    let first = part(tensor, name, ty, [from, sums], [chunk, chunks], AS_F32)?;
    let pieces = Tensor { n: Extent::Fixed(chunks), ..tensor };
    let whole = chunks.next_multiple_of(4);
    let second = part(pieces, name, Type::F32, [sums, to], [whole, 1], result | mean)?;
    let scratch = outer.max().checked_mul(chunks)?.checked_mul(inner)?.checked_mul(4)?;
    Some(NativeKernel { parts: vec![Part::Kernel(first), Part::Kernel(second)], scratch, counters: 0, phase: None })
}

/// The warps that share a piece of this many elements.
fn warps(n: usize) -> usize {
    n.div_ceil(1024).next_power_of_two().min(WARPS)
}

/// Reduces lines in this many pieces of this many elements.
fn part(
    tensor: Tensor,
    name: &str,
    ty: Type,
    [x, y]: [Memory; 2],
    [chunk, chunks]: [usize; 2],
    result: u32,
) -> Option<KernelLaunch> {
    let Tensor { outer, most, n, inner, all } = tensor;
    let pieces = most.checked_mul(chunks)?;
    // A run-time extent need not be a whole number of vectors.
    let (form, inner, whole, groups) = match inner {
        1 => {
            let warps = warps(chunk.min(n.max()));
            ("rows", warps, matches!(n, Extent::Fixed(n) if n.is_multiple_of(4)), pieces.div_ceil(WARPS / warps))
        }
        _ => ("columns", inner, inner.is_multiple_of(4), pieces.checked_mul(inner.div_ceil(COLUMNS))?),
    };
    let args = Lines {
        x,
        y,
        outer,
        n: Actual::of(n)?,
        inner: number(inner)?,
        chunk: number(chunk)?,
        chunks: number(chunks)?,
        whole: whole.into(),
        result,
        all,
    };
    launch(args, format!("{form}_{name}_{}", ty.name()), [groups, 1], WARPS * 32)
}

#[cfg(test)]
mod tests {
    use hologram_device::TensorSpec;

    use super::*;

    fn parts(reduction: Reduction, ty: Type, axis: u32, shape: &[usize]) -> Vec<(String, u32)> {
        let fixed = |shape: &[usize]| shape.iter().map(|n| Extent::Fixed(*n)).collect::<Vec<_>>();
        let mut without = fixed(shape);
        without.remove(axis as usize);
        let tensor = |shape| TensorSpec { format: DType::Plain(ty), shape };
        let spec = KernelSpec {
            op: Operation::Reduce { reduction, axis },
            inputs: vec![tensor(fixed(shape))],
            output: tensor(without),
            in_place: None,
        };
        let part = |part| match part {
            Part::Kernel(launch) => (launch.entry, launch.grid[0]),
            Part::Blas(call) => panic!("{call:?}"),
        };
        let found = find(&spec, Target::nvidia(90, 132, 227 * 1024));
        found.map_or_else(Vec::new, |kernel| kernel.parts.into_iter().map(part).collect())
    }

    #[test]
    fn few_lines_are_reduced_in_pieces() {
        use Reduction::{Max, Mean, Sum};
        let named = |parts: &[(&str, u32)]| parts.iter().map(|(n, g)| ((*n).to_string(), *g)).collect::<Vec<_>>();
        for (reduction, ty, axis, shape, want) in [
            // The gradient of a bias: 6 × 128 of 768 columns, in 128 pieces of 64 rows.
            (Sum, Type::BF16, 0, &[8192, 768][..], &[("columns_sum_bf16", 768), ("columns_sum_f32", 6)][..]),
            (Mean, Type::F32, 1, &[512, 64, 256], &[("columns_sum_f32", 1024)]),
            // Rows: warps as their length needs, a workgroup has eight.
            (Max, Type::F16, 1, &[8192, 768], &[("rows_max_f16", 1024)]),
            (Sum, Type::BF16, 1, &[8192, 50257], &[("rows_sum_bf16", 8192)]),
            (Sum, Type::F32, 0, &[1 << 20], &[("rows_sum_f32", 128), ("rows_sum_f32", 1)]),
            (Sum, Type::F64, 0, &[64], &[]),
        ] {
            assert_eq!(parts(reduction, ty, axis, shape), named(want), "{reduction:?} {ty} {axis} of {shape:?}");
        }
    }
}
