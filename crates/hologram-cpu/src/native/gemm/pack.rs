//! Interleaves the lines of a matrix by words: word 0 of each line, word 1 of each line, and so on.

use std::ops::Range;

use hologram_device::DType;

use super::super::matmul::float::Words;
use super::super::narrow::widen;
use super::{Chunk, Packer, STEPS};

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
        let element = self.format.block_bytes();
        let per_word = if packer.words == Words::F32 { 1 } else { 2 };
        let words = len.div_ceil(per_word).next_multiple_of(4);
        // SAFETY: promised by the caller, for all of the function.
        unsafe {
            if self.along {
                let first = matrix.add((lines.start * self.stride + from) * element);
                let in_place = len == words * per_word && (self.format == DType::F32 || per_word == 2);
                let (source, row_bytes) = if in_place {
                    (first, self.stride * element)
                } else {
                    for (i, row) in packer.buffer.chunks_exact_mut(STEPS).take(lines.len()).enumerate() {
                        let line = first.add(i * self.stride * element);
                        row[..words].fill(0.0);
                        if self.format == DType::F32 || per_word == 2 {
                            std::ptr::copy_nonoverlapping(line, row.as_mut_ptr().cast(), len * element);
                        } else {
                            let line = std::slice::from_raw_parts(line.cast::<u16>(), len);
                            widen(packer.isa, self.format, line, &mut row[..len]);
                        }
                    }
                    (packer.buffer.as_ptr().cast(), STEPS * 4)
                };
                if words > 0 {
                    (packer.kernels.transpose)(source, row_bytes, lines.len(), words, lanes, to);
                }
                return;
            }
            let (count, to) = (lines.len(), to.cast::<u32>());
            let depth = |d: usize| matrix.add(((from + d) * self.stride + lines.start) * element);
            if self.format == DType::F32 {
                across(depth, count, lanes, len, to);
            } else if per_word == 2 {
                pairs(|d| depth(d).cast(), count, lanes, len, to);
            } else {
                for d in 0..len {
                    let x = std::slice::from_raw_parts(depth(d).cast::<u16>(), count);
                    let to = std::slice::from_raw_parts_mut(to.add(d * lanes).cast::<f32>(), count);
                    widen(packer.isa, self.format, x, to);
                }
            }
            let filled = len.div_ceil(per_word);
            std::ptr::write_bytes(to.add(filled * lanes), 0, (words - filled) * lanes);
        }
    }
}

/// Copies `count` neighbouring elements at each depth.
///
/// # Safety
/// `depth` points to `count` elements; `to` has room for `lanes` per depth.
#[inline]
unsafe fn across(depth: impl Fn(usize) -> *const u8, count: usize, lanes: usize, len: usize, to: *mut u32) {
    // SAFETY: promised by the caller.
    unsafe {
        if count == 16 && lanes == 16 {
            for d in 0..len {
                to.add(d * 16).cast::<[u32; 16]>().write_unaligned(depth(d).cast::<[u32; 16]>().read_unaligned());
            }
        } else {
            for d in 0..len {
                std::ptr::copy_nonoverlapping(depth(d).cast::<u32>(), to.add(d * lanes), count);
            }
        }
    }
}

/// Pairs of 16-bit elements at neighbouring depths; an odd last depth is paired with 0.
///
/// # Safety
/// As [`across`].
#[inline]
unsafe fn pairs(depth: impl Fn(usize) -> *const u16, count: usize, lanes: usize, len: usize, to: *mut u32) {
    // SAFETY: promised by the caller.
    unsafe {
        for d in (0..len).step_by(2) {
            let to = to.add(d / 2 * lanes);
            if d + 1 == len {
                for i in 0..count {
                    to.add(i).write_unaligned(u32::from(depth(d).add(i).read_unaligned()));
                }
            } else if count == 16 {
                let [low, high] = [d, d + 1].map(|d| depth(d).cast::<[u16; 16]>().read_unaligned());
                let both: [u32; 16] = std::array::from_fn(|i| u32::from(low[i]) | u32::from(high[i]) << 16);
                to.cast::<[u32; 16]>().write_unaligned(both);
            } else {
                let (low, high) = (depth(d), depth(d + 1));
                for i in 0..count {
                    let word = u32::from(low.add(i).read_unaligned()) | u32::from(high.add(i).read_unaligned()) << 16;
                    to.add(i).write_unaligned(word);
                }
            }
        }
    }
}
