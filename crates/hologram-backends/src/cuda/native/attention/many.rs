//! Attention of many tokens on tensor cores, with operands rounded to `bf16`: the first part rounds the blocks of the cache that the step
//! reads, the second computes.

use super::super::launch::{Places, launch};
use super::super::{Arg, NativeKernel, Part, Target};
use super::Sizes;

/// Positions that a workgroup goes over at a time, in two tiles of keys and two of values.
const KEYS: usize = 64;
/// The most workgroups that share a sequence's blocks of a key/value head when these are rounded.
const ROUNDERS: usize = 64;

/// The kernel for `operands` q, k cache, v cache, positions, sequences, block table.
pub(super) fn kernel(
    sizes: Sizes,
    operands: &[Arg; 6],
    places: &Places,
    scale: f32,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, shift, .. } = sizes;
    // As `ATTENTION_PREFILL` instantiates them: SIMD-groups, of 16 rows each.
    let simds = match d {
        64 | 96 | 128 => 8,
        80 | 256 => 4,
        _ => return None,
    };
    // Rows are a token's heads of one key/value head, token by token.
    let (rows, of_kv) = (simds * 16, heads / kv_heads);
    let tokens_at_a_time = rows / of_kv;
    let shared = (rows + 4 * KEYS) * (d + 8) * 2;
    if target.capability < 80 || tokens_at_a_time == 0 || shared > target.max_shared as usize {
        return None;
    }
    let elements = (sizes.blocks * kv_heads * d).checked_mul(1 << shift)?;
    let half = elements.checked_mul(2)?;
    let (rounded_keys, rounded_values) = (Arg::Scratch(0), Arg::Scratch(half));
    let [q, keys, values, positions, sequences, table] = operands.clone();
    let [slot, most, _] = tokens.numbers();
    let count = [places.step(), slot, most];

    let mut args = vec![keys, values, positions.clone(), sequences.clone(), table.clone()];
    args.extend([rounded_keys.clone(), rounded_values.clone()]);
    args.extend(count.clone());
    args.extend(Sizes::numbers([sizes.blocks, sizes.columns, kv_heads, d << shift, shift as usize]));
    args.push(Arg::Fault);
    let entry = if sizes.f16 { "attention_round_f16" } else { "attention_round_f32" };
    let mut round = launch("attention_prefill", entry.into(), [sizes.columns.min(ROUNDERS), sizes.rows], 256, args)?;
    round.grid[2] = u32::try_from(kv_heads).ok().filter(|z| *z <= 65_535)?;

    let mut args = vec![q, rounded_keys, rounded_values, positions, sequences, table, places.output(0)];
    args.extend(count);
    args.extend(Sizes::numbers([heads, kv_heads, shift as usize, sizes.blocks, sizes.rows, sizes.columns]));
    args.extend([Arg::F32(scale * std::f32::consts::LOG2_E), Arg::Fault]);
    let grid = [kv_heads, tokens.max().div_ceil(tokens_at_a_time)];
    let mut attend = launch("attention_prefill", format!("attention_prefill_{d}"), grid, simds * 32, args)?;
    attend.shared = u32::try_from(shared).ok()?;
    Some(NativeKernel { parts: vec![Part::Kernel(round), Part::Kernel(attend)], scratch: 2 * half, counters: 0 })
}
