//! One tile of tokens: 16 packed rows at a time are transposed in registers and multiplied at once.

use std::arch::x86_64::*;

use hologram_device::DType;

use super::super::int::{Direct, Layout};
use super::super::{Rows, prefetch_lines};
use super::{scales, transpose};

/// Multiplies 16 packed rows with a tile.
///
/// # Safety
/// The processor has AVX-512 VNNI; the rows exist and the tile is packed for this layout, whose spans are whole blocks;
/// the output can be written.
pub unsafe fn multiply(layout: &Layout, tokens: usize, d: &Direct) {
    macro_rules! table {
        ($tile:ident, $chains:literal, $three:literal) => {
            [
                $tile::<1, $chains>,
                $tile::<2, $chains>,
                $tile::<3, $three>,
                $tile::<4, 1>,
                $tile::<5, 1>,
                $tile::<6, 1>,
                $tile::<7, 1>,
                $tile::<8, 1>,
                $tile::<9, 1>,
                $tile::<10, 1>,
                $tile::<11, 1>,
                $tile::<12, 1>,
            ]
        };
    }
    type Tile = unsafe fn(usize, &Direct);
    const Q8_0: [Tile; 12] = table!(q8_0, 2, 1);
    const Q4_0: [Tile; 12] = table!(q4_0, 2, 1);
    const TQ2_0: [Tile; 12] = table!(tq2_0, 4, 4);
    let table = match layout.weights {
        DType::Q8_0 => &Q8_0,
        DType::Q4_0 => &Q4_0,
        _ => &TQ2_0,
    };
    // SAFETY: promised by the caller.
    unsafe { table[tokens - 1](layout.spans(), d) }
}

/// Defines a kernel for blocks of 32 and T tokens. Each token's sum runs in `CHAINS` registers to hide the latency of
/// an instruction. With two chains, the second chain's codes stay shifted left by `$shift` bits in their bytes, and its
/// sum is shifted back instead.
macro_rules! blocks_of_32 {
    ($name:ident, $bytes:literal, $codes:ident, $shift:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        unsafe fn $name<const T: usize, const CHAINS: usize>(blocks: usize, d: &Direct) {
            let rows = Rows::new(d.rows, d.row_bytes, 16);
            let mut acc = [_mm512_setzero_ps(); T];
            let mut x = d.tile.cast::<i32>();
            for block in 0..blocks {
                prefetch_lines(d.next.wrapping_add(block * 16 * $bytes), 16 * $bytes);
                // SAFETY: the block exists in every row; a span of the tile has T starts, T scales and T words for each
                // of 8 steps.
                unsafe {
                    let codes = $codes::<CHAINS>(rows, block * $bytes);
                    let scale = scales::<true>(rows, block * $bytes);
                    for t in 0..T {
                        let mut sums = [_mm512_setzero_si512(); CHAINS];
                        sums[0] = _mm512_set1_epi32(x.add(t).read_unaligned());
                        for step in 0..8 {
                            let word = _mm512_set1_epi32(x.add((2 + step) * T + t).read_unaligned());
                            let sum = &mut sums[step * CHAINS / 8];
                            *sum = _mm512_dpbusd_epi32(*sum, codes[step], word);
                        }
                        let sum = if CHAINS == 2 {
                            _mm512_add_epi32(sums[0], _mm512_srai_epi32::<$shift>(sums[1]))
                        } else {
                            sums[0]
                        };
                        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                        let x_scale = x.add(T + t).cast::<f32>().read_unaligned();
                        acc[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x_scale), acc[t]);
                    }
                    x = x.add(10 * T);
                }
            }
            // SAFETY: promised by the caller.
            unsafe { store(acc, d) };
        }
    };
}

blocks_of_32!(q8_0, 34, q8_0_codes, 0);
blocks_of_32!(q4_0, 18, q4_0_codes, 4);

/// # Safety
/// A block can be read at byte `at` of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn q8_0_codes<const CHAINS: usize>(rows: Rows, at: usize) -> [__m512i; 8] {
    let flip = _mm512_set1_epi8(-128);
    // SAFETY: promised by the caller.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (transpose::<true>(rows, at + 2), transpose::<true>(rows, at + 18)) };
    [
        _mm512_xor_si512(a, flip),
        _mm512_xor_si512(b, flip),
        _mm512_xor_si512(c, flip),
        _mm512_xor_si512(d, flip),
        _mm512_xor_si512(e, flip),
        _mm512_xor_si512(f, flip),
        _mm512_xor_si512(g, flip),
        _mm512_xor_si512(h, flip),
    ]
}

/// # Safety
/// As [`q8_0_codes`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn q4_0_codes<const CHAINS: usize>(rows: Rows, at: usize) -> [__m512i; 8] {
    let low = _mm512_set1_epi8(15);
    // SAFETY: promised by the caller.
    let [a, b, c, d] = unsafe { transpose::<true>(rows, at + 2) };
    macro_rules! high {
        ($packed:ident) => {
            if CHAINS == 2 {
                _mm512_and_si512($packed, _mm512_set1_epi8(0xf0_u8 as i8))
            } else {
                _mm512_and_si512(_mm512_srli_epi16::<4>($packed), low)
            }
        };
    }
    [
        _mm512_and_si512(a, low),
        _mm512_and_si512(b, low),
        _mm512_and_si512(c, low),
        _mm512_and_si512(d, low),
        high!(a),
        high!(b),
        high!(c),
        high!(d),
    ]
}

/// As the kernels above, for ternary blocks; one span is a block of 256. With four chains the codes are masked without
/// shifting them down in their bytes: chain l sums them times 4^l and is shifted once at the end.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tq2_0<const T: usize, const CHAINS: usize>(blocks: usize, d: &Direct) {
    const STEPS: usize = 64;
    let rows = Rows::new(d.rows, d.row_bytes, 16);
    let low = _mm512_set1_epi8(3);
    let mut acc = [_mm512_setzero_ps(); T];
    let mut x = d.tile.cast::<i32>();
    for block in 0..blocks {
        // SAFETY: the block exists in every row; a span of the tile has T starts, T scales and T words for each of 64
        // steps.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); CHAINS]; T];
            for t in 0..T {
                sums[t][0] = _mm512_set1_epi32(x.add(t).read_unaligned());
            }
            for quarter in 0..4 {
                prefetch_lines(d.next.wrapping_add((4 * block + quarter) * 264), 264);
                let transposed = transpose::<true>(rows, block * 66 + 16 * quarter);
                for j in 0..4 {
                    // Bytes 4·word.. of the block hold elements 4·step.. and those 32, 64 and 96 further on.
                    let word = 4 * quarter + j;
                    let step = 32 * (word / 8) + word % 8;
                    let bits = transposed[j];
                    let codes = if CHAINS == 4 {
                        [
                            _mm512_and_si512(bits, low),
                            _mm512_and_si512(bits, _mm512_set1_epi8(0x0c)),
                            _mm512_and_si512(bits, _mm512_set1_epi8(0x30)),
                            _mm512_and_si512(bits, _mm512_set1_epi8(0xc0_u8 as i8)),
                        ]
                    } else {
                        [
                            _mm512_and_si512(bits, low),
                            _mm512_and_si512(_mm512_srli_epi16::<2>(bits), low),
                            _mm512_and_si512(_mm512_srli_epi16::<4>(bits), low),
                            _mm512_and_si512(_mm512_srli_epi16::<6>(bits), low),
                        ]
                    };
                    let words = x.add((2 + step) * T);
                    for l in 0..4 {
                        for t in 0..T {
                            let word = _mm512_set1_epi32(words.add(8 * l * T + t).read_unaligned());
                            sums[t][l % CHAINS] = _mm512_dpbusd_epi32(sums[t][l % CHAINS], codes[l], word);
                        }
                    }
                }
            }
            let scale = scales::<true>(rows, block * 66 + 64);
            for t in 0..T {
                let sum = if CHAINS == 4 {
                    let low = _mm512_add_epi32(sums[t][0], _mm512_srai_epi32::<2>(sums[t][1]));
                    let high = _mm512_add_epi32(sums[t][2], _mm512_srai_epi32::<2>(sums[t][3]));
                    _mm512_add_epi32(low, _mm512_srai_epi32::<4>(high))
                } else {
                    sums[t][0]
                };
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                let x_scale = x.add(T + t).cast::<f32>().read_unaligned();
                acc[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x_scale), acc[t]);
            }
            x = x.add((2 + STEPS) * T);
        }
    }
    // SAFETY: promised by the caller.
    unsafe { store(acc, d) };
}

/// # Safety
/// The masked rows of T tokens lie in the output.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const T: usize>(acc: [__m512; T], d: &Direct) {
    for t in 0..T {
        // SAFETY: promised by the caller.
        unsafe { _mm512_mask_storeu_ps(d.y.wrapping_add(t * d.stride), d.mask, acc[t]) };
    }
}
