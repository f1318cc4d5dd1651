//! AVX2 and FMA kernels: 8 rows in the lanes of a register.

#![allow(clippy::needless_range_loop, reason = "registers are indexed by token in several arrays at once")]

mod float;
mod int;

use std::arch::x86_64::*;

use super::Rows;
use super::float::Kernels as FloatKernels;
use super::int::Kernels as IntKernels;
use super::rows::TOGETHER;

/// Quantised kernels.
pub const INT: IntKernels = IntKernels {
    all_formats: false,
    rows: 8,
    most_by_row: |_| TOGETHER,
    panels_at_once: 1,
    tokens: 4,
    pack: int::pack,
    direct: Some(int::multiply_direct),
    unpack: int::unpack,
    multiply: int::multiply,
};

/// Float kernels with `f32` products.
pub const FLOAT: FloatKernels = FloatKernels {
    rows: 8,
    panels_at_once: 2,
    tokens: 6,
    few: float::FEW,
    by_row: float::multiply_rows,
    transpose: float::transpose_words,
    widen: None,
    multiply: float::multiply,
    multiply_lines: None,
    in_place: None,
};

/// Transposes 16 bytes at `at` of each of 8 rows: register `j` holds 32-bit word `j` of every row.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose<const WHOLE: bool>(rows: Rows, at: usize) -> [__m256i; 4] {
    macro_rules! pair {
        ($first:literal) => {{
            // SAFETY: promised by the caller.
            unsafe {
                let v = _mm256_castsi128_si256(_mm_loadu_si128(rows.at::<WHOLE>($first, at).cast()));
                _mm256_inserti128_si256::<1>(v, _mm_loadu_si128(rows.at::<WHOLE>($first + 4, at).cast()))
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
unsafe fn scales<const WHOLE: bool>(rows: Rows, at: usize) -> __m256 {
    macro_rules! words {
        ($($row:literal)*) => {
            // SAFETY: promised by the caller.
            unsafe { _mm_set_epi16($(rows.at::<WHOLE>($row, at).cast::<i16>().read_unaligned()),*) }
        };
    }
    _mm256_cvtph_ps(words!(7 6 5 4 3 2 1 0))
}

/// A mask of the lanes whose bits are set.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(bits: u16) -> __m256i {
    let lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(i32::from(bits)), lane), lane)
}

/// A mask of the lowest `count` of 8 lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn first_lanes(count: usize) -> __m256i {
    lanes(((1u32 << count) - 1) as u16)
}
