//! Attention of many tokens on tensor cores, with operands rounded to `bf16`, or split into two `tf32` parts each. If
//! the cache's elements differ from the kernel's, a first launch converts the blocks that the step reads; the second
//! computes.

use super::super::kernels::cuda::attention_prefill::{AttentionPrefill, ConvertCache};
use super::super::launch::{Places, launch, number};
use super::super::{KernelLaunch, Memory, NativeKernel, Part, Target};
use super::{Cache, Numbers, Operands, Sizes};

/// Positions per iteration of a workgroup, in two tiles of keys and two of values.
const KEYS: usize = 64;
/// The most workgroups that share the conversion of a sequence's blocks of a key/value head.
const CONVERTERS: usize = 64;

/// The kernel for `operands`, computing with `bf16` or with the precision of `f32`.
pub(super) fn kernel(
    sizes: Sizes,
    operands: Operands,
    [ks, vs]: [Memory; 2],
    places: &Places,
    scale: f32,
    bf16: bool,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, shift, .. } = sizes;
    // As `ATTENTION_PREFILL` instantiates them: SIMD-groups of 16 rows each, and how many share the same rows.
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
    let Operands { q, keys, values, positions, sequences, table, firsts, sinks } = operands;
    let Numbers { heads: all_heads, kv_heads: key_heads, blocks, rows: sequence_count, columns, .. } = sizes.numbers();
    let tokens_at = places.counted(tokens);

    let (mut parts, mut scratch, mut cache) = (Vec::new(), 0, [keys, values]);
    if bf16 || sizes.cache != Cache::F32 {
        let bytes = (sizes.blocks * kv_heads * d).checked_mul(width << shift)?;
        scratch = bytes.checked_mul(2)?;
        cache = [Memory::Scratch(0), Memory::Scratch(bytes)];
        let args = ConvertCache {
            k: keys,
            v: values,
            ks,
            vs,
            positions,
            sequences,
            table,
            kc: cache[0],
            vc: cache[1],
            tokens: tokens_at,
            blocks,
            columns,
            kv_heads: key_heads,
            of_block: number(d.checked_mul(1 << shift)?)?,
            shift,
        };
        let entry = match (bf16, sizes.cache) {
            (true, Cache::F32) => "attention_round_f32",
            (true, Cache::F16) => "attention_round_f16",
            (true, Cache::Floats) => "attention_round_float_byte",
            (true, Cache::Eight) => "attention_round_eight",
            (true, Cache::Four) => "attention_round_four",
            (false, Cache::Floats) => "attention_widen_float_byte",
            (false, Cache::Eight) => "attention_widen_eight",
            (false, Cache::Four) => "attention_widen_four",
            (false, _) => "attention_widen_f16",
        };
        let [x, y] = [sizes.columns.min(CONVERTERS), sizes.rows];
        let convert = launch(args, entry, [x, y], 256)?;
        let z = u32::try_from(kv_heads).ok().filter(|z| *z <= 65_535)?;
        parts.push(Part::Kernel(KernelLaunch { grid: [convert.grid[0], convert.grid[1], z], ..convert }));
    }

    let extra = sizes.extra(tokens_at_a_time);
    let args = AttentionPrefill {
        q,
        keys: cache[0],
        values: cache[1],
        positions,
        sequences,
        table,
        out: places.output(0),
        tokens: tokens_at,
        heads: all_heads,
        kv_heads: key_heads,
        shift,
        blocks,
        rows: sequence_count,
        columns,
        scale: scale * std::f32::consts::LOG2_E,
        window: sizes.window.unwrap_or(u32::MAX),
        firsts: firsts.unwrap_or(Memory::Null),
        sinks: sinks.unwrap_or(Memory::Null),
        cap: sizes.cap,
        extra: number(extra)?,
    };
    let grid = [kv_heads, tokens.max().div_ceil(tokens_at_a_time) + extra];
    let attend = launch(args, format!("attention_prefill_{ty}_{d}"), grid, simds * sides * 32)?;
    parts.push(Part::Kernel(KernelLaunch { shared: number(shared)?, ..attend }));
    Some(NativeKernel { parts, scratch, counters: 0, phase: None })
}
