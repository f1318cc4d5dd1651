//! Attention of many tokens on the warpgroup matrix units of Hopper GPUs: `kernels/cuda/attention_wgmma.cu`. It reads
//! the paged cache of `f16` as it is.

use super::super::kernels::cuda::attention_wgmma::{
    AttentionWgmma, KEYS_LONG, KEYS_SHORT, PAGE, ROWS, STAGES, THREADS,
};
use super::super::launch::{Places, launch, number, single};
use super::super::{Memory, NativeKernel, Target, TensorMap};
use super::{Cache, Numbers, Operands, Sizes};

/// The kernel for `operands`, whose products round to `f16`.
pub(super) fn kernel(
    sizes: Sizes,
    operands: Operands,
    places: &Places,
    scale: f32,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, d, shift, .. } = sizes;
    // Positions of a tile, as `ATTENTION_WGMMA` instantiates the kernels.
    let keys_at_a_time = match d {
        64 | 128 => KEYS_SHORT,
        256 => KEYS_LONG,
        _ => return None,
    };
    // A row is a query head of a token.
    let [rows, keys_at_a_time, page] = [ROWS, keys_at_a_time, PAGE].map(|n| n as usize);
    let tokens_at_a_time = rows / (sizes.heads / sizes.kv_heads);
    // Queries, and the tiles; beside them barriers, and what aligns the first.
    let shared = (rows + 2 * STAGES as usize * keys_at_a_time) * d * 2 + 1024 + 256;
    let served = target.is(90)
        && sizes.cache == Cache::F16
        && 1 << shift >= page
        && tokens_at_a_time > 0
        && shared <= target.max_shared as usize;
    if !served {
        return None;
    }
    let Operands { q, keys, values, positions, sequences, table, firsts, sinks } = operands;
    let Numbers { heads, kv_heads, blocks, rows, columns, .. } = sizes.numbers();
    let map = |memory| {
        Some(TensorMap {
            memory,
            element: 2,
            dims: vec![d as u64, ((sizes.blocks * sizes.kv_heads) << shift) as u64],
            strides: vec![2 * d as u64],
            tile: vec![64, PAGE],
            swizzle: 128,
        })
    };
    let extra = sizes.extra(tokens_at_a_time);
    let args = AttentionWgmma {
        keys: map(keys)?,
        values: map(values)?,
        q,
        positions,
        sequences,
        table,
        out: places.output(0),
        tokens: places.counted(tokens),
        heads,
        kv_heads,
        shift,
        blocks,
        rows,
        columns,
        scale: scale * std::f32::consts::LOG2_E,
        window: sizes.window.unwrap_or(u32::MAX),
        firsts: firsts.unwrap_or(Memory::Null),
        sinks: sinks.unwrap_or(Memory::Null),
        cap: sizes.cap,
        extra: number(extra)?,
    };
    let grid = [sizes.kv_heads, tokens.max().div_ceil(tokens_at_a_time) + extra];
    let launch = launch(args, format!("attention_wgmma_{d}"), grid, THREADS as usize)?;
    Some(single(super::super::KernelLaunch { shared: number(shared)?, ..launch }))
}
