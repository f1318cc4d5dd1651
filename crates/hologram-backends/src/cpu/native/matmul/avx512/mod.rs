//! AVX-512 kernels.

#![allow(clippy::needless_range_loop, reason = "registers are indexed by token in several arrays at once")]

mod float;
mod int_panel;
mod int_row;

use std::arch::x86_64::*;

use super::float::Kernels as FloatKernels;
use super::int::Kernels as IntKernels;

/// Quantised kernels on VNNI: 16 rows in the lanes of a register.
pub const INT: IntKernels = IntKernels {
    rows: 16,
    tokens: 12,
    few: int_row::FEW,
    row_scratch: int_row::scratch,
    by_row: int_row::multiply,
    pack: int_panel::pack,
    unpack: int_panel::unpack,
    multiply: int_panel::multiply,
};

/// Float kernels: `f32` products, or products of `bf16` pairs.
pub const FLOAT: FloatKernels = FloatKernels {
    rows: 16,
    tokens: 12,
    few: float::FEW,
    by_row: float::multiply_rows,
    transpose: float::transpose_words,
    multiply: float::multiply,
};

/// 16 bytes at `at` of each of 16 rows, transposed: register `j` holds 32-bit word `j` of every row.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(rows: &[*const u8; 16], at: usize) -> [__m512i; 4] {
    macro_rules! quad {
        ($first:literal) => {{
            // SAFETY: promised by the caller.
            let load = |row: usize| unsafe { _mm_loadu_si128(rows[row].add(at).cast()) };
            let v = _mm512_castsi128_si512(load($first));
            let v = _mm512_inserti32x4::<1>(v, load($first + 4));
            let v = _mm512_inserti32x4::<2>(v, load($first + 8));
            _mm512_inserti32x4::<3>(v, load($first + 12))
        }};
    }
    let (a, b, c, d) = (quad!(0), quad!(1), quad!(2), quad!(3));
    let (ab_low, cd_low) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The 16 `f16` values whose bits `word` gives, as `f32`.
#[inline]
#[target_feature(enable = "avx512f")]
fn scales(word: impl Fn(usize) -> i16) -> __m512 {
    let w: [i16; 16] = std::array::from_fn(word);
    #[rustfmt::skip]
    let words = _mm256_set_epi16(
        w[15], w[14], w[13], w[12], w[11], w[10], w[9], w[8], w[7], w[6], w[5], w[4], w[3], w[2], w[1], w[0],
    );
    _mm512_cvtph_ps(words)
}

/// The `f16` scales at `at` of each of 16 rows.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn row_scales(rows: &[*const u8; 16], at: usize) -> __m512 {
    // SAFETY: promised by the caller.
    scales(|row| unsafe { rows[row].add(at).cast::<i16>().read_unaligned() })
}

/// A mask of the lowest `count` of 16 lanes.
#[inline]
fn first_lanes(count: usize) -> u16 {
    ((1u32 << count) - 1) as u16
}
