//! Formats of half bytes on AVX-512: four units of 32 at a time, for which everything is taken from two loads of 64 bytes.
//!
//! Loads that cross a line, as nearly all of blocks of 18 to 24 bytes do, are what Zen 4 has least of. A vector holds the first 16
//! elements of each unit, or the last 16: the sums of four lanes are of one unit, and so are its scale and its minimum, which are spread
//! over those lanes by the instruction that finds them.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{Found, PackedRows, Prepared, RowKernels, STREAMS, Totals, fetch};
use crate::cpu::native::matmul::blocks::HalfBytes;
use crate::cpu::native::matmul::bytes::Vnni;

/// Units that are multiplied at once.
const UNITS: usize = 4;
/// Bytes that are prepared for these: twice 64 codes, 16 numbers that sums begin with (or, for minimums, sums of the activations), and
/// 16 scales.
const RECORD: usize = 256;

fn prepared(k: usize) -> usize {
    (k / 32).div_ceil(UNITS) * RECORD
}

/// What [`prepare`] makes of four units.
#[repr(C)]
struct Record {
    /// The first half of each unit, then the second.
    codes: [[[i8; 16]; UNITS]; 2],
    /// Of the elements that meet in a lane: what their products with offsets add up to, taken off, or their sum in units of the weights.
    less: [i32; 16],
    scales: [f32; 16],
}

unsafe fn prepare<B: HalfBytes>(codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    // SAFETY: the caller has room for `prepared` bytes, aligned to 4; zeros are such records.
    let records = unsafe {
        std::ptr::write_bytes(to, 0, prepared(codes.len()));
        std::slice::from_raw_parts_mut(to.cast::<Record>(), prepared(codes.len()) / RECORD)
    };
    for (u, codes) in codes.chunks_exact(32).enumerate() {
        let (record, unit) = (&mut records[u / UNITS], u % UNITS);
        let scale = scales[u * 32 / group];
        for (half, codes) in codes.chunks_exact(16).enumerate() {
            record.codes[half][unit].copy_from_slice(codes);
        }
        for lane in 0..4 {
            let sum: i32 = [0, 16].iter().flat_map(|half| &codes[half + 4 * lane..][..4]).map(|c| i32::from(*c)).sum();
            let at = 4 * unit + lane;
            record.scales[at] = scale;
            record.less[at] = if B::OFFSET == 0 { (sum as f32 * scale).to_bits() as i32 } else { -B::OFFSET * sum };
        }
    }
}

/// Where things lie in the two vectors of four blocks: the first 64 bytes, and the last.
struct Places<B>(PhantomData<B>);

impl<B: HalfBytes> Places<B> {
    /// Bytes of four blocks.
    const BYTES: usize = UNITS * B::BYTES;
    /// Where the second vector begins.
    const SECOND: usize = Self::BYTES - 64;

    /// Where byte `at` of a unit's block lies in both vectors.
    const fn of(unit: usize, at: usize) -> usize {
        let at = unit * B::BYTES + at;
        if at < 64 { at } else { 64 + at - Self::SECOND }
    }

    /// The half bytes of each unit, in words.
    const HALF_BYTES: [u16; 32] = {
        assert!(B::BYTES.is_multiple_of(2));
        let (mut all, mut i) = ([0; 32], 0);
        while i < 32 {
            all[i] = (Self::of(i / 8, B::BYTES - 16 + i % 8 * 2) / 2) as u16;
            i += 1;
        }
        all
    };

    /// The scale of each unit four times, then the minimums, which come after the scales.
    const FACTORS: [u16; 32] = {
        let (mut all, mut i) = ([0; 32], 0);
        while i < 32 {
            all[i] = (Self::of(i % 16 / 4, i / 16 * 2) / 2) as u16;
            i += 1;
        }
        all
    };

    /// The byte of fifth bits of each eight elements of the first half of a unit in byte 3 of eight, those of the second half in byte 7.
    const FIFTH_BITS: [u8; 64] = {
        let (mut all, mut i) = ([0; 64], 0);
        while B::FIFTH_BITS && i < 64 {
            all[i] = Self::of(i / 16, B::BYTES - 20 + i % 16 / 8 + i % 8 / 4 * 2) as u8;
            i += 1;
        }
        all
    };
}

/// The codes of both halves of four units, from their half bytes and the vectors they lie in.
///
/// # Safety
/// Vectors as [`Places`] has them; the caller is compiled for AVX-512 BW, VBMI and GFNI.
#[inline(always)]
unsafe fn with_fifth_bits<B: HalfBytes>(half_bytes: __m512i, [first, last]: [__m512i; 2]) -> [__m512i; 2] {
    const BYTES_3_AND_7: u64 = 0x8888_8888_8888_8888;
    // SAFETY: promised by the caller; the indices are 64 bytes.
    unsafe {
        let half = _mm512_set1_epi8(15);
        let order = _mm512_loadu_si512(const { &Places::<B>::FIFTH_BITS }.as_ptr().cast());
        let bits = _mm512_maskz_permutex2var_epi8(BYTES_3_AND_7, first, order, last);
        // Byte j times these matrices of bits: bit j of their byte 3 comes to bit 4, bit j of byte 7 to bit 0.
        let bits = _mm512_gf2p8affine_epi64_epi8::<0>(_mm512_set1_epi64(0x8040_2010_0804_0201_u64 as i64), bits);
        // Where the first has a bit the second's, else the third's.
        const CHOOSE: i32 = 0xca;
        [
            _mm512_ternarylogic_epi64::<CHOOSE>(half, half_bytes, bits),
            _mm512_ternarylogic_epi64::<CHOOSE>(half, _mm512_srli_epi16::<4>(half_bytes), _mm512_slli_epi16::<4>(bits)),
        ]
    }
}

/// The codes of four units in two vectors, and in one vector their scales and minimums in `f16`.
///
/// # Safety
/// Vectors as [`Places`] has them; the caller is compiled for AVX-512 BW, and VBMI and GFNI where there are fifth bits.
#[inline(always)]
unsafe fn take_apart<B: HalfBytes>([first, last]: [__m512i; 2]) -> ([__m512i; 2], __m512i) {
    // SAFETY: promised by the caller; the indices are 64 bytes.
    unsafe {
        let order = _mm512_loadu_si512(const { &Places::<B>::HALF_BYTES }.as_ptr().cast());
        let half_bytes = _mm512_permutex2var_epi16(first, order, last);
        let mut codes = if B::FIFTH_BITS {
            with_fifth_bits::<B>(half_bytes, [first, last])
        } else {
            let half = _mm512_set1_epi8(15);
            [_mm512_and_si512(half_bytes, half), _mm512_and_si512(_mm512_srli_epi16::<4>(half_bytes), half)]
        };
        if let Some(values) = B::VALUES {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
            codes = [_mm512_shuffle_epi8(values, codes[0]), _mm512_shuffle_epi8(values, codes[1])];
        }
        let order = _mm512_loadu_si512(const { &Places::<B>::FACTORS }.as_ptr().cast());
        (codes, _mm512_permutex2var_epi16(first, order, last))
    }
}

/// Adds the products of four units of each row with each token.
///
/// # Safety
/// Vectors as [`Places`] has them; the records exist. The caller is compiled as for [`take_apart`] and for VNNI and F16C.
#[inline(always)]
unsafe fn add<B: HalfBytes, const T: usize, const R: usize>(
    acc: &mut [[__m512; R]; T],
    vectors: [[__m512i; 2]; R],
    records: [*const Record; T],
) {
    // SAFETY: promised by the caller.
    unsafe {
        for j in 0..R {
            let (codes, factors) = take_apart::<B>(vectors[j]);
            let scales = _mm512_cvtph_ps(_mm512_castsi512_si256(factors));
            for t in 0..T {
                let [x, x_last] = (*records[t]).codes.each_ref();
                let (x, x_last) = (_mm512_loadu_si512(x.as_ptr().cast()), _mm512_loadu_si512(x_last.as_ptr().cast()));
                let less = _mm512_loadu_si512((*records[t]).less.as_ptr().cast());
                let start = if B::OFFSET == 0 { _mm512_setzero_si512() } else { less };
                let sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, codes[0], x), codes[1], x_last);
                let scales = _mm512_mul_ps(scales, _mm512_loadu_ps((*records[t]).scales.as_ptr()));
                acc[t][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, acc[t][j]);
                if B::OFFSET == 0 {
                    let minimums = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(factors));
                    acc[t][j] = _mm512_fmadd_ps(minimums, _mm512_castsi512_ps(less), acc[t][j]);
                }
            }
        }
    }
}

/// # Safety
/// The rows and `T` prepared tokens exist; the output can be written; the caller is compiled as for [`add`].
#[inline(always)]
unsafe fn multiply<B: HalfBytes, const T: usize, const R: usize>(w: &PackedRows, x: &Prepared) {
    let (whole, rest) = (w.k / 32 / UNITS, w.k / 32 % UNITS * B::BYTES);
    // SAFETY: promised by the caller.
    let s = unsafe { Vnni::assume() };
    let mut totals = Totals::<Vnni, T, R>::new(s);
    for rows in w.streams::<R>() {
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes));
        let asked = w.asked::<R>(rows);
        // SAFETY: promised by the caller; four blocks are longer than a vector and shorter than two, and of two, which are what may be
        // left of a row, a vector holds all.
        unsafe {
            let records = |i: usize| std::array::from_fn(|t| x.extra.add(t * x.extra_bytes).cast::<Record>().add(i));
            let mut acc = [[_mm512_setzero_ps(); R]; T];
            let mut vectors = [[_mm512_setzero_si512(); 2]; R];
            // A macro: a closure that is not inlined would be compiled without the instruction set.
            macro_rules! four {
                ($i:expr) => {
                    for j in 0..R {
                        let at = firsts[j].add($i * Places::<B>::BYTES);
                        let last = at.add(Places::<B>::SECOND);
                        vectors[j] = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(last.cast())];
                    }
                    add::<B, T, R>(&mut acc, vectors, records($i));
                };
            }
            let (mut i, together) = (0, 4);
            while i + together <= whole {
                for asked in asked {
                    fetch(asked.wrapping_add(i * Places::<B>::BYTES), together * Places::<B>::BYTES);
                }
                for _ in 0..together {
                    four!(i);
                    i += 1;
                }
            }
            while i < whole {
                for asked in asked {
                    fetch(asked.wrapping_add(i * Places::<B>::BYTES), Places::<B>::BYTES);
                }
                four!(i);
                i += 1;
            }
            if rest > 0 {
                for j in 0..R {
                    let at = firsts[j].add(whole * Places::<B>::BYTES);
                    let first = _mm512_maskz_loadu_epi8(u64::MAX >> (64 - rest), at.cast());
                    vectors[j] = [first, _mm512_setzero_si512()];
                }
                add::<B, T, R>(&mut acc, vectors, records(whole));
            }
            totals.add(s, w, acc);
        }
    }
    // SAFETY: promised by the caller.
    unsafe { totals.store(s, w) };
}

/// The kernels of a format.
pub fn of_half_bytes<B: HalfBytes>() -> Found {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn of_four_bits<B: HalfBytes, const T: usize>(w: &PackedRows, x: &Prepared) {
        // SAFETY: the features; the rest is promised by the caller.
        unsafe { multiply::<B, T, STREAMS>(w, x) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c")]
    unsafe fn of_five_bits<B: HalfBytes, const T: usize>(w: &PackedRows, x: &Prepared) {
        // SAFETY: as above.
        unsafe { multiply::<B, T, STREAMS>(w, x) }
    }
    let multiply = if const { B::FIFTH_BITS } {
        [
            of_five_bits::<B, 1> as unsafe fn(&PackedRows, &Prepared),
            of_five_bits::<B, 2>,
            of_five_bits::<B, 3>,
            of_five_bits::<B, 4>,
        ]
    } else {
        [
            of_four_bits::<B, 1> as unsafe fn(&PackedRows, &Prepared),
            of_four_bits::<B, 2>,
            of_four_bits::<B, 3>,
            of_four_bits::<B, 4>,
        ]
    };
    let kernels = RowKernels { prepared, prepare: prepare::<B>, multiply, in_one_stream: None };
    Found { kernels, group: 32, gfni: B::FIFTH_BITS }
}
