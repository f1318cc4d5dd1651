//! `TQ2_0` on AVX-512 VNNI: the codes of a block's 64 bytes are multiplied without shifting them down in their bytes.
//!
//! Bits 2l and 2l + 1 of a byte, masked and not shifted, are 4^l times a code: chain l sums their products and is
//! shifted once at the end. Neighbouring blocks of the same scale (in BitNet a whole matrix) are summed in integers.
//! Codes are one too large; the sum of the activations' codes corrects that.

use std::arch::x86_64::*;

use super::{PackedRows, Prepared, RowKernels, STREAMS, prefetch_lines};

/// Bytes of a block.
const BYTES: usize = 66;

/// The kernels; groups of activations are multiples of 256.
pub const TQ2_0: RowKernels = RowKernels {
    prepared,
    prepare,
    multiply: [multiply::<1, STREAMS>, multiply::<2, STREAMS>, multiply::<3, STREAMS>, multiply::<4, 1>],
    in_one_stream: None,
};

/// Bytes prepared: the codes in the order of a block's bytes, chain by chain; then for each block the sum of all codes
/// before it, and the sum of all codes; then the scale of each block.
fn prepared(k: usize) -> usize {
    k + k / 256 * 8 + 4
}

unsafe fn prepare(codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    let blocks = codes.len() / 256;
    // SAFETY: the caller has room for `prepared` bytes, aligned to 4; `k` is a multiple of 256.
    let (ordered, sums, factors) = unsafe {
        let sums = to.add(codes.len()).cast::<i32>();
        (
            std::slice::from_raw_parts_mut(to.cast::<i8>(), codes.len()),
            std::slice::from_raw_parts_mut(sums, blocks + 1),
            std::slice::from_raw_parts_mut(sums.add(blocks + 1).cast::<f32>(), blocks),
        )
    };
    sums[0] = 0;
    for (b, (codes, ordered)) in codes.chunks_exact(256).zip(ordered.chunks_exact_mut(256)).enumerate() {
        for (l, chain) in ordered.chunks_exact_mut(64).enumerate() {
            chain[..32].copy_from_slice(&codes[32 * l..32 * l + 32]);
            chain[32..].copy_from_slice(&codes[128 + 32 * l..160 + 32 * l]);
        }
        sums[b + 1] = sums[b] + codes.iter().map(|c| i32::from(*c)).sum::<i32>();
        factors[b] = scales[b * 256 / group];
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn multiply<const T: usize, const R: usize>(w: &PackedRows, x: &Prepared) {
    let blocks = w.k / 256;
    let masks = [0x03, 0x0c, 0x30, 0xc0].map(|bits: u8| _mm512_set1_epi8(bits as i8));
    // SAFETY: the rows and tokens exist and the output can be written, as the caller promises.
    unsafe {
        let token = |t: usize| x.extra.add(t * x.extra_bytes);
        let sums = |t: usize, b: usize| token(t).add(w.k).cast::<i32>().add(b).read();
        let scale = |t: usize, b: usize| token(t).add(w.k + (blocks + 1) * 4).cast::<f32>().add(b).read();
        for rows in w.streams::<R>() {
            let ahead = w.ahead::<R>(rows);
            let firsts = rows.map(|row| w.first.add(row * w.bytes));
            let bits_of = |j: usize, b: usize| firsts[j].add(b * BYTES + 64).cast::<u16>().read_unaligned();
            let (mut acc, mut low) = ([[_mm512_setzero_ps(); R]; T], [[0f32; R]; T]);
            let mut b = 0;
            while b < blocks {
                let start = b;
                let mut bits = [0; R];
                for j in 0..R {
                    bits[j] = bits_of(j, b);
                }
                let mut chains = [[[_mm512_setzero_si512(); 4]; R]; T];
                loop {
                    let mut packed = [_mm512_setzero_si512(); R];
                    for j in 0..R {
                        let block = firsts[j].add(b * BYTES);
                        prefetch_lines(ahead[j].wrapping_add(b * BYTES), BYTES);
                        packed[j] = _mm512_loadu_si512(block.cast());
                    }
                    for l in 0..4 {
                        for t in 0..T {
                            let x = _mm512_loadu_si512(token(t).add(b * 256 + l * 64).cast());
                            for j in 0..R {
                                let codes = _mm512_and_si512(packed[j], masks[l]);
                                chains[t][j][l] = _mm512_dpbusd_epi32(chains[t][j][l], codes, x);
                            }
                        }
                    }
                    b += 1;
                    if b == blocks {
                        break;
                    }
                    let mut differs = false;
                    for j in 0..R {
                        differs |= bits_of(j, b) != bits[j];
                    }
                    for t in 0..T {
                        differs |= scale(t, b).to_bits() != scale(t, start).to_bits();
                    }
                    if differs {
                        break;
                    }
                }
                for j in 0..R {
                    let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits[j]))));
                    for t in 0..T {
                        let [a, b_, c, e] = chains[t][j];
                        let even = _mm512_add_epi32(a, _mm512_srai_epi32::<2>(b_));
                        let odd = _mm512_add_epi32(c, _mm512_srai_epi32::<2>(e));
                        let sum = _mm512_add_epi32(even, _mm512_srai_epi32::<4>(odd));
                        let factor = d * scale(t, start);
                        acc[t][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor), acc[t][j]);
                        low[t][j] += (sums(t, b) - sums(t, start)) as f32 * factor;
                    }
                }
            }
            for t in 0..T {
                for j in 0..R {
                    *w.y.add(t * w.stride + rows[j]) = _mm512_reduce_add_ps(acc[t][j]) - low[t][j];
                }
            }
        }
    }
}
