//! Attention of heads of 512 and 576 elements, as latent vectors have them, over a cache of `f16` on tensor cores:
//! `kernels/cuda/attention_wide.cu`.

use super::super::kernels::cuda::attention_wide::{
    AttentionWide, AttentionWideJoin, FEW_ROWS, MANY_ROWS, MOST_SPLITS, PAD, SCORE_LINE, THREADS, TILE, WEIGHT_LINE,
};
use super::super::launch::{Places, launch, number};
use super::super::{KernelLaunch, Memory, NativeKernel, Part, Target};
use super::{Cache, Numbers, Operands, Sizes};

/// The most elements of a head.
pub(super) const WIDEST: usize = 576;

/// The kernel for `operands`: for few tokens, or with the precision of `f32`, a token's positions split over
/// workgroups; for many tokens 64 rows of tokens and heads a workgroup.
pub(super) fn kernel(
    sizes: Sizes,
    operands: Operands,
    places: &Places,
    scale: f32,
    few: bool,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, d, shift, .. } = sizes;
    if sizes.cache != Cache::F16 || !matches!(d, 512 | WIDEST) || !target.has(80) {
        return None;
    }
    let [rows, tile, most_splits, pad, score_line, weight_line] =
        [if few { FEW_ROWS } else { MANY_ROWS }, TILE, MOST_SPLITS, PAD, SCORE_LINE, WEIGHT_LINE].map(|n| n as usize);
    // High and low parts of queries and weights, and scores by half of the elements.
    let (parts, halves) = if few { (2, 2) } else { (1, 1) };
    let lines = (parts * rows + 2 * tile) * (d + pad) + parts * rows * weight_line;
    let shared = lines * 2 + halves * rows * score_line * 4;
    if shared + 4096 > target.max_shared as usize {
        return None;
    }
    let heads_at_a_time = (sizes.heads / sizes.kv_heads).min(rows);
    let slices = sizes.kv_heads * (sizes.heads / sizes.kv_heads).div_ceil(heads_at_a_time);
    let groups = tokens.max().max(1).checked_mul(slices)?;
    let seen = sizes.window.map_or(usize::MAX, |n| n as usize + tile);
    let capacity = seen.min(sizes.columns << shift).div_ceil(tile);
    let splits = match few {
        true => (target.multiprocessors as usize / groups).min(capacity).clamp(1, most_splits),
        false => 1,
    };
    let of_parts = if splits > 1 { groups.checked_mul(splits * FEW_ROWS as usize)? } else { 0 };
    let sums = of_parts.checked_mul(d * 4)?;
    let scratch = sums.checked_add(of_parts * 8).filter(|bytes| *bytes < 1 << 33)?;
    let [partial, stats] = [0, sums].map(|at| if splits > 1 { Memory::Scratch(at) } else { Memory::Null });

    let Operands { q, keys, values, positions, sequences, table, firsts, sinks } = operands;
    let Numbers { heads, kv_heads, d: elements, blocks, rows: sequence_count, columns } = sizes.numbers();
    let (firsts, window) = (firsts.unwrap_or(Memory::Null), sizes.window.unwrap_or(u32::MAX));
    let (counted, out) = (places.counted(tokens), places.output(0));
    let args = AttentionWide {
        q,
        keys,
        values,
        positions,
        sequences,
        table,
        out,
        partial,
        stats,
        tokens: counted,
        heads,
        kv_heads,
        shift,
        blocks,
        rows: sequence_count,
        columns,
        splits: splits as u32,
        scale: scale * std::f32::consts::LOG2_E,
        window,
        firsts,
        sinks: sinks.unwrap_or(Memory::Null),
        cap: sizes.cap,
    };
    let (entry, grid) = match few {
        true => (format!("attention_wide_few_{d}"), [splits, slices]),
        false => (format!("attention_wide_many_{d}"), [slices, tokens.max().div_ceil(rows / heads_at_a_time)]),
    };
    let attend = launch(args, entry, grid, THREADS as usize)?;
    let z = if few { u32::try_from(tokens.max().max(1)).ok().filter(|z| *z <= 65_535)? } else { 1 };
    let grid = [attend.grid[0], attend.grid[1], z];
    let mut parts = vec![Part::Kernel(KernelLaunch { grid, shared: number(shared)?, ..attend })];
    if splits > 1 {
        let args = AttentionWideJoin {
            partial,
            stats,
            positions,
            sequences,
            out,
            tokens: counted,
            heads,
            kv_heads,
            d: elements,
            shift,
            rows: sequence_count,
            columns,
            splits: splits as u32,
            window,
            firsts,
        };
        parts.push(Part::Kernel(launch(args, "attention_wide_join", [sizes.heads, tokens.max()], d)?));
    }
    Some(NativeKernel { parts, scratch, counters: 0, phase: None })
}
