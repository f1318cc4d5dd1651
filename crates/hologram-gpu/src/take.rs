//! `take`: elements of rows x f32 [.., n] by indices u32 [.., k] → f32 [.., k].

use hologram_device::{DType, KernelSpec, Operation};

use super::kernels::gather::Take;
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{NativeKernel, Target};

/// The native kernel for `take`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [x, indices] = spec.inputs.as_slice() else { return None };
    let Operation::Take { axis } = spec.op else { return None };
    let served = axis as usize + 1 == x.shape.len()
        && spec.in_place.is_none()
        && all_f32([x, &spec.output])
        && indices.format == DType::U32
        && indices.shape == spec.output.shape
        && x.shape.split_last().map(|(_, rows)| rows) == indices.shape.split_last().map(|(_, rows)| rows);
    if !served {
        return None;
    }
    let (places, total) = (Places::of(spec), Count::elements(indices)?);
    let args = Take {
        x: places.input(0, 0),
        indices: places.input(1, 0),
        y: places.output(0),
        total: places.counted(total),
        n: number(x.row_len())?,
        k: number(indices.row_len())?,
    };
    Some(single(launch(args, "take", [total.max().div_ceil(256), 1], 256)?))
}
