//! AVX2 and AVX-512.

use std::arch::x86_64::*;

use half::f16;

use super::{Simd, below_power, horner};

/// AVX2, FMA and F16C: eight lanes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx2(());

/// AVX-512 F, BW, DQ, VL: sixteen lanes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx512(());

impl Avx2 {
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[inline(always)]
    pub(in super::super) unsafe fn assume() -> Avx2 {
        Avx2(())
    }
}

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL.
    #[inline(always)]
    pub(in super::super) unsafe fn assume() -> Avx512 {
        Avx512(())
    }

    /// 2ⁿ · (1 + r·c(r)), where n is a multiple of 1/16 and `rounded` is n + [`SIXTEENTHS`]. With so small an r,
    /// three coefficients of the series leave a relative error of 1e-8.
    #[inline(always)]
    fn power(self, rounded: __m512, n: __m512, r: __m512, c: [f32; 3]) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            // Only the lowest four bits of an index and only the whole part of a scale count.
            let of_fraction = _mm512_permutexvar_ps(_mm512_castps_si512(rounded), _mm512_loadu_ps(ROOTS.as_ptr()));
            let root = self.fma(self.mul(of_fraction, r), horner(self, c, r), of_fraction);
            // Results that round to 0 are not computed: a processor takes a hundred cycles or more for each vector with
            // one, and attention's masks make many.
            let more_than_0 = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(n, _mm512_set1_ps(-150.0));
            _mm512_maskz_scalef_ps(more_than_0, root, n)
        }
    }
}

/// Added to a number, this leaves the nearest multiple of 1/16 in the lowest bits of the sum.
const SIXTEENTHS: f32 = 1.5 * (1 << 19) as f32;
/// 2 to the power of each sixteenth below 1.
static ROOTS: [f32; 16] = {
    let (mut roots, mut root, mut i) = ([0.0; 16], 1.0f64, 0);
    while i < 16 {
        roots[i] = root as f32;
        root *= 1.044_273_782_427_413_8;
        i += 1;
    }
    roots
};

impl Simd for Avx2 {
    type V = __m256;
    type H = __m128i;
    const LANES: usize = 8;
    const WIDE_FILE: bool = false;
    const LEAST: f32 = -127.0;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    fn to_f16(self, v: __m256) -> __m128i {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
    }

    #[inline(always)]
    fn to_bf16(self, v: __m256) -> __m128i {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(high, high)))
        }
    }

    #[inline(always)]
    unsafe fn store_half(self, p: *mut u16, h: __m128i) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm_storeu_si128(p.cast(), h) }
    }

    #[inline(always)]
    unsafe fn stream_half(self, p: *mut u16, h: __m128i) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers; `p`
        // is aligned.
        unsafe { _mm_stream_si128(p.cast(), h) }
    }

    #[inline(always)]
    fn any_greater(self, a: __m256, b: __m256) -> bool {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) != 0 }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: __m256) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers; `p`
        // is aligned.
        unsafe { _mm256_stream_ps(p, v) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn keep_where_ge(self, v: __m256, limit: __m256, bound: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let keep = _mm256_cmp_ps::<_CMP_GE_OQ>(limit, bound);
            _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), v, keep)
        }
    }

    #[inline(always)]
    fn round(self, x: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn scale(self, v: __m256, n: __m256) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            // A biased exponent of 0, from -127, is the number 0.
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        }
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }

    #[inline(always)]
    fn peak(self, v: __m256) -> f32 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }

    #[inline(always)]
    fn sums(self, v: &[__m256; 16]) -> __m256 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let low = quad256(pair256(v[0], v[1]), pair256(v[2], v[3]));
            let high = quad256(pair256(v[4], v[5]), pair256(v[6], v[7]));
            _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: &[*const f32; 16], factors: __m256, to: &[*mut f32; 16]) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe {
            let mut columns = [[_mm256_setzero_ps(); 4]; 2];
            for (q, columns) in columns.iter_mut().enumerate() {
                let mut rows = [factors; 4];
                for (i, row) in rows.iter_mut().enumerate() {
                    *row = _mm256_mul_ps(_mm256_loadu_ps(from[4 * q + i]), factors);
                }
                *columns = columns256(rows);
            }
            for c in 0..4 {
                let (low, high) = (columns[0][c], columns[1][c]);
                _mm256_storeu_ps(to[c], _mm256_permute2f128_ps::<0x20>(low, high));
                _mm256_storeu_ps(to[4 + c], _mm256_permute2f128_ps::<0x31>(low, high));
            }
        }
    }
}

impl Simd for Avx512 {
    type V = __m512;
    type H = __m256i;
    const LANES: usize = 16;
    const WIDE_FILE: bool = true;
    const LEAST: f32 = -200.0;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    fn to_f16(self, v: __m512) -> __m256i {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
    }

    #[inline(always)]
    fn to_bf16(self, v: __m512) -> __m256i {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet)))
        }
    }

    #[inline(always)]
    unsafe fn store_half(self, p: *mut u16, h: __m256i) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm256_storeu_si256(p.cast(), h) }
    }

    #[inline(always)]
    unsafe fn stream_half(self, p: *mut u16, h: __m256i) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers; `p`
        // is aligned.
        unsafe { _mm256_stream_si256(p.cast(), h) }
    }

    #[inline(always)]
    fn any_greater(self, a: __m512, b: __m512) -> bool {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) != 0 }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: __m512) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers; `p`
        // is aligned.
        unsafe { _mm512_stream_ps(p, v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn keep_where_ge(self, v: __m512, limit: __m512, bound: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let keep = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(limit, bound);
            _mm512_mask_blend_ps(keep, _mm512_set1_ps(f32::NEG_INFINITY), v)
        }
    }

    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn scale(self, v: __m512, n: __m512) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_scalef_ps(v, n) }
    }

    #[inline(always)]
    fn exp2(self, x: __m512) -> __m512 {
        use std::f32::consts::LN_2;
        // `max` returns the second operand if one is NaN.
        let x = self.max(self.splat(Self::LEAST), x);
        let rounded = self.add(x, self.splat(SIXTEENTHS));
        let n = self.sub(rounded, self.splat(SIXTEENTHS));
        self.power(rounded, n, self.sub(x, n), [LN_2, LN_2 * LN_2 / 2.0, LN_2 * LN_2 * LN_2 / 6.0])
    }

    #[inline(always)]
    fn exp(self, x: __m512) -> __m512 {
        use std::f32::consts::{LN_2, LOG2_E};
        let x = self.max(self.splat(Self::LEAST * LN_2), x);
        let rounded = self.fma(x, self.splat(LOG2_E), self.splat(SIXTEENTHS));
        let n = self.sub(rounded, self.splat(SIXTEENTHS));
        self.power(rounded, n, below_power(self, x, n), [1.0, 0.5, 1.0 / 6.0])
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_reduce_add_ps(v) }
    }

    #[inline(always)]
    fn peak(self, v: __m512) -> f32 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    fn sums(self, v: &[__m512; 16]) -> __m512 {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe {
            let (low, high) = (halves512(v, 0), halves512(v, 8));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(low, high), _mm512_shuffle_f32x4::<0xdd>(low, high))
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: &[*const f32; 16], factors: __m512, to: &[*mut f32; 16]) {
        // SAFETY: `self` exists only where the processor has the instructions; the caller promises valid pointers.
        unsafe {
            let mut columns = [[_mm512_setzero_ps(); 4]; 4];
            for (q, columns) in columns.iter_mut().enumerate() {
                let mut rows = [factors; 4];
                for (i, row) in rows.iter_mut().enumerate() {
                    *row = _mm512_mul_ps(_mm512_loadu_ps(from[4 * q + i]), factors);
                }
                *columns = columns512(rows);
            }
            for c in 0..4 {
                let [q0, q1, q2, q3] = [columns[0][c], columns[1][c], columns[2][c], columns[3][c]];
                let low = (_mm512_shuffle_f32x4::<0x44>(q0, q1), _mm512_shuffle_f32x4::<0x44>(q2, q3));
                let high = (_mm512_shuffle_f32x4::<0xee>(q0, q1), _mm512_shuffle_f32x4::<0xee>(q2, q3));
                _mm512_storeu_ps(to[c], _mm512_shuffle_f32x4::<0x88>(low.0, low.1));
                _mm512_storeu_ps(to[4 + c], _mm512_shuffle_f32x4::<0xdd>(low.0, low.1));
                _mm512_storeu_ps(to[8 + c], _mm512_shuffle_f32x4::<0x88>(high.0, high.1));
                _mm512_storeu_ps(to[12 + c], _mm512_shuffle_f32x4::<0xdd>(high.0, high.1));
            }
        }
    }
}

// Steps of the reduction of several vectors to one vector with a sum per lane. Every step adds the halves of its
// operands' groups of lanes, `a`'s to the first half of the result, `b`'s to the second.

#[inline]
#[target_feature(enable = "avx2")]
fn pair256(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn quad256(a: __m256, b: __m256) -> __m256 {
    let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
    _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn pair512(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quad512(a: __m512, b: __m512) -> __m512 {
    let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
    _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
}

/// The sums of `v[i..i + 8]`, each in two parts.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves512(v: &[__m512; 16], i: usize) -> __m512 {
    let a = quad512(pair512(v[i], v[i + 1]), pair512(v[i + 2], v[i + 3]));
    let b = quad512(pair512(v[i + 4], v[i + 5]), pair512(v[i + 6], v[i + 7]));
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
}

/// Transposes four rows in groups of four columns: group `k` of result `c` is column `4k + c`.
#[inline]
#[target_feature(enable = "avx2")]
fn columns256(row: [__m256; 4]) -> [__m256; 4] {
    let low = |a, b| _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
    let high = |a, b| _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
    let (a, b) = (low(row[0], row[1]), low(row[2], row[3]));
    let (c, d) = (high(row[0], row[1]), high(row[2], row[3]));
    [
        _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
        _mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)),
    ]
}

/// As [`columns256`].
#[inline]
#[target_feature(enable = "avx512f")]
fn columns512(row: [__m512; 4]) -> [__m512; 4] {
    let low = |a, b| _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
    let high = |a, b| _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    let (a, b) = (low(row[0], row[1]), low(row[2], row[3]));
    let (c, d) = (high(row[0], row[1]), high(row[2], row[3]));
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)),
    ]
}
