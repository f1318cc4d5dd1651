//! Many tokens: panels of 16 unpacked rows times tiles of packed tokens.

use std::arch::x86_64::*;
use std::ops::Range;

use hologram_device::DType;

use super::super::int::{Activations, Layout};
use super::super::{Rows, Tiles, prefetch_lines};
use super::unpack::unpacker;
use super::{first_lanes, scales, transpose, unpack_split};

/// Packs a tile of T tokens. For each span: T starts of sums, T scales, then for every four elements one 32-bit word
/// per token.
///
/// # Safety
/// The processor has AVX-512 VNNI; 1 to 16 tokens exist; `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub unsafe fn pack(layout: &Layout, x: &Activations<'_>, tokens: Range<usize>, to: *mut u8) {
    let (count, groups) = (tokens.len(), layout.k / layout.group);
    if count == 1 && layout.span.is_multiple_of(32) {
        // SAFETY: promised by the caller.
        return unsafe { pack_one(layout, x, tokens.start, to) };
    }
    let rows = Rows::new(x.codes[tokens.start * layout.k..].as_ptr(), layout.k, count);
    let mask = first_lanes(count);
    let mut to = to.cast::<i32>();
    for s in 0..layout.spans() {
        let start = to;
        // SAFETY: the span's record of `count * (2 + span / 4)` words lies in the tile; the span's codes lie in the
        // rows.
        unsafe {
            to = to.add(2 * count);
            let mut sum = _mm512_setzero_si512();
            for at in (0..layout.span).step_by(16) {
                for words in transpose::<false>(rows, s * layout.span + at) {
                    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), words);
                    _mm512_mask_storeu_epi32(to, mask, words);
                    to = to.add(count);
                }
            }
            let sum = if layout.minimums {
                _mm512_castps_si512(_mm512_cvtepi32_ps(sum))
            } else {
                _mm512_mullo_epi32(sum, _mm512_set1_epi32(-layout.offset))
            };
            _mm512_mask_storeu_epi32(start, mask, sum);
            let (_, group) = layout.block_and_group(s);
            for t in 0..count {
                start.add(count + t).cast::<f32>().write_unaligned(x.scales[(tokens.start + t) * groups + group]);
            }
        }
    }
}

/// [`pack`] for one token, whose codes stay in order.
///
/// # Safety
/// As [`pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn pack_one(layout: &Layout, x: &Activations<'_>, token: usize, to: *mut u8) {
    let codes = &x.codes[token * layout.k..(token + 1) * layout.k];
    let scales = &x.scales[token * (layout.k / layout.group)..];
    let mut to = to;
    for (s, span) in codes.chunks_exact(layout.span).enumerate() {
        let (_, group) = layout.block_and_group(s);
        let mut sums = _mm256_setzero_si256();
        // SAFETY: the record of `8 + span` bytes lies in the tile.
        unsafe {
            for (i, codes) in span.chunks_exact(32).enumerate() {
                let codes = _mm256_loadu_si256(codes.as_ptr().cast());
                sums = _mm256_dpbusd_epi32(sums, _mm256_set1_epi8(1), codes);
                _mm256_storeu_si256(to.add(8 + 32 * i).cast(), codes);
            }
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let sums = _mm_hadd_epi32(sums, sums);
            let sum = _mm_cvtsi128_si32(_mm_hadd_epi32(sums, sums));
            let start = if layout.minimums { (sum as f32).to_bits() as i32 } else { -layout.offset * sum };
            to.cast::<i32>().write_unaligned(start);
            to.add(4).cast::<f32>().write_unaligned(scales[group]);
            to = to.add(8 + layout.span);
        }
    }
}

/// Unpacks a panel of 16 rows, of which `count` exist; missing rows repeat the last.
///
/// # Safety
/// The processor has AVX-512; the rows exist; `to` has room for a panel.
pub unsafe fn unpack(layout: &Layout, first: *const u8, row_bytes: usize, count: usize, to: *mut u8) {
    let rows = Rows::new(first, row_bytes, count);
    // SAFETY: promised by the caller.
    unsafe {
        if layout.weights == DType::TQ2_0 {
            tq2_0(layout, rows, to);
        } else if let Some(unpack) = unpacker(layout.weights).or_else(|| unpack_split::unpacker(layout.weights)) {
            unpack(layout, rows, to);
        }
    }
}

/// Unpacks `TQ2_0`, whose spans may be shorter than its runs.
///
/// # Safety
/// As [`unpack`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn tq2_0(layout: &Layout, rows: Rows, to: *mut u8) {
    let (span, bytes) = (layout.span, layout.weights.block_bytes());
    let (span_bytes, low) = ((span + 4) * 16, _mm512_set1_epi8(3));
    for block in 0..layout.k / 256 {
        let (at, to) = (block * bytes, to.wrapping_add(block * 256 / span * span_bytes));
        prefetch_lines(rows.at::<true>(16, 16 * at), 16 * bytes);
        // Step `i` holds elements 4i..4i + 4 of the block.
        let place =
            |step: usize| to.wrapping_add(step * 4 / span * span_bytes + step * 4 % span * 16).cast::<__m512i>();
        // SAFETY: every row has this block; its unpacked form fits the panel.
        unsafe {
            for quarter in 0..4 {
                for (j, words) in transpose::<false>(rows, at + 16 * quarter).into_iter().enumerate() {
                    let word = 4 * quarter + j;
                    let step = 32 * (word / 8) + word % 8;
                    place(step).write_unaligned(_mm512_and_si512(words, low));
                    place(step + 8).write_unaligned(_mm512_and_si512(_mm512_srli_epi16::<2>(words), low));
                    place(step + 16).write_unaligned(_mm512_and_si512(_mm512_srli_epi16::<4>(words), low));
                    place(step + 24).write_unaligned(_mm512_and_si512(_mm512_srli_epi16::<6>(words), low));
                }
            }
            let scales = scales::<false>(rows, at + 64);
            for s in 0..256 / span {
                to.add(s * span_bytes + span * 16).cast::<__m512>().write_unaligned(scales);
            }
        }
    }
}

/// Multiplies one panel, or two panels `panel_stride` bytes from each other, with a tile of `tokens` tokens. Stores
/// `count` rows, more than 16 for two panels.
///
/// # Safety
/// The processor has AVX-512 VNNI; panels and tile are packed for this layout; the output can be written.
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply(
    tokens: usize,
    layout: &Layout,
    panel: *const u8,
    panel_stride: usize,
    tile: *const u8,
    y: *mut f32,
    stride: usize,
    count: usize,
) {
    type Tile = unsafe fn(&Product, usize, u16);
    macro_rules! table {
        ($panels:literal, $minimums:literal, $longer:literal: $($tokens:literal)*) => {
            [$(multiply_tile::<$tokens, $panels, $minimums, $longer>),*]
        };
    }
    // Registers hold the sums of up to 12 tokens, or, with two panels, of half as many. Groups that are longer than
    // spans need sums of their own.
    const ONE: [[Tile; 12]; 2] =
        [table!(1, false, false: 1 2 3 4 5 6 7 8 9 10 11 12), table!(1, true, false: 1 2 3 4 5 6 7 8 9 10 11 12)];
    const TWO: [[Tile; 6]; 2] = [table!(2, false, false: 1 2 3 4 5 6), table!(2, true, false: 1 2 3 4 5 6)];
    const ONE_LONGER: [[Tile; 8]; 2] =
        [table!(1, false, true: 1 2 3 4 5 6 7 8), table!(1, true, true: 1 2 3 4 5 6 7 8)];
    const TWO_LONGER: [[Tile; 4]; 2] = [table!(2, false, true: 1 2 3 4), table!(2, true, true: 1 2 3 4)];
    let (minimums, steps) = (usize::from(layout.minimums), layout.span / 4);
    let spans = (layout.spans(), layout.group / layout.span);
    let product = Product { spans, steps, panel, panel_stride, tile, tokens, y, stride };
    let kernels: &[Tile] = match (count <= 16, layout.group > layout.span) {
        (true, false) => &ONE[minimums],
        (true, true) => &ONE_LONGER[minimums],
        (false, false) => &TWO[minimums],
        (false, true) => &TWO_LONGER[minimums],
    };
    let (parts, rows) = (Tiles::new(tokens, kernels.len()), if count <= 16 { count } else { count - 16 });
    for tokens in (0..parts.count).map(|part| parts.tile(part)) {
        // SAFETY: promised by the caller.
        unsafe { kernels[tokens.len() - 1](&product, tokens.start, first_lanes(rows)) };
    }
}

/// Panels, a tile of `tokens` tokens, and the output.
struct Product {
    /// Spans of a row, and of a group.
    spans: (usize, usize),
    /// Words of a token in a span.
    steps: usize,
    panel: *const u8,
    panel_stride: usize,
    tile: *const u8,
    tokens: usize,
    y: *mut f32,
    stride: usize,
}

/// Multiplies `T` tokens of a tile, starting at its token `first`, with `P` panels; `mask` has the rows of the last
/// panel. `LONGER`: a group has several spans, so that a token's scale is applied once for all of them.
///
/// # Safety
/// As [`multiply`]; the tile has these tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply_tile<const T: usize, const P: usize, const MINIMUMS: bool, const LONGER: bool>(
    product: &Product,
    first: usize,
    mask: u16,
) {
    let Product { spans: (spans, of_group), steps, panel, panel_stride, tile, tokens, y, stride } = *product;
    let mut acc = [[_mm512_setzero_ps(); P]; T];
    // Of the spans of a group.
    let mut part = [[_mm512_setzero_ps(); P]; T];
    let mut left = of_group;
    let (mut w, mut x) = (panel, tile.cast::<i32>().wrapping_add(first));
    for _ in 0..spans {
        // SAFETY: each span of the tile has a start, a scale and a word per step for every token; each span of a panel
        // has a register per step and one of scales.
        unsafe {
            let (x_sums, x_scales) = (x.cast::<f32>(), x.add(tokens).cast::<f32>());
            let mut sum = [[_mm512_setzero_si512(); P]; T];
            if !MINIMUMS {
                for t in 0..T {
                    sum[t] = [_mm512_set1_epi32(x.add(t).read_unaligned()); P];
                }
            }
            x = x.add(2 * tokens);
            for _ in 0..steps {
                let mut codes = [_mm512_setzero_si512(); P];
                for p in 0..P {
                    codes[p] = _mm512_loadu_si512(w.add(p * panel_stride).cast());
                }
                w = w.add(64);
                for t in 0..T {
                    let x = _mm512_set1_epi32(x.add(t).read_unaligned());
                    for p in 0..P {
                        sum[t][p] = _mm512_dpbusd_epi32(sum[t][p], codes[p], x);
                    }
                }
                x = x.add(tokens);
            }
            for p in 0..P {
                let scale = _mm512_loadu_ps(w.add(p * panel_stride).cast());
                for t in 0..T {
                    let sum = _mm512_cvtepi32_ps(sum[t][p]);
                    let mut scaled =
                        if LONGER { _mm512_fmadd_ps(sum, scale, part[t][p]) } else { _mm512_mul_ps(sum, scale) };
                    if MINIMUMS {
                        let minimum = _mm512_loadu_ps(w.add(p * panel_stride + 64).cast());
                        scaled = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x_sums.add(t).read_unaligned()), scaled);
                    }
                    part[t][p] = scaled;
                }
            }
            left -= 1;
            if !LONGER || left == 0 {
                for t in 0..T {
                    let x_scale = _mm512_set1_ps(x_scales.add(t).read_unaligned());
                    for p in 0..P {
                        acc[t][p] = _mm512_fmadd_ps(part[t][p], x_scale, acc[t][p]);
                        part[t][p] = _mm512_setzero_ps();
                    }
                }
                left = of_group;
            }
            w = w.add(if MINIMUMS { 128 } else { 64 });
        }
    }
    for (t, acc) in acc.into_iter().enumerate() {
        for (p, acc) in acc.into_iter().enumerate() {
            let mask = if p + 1 == P { mask } else { u16::MAX };
            // SAFETY: the rows of the mask and the tokens lie in the output.
            unsafe { _mm512_mask_storeu_ps(y.add((first + t) * stride + 16 * p), mask, acc) };
        }
    }
}
