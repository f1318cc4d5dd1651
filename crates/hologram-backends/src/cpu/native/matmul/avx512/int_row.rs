//! A few tokens: each packed row is read once, in place, and multiplied with all tokens.

use std::arch::x86_64::*;

use super::super::int::Layout;
use super::super::{Operands, piece_rows};
use crate::Format;
use crate::cpu::kernel::Worker;

/// The most tokens of a row kernel.
pub const FEW: usize = 4;

/// A token prepared for the row kernels, in planes of one entry for each register of 64 codes.
#[derive(Clone, Copy)]
struct Token {
    /// Activation codes in the order in which the row kernel unpacks weights.
    codes: *const __m512i,
    /// −offset·Σ codes for each lane.
    starts: *const __m512i,
    /// Scales: for blocks of 32 one for each block, padded to 16; for ternary blocks as the kernel needs them.
    scales: *const f32,
}

/// Registers of a token: pairs of blocks of 32.
fn registers(layout: &Layout) -> usize {
    layout.k.div_ceil(64)
}

/// Scales of a token: one for each block of 32, padded.
fn scale_count(layout: &Layout) -> usize {
    (layout.k / 32).next_multiple_of(16)
}

fn token_bytes(layout: &Layout) -> usize {
    registers(layout) * 128 + scale_count(layout) * 4
}

/// Bytes of scratch of a worker.
pub fn scratch(layout: &Layout) -> usize {
    token_bytes(layout) * FEW
}

/// Multiplies every row that this worker claims with all tokens.
///
/// # Safety
/// The processor has AVX-512 VNNI; the operands fit the layout and have at most [`FEW`] tokens.
pub unsafe fn multiply(layout: &Layout, o: &Operands<'_>, worker: &mut Worker<'_>) {
    // SAFETY: promised by the caller.
    unsafe {
        match o.n {
            0 => {}
            1 => rows::<1>(layout, o, worker),
            2 => rows::<2>(layout, o, worker),
            3 => rows::<3>(layout, o, worker),
            _ => rows::<4>(layout, o, worker),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn rows<const N: usize>(layout: &Layout, o: &Operands<'_>, worker: &mut Worker<'_>) {
    let scratch = std::mem::take(&mut worker.scratch);
    let tokens: [Token; N] = std::array::from_fn(|t| {
        let to = &mut scratch[t * token_bytes(layout)..(t + 1) * token_bytes(layout)];
        // SAFETY: the caller's promise.
        unsafe { prepare(layout, o, t, to) }
    });
    let whole_blocks = layout.span == 256;
    let rows = piece_rows(o.y.m, worker.count, 4, 256);
    while let Some(piece) = worker.next(o.y.m.div_ceil(rows)) {
        for row in piece * rows..((piece + 1) * rows).min(o.y.m) {
            let w = o.row(row).as_ptr();
            // SAFETY: the row is whole, the tokens are prepared for this layout, and this worker has claimed the row.
            unsafe {
                let sums = match layout.weights {
                    Format::Q8_0 => blocks_of_32::<false, N>(w, layout.k / 32, &tokens),
                    Format::Q4_0 => blocks_of_32::<true, N>(w, layout.k / 32, &tokens),
                    _ if whole_blocks => ternary::<true, N>(w, layout.k / 256, &tokens),
                    _ => ternary::<false, N>(w, layout.k / 256, &tokens),
                };
                for (t, sum) in sums.into_iter().enumerate() {
                    o.y.set(t, row, sum);
                }
            }
        }
    }
}

/// Prepares a token: codes in the weights' order, starts of the sums, scales.
///
/// # Safety
/// The processor has AVX-512 VNNI; token `t` exists and `to` has its bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn prepare(layout: &Layout, o: &Operands<'_>, t: usize, to: &mut [u8]) -> Token {
    let count = registers(layout);
    let (codes, rest) = to.split_at_mut(count * 64);
    let (starts, scales) = rest.split_at_mut(count * 64);
    let x = &o.x[t * layout.k..(t + 1) * layout.k];
    codes.fill(0);
    if layout.weights == Format::TQ2_0 {
        // Register l of a block holds the codes of bits 2l..2l+2: elements 32l.. and 128 + 32l...
        for (to, block) in codes.chunks_exact_mut(256).zip(x.chunks_exact(256)) {
            for (l, to) in to.chunks_exact_mut(64).enumerate() {
                to[..32].copy_from_slice(&block[32 * l..][..32]);
                to[32..].copy_from_slice(&block[128 + 32 * l..][..32]);
            }
        }
    } else {
        codes[..layout.k].copy_from_slice(x);
    }
    let (codes, starts): (*const __m512i, *mut __m512i) = (codes.as_ptr().cast(), starts.as_mut_ptr().cast());
    let factor = _mm512_set1_epi32(-layout.offset());
    for i in 0..count {
        // SAFETY: both planes have `count` registers.
        unsafe {
            let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes.add(i).read_unaligned());
            starts.add(i).write_unaligned(_mm512_mullo_epi32(sums, factor));
        }
    }
    if layout.span == 256 {
        // One sum runs through a block: its start is that of all four registers, kept in the first.
        for i in (0..count).step_by(4) {
            // SAFETY: a block of 256 has four registers.
            unsafe {
                let sum = (1..4).fold(starts.add(i).read_unaligned(), |sum, j| {
                    _mm512_add_epi32(sum, starts.add(i + j).read_unaligned())
                });
                starts.add(i).write_unaligned(sum);
            }
        }
    }
    let per_scale = if layout.span == 256 { 256 } else { 32 };
    let x_scales = &o.scales[t * (layout.k / layout.group)..];
    let scale_of = |i: usize| x_scales.get(i * per_scale / layout.group).filter(|_| i * per_scale < layout.k);
    for (i, to) in scales.chunks_exact_mut(4).enumerate() {
        // For spans within a ternary block: the scales in the order of the registers' halves.
        let i = match (layout.weights, per_scale) {
            (Format::TQ2_0, 32) => i / 8 * 8 + i % 2 * 4 + i % 8 / 2,
            _ => i,
        };
        to.copy_from_slice(&scale_of(i).copied().unwrap_or(0.0).to_ne_bytes());
    }
    Token { codes, starts, scales: scales.as_ptr().cast() }
}

/// The dot products of a row of `Q8_0` or `Q4_0` blocks with each token.
///
/// # Safety
/// The row has `blocks` blocks and the tokens are prepared for it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn blocks_of_32<const Q4: bool, const N: usize>(row: *const u8, blocks: usize, tokens: &[Token; N]) -> [f32; N] {
    let bytes = if Q4 { 18 } else { 34 };
    let mut acc = [[_mm512_setzero_ps(); 2]; N];
    let (mut at, mut row) = (0, row);
    while at + 16 <= blocks {
        // SAFETY: 16 blocks exist from `row` on, and their registers and scales in the tokens.
        unsafe {
            let scales = super::scales(|block| row.add(block * bytes).cast::<i16>().read_unaligned());
            let mut products = [scales; N];
            for t in 0..N {
                products[t] = _mm512_mul_ps(scales, _mm512_loadu_ps(tokens[t].scales.add(at)));
            }
            for pair in 0..8 {
                let codes = pair_codes::<Q4>(row.add(2 * pair * bytes));
                let lanes = pair_lanes(pair);
                for t in 0..N {
                    let register = at / 2 + pair;
                    let start = tokens[t].starts.add(register).read_unaligned();
                    let sum = _mm512_dpbusd_epi32(start, codes, tokens[t].codes.add(register).read_unaligned());
                    let scale = _mm512_permutexvar_ps(lanes, products[t]);
                    acc[t][pair % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[t][pair % 2]);
                }
            }
            row = row.add(16 * bytes);
        }
        at += 16;
    }
    // The rest one block at a time, in the lower half of a register.
    while at < blocks {
        // SAFETY: as above for one block; the upper half of its codes is zero.
        unsafe {
            let codes = _mm512_zextsi256_si512(block_codes::<Q4>(row));
            let scale = half::f16::from_bits(row.cast::<u16>().read_unaligned()).to_f32();
            for t in 0..N {
                let half =
                    |plane: *const __m512i| _mm512_zextsi256_si512(plane.cast::<__m256i>().add(at).read_unaligned());
                let sum = _mm512_dpbusd_epi32(half(tokens[t].starts), codes, half(tokens[t].codes));
                let scale = _mm512_set1_ps(scale * tokens[t].scales.add(at).read_unaligned());
                acc[t][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[t][0]);
            }
            row = row.add(bytes);
        }
        at += 1;
    }
    acc.map(|[a, b]| _mm512_reduce_add_ps(_mm512_add_ps(a, b)))
}

/// Lanes that spread the scales of block pair `pair` of 16 blocks: the first block's to lanes 0..8, the second's to 8..16.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_lanes(pair: usize) -> __m512i {
    let (a, b) = (2 * pair as i32, 2 * pair as i32 + 1);
    _mm512_set_epi32(b, b, b, b, b, b, b, b, a, a, a, a, a, a, a, a)
}

/// The unsigned codes of two blocks.
///
/// # Safety
/// Two blocks can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pair_codes<const Q4: bool>(blocks: *const u8) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe {
        if Q4 {
            let first = _mm512_castsi256_si512(_mm256_broadcastsi128_si256(_mm_loadu_si128(blocks.add(2).cast())));
            let second = _mm_loadu_si128(blocks.add(20).cast());
            let both = _mm512_mask_broadcast_i32x4(first, 0xff00, second);
            let shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
            _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15))
        } else {
            let first = _mm256_loadu_si256(blocks.add(2).cast());
            let both =
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), _mm256_loadu_si256(blocks.add(36).cast()));
            _mm512_xor_si512(both, _mm512_set1_epi8(-128))
        }
    }
}

/// The unsigned codes of one block.
///
/// # Safety
/// The block can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn block_codes<const Q4: bool>(block: *const u8) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe {
        if Q4 {
            let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(block.add(2).cast()));
            let shifts = _mm256_set_epi64x(4, 4, 0, 0);
            _mm256_and_si256(_mm256_srlv_epi64(both, shifts), _mm256_set1_epi8(15))
        } else {
            _mm256_xor_si256(_mm256_loadu_si256(block.add(2).cast()), _mm256_set1_epi8(-128))
        }
    }
}

/// The dot products of a row of `TQ2_0` blocks with each token: `WHOLE` when every block lies in one activation group, else scales
/// for every 32 elements.
///
/// # Safety
/// As [`blocks_of_32`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn ternary<const WHOLE: bool, const N: usize>(row: *const u8, blocks: usize, tokens: &[Token; N]) -> [f32; N] {
    let low = _mm512_set1_epi8(3);
    let mut acc = [_mm512_setzero_ps(); N];
    for block in 0..blocks {
        // SAFETY: the block exists in the row, and its four registers and scales in the tokens.
        unsafe {
            let at = row.add(66 * block);
            let bytes = _mm512_loadu_si512(at.cast());
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(at.add(64).cast::<i16>().read_unaligned()));
            let codes = [
                _mm512_and_si512(bytes, low),
                _mm512_and_si512(_mm512_srli_epi16::<2>(bytes), low),
                _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low),
                _mm512_and_si512(_mm512_srli_epi16::<6>(bytes), low),
            ];
            for t in 0..N {
                let token = &tokens[t];
                let mut sum = token.starts.add(4 * block).read_unaligned();
                let mut part = _mm512_setzero_ps();
                for l in 0..4 {
                    let x = token.codes.add(4 * block + l).read_unaligned();
                    if WHOLE {
                        sum = _mm512_dpbusd_epi32(sum, codes[l], x);
                    } else {
                        let start = token.starts.add(4 * block + l).read_unaligned();
                        let sum = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, codes[l], x));
                        let scales = token.scales.add(8 * block + 2 * l);
                        let (first, second) = (scales.read_unaligned(), scales.add(1).read_unaligned());
                        let scales = _mm512_mask_mov_ps(_mm512_set1_ps(first), 0xff00, _mm512_set1_ps(second));
                        part = _mm512_fmadd_ps(sum, scales, part);
                    }
                }
                if WHOLE {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(token.scales.add(block).read_unaligned()));
                    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[t]);
                } else {
                    acc[t] = _mm512_fmadd_ps(part, scale, acc[t]);
                }
            }
        }
    }
    acc.map(|acc| _mm512_reduce_add_ps(acc))
}
