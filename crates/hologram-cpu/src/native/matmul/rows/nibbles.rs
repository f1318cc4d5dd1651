//! Nibble formats on AVX-512: four units of 32 at a time, all from one load of 64 bytes and one of 16 or 32.
//!
//! Nearly every load of 64 bytes crosses a cache line when blocks have 18 to 24 bytes, and then takes twice as long. A
//! vector holds the first 16 elements of each unit, or the last 16: each four lanes of sums belong to one unit.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use hologram_device::format::Scales;

use super::{Found, PackedRows, Prepared, RowKernels, STREAMS, Totals, prefetch_lines};
use crate::native::matmul::blocks::Block32;
use crate::native::matmul::bytes::{Bytes, Vnni};

/// Units that are multiplied at once.
const UNITS: usize = 4;

fn prepared(k: usize) -> usize {
    (k / 32).div_ceil(UNITS) * size_of::<Record>()
}

/// Four units of a token, as [`prepare`] stores them.
#[repr(C, align(64))]
struct Record {
    /// The first half of each unit, then the second.
    codes: [[[i8; 16]; UNITS]; 2],
    /// The offset correction of the elements that are summed in a lane.
    offsets: [[i32; 4]; UNITS],
    scales: [f32; UNITS],
    /// The sum of each unit's codes times its scale.
    sums: [f32; UNITS],
}

unsafe fn prepare<B: Block32>(codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    // SAFETY: the caller has room for `prepared` bytes, aligned to a line; zeros are valid records.
    let records = unsafe {
        std::ptr::write_bytes(to, 0, prepared(codes.len()));
        std::slice::from_raw_parts_mut(to.cast::<Record>(), prepared(codes.len()) / size_of::<Record>())
    };
    for (u, codes) in codes.chunks_exact(32).enumerate() {
        let (record, unit) = (&mut records[u / UNITS], u % UNITS);
        let mut sum = 0;
        for (half, codes) in codes.chunks_exact(16).enumerate() {
            record.codes[half][unit].copy_from_slice(codes);
            for (offsets, codes) in record.offsets[unit].iter_mut().zip(codes.chunks_exact(4)) {
                let four: i32 = codes.iter().map(|c| i32::from(*c)).sum();
                *offsets -= B::OFFSET * four;
                sum += four;
            }
        }
        record.scales[unit] = scales[u * 32 / group];
        record.sums[unit] = sum as f32 * record.scales[unit];
    }
}

/// Byte positions in the two vectors of four blocks: their first 64 bytes, and their last 16 or 32.
struct Places<B>(PhantomData<B>);

impl<B: Block32> Places<B> {
    /// Bytes of four blocks.
    const BYTES: usize = UNITS * B::BYTES;
    /// The start of the second vector. Its first 16 or 32 bytes hold the bytes that are not in the first.
    const SECOND: usize = Self::BYTES - if B::FIFTH_BITS.is_some() { 32 } else { 16 };

    /// Loads the vectors.
    ///
    /// # Safety
    /// The blocks can be read; the caller is compiled for AVX-512.
    #[inline(always)]
    unsafe fn load(first: *const u8) -> [__m512i; 2] {
        // SAFETY: promised by the caller.
        unsafe {
            let last = first.add(Self::SECOND);
            let last = if B::FIFTH_BITS.is_some() {
                _mm512_castsi256_si512(_mm256_loadu_si256(last.cast()))
            } else {
                _mm512_castsi128_si512(_mm_loadu_si128(last.cast()))
            };
            [_mm512_loadu_si512(first.cast()), last]
        }
    }

    /// The position of byte `at` of a unit's block in both vectors.
    const fn of(unit: usize, at: usize) -> usize {
        let at = unit * B::BYTES + at;
        if at < 64 { at } else { 64 + at - Self::SECOND }
    }

    /// Whether a block has an odd number of bytes, so that bytes are permuted instead of words.
    const ODD: bool = !B::BYTES.is_multiple_of(2);

    /// The nibbles of each unit, as positions of 16-bit words.
    const HALF_BYTES: [u16; 32] = {
        assert!(B::UNITS == 1 && B::CODES + 16 == B::BYTES);
        let (mut all, mut i) = ([0; 32], 0);
        while i < 32 {
            all[i] = (Self::of(i / 8, B::CODES + i % 8 * 2) / 2) as u16;
            i += 1;
        }
        all
    };

    /// The nibbles of each unit, as positions of bytes.
    const BYTES_OF_NIBBLES: [u8; 64] = {
        let (mut all, mut i) = ([0; 64], 0);
        while i < 64 {
            all[i] = Self::of(i / 16, B::CODES + i % 16) as u8;
            i += 1;
        }
        all
    };

    /// The exponent of each unit as the lowest byte of a word of 32 bits.
    const EXPONENTS: [u8; 16] = {
        let (mut all, mut i) = ([0; 16], 0);
        while let Scales::E8M0 { at } = B::ROW.scales
            && i < UNITS
        {
            all[4 * i] = Self::of(i, at) as u8;
            assert!(all[4 * i] < 64, "the exponents are in the first vector");
            i += 1;
        }
        all
    };

    /// The scale of each unit, then the minimums, which follow the scales in the blocks.
    const FACTORS: [u16; 32] = {
        let (mut all, mut i) = ([0; 32], 0);
        while i < 2 * UNITS {
            all[i] = (Self::of(i % UNITS, i / UNITS * 2) / 2) as u16;
            i += 1;
        }
        all
    };

    /// Whether all these numbers lie in the first vector.
    const FACTORS_FIRST: bool = {
        let (mut first, mut i) = (true, 0);
        while i < (if B::OFFSET == 0 { 2 * UNITS } else { UNITS }) {
            first &= Self::FACTORS[i] < 32;
            i += 1;
        }
        first
    };

    /// The bytes of fifth bits. In each eight bytes, byte 3 is that of eight elements of a unit's first half, byte 7
    /// that of eight elements of its second half.
    const FIFTH_BITS: [u8; 64] = {
        let (mut all, mut i) = ([0; 64], 0);
        while let Some(at) = B::FIFTH_BITS
            && i < 64
        {
            all[i] = Self::of(i / 16, at + i % 16 / 8 + i % 8 / 4 * 2) as u8;
            i += 1;
        }
        all
    };
}

/// The codes of both halves of four units, from their nibbles and the vectors that hold their blocks.
///
/// # Safety
/// Vectors as [`Places`] defines them; the caller is compiled for AVX-512 BW, VBMI and GFNI.
#[inline(always)]
unsafe fn with_fifth_bits<B: Block32>(nibbles: __m512i, [first, last]: [__m512i; 2]) -> [__m512i; 2] {
    const BYTES_3_AND_7: u64 = 0x8888_8888_8888_8888;
    // SAFETY: promised by the caller; the indices are 64 bytes.
    unsafe {
        let low_four = _mm512_set1_epi8(15);
        let order = _mm512_loadu_si512(const { &Places::<B>::FIFTH_BITS }.as_ptr().cast());
        let bits = _mm512_maskz_permutex2var_epi8(BYTES_3_AND_7, first, order, last);
        // Byte j times these bit matrices: bit j of their byte 3 becomes bit 4, bit j of byte 7 becomes bit 0.
        let bits = _mm512_gf2p8affine_epi64_epi8::<0>(_mm512_set1_epi64(0x8040_2010_0804_0201_u64 as i64), bits);
        // Bits of the second operand where the first has ones, else of the third.
        const CHOOSE: i32 = 0xca;
        [
            _mm512_ternarylogic_epi64::<CHOOSE>(low_four, nibbles, bits),
            _mm512_ternarylogic_epi64::<CHOOSE>(
                low_four,
                _mm512_srli_epi16::<4>(nibbles),
                _mm512_slli_epi16::<4>(bits),
            ),
        ]
    }
}

/// The scales of four units, powers of two.
///
/// # Safety
/// Vectors as [`Places`] defines them; the caller is compiled for AVX-512 BW, VL and VBMI.
#[inline(always)]
unsafe fn powers_of_two<B: Block32>(first: __m512i) -> __m128 {
    // SAFETY: promised by the caller.
    unsafe {
        let order = _mm512_castsi128_si512(_mm_loadu_si128(const { &Places::<B>::EXPONENTS }.as_ptr().cast()));
        let e = _mm512_castsi512_si128(_mm512_permutexvar_epi8(order, first));
        let e = _mm_and_si128(e, _mm_set1_epi32(255));
        // 2^(e - 128); the two smallest are subnormal.
        let bits = _mm_slli_epi32::<23>(_mm_sub_epi32(e, _mm_set1_epi32(1)));
        let small = _mm_cmplt_epu32_mask(e, _mm_set1_epi32(2));
        _mm_castsi128_ps(_mm_mask_sllv_epi32(bits, small, _mm_set1_epi32(0x0020_0000), e))
    }
}

/// The codes of four units in two vectors; and their scales as `f16`, with the numbers that follow these in the blocks
/// in the place of minimums, or as `f32` if they are powers of two.
///
/// # Safety
/// Vectors as [`Places`] defines them; the caller is compiled for AVX-512 BW, and VBMI and GFNI if there are fifth
/// bits or if a block has an odd number of bytes.
#[inline(always)]
unsafe fn take_apart<B: Block32>([first, last]: [__m512i; 2]) -> ([__m512i; 2], __m128i) {
    // SAFETY: promised by the caller; the indices are 64 bytes.
    unsafe {
        let nibbles = if Places::<B>::ODD {
            let order = _mm512_loadu_si512(const { &Places::<B>::BYTES_OF_NIBBLES }.as_ptr().cast());
            _mm512_permutex2var_epi8(first, order, last)
        } else {
            let order = _mm512_loadu_si512(const { &Places::<B>::HALF_BYTES }.as_ptr().cast());
            _mm512_permutex2var_epi16(first, order, last)
        };
        let mut codes = if B::FIFTH_BITS.is_some() {
            with_fifth_bits::<B>(nibbles, [first, last])
        } else {
            let low_four = _mm512_set1_epi8(15);
            [_mm512_and_si512(nibbles, low_four), _mm512_and_si512(_mm512_srli_epi16::<4>(nibbles), low_four)]
        };
        if let Some(values) = B::VALUES {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
            codes = [_mm512_shuffle_epi8(values, codes[0]), _mm512_shuffle_epi8(values, codes[1])];
        }
        if let Scales::E8M0 { .. } = const { B::ROW.scales } {
            return (codes, _mm_castps_si128(powers_of_two::<B>(first)));
        }
        let order = _mm512_loadu_si512(const { &Places::<B>::FACTORS }.as_ptr().cast());
        let factors = match const { Places::<B>::FACTORS_FIRST } {
            // Half as many operations.
            true => _mm512_permutexvar_epi16(order, first),
            false => _mm512_permutex2var_epi16(first, order, last),
        };
        (codes, _mm512_castsi512_si128(factors))
    }
}

/// The sums of a row's products with a token.
#[derive(Clone, Copy)]
struct Sums {
    /// In all lanes, without the minimums.
    products: __m512,
    /// Of the minimums, in all lanes.
    minimums: __m128,
}

/// The products of four units of a row with a token.
#[derive(Clone, Copy)]
struct Four {
    sums: __m512i,
    /// The factor of each unit.
    scales: __m128,
}

/// Multiplies four units of a row with a token, and adds the products of their minimums to `to`.
///
/// # Safety
/// Arguments as [`take_apart`] returns them; the caller is compiled for AVX-512, VNNI, FMA and F16C.
#[inline(always)]
unsafe fn four<B: Block32>(to: &mut Sums, codes: [__m512i; 2], factors: __m128i, x: &Record) -> Four {
    // SAFETY: promised by the caller.
    unsafe {
        let x_scales = _mm_loadu_ps(x.scales.as_ptr());
        let (start, scales) = if B::OFFSET == 0 {
            let factors = _mm256_cvtph_ps(factors);
            let minimums = _mm256_extractf128_ps::<1>(factors);
            to.minimums = _mm_fmadd_ps(minimums, _mm_loadu_ps(x.sums.as_ptr()), to.minimums);
            (_mm512_setzero_si512(), _mm256_castps256_ps128(factors))
        } else {
            let scales = match const { B::ROW.scales } {
                Scales::E8M0 { .. } => _mm_castsi128_ps(factors),
                _ => _mm_cvtph_ps(factors),
            };
            (_mm512_loadu_si512(x.offsets.as_ptr().cast()), scales)
        };
        let [x, x_last] = x.codes.each_ref();
        let (x, x_last) = (_mm512_loadu_si512(x.as_ptr().cast()), _mm512_loadu_si512(x_last.as_ptr().cast()));
        let sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, codes[0], x), codes[1], x_last);
        Four { sums, scales: _mm_mul_ps(scales, x_scales) }
    }
}

/// Adds products times their factors.
///
/// # Safety
/// The caller is compiled for AVX-512.
#[inline(always)]
unsafe fn add(to: &mut Sums, four: Four) {
    // SAFETY: promised by the caller.
    unsafe {
        let unit = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        let scales = _mm512_permutexvar_ps(unit, _mm512_castps128_ps512(four.scales));
        to.products = _mm512_fmadd_ps(_mm512_cvtepi32_ps(four.sums), scales, to.products);
    }
}

/// # Safety
/// The rows and `T` prepared tokens exist; the output can be written; the caller is compiled as for all of the above.
#[inline(always)]
unsafe fn multiply<B: Block32, const T: usize, const R: usize>(w: &PackedRows, x: &Prepared) {
    let (whole, rest) = (w.k / 32 / UNITS, w.k / 32 % UNITS * B::BYTES);
    // SAFETY: promised by the caller.
    let s = unsafe { Vnni::assume() };
    let mut totals = Totals::<Vnni, T, R>::new(s);
    for rows in w.streams::<R>() {
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes));
        let ahead = w.ahead::<R>(rows);
        // SAFETY: promised by the caller. Four blocks are longer than a vector and shorter than two. At most two blocks
        // may be left of a row, and a vector holds them all.
        unsafe {
            let none = Sums { products: _mm512_setzero_ps(), minimums: _mm_setzero_ps() };
            let mut acc = [[none; R]; T];
            // Macros: a closure that is not inlined would be compiled without the instruction set.
            macro_rules! multiply {
                ($i:expr, $row:expr, $vectors:expr, $to:expr) => {
                    let (codes, factors) = take_apart::<B>($vectors);
                    for t in 0..T {
                        let x = x.extra.add(t * x.extra_bytes).cast::<Record>().add($i);
                        $to[t][$row] = four::<B>(&mut acc[t][$row], codes, factors, &*x);
                    }
                };
            }
            macro_rules! add {
                ($from:expr) => {
                    for t in 0..T {
                        for j in 0..R {
                            add(&mut acc[t][j], $from[t][j]);
                        }
                    }
                };
            }
            let nothing = [[Four { sums: _mm512_setzero_si512(), scales: _mm_setzero_ps() }; R]; T];
            // `fused` groups are multiplied before any is added: an instruction that waits for another keeps its
            // place.
            let (mut i, fused) = (0, if B::FIFTH_BITS.is_some() { 1 } else { 4 / T });
            while i + 4 <= whole {
                for ahead in ahead {
                    prefetch_lines(ahead.wrapping_add(i * Places::<B>::BYTES), 4 * Places::<B>::BYTES);
                }
                for _ in 0..4 / fused {
                    let mut of = [nothing; 4];
                    for of in &mut of[..fused] {
                        for j in 0..R {
                            multiply!(i, j, Places::<B>::load(firsts[j].add(i * Places::<B>::BYTES)), of);
                        }
                        i += 1;
                    }
                    for of in &of[..fused] {
                        add!(of);
                    }
                }
            }
            while i < whole {
                let mut of = nothing;
                for j in 0..R {
                    prefetch_lines(ahead[j].wrapping_add(i * Places::<B>::BYTES), Places::<B>::BYTES);
                    multiply!(i, j, Places::<B>::load(firsts[j].add(i * Places::<B>::BYTES)), of);
                }
                add!(of);
                i += 1;
            }
            if rest > 0 {
                let mut of = nothing;
                for j in 0..R {
                    let at = firsts[j].add(i * Places::<B>::BYTES);
                    let first = _mm512_maskz_loadu_epi8(u64::MAX >> (64 - rest), at.cast());
                    multiply!(i, j, [first, _mm512_setzero_si512()], of);
                }
                add!(of);
            }
            let mut sums = [[s.zero_f(); R]; T];
            for t in 0..T {
                for j in 0..R {
                    sums[t][j] = _mm512_add_ps(acc[t][j].products, _mm512_zextps128_ps512(acc[t][j].minimums));
                }
            }
            totals.add(s, w, sums);
        }
    }
    // SAFETY: promised by the caller.
    unsafe { totals.store(s, w) };
}

/// The kernels of a format.
pub fn of_nibbles<B: Block32>() -> Found {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn of_words<B: Block32, const T: usize>(w: &PackedRows, x: &Prepared) {
        // SAFETY: the features; the rest is promised by the caller.
        unsafe { multiply::<B, T, STREAMS>(w, x) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c")]
    unsafe fn of_bytes<B: Block32, const T: usize>(w: &PackedRows, x: &Prepared) {
        // SAFETY: the function's features, which the caller promises with the rest.
        unsafe { multiply::<B, T, STREAMS>(w, x) }
    }
    let with_bytes = const { B::FIFTH_BITS.is_some() || Places::<B>::ODD };
    let multiply = if with_bytes {
        [of_bytes::<B, 1> as unsafe fn(&PackedRows, &Prepared), of_bytes::<B, 2>, of_bytes::<B, 3>, of_bytes::<B, 4>]
    } else {
        [of_words::<B, 1> as unsafe fn(&PackedRows, &Prepared), of_words::<B, 2>, of_words::<B, 3>, of_words::<B, 4>]
    };
    let kernels = RowKernels { prepared, prepare: prepare::<B>, multiply, in_one_stream: None };
    Found { kernels, group: 32, gfni: with_bytes }
}
