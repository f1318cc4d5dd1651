//! `top_k`: x f32 [.., d] → indices u32 [.., k]. One launch finds the greatest element of every group of 128, the second looks at the groups
//! that matter, one workgroup a row.

use super::launch::{Count, Places, all_f32, launch};
use super::{Arg, NativeKernel, Part, Target};
use crate::{Format, KernelSpec, Operation};

const IMAGE: &str = "top_k";
/// Elements of a group, and the most groups of a row: `top_k.k`.
const GROUP: usize = 128;
const MOST_GROUPS: usize = 2048;
/// The greatest k.
const MOST: usize = 256;

/// The native kernel for `top_k`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let (d, groups) = (x.row_len(), x.row_len().div_ceil(GROUP));
    let Operation::TopK { k } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && all_f32([x])
        && spec.output.format == Format::U32
        && spec.output.row_len() == k as usize
        && (1..=d.min(MOST)).contains(&(k as usize))
        && groups <= MOST_GROUPS;
    if !served {
        return None;
    }
    let (places, rows) = (Places::of(spec), Count::rows(x)?);
    let sizes = [u32::try_from(d).ok()?, u32::try_from(groups).ok()?];
    let args = |memory: &[Arg], last: &[u32]| {
        let mut args = memory.to_vec();
        args.push(places.step());
        args.extend(rows.numbers());
        args.extend(last.iter().map(|n| Arg::U32(*n)));
        args
    };
    let (from, keys) = (places.input(0, 0), Arg::Scratch(0));
    let first = args(&[from.clone(), keys.clone()], &sizes);
    let second = args(&[from, keys, places.output(0)], &[sizes[0], sizes[1], k]);
    let parts = [
        launch(IMAGE, "top_k_groups".into(), [rows.max(), groups.div_ceil(8)], 256, first)?,
        launch(IMAGE, "top_k".into(), [rows.max(), 1], 1024, second)?,
    ];
    Some(NativeKernel {
        parts: parts.map(Part::Kernel).into(),
        scratch: rows.max().checked_mul(groups * 4)?,
        counters: 0,
    })
}
