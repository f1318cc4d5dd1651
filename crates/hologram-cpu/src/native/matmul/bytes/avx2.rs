//! [`Bytes`] on AVX2.

use std::arch::x86_64::*;

use super::two_rows::HasAvx2;
use super::{Bytes, Field};
use crate::native::matmul::blocks::SuperBlock;
use crate::native::simd::{self, Simd};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor has the features.
    #[inline(always)]
    pub unsafe fn assume() -> Avx2 {
        Avx2(())
    }

    /// 16 signed bytes of each row as `i16`.
    #[inline(always)]
    fn widen(self, bytes: __m256i) -> [__m256i; 2] {
        wrapped!({
            let second = _mm256_extracti128_si256::<1>(bytes);
            [_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)), _mm256_cvtepi8_epi16(second)]
        })
    }

    /// The scale of the run of each product of a unit.
    #[inline(always)]
    fn spread_unit<const GROUP: usize>(self, scales: __m256i, index: usize) -> __m256i {
        wrapped!({
            // The 128 bits that hold the vector's scales, in both lanes; then in each lane two bytes, broadcast.
            let first = if GROUP == 32 { index } else { 2 * index };
            let half = if first < 8 {
                _mm256_permute4x64_epi64::<0b01_00_01_00>(scales)
            } else {
                _mm256_permute4x64_epi64::<0b11_10_11_10>(scales)
            };
            let pair = |scale: usize| 0x0100 + 0x0202 * (scale as i16 % 8);
            let second = if GROUP == 32 { first } else { first + 1 };
            let order = _mm256_inserti128_si256::<1>(_mm256_set1_epi16(pair(first)), _mm_set1_epi16(pair(second)));
            _mm256_shuffle_epi8(half, order)
        })
    }
}

// SAFETY: the creator of the value promised these features, or more.
unsafe impl HasAvx2 for Avx2 {}

impl Bytes for Avx2 {
    type V = __m256i;
    type F = __m256;
    type Scales = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Totals = [__m256; 2];
    type Lows = [__m256; 2];
    const LEN: usize = 32;

    #[inline(always)]
    fn zero(self) -> __m256i {
        wrapped!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn zero_f(self) -> __m256 {
        wrapped!(_mm256_setzero_ps())
    }

    #[inline(always)]
    fn no_sums(self) -> [__m256i; 2] {
        [self.zero(); 2]
    }

    #[inline(always)]
    fn no_totals(self) -> [__m256; 2] {
        [self.zero_f(); 2]
    }

    #[inline(always)]
    fn no_lows(self) -> [__m256; 2] {
        [self.zero_f(); 2]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m256i {
        wrapped!(_mm256_loadu_si256(from.cast()))
    }

    #[inline(always)]
    unsafe fn load_f(self, from: *const f32) -> __m256 {
        wrapped!(_mm256_loadu_ps(from))
    }

    #[inline(always)]
    unsafe fn field(self, block: *const u8, [a, _]: [Field; 2]) -> __m256i {
        wrapped!({
            let v = _mm256_loadu_si256(block.add(a.at).cast());
            let by = _mm_cvtsi32_si128(a.left().abs());
            let v = if a.left() >= 0 { _mm256_sll_epi16(v, by) } else { _mm256_srl_epi16(v, by) };
            _mm256_and_si256(v, _mm256_set1_epi8(a.mask() as i8))
        })
    }

    #[inline(always)]
    unsafe fn nibbles(self, [a, _]: [*const u8; 2]) -> __m256i {
        wrapped!({
            let bytes = _mm_loadu_si128(a.cast());
            let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        })
    }

    #[inline(always)]
    unsafe fn strided_nibbles(self, first: *const u8, stride: usize) -> [__m256i; 2] {
        wrapped!({
            let bytes = _mm256_castsi128_si256(_mm_loadu_si128(first.cast()));
            let bytes = _mm256_inserti128_si256::<1>(bytes, _mm_loadu_si128(first.add(stride).cast()));
            let half = _mm256_set1_epi8(15);
            [_mm256_and_si256(bytes, half), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half)]
        })
    }

    #[inline(always)]
    fn split_units(self, [a, b]: [__m256i; 2]) -> [__m256i; 2] {
        wrapped!([_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)])
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, v: __m256i) {
        wrapped!(_mm256_storeu_si256(to.cast(), v))
    }

    #[inline(always)]
    unsafe fn pair(self, [a, _]: [*const u8; 2]) -> __m256i {
        wrapped!(_mm256_loadu_si256(a.cast()))
    }

    #[inline(always)]
    fn add_sixteens(self, halves: __m256i, [a, _]: [u32; 2]) -> __m256i {
        wrapped!({
            // Copies byte i of the bits to eight bytes, each of which keeps one bit.
            let order = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(a as i32), order);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
            _mm256_or_si256(halves, _mm256_and_si256(set, _mm256_set1_epi8(16)))
        })
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        wrapped!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m256i, byte: u8) -> __m256i {
        wrapped!(_mm256_xor_si256(a, _mm256_set1_epi8(byte as i8)))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: __m256i) -> __m256i {
        wrapped!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
        })
    }

    #[inline(always)]
    fn offset_correction(self, code: u8, x: __m256i) -> __m256i {
        wrapped!(_mm256_sub_epi16(_mm256_setzero_si256(), _mm256_maddubs_epi16(_mm256_set1_epi8(code as i8), x)))
    }

    #[inline(always)]
    fn dots<const WIDE: bool>(self, codes: __m256i, x: __m256i) -> __m256i {
        wrapped!({
            let ones = _mm256_set1_epi16(1);
            if !WIDE {
                return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), ones);
            }
            // Two products of eight bits may exceed 16 bits; those of nibbles do not.
            let half = _mm256_set1_epi8(15);
            let low = _mm256_maddubs_epi16(_mm256_and_si256(codes, half), x);
            let high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16::<4>(codes), half), x);
            _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, _mm256_set1_epi16(16)))
        })
    }

    #[inline(always)]
    fn dots_of_halves<const WIDE: bool>(self, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
        wrapped!({
            if WIDE {
                return _mm256_add_epi32(self.dots::<true>(codes[0], x[0]), self.dots::<true>(codes[1], x[1]));
            }
            // Four products of five bits do not exceed 16 bits.
            let sums = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], x[0]), _mm256_maddubs_epi16(codes[1], x[1]));
            _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
        })
    }

    #[inline(always)]
    fn scales(self, of_runs: __m256i, lift: Option<&[i16; 16]>) -> [__m256i; 2] {
        wrapped!({
            let [a, b] = self.widen(of_runs);
            match lift {
                Some(by) => {
                    let by = _mm256_loadu_si256(by.as_ptr().cast());
                    [_mm256_mullo_epi16(a, by), _mm256_mullo_epi16(b, by)]
                }
                None => [a, b],
            }
        })
    }

    #[inline(always)]
    fn add_runs<B: SuperBlock>(
        self,
        mut sums: [__m256i; 2],
        vector: usize,
        on: __m256i,
        codes: [__m256i; 2],
        x: __m256i,
        scales: [__m256i; 2],
    ) -> [__m256i; 2] {
        let unit = B::ORDER[vector];
        for j in 0..2 {
            let scales = if B::RUN == 32 {
                self.spread_unit::<32>(scales[j], unit)
            } else {
                self.spread_unit::<16>(scales[j], unit)
            };
            sums[j] = wrapped!({
                let of_two = _mm256_add_epi16(on, _mm256_maddubs_epi16(codes[j], x));
                _mm256_add_epi32(sums[j], _mm256_madd_epi16(of_two, scales))
            });
        }
        sums
    }

    #[inline(always)]
    fn add_sums(self, [a, b]: [__m256; 2], sums: [__m256i; 2], factors: __m128) -> [__m256; 2] {
        wrapped!({
            let [of_a, of_b] = [_mm256_broadcastss_ps(factors), _mm256_broadcastss_ps(_mm_movehl_ps(factors, factors))];
            [
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[0]), of_a, a),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[1]), of_b, b),
            ]
        })
    }

    #[inline(always)]
    unsafe fn store_sums(self, to: *mut u8, sums: &[i16; 16]) {
        wrapped!(_mm256_storeu_si256(to.cast(), _mm256_loadu_si256(sums.as_ptr().cast())))
    }

    #[inline(always)]
    unsafe fn add_minimums(
        self,
        [a, b]: [__m256; 2],
        minimums: __m256i,
        with: *const u8,
        factors: __m128,
    ) -> [__m256; 2] {
        wrapped!({
            let with = _mm256_loadu_si256(with.cast());
            let [of_a, of_b] = self.widen(minimums);
            let (dots_a, dots_b) = (_mm256_madd_epi16(of_a, with), _mm256_madd_epi16(of_b, with));
            let by_a = _mm256_broadcastss_ps(_mm_movehdup_ps(factors));
            let by_b = _mm256_broadcastss_ps(_mm_shuffle_ps::<0b11_11_11_11>(factors, factors));
            [_mm256_fmadd_ps(_mm256_cvtepi32_ps(dots_a), by_a, a), _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots_b), by_b, b)]
        })
    }

    #[inline(always)]
    fn rows(self, totals: [__m256; 2], lows: [__m256; 2], factor: f32) -> [__m256; 2] {
        wrapped!({
            let factor = _mm256_set1_ps(factor);
            [_mm256_fmadd_ps(lows[0], factor, totals[0]), _mm256_fmadd_ps(lows[1], factor, totals[1])]
        })
    }

    #[inline(always)]
    fn add_products(self, to: __m256, sums: __m256i, factors: __m256) -> __m256 {
        wrapped!(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), factors, to))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        wrapped!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        wrapped!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    unsafe fn store_totals(self, vectors: &[__m256; 16], to: *mut f32, count: usize) {
        wrapped!({
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane);
            _mm256_maskstore_ps(to, mask, simd::Avx2::assume().sums(vectors))
        })
    }

    #[inline(always)]
    fn float_of_f16(self, bits: u16) -> f32 {
        wrapped!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))))
    }

    #[inline(always)]
    unsafe fn halves(self, first: *const u8, at: usize, stride: usize, count: usize) -> __m256 {
        let mut words = [0u16; 8];
        for (i, word) in words.iter_mut().enumerate().take(count) {
            *word = wrapped!(first.add(i * stride + at).cast::<u16>().read_unaligned());
        }
        let [a, b, c, d, e, f, g, h] = words.map(|word| word as i16);
        wrapped!(_mm256_cvtph_ps(_mm_set_epi16(h, g, f, e, d, c, b, a)))
    }

    #[inline(always)]
    unsafe fn powers_of_two(self, first: *const u8, at: usize, stride: usize, count: usize) -> __m256 {
        let mut bits = [0i32; 8];
        for (i, bits) in bits.iter_mut().enumerate().take(count) {
            let e = i32::from(wrapped!(first.add(i * stride + at).read()));
            *bits = if e < 2 { 1 << 21 << e } else { (e - 1) << 23 };
        }
        let [a, b, c, d, e, f, g, h] = bits;
        wrapped!(_mm256_castsi256_ps(_mm256_set_epi32(h, g, f, e, d, c, b, a)))
    }

    #[inline(always)]
    fn six_bits(self, [low, _]: [u32; 2], [high, _]: [u32; 2]) -> __m256 {
        wrapped!({
            let twos = _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0);
            let low = _mm256_srlv_epi32(_mm256_set1_epi32(low as i32), _mm256_add_epi32(twos, twos));
            let high = _mm256_slli_epi32::<4>(_mm256_srlv_epi32(_mm256_set1_epi32(high as i32), twos));
            let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
            let bits = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
            _mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(32)))
        })
    }

    #[inline(always)]
    fn by_eights(self, [a, _]: [f32; 2]) -> __m256 {
        wrapped!(_mm256_set1_ps(a))
    }

    #[inline(always)]
    fn pick(self, factors: __m256, index: usize) -> __m256 {
        wrapped!(_mm256_permutevar8x32_ps(factors, _mm256_set1_epi32(index as i32)))
    }

    #[inline(always)]
    fn pick_of_halves(self, factors: __m256, index: usize) -> __m256 {
        wrapped!({
            let first = _mm256_set1_epi32(2 * index as i32);
            _mm256_permutevar8x32_ps(factors, _mm256_add_epi32(first, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0)))
        })
    }
}
