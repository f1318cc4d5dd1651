//! [`Bytes`] on AVX-512 VNNI and on AVX2.

use std::arch::x86_64::*;

use super::{Bytes, Field};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub struct Vnni(());

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Vnni {
    /// # Safety
    /// The processor has the features.
    #[inline(always)]
    pub unsafe fn assume() -> Vnni {
        Vnni(())
    }
}

impl Avx2 {
    /// # Safety
    /// The processor has the features.
    #[inline(always)]
    pub unsafe fn assume() -> Avx2 {
        Avx2(())
    }
}

/// Which of 16 scales each of the 32 products of a vector takes, by the elements that share one (16, 32) and the vector's index.
static SPREAD: [[[u16; 32]; 4]; 2] = {
    let mut all = [[[0; 32]; 4]; 2];
    let mut i = 0;
    while i < 256 {
        let (group, vector, lane) = (i / 128, i / 32 % 4, i % 32);
        all[group][vector][lane] = ((64 * vector + 2 * lane) / (16 << group)) as u16;
        i += 1;
    }
    all
};

/// Which of 16 units' factors each of the 16 sums of a vector of two units takes.
static PICK: [[u32; 16]; 8] = {
    let mut all = [[0; 16]; 8];
    let mut i = 0;
    while i < 128 {
        all[i / 16][i % 16] = (i / 8) as u32;
        i += 1;
    }
    all
};

macro_rules! wrapped {
    ($e:expr) => {
        // SAFETY: the value `self` is the evidence that the processor has the instructions; what is read or written the caller promises.
        unsafe { $e }
    };
}

impl Bytes for Vnni {
    type V = __m512i;
    type F = __m512;
    type H = __m256i;
    type M = __m256;
    const LEN: usize = 64;

    #[inline(always)]
    fn zero(self) -> __m512i {
        wrapped!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn zero_f(self) -> __m512 {
        wrapped!(_mm512_setzero_ps())
    }

    #[inline(always)]
    fn zero_m(self) -> __m256 {
        wrapped!(_mm256_setzero_ps())
    }

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        wrapped!(_mm512_loadu_si512(from.cast()))
    }

    #[inline(always)]
    unsafe fn load_f(self, from: *const f32) -> __m512 {
        wrapped!(_mm512_loadu_ps(from))
    }

    #[inline(always)]
    unsafe fn field(self, block: *const u8, [a, b]: [Field; 2]) -> __m512i {
        wrapped!({
            let v = if a.at == b.at {
                _mm512_broadcast_i64x4(_mm256_loadu_si256(block.add(a.at).cast()))
            } else {
                self.pair([block.add(a.at), block.add(b.at)])
            };
            let shift = |by: [i32; 2]| {
                let (low, high) = (by[0] as i16, by[1] as i16);
                _mm512_inserti64x4::<1>(_mm512_set1_epi16(low), _mm256_set1_epi16(high))
            };
            let v = match [a.left(), b.left()] {
                [0, 0] => v,
                [l, h] if l >= 0 && h >= 0 => _mm512_sllv_epi16(v, shift([l, h])),
                [l, h] => _mm512_srlv_epi16(v, shift([-l, -h])),
            };
            _mm512_and_si512(v, _mm512_set1_epi8(a.mask() as i8))
        })
    }

    #[inline(always)]
    unsafe fn nibbles(self, [a, b]: [*const u8; 2]) -> __m512i {
        wrapped!({
            let a = _mm512_broadcast_i32x4(_mm_loadu_si128(a.cast()));
            let both = _mm512_mask_broadcast_i32x4(a, 0xff00, _mm_loadu_si128(b.cast()));
            let shifts = _mm512_set_epi64(
                0x0004_0004_0004_0004,
                0x0004_0004_0004_0004,
                0,
                0,
                0x0004_0004_0004_0004,
                0x0004_0004_0004_0004,
                0,
                0,
            );
            _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15))
        })
    }

    #[inline(always)]
    unsafe fn pair(self, [a, b]: [*const u8; 2]) -> __m512i {
        wrapped!({
            let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
            _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()))
        })
    }

    #[inline(always)]
    fn sixteens(self, [a, b]: [u32; 2]) -> __m512i {
        wrapped!(_mm512_maskz_set1_epi8(u64::from(a) | u64::from(b) << 32, 16))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        wrapped!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, byte: u8) -> __m512i {
        wrapped!(_mm512_xor_si512(a, _mm512_set1_epi8(byte as i8)))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: __m512i) -> __m512i {
        wrapped!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), indices))
    }

    #[inline(always)]
    fn products(self, codes: __m512i, x: __m512i) -> __m512i {
        wrapped!(_mm512_maddubs_epi16(codes, x))
    }

    #[inline(always)]
    fn add_scaled(self, sum: __m512i, products: __m512i, scales: __m512i) -> __m512i {
        wrapped!(_mm512_dpwssd_epi32(sum, products, scales))
    }

    #[inline(always)]
    fn dots<const WIDE: bool>(self, codes: __m512i, x: __m512i) -> __m512i {
        wrapped!(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, x))
    }

    #[inline(always)]
    fn widen(self, bytes: [u64; 2]) -> __m256i {
        wrapped!(_mm256_cvtepi8_epi16(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64)))
    }

    #[inline(always)]
    fn spread<const GROUP: usize>(self, scales: __m256i, index: usize) -> __m512i {
        wrapped!({
            let order = _mm512_loadu_si512(SPREAD[usize::from(GROUP == 32)][index].as_ptr().cast());
            _mm512_permutexvar_epi16(order, _mm512_castsi256_si512(scales))
        })
    }

    #[inline(always)]
    unsafe fn add_minimums(self, sum: __m256, values: __m256i, with: *const i16, factor: f32) -> __m256 {
        wrapped!({
            let dots = _mm256_madd_epi16(values, _mm256_loadu_si256(with.cast()));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(factor), sum)
        })
    }

    #[inline(always)]
    fn add_sums(self, to: __m512, sums: __m512i, factor: f32) -> __m512 {
        wrapped!(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(factor), to))
    }

    #[inline(always)]
    fn add_products(self, to: __m512, sums: __m512i, factors: __m512) -> __m512 {
        wrapped!(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), factors, to))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        wrapped!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        wrapped!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn total(self, v: __m512) -> f32 {
        wrapped!(_mm512_reduce_add_ps(v))
    }

    #[inline(always)]
    fn total_m(self, v: __m256) -> f32 {
        wrapped!(Avx2::assume().total(v))
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        wrapped!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))))
    }

    #[inline(always)]
    unsafe fn halves(self, first: *const u8, stride: usize, count: usize) -> (__m512, __m512) {
        wrapped!({
            let stride = _mm512_set1_epi32(stride as i32);
            let places =
                _mm512_mullo_epi32(stride, _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
            let mask = ((1u32 << count) - 1) as u16;
            let words = _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), mask, places, first.cast());
            let (low, high) = (_mm512_cvtepi32_epi16(words), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words)));
            (_mm512_cvtph_ps(low), _mm512_cvtph_ps(high))
        })
    }

    #[inline(always)]
    unsafe fn signed(self, from: *const u8) -> __m512 {
        wrapped!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))))
    }

    #[inline(always)]
    fn pick(self, factors: __m512, index: usize) -> __m512 {
        wrapped!(_mm512_permutexvar_ps(_mm512_loadu_si512(PICK[index].as_ptr().cast()), factors))
    }
}

impl Bytes for Avx2 {
    type V = __m256i;
    type F = __m256;
    type H = __m256i;
    type M = __m256;
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
    fn zero_m(self) -> __m256 {
        wrapped!(_mm256_setzero_ps())
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
    unsafe fn pair(self, [a, _]: [*const u8; 2]) -> __m256i {
        wrapped!(_mm256_loadu_si256(a.cast()))
    }

    #[inline(always)]
    fn sixteens(self, [a, _]: [u32; 2]) -> __m256i {
        wrapped!({
            // Byte i of the bits to each of eight bytes, of which each keeps one bit.
            let order = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(a as i32), order);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
            _mm256_and_si256(set, _mm256_set1_epi8(16))
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
    fn products(self, codes: __m256i, x: __m256i) -> __m256i {
        wrapped!(_mm256_maddubs_epi16(codes, x))
    }

    #[inline(always)]
    fn add_scaled(self, sum: __m256i, products: __m256i, scales: __m256i) -> __m256i {
        wrapped!(_mm256_add_epi32(sum, _mm256_madd_epi16(products, scales)))
    }

    #[inline(always)]
    fn dots<const WIDE: bool>(self, codes: __m256i, x: __m256i) -> __m256i {
        wrapped!({
            let ones = _mm256_set1_epi16(1);
            if !WIDE {
                return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), ones);
            }
            // Two products of eight bits may exceed 16; those of half bytes do not.
            let half = _mm256_set1_epi8(15);
            let low = _mm256_maddubs_epi16(_mm256_and_si256(codes, half), x);
            let high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16::<4>(codes), half), x);
            _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, _mm256_set1_epi16(16)))
        })
    }

    #[inline(always)]
    fn widen(self, bytes: [u64; 2]) -> __m256i {
        wrapped!(_mm256_cvtepi8_epi16(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64)))
    }

    #[inline(always)]
    fn spread<const GROUP: usize>(self, scales: __m256i, index: usize) -> __m256i {
        wrapped!({
            // The 128 bits that hold the vector's scales in both lanes, then in each lane two bytes to all.
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

    #[inline(always)]
    unsafe fn add_minimums(self, sum: __m256, values: __m256i, with: *const i16, factor: f32) -> __m256 {
        wrapped!({
            let dots = _mm256_madd_epi16(values, _mm256_loadu_si256(with.cast()));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(factor), sum)
        })
    }

    #[inline(always)]
    fn add_sums(self, to: __m256, sums: __m256i, factor: f32) -> __m256 {
        wrapped!(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(factor), to))
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
    fn total(self, v: __m256) -> f32 {
        wrapped!({
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn total_m(self, v: __m256) -> f32 {
        self.total(v)
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        wrapped!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))))
    }

    #[inline(always)]
    unsafe fn halves(self, first: *const u8, stride: usize, count: usize) -> (__m256, __m256) {
        let mut words = [0i32; 8];
        for (i, word) in words.iter_mut().enumerate().take(count) {
            *word = wrapped!(first.add(i * stride).cast::<i32>().read_unaligned());
        }
        wrapped!({
            let words = _mm256_loadu_si256(words.as_ptr().cast());
            let (low, high) = (_mm256_and_si256(words, _mm256_set1_epi32(0xffff)), _mm256_srli_epi32::<16>(words));
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            (_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed)))
        })
    }

    #[inline(always)]
    unsafe fn signed(self, from: *const u8) -> __m256 {
        wrapped!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))))
    }

    #[inline(always)]
    fn pick(self, factors: __m256, index: usize) -> __m256 {
        wrapped!(_mm256_permutevar8x32_ps(factors, _mm256_set1_epi32(index as i32)))
    }
}
