//! A router's choice among its experts (`kernels/shared/route.k`): `top_k` of short rows, and the group of `top_k`,
//! `take` and `softmax`.

use hologram_device::{DType, Extent, Fused, GroupSpec, KernelSpec, Operation, Route, TensorSpec};

use super::arguments::Counted;
use super::kernels::route as kernel;
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{Memory, NativeKernel, Target};

/// The native kernel for `top_k` of short rows.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let (Operation::TopK { k }, [x]) = (&spec.op, spec.inputs.as_slice()) else { return None };
    let served = spec.in_place.is_none()
        && all_f32([x])
        && spec.output.format == DType::U32
        && spec.output.row_len() == *k as usize;
    let (places, rows) = (Places::of(spec), Count::rows(x)?);
    let results = [places.output(0), Memory::Null];
    if served {
        kernel(x, places.input(0, 0), results, (rows, places.counted(rows)), *k, kernel::INDICES)
    } else {
        None
    }
}

/// The native kernel for a router's choice with the probabilities.
pub(super) fn find_group(group: &GroupSpec, _: Target) -> Option<NativeKernel> {
    let Fused::Route(Route { x, k, softmax_first }) = group.fused else { return None };
    let tensor = group.inputs.get(x)?;
    if !all_f32([tensor]) {
        return None;
    }
    let (places, rows) = (Places::of_results(group), Count::rows(tensor)?);
    let form = if softmax_first { kernel::SOFTMAX_BEFORE } else { kernel::SOFTMAX_AFTER };
    let results = [places.output(0), places.output(1)];
    kernel(tensor, places.input(x, 0), results, (rows, places.counted(rows)), k, form)
}

fn kernel(
    x: &TensorSpec,
    at: Memory,
    [ids, weights]: [Memory; 2],
    (count, rows): (Count, Counted),
    k: u32,
    form: u32,
) -> Option<NativeKernel> {
    let Some(Extent::Fixed(n)) = x.shape.last().copied() else { return None };
    let of_lane = [4, 8, 32].into_iter().find(|v| n <= v * 32)?;
    if !(1..=kernel::MOST_CHOSEN.min(number(n)?)).contains(&k) {
        return None;
    }
    let args = kernel::Route { x: at, ids, weights, rows, n: number(n)?, k, form };
    let threads = kernel::THREADS as usize;
    let groups = count.max().div_ceil(threads / 32);
    Some(single(launch(args, format!("route_{of_lane}"), [groups, 1], threads)?))
}
