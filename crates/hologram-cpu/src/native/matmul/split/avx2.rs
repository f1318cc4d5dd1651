//! Blocks taken apart on AVX2: a grid's entries are loaded one by one.

use std::arch::x86_64::*;

use hologram_device::GridType;
use hologram_device::decode::grid;
use hologram_device::format::{Row, Scales, Values, rows};

use super::{Format, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NVFP4, number};

/// A format whose blocks are taken apart. All functions are compiled for the instruction set of their callers, which
/// must be AVX2 with F16C.
pub trait Split: Format {
    /// The codes of a unit of 32 elements.
    ///
    /// # Safety
    /// The block can be read and has the unit, with the instructions named above.
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i;

    /// The factors of the runs and what they are multiplied by.
    ///
    /// # Safety
    /// As [`Split::codes`].
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]);
}

/// For each seven bits themselves, with an eighth that makes the number of set bits even.
static EVEN: [u8; 128] = {
    let (mut all, mut i) = ([0; 128], 0u8);
    while i < 128 {
        all[i as usize] = i | (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    all
};

/// Four bytes of signs from four times seven bits.
#[inline(always)]
fn four_signs(bits: u32) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|j| EVEN[(bits >> (7 * j) & 127) as usize]))
}

/// Four entries of eight values.
///
/// # Safety
/// As all functions below: the caller is compiled for the instructions that [`Split`] names, memory that is read
/// exists, and the grid has the entries.
#[inline(always)]
unsafe fn eights(ty: GridType, [a, b, c, d]: [usize; 4]) -> __m256i {
    let table = grid(ty).eights.as_ptr().cast::<i64>();
    // SAFETY: promised by the caller.
    unsafe { _mm256_set_epi64x(*table.add(d), *table.add(c), *table.add(b), *table.add(a)) }
}

/// Eight entries of four values.
#[inline(always)]
unsafe fn fours(ty: GridType, at: [usize; 8]) -> __m256i {
    let table = grid(ty).fours.as_ptr().cast::<i32>();
    // SAFETY: promised by the caller.
    let e = at.map(|i| unsafe { *table.add(i) });
    // SAFETY: promised by the caller.
    unsafe { _mm256_set_epi32(e[7], e[6], e[5], e[4], e[3], e[2], e[1], e[0]) }
}

/// Values, negative where a bit is set.
#[inline(always)]
unsafe fn signed(values: __m256i, minus: u32) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe {
        let (low, high) = (0x0101_0101_0101_0101, 0x0303_0303_0303_0303);
        let byte = _mm256_set_epi64x(high, 0x0202_0202_0202_0202, low, 0);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(minus as i32), byte);
        let minus = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
        _mm256_sub_epi8(_mm256_xor_si256(values, minus), minus)
    }
}

/// The scales (2s + 1)·d·[`Format::PER`] of all runs, from s and the `f16` d.
#[inline(always)]
unsafe fn odd<B: Format>(s: impl Fn(usize) -> u32, d: u16, to: &mut [f32; 16]) {
    // All products are exact.
    // SAFETY: promised by the caller.
    let d = unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(d.into()))) } * const { B::PER };
    for i in 0..B::LEN / B::RUN {
        to[i] = d * (2 * s(i) + 1) as f32;
    }
}

impl Split for IQ1_S {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 11 bits.
        unsafe {
            let (q, h) =
                (number::<[u8; 4]>(block.add(2 + 4 * unit)), usize::from(number::<u16>(block.add(34 + 2 * unit))));
            let at = |j: usize| usize::from(q[j]) | (h >> (3 * j) & 7) << 8;
            let entries = eights(GridType::IQ1_S, [at(0), at(1), at(2), at(3)]);
            _mm256_add_epi8(entries, _mm256_set1_epi8(if h >> 15 == 1 { -9 } else { -7 }))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe {
            let h: [u16; 8] = number(block.add(34));
            odd::<Self>(|i| u32::from(h[i] >> 12 & 7), number(block), to);
        }
    }
}

impl Split for IQ1_M {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 11 bits.
        unsafe {
            let (q, h) = (number::<[u8; 4]>(block.add(4 * unit)), usize::from(number::<u16>(block.add(32 + 2 * unit))));
            let at = |j: usize| usize::from(q[j]) | (h >> (4 * j) & 7) << 8;
            let entries = eights(GridType::IQ1_M, [at(0), at(1), at(2), at(3)]);
            const OFFSETS: [i64; 2] = [i64::from_le_bytes([-7i8 as u8; 8]), i64::from_le_bytes([-9i8 as u8; 8])];
            let offset = |j: usize| OFFSETS[h >> (4 * j + 3) & 1];
            _mm256_add_epi8(entries, _mm256_set_epi64x(offset(3), offset(2), offset(1), offset(0)))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe {
            let s: [u16; 4] = number(block.add(48));
            let d = (0..4).fold(0, |d, i| d | s[i] >> 12 << (4 * i));
            odd::<Self>(|i| u32::from(s[i / 4] >> (i % 4 * 3) & 7), d, to);
        }
    }
}

impl Split for IQ2_XXS {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 8 bits.
        unsafe {
            let q: [u8; 4] = number(block.add(2 + 8 * unit));
            let values = eights(GridType::IQ2_XXS, q.map(usize::from));
            signed(values, four_signs(number(block.add(6 + 8 * unit))))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe { odd::<Self>(|i| number::<u32>(block.add(6 + 8 * i)) >> 28, number(block), to) }
    }
}

impl Split for IQ2_XS {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 9 bits.
        unsafe {
            let q: [u16; 4] = number(block.add(2 + 8 * unit));
            let values = eights(GridType::IQ2_XS, q.map(|q| usize::from(q & 511)));
            signed(values, u32::from_le_bytes(q.map(|q| EVEN[usize::from(q >> 9)])))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe { of_nibbles::<Self>(block.add(66), number(block), to) }
    }
}

/// As [`odd`], with a nibble per run.
#[inline(always)]
unsafe fn of_nibbles<B: Format>(nibbles: *const u8, d: u16, to: &mut [f32; 16]) {
    // SAFETY: promised by the caller.
    unsafe { odd::<B>(|i| u32::from(*nibbles.add(i / 2) >> (i % 2 * 4) & 15), d, to) }
}

impl Split for IQ2_S {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 10 bits.
        unsafe {
            let (q, high) = (number::<[u8; 4]>(block.add(2 + 4 * unit)), usize::from(*block.add(66 + unit)));
            let at = |j: usize| usize::from(q[j]) | (high >> (2 * j) & 3) << 8;
            let values = eights(GridType::IQ2_S, [at(0), at(1), at(2), at(3)]);
            signed(values, number(block.add(34 + 4 * unit)))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe { of_nibbles::<Self>(block.add(74), number(block), to) }
    }
}

impl Split for IQ3_XXS {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 8 bits.
        unsafe {
            let q: [u8; 8] = number(block.add(2 + 8 * unit));
            let values = fours(GridType::IQ3_XXS, q.map(usize::from));
            signed(values, four_signs(number(block.add(66 + 4 * unit))))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe { odd::<Self>(|i| number::<u32>(block.add(66 + 4 * i)) >> 28, number(block), to) }
    }
}

impl Split for IQ3_S {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        // SAFETY: promised by the caller; indices have 9 bits.
        unsafe {
            let (q, high) = (number::<[u8; 8]>(block.add(2 + 8 * unit)), usize::from(*block.add(66 + unit)));
            let at = |j: usize| usize::from(q[j]) | (high >> j & 1) << 8;
            let values = fours(GridType::IQ3_S, [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]);
            signed(values, number(block.add(74 + 4 * unit)))
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        // SAFETY: promised by the caller.
        unsafe { of_nibbles::<Self>(block.add(106), number(block), to) }
    }
}

impl Split for NVFP4 {
    #[inline(always)]
    unsafe fn codes(block: *const u8, unit: usize) -> __m256i {
        const VALUES: [i8; 16] = match rows::NVFP4::ROW.values {
            Values::Table(table) => *table,
            _ => panic!("a table"),
        };
        // SAFETY: promised by the caller.
        unsafe {
            // The low nibbles of eight bytes are a run's first codes, the high ones its last.
            let bytes = _mm_loadu_si128(block.add(4 + 16 * unit).cast());
            let (low, high) = (_mm_set1_epi8(15), _mm_srli_epi16::<4>(bytes));
            let (low, high) = (_mm_and_si128(bytes, low), _mm_and_si128(high, low));
            let nibbles = _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
            let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(VALUES.as_ptr().cast()));
            _mm256_shuffle_epi8(values, nibbles)
        }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8, to: &mut [f32; 16]) {
        for i in 0..4 {
            // SAFETY: promised by the caller.
            to[i] = Scales::ue4m3(unsafe { *block.add(i) });
        }
    }
}
