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

/// Multiplies one panel, or two panels `panel_stride` bytes from each other, with a tile of `tokens` tokens over
/// `steps` words; adds to the output unless these are the first words.
///
/// # Safety
/// The processor has AVX2 and FMA; the words are no pairs of `bf16`; panels and tile have these words; `count` rows of
/// the output can be written, more than a panel has for two panels.
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply(
    words: Words,
    tokens: usize,
    steps: usize,
    panel: *const u8,
    panel_stride: usize,
    tile: *const u8,
    y: *mut u8,
    stride: usize,
    count: usize,
    first: bool,
) {
    macro_rules! table {
        ($tile:ident, $panels:literal) => {
            [
                $tile::<1, $panels>,
                $tile::<2, $panels>,
                $tile::<3, $panels>,
                $tile::<4, $panels>,
                $tile::<5, $panels>,
                $tile::<6, $panels>,
            ]
        };
        ($tile:ident) => {
            [table!($tile, 1), table!($tile, 2)]
        };
    }
    type Tile = unsafe fn(usize, *const u8, usize, *const u8, *mut u8, usize, usize, bool);
    const F32: [[Tile; 6]; 2] = table!(tile_f32);
    const I32: [[Tile; 6]; 2] = table!(tile_i32);
    const I16: [[Tile; 6]; 2] = table!(tile_i16);
    const F64: [[Tile; 6]; 2] = table!(tile_f64);
    const I64: [[Tile; 6]; 2] = table!(tile_i64);
    let lanes = 32 / words.bytes();
    let (second, rows) = if count > lanes { (1, count - lanes) } else { (0, count) };
    let table = match words {
        Words::F32 | Words::Bf16Pairs => &F32,
        Words::I32 => &I32,
        Words::I16Pairs => &I16,
        Words::F64 => &F64,
        Words::I64 => &I64,
    };
    // SAFETY: promised by the caller.
    unsafe { table[second][tokens - 1](steps, panel, panel_stride, tile, y, stride, rows, first) }
}

macro_rules! tile {
    ($name:ident, $word:ty, $splat:ident, $load:ident, $store:ident, $step:expr) => {
        /// `T` tokens times `P` panels, the last of which has `rows` rows.
        #[target_feature(enable = "avx2,fma")]
        #[allow(clippy::too_many_arguments)]
        unsafe fn $name<const T: usize, const P: usize>(
            steps: usize,
            panel: *const u8,
            panel_stride: usize,
            tile: *const u8,
            y: *mut u8,
            stride: usize,
            rows: usize,
            first: bool,
        ) {
            const LANES: usize = 32 / size_of::<$word>();
            // A lane of a word of 64 bits is two of 32.
            let masks: [__m256i; P] =
                std::array::from_fn(|p| first_lanes(if p + 1 == P { rows } else { LANES } * (8 / LANES)));
            let mut acc = [[_mm256_setzero_si256(); P]; T];
            let (mut w, mut x, y) = (panel, tile.cast::<$word>(), y.cast::<$word>());
            // SAFETY: a panel has a register and the tile T words per step; the masked rows of T tokens lie in the
            // output.
            unsafe {
                if !first {
                    for t in 0..T {
                        for p in 0..P {
                            acc[t][p] = $load(y.add(t * stride + LANES * p), masks[p]);
                        }
                    }
                }
                for _ in 0..steps {
                    let mut weights = [_mm256_setzero_si256(); P];
                    for p in 0..P {
                        weights[p] = _mm256_loadu_si256(w.add(p * panel_stride).cast());
                    }
                    for t in 0..T {
                        let x = $splat(x.add(t).read_unaligned());
                        for p in 0..P {
                            acc[t][p] = $step(acc[t][p], weights[p], x);
                        }
                    }
                    w = w.add(32);
                    x = x.add(T);
                }
                for t in 0..T {
                    for p in 0..P {
                        $store(y.add(t * stride + LANES * p), masks[p], acc[t][p]);
                    }
                }
            }
        }
    };
    ($name:ident, 32, $step:expr) => {
        tile!($name, i32, _mm256_set1_epi32, _mm256_maskload_epi32, _mm256_maskstore_epi32, $step);
    };
    ($name:ident, 64, $step:expr) => {
        tile!($name, i64, _mm256_set1_epi64x, _mm256_maskload_epi64, _mm256_maskstore_epi64, $step);
    };
}

tile!(tile_f32, 32, f32_step);
tile!(tile_i32, 32, i32_step);
tile!(tile_i16, 32, i16_step);
tile!(tile_f64, 64, f64_step);
tile!(tile_i64, 64, i64_step);

#[inline]
#[target_feature(enable = "avx2,fma")]
fn f32_step(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let [acc, w, x] = [acc, w, x].map(|v| _mm256_castsi256_ps(v));
    _mm256_castps_si256(_mm256_fmadd_ps(w, x, acc))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn f64_step(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let [acc, w, x] = [acc, w, x].map(|v| _mm256_castsi256_pd(v));
    _mm256_castpd_si256(_mm256_fmadd_pd(w, x, acc))
}

#[inline]
#[target_feature(enable = "avx2")]
fn i32_step(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi32(acc, _mm256_mullo_epi32(w, x))
}

#[inline]
#[target_feature(enable = "avx2")]
fn i16_step(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi32(acc, _mm256_madd_epi16(w, x))
}

/// Products of the low halves, and of each low half with the other's high half, which AVX2 has.
#[inline]
#[target_feature(enable = "avx2")]
fn i64_step(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let low = _mm256_mul_epu32(w, x);
    let crossed = [(w, x), (x, w)].map(|(a, b)| _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), b));
    let crossed = _mm256_slli_epi64::<32>(_mm256_add_epi64(crossed[0], crossed[1]));
    _mm256_add_epi64(acc, _mm256_add_epi64(low, crossed))
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
