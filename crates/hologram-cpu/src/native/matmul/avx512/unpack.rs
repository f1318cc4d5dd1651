//! Panels of 16 rows unpacked from any block format of bits: the packed bytes are transposed first, and then each
//! instruction takes the codes, the scales or the minimums of all rows at once.
//!
//! A panel is unpacked anew in each step, so for a few tokens this takes most of the time. Transposing packed bytes
//! needs half or a quarter of the shuffles that unpacked codes would.

use std::arch::x86_64::*;

use hologram_device::DType;
use hologram_device::format::{Bits, Row, Scales, Values};

use super::super::blocks::for_format;
use super::super::int::Layout;
use super::super::{Rows, prefetch_lines};
use super::{scales, transpose};

/// Unpacks 16 rows: (layout, rows, the destination).
pub type Unpack = unsafe fn(&Layout, Rows, *mut u8);

/// The unpacker of a format. Requires AVX-512 with BW.
pub fn unpacker(format: DType) -> Option<Unpack> {
    for_format!(format, super of, block of, nibbles of)
}

fn of<B: Row>() -> Unpack {
    unpack::<B>
}

/// The most 32-bit words of a block: those of `Q6_K`, without its last two bytes.
const WORDS: usize = 52;

/// The transposed 32-bit words of a block of 16 rows, from byte [`Places::BASE`] on.
type Words = [__m512i; WORDS];

/// Where a format's bytes lie in [`Words`].
struct Places<B>(std::marker::PhantomData<B>);

impl<B: Row> Places<B> {
    /// The byte that the first word begins with: codes must be aligned to words.
    const BASE: usize = {
        let (low, high) = B::ROW.bits();
        assert!(low.run.is_multiple_of(4));
        if let Some(high) = high {
            assert!(high.at % 4 == low.at % 4);
        }
        low.at % 4
    };
    /// Pieces of 16 bytes that cover all whole words.
    const PIECES: usize = ((B::ROW.bytes - Self::BASE) / 4).div_ceil(4);
    /// The first word of the last piece, which overlaps the one before it.
    const LAST: usize = (B::ROW.bytes - Self::BASE - 16) / 4;
    /// Elements that share a scale.
    const RUN: usize = B::ROW.run();
    /// Bytes of an unpacked run of 16 rows.
    const RUN_BYTES: usize = Self::RUN * 16 + if B::ROW.has_minimum() { 128 } else { 64 };

    /// The word with byte `at` of the block.
    const fn word(at: usize) -> usize {
        (at - Self::BASE) / 4
    }
}

/// # Safety
/// The processor has the features; the rows exist; `to` has room for a panel.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack<B: Row>(layout: &Layout, rows: Rows, to: *mut u8) {
    debug_assert_eq!(layout.span, Places::<B>::RUN, "spans of these formats are runs");
    let mut words = [_mm512_setzero_si512(); WORDS];
    for block in 0..layout.k / B::ROW.len {
        let at = block * B::ROW.bytes;
        prefetch_lines(rows.at::<true>(16, 16 * at), 16 * B::ROW.bytes);
        let to = to.wrapping_add(block * (B::ROW.len / Places::<B>::RUN) * Places::<B>::RUN_BYTES);
        // SAFETY: every row has this block; its unpacked form fits the panel.
        unsafe {
            for piece in 0..Places::<B>::PIECES {
                let word = (4 * piece).min(Places::<B>::LAST);
                let four = transpose::<false>(rows, at + Places::<B>::BASE + 4 * word);
                words[word..word + 4].copy_from_slice(&four);
            }
            // Macros, so that places are constants.
            macro_rules! codes {
                ($($sixteen:literal)*) => {$(
                    if 16 * $sixteen < B::ROW.len {
                        codes_of_16::<B, { 16 * $sixteen }>(&words, to);
                    }
                )*};
            }
            codes!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            let numbers = if let Scales::E8M0 { at: e } = const { B::ROW.scales } {
                [powers_of_two(rows, at + e), _mm512_setzero_ps()]
            } else if B::ROW.has_minimum() {
                let both = words[Places::<B>::word(B::ROW.numbers[0])];
                let half = |words| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
                [half(both), half(_mm512_srli_epi32::<16>(both))]
            } else {
                [scales::<false>(rows, at + B::ROW.numbers[0]), _mm512_setzero_ps()]
            };
            macro_rules! factors {
                ($($four:literal)*) => {$(
                    if 4 * $four * Places::<B>::RUN < B::ROW.len {
                        factors_of_4::<B, $four>(&words, numbers, to);
                    }
                )*};
            }
            factors!(0 1 2 3);
        }
    }
}

/// 2^(e - 128) of the byte e at `at` of each row.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn powers_of_two(rows: Rows, at: usize) -> __m512 {
    macro_rules! bytes {
        ($($row:literal)*) => {
            // SAFETY: promised by the caller.
            unsafe { _mm_set_epi8($(rows.at::<false>($row, at).cast::<i8>().read()),*) }
        };
    }
    let e = _mm512_cvtepu8_epi32(bytes!(15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0));
    // The two smallest are subnormal.
    let small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    let bits = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
    _mm512_castsi512_ps(_mm512_mask_sllv_epi32(bits, small, _mm512_set1_epi32(0x0020_0000), e))
}

/// The bits of four consecutive numbers from `first` on, in the bytes of each row's word, at their place in the
/// numbers. Always inlined, so that places are constants.
///
/// # Safety
/// The processor has AVX-512 with BW.
#[inline(always)]
unsafe fn taken<B: Row>(words: &Words, bits: Bits, first: usize) -> __m512i {
    let (at, shift) = bits.place(first);
    let word = words[Places::<B>::word(at)];
    // SAFETY: promised by the caller; only registers are accessed.
    unsafe {
        let shifted = if shift < bits.to {
            _mm512_sllv_epi32(word, _mm512_set1_epi32((bits.to - shift) as i32))
        } else {
            _mm512_srlv_epi32(word, _mm512_set1_epi32((shift - bits.to) as i32))
        };
        _mm512_and_si512(shifted, _mm512_set1_epi8((((1u32 << bits.bits) - 1) << bits.to) as i8))
    }
}

/// [`taken`] for single bits that lie side by side, eight in a byte.
///
/// # Safety
/// As [`taken`].
#[inline(always)]
unsafe fn taken_single<B: Row>(words: &Words, bits: Bits, first: usize) -> __m512i {
    let (byte, bit) = (bits.at + first / 8, first % 8);
    let (word, byte) = (words[Places::<B>::word(byte)], ((byte - Places::<B>::BASE) % 4) as i8);
    // SAFETY: promised by the caller; only registers are accessed.
    unsafe {
        // The byte in each of a word's four bytes.
        let lane = _mm_add_epi8(_mm_set_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0), _mm_set1_epi8(byte));
        let bytes = _mm512_shuffle_epi8(word, _mm512_broadcast_i32x4(lane));
        let set = _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(0x0804_0201 << bit));
        _mm512_maskz_set1_epi8(set, 1 << bits.to)
    }
}

/// The bits of number `i`, one number per row's word, where the bits of consecutive numbers lie side by side.
///
/// # Safety
/// As [`taken`].
#[inline(always)]
unsafe fn single<B: Row>(words: &Words, bits: Bits, i: usize) -> __m512i {
    let (at, shift) = bits.place(i);
    let shift = 8 * ((at - Places::<B>::BASE) % 4) as i32 + shift as i32;
    // SAFETY: promised by the caller; only registers are accessed.
    unsafe {
        let shifted = _mm512_srlv_epi32(words[Places::<B>::word(at)], _mm512_set1_epi32(shift));
        let kept = _mm512_and_si512(shifted, _mm512_set1_epi32((1 << bits.bits) - 1));
        _mm512_sllv_epi32(kept, _mm512_set1_epi32(bits.to as i32))
    }
}

/// Unpacks the codes of 16 elements from `FIRST` on.
///
/// # Safety
/// The block's unpacked form fits at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn codes_of_16<B: Row, const FIRST: usize>(words: &Words, to: *mut u8) {
    let (low, high) = const { B::ROW.bits() };
    for j in 0..4 {
        let four = FIRST + 4 * j;
        // SAFETY: the function's features.
        let codes = unsafe {
            let low = taken::<B>(words, low, four);
            match high {
                None => low,
                Some(high) if high.run == 1 => _mm512_or_si512(low, taken_single::<B>(words, high, four)),
                Some(high) => _mm512_or_si512(low, taken::<B>(words, high, four)),
            }
        };
        let unsigned = match const { B::ROW.values } {
            Values::Signed => _mm512_xor_si512(codes, _mm512_set1_epi8(-128)),
            Values::Table(values) => {
                // SAFETY: the table has 16 bytes.
                let values = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(values.as_ptr().cast()) });
                _mm512_shuffle_epi8(_mm512_xor_si512(values, _mm512_set1_epi8(-128)), codes)
            }
            Values::Offset(_) | Values::Ternary | Values::E4M3 => codes,
        };
        let place = FIRST / Places::<B>::RUN * Places::<B>::RUN_BYTES + (FIRST % Places::<B>::RUN + 4 * j) * 16;
        // SAFETY: promised by the caller.
        unsafe { _mm512_storeu_si512(to.add(place).cast(), unsigned) };
    }
}

/// Unpacks the scales and minimums of runs 4·`FOUR` to 4·`FOUR` + 3, those that exist.
///
/// # Safety
/// As [`codes_of_16`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn factors_of_4<B: Row, const FOUR: usize>(words: &Words, [d, m]: [__m512; 2], to: *mut u8) {
    let word = |at: usize| words[Places::<B>::word(at)];
    let bits = |of: __m512i, mask: i8| _mm512_and_si512(of, _mm512_set1_epi8(mask));
    let none = _mm512_setzero_si512();
    // Four numbers in the bytes of each row's word: those of the scales, and of the minimums.
    let (of_scales, of_minimums) = match const { B::ROW.scales } {
        Scales::Nibbles { at } => {
            let both = word(at + 4 * FOUR);
            (bits(both, 15), bits(_mm512_srli_epi32::<4>(both), 15))
        }
        Scales::SixBitPairs { at } if FOUR == 0 => (bits(word(at), 63), bits(word(at + 4), 63)),
        Scales::SixBitPairs { at } => {
            let (low, high) = (word(at + 8), |at| bits(_mm512_srli_epi32::<2>(word(at)), 0x30));
            let low = [bits(low, 15), bits(_mm512_srli_epi32::<4>(low), 15)];
            (_mm512_or_si512(low[0], high(at)), _mm512_or_si512(low[1], high(at + 4)))
        }
        Scales::SixBits { low, high, .. } if low.run >= 4 => {
            // SAFETY: the function's features.
            let six = unsafe { _mm512_or_si512(taken::<B>(words, low, 4 * FOUR), taken::<B>(words, high, 4 * FOUR)) };
            (_mm512_sub_epi8(six, _mm512_set1_epi8(32)), none)
        }
        Scales::Signed { at } => (word(at + 4 * FOUR), none),
        // One number, or read one by one below.
        _ => (none, none),
    };
    for i in 0..4.min(B::ROW.len / Places::<B>::RUN - 4 * FOUR) {
        let run = 4 * FOUR + i;
        let number = |of: __m512i| {
            let left = _mm512_sllv_epi32(of, _mm512_set1_epi32(24 - 8 * i as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(left))
        };
        let scale = match const { B::ROW.scales } {
            Scales::One | Scales::E8M0 { .. } => d,
            Scales::SixBits { low, high, .. } if low.run < 4 => {
                // SAFETY: the function's features.
                let six = unsafe { _mm512_or_si512(single::<B>(words, low, run), single::<B>(words, high, run)) };
                _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32))), d)
            }
            _ => _mm512_mul_ps(number(of_scales), d),
        };
        let place = run * Places::<B>::RUN_BYTES + Places::<B>::RUN * 16;
        // SAFETY: promised by the caller.
        unsafe { _mm512_storeu_ps(to.add(place).cast(), scale) };
        if B::ROW.has_minimum() {
            let minimum = match const { B::ROW.scales } {
                Scales::One => m,
                _ => _mm512_mul_ps(number(of_minimums), _mm512_sub_ps(_mm512_setzero_ps(), m)),
            };
            // SAFETY: promised by the caller.
            unsafe { _mm512_storeu_ps(to.add(place + 64).cast(), minimum) };
        }
    }
}
