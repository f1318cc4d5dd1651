//! Attention of many tokens on tensor cores, with operands rounded to `bf16` or each in two parts of `tf32`. Where the cache has other
//! elements than the kernel, a first part converts the blocks that the step reads; the second computes.

use super::super::launch::{Places, launch};
use super::super::{Arg, NativeKernel, Part, Target};
use super::{Cache, Sizes};

/// Positions that a workgroup goes over at a time, in two tiles of keys and two of values.
const KEYS: usize = 64;
/// The most workgroups that share a sequence's blocks of a key/value head when these are converted.
const CONVERTERS: usize = 64;

/// The kernel for `operands` q, k cache, v cache, positions, sequences, block table, which computes with `bf16` or as precisely as `f32`.
pub(super) fn kernel(
    sizes: Sizes,
    operands: &[Arg; 6],
    scales: &[Arg; 2],
    places: &Places,
    scale: f32,
    bf16: bool,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, shift, .. } = sizes;
    // As `ATTENTION_PREFILL` instantiates them: SIMD-groups of 16 rows each, how many share the same rows.
    let (simds, sides) = match (d, bf16) {
        (64 | 96 | 128, true) => (8, 1),
        (80 | 256, true) => (4, 1),
        (64 | 80 | 96 | 128, false) => (4, 2),
        _ => return None,
    };
    let (ty, width) = if bf16 { ("bf16", 2) } else { ("f32", 4) };
    // Rows are a token's heads of one key/value head, token by token.
    let (rows, of_kv) = (simds * 16, heads / kv_heads);
    let tokens_at_a_time = rows / of_kv;
    let shared = (rows + 4 * KEYS) * (d * width + 16);
    if !target.has(80) || tokens_at_a_time == 0 || shared > target.max_shared as usize {
        return None;
    }
    let [q, keys, values, positions, sequences, table] = operands.clone();
    let [slot, most, per] = tokens.numbers();
    let count = [places.step(), slot, most, per];

    let (mut parts, mut scratch, mut cache) = (Vec::new(), 0, [keys, values]);
    if bf16 || sizes.cache != Cache::F32 {
        let bytes = (sizes.blocks * kv_heads * d).checked_mul(width << shift)?;
        scratch = bytes.checked_mul(2)?;
        let converted = [Arg::Scratch(0), Arg::Scratch(bytes)];
        let mut args = cache.to_vec();
        args.extend(scales.clone());
        args.extend([positions.clone(), sequences.clone(), table.clone()]);
        args.extend(converted.clone());
        args.extend(count.clone());
        args.extend(Sizes::numbers([sizes.blocks, sizes.columns, kv_heads, d << shift, shift as usize]));
        args.push(Arg::Fault);
        let entry = match (bf16, sizes.cache) {
            (true, Cache::F32) => "attention_round_f32",
            (true, Cache::F16) => "attention_round_f16",
            (true, Cache::Eight) => "attention_round_eight",
            (false, Cache::Eight) => "attention_widen_eight",
            (false, _) => "attention_widen_f16",
        };
        let grid = [sizes.columns.min(CONVERTERS), sizes.rows];
        let mut convert = launch("attention_prefill", entry.into(), grid, 256, args)?;
        convert.grid[2] = u32::try_from(kv_heads).ok().filter(|z| *z <= 65_535)?;
        parts.push(Part::Kernel(convert));
        cache = converted;
    }

    let [keys, values] = cache;
    let mut args = vec![q, keys, values, positions, sequences, table, places.output(0)];
    args.extend(count);
    args.extend(Sizes::numbers([heads, kv_heads, shift as usize, sizes.blocks, sizes.rows, sizes.columns]));
    let window = Arg::U32(sizes.window.unwrap_or(u32::MAX));
    args.extend([Arg::F32(scale * std::f32::consts::LOG2_E), window, Arg::Fault]);
    let grid = [kv_heads, tokens.max().div_ceil(tokens_at_a_time)];
    let entry = format!("attention_prefill_{ty}_{d}");
    let mut attend = launch("attention_prefill", entry, grid, simds * sides * 32, args)?;
    attend.shared = u32::try_from(shared).ok()?;
    parts.push(Part::Kernel(attend));
    Some(NativeKernel { parts, scratch, counters: 0 })
}
