//! `take`: elements of rows x f32 [.., n] by indices u32 [.., k] → f32 [.., k].

use super::launch::{Count, Places, all_f32, launch, single};
use super::{Arg, NativeKernel, Target};
use crate::{Format, KernelSpec, Operation};

/// The native kernel for `take`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [x, indices] = spec.inputs.as_slice() else { return None };
    let Operation::Take { axis } = spec.op else { return None };
    let served = axis as usize + 1 == x.shape.len()
        && spec.in_place.is_none()
        && all_f32([x, &spec.output])
        && indices.format == Format::U32
        && indices.shape == spec.output.shape
        && x.shape.split_last().map(|(_, rows)| rows) == indices.shape.split_last().map(|(_, rows)| rows);
    if !served {
        return None;
    }
    let (places, total) = (Places::of(spec), Count::elements(indices)?);
    let mut args = vec![places.input(0, 0), places.input(1, 0), places.output(0), places.step()];
    args.extend(total.numbers());
    for n in [x.row_len(), indices.row_len()] {
        args.push(Arg::U32(u32::try_from(n).ok()?));
    }
    args.push(Arg::Fault);
    Some(single(launch("gather", "take".into(), [total.max().div_ceil(256), 1], 256, args)?))
}
