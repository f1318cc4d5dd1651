//! [`TwoRows`] in 256 bits, for every instruction set that has AVX2.

use std::arch::x86_64::*;

use super::TwoRows;

/// # Safety
/// A value is the evidence that the processor has AVX2 and F16C.
pub unsafe trait HasAvx2: Copy {
    /// Shifts the 32-bit numbers of each 128 bits left by 4, 2, 0 and −2 bits; the bits shifted in are not used.
    #[inline(always)]
    fn aligned(self, numbers: __m256i) -> __m256i {
        wrapped!({
            let left = _mm256_sllv_epi32(numbers, _mm256_set_epi32(0, 0, 2, 4, 0, 0, 2, 4));
            _mm256_srlv_epi32(left, _mm256_set_epi32(2, 0, 0, 0, 2, 0, 0, 0))
        })
    }
}

/// 16 bytes of each row, given as two numbers per row.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn quads([a, b]: [[u64; 2]; 2]) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe { _mm256_set_epi64x(b[1] as i64, b[0] as i64, a[1] as i64, a[0] as i64) }
}

impl<S: HasAvx2> TwoRows for S {
    type Sixteens = __m256i;
    type Factors = __m128;

    #[inline(always)]
    unsafe fn sixteens(self, [a, b]: [*const u8; 2]) -> __m256i {
        wrapped!({
            let a = _mm256_castsi128_si256(_mm_loadu_si128(a.cast()));
            _mm256_inserti128_si256::<1>(a, _mm_loadu_si128(b.cast()))
        })
    }

    #[inline(always)]
    fn half_sixteens(self, both: __m256i) -> [__m256i; 2] {
        wrapped!({
            let half = _mm256_set1_epi8(15);
            [_mm256_and_si256(both, half), _mm256_and_si256(_mm256_srli_epi16::<4>(both), half)]
        })
    }

    #[inline(always)]
    fn signed_sixes(self, low: [u64; 2], high: [u32; 2]) -> __m256i {
        wrapped!({
            let low = quads(low.map(|low| [low, low]));
            let low = _mm256_srlv_epi64(low, _mm256_set_epi64x(4, 0, 4, 0));
            let high = quads(high.map(|high| [u64::from(high) * 0x1_0000_0001; 2]));
            let high = self.aligned(high);
            let low = _mm256_and_si256(low, _mm256_set1_epi8(0x0f));
            let bits = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
            _mm256_sub_epi8(bits, _mm256_set1_epi8(32))
        })
    }

    #[inline(always)]
    fn eight_and_eight(self, blocks: __m256i) -> __m256i {
        wrapped!({
            let low = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0f0e_0d0c, 0x0b0a_0908, 0x0f0e_0d0c, 0x0706_0504));
            let high = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0b0a_0908, -1, 0x0706_0504, -1));
            let kept = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f));
            let low = _mm256_srlv_epi32(_mm256_shuffle_epi8(blocks, low), _mm256_set_epi32(4, 0, 0, 0, 4, 0, 0, 0));
            let high = _mm256_srli_epi16::<2>(_mm256_shuffle_epi8(blocks, high));
            _mm256_or_si256(_mm256_and_si256(low, kept), _mm256_and_si256(high, _mm256_set1_epi8(0x30)))
        })
    }

    #[inline(always)]
    fn first_sixteen(self, of: __m256i) -> [i8; 16] {
        let mut bytes = [0; 16];
        wrapped!(_mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm256_castsi256_si128(of)));
        bytes
    }

    #[inline(always)]
    fn factors(self, [a, b]: [u32; 2], by: f32) -> __m128 {
        wrapped!({
            let halves = _mm_set_epi32(0, 0, b as i32, a as i32);
            _mm_mul_ps(_mm_cvtph_ps(halves), _mm_set1_ps(by))
        })
    }
}
