//! [`Bytes`] on AVX-512 VNNI.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::two_rows::HasAvx2;
use super::{Bytes, Field};
use crate::native::matmul::blocks::SuperBlock;
use crate::native::simd::{self, Simd};

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

/// Permutation of the run scales of two rows to the packed sums of a vector of each: each 128 bits hold the four sums
/// of 16 elements of the first row, then those of the second.
struct Spread<B>(PhantomData<B>);

impl<B: SuperBlock> Spread<B> {
    const OF_VECTORS: [[u16; 32]; 4] = {
        let (mut all, mut i) = ([[0; 32]; 4], 0);
        while i < 128 {
            let (vector, sixteen, row) = (i / 32, i % 32 / 8, i % 8 / 4);
            let unit = B::ORDER[2 * vector + sixteen / 2];
            all[vector][i % 32] = (16 * row + (32 * unit + 16 * (sixteen % 2)) / B::RUN) as u16;
            i += 1;
        }
        all
    };
}

/// The unit, of 16, whose factor each of the 16 sums of each vector takes, if all units' sums fill `VECTORS` vectors.
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
/// For vectors of four units.
static PICK_OF_HALVES: [[u32; 16]; 4] = pick();

/// The same pointer, hidden from the compiler. If the compiler sees that two vectors overlap, it makes one from the
/// other with a dozen shuffles, where one load suffices.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is done with the pointer")]
pub fn hidden(mut pointer: *const u8) -> *const u8 {
    // SAFETY: no instruction is executed.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// The positions of the first words of 16 blocks of `STRIDE` bytes, as permutations of 128 bytes each. The 128 bytes
/// begin at `FROM` and end at least two bytes before the blocks' end, so that the second words can be loaded too. They
/// hold the words of the lanes in `LANES`.
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

/// As [`Words`], for the first four bytes of 16 blocks of `STRIDE` bytes: all of the 128 bytes lie in the blocks.
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

/// The first words of 16 pairs, and then the second words.
static APART: [u16; 32] = {
    let (mut all, mut i) = ([0; 32], 0);
    while i < 32 {
        all[i] = (2 * (i % 16) + i / 16) as u16;
        i += 1;
    }
    all
};

/// `_mm512_dpwssd_epi32`. The compiler splits it into two instructions where the sums arrive late; a single one is
/// faster here.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_word_products(mut sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the function's features; only registers are accessed.
    unsafe {
        std::arch::asm!("vpdpwssd {0}, {1}, {2}", inout(zmm_reg) sums, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

impl Vnni {
    /// The `f16` at the start of each of 16 blocks of `STRIDE` bytes: a gather would load them one by one.
    ///
    /// # Safety
    /// All but the last two of the `16 * STRIDE` bytes from `first` on can be read.
    #[inline(always)]
    unsafe fn all_halves<const STRIDE: usize>(self, first: *const u8) -> __m512 {
        wrapped!({
            let first = hidden(first);
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

    /// The two `f16` at the start of each of 16 blocks of `STRIDE` bytes.
    ///
    /// # Safety
    /// The `16 * STRIDE` bytes from `first` on can be read.
    #[inline(always)]
    unsafe fn all_pairs<const STRIDE: usize>(self, first: *const u8) -> (__m512, __m512) {
        wrapped!({
            let first = hidden(first);
            let mut pairs = _mm512_setzero_si512();
            for i in 0..3 {
                let from = first.add(Doubles::<STRIDE>::FROM[i]);
                let (low, high) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast()));
                let indices = _mm512_loadu_si512(Doubles::<STRIDE>::INDICES[i].as_ptr().cast());
                let lanes = Words::<STRIDE>::LANES[i] as u16;
                pairs = _mm512_or_si512(pairs, _mm512_maskz_permutex2var_epi32(lanes, low, indices, high));
            }
            let split = _mm512_permutexvar_epi16(_mm512_loadu_si512(APART.as_ptr().cast()), pairs);
            let second = _mm512_extracti64x4_epi64::<1>(split);
            (_mm512_cvtph_ps(_mm512_castsi512_si256(split)), _mm512_cvtph_ps(second))
        })
    }
}

// SAFETY: the creator of the value promised these features, or more.
unsafe impl HasAvx2 for Vnni {
    #[inline(always)]
    fn aligned(self, numbers: __m256i) -> __m256i {
        wrapped!(_mm256_rolv_epi32(numbers, _mm256_set_epi32(-2, 0, 2, 4, -2, 0, 2, 4)))
    }
}

impl Bytes for Vnni {
    type V = __m512i;
    type F = __m512;
    // The first row's, then the second row's.
    type Scales = __m512i;
    // In each 128 bits, the first 64 are the first row's, the others the second's.
    type Sums = __m512i;
    type Totals = __m512;
    // Four lanes per row.
    type Lows = __m256;
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
    fn no_sums(self) -> __m512i {
        self.zero()
    }

    #[inline(always)]
    fn no_totals(self) -> __m512 {
        self.zero_f()
    }

    #[inline(always)]
    fn no_lows(self) -> __m256 {
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
    unsafe fn strided_nibbles(self, first: *const u8, stride: usize) -> [__m512i; 2] {
        wrapped!({
            let bytes = if stride == 16 {
                // The compiler does not merge the four loads into one.
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

    #[inline(always)]
    fn offset_correction(self, code: u8, x: __m512i) -> __m512i {
        wrapped!({
            let zero = _mm512_setzero_si512();
            _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(code as i8), x))
        })
    }

    #[inline(always)]
    fn scales(self, of_runs: __m256i, lift: Option<&[i16; 16]>) -> __m512i {
        wrapped!({
            let scales = _mm512_cvtepi8_epi16(of_runs);
            match lift {
                Some(by) => {
                    let by = _mm512_broadcast_i64x4(_mm256_loadu_si256(by.as_ptr().cast()));
                    _mm512_mullo_epi16(scales, by)
                }
                None => scales,
            }
        })
    }

    /// Sums of four products fit 16 bits, so the sums of two rows are scaled at once.
    #[inline(always)]
    fn add_runs<B: SuperBlock>(
        self,
        sums: __m512i,
        vector: usize,
        on: __m512i,
        codes: [__m512i; 2],
        x: __m512i,
        scales: __m512i,
    ) -> __m512i {
        wrapped!({
            let (a, b) = (_mm512_dpbusd_epi32(on, codes[0], x), _mm512_dpbusd_epi32(on, codes[1], x));
            let order = _mm512_loadu_si512(const { &Spread::<B>::OF_VECTORS }[vector].as_ptr().cast());
            add_word_products(sums, _mm512_packs_epi32(a, b), _mm512_permutexvar_epi16(order, scales))
        })
    }

    #[inline(always)]
    fn add_sums(self, to: __m512, sums: __m512i, factors: __m128) -> __m512 {
        wrapped!({
            let row = _mm512_set4_epi32(2, 2, 0, 0);
            let by = _mm512_permutexvar_ps(row, _mm512_castps128_ps512(factors));
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), by, to)
        })
    }

    /// The bits above the low seven as bytes, then the low seven.
    #[inline(always)]
    unsafe fn store_sums(self, to: *mut u8, sums: &[i16; 16]) {
        wrapped!({
            let sums = _mm256_loadu_si256(sums.as_ptr().cast());
            let low = _mm256_and_si256(sums, _mm256_set1_epi16(127));
            _mm_storeu_si128(to.cast(), _mm256_cvtepi16_epi8(_mm256_srai_epi16::<7>(sums)));
            _mm_storeu_si128(to.add(16).cast(), _mm256_cvtepi16_epi8(low));
        })
    }

    #[inline(always)]
    unsafe fn add_minimums(self, to: __m256, minimums: __m256i, with: *const u8, factors: __m128) -> __m256 {
        wrapped!({
            let [high, low] = [with, with.add(16)].map(|at| _mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast())));
            let high = _mm256_dpbusd_epi32(_mm256_setzero_si256(), minimums, high);
            let dots = _mm256_dpbusd_epi32(_mm256_slli_epi32::<7>(high), minimums, low);
            let row = _mm256_set_epi32(3, 3, 3, 3, 1, 1, 1, 1);
            let by = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(factors), row);
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), by, to)
        })
    }

    #[inline(always)]
    fn rows(self, totals: __m512, lows: __m256, factor: f32) -> [__m512; 2] {
        wrapped!({
            let by = _mm512_set1_ps(factor);
            let second = _mm256_extractf128_ps::<1>(lows);
            [
                _mm512_fmadd_ps(
                    _mm512_zextps128_ps512(_mm256_castps256_ps128(lows)),
                    by,
                    _mm512_maskz_mov_ps(0x3333, totals),
                ),
                _mm512_fmadd_ps(_mm512_zextps128_ps512(second), by, _mm512_maskz_mov_ps(0xcccc, totals)),
            ]
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
    unsafe fn store_totals(self, vectors: &[__m512; 16], to: *mut f32, count: usize) {
        wrapped!(_mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as u16, simd::Avx512::assume().sums(vectors)))
    }

    #[inline(always)]
    fn float_of_f16(self, bits: u16) -> f32 {
        wrapped!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))))
    }

    #[inline(always)]
    unsafe fn halves(self, first: *const u8, at: usize, stride: usize, count: usize) -> __m512 {
        wrapped!({
            if count == 16 {
                // Constant where this is inlined: the block size of a format.
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
    unsafe fn powers_of_two(self, first: *const u8, at: usize, stride: usize, count: usize) -> __m512 {
        wrapped!({
            let places = _mm512_mullo_epi32(
                _mm512_set1_epi32(stride as i32),
                _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
            );
            let mask = ((1u32 << count) - 1) as u16;
            let words = _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), mask, places, first.add(at).cast());
            let e = _mm512_and_si512(words, _mm512_set1_epi32(255));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), e);
            let below = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
            _mm512_castsi512_ps(_mm512_maskz_mov_epi32(mask, _mm512_mask_blend_epi32(below, normal, subnormal)))
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
