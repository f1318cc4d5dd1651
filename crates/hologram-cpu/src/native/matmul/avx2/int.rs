//! Panels of 8 unpacked rows times tiles of packed tokens.
//!
//! The processor multiplies unsigned by signed bytes and adds pairs in 16 bits with saturation. So weight codes are
//! multiplied one nibble at a time: the sums of a step of 32 elements then fit (32 · 15 · 128 / 2 = 30720).

use std::arch::x86_64::*;
use std::ops::Range;

use hologram_device::DType;

use super::super::int::{Activations, Direct, Layout};
use super::super::{Rows, prefetch_lines};
use super::{first_lanes, lanes, scales, transpose};

/// Packs a tile of T tokens. For each span: T starts of sums, T scales, then for every four elements one 32-bit word
/// per token.
///
/// # Safety
/// The processor has AVX2; the tokens exist; `to` has room for them.
#[target_feature(enable = "avx2")]
pub unsafe fn pack(layout: &Layout, x: &Activations<'_>, tokens: Range<usize>, to: *mut u8) {
    let (count, groups) = (tokens.len(), layout.k / layout.group);
    let record = count * (8 + layout.span);
    for (t, token) in tokens.enumerate() {
        let codes = &x.codes[token * layout.k..(token + 1) * layout.k];
        for (s, span) in codes.chunks_exact(layout.span).enumerate() {
            let (_, group) = layout.block_and_group(s);
            let sum: i32 = span.iter().map(|code| i32::from(*code as i8)).sum();
            // SAFETY: the words lie in the span's record, which lies in the tile.
            unsafe {
                let to = to.add(s * record).cast::<i32>().add(t);
                to.write_unaligned(-layout.offset * sum);
                to.add(count).cast::<f32>().write_unaligned(x.scales[token * groups + group]);
                for (i, word) in span.chunks_exact(4).enumerate() {
                    to.add((2 + i) * count).write_unaligned(word.as_ptr().cast::<i32>().read_unaligned());
                }
            }
        }
    }
}

const Q8_0: u8 = 0;
const Q4_0: u8 = 1;
const TQ2_0: u8 = 2;

/// Unpacks a panel of 8 rows, of which `count` exist; missing rows repeat the last.
///
/// # Safety
/// The processor has AVX2 and F16C; the rows exist; `to` has room for a panel.
pub unsafe fn unpack(layout: &Layout, first: *const u8, row_bytes: usize, count: usize, to: *mut u8) {
    let rows = Rows::new(first, row_bytes, count);
    // SAFETY: promised by the caller.
    unsafe {
        match (layout.weights, rows.whole(8)) {
            (DType::Q8_0, true) => unpack_blocks::<Q8_0, true>(layout, rows, to),
            (DType::Q8_0, false) => unpack_blocks::<Q8_0, false>(layout, rows, to),
            (DType::Q4_0, true) => unpack_blocks::<Q4_0, true>(layout, rows, to),
            (DType::Q4_0, false) => unpack_blocks::<Q4_0, false>(layout, rows, to),
            (_, true) => unpack_blocks::<TQ2_0, true>(layout, rows, to),
            (_, false) => unpack_blocks::<TQ2_0, false>(layout, rows, to),
        }
    }
}

/// # Safety
/// As [`unpack`].
#[target_feature(enable = "avx2,f16c")]
unsafe fn unpack_blocks<const FORMAT: u8, const WHOLE: bool>(layout: &Layout, rows: Rows, to: *mut u8) {
    let (block_len, block_bytes) = (layout.weights.block_len(), layout.weights.block_bytes());
    let (span, unpacked) = (layout.span, (layout.span + 4) * 8 * (block_len / layout.span));
    for block in 0..layout.k / block_len {
        let (at, to) = (block * block_bytes, to.wrapping_add(block * unpacked));
        prefetch_lines(rows.at::<true>(8, block * 8 * block_bytes), 8 * block_bytes);
        // SAFETY: every row has this block; its unpacked form fits the panel.
        unsafe {
            match FORMAT {
                Q8_0 => q8_0::<WHOLE>(rows, at, to),
                Q4_0 => q4_0::<WHOLE>(rows, at, to),
                _ => tq2_0::<WHOLE>(rows, at, span, to),
            }
        }
    }
}

/// # Safety
/// A block can be read at byte `at` of each row and a span of 32 written.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn q8_0<const WHOLE: bool>(rows: Rows, at: usize, to: *mut u8) {
    let to = to.cast::<__m256i>();
    // SAFETY: promised by the caller.
    unsafe {
        for half in 0..2 {
            let words = transpose::<WHOLE>(rows, at + 2 + 16 * half);
            for j in 0..4 {
                to.add(4 * half + j).write_unaligned(_mm256_xor_si256(words[j], _mm256_set1_epi8(-128)));
            }
        }
        to.add(8).cast::<__m256>().write_unaligned(scales::<WHOLE>(rows, at));
    }
}

/// # Safety
/// As [`q8_0`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn q4_0<const WHOLE: bool>(rows: Rows, at: usize, to: *mut u8) {
    let (to, low) = (to.cast::<__m256i>(), _mm256_set1_epi8(15));
    // SAFETY: promised by the caller.
    unsafe {
        let words = transpose::<WHOLE>(rows, at + 2);
        for j in 0..4 {
            to.add(j).write_unaligned(_mm256_and_si256(words[j], low));
            to.add(4 + j).write_unaligned(_mm256_and_si256(_mm256_srli_epi16::<4>(words[j]), low));
        }
        to.add(8).cast::<__m256>().write_unaligned(scales::<WHOLE>(rows, at));
    }
}

/// # Safety
/// A block can be read at byte `at` of each row and 256 elements in spans written.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn tq2_0<const WHOLE: bool>(rows: Rows, at: usize, span: usize, to: *mut u8) {
    let low = _mm256_set1_epi8(3);
    let span_bytes = (span + 4) * 8;
    // Step `i` holds elements 4i..4i + 4 of the block.
    let place = |step: usize| to.wrapping_add(step * 4 / span * span_bytes + step * 4 % span * 8).cast::<__m256i>();
    // SAFETY: promised by the caller.
    unsafe {
        for quarter in 0..4 {
            let words = transpose::<WHOLE>(rows, at + 16 * quarter);
            for j in 0..4 {
                let word = 4 * quarter + j;
                let step = 32 * (word / 8) + word % 8;
                let bits = words[j];
                place(step).write_unaligned(_mm256_and_si256(bits, low));
                place(step + 8).write_unaligned(_mm256_and_si256(_mm256_srli_epi16::<2>(bits), low));
                place(step + 16).write_unaligned(_mm256_and_si256(_mm256_srli_epi16::<4>(bits), low));
                place(step + 24).write_unaligned(_mm256_and_si256(_mm256_srli_epi16::<6>(bits), low));
            }
        }
        let scales = scales::<WHOLE>(rows, at + 64);
        for s in 0..256 / span {
            to.add(s * span_bytes + span * 8).cast::<__m256>().write_unaligned(scales);
        }
    }
}

/// Multiplies a panel with a tile of `tokens` tokens; `count` rows are stored.
///
/// # Safety
/// The processor has AVX2 and FMA; panel and tile are packed for this layout; the output can be written.
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply(
    tokens: usize,
    layout: &Layout,
    panel: *const u8,
    _apart: usize,
    tile: *const u8,
    y: *mut f32,
    stride: usize,
    count: usize,
) {
    type Tile = unsafe fn(usize, usize, *const u8, *const u8, *mut f32, usize, usize);
    const NARROW: [Tile; 4] =
        [multiply_tile::<1, false>, multiply_tile::<2, false>, multiply_tile::<3, false>, multiply_tile::<4, false>];
    const WIDE: [Tile; 4] =
        [multiply_tile::<1, true>, multiply_tile::<2, true>, multiply_tile::<3, true>, multiply_tile::<4, true>];
    let table = if layout.weights == DType::Q8_0 { &WIDE } else { &NARROW };
    // SAFETY: promised by the caller.
    unsafe { table[tokens - 1](layout.spans(), layout.span / 32, panel, tile, y, stride, count) }
}

/// `WIDE`: weight codes have eight bits; otherwise at most four.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_tile<const T: usize, const WIDE: bool>(
    spans: usize,
    parts: usize,
    panel: *const u8,
    tile: *const u8,
    y: *mut f32,
    stride: usize,
    count: usize,
) {
    let mut acc = [_mm256_setzero_ps(); T];
    let (mut w, mut x) = (panel, tile.cast::<i32>());
    for _ in 0..spans {
        // SAFETY: the panel and the tile have this span.
        unsafe {
            acc = multiply_span::<T, WIDE>(acc, parts, w, x);
            w = w.add((32 * parts + 4) * 8);
            x = x.add((2 + 8 * parts) * T);
        }
    }
    let mask = first_lanes(count);
    for t in 0..T {
        // SAFETY: the rows of the mask and the T tokens lie in the output.
        unsafe { _mm256_maskstore_ps(y.add(t * stride), mask, acc[t]) };
    }
}

/// Adds a span's products. The panel has a register for each of the 8 steps of every part, then one of scales. The tile
/// has T starts, T scales and T words per step.
///
/// # Safety
/// Panel and tile have the span.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_span<const T: usize, const WIDE: bool>(
    mut acc: [__m256; T],
    parts: usize,
    panel: *const u8,
    tile: *const i32,
) -> [__m256; T] {
    let (low, ones, sixteens) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1), _mm256_set1_epi16(16));
    let (mut w, mut x) = (panel, tile);
    // SAFETY: promised by the caller.
    unsafe {
        let x_scales = x.add(T).cast::<f32>();
        let mut sum = [_mm256_setzero_si256(); T];
        for t in 0..T {
            sum[t] = _mm256_set1_epi32(x.add(t).read_unaligned());
        }
        x = x.add(2 * T);
        for _ in 0..parts {
            let mut low_sums = [_mm256_setzero_si256(); T];
            let mut high_sums = [_mm256_setzero_si256(); T];
            for _ in 0..8 {
                let codes = _mm256_loadu_si256(w.cast());
                w = w.add(32);
                let low_codes = if WIDE { _mm256_and_si256(codes, low) } else { codes };
                let high_codes = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low);
                for t in 0..T {
                    let word = _mm256_set1_epi32(x.add(t).read_unaligned());
                    low_sums[t] = _mm256_add_epi16(low_sums[t], _mm256_maddubs_epi16(low_codes, word));
                    if WIDE {
                        high_sums[t] = _mm256_add_epi16(high_sums[t], _mm256_maddubs_epi16(high_codes, word));
                    }
                }
                x = x.add(T);
            }
            for t in 0..T {
                sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(low_sums[t], ones));
                if WIDE {
                    sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(high_sums[t], sixteens));
                }
            }
        }
        let scale = _mm256_loadu_ps(w.cast());
        for t in 0..T {
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[t]), scale);
            acc[t] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(x_scales.add(t).read_unaligned()), acc[t]);
        }
    }
    acc
}

/// Multiplies 8 packed rows with the only tile, a block at a time.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; the rows exist and the tile is packed for this layout, whose spans are whole
/// blocks; the output can be written.
pub unsafe fn multiply_direct(layout: &Layout, tokens: usize, d: &Direct) {
    macro_rules! table {
        ($format:ident) => {
            [
                direct_tile::<$format, 1, { $format == Q8_0 }>,
                direct_tile::<$format, 2, { $format == Q8_0 }>,
                direct_tile::<$format, 3, { $format == Q8_0 }>,
                direct_tile::<$format, 4, { $format == Q8_0 }>,
            ]
        };
    }
    type Tile = unsafe fn(&Layout, &Direct);
    const TABLES: [[Tile; 4]; 3] = [table!(Q8_0), table!(Q4_0), table!(TQ2_0)];
    let table = match layout.weights {
        DType::Q8_0 => &TABLES[0],
        DType::Q4_0 => &TABLES[1],
        _ => &TABLES[2],
    };
    // SAFETY: promised by the caller.
    unsafe { table[tokens - 1](layout, d) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn direct_tile<const FORMAT: u8, const T: usize, const WIDE: bool>(layout: &Layout, d: &Direct) {
    #[repr(align(32))]
    struct Block(#[allow(dead_code, reason = "only its memory is used")] [u8; (256 + 4) * 8]);
    let mut buffer = std::mem::MaybeUninit::<Block>::uninit();
    let to = buffer.as_mut_ptr().cast::<u8>();
    let rows = Rows::new(d.rows, d.row_bytes, 8);
    let (span, bytes) = if FORMAT == TQ2_0 { (256, 66) } else { (32, if FORMAT == Q4_0 { 18 } else { 34 }) };
    let mut acc = [_mm256_setzero_ps(); T];
    let mut x = d.tile.cast::<i32>();
    for block in 0..layout.spans() {
        // SAFETY: the rows and the tile have this block; the buffer holds a block of 256 elements.
        unsafe {
            prefetch_lines(d.next.wrapping_add(block * 8 * bytes), 8 * bytes);
            match FORMAT {
                Q8_0 => q8_0::<true>(rows, block * bytes, to),
                Q4_0 => q4_0::<true>(rows, block * bytes, to),
                _ => tq2_0::<true>(rows, block * bytes, 256, to),
            }
            acc = multiply_span::<T, WIDE>(acc, span / 32, to, x);
            x = x.add((2 + span / 4) * T);
        }
    }
    for t in 0..T {
        // SAFETY: the rows of the mask and the T tokens lie in the output.
        unsafe { _mm256_maskstore_ps(d.y.wrapping_add(t * d.stride), lanes(d.mask), acc[t]) };
    }
}
