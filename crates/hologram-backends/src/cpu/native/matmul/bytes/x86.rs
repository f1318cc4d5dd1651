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

/// The same for vectors of four units.
static PICK_OF_HALVES: [[u32; 16]; 4] = {
    let mut all = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        all[i / 16][i % 16] = (i / 4) as u32;
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

/// Where the first words of 16 blocks of `STRIDE` bytes lie, as permutations of 128 bytes each. These begin at `from`, end two bytes
/// before the blocks' end at the latest, so that the second words can be had too, and hold the words of the lanes in `lanes`.
struct Words<const STRIDE: usize>;

impl<const STRIDE: usize> Words<STRIDE> {
    /// Blocks whose first words lie in 128 bytes.
    const TOGETHER: usize = 126 / STRIDE + 1;
    const COUNT: usize = 16usize.div_ceil(Self::TOGETHER);
    const FROM: [usize; 4] = {
        let (mut from, mut i) = ([0; 4], 0);
        while i < Self::COUNT {
            let (at, last) = (i * Self::TOGETHER * STRIDE, 16 * STRIDE - 130);
            from[i] = if at < last { at } else { last };
            i += 1;
        }
        from
    };
    const LANES: [u32; 4] = {
        let (mut lanes, mut unit) = ([0; 4], 0);
        while unit < 16 {
            lanes[unit / Self::TOGETHER] |= 1 << unit;
            unit += 1;
        }
        lanes
    };
    const INDICES: [[u16; 32]; 4] = {
        let (mut indices, mut unit) = ([[0; 32]; 4], 0);
        while unit < 16 {
            let i = unit / Self::TOGETHER;
            indices[i][unit] = ((unit * STRIDE - Self::FROM[i]) / 2) as u16;
            unit += 1;
        }
        indices
    };
}

impl Vnni {
    /// The `f16` at the first of 16 places `STRIDE` bytes apart: a gather would load them one by one.
    ///
    /// # Safety
    /// All but the last two of the `16 * STRIDE` bytes from `first` on can be read.
    #[inline(always)]
    unsafe fn all_halves<const STRIDE: usize>(self, first: *const u8) -> __m512 {
        wrapped!({
            let mut words = _mm512_setzero_si512();
            for i in 0..Words::<STRIDE>::COUNT {
                let from = first.add(Words::<STRIDE>::FROM[i]);
                let (low, high) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast()));
                let indices = _mm512_loadu_si512(Words::<STRIDE>::INDICES[i].as_ptr().cast());
                let part = _mm512_maskz_permutex2var_epi16(Words::<STRIDE>::LANES[i], low, indices, high);
                words = _mm512_or_si512(words, part);
            }
            _mm512_cvtph_ps(_mm512_castsi512_si256(words))
        })
    }
}

impl Bytes for Vnni {
    type V = __m512i;
    type F = __m512;
    type H = __m256i;
    type M = __m256;
    type P = __m128;
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
    unsafe fn half_bytes(self, first: *const u8, stride: usize) -> [__m512i; 2] {
        wrapped!({
            let bytes = _mm512_castsi128_si512(_mm_loadu_si128(first.cast()));
            let bytes = _mm512_inserti32x4::<1>(bytes, _mm_loadu_si128(first.add(stride).cast()));
            let bytes = _mm512_inserti32x4::<2>(bytes, _mm_loadu_si128(first.add(2 * stride).cast()));
            let bytes = _mm512_inserti32x4::<3>(bytes, _mm_loadu_si128(first.add(3 * stride).cast()));
            let half = _mm512_set1_epi8(15);
            [_mm512_and_si512(bytes, half), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), half)]
        })
    }

    #[inline(always)]
    unsafe fn split_units(self, first: *const u8) -> [__m512i; 2] {
        wrapped!({
            let (a, b) = (_mm512_loadu_si512(first.cast()), _mm512_loadu_si512(first.add(64).cast()));
            [_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b)]
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
    fn add_sixteens(self, halves: __m512i, [a, b]: [u32; 2]) -> __m512i {
        wrapped!(_mm512_mask_add_epi8(halves, u64::from(a) | u64::from(b) << 32, halves, _mm512_set1_epi8(16)))
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
    fn dots_of_halves(self, codes: [__m512i; 2], x: [__m512i; 2]) -> __m512i {
        wrapped!({
            let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[0], x[0]);
            _mm512_dpbusd_epi32(sums, codes[1], x[1])
        })
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
    fn scaled(self, halves: u32, factor: f32) -> __m128 {
        wrapped!(_mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(halves as i32)), _mm_set1_ps(factor)))
    }

    #[inline(always)]
    unsafe fn add_minimums(self, sum: __m256, values: __m256i, with: *const i16, factors: __m128) -> __m256 {
        wrapped!({
            let dots = _mm256_madd_epi16(values, _mm256_loadu_si256(with.cast()));
            let factor = _mm256_broadcastss_ps(_mm_movehdup_ps(factors));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), factor, sum)
        })
    }

    #[inline(always)]
    fn add_sums(self, to: __m512, sums: __m512i, factors: __m128) -> __m512 {
        wrapped!(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_broadcastss_ps(factors), to))
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
    unsafe fn halves(self, first: *const u8, at: usize, stride: usize, count: usize) -> __m512 {
        wrapped!({
            if count == 16 {
                // Known where this is inlined: the block of a format.
                match stride {
                    18 => return self.all_halves::<18>(first.add(at)),
                    20 => return self.all_halves::<20>(first.add(at)),
                    22 => return self.all_halves::<22>(first.add(at)),
                    24 => return self.all_halves::<24>(first.add(at)),
                    34 => return self.all_halves::<34>(first.add(at)),
                    _ => (),
                }
            }
            let stride = _mm512_set1_epi32(stride as i32);
            let places =
                _mm512_mullo_epi32(stride, _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
            let mask = ((1u32 << count) - 1) as u16;
            // A block is longer than the four bytes that are read.
            let words = _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), mask, places, first.add(at).cast());
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
        })
    }

    #[inline(always)]
    fn six_bits(self, low: [u32; 2], high: [u32; 2]) -> __m512 {
        wrapped!({
            let low_bits = _mm512_mask_set1_epi32(_mm512_set1_epi32(low[0] as i32), 0xff00, low[1] as i32);
            let high_bits = _mm512_mask_set1_epi32(_mm512_set1_epi32(high[0] as i32), 0xff00, high[1] as i32);
            let twos = _mm512_set_epi32(14, 12, 10, 8, 6, 4, 2, 0, 14, 12, 10, 8, 6, 4, 2, 0);
            let low = _mm512_srlv_epi32(low_bits, _mm512_add_epi32(twos, twos));
            let high = _mm512_slli_epi32::<4>(_mm512_srlv_epi32(high_bits, twos));
            let low = _mm512_and_si512(low, _mm512_set1_epi32(15));
            let bits = _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi32(0x30)));
            _mm512_cvtepi32_ps(_mm512_sub_epi32(bits, _mm512_set1_epi32(32)))
        })
    }

    #[inline(always)]
    fn by_eights(self, [a, b]: [f32; 2]) -> __m512 {
        wrapped!(_mm512_mask_broadcastss_ps(_mm512_set1_ps(a), 0xff00, _mm_set_ss(b)))
    }

    #[inline(always)]
    fn pick(self, factors: __m512, index: usize) -> __m512 {
        wrapped!(_mm512_permutexvar_ps(_mm512_loadu_si512(PICK[index].as_ptr().cast()), factors))
    }

    #[inline(always)]
    fn pick_of_halves(self, factors: __m512, index: usize) -> __m512 {
        wrapped!(_mm512_permutexvar_ps(_mm512_loadu_si512(PICK_OF_HALVES[index].as_ptr().cast()), factors))
    }
}

impl Bytes for Avx2 {
    type V = __m256i;
    type F = __m256;
    type H = __m256i;
    type M = __m256;
    type P = __m128;
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
    unsafe fn half_bytes(self, first: *const u8, stride: usize) -> [__m256i; 2] {
        wrapped!({
            let bytes = _mm256_castsi128_si256(_mm_loadu_si128(first.cast()));
            let bytes = _mm256_inserti128_si256::<1>(bytes, _mm_loadu_si128(first.add(stride).cast()));
            let half = _mm256_set1_epi8(15);
            [_mm256_and_si256(bytes, half), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half)]
        })
    }

    #[inline(always)]
    unsafe fn split_units(self, first: *const u8) -> [__m256i; 2] {
        wrapped!({
            let (a, b) = (_mm256_loadu_si256(first.cast()), _mm256_loadu_si256(first.add(32).cast()));
            [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)]
        })
    }

    #[inline(always)]
    unsafe fn pair(self, [a, _]: [*const u8; 2]) -> __m256i {
        wrapped!(_mm256_loadu_si256(a.cast()))
    }

    #[inline(always)]
    fn add_sixteens(self, halves: __m256i, [a, _]: [u32; 2]) -> __m256i {
        wrapped!({
            // Byte i of the bits to each of eight bytes, of which each keeps one bit.
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
    fn dots_of_halves(self, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
        wrapped!({
            // Four products of half bytes do not exceed 16 bits.
            let sums = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], x[0]), _mm256_maddubs_epi16(codes[1], x[1]));
            _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
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
    fn scaled(self, halves: u32, factor: f32) -> __m128 {
        wrapped!(_mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(halves as i32)), _mm_set1_ps(factor)))
    }

    #[inline(always)]
    unsafe fn add_minimums(self, sum: __m256, values: __m256i, with: *const i16, factors: __m128) -> __m256 {
        wrapped!({
            let dots = _mm256_madd_epi16(values, _mm256_loadu_si256(with.cast()));
            let factor = _mm256_broadcastss_ps(_mm_movehdup_ps(factors));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), factor, sum)
        })
    }

    #[inline(always)]
    fn add_sums(self, to: __m256, sums: __m256i, factors: __m128) -> __m256 {
        wrapped!(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_broadcastss_ps(factors), to))
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
    unsafe fn halves(self, first: *const u8, at: usize, stride: usize, count: usize) -> __m256 {
        let mut words = [0u16; 8];
        for (i, word) in words.iter_mut().enumerate().take(count) {
            *word = wrapped!(first.add(i * stride + at).cast::<u16>().read_unaligned());
        }
        let [a, b, c, d, e, f, g, h] = words.map(|word| word as i16);
        wrapped!(_mm256_cvtph_ps(_mm_set_epi16(h, g, f, e, d, c, b, a)))
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
