//! Attention of many tokens on the matrix units of Apple GPUs: `metal/kernels/attention_prefill.metal`.

use super::super::launch::{Places, launch, single};
use super::super::{Arg, NativeKernel};
use super::{Cache, Sizes};

/// Rows of a workgroup: a token's query heads of one key/value head, token by token.
const ROWS: usize = 64;

/// The kernel for `operands` q, k cache, v cache, positions, sequences, block table, which computes in `f32`.
pub(super) fn kernel(
    sizes: Sizes,
    operands: &[Arg; 6],
    scales: &[Arg; 2],
    places: &Places,
    scale: f32,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, shift, .. } = sizes;
    let cache = match (sizes.cache, d) {
        (Cache::F32, 64 | 80 | 96 | 128) => "float",
        (Cache::F16, 64 | 80 | 96 | 128) => "half",
        (Cache::Eight, 64 | 96 | 128) => "eight",
        _ => return None,
    };
    let tokens_at_a_time = ROWS / (heads / kv_heads);
    if tokens_at_a_time == 0 {
        return None;
    }
    let [q, keys, values, positions, sequences, table] = operands.clone();
    let [key_scales, value_scales] = scales.clone();
    let mut args = vec![q, keys, values, key_scales, value_scales, positions, sequences, table, places.output(0)];
    args.extend([Arg::Fault, places.step()]);
    args.extend(tokens.numbers());
    args.extend(Sizes::numbers([heads, kv_heads, shift as usize, sizes.blocks, sizes.rows, sizes.columns]));
    args.extend([Arg::F32(scale * std::f32::consts::LOG2_E), Arg::U32(sizes.window.unwrap_or(u32::MAX))]);
    let grid = [kv_heads, tokens.max().div_ceil(tokens_at_a_time)];
    Some(single(launch("attention_prefill", format!("attention_prefill_{cache}_{d}"), grid, 256, args)?))
}
