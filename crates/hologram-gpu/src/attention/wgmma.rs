//! Attention of many tokens on the warpgroup matrix units of Hopper GPUs: `kernels/cuda/attention_wgmma.cu`. It reads
//! the paged cache of `f16` as it is.

use super::super::kernels::cuda::attention_wgmma::AttentionWgmma;
use super::super::launch::{Places, launch, number, single};
use super::super::{Memory, NativeKernel, Target, TensorMap};
use super::{Cache, Numbers, Operands, Sizes};

/// Rows of a workgroup: a token's query heads of one key/value head, token by token.
const ROWS: usize = 128;
/// Positions of a block that a copy brings: the rows of a tile of the copy engine.
const PAGE: usize = 32;
/// Tiles of keys, and of values, that lie in shared memory.
const STAGES: usize = 2;

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
        64 | 128 => 128,
        256 => 64,
        _ => return None,
    };
    let tokens_at_a_time = ROWS / (sizes.heads / sizes.kv_heads);
    // Queries, and the tiles; beside them barriers, and what aligns the first.
    let shared = (ROWS + 2 * STAGES * keys_at_a_time) * d * 2 + 1024 + 256;
    let served = target.is(90)
        && sizes.cache == Cache::F16
        && 1 << shift >= PAGE
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
            tile: vec![64, number(PAGE)?],
            swizzle: 128,
        })
    };
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
    };
    let grid = [sizes.kv_heads, tokens.max().div_ceil(tokens_at_a_time)];
    let launch = launch(args, format!("attention_wgmma_{d}"), grid, 384)?;
    Some(single(super::super::KernelLaunch { shared: number(shared)?, ..launch }))
}
