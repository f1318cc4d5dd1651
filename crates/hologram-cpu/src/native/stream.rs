//! Shared by memory-bound kernels: prefetched vectors, and non-temporal stores.

use super::simd::{Simd, prefetch_near};
use crate::kernel::RawSlice;

/// The least size in bytes of a result that takes non-temporal stores: a result that fits the caches is better left
/// there for the next reader.
pub(crate) const NON_TEMPORAL_BYTES: usize = 32 << 20;

/// Prefetch distance in elements: the hardware prefetch alone does not cross pages.
const AHEAD: usize = 512;

/// Vectors that a loop computes at a time.
const TOGETHER: usize = 8;

/// Whether `bytes` bytes at `to` take non-temporal stores. They then begin at a multiple of 64 bytes.
pub(super) fn is_non_temporal(to: RawSlice, bytes: usize) -> bool {
    bytes >= NON_TEMPORAL_BYTES && to.data.addr().is_multiple_of(64)
}

// The loops below have no closures over vectors: the compiler makes those separate functions, without the instruction
// set.

/// Prefetches the memory [`AHEAD`] elements behind the block of `len` elements at `at` of each input.
#[inline(always)]
fn ask_ahead(inputs: &[&[f32]], at: usize, len: usize) {
    for x in inputs {
        for line in (0..len).step_by(16) {
            prefetch_near(x.as_ptr().wrapping_add(at + AHEAD + line).cast());
        }
    }
}

/// The sum of the elements.
#[inline(always)]
pub(super) fn sum_with<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); TOGETHER];
    let step = TOGETHER * S::LANES;
    let whole = x.len() / step * step;
    #[allow(clippy::needless_range_loop, reason = "registers are indexed")]
    for at in (0..whole).step_by(step) {
        ask_ahead(&[x], at, step);
        for i in 0..TOGETHER {
            // SAFETY: the block lies in `x`.
            sums[i] = s.add(sums[i], unsafe { s.load(x.as_ptr().add(at + i * S::LANES)) });
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let (low, high) = (s.add(s.add(a, b), s.add(c, d)), s.add(s.add(e, f), s.add(g, h)));
    s.sum(s.add(low, high)) + x[whole..].iter().sum::<f32>()
}

/// Sets each element of `to` to `f` of the elements of the inputs, which are as long. Uses non-temporal stores when
/// `non_temporal`, which requires `to` at a multiple of 64 bytes; call [`fence`](super::simd::fence) after the last
/// such call of a phase.
#[inline(always)]
pub(super) fn map_with<S: Simd, const N: usize>(
    s: S,
    inputs: [&[f32]; N],
    to: &mut [f32],
    non_temporal: bool,
    f: impl Fn([f32; N]) -> f32,
) {
    /// Memory for a block of the widest vectors.
    #[repr(align(64))]
    struct Block([f32; TOGETHER * 16]);
    let len = inputs.iter().fold(to.len(), |len, x| len.min(x.len()));
    let (step, to) = (TOGETHER * S::LANES, &mut to[..len]);
    let (mut block, whole) = (Block([0.0; TOGETHER * 16]), if non_temporal { len / step * step } else { 0 });
    for at in (0..whole).step_by(step) {
        ask_ahead(&inputs, at, step);
        let parts = inputs.map(|x| &x[at..at + step]);
        for (i, y) in block.0[..step].iter_mut().enumerate() {
            *y = f(parts.map(|x| x[i]));
        }
        for i in (0..step).step_by(S::LANES) {
            // SAFETY: the vector lies in both, and is aligned.
            unsafe { s.stream(to.as_mut_ptr().add(at + i), s.load(block.0.as_ptr().add(i))) };
        }
    }
    let parts = inputs.map(|x| &x[whole..len]);
    for (i, y) in to[whole..].iter_mut().enumerate() {
        *y = f(parts.map(|x| x[i]));
    }
}
