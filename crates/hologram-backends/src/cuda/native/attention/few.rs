//! Attention of few tokens: the grid is fixed when it is recorded, and workgroups beyond a token's actual positions end at once.

use super::super::launch::{launch, single};
use super::super::{Arg, NativeKernel, Target};
use super::Sizes;

/// The most parts that a token's positions are split in (`MAX_SPLITS` in `attention.h`).
const MAX_SPLITS: usize = 64;
/// The most tokens that may append rows which others of the step read.
pub(super) const MAX_APPEND: usize = 8;

// Bits of the argument `flags`.
const APPEND: u32 = 1;
const ADJACENT: u32 = 2;
const COMBINE: u32 = 4;

/// What a step appends to the cache before it attends.
pub(super) struct Fresh {
    pub k: Arg,
    pub v: Arg,
    pub slots: Arg,
    pub frequencies: Arg,
    /// Pairs that are rotated.
    pub pairs: usize,
    /// Whether a pair is elements 2i and 2i + 1.
    pub adjacent: bool,
}

/// The kernel for `operands` q, k cache, v cache, positions, sequences, block table.
pub(super) fn kernel(
    sizes: Sizes,
    operands: &[Arg; 6],
    fresh: Option<Fresh>,
    out: Arg,
    step: Arg,
    scale: f32,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, .. } = sizes;
    // The kernels for f16 on tensor cores, whose SIMD-groups' 16 positions lie in one block; else those for this number of elements, or 0 for any.
    let made_for = if d == 64 || d == 128 { d } else { 0 };
    let on_tensor_cores = sizes.f16 && made_for != 0 && sizes.shift >= 4 && target.capability >= 80;
    let (cache, made_for) = match (on_tensor_cores, sizes.f16) {
        (false, true) => ("half", 0),
        (_, f16) => (if f16 { "half" } else { "float" }, made_for),
    };
    let at_a_time = match heads / kv_heads {
        _ if on_tensor_cores => 8,
        1 => 1,
        5.. if made_for != 0 => 8,
        _ => 4,
    };
    let slices = (heads / kv_heads).div_ceil(at_a_time);
    let groups = tokens.max().checked_mul(kv_heads * slices)?;
    let multiprocessors = target.multiprocessors as usize;
    // SIMD-groups of a workgroup, and workgroups that a multiprocessor is to have: larger ones leave fewer parts to put together.
    let (simds, resident, tile) = match (on_tensor_cores, d) {
        (true, 128) if 2 * groups <= multiprocessors => (8, 1, 128),
        (true, _) => (4, 2, 64),
        _ => (8, 2, 32),
    };
    let (image, entry) = if on_tensor_cores {
        ("attention_few", format!("attention_few_{d}_{simds}"))
    } else {
        ("attention_decode", format!("attention_decode_{cache}_{made_for}_{at_a_time}"))
    };
    let capacity = sizes.columns << sizes.shift;
    let splits = (resident * multiprocessors / groups.max(1)).min(capacity.div_ceil(tile)).clamp(1, MAX_SPLITS);

    let parts = if splits > 1 { groups.checked_mul(splits * at_a_time)? } else { 0 };
    let sums = parts.checked_mul(d * 4)?.next_multiple_of(256);
    let scratch = sums.checked_add(parts.checked_mul(8)?).filter(|bytes| *bytes < 1 << 33)?;
    let counters = if splits > 1 { groups.checked_mul(4)? } else { 0 };
    let place = |argument: Arg| if splits > 1 { argument } else { Arg::Null };

    let [q, keys, values, positions, sequences, table] = operands.clone();
    let mut flags = COMBINE;
    let mut pairs = 0;
    let (mut k, mut v, mut slots, mut frequencies) = (Arg::Null, Arg::Null, Arg::Null, Arg::Null);
    if let Some(fresh) = fresh {
        flags |= APPEND | if fresh.adjacent { ADJACENT } else { 0 };
        pairs = fresh.pairs;
        (k, v, slots, frequencies) = (fresh.k, fresh.v, fresh.slots, fresh.frequencies);
    }
    let mut args = vec![q, k, v, positions, sequences, slots, table, frequencies, keys, values, out];
    args.extend([place(Arg::Scratch(0)), place(Arg::Scratch(sums)), place(Arg::Counters(0)), Arg::Fault, step]);
    args.extend(tokens.numbers());
    args.extend(Sizes::numbers([heads, kv_heads, d]));
    args.extend(Sizes::numbers([sizes.shift as usize, sizes.blocks, sizes.rows, sizes.columns, pairs]));
    args.extend([Arg::U32(flags), Arg::U32(splits as u32), Arg::F32(scale * std::f32::consts::LOG2_E)]);
    let mut launch = launch(image, entry, [splits, kv_heads], simds * 32, args)?;
    launch.grid[2] = u32::try_from(tokens.max().max(1) * slices).ok().filter(|z| *z <= 65_535)?;
    Some(NativeKernel { scratch, counters, ..single(launch) })
}
