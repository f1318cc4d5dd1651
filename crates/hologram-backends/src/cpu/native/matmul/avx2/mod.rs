//! AVX2 and FMA kernels: 8 rows in the lanes of a register.

#![allow(clippy::needless_range_loop, reason = "registers are indexed by token in several arrays at once")]

mod float;
mod int;

use std::arch::x86_64::*;

use super::Rows;
use super::float::Kernels as FloatKernels;
use super::int::Kernels as IntKernels;

/// Quantised kernels.
pub const INT: IntKernels =
    IntKernels { rows: 8, tokens: 4, pack: int::pack, direct: None, unpack: int::unpack, multiply: int::multiply };

/// Float kernels with `f32` products.
pub const FLOAT: FloatKernels = FloatKernels {
    rows: 8,
    tokens: 8,
    few: float::FEW,
    by_row: float::multiply_rows,
    transpose: float::transpose_words,
    multiply: float::multiply,
};

/// 16 bytes at `at` of each of 8 rows, transposed: register `j` holds 32-bit word `j` of every row.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose(rows: Rows, at: usize) -> [__m256i; 4] {
    macro_rules! pair {
        ($first:literal) => {{
            // SAFETY: promised by the caller.
            unsafe {
                let v = _mm256_castsi128_si256(_mm_loadu_si128(rows.at::<false>($first, at).cast()));
                _mm256_inserti128_si256::<1>(v, _mm_loadu_si128(rows.at::<false>($first + 4, at).cast()))
            }
        }};
    }
    let (a, b, c, d) = (pair!(0), pair!(1), pair!(2), pair!(3));
    let (ab_low, cd_low) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The `f16` values at byte `at` of each row, as `f32`.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn scales(rows: Rows, at: usize) -> __m256 {
    macro_rules! words {
        ($($row:literal)*) => {
            // SAFETY: promised by the caller.
            unsafe { _mm_set_epi16($(rows.at::<false>($row, at).cast::<i16>().read_unaligned()),*) }
        };
    }
    _mm256_cvtph_ps(words!(7 6 5 4 3 2 1 0))
}

/// A mask of the lowest `count` of 8 lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn first_lanes(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}
