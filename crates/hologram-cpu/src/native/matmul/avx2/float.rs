//! Float activations with `f32` products.

use std::arch::x86_64::*;

use super::super::Rows;
use super::super::float::{Element, Words};
use super::super::{PackedRows, STREAMS, prefetch_lines};
use super::{first_lanes, transpose};

/// The most tokens that are multiplied row by row.
pub const FEW: usize = 2;

/// Writes 32-bit words of `count` rows interleaved: word 0 of each row, word 1 of each row, and so on. With `lanes` =
/// 8, missing rows up to the eighth repeat the last one.
///
/// # Safety
/// The processor has AVX2; `words` (a multiple of 4) words of each row can be read and `words * lanes` written.
#[target_feature(enable = "avx2")]
pub unsafe fn transpose_words(
    first: *const u8,
    row_bytes: usize,
    count: usize,
    words: usize,
    lanes: usize,
    to: *mut u8,
) {
    let rows = Rows::new(first, row_bytes, count);
    let (mask, mut to) = (first_lanes(lanes), to.cast::<i32>());
    for at in (0..words * 4).step_by(16) {
        // SAFETY: promised by the caller.
        unsafe {
            let words = transpose::<false>(rows, at);
            for j in 0..4 {
                _mm256_maskstore_epi32(to, mask, words[j]);
                to = to.add(lanes);
            }
        }
    }
}

/// Multiplies a panel with a tile of `tokens` tokens over `steps` words; adds to the output unless these are the first
/// words.
///
/// # Safety
/// The processor has AVX2 and FMA; the words are `f32`; panel and tile have these words; the output can be written.
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply(
    _words: Words,
    tokens: usize,
    steps: usize,
    panel: *const u8,
    _apart: usize,
    tile: *const u8,
    y: *mut f32,
    stride: usize,
    count: usize,
    first: bool,
) {
    type Tile = unsafe fn(usize, *const u8, *const u8, *mut f32, usize, usize, bool);
    const TABLE: [Tile; 8] = [
        multiply_tile::<1>,
        multiply_tile::<2>,
        multiply_tile::<3>,
        multiply_tile::<4>,
        multiply_tile::<5>,
        multiply_tile::<6>,
        multiply_tile::<7>,
        multiply_tile::<8>,
    ];
    // SAFETY: promised by the caller.
    unsafe { TABLE[tokens - 1](steps, panel, tile, y, stride, count, first) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_tile<const T: usize>(
    steps: usize,
    panel: *const u8,
    tile: *const u8,
    y: *mut f32,
    stride: usize,
    count: usize,
    first: bool,
) {
    let mask = first_lanes(count);
    let mut acc = [_mm256_setzero_ps(); T];
    let (mut w, mut x) = (panel.cast::<f32>(), tile.cast::<f32>());
    // SAFETY: the panel has a register and the tile T words per step; the masked rows of T tokens lie in the output.
    unsafe {
        if !first {
            for t in 0..T {
                acc[t] = _mm256_maskload_ps(y.add(t * stride), mask);
            }
        }
        for _ in 0..steps {
            let weights = _mm256_loadu_ps(w);
            for t in 0..T {
                acc[t] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x.add(t).read_unaligned()), acc[t]);
            }
            w = w.add(8);
            x = x.add(T);
        }
        for t in 0..T {
            _mm256_maskstore_ps(y.add(t * stride), mask, acc[t]);
        }
    }
}

/// Multiplies rows with 1 to [`FEW`] rows of `x`.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; the activations are `f32`; `k` elements of each row can be read, and the
/// output can be written.
pub unsafe fn multiply_rows(_words: Words, element: Element, w: &PackedRows, x: *const u8, tokens: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        match (element, tokens) {
            (Element::F32, 1) => dots::<0, 1, OF_ONE_TOKEN>(w, x),
            (Element::F32, _) => dots::<0, 2, STREAMS>(w, x),
            (Element::F16, 1) => dots::<1, 1, OF_ONE_TOKEN>(w, x),
            (Element::F16, _) => dots::<1, 2, STREAMS>(w, x),
            (Element::Bf16, 1) => dots::<2, 1, OF_ONE_TOKEN>(w, x),
            (Element::Bf16, _) => dots::<2, 2, STREAMS>(w, x),
        }
    }
}

/// Rows that are multiplied at once with one token; the sums of more rows do not fit the registers.
const OF_ONE_TOKEN: usize = 4;
/// Accumulators per dot product, to hide the latency of an addition.
const SUMS: usize = 2;

/// `KIND` 0: `f32` weights, 1: `f16`, 2: `bf16`; `N` tokens, `R` rows at once.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const KIND: u8, const N: usize, const R: usize>(w: &PackedRows, x: *const u8) {
    let (k, x) = (w.k, x.cast::<f32>());
    let whole = k / 16 * 16;
    for rows in w.streams::<R>() {
        let ahead = w.ahead::<R>(rows);
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes));
        let mut acc = [[[_mm256_setzero_ps(); SUMS]; R]; N];
        // SAFETY: the elements lie in the rows; the output of the rows can be written.
        unsafe {
            for at in (0..whole).step_by(16) {
                for j in 0..R {
                    let bytes = if KIND == 0 { 4 } else { 2 };
                    prefetch_lines(ahead[j].wrapping_add(at * bytes), 16 * bytes);
                    for part in 0..SUMS {
                        let at = at + 8 * part;
                        let weights = weights::<KIND>(firsts[j], at);
                        for t in 0..N {
                            let x = _mm256_loadu_ps(x.add(t * k + at));
                            acc[t][j][part] = _mm256_fmadd_ps(weights, x, acc[t][j][part]);
                        }
                    }
                }
            }
            for t in 0..N {
                for j in 0..R {
                    let [a, b] = acc[t][j];
                    let sum = _mm256_add_ps(a, b);
                    let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
                    let sum = _mm_hadd_ps(sum, sum);
                    let mut sum = _mm_cvtss_f32(_mm_hadd_ps(sum, sum));
                    for at in whole..k {
                        sum += weight::<KIND>(firsts[j], at) * x.add(t * k + at).read_unaligned();
                    }
                    *w.y.add(t * w.stride + rows[j]) = sum;
                }
            }
        }
    }
}

/// 8 weights starting at element `at`.
///
/// # Safety
/// The elements can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn weights<const KIND: u8>(w: *const u8, at: usize) -> __m256 {
    // SAFETY: promised by the caller.
    unsafe {
        match KIND {
            0 => _mm256_loadu_ps(w.cast::<f32>().add(at)),
            1 => _mm256_cvtph_ps(_mm_loadu_si128(w.cast::<i16>().add(at).cast())),
            _ => {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(w.cast::<i16>().add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            }
        }
    }
}

/// One weight.
///
/// # Safety
/// The element can be read.
#[inline]
unsafe fn weight<const KIND: u8>(w: *const u8, at: usize) -> f32 {
    // SAFETY: promised by the caller.
    unsafe {
        match KIND {
            0 => w.cast::<f32>().add(at).read_unaligned(),
            1 => half::f16::from_bits(w.cast::<u16>().add(at).read_unaligned()).to_f32(),
            _ => half::bf16::from_bits(w.cast::<u16>().add(at).read_unaligned()).to_f32(),
        }
    }
}
