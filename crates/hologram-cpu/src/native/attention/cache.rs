//! Reads the cache: rows of a block through the block table, dequantized where they are codes, and prefetched.

use std::ops::Range;

use half::f16;
use hologram_device::Values;

use super::{Attention, BLOCK, Piece};
use crate::native::simd::{Simd, prefetch};

/// Keys or values.
#[derive(Clone, Copy)]
pub(super) enum Cache<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    F8(&'a [u8]),
    /// Codes, and the scale of each [`BLOCK`].
    Q8(&'a [i8], &'a [f16]),
    /// Codes in pairs, elements i and i + 16 of a block, and the scale of each block.
    Q4(&'a [u8], &'a [f16]),
}

/// Rows of keys or values of one block.
pub(super) enum Rows<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
}

impl Attention {
    /// The elements of the rows from `position` to at most `end` and the end of its block, padded to a multiple of 16
    /// rows of the same block; and the number of rows before padding.
    #[inline(always)]
    fn cache_range(&self, piece: &Piece<'_>, position: usize, end: usize) -> Result<(Range<usize>, usize), String> {
        let (slot, offset) = (position / self.block_size, position % self.block_size);
        let block = piece.table[slot] as usize;
        if block >= self.blocks {
            return Err(format!(
                "sequence {}: entry {slot} of the block table names block {block}, outside a cache of {} blocks",
                piece.sequence, self.blocks
            ));
        }
        let count = (self.block_size - offset).min(end - position);
        let first = ((block * self.kv_heads + piece.kv_head) * self.block_size + offset) * self.d;
        Ok((first..first + count.next_multiple_of(16) * self.d, count))
    }

    /// The rows of keys or values from `position`, as in [`Attention::cache_range`]. Rows of F8, or in 8 or 4 bits, are
    /// dequantized into `decoded`.
    #[inline(always)]
    pub(super) fn stored_rows<'a>(
        &self,
        cache: Cache<'a>,
        piece: &Piece<'_>,
        position: usize,
        end: usize,
        decoded: &'a mut [f32],
    ) -> Result<(Rows<'a>, usize), String> {
        let (elements, count) = self.cache_range(piece, position, end)?;
        let rows = match cache {
            Cache::F32(data) => Rows::F32(&data[elements]),
            Cache::F16(data) => Rows::F16(&data[elements]),
            Cache::F8(data) => Rows::F32(decode_floats(&data[elements], decoded)),
            Cache::Q8(codes, scales) => Rows::F32(decode_codes(codes, scales, elements, decoded)),
            Cache::Q4(codes, scales) => Rows::F32(decode_pairs(codes, scales, elements, decoded)),
        };
        Ok((rows, count))
    }

    /// As [`Attention::stored_rows`], with `f16` rows also converted to `f32`.
    #[inline(always)]
    pub(super) fn float_rows<'a, S: Simd>(
        &self,
        s: S,
        cache: Cache<'a>,
        piece: &Piece<'_>,
        position: usize,
        end: usize,
        decoded: &'a mut [f32],
    ) -> Result<(&'a [f32], usize), String> {
        let (elements, count) = self.cache_range(piece, position, end)?;
        let rows = match cache {
            Cache::F32(data) => &data[elements],
            Cache::F16(data) => {
                let data = &data[elements];
                let decoded = &mut decoded[..data.len()];
                for i in (0..data.len()).step_by(S::LANES) {
                    // SAFETY: both slices have the same length, a multiple of 16 and so of the lanes.
                    unsafe { s.store(decoded.as_mut_ptr().add(i), s.load_f16(data.as_ptr().add(i))) };
                }
                decoded
            }
            Cache::F8(data) => decode_floats(&data[elements], decoded),
            Cache::Q8(codes, scales) => decode_codes(codes, scales, elements, decoded),
            Cache::Q4(codes, scales) => decode_pairs(codes, scales, elements, decoded),
        };
        Ok((rows, count))
    }

    /// The cache lines of the rows from `position` to the end of their block; none behind the piece's span.
    #[inline(always)]
    pub(super) fn lines(&self, cache: Cache<'_>, piece: &Piece<'_>, position: usize) -> Lines {
        let Some(Ok((elements, _))) =
            (position < piece.span.end).then(|| self.cache_range(piece, position, piece.span.end))
        else {
            return Lines { next: std::ptr::null(), left: 0 };
        };
        let (data, nibbles) = match cache {
            Cache::F32(data) => (data.as_ptr().cast::<u8>(), 8),
            Cache::F16(data) => (data.as_ptr().cast::<u8>(), 4),
            Cache::F8(data) => (data.as_ptr(), 2),
            Cache::Q8(codes, _) => (codes.as_ptr().cast::<u8>(), 2),
            Cache::Q4(codes, _) => (codes.as_ptr(), 1),
        };
        let bytes = |elements: usize| elements * nibbles / 2;
        Lines { next: data.wrapping_add(bytes(elements.start)), left: bytes(elements.len()).div_ceil(64) }
    }
}

/// Widens floats of a byte.
#[inline(always)]
fn decode_floats<'a>(data: &[u8], decoded: &'a mut [f32]) -> &'a [f32] {
    let decoded = &mut decoded[..data.len()];
    decoded.iter_mut().zip(data).for_each(|(y, code)| *y = Values::f8(*code));
    decoded
}

/// Dequantizes elements of an 8-bit cache, whole blocks.
#[inline(always)]
fn decode_codes<'a>(codes: &[i8], scales: &[f16], elements: Range<usize>, decoded: &'a mut [f32]) -> &'a [f32] {
    let decoded = &mut decoded[..elements.len()];
    let scales = &scales[elements.start / BLOCK..elements.end / BLOCK];
    let blocks = decoded.as_chunks_mut::<BLOCK>().0.iter_mut().zip(codes[elements].as_chunks::<BLOCK>().0);
    for ((out, codes), scale) in blocks.zip(scales) {
        let scale = scale.to_f32();
        for (y, code) in out.iter_mut().zip(codes) {
            *y = scale * f32::from(*code);
        }
    }
    decoded
}

/// Dequantizes elements of a 4-bit cache, whole blocks.
#[inline(always)]
fn decode_pairs<'a>(codes: &[u8], scales: &[f16], elements: Range<usize>, decoded: &'a mut [f32]) -> &'a [f32] {
    const HALF: usize = BLOCK / 2;
    let decoded = &mut decoded[..elements.len()];
    let scales = &scales[elements.start / BLOCK..elements.end / BLOCK];
    let codes = codes[elements.start / 2..elements.end / 2].as_chunks::<HALF>().0;
    for ((out, codes), scale) in decoded.as_chunks_mut::<BLOCK>().0.iter_mut().zip(codes).zip(scales) {
        let (scale, (low, high)) = (scale.to_f32(), out.split_at_mut(HALF));
        for ((low, high), codes) in low.iter_mut().zip(high).zip(codes) {
            *low = scale * (f32::from(codes & 15) - 8.0);
            *high = scale * (f32::from(codes >> 4) - 8.0);
        }
    }
    decoded
}

/// Cache lines to prefetch, a few at a time between other work: a processor accepts only some tens of requests at once.
pub(super) struct Lines {
    next: *const u8,
    pub(super) left: usize,
}

impl Lines {
    /// Prefetches the next `count` lines.
    #[inline(always)]
    pub(super) fn prefetch(&mut self, count: usize) {
        for _ in 0..count.min(self.left) {
            prefetch(self.next);
            self.next = self.next.wrapping_add(64);
        }
        self.left = self.left.saturating_sub(count);
    }
}
