//! Attention of many tokens on the matrix units of Apple GPUs: `kernels/metal/attention_prefill.metal`.

use super::super::kernels::metal::attention_prefill::{AttentionPrefill, FIRSTS, ROWS as TEXT_ROWS, SINKS, THREADS};
use super::super::launch::{Places, launch, single};
use super::super::{Memory, NativeKernel};
use super::{Cache, Numbers, Operands, Sizes};

/// Rows of a workgroup: a token's query heads of one key/value head, token by token.
const ROWS: usize = TEXT_ROWS as usize;

/// The kernel for `operands`, computing in `f32`.
pub(super) fn kernel(
    sizes: Sizes,
    operands: Operands,
    [key_scales, value_scales]: [Memory; 2],
    places: &Places,
    scale: f32,
) -> Option<NativeKernel> {
    let Sizes { tokens, d, shift, .. } = sizes;
    let cache = match (sizes.cache, d) {
        (Cache::F32, 64 | 80 | 96 | 128) => "float",
        (Cache::F16, 64 | 80 | 96 | 128) => "half",
        (Cache::Floats, 64 | 96 | 128) => "float_byte",
        (Cache::Eight, 64 | 96 | 128) => "eight",
        (Cache::Four, 64 | 96 | 128) => "four_bits",
        _ => return None,
    };
    let tokens_at_a_time = ROWS / (sizes.heads / sizes.kv_heads);
    if tokens_at_a_time == 0 {
        return None;
    }
    let Operands { q, keys, values, positions, sequences, table, firsts, sinks } = operands;
    let Numbers { heads, kv_heads, blocks, rows, columns, .. } = sizes.numbers();
    let args = AttentionPrefill {
        q,
        keys,
        values,
        key_scales,
        value_scales,
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
        flags: if firsts.is_some() { FIRSTS } else { 0 } | if sinks.is_some() { SINKS } else { 0 },
        cap: sizes.cap,
    };
    let grid = [sizes.kv_heads, tokens.max().div_ceil(tokens_at_a_time)];
    Some(single(launch(args, format!("attention_prefill_{cache}_{d}"), grid, THREADS as usize)?))
}
