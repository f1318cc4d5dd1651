//! `rope`: x f32 [n, heads, d], positions u32 [n], freqs f32 [pairs] → f32 of x's shape.

use hologram_device::{DType, Extent, KernelSpec, Operation, RopeStyle};

use super::kernels::rope::Rope;
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{NativeKernel, Target};

/// The native kernel for `rope`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [x, positions, freqs] = spec.inputs.as_slice() else { return None };
    let [n, Extent::Fixed(heads), Extent::Fixed(d)] = x.shape[..] else { return None };
    let [Extent::Fixed(pairs)] = freqs.shape[..] else { return None };
    let Operation::Rope { style } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && all_f32([x, freqs])
        && positions.format == DType::U32
        && positions.shape == [n]
        && spec.output == *x
        && heads > 0
        && pairs > 0
        && 2 * pairs <= d;
    if !served {
        return None;
    }
    let (places, rows) = (Places::of(spec), Count::rows(x)?);
    // A thread per pair, and per element that stays unchanged.
    let threads = rows.times(d - pairs)?.max();
    let args = Rope {
        x: places.input(0, 0),
        positions: places.input(1, 0),
        freqs: places.input(2, 0),
        y: places.output(0),
        rows: places.counted(rows),
        heads: number(heads)?,
        d: number(d)?,
        pairs: number(pairs)?,
        adjacent: u32::from(style == RopeStyle::Adjacent),
    };
    Some(single(launch(args, "rope", [threads.div_ceil(256), 1], 256)?))
}
