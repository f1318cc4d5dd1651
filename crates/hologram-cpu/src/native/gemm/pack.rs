//! Interleaves the lines of a matrix by words: word 0 of each line, word 1 of each line, and so on.

use std::ops::Range;

use hologram_device::DType;

use super::super::matmul::float::Words;
use super::super::narrow::widen;
use super::super::simd::{Simd, simd_entry};
use super::{Chunk, Packer, STEPS};
use crate::kernel::Pod;

/// A matrix as one side of a product: lines of `k` elements each.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Side {
    pub format: DType,
    /// Whether the elements of a line are consecutive; if not, the elements of all lines at one depth are.
    pub along: bool,
    /// The distance in elements between lines (if `along`) or between depths.
    pub stride: usize,
}

impl Side {
    /// Interleaves a chunk of lines into `lanes` lanes. Lanes beyond the lines hold anything. Words beyond the chunk,
    /// up to a multiple of four, are 0.
    ///
    /// # Safety
    /// The packer is of this processor's instruction set; `matrix` is the start of a matrix that has these lines and
    /// the chunk; `to` has room for the words of all lanes. There are at most 16 lanes.
    pub(in super::super) unsafe fn pack(
        &self,
        packer: &mut Packer<'_>,
        matrix: *const u8,
        lines: Range<usize>,
        lanes: usize,
        (from, len): Chunk,
        to: *mut u8,
    ) {
        if len == 0 {
            return;
        }
        let element = self.format.block_bytes();
        let (word, per_word, words) = (packer.words.bytes(), packer.words.elements(), packer.words_of(len));
        // Whether elements, or pairs of them, are words as they are.
        let as_is = element * per_word == word;
        // SAFETY: promised by the caller, for all of the function.
        unsafe {
            if self.along {
                let first = matrix.add((lines.start * self.stride + from) * element);
                let (source, row_bytes) = if as_is && len == words * per_word {
                    (first, self.stride * element)
                } else {
                    let row_floats = STEPS * word / 4;
                    for (i, row) in packer.buffer.chunks_exact_mut(row_floats).take(lines.len()).enumerate() {
                        let line = first.add(i * self.stride * element);
                        row[..words * word / 4].fill(0.0);
                        if as_is {
                            std::ptr::copy_nonoverlapping(line, row.as_mut_ptr().cast(), len * element);
                        } else if packer.words == Words::I16Pairs {
                            let line = std::slice::from_raw_parts(line.cast::<i8>(), len);
                            let row = std::slice::from_raw_parts_mut(row.as_mut_ptr().cast::<i16>(), len);
                            row.iter_mut().zip(line).for_each(|(to, x)| *to = i16::from(*x));
                        } else {
                            let line = std::slice::from_raw_parts(line.cast::<u16>(), len);
                            widen(packer.isa, self.format, line, &mut row[..len]);
                        }
                    }
                    (packer.buffer.as_ptr().cast(), STEPS * word)
                };
                (packer.kernels.transpose)(source, row_bytes, lines.len(), words, lanes, to);
                return;
            }
            let count = lines.len();
            let first = matrix.add((from * self.stride + lines.start) * element);
            let depths = Depths { len, stride: self.stride, count, lanes };
            if as_is && per_word == 1 && word == 4 {
                across::<u32>(packer.isa, depths.of(first), depths, depths.to(to, words));
            } else if as_is && per_word == 1 {
                across::<u64>(packer.isa, depths.of(first), depths, depths.to(to, words));
            } else if as_is {
                pairs::<u16>(packer.isa, depths.of(first), depths, depths.to(to, words));
            } else if per_word == 2 {
                pairs::<i8>(packer.isa, depths.of(first), depths, depths.to(to, words));
            } else {
                for d in 0..len {
                    let x = std::slice::from_raw_parts(first.cast::<u16>().add(d * self.stride), count);
                    let to = std::slice::from_raw_parts_mut(to.cast::<f32>().add(d * lanes), count);
                    widen(packer.isa, self.format, x, to);
                }
            }
            let filled = len.div_ceil(per_word);
            if filled < words {
                std::ptr::write_bytes(to.add(filled * lanes * word), 0, (words - filled) * lanes * word);
            }
        }
    }
}

/// Neighbouring elements at some depths, and the room for them.
#[derive(Clone, Copy)]
struct Depths {
    /// Depths, and their distance in elements.
    len: usize,
    stride: usize,
    /// Elements of a depth, and the room of a depth in words.
    count: usize,
    lanes: usize,
}

impl Depths {
    /// All elements from the first to the last.
    ///
    /// # Safety
    /// The elements exist at `first`, of type `T`.
    unsafe fn of<'a, T>(self, first: *const u8) -> &'a [T] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(first.cast(), (self.len - 1) * self.stride + self.count) }
    }

    /// Room for the words.
    ///
    /// # Safety
    /// `words` words of each lane can be written at `to`.
    unsafe fn to<'a, W>(self, to: *mut u8, words: usize) -> &'a mut [W] {
        // SAFETY: promised by the caller; any bytes are words.
        unsafe { std::slice::from_raw_parts_mut(to.cast(), words * self.lanes) }
    }
}

simd_entry! {
    /// Copies the elements of each depth.
    fn across<T: Pod>(x: &[T], depths: Depths, to: &mut [T]) = across_with
}

#[inline(always)]
fn across_with<S: Simd, T: Pod>(_: S, x: &[T], depths: Depths, to: &mut [T]) {
    match depths.lanes {
        ..=8 => across_by::<T, 8>(x, depths, to),
        _ => across_by::<T, 16>(x, depths, to),
    }
}

/// Copies `N` elements at a time, at least a depth's, of which the following depth overwrites what is too much; at the
/// ends of the elements and of the room only a depth's.
#[inline(always)]
fn across_by<T: Pod, const N: usize>(x: &[T], Depths { len, stride, count, lanes }: Depths, to: &mut [T]) {
    for d in 0..len {
        let (x, to) = (&x[d * stride..], &mut to[d * lanes..]);
        match (x.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
            (Some(x), Some(to)) => *to = *x,
            // A loop, which costs less than a call for so few.
            _ => to.iter_mut().zip(x).take(count).for_each(|(to, x)| *to = *x),
        }
    }
}

simd_entry! {
    /// Pairs of elements at neighbouring depths; an odd last depth is paired with 0.
    fn pairs<T: Half>(x: &[T], depths: Depths, to: &mut [u32]) = pairs_with
}

/// An element of a pair.
trait Half: Pod {
    /// Its 16 bits.
    fn bits(self) -> u16;
}

impl Half for u16 {
    #[inline(always)]
    fn bits(self) -> u16 {
        self
    }
}

impl Half for i8 {
    #[inline(always)]
    fn bits(self) -> u16 {
        i16::from(self) as u16
    }
}

#[inline(always)]
fn pairs_with<S: Simd, T: Half>(_: S, x: &[T], depths: Depths, to: &mut [u32]) {
    match depths.lanes {
        ..=8 => pairs_by::<T, 8>(x, depths, to),
        _ => pairs_by::<T, 16>(x, depths, to),
    }
}

/// As [`across_by`].
#[inline(always)]
fn pairs_by<T: Half, const N: usize>(x: &[T], Depths { len, stride, count, lanes }: Depths, to: &mut [u32]) {
    let both = |low: T, high: T| u32::from(low.bits()) | u32::from(high.bits()) << 16;
    for d in (0..len / 2 * 2).step_by(2) {
        let (low, high, to) = (&x[d * stride..], &x[(d + 1) * stride..], &mut to[d / 2 * lanes..]);
        match (low.first_chunk::<N>(), high.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
            (Some(low), Some(high), Some(to)) => *to = std::array::from_fn(|i| both(low[i], high[i])),
            _ => to.iter_mut().zip(low).zip(high).take(count).for_each(|((to, low), high)| *to = both(*low, *high)),
        }
    }
    if len % 2 == 1 {
        let (x, to) = (&x[(len - 1) * stride..], &mut to[len / 2 * lanes..]);
        to.iter_mut().zip(x).take(count).for_each(|(to, x)| *to = x.bits().into());
    }
}
