//! `top_k`: x f32 [.., d] → indices u32 [.., k]. The first launch finds the greatest element of every group of 128;
//! the second reads the relevant groups, with one workgroup per row.

use hologram_device::{DType, KernelSpec, Operation};

use super::kernels::top_k::{GROUP_LEN, MOST_GROUPS, TopK, TopKGroups};
use super::launch::{Count, Places, all_f32, launch, number};
use super::{Memory, NativeKernel, Part, Target};

/// The greatest k.
const MOST: usize = 256;

/// The native kernel for `top_k`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let (d, groups) = (x.row_len(), x.row_len().div_ceil(GROUP_LEN as usize));
    let Operation::TopK { k } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && all_f32([x])
        && spec.output.format == DType::U32
        && spec.output.row_len() == k as usize
        && (1..=d.min(MOST)).contains(&(k as usize))
        && groups <= MOST_GROUPS as usize;
    if !served {
        return None;
    }
    let (places, rows) = (Places::of(spec), Count::rows(x)?);
    let (x, keys, count) = (places.input(0, 0), Memory::Scratch(0), places.counted(rows));
    let (n, all) = (number(d)?, number(groups)?);
    let first = TopKGroups { x, keys, rows: count, n, groups: all };
    let second = TopK { x, keys, y: places.output(0), rows: count, n, groups: all, k };
    let parts = [
        launch(first, "top_k_groups", [rows.max(), groups.div_ceil(8)], 256)?,
        launch(second, "top_k", [rows.max(), 1], 1024)?,
    ];
    Some(NativeKernel {
        parts: parts.map(Part::Kernel).into(),
        scratch: rows.max().checked_mul(groups * 4)?,
        counters: 0,
        phase: None,
    })
}
