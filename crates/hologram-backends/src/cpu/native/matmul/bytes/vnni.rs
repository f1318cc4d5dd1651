//! [`Bytes`] on AVX-512 VNNI.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{Bytes, Field};
use crate::cpu::native::matmul::blocks::SuperBlock;
use crate::cpu::native::simd::{self, Simd};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub struct Vnni(());

impl Vnni {
    /// # Safety
    /// The processor has the features.
    #[inline(always)]
    pub unsafe fn assume() -> Vnni {
        Vnni(())
    }
}

/// Of the scales of a format's runs those that the sums of two vectors take, packed as they are: each 128 bits hold the four sums of one
/// vector's 16 elements, and then those of the other's.
struct Spread<B>(PhantomData<B>);

impl<B: SuperBlock> Spread<B> {
    const OF_PAIRS: [[u16; 32]; 2] = {
        let (mut all, mut i) = ([[0; 32]; 2], 0);
        while i < 64 {
            let (pair, sixteen, vector) = (i / 32, i % 32 / 8, i % 8 / 4);
            let unit = B::ORDER[4 * pair + 2 * vector + sixteen / 2];
            all[pair][i % 32] = ((32 * unit + 16 * (sixteen % 2)) / B::RUN) as u16;
            i += 1;
        }
        all
    };
}

/// Which of 16 units' factors each of the 16 sums of each vector takes, where all units' sums are so many vectors.
const fn pick<const VECTORS: usize>() -> [[u32; 16]; VECTORS] {
    let (mut all, mut i) = ([[0; 16]; VECTORS], 0);
    while i < 16 * VECTORS {
        all[i / 16][i % 16] = (i / VECTORS) as u32;
        i += 1;
    }
    all
}

/// For vectors of two units.
static PICK: [[u32; 16]; 8] = pick();
/// For vectors of four.
static PICK_OF_HALVES: [[u32; 16]; 4] = pick();

/// The pointer, which the compiler does not know to be the same: where it sees that two vectors overlap it makes one from the other
/// with a dozen shuffles, where a load does.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is done with the pointer")]
fn apart(mut pointer: *const u8) -> *const u8 {
    // SAFETY: no instruction is executed.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
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

/// Where the first four bytes of 16 blocks of `STRIDE` bytes lie, as [`Words`] has it of the first two: all of the 128 bytes lie in the
/// blocks.
struct Doubles<const STRIDE: usize>;

impl<const STRIDE: usize> Doubles<STRIDE> {
    const FROM: [usize; 3] = [0, Words::<STRIDE>::FROM[1] / 4 * 4, 16 * STRIDE - 128];
    const INDICES: [[u32; 16]; 3] = {
        assert!(STRIDE.is_multiple_of(4) && Words::<STRIDE>::COUNT == 3);
        let (mut indices, mut unit) = ([[0; 16]; 3], 0);
        while unit < 16 {
            let i = unit / Words::<STRIDE>::TOGETHER;
            indices[i][unit] = ((unit * STRIDE - Self::FROM[i]) / 4) as u32;
            unit += 1;
        }
        indices
    };
}

/// The first words of 16 pairs, and then the second ones.
static APART: [u16; 32] = {
    let (mut all, mut i) = ([0; 32], 0);
    while i < 32 {
        all[i] = (2 * (i % 16) + i / 16) as u16;
        i += 1;
    }
    all
};

impl Vnni {
    /// The `f16` at the first of 16 places `STRIDE` bytes apart: a gather would load them one by one.
    ///
    /// # Safety
    /// All but the last two of the `16 * STRIDE` bytes from `first` on can be read.
    #[inline(always)]
    unsafe fn all_halves<const STRIDE: usize>(self, first: *const u8) -> __m512 {
        wrapped!({
            let first = apart(first);
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

    /// The two `f16` at the first of 16 places `STRIDE` bytes apart.
    ///
    /// # Safety
    /// The `16 * STRIDE` bytes from `first` on can be read.
    #[inline(always)]
    unsafe fn all_pairs<const STRIDE: usize>(self, first: *const u8) -> (__m512, __m512) {
        wrapped!({
            let first = apart(first);
            let mut pairs = _mm512_setzero_si512();
            for i in 0..3 {
                let from = first.add(Doubles::<STRIDE>::FROM[i]);
                let (low, high) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast()));
                let indices = _mm512_loadu_si512(Doubles::<STRIDE>::INDICES[i].as_ptr().cast());
                let lanes = Words::<STRIDE>::LANES[i] as u16;
                pairs = _mm512_or_si512(pairs, _mm512_maskz_permutex2var_epi32(lanes, low, indices, high));
            }
            let apart = _mm512_permutexvar_epi16(_mm512_loadu_si512(APART.as_ptr().cast()), pairs);
            let second = _mm512_extracti64x4_epi64::<1>(apart);
            (_mm512_cvtph_ps(_mm512_castsi512_si256(apart)), _mm512_cvtph_ps(second))
        })
    }
}

impl Bytes for Vnni {
    type V = __m512i;
    type F = __m512;
    type H = __m256i;
    type M = __m256;
    type P = __m128;
    type S = __m512i;
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
            } else if a.at + 32 == b.at {
                _mm512_loadu_si512(block.add(a.at).cast())
            } else {
                self.pair([block.add(a.at), block.add(b.at)])
            };
            let v = match [a.left(), b.left()] {
                [0, 0] => v,
                [l, h] if l == h && l > 0 => _mm512_sll_epi16(v, _mm_cvtsi32_si128(l)),
                [l, h] if l == h => _mm512_srl_epi16(v, _mm_cvtsi32_si128(-l)),
                // A rotation moves bits within their bytes as a shift does, in either direction.
                [l, h] => {
                    let by = _mm512_inserti64x4::<1>(_mm512_set1_epi32(l), _mm256_set1_epi32(h));
                    _mm512_rolv_epi32(v, by)
                }
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
            let bytes = if stride == 16 {
                _mm512_loadu_si512(first.cast())
            } else {
                let of = |unit: usize| _mm_loadu_si128(first.add(unit * stride).cast());
                let bytes = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(of(0)), of(1));
                _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(bytes, of(2)), of(3))
            };
            let half = _mm512_set1_epi8(15);
            [_mm512_and_si512(bytes, half), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), half)]
        })
    }

    #[inline(always)]
    fn split_units(self, [a, b]: [__m512i; 2]) -> [__m512i; 2] {
        wrapped!([_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b)])
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, v: __m512i) {
        wrapped!(_mm512_storeu_si512(to.cast(), v))
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

    /// Sums of four products fit 16 bits: two vectors' are scaled and added at once.
    #[inline(always)]
    fn add_runs(
        self,
        sum: __m512i,
        on: [__m512i; 2],
        codes: [__m512i; 2],
        x: [__m512i; 2],
        scales: __m512i,
    ) -> __m512i {
        wrapped!({
            let first = _mm512_dpbusd_epi32(on[0], codes[0], x[0]);
            let second = _mm512_dpbusd_epi32(on[1], codes[1], x[1]);
            _mm512_dpwssd_epi32(sum, _mm512_packs_epi32(first, second), scales)
        })
    }

    #[inline(always)]
    fn less(self, code: u8, x: __m512i) -> __m512i {
        wrapped!({
            let zero = _mm512_setzero_si512();
            _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(code as i8), x))
        })
    }

    /// Fewer instructions than what a compiler makes of it.
    #[inline(always)]
    fn signed_sixes(self, low: u64, high: u32) -> [u64; 2] {
        wrapped!({
            let low = _mm_srlv_epi64(_mm_set1_epi64x(low as i64), _mm_set_epi64x(4, 0));
            let high = _mm_rolv_epi32(_mm_set1_epi32(high as i32), _mm_set_epi32(-2, 0, 2, 4));
            let low = _mm_and_si128(low, _mm_set1_epi8(0x0f));
            let bits = _mm_or_si128(low, _mm_and_si128(high, _mm_set1_epi8(0x30)));
            let signed = _mm_sub_epi8(bits, _mm_set1_epi8(32));
            [_mm_cvtsi128_si64(signed) as u64, _mm_extract_epi64::<1>(signed) as u64]
        })
    }

    #[inline(always)]
    fn dots<const WIDE: bool>(self, codes: __m512i, x: __m512i) -> __m512i {
        wrapped!(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, x))
    }

    #[inline(always)]
    fn dots_of_halves<const WIDE: bool>(self, codes: [__m512i; 2], x: [__m512i; 2]) -> __m512i {
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
    fn times(self, values: __m256i, by: &[i16; 16]) -> __m256i {
        wrapped!(_mm256_mullo_epi16(values, _mm256_loadu_si256(by.as_ptr().cast())))
    }

    #[inline(always)]
    fn spread<B: SuperBlock>(self, scales: __m256i, pair: usize) -> __m512i {
        wrapped!({
            let order = _mm512_loadu_si512(const { &Spread::<B>::OF_PAIRS }[pair].as_ptr().cast());
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
    fn add_halves(self, to: __m512, values: __m256, factor: f32) -> __m512 {
        wrapped!(_mm512_fmadd_ps(_mm512_zextps256_ps512(values), _mm512_set1_ps(factor), to))
    }

    #[inline(always)]
    unsafe fn store_totals(self, vectors: &[__m512; 16], to: *mut f32, count: usize) {
        wrapped!(_mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as u16, simd::Avx512::assume().sums(vectors)))
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
                    22 => return self.all_halves::<22>(first.add(at)),
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
    unsafe fn pairs(self, first: *const u8, stride: usize, count: usize) -> (__m512, __m512) {
        wrapped!(match (count, stride) {
            (16, 20) => self.all_pairs::<20>(first),
            (16, 24) => self.all_pairs::<24>(first),
            _ => (self.halves(first, 0, stride, count), self.halves(first, 2, stride, count)),
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
