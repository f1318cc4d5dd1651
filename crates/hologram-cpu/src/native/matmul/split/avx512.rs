//! Blocks taken apart on AVX-512 with VBMI and GFNI.
//!
//! An entry of a grid is a number of two or three bits per value. The numbers of all entries of all grids but that of
//! the IQ1 types lie in few registers, where permutations look 32 of them up at a time. Then each entry's digits are
//! spread over bytes, and select its values. The grids of the IQ1 types and of `IQ2_S` are too large: their entries are
//! loaded one by one.

use std::arch::x86_64::*;

use hologram_device::GridType;
use hologram_device::decode::{grid, grid_values};
use hologram_device::format::{Row, Values, rows};

use super::{Format, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NVFP4, number};

/// Codes of a vector.
pub const LEN: usize = 64;

/// A format whose blocks are taken apart. All functions are compiled for the instruction set of their callers, which
/// must be AVX-512 F, BW, DQ, VL, VBMI and GFNI, BMI2 and F16C.
pub trait Split: Format {
    /// Vectors of a block.
    const VECTORS: usize = Self::LEN / LEN;
    /// Whether entries are loaded one by one: [`Split::codes`] then reads the block's [`Split::indices`], which are
    /// best stored some time before.
    const LOADED: bool = false;

    /// The indices of a block's 32 entries, if these are loaded.
    ///
    /// # Safety
    /// The block can be read, with the instructions named above.
    #[inline(always)]
    unsafe fn indices(_: *const u8) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_setzero_si512() }
    }

    /// The codes of a block plus 128, in the first [`Split::VECTORS`] vectors.
    ///
    /// # Safety
    /// As [`Split::indices`], whose result has been stored if it is needed.
    unsafe fn codes(block: *const u8, indices: *const u16) -> [__m512i; 4];

    /// The scale of each run in the first lanes.
    ///
    /// # Safety
    /// As [`Split::indices`].
    unsafe fn scales(block: *const u8) -> __m512;
}

/// For each vector of a block, the eight numbers of 32 that belong to it, each at the first word of 64 bits.
static EIGHTS: [[u16; 32]; 4] = {
    let (mut all, mut i) = ([[0; 32]; 4], 0);
    while i < 32 {
        all[i / 8][i % 8 * 4] = i as u16;
        i += 1;
    }
    all
};

/// For both halves of 32 numbers, the pairs that belong to a vector, each at the first words of 64 bits.
static PAIRS: [[u32; 16]; 2] = {
    let (mut all, mut i) = ([[0; 16]; 2], 0);
    while i < 16 {
        all[i / 8][i % 8 * 2] = i as u32;
        i += 1;
    }
    all
};

/// For each vector of a block, the byte of signs of each of its bytes.
static SIGNS: [[u8; 64]; 4] = {
    let (mut all, mut i) = ([[0; 64]; 4], 0);
    while i < 256 {
        all[i / 64][i % 64] = (i / 8) as u8;
        i += 1;
    }
    all
};

/// Place of each digit of eight of two bits, and of two times four of three bits.
const TWO_BITS: i64 = 0x0e0c_0a08_0604_0200;
const THREE_BITS: i64 = 0x1916_1310_0906_0300;
/// A bit of each byte of 64 bits, the first byte's lowest.
const BITS: i64 = 0x8040_2010_0804_0201_u64 as i64;

/// The values of a grid plus 128, at all places whose lowest bits are their digit.
struct Table([u8; 64]);

impl Table {
    const fn of(values: &[u8]) -> Table {
        let (mut all, mut i) = ([0; 64], 0);
        while i < 64 {
            all[i] = values[i % values.len()] + 128;
            i += 1;
        }
        Table(all)
    }
}

/// # Safety
/// As all functions below: the caller is compiled for the instructions that [`Split`] names, and memory that is read
/// exists.
#[inline(always)]
unsafe fn load<T>(from: *const T) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe { _mm512_loadu_si512(from.cast()) }
}

/// The entries of 32 indices below `N`, from the first entry on.
#[inline(always)]
unsafe fn look_up<const N: usize>(entries: &[u16], indices: __m512i) -> __m512i {
    let table: &[u16; N] = entries.first_chunk().expect("a grid of N entries");
    // SAFETY: promised by the caller; the table has N entries.
    unsafe {
        let mut found = [_mm512_setzero_si512(); 16];
        for i in 0..N / 64 {
            let at = table.as_ptr().add(64 * i);
            found[i] = _mm512_permutex2var_epi16(load(at), indices, load(at.add(32)));
        }
        let (mut count, mut bit) = (N / 64, 64);
        while count > 1 {
            let set = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(bit));
            count /= 2;
            for i in 0..count {
                found[i] = _mm512_mask_blend_epi16(set, found[2 * i], found[2 * i + 1]);
            }
            bit *= 2;
        }
        found[0]
    }
}

/// The values plus 128 of the eight entries of a vector of a block's 32.
#[inline(always)]
unsafe fn eights(entries: __m512i, vector: usize, values: &'static Table) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe {
        let spread = _mm512_permutexvar_epi16(load(&EIGHTS[vector]), entries);
        let digits = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(TWO_BITS), spread);
        _mm512_permutexvar_epi8(digits, load(&values.0))
    }
}

/// The values plus 128 of the first or last 16 of 32 entries of four.
#[inline(always)]
unsafe fn fours(entries: __m512i, half: usize, values: &'static Table) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe {
        let spread = _mm512_permutexvar_epi32(load(&PAIRS[half]), entries);
        let digits = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(THREE_BITS), spread);
        _mm512_permutexvar_epi8(digits, load(&values.0))
    }
}

/// 128 plus values, or minus values where a bit is set.
#[inline(always)]
unsafe fn signed(values: __m512i, minus: u64) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe { _mm512_mask_sub_epi8(values, minus, _mm512_setzero_si512(), values) }
}

/// The signs of a vector's values from a block's 32 bytes of signs.
#[inline(always)]
unsafe fn signs(of_block: __m256i, vector: usize) -> u64 {
    // SAFETY: promised by the caller.
    unsafe {
        let bytes = _mm512_permutexvar_epi8(load(&SIGNS[vector]), _mm512_castsi256_si512(of_block));
        _mm512_test_epi8_mask(bytes, _mm512_set1_epi64(BITS))
    }
}

/// The lowest seven bits of each byte, with an eighth that makes the number of set bits even.
#[inline(always)]
unsafe fn even(signs: __m256i) -> __m256i {
    // SAFETY: promised by the caller. Bit i of a result is the parity of the byte and byte 7 - i of the matrix.
    unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(signs, _mm256_set1_epi64x(0x0102_0408_1020_407f)) }
}

/// The signs of eight `u32` with four times seven bits.
#[inline(always)]
unsafe fn four_signs(of_runs: __m256i) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe { even(_mm256_multishift_epi64_epi8(_mm256_set1_epi64x(0x352e_2720_150e_0700), of_runs)) }
}

/// The scales (2s + 1)·d·[`Format::PER`], from s and the `f16` d.
#[inline(always)]
unsafe fn odd<B: Format>(s: __m512i, d: u16) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        let factors = _mm512_or_si512(_mm512_slli_epi32::<1>(s), _mm512_set1_epi32(1));
        // All products are exact.
        let d = _mm_cvtph_ps(_mm_cvtsi32_si128(d.into()));
        let d = _mm_mul_ss(d, _mm_set_ss(const { B::PER }));
        _mm512_mul_ps(_mm512_cvtepi32_ps(factors), _mm512_broadcastss_ps(d))
    }
}

/// The scales of 16 nibbles s.
#[inline(always)]
unsafe fn odd_of_nibbles<B: Format>(nibbles: u64, d: u16) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        let bytes = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(nibbles as i64));
        let apart = _mm_and_si128(_mm_or_si128(bytes, _mm_slli_epi16::<4>(bytes)), _mm_set1_epi8(15));
        odd::<B>(_mm512_cvtepu8_epi32(apart), d)
    }
}

/// Eight entries of eight values.
#[inline(always)]
unsafe fn loaded(entries: &'static [[u8; 8]], indices: *const u16) -> __m512i {
    // SAFETY: promised by the caller; the grid has entries for all indices.
    unsafe {
        let at = |i: usize| entries.as_ptr().cast::<f64>().add(usize::from(indices.add(i).read()));
        macro_rules! pair {
            ($i:literal) => {
                _mm_loadh_pd(_mm_load_sd(at($i)), at($i + 1))
            };
        }
        let low = _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(pair!(0)), pair!(2));
        let high = _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(pair!(4)), pair!(6));
        _mm512_castpd_si512(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(low), high))
    }
}

/// The codes plus 128 of an IQ1 type, and where an eighth is subtracted.
#[inline(always)]
unsafe fn shifted(indices: *const u16, minus: u32) -> [__m512i; 4] {
    // SAFETY: promised by the caller; indices have 11 bits.
    unsafe {
        // An entry's values are those times 8, plus 8; 128 and the eighth are added.
        let offset = (_mm512_set1_epi8(121), _mm512_set1_epi8(119));
        let mut codes = [_mm512_setzero_si512(); 4];
        for v in 0..4 {
            let offsets = _mm512_mask_blend_epi64((minus >> (8 * v)) as u8, offset.0, offset.1);
            codes[v] = _mm512_add_epi8(loaded(grid(GridType::IQ1_S).eights, indices.add(8 * v)), offsets);
        }
        codes
    }
}

/// The three high bits of a vector's indices, from bit 0 on, above the low bytes of the block's 32.
#[inline(always)]
unsafe fn above(low: *const u8, high: __m512i) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe {
        let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(low.cast()));
        _mm512_or_si512(low, _mm512_slli_epi16::<8>(_mm512_and_si512(high, _mm512_set1_epi16(7))))
    }
}

impl Split for IQ1_S {
    const LOADED: bool = true;

    #[inline(always)]
    unsafe fn indices(block: *const u8) -> __m512i {
        const SHIFTS: [u16; 32] = shifts(3);
        // SAFETY: promised by the caller.
        unsafe { above(block.add(2), _mm512_srlv_epi16(each_four_times(block.add(34)), load(&SHIFTS))) }
    }

    #[inline(always)]
    unsafe fn codes(block: *const u8, indices: *const u16) -> [__m512i; 4] {
        // SAFETY: promised by the caller.
        unsafe { shifted(indices, _mm512_movepi16_mask(each_four_times(block.add(34)))) }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe {
            let h = _mm256_cvtepu16_epi32(_mm_loadu_si128(block.add(34).cast()));
            let s = _mm256_and_si256(_mm256_srli_epi32::<12>(h), _mm256_set1_epi32(7));
            odd::<Self>(_mm512_castsi256_si512(s), number(block))
        }
    }
}

/// Each of eight `u16` four times.
#[inline(always)]
unsafe fn each_four_times(numbers: *const u8) -> __m512i {
    const PLACES: [u16; 32] = {
        let (mut all, mut i) = ([0; 32], 0);
        while i < 32 {
            all[i] = (i / 4) as u16;
            i += 1;
        }
        all
    };
    // SAFETY: promised by the caller.
    unsafe { _mm512_permutexvar_epi16(load(&PLACES), _mm512_castsi128_si512(_mm_loadu_si128(numbers.cast()))) }
}

/// 0 to 3 times `bits`, over and over.
const fn shifts(bits: u16) -> [u16; 32] {
    let (mut all, mut i) = ([0; 32], 0);
    while i < 32 {
        all[i] = bits * (i as u16 % 4);
        i += 1;
    }
    all
}

/// The nibbles of 16 bytes as words.
#[inline(always)]
unsafe fn nibbles(from: *const u8) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe {
        let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
        let nibbles = _mm256_or_si256(bytes, _mm256_slli_epi16::<4>(bytes));
        _mm512_cvtepu8_epi16(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)))
    }
}

impl Split for IQ1_M {
    const LOADED: bool = true;

    #[inline(always)]
    unsafe fn indices(block: *const u8) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { above(block, nibbles(block.add(32))) }
    }

    #[inline(always)]
    unsafe fn codes(block: *const u8, indices: *const u16) -> [__m512i; 4] {
        // SAFETY: promised by the caller.
        unsafe { shifted(indices, _mm512_test_epi16_mask(nibbles(block.add(32)), _mm512_set1_epi16(8))) }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe {
            let all = number::<u64>(block.add(48));
            let d = _pext_u64(all, 0xf000_f000_f000_f000) as u16;
            let threes = _mm_set1_epi64x(_pext_u64(all, 0x0fff_0fff_0fff_0fff) as i64);
            let places = _mm_set_epi64x(0x2d2a_2724_211e_1b18, 0x1512_0f0c_0906_0300);
            let threes = _mm_and_si128(_mm_multishift_epi64_epi8(places, threes), _mm_set1_epi8(7));
            odd::<Self>(_mm512_cvtepu8_epi32(threes), d)
        }
    }
}

impl Split for IQ2_XXS {
    #[inline(always)]
    unsafe fn codes(block: *const u8, _: *const u16) -> [__m512i; 4] {
        static VALUES: Table = Table::of(grid_values(GridType::IQ2_XXS));
        // The first four of each eight bytes.
        const INDICES: [u8; 64] = {
            let (mut all, mut i) = ([0; 64], 0);
            while i < 32 {
                all[2 * i] = (i / 4 * 8 + i % 4) as u8;
                i += 1;
            }
            all
        };
        // SAFETY: promised by the caller.
        unsafe {
            let both = load(block.add(2));
            let indices = _mm512_maskz_permutexvar_epi8(0x5555_5555_5555_5555, load(&INDICES), both);
            let entries = look_up::<256>(grid(GridType::IQ2_XXS).entries, indices);
            let of_block = four_signs(_mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(both)));
            let mut codes = [_mm512_setzero_si512(); 4];
            for v in 0..4 {
                codes[v] = signed(eights(entries, v, &VALUES), signs(of_block, v));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe {
            let s = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<60>(load(block.add(2))));
            odd::<Self>(_mm512_castsi256_si512(s), number(block))
        }
    }
}

impl Split for IQ2_XS {
    #[inline(always)]
    unsafe fn codes(block: *const u8, _: *const u16) -> [__m512i; 4] {
        static VALUES: Table = Table::of(grid_values(GridType::IQ2_XS));
        // SAFETY: promised by the caller. Only the lowest nine bits of an index count.
        unsafe {
            let both = load(block.add(2));
            let entries = look_up::<512>(grid(GridType::IQ2_XS).entries, both);
            let of_block = even(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(both)));
            let mut codes = [_mm512_setzero_si512(); 4];
            for v in 0..4 {
                codes[v] = signed(eights(entries, v, &VALUES), signs(of_block, v));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { odd_of_nibbles::<Self>(number::<u64>(block.add(66)), number(block)) }
    }
}

impl Split for IQ2_S {
    const LOADED: bool = true;

    #[inline(always)]
    unsafe fn indices(block: *const u8) -> __m512i {
        const SHIFTS: [u16; 32] = shifts(2);
        // The byte of two bits for each four, as words.
        const PLACES: [u8; 64] = {
            let (mut all, mut i) = ([0; 64], 0);
            while i < 32 {
                all[2 * i] = (i / 4) as u8;
                i += 1;
            }
            all
        };
        // SAFETY: promised by the caller.
        unsafe {
            let high = _mm512_castsi128_si512(_mm_loadl_epi64(block.add(66).cast()));
            let high = _mm512_maskz_permutexvar_epi8(0x5555_5555_5555_5555, load(&PLACES), high);
            let high = _mm512_and_si512(_mm512_srlv_epi16(high, load(&SHIFTS)), _mm512_set1_epi16(3));
            above(block.add(2), high)
        }
    }

    #[inline(always)]
    unsafe fn codes(block: *const u8, indices: *const u16) -> [__m512i; 4] {
        // SAFETY: promised by the caller; indices have 10 bits.
        unsafe {
            let mut codes = [_mm512_setzero_si512(); 4];
            for v in 0..4 {
                let values = loaded(grid(GridType::IQ2_S).eights, indices.add(8 * v));
                let values = _mm512_xor_si512(values, _mm512_set1_epi8(-128));
                codes[v] = signed(values, number::<u64>(block.add(34 + 8 * v)));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { odd_of_nibbles::<Self>(number::<u64>(block.add(74)), number(block)) }
    }
}

impl Split for IQ3_XXS {
    #[inline(always)]
    unsafe fn codes(block: *const u8, _: *const u16) -> [__m512i; 4] {
        static VALUES: Table = Table::of(grid_values(GridType::IQ3_XXS));
        // SAFETY: promised by the caller.
        unsafe {
            let of_block = four_signs(_mm256_loadu_si256(block.add(66).cast()));
            let mut codes = [_mm512_setzero_si512(); 4];
            for half in 0..2 {
                let indices = _mm512_cvtepu8_epi16(_mm256_loadu_si256(block.add(2 + 32 * half).cast()));
                let entries = look_up::<256>(grid(GridType::IQ3_XXS).entries, indices);
                for part in 0..2 {
                    let v = 2 * half + part;
                    codes[v] = signed(fours(entries, part, &VALUES), signs(of_block, v));
                }
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe {
            let s = _mm256_srli_epi32::<28>(_mm256_loadu_si256(block.add(66).cast()));
            odd::<Self>(_mm512_castsi256_si512(s), number(block))
        }
    }
}

impl Split for IQ3_S {
    #[inline(always)]
    unsafe fn codes(block: *const u8, _: *const u16) -> [__m512i; 4] {
        static VALUES: Table = Table::of(grid_values(GridType::IQ3_S));
        // SAFETY: promised by the caller.
        unsafe {
            let mut codes = [_mm512_setzero_si512(); 4];
            for half in 0..2 {
                let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(block.add(2 + 32 * half).cast()));
                let high = number::<u32>(block.add(66 + 4 * half));
                let indices = _mm512_or_si512(low, _mm512_maskz_set1_epi16(high, 256));
                let entries = look_up::<512>(grid(GridType::IQ3_S).entries, indices);
                for part in 0..2 {
                    let v = 2 * half + part;
                    let minus = number::<u64>(block.add(74 + 8 * v));
                    codes[v] = signed(fours(entries, part, &VALUES), minus);
                }
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { odd_of_nibbles::<Self>(number::<u32>(block.add(106)).into(), number(block)) }
    }
}

impl Split for NVFP4 {
    #[inline(always)]
    unsafe fn codes(block: *const u8, _: *const u16) -> [__m512i; 4] {
        /// The values plus 128.
        const VALUES: [u8; 16] = {
            let (mut all, mut i) = ([0; 16], 0);
            while let Values::Table(table) = rows::NVFP4::ROW.values
                && i < 16
            {
                all[i] = (table[i] as i16 + 128) as u8;
                i += 1;
            }
            all
        };
        // SAFETY: promised by the caller.
        unsafe {
            // Each eight bytes twice: the low nibbles of a run, then the high ones.
            let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(block.add(4).cast()));
            let bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), bytes);
            let nibbles = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4));
            let nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(VALUES.as_ptr().cast()));
            let none = _mm512_setzero_si512();
            [_mm512_shuffle_epi8(values, nibbles), none, none, none]
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe {
            // The bits of a positive f16 with another bias, normal or not. 127 stands for 0.
            let bytes = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(number(block)));
            let numbers = _mm_cmpneq_epi16_mask(bytes, _mm_set1_epi16(127));
            let halves = _mm_maskz_slli_epi16::<7>(numbers, _mm_and_si128(bytes, _mm_set1_epi16(127)));
            _mm512_castps128_ps512(_mm_mul_ps(_mm_cvtph_ps(halves), _mm_set1_ps(128.0)))
        }
    }
}
