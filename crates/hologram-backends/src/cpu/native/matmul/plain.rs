//! The portable path: plain Rust that the compiler vectorises for whatever the target has.

use half::f16;

use crate::Format;

/// Unpacks a quantised row into signed codes and one `f32` scale for each block.
#[inline(always)]
pub fn unpack_row(format: Format, row: &[u8], codes: &mut [i8], scales: &mut [f32]) {
    let blocks = row.chunks_exact(format.block_bytes());
    for ((block, codes), scale) in blocks.zip(codes.chunks_exact_mut(format.block_len())).zip(scales) {
        let (at, packed) = match format {
            Format::TQ2_0 => (64, &block[..64]),
            _ => (0, &block[2..]),
        };
        *scale = f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        match format {
            Format::Q8_0 => codes.iter_mut().zip(packed).for_each(|(c, b)| *c = *b as i8),
            Format::Q4_0 => {
                let (low, high) = codes.split_at_mut(16);
                for ((l, h), b) in low.iter_mut().zip(high).zip(packed) {
                    *l = (b & 15) as i8 - 8;
                    *h = (b >> 4) as i8 - 8;
                }
            }
            _ => {
                for (half, bytes) in codes.chunks_exact_mut(128).zip(packed.chunks_exact(32)) {
                    for (shift, part) in half.chunks_exact_mut(32).enumerate() {
                        part.iter_mut().zip(bytes).for_each(|(c, b)| *c = (b >> (2 * shift) & 3) as i8 - 1);
                    }
                }
            }
        }
    }
}

/// The dot product of two runs of codes.
#[inline(always)]
pub fn dot_codes(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b))).sum()
}

/// The dot product of two `f32` rows in 32 partial sums.
#[inline(always)]
pub fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 32;
    let mut sums = [0f32; LANES];
    let (a_whole, b_whole) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_whole.remainder().iter().zip(b_whole.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_whole.zip(b_whole) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0] + tail
}
