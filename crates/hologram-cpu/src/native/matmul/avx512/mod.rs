//! AVX-512 kernels.

#![allow(clippy::needless_range_loop, reason = "registers are indexed by token in several arrays at once")]

mod float;
mod in_place;
mod int_direct;
mod int_panel;
mod unpack;
mod unpack_split;

use std::arch::x86_64::*;

use hologram_device::DType;

use super::Rows;
use super::float::Kernels as FloatKernels;
use super::int::Kernels as IntKernels;

/// Quantised kernels on VNNI: 16 rows in the lanes of a register.
pub const INT: IntKernels = IntKernels {
    all_formats: true,
    rows: 16,
    most_by_row: |weights| match weights {
        DType::Q8_0 | DType::Q3_K | DType::Q6_K | DType::IQ4_XS => 4,
        _ => 2,
    },
    panels_at_once: 2,
    tokens: 12,
    pack: int_panel::pack,
    direct: Some(int_direct::multiply),
    unpack: int_panel::unpack,
    multiply: int_panel::multiply,
};

/// Float kernels: `f32` products, or products of `bf16` pairs.
pub const FLOAT: FloatKernels = FloatKernels {
    rows: 16,
    panels_at_once: 2,
    tokens: 12,
    few: float::FEW,
    by_row: float::multiply_rows,
    transpose: float::transpose_words,
    widen: Some(float::widen),
    multiply: float::multiply,
    multiply_lines: Some(float::multiply_lines),
    in_place: Some(in_place::KERNELS),
};

/// Transposes 16 bytes at `at` of each of 16 rows: register `j` holds 32-bit word `j` of every row.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose<const WHOLE: bool>(rows: Rows, at: usize) -> [__m512i; 4] {
    macro_rules! quad {
        ($first:literal) => {{
            // SAFETY: promised by the caller.
            unsafe {
                let v = _mm512_castsi128_si512(_mm_loadu_si128(rows.at::<WHOLE>($first, at).cast()));
                let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(rows.at::<WHOLE>($first + 4, at).cast()));
                let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(rows.at::<WHOLE>($first + 8, at).cast()));
                _mm512_inserti32x4::<3>(v, _mm_loadu_si128(rows.at::<WHOLE>($first + 12, at).cast()))
            }
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

/// The 16 `f16` values at byte `at` of each row, as `f32`.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn scales<const WHOLE: bool>(rows: Rows, at: usize) -> __m512 {
    macro_rules! words {
        ($($row:literal)*) => {
            // SAFETY: promised by the caller.
            unsafe { _mm256_set_epi16($(rows.at::<WHOLE>($row, at).cast::<i16>().read_unaligned()),*) }
        };
    }
    _mm512_cvtph_ps(words!(15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0))
}

/// A mask of the lowest `count` of 16 lanes.
#[inline]
fn first_lanes(count: usize) -> u16 {
    ((1u32 << count) - 1) as u16
}
