//! Floats split into `bf16` parts whose sum they are, for exact products on tiles of `bf16`.
//!
//! Each part has the eight leading bits of the remainder after the parts before it, truncated and not rounded, so that
//! nothing overflows. Three parts represent any `f32`, two any `f16`. Parts below the normal range count as zero on
//! tiles. The first part of an infinity or NaN is the number itself; the others are 0.

use std::arch::x86_64::*;

/// The parts of 16 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn parts<const N: usize>(x: __m512) -> [__m256i; N] {
    // Class 0x99: quiet NaN, both infinities, signalling NaN.
    let finite = !_mm512_fpclass_ps_mask::<0x99>(x);
    let (mut parts, mut rest) = ([_mm256_setzero_si256(); N], x);
    for part in &mut parts {
        let bits = _mm512_castps_si512(rest);
        *part = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits));
        let cut = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(!0xffff)));
        rest = _mm512_maskz_sub_ps(finite, rest, cut);
    }
    parts
}

/// Writes the three parts of 32 values. Each part's values lie `stride` bytes behind those of the part before it.
///
/// # Safety
/// The processor has AVX-512; 32 values can be read and 64 bytes of each part written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn of_f32(from: *const f32, to: *mut u8, stride: usize) {
    for half in 0..2 {
        // SAFETY: promised by the caller.
        unsafe {
            for (i, part) in parts::<3>(_mm512_loadu_ps(from.add(16 * half))).into_iter().enumerate() {
                _mm256_storeu_si256(to.add(i * stride + 32 * half).cast(), part);
            }
        }
    }
}

/// Part `PART` of `f16` values of a row: (row, the first, their number (a multiple of 16), the destination).
///
/// # Safety
/// The processor has AVX-512; the values can be read and as many `bf16` written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub unsafe fn of_f16<const PART: usize>(row: *const u8, first: usize, count: usize, to: *mut u16) {
    for at in (0..count).step_by(16) {
        // SAFETY: promised by the caller.
        unsafe {
            let x = _mm512_cvtph_ps(_mm256_loadu_si256(row.cast::<u16>().add(first + at).cast()));
            _mm256_storeu_si256(to.add(at).cast(), parts::<2>(x)[PART]);
        }
    }
}

/// Part `PART` of `f32` values of a row: as [`of_f16`].
///
/// # Safety
/// The processor has AVX-512; the values can be read and as many `bf16` written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn of_row<const PART: usize>(row: *const u8, first: usize, count: usize, to: *mut u16) {
    for at in (0..count).step_by(16) {
        // SAFETY: promised by the caller.
        unsafe {
            let x = _mm512_loadu_ps(row.cast::<f32>().add(first + at));
            _mm256_storeu_si256(to.add(at).cast(), parts::<3>(x)[PART]);
        }
    }
}
