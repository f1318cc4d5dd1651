//! Float activations: `f32` with weights of any plain type, and `bf16` with `bf16`.

use std::arch::x86_64::*;

use super::super::float::{Element, Words};
use super::super::{PackedRows, Rows, STREAMS, prefetch_lines};
use super::{first_lanes, transpose};
use crate::native::simd::prefetch_near;

/// The most tokens that are multiplied row by row.
pub const FEW: usize = 4;
/// Rows that are multiplied at once with one token and share its loads: `benches/history` compares numbers.
const OF_ONE_TOKEN: usize = 8;
/// Accumulators per dot product, to hide the latency of an addition.
const SUMS: usize = 2;

/// Prefetch distance of a tile's words, in steps. The words are read once or twice, so they come from afar, and
/// broadcasts of single words do not trigger the hardware prefetch early enough.
const TILE_AHEAD: usize = 96;

/// Writes 32-bit words of `count` rows interleaved: word 0 of each row, word 1 of each row, and so on. With `lanes` =
/// 16, missing rows up to the sixteenth repeat the last one.
///
/// # Safety
/// The processor has AVX-512; `words` (a multiple of 4) words of each row can be read and `words * lanes` written.
#[target_feature(enable = "avx512f")]
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
    let whole = words / 16 * 16;
    // SAFETY: promised by the caller.
    unsafe {
        for at in (0..whole * 4).step_by(64) {
            let words = transpose_lines(rows, at);
            for j in 0..16 {
                _mm512_mask_storeu_epi32(to, mask, words[j]);
                to = to.add(lanes);
            }
        }
        for at in (whole * 4..words * 4).step_by(16) {
            for words in transpose::<false>(rows, at) {
                _mm512_mask_storeu_epi32(to, mask, words);
                to = to.add(lanes);
            }
        }
    }
}

/// Writes elements of `count` rows interleaved as `f32`, as [`transpose_words`] does words.
///
/// # Safety
/// The processor has AVX-512; `elements` (a multiple of 4) elements of each row can be read and `elements * lanes`
/// written.
pub unsafe fn widen(
    element: Element,
    first: *const u8,
    row_bytes: usize,
    count: usize,
    elements: usize,
    lanes: usize,
    to: *mut u8,
) {
    let rows = Rows::new(first, row_bytes, count);
    // SAFETY: promised by the caller.
    unsafe {
        match element {
            Element::F16 => widen_rows::<true>(rows, elements, lanes, to),
            _ => widen_rows::<false>(rows, elements, lanes, to),
        }
    }
}

/// [`widen`] for `f16`, or for `bf16`.
///
/// # Safety
/// As [`widen`].
#[target_feature(enable = "avx512f")]
unsafe fn widen_rows<const F16: bool>(rows: Rows, elements: usize, lanes: usize, to: *mut u8) {
    let (mask, mut to) = (first_lanes(lanes), to.cast::<f32>());
    let whole = elements / 32 * 32;
    let pair = |words: __m512i| {
        if F16 {
            let half = |words| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
            [half(words), half(_mm512_srli_epi32::<16>(words))]
        } else {
            let high = _mm512_and_si512(words, _mm512_set1_epi32(-0x1_0000));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(high)]
        }
    };
    // SAFETY: promised by the caller; the last elements of a row are read two by two.
    unsafe {
        for at in (0..whole * 2).step_by(64) {
            for words in transpose_lines(rows, at) {
                for element in pair(words) {
                    _mm512_mask_storeu_ps(to, mask, element);
                    to = to.add(lanes);
                }
            }
        }
        for at in (whole..elements).step_by(2) {
            let word = |row: usize| rows.at::<false>(row, 2 * at).cast::<i32>().read_unaligned();
            let words: [i32; 16] = std::array::from_fn(word);
            for element in pair(_mm512_loadu_si512(words.as_ptr().cast())) {
                _mm512_mask_storeu_ps(to, mask, element);
                to = to.add(lanes);
            }
        }
    }
}

/// Transposes 64 bytes at `at` of each of 16 rows: register `j` holds 32-bit word `j` of every row. Rows whose distance
/// is a power of two share few sets of a cache, so a line is best read at once.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_lines(rows: Rows, at: usize) -> [__m512i; 16] {
    let mut a = [_mm512_setzero_si512(); 16];
    for row in 0..16 {
        // SAFETY: promised by the caller.
        a[row] = unsafe { _mm512_loadu_si512(rows.at::<false>(row, at).cast()) };
    }
    transposed(a)
}

/// 16 × 16 words, transposed.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transposed(mut a: [__m512i; 16]) -> [__m512i; 16] {
    // Within each 128-bit lane the 4 x 4 words of four rows, then the lanes.
    let mut b = a;
    for quad in (0..16).step_by(4) {
        let (ab_low, ab_high) =
            (_mm512_unpacklo_epi32(a[quad], a[quad + 1]), _mm512_unpackhi_epi32(a[quad], a[quad + 1]));
        let (cd_low, cd_high) =
            (_mm512_unpacklo_epi32(a[quad + 2], a[quad + 3]), _mm512_unpackhi_epi32(a[quad + 2], a[quad + 3]));
        b[quad] = _mm512_unpacklo_epi64(ab_low, cd_low);
        b[quad + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        b[quad + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        b[quad + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // Lane `l` of b[4q + j] now holds word 4l + j of rows 4q..4q + 4.
    for j in 0..4 {
        let (even_low, odd_low) = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(b[j], b[4 + j]),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(b[j], b[4 + j]),
        );
        let (even_high, odd_high) = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(b[8 + j], b[12 + j]),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(b[8 + j], b[12 + j]),
        );
        a[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even_low, even_high);
        a[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even_low, even_high);
        a[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd_low, odd_high);
        a[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd_low, odd_high);
    }
    a
}

/// Multiplies one panel, or two panels `panel_stride` bytes from each other, with a tile of `tokens` tokens over
/// `steps` words; adds to the output unless these are the first words.
///
/// # Safety
/// The processor has AVX-512, with BF16 for pairs of `bf16`; panels and tile have these words; `count` rows of the
/// output can be written, more than a panel has for two panels.
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
                $tile::<7, $panels>,
                $tile::<8, $panels>,
                $tile::<9, $panels>,
                $tile::<10, $panels>,
                $tile::<11, $panels>,
                $tile::<12, $panels>,
            ]
        };
        ($tile:ident) => {
            [table!($tile, 1), table!($tile, 2)]
        };
    }
    type Tile = unsafe fn(usize, *const u8, usize, *const u8, *mut u8, usize, u16, bool);
    const F32: [[Tile; 12]; 2] = table!(tile_f32);
    const BF16: [[Tile; 12]; 2] = table!(tile_bf16);
    const I32: [[Tile; 12]; 2] = table!(tile_i32);
    const I16: [[Tile; 12]; 2] = table!(tile_i16);
    const F64: [[Tile; 12]; 2] = table!(tile_f64);
    const I64: [[Tile; 12]; 2] = table!(tile_i64);
    let lanes = 64 / words.bytes();
    let (second, rows) = if count > lanes { (1, count - lanes) } else { (0, count) };
    let table = match words {
        Words::F32 => &F32,
        Words::Bf16Pairs => &BF16,
        Words::I32 => &I32,
        Words::I16Pairs => &I16,
        Words::F64 => &F64,
        Words::I64 => &I64,
    };
    // SAFETY: promised by the caller.
    unsafe { table[second][tokens - 1](steps, panel, panel_stride, tile, y, stride, first_lanes(rows), first) }
}

macro_rules! tile {
    ($name:ident, $features:literal, $word:ty, $mask:ty, $splat:ident, $load:ident, $store:ident, $step:expr) => {
        /// `T` tokens times `P` panels; `mask` has the rows of the last panel.
        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments)]
        unsafe fn $name<const T: usize, const P: usize>(
            steps: usize,
            panel: *const u8,
            panel_stride: usize,
            tile: *const u8,
            y: *mut u8,
            stride: usize,
            mask: u16,
            first: bool,
        ) {
            const LANES: usize = 64 / size_of::<$word>();
            let mut acc = [[_mm512_setzero_si512(); P]; T];
            let (mut w, mut x, y) = (panel, tile.cast::<$word>(), y.cast::<$word>());
            let mask = |p: usize| if p + 1 == P { mask as $mask } else { <$mask>::MAX };
            // SAFETY: a panel has a register and the tile T words per step; the masked rows of T tokens lie in the
            // output.
            unsafe {
                if !first {
                    for t in 0..T {
                        for p in 0..P {
                            acc[t][p] = $load(mask(p), y.add(t * stride + LANES * p));
                        }
                    }
                }
                for _ in 0..steps {
                    prefetch_near(x.wrapping_add(TILE_AHEAD * T).cast());
                    let mut weights = [_mm512_setzero_si512(); P];
                    for p in 0..P {
                        weights[p] = _mm512_loadu_si512(w.add(p * panel_stride).cast());
                    }
                    for t in 0..T {
                        let x = $splat(x.add(t).read_unaligned());
                        for p in 0..P {
                            acc[t][p] = $step(acc[t][p], weights[p], x);
                        }
                    }
                    w = w.add(64);
                    x = x.add(T);
                }
                for t in 0..T {
                    for p in 0..P {
                        $store(y.add(t * stride + LANES * p), mask(p), acc[t][p]);
                    }
                }
            }
        }
    };
    ($name:ident, $features:literal, 32, $step:expr) => {
        tile!($name, $features, i32, u16, _mm512_set1_epi32, _mm512_maskz_loadu_epi32, _mm512_mask_storeu_epi32, $step);
    };
    ($name:ident, $features:literal, 64, $step:expr) => {
        tile!($name, $features, i64, u8, _mm512_set1_epi64, _mm512_maskz_loadu_epi64, _mm512_mask_storeu_epi64, $step);
    };
}

tile!(tile_f32, "avx512f", 32, f32_step);

/// As [`multiply`] for words that are `f32`, with a tile that lies in memory as the lines of a matrix do: a word of the
/// next line `stride` words further and the next word of a line after it, or the other way around if not `along`.
///
/// # Safety
/// As [`multiply`].
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply_lines(
    (x, along, x_stride): (*const f32, bool, usize),
    lines: usize,
    steps: usize,
    panel: *const u8,
    panel_stride: usize,
    y: *mut u8,
    stride: usize,
    count: usize,
    first: bool,
) {
    macro_rules! table {
        ($panels:literal, $along:literal) => {
            [
                lines_f32::<1, $panels, $along>,
                lines_f32::<2, $panels, $along>,
                lines_f32::<3, $panels, $along>,
                lines_f32::<4, $panels, $along>,
                lines_f32::<5, $panels, $along>,
                lines_f32::<6, $panels, $along>,
                lines_f32::<7, $panels, $along>,
                lines_f32::<8, $panels, $along>,
                lines_f32::<9, $panels, $along>,
                lines_f32::<10, $panels, $along>,
                lines_f32::<11, $panels, $along>,
                lines_f32::<12, $panels, $along>,
            ]
        };
    }
    type Tile = unsafe fn(usize, *const u8, usize, *const f32, usize, *mut f32, usize, u16, bool);
    const TILES: [[[Tile; 12]; 2]; 2] = [[table!(1, false), table!(2, false)], [table!(1, true), table!(2, true)]];
    let (second, rows) = if count > 16 { (1, count - 16) } else { (0, count) };
    let tile = TILES[usize::from(along)][second][lines - 1];
    // SAFETY: promised by the caller.
    unsafe { tile(steps, panel, panel_stride, x, x_stride, y.cast(), stride, first_lanes(rows), first) }
}

/// `T` lines times `P` panels; `mask` has the rows of the last panel.
#[target_feature(enable = "avx512f")]
#[allow(clippy::too_many_arguments)]
unsafe fn lines_f32<const T: usize, const P: usize, const ALONG: bool>(
    steps: usize,
    panel: *const u8,
    panel_stride: usize,
    x: *const f32,
    x_stride: usize,
    y: *mut f32,
    stride: usize,
    mask: u16,
    first: bool,
) {
    let mut acc = [[_mm512_setzero_ps(); P]; T];
    let mask = |p: usize| if p + 1 == P { mask } else { u16::MAX };
    // Every third line, from which addresses reach the next two.
    let mut thirds: [*const f32; 4] = std::array::from_fn(|i| x.wrapping_add(3 * i * x_stride));
    let mut depth = x;
    let mut w = panel;
    // SAFETY: a panel has a register per step and the lines have so many words; the masked rows of T lines lie in the
    // output.
    unsafe {
        if !first {
            for t in 0..T {
                for p in 0..P {
                    acc[t][p] = _mm512_maskz_loadu_ps(mask(p), y.add(t * stride + 16 * p));
                }
            }
        }
        for _ in 0..steps {
            let mut weights = [_mm512_setzero_ps(); P];
            for p in 0..P {
                weights[p] = _mm512_loadu_ps(w.add(p * panel_stride).cast());
            }
            for t in 0..T {
                let word = if ALONG { thirds[t / 3].wrapping_add(t % 3 * x_stride) } else { depth.wrapping_add(t) };
                let x = _mm512_set1_ps(*word);
                for p in 0..P {
                    acc[t][p] = _mm512_fmadd_ps(weights[p], x, acc[t][p]);
                }
            }
            w = w.add(64);
            if ALONG {
                thirds = thirds.map(|line| line.wrapping_add(1));
            } else {
                depth = depth.wrapping_add(x_stride);
            }
        }
        for t in 0..T {
            for p in 0..P {
                _mm512_mask_storeu_ps(y.add(t * stride + 16 * p), mask(p), acc[t][p]);
            }
        }
    }
}

tile!(tile_bf16, "avx512f,avx512bf16", 32, bf16_words_step);
tile!(tile_i32, "avx512f", 32, i32_step);
tile!(tile_i16, "avx512f,avx512bw", 32, i16_step);
tile!(tile_f64, "avx512f", 64, f64_step);
tile!(tile_i64, "avx512f,avx512dq", 64, i64_step);

#[inline]
#[target_feature(enable = "avx512f")]
fn f32_step(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    let [acc, w, x] = [acc, w, x].map(|v| _mm512_castsi512_ps(v));
    _mm512_castps_si512(_mm512_fmadd_ps(w, x, acc))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn f64_step(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    let [acc, w, x] = [acc, w, x].map(|v| _mm512_castsi512_pd(v));
    _mm512_castpd_si512(_mm512_fmadd_pd(w, x, acc))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn i32_step(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    _mm512_add_epi32(acc, _mm512_mullo_epi32(w, x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn i16_step(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    _mm512_add_epi32(acc, _mm512_madd_epi16(w, x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn i64_step(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    _mm512_add_epi64(acc, _mm512_mullo_epi64(w, x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_words_step(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    _mm512_castps_si512(bf16_step(_mm512_castsi512_ps(acc), w, x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub fn bf16_step(acc: __m512, w: __m512i, x: __m512i) -> __m512 {
    // SAFETY: both are 512 bits of bf16 pairs.
    unsafe {
        _mm512_dpbf16_ps(acc, std::mem::transmute::<__m512i, __m512bh>(w), std::mem::transmute::<__m512i, __m512bh>(x))
    }
}

/// Multiplies rows with `tokens` (1 to [`FEW`]) rows of `x`. Elements of `x` are `f32`, or `bf16` for
/// [`Words::Bf16Pairs`].
///
/// # Safety
/// The processor has AVX-512, with BF16 for pairs; words are `f32` or pairs of `bf16`; `k` elements of each row can be
/// read, and the output can be written.
pub unsafe fn multiply_rows(words: Words, element: Element, w: &PackedRows, x: *const u8, tokens: usize) {
    macro_rules! of {
        ($dots:ident$(, $kind:literal)?) => {
            match tokens {
                1 => $dots::<$($kind,)? 1, OF_ONE_TOKEN>(w, x),
                2 => $dots::<$($kind,)? 2, STREAMS>(w, x),
                3 => $dots::<$($kind,)? 3, STREAMS>(w, x),
                _ => $dots::<$($kind,)? 4, STREAMS>(w, x),
            }
        };
    }
    // SAFETY: promised by the caller.
    unsafe {
        match (words, element) {
            (Words::Bf16Pairs, _) => of!(dots_bf16),
            (_, Element::F32) => of!(dots_f32, 0),
            (_, Element::F16) => of!(dots_f32, 1),
            (_, Element::Bf16) => of!(dots_f32, 2),
        }
    }
}

/// `KIND` 0: `f32` weights, 1: `f16`, 2: `bf16`; `N` tokens, `R` rows at once.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn dots_f32<const KIND: u8, const N: usize, const R: usize>(w: &PackedRows, x: *const u8) {
    let (k, x) = (w.k, x.cast::<f32>());
    let whole = k / (16 * SUMS) * (16 * SUMS);
    for rows in w.streams::<R>() {
        let ahead = w.ahead::<R>(rows);
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes));
        let mut acc = [[[_mm512_setzero_ps(); SUMS]; R]; N];
        // SAFETY: the elements lie in the rows; the last ones are masked.
        unsafe {
            for at in (0..whole).step_by(16 * SUMS) {
                for j in 0..R {
                    let bytes = if KIND == 0 { 4 } else { 2 };
                    prefetch_lines(ahead[j].wrapping_add(at * bytes), 16 * SUMS * bytes);
                    for part in 0..SUMS {
                        let at = at + 16 * part;
                        let weights = weights::<KIND>(firsts[j], at, u16::MAX);
                        for t in 0..N {
                            acc[t][j][part] =
                                _mm512_fmadd_ps(weights, _mm512_loadu_ps(x.add(t * k + at)), acc[t][j][part]);
                        }
                    }
                }
            }
            for at in (whole..k).step_by(16) {
                let mask = first_lanes((k - at).min(16));
                for j in 0..R {
                    let weights = weights::<KIND>(firsts[j], at, mask);
                    for t in 0..N {
                        let x = _mm512_maskz_loadu_ps(mask, x.add(t * k + at));
                        acc[t][j][0] = _mm512_fmadd_ps(weights, x, acc[t][j][0]);
                    }
                }
            }
            store_totals(acc, w, rows);
        }
    }
}

/// The masked ones of 16 weights starting at element `at`.
///
/// # Safety
/// The elements of the mask can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn weights<const KIND: u8>(w: *const u8, at: usize, mask: u16) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        match KIND {
            0 => _mm512_maskz_loadu_ps(mask, w.cast::<f32>().add(at)),
            1 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, w.cast::<i16>().add(at))),
            _ => {
                let bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, w.cast::<i16>().add(at)));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn dots_bf16<const N: usize, const R: usize>(w: &PackedRows, x: *const u8) {
    let (k, x) = (w.k, x.cast::<i16>());
    let whole = k / (32 * SUMS) * (32 * SUMS);
    for rows in w.streams::<R>() {
        let ahead = w.ahead::<R>(rows);
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes).cast::<i16>());
        let mut acc = [[[_mm512_setzero_ps(); SUMS]; R]; N];
        // SAFETY: as in `dots_f32`.
        unsafe {
            for at in (0..whole).step_by(32 * SUMS) {
                for j in 0..R {
                    prefetch_lines(ahead[j].wrapping_add(at * 2), 64 * SUMS);
                    for part in 0..SUMS {
                        let at = at + 32 * part;
                        let weights = _mm512_loadu_si512(firsts[j].add(at).cast());
                        for t in 0..N {
                            let x = _mm512_loadu_si512(x.add(t * k + at).cast());
                            acc[t][j][part] = bf16_step(acc[t][j][part], weights, x);
                        }
                    }
                }
            }
            for at in (whole..k).step_by(32) {
                let mask = ((1u64 << (k - at).min(32)) - 1) as u32;
                for j in 0..R {
                    let weights = _mm512_maskz_loadu_epi16(mask, firsts[j].add(at));
                    for t in 0..N {
                        let x = _mm512_maskz_loadu_epi16(mask, x.add(t * k + at));
                        acc[t][j][0] = bf16_step(acc[t][j][0], weights, x);
                    }
                }
            }
            store_totals(acc, w, rows);
        }
    }
}

/// # Safety
/// The output of the rows can be written.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_totals<const N: usize, const R: usize>(
    acc: [[[__m512; SUMS]; R]; N],
    w: &PackedRows,
    rows: [usize; R],
) {
    for t in 0..N {
        for j in 0..R {
            let [a, b] = acc[t][j];
            // SAFETY: promised by the caller.
            unsafe { *w.y.add(t * w.stride + rows[j]) = _mm512_reduce_add_ps(_mm512_add_ps(a, b)) };
        }
    }
}
