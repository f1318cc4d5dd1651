//! Attention of few tokens: the grid is fixed when it is recorded, and workgroups beyond a token's actual positions end at once.

use super::super::launch::{launch, single};
use super::super::{Arg, NativeKernel, Part, Target};
use super::{Cache, Sizes};

/// The most parts that a token's positions are split in (`MAX_SPLITS` in `attention.h`).
const MAX_SPLITS: usize = 64;
/// The most tokens that may append rows which others of the step read.
pub(super) const MAX_APPEND: usize = 8;

// Bits of the argument `flags`.
const APPEND: u32 = 1;
const ADJACENT: u32 = 2;
const COMBINE: u32 = 4;
/// Above them: how many positions a token sees; 0 for all up to its own.
const WINDOW: u32 = 3;

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

/// What a kernel takes beside the operands.
pub(super) enum More {
    /// What is appended to a cache of floats.
    Fresh(Fresh),
    /// The scales of keys and values in 8 bits; null for others.
    Scales([Arg; 2]),
}

/// The kernel for `operands` q, k cache, v cache, positions, sequences, block table.
pub(super) fn kernel(
    sizes: Sizes,
    operands: &[Arg; 6],
    more: More,
    out: Arg,
    step: Arg,
    scale: f32,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, .. } = sizes;
    // The kernels for f16 on tensor cores, whose SIMD-groups' 16 positions lie in one block; else those for this number of elements, or 0 for any.
    let made_for = if d == 64 || d == 128 { d } else { 0 };
    let on_tensor_cores = sizes.cache == Cache::F16 && made_for != 0 && sizes.shift >= 4 && target.has(80);
    let apple = target.is_apple();
    let (cache, made_for) = match sizes.cache {
        Cache::F32 => ("float", made_for),
        Cache::F16 => ("half", if on_tensor_cores || apple { made_for } else { 0 }),
        Cache::Eight => ("eight", made_for),
    };
    let at_a_time = match heads / kv_heads {
        _ if on_tensor_cores => 8,
        _ if sizes.cache == Cache::Eight => 4,
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
    // A window may begin and end within a tile.
    let seen = sizes.window.map_or(usize::MAX, |n| n as usize + tile);
    let capacity = seen.min(sizes.columns << sizes.shift);
    let most = (resident * multiprocessors / groups.max(1)).min(capacity.div_ceil(tile));
    let splits = most.clamp(1, MAX_SPLITS);

    let parts = if splits > 1 { groups.checked_mul(splits * at_a_time)? } else { 0 };
    let sums = parts.checked_mul(d * 4)?.next_multiple_of(256);
    let scratch = sums.checked_add(parts.checked_mul(8)?).filter(|bytes| *bytes < 1 << 33)?;
    let counters = if splits > 1 { groups.checked_mul(4)? } else { 0 };
    let place = |argument: Arg| if splits > 1 { argument } else { Arg::Null };

    // Apple GPUs have no order of memory between the workgroups of a launch, by which the last one could put the parts together.
    let join = if apple && splits > 1 {
        let mut args = vec![Arg::Scratch(0), Arg::Scratch(sums), operands[3].clone(), out.clone(), step.clone()];
        args.extend(tokens.numbers());
        args.extend(Sizes::numbers([heads, kv_heads, d, splits, tile_of(sizes.cache, made_for)]));
        args.push(Arg::U32(sizes.window.unwrap_or(0)));
        let grid = [kv_heads, tokens.max().max(1) * slices];
        Some(launch(image, format!("attention_join_{at_a_time}"), grid, 256, args)?)
    } else {
        None
    };

    let [q, keys, values, positions, sequences, table] = operands.clone();
    let mut flags = COMBINE | sizes.window.unwrap_or(0) << WINDOW;
    let mut pairs = 0;
    let (mut k, mut v, mut slots, mut frequencies) = (Arg::Null, Arg::Null, Arg::Null, Arg::Null);
    let mut scales = [Arg::Null, Arg::Null];
    match more {
        More::Scales(of) => scales = of,
        More::Fresh(fresh) => {
            flags |= APPEND | if fresh.adjacent { ADJACENT } else { 0 };
            pairs = fresh.pairs;
            (k, v, slots, frequencies) = (fresh.k, fresh.v, fresh.slots, fresh.frequencies);
        }
    }
    let scale = Arg::F32(scale * std::f32::consts::LOG2_E);
    let partial = [place(Arg::Scratch(0)), place(Arg::Scratch(sums)), place(Arg::Counters(0)), Arg::Fault, step];
    let cached = Sizes::numbers([sizes.shift as usize, sizes.blocks, sizes.rows, sizes.columns]);
    let mut args = match sizes.cache {
        Cache::Eight => {
            let [key_scales, value_scales] = scales;
            vec![q, keys, values, key_scales, value_scales, positions, sequences, table, out]
        }
        _ => vec![q, k, v, positions, sequences, slots, table, frequencies, keys, values, out],
    };
    args.extend(partial);
    args.extend(tokens.numbers());
    args.extend(Sizes::numbers([heads, kv_heads, d]));
    args.extend(cached);
    if sizes.cache != Cache::Eight {
        args.extend(Sizes::numbers([pairs]));
    }
    args.extend([Arg::U32(flags), Arg::U32(splits as u32), scale]);
    let mut launch = launch(image, entry, [splits, kv_heads], simds * 32, args)?;
    launch.grid[2] = u32::try_from(tokens.max().max(1) * slices).ok().filter(|z| *z <= 65_535)?;
    let mut kernel = NativeKernel { scratch, counters, ..single(launch) };
    kernel.parts.extend(join.map(Part::Kernel));
    Some(kernel)
}

/// The positions that a workgroup of `attention_decode` takes at a time, made for heads of this many elements, or 0 for any.
fn tile_of(cache: Cache, made_for: usize) -> usize {
    let floats = match made_for {
        64 => 64,
        128 => 32,
        _ => 16,
    };
    if cache == Cache::F32 { floats } else { 2 * floats }
}
