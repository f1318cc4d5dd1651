//! Attention of few tokens. The grid is fixed at recording; workgroups beyond a token's actual positions exit at once.

use std::sync::Arc;

use super::super::kernels::attention::{
    ATTENTION_ADJACENT, ATTENTION_APPEND, ATTENTION_COMBINE, ATTENTION_FIRSTS, ATTENTION_PAIRS, ATTENTION_SINKS,
    ATTENTION_WINDOW, MAX_SPLITS,
};
use super::super::kernels::attention_decode::{AttentionDecode, AttentionDecodeCodes, AttentionJoin};
use super::super::kernels::cuda::attention_codes::AttentionCodes;
use super::super::kernels::cuda::attention_few::{self, AttentionFew};
use super::super::launch::{launch, launch_of, one_token, single};
use super::super::stack;
use super::super::{KernelLaunch, Memory, NativeKernel, Part, StackPhase, Target};
use super::{Cache, Numbers, Operands, Sizes};

/// The most tokens of a step that may append rows which its other tokens read: each workgroup makes the rows that it
/// reads. Of the kernels for tensor cores (on an NVIDIA H200 64 tokens of 8 key/value heads, which are more workgroups
/// than there is room for at a time, are slower so by 2 % of a step), and of the others, whose workgroups make all.
const MAX_APPEND: usize = 32;
const MAX_APPEND_ALL: usize = 8;

/// A value of ε that means: no norm.
const NO_NORM: f32 = -1.0;

/// The most elements of a head.
const MOST_ELEMENTS: usize = 256;

// The kernels of both texts take the same flags and the same number of splits.
const _: () = assert!(
    attention_few::APPEND == ATTENTION_APPEND
        && attention_few::ADJACENT == ATTENTION_ADJACENT
        && attention_few::FIRSTS == ATTENTION_FIRSTS
        && attention_few::SINKS == ATTENTION_SINKS
        && attention_few::WINDOW == ATTENTION_WINDOW
        && attention_few::PAIRS == ATTENTION_PAIRS
        && attention_few::MAX_SPLITS == MAX_SPLITS
);

/// The rows that a step appends to the cache before it attends.
pub(super) struct Fresh {
    pub k: Memory,
    pub v: Memory,
    pub slots: Memory,
    pub frequencies: Memory,
    /// Rotated pairs.
    pub pairs: usize,
    /// Whether a pair is elements 2i and 2i + 1.
    pub adjacent: bool,
    /// Weights of norms of queries and of keys before their rotation, and what is added to the mean square.
    pub norms: Option<([Memory; 2], f32)>,
}

/// Where the result goes, and whether it is `bf16`.
pub(super) struct Out {
    pub place: Memory,
    pub narrow: bool,
}

/// A kernel's arguments besides the operands.
pub(super) enum More {
    /// Rows appended to a cache of floats.
    Fresh(Fresh),
    /// The scales of keys and values in 8 or 4 bits; null for other caches.
    Scales([Memory; 2]),
}

/// The kernel for `operands`.
pub(super) fn kernel(
    sizes: Sizes,
    operands: Operands,
    more: More,
    Out { place: out, narrow }: Out,
    step: Memory,
    scale: f32,
    target: Target,
) -> Option<NativeKernel> {
    let Sizes { tokens, heads, kv_heads, d, .. } = sizes;
    if d > MOST_ELEMENTS {
        return None;
    }
    // The kernels for tensor cores, if the 16 positions of a SIMD-group lie in one block; else the kernels for this
    // number of elements, or 0 for any.
    let made_for = if d == 64 || d == 128 { d } else { 0 };
    let coded = matches!(sizes.cache, Cache::Floats | Cache::Eight | Cache::Four);
    let on_tensor_cores = (sizes.cache == Cache::F16 || coded) && made_for != 0 && sizes.shift >= 4 && target.has(80);
    let apple = target.is_apple();
    let most = if on_tensor_cores { MAX_APPEND } else { MAX_APPEND_ALL };
    let (appends, norms) = match &more {
        More::Fresh(fresh) => (true, fresh.norms),
        More::Scales(_) => (false, None),
    };
    if appends && tokens.max() > most || (narrow || norms.is_some()) && (!on_tensor_cores || coded) {
        return None;
    }
    let ([q_norm, k_norm], eps) = norms.unwrap_or(([Memory::Null; 2], NO_NORM));
    let cache = match sizes.cache {
        Cache::F32 => "float",
        Cache::F16 => "half",
        Cache::Floats => "float_byte",
        Cache::Eight => "eight",
        Cache::Four => "four_bits",
    };
    let made_for = if sizes.cache == Cache::F32 || on_tensor_cores || apple { made_for } else { 0 };
    let at_a_time = match heads / kv_heads {
        _ if on_tensor_cores => 8,
        _ if coded => 4,
        1 => 1,
        5.. if made_for != 0 => 8,
        _ => 4,
    };
    let slices = (heads / kv_heads).div_ceil(at_a_time);
    // Each workgroup that reads a new row stores it first. On Apple GPUs, which have no memory order between the
    // workgroups of a launch, only one may: that of one token, and of all query heads of a key/value head.
    if apple && matches!(more, More::Fresh(_)) && (tokens.max() > 1 || slices > 1) {
        return None;
    }
    let groups = tokens.max().checked_mul(kv_heads * slices)?;
    let multiprocessors = target.multiprocessors as usize;
    // SIMD-groups per workgroup, and workgroups per multiprocessor: larger workgroups leave fewer splits to combine.
    let (simds, resident, tile) = match (on_tensor_cores, d) {
        (true, 128) if 2 * groups <= multiprocessors && !coded => (8, 1, 128),
        (true, _) => (4, 2, 64),
        _ => (8, 2, 32),
    };
    // A window may begin and end within a tile.
    let seen = sizes.window.map_or(usize::MAX, |n| n as usize + tile);
    let capacity = seen.min(sizes.columns << sizes.shift);
    let most = (resident * multiprocessors / groups.max(1)).min(capacity.div_ceil(tile));
    let splits = most.clamp(1, MAX_SPLITS as usize);
    // With several tokens the kernels for tensor cores give each one workgroup, and divide others by the tokens'
    // positions: as many as there is room for, or half of that, for a long text among many.
    let heads_apart = kv_heads * slices;
    let room = resident * multiprocessors / heads_apart;
    let divided = match on_tensor_cores && tokens.max() > 1 && !sizes.independent {
        true => room.saturating_sub(tokens.max()).max(room / 2).clamp(1, 1 << 12),
        false => 0,
    };
    // The grid's first and last sizes without slices: parts of a token, tokens; or parts of all tokens.
    let (across, of_tokens) = match divided {
        0 => (splits, tokens.max().max(1)),
        _ => (divided + tokens.max(), 1),
    };
    let of_head = if across > 1 { across.checked_mul(of_tokens)? } else { 0 };
    let parts = heads_apart.checked_mul(of_head)?.checked_mul(at_a_time)?;
    let sums = parts.checked_mul(d * 4)?.next_multiple_of(256);
    let scratch = sums.checked_add(parts.checked_mul(8)?).filter(|bytes| *bytes < 1 << 33)?;
    let counters = if parts > 0 { groups.checked_mul(4)? } else { 0 };
    let place = |memory: Memory| if parts > 0 { memory } else { Memory::Null };

    let Operands { q, keys, values, positions, sequences, table, .. } = operands;
    let [firsts, sinks] = [operands.firsts, operands.sinks].map(|memory| memory.unwrap_or(Memory::Null));
    let cap = sizes.cap;
    let (count, shift, splits) = (tokens.of_step(step), sizes.shift, splits as u32);
    let Numbers { heads, kv_heads, d, blocks, rows, columns } = sizes.numbers();
    // z is the token and its slice, or the slice.
    let grid_z = u32::try_from(of_tokens * slices).ok().filter(|z| *z <= 65_535)?;

    // Apple GPUs have no memory order between the workgroups of a launch, so the last workgroup cannot combine the
    // splits.
    let join = if apple && splits > 1 {
        let args = AttentionJoin {
            partial: Memory::Scratch(0),
            stats: Memory::Scratch(sums),
            positions,
            out,
            tokens: count,
            heads,
            kv_heads,
            d,
            splits,
            tile: tile_of(sizes.cache, made_for),
            window: sizes.window.unwrap_or(0),
            firsts,
            has_firsts: u32::from(operands.firsts.is_some()),
        };
        Some(launch(args, format!("attention_join_{at_a_time}"), [sizes.kv_heads, grid_z as usize], 256)?)
    } else {
        None
    };

    let mut flags = ATTENTION_COMBINE | sizes.window.unwrap_or(0) << ATTENTION_WINDOW;
    for (there, flag) in [(operands.firsts, ATTENTION_FIRSTS), (operands.sinks, ATTENTION_SINKS)] {
        flags |= if there.is_some() { flag } else { 0 };
    }
    let scale = scale * std::f32::consts::LOG2_E;
    let [partial, stats, counters_at] = [Memory::Scratch(0), Memory::Scratch(sums), Memory::Counters(0)].map(place);
    let (grid, threads) = ([across, sizes.kv_heads], simds * 32);
    let splits = splits | (divided as u32) << attention_few::DIVIDED;
    let mut pairs = 0;
    let (mut k, mut v, mut slots, mut freqs) = (Memory::Null, Memory::Null, firsts, Memory::Null);
    let [mut key_scales, mut value_scales] = [Memory::Null, Memory::Null];
    match more {
        More::Scales(of) => [key_scales, value_scales] = of,
        More::Fresh(fresh) => {
            flags |= ATTENTION_APPEND | if fresh.adjacent { ATTENTION_ADJACENT } else { 0 };
            pairs = fresh.pairs as u32;
            (k, v, slots, freqs) = (fresh.k, fresh.v, fresh.slots, fresh.frequencies);
        }
    }
    // The kernels for caches of floats, from either text.
    macro_rules! floats {
        ($kernel:ident $(, $own:ident $(: $value:expr)?)*) => {
            $kernel {
                q,
                k,
                v,
                positions,
                sequences,
                slots,
                table,
                freqs,
                keys,
                values,
                out,
                partial,
                stats,
                counters: counters_at,
                tokens: count,
                heads,
                kv_heads,
                sizes: d | pairs << ATTENTION_PAIRS,
                shift,
                blocks,
                rows,
                columns,
                flags,
                splits,
                scale,
                sinks,
                cap,
                $($own $(: $value)?,)*
            }
        };
    }
    let entry = format!("attention_decode_{cache}_{made_for}_{at_a_time}");
    let mut phase = None;
    let launch = if on_tensor_cores && !coded {
        let args = Arc::new(floats!(AttentionFew, narrow: u32::from(narrow), q_norm, k_norm, eps));
        if appends && !narrow && stack::fuses_to_stacks(target) && one_token(count).is_some() {
            phase = Some(StackPhase::Attention(args.clone(), d));
        }
        launch_of(args, format!("attention_few_{d}_{simds}"), grid, threads)?
    } else if coded {
        // The kernels for caches of codes, from either text.
        macro_rules! codes {
            ($kernel:ident) => {
                $kernel {
                    q,
                    keys,
                    values,
                    key_scales,
                    value_scales,
                    positions,
                    sequences,
                    table,
                    out,
                    partial,
                    stats,
                    counters: counters_at,
                    tokens: count,
                    heads,
                    kv_heads,
                    d,
                    shift,
                    blocks,
                    rows,
                    columns,
                    flags,
                    splits,
                    scale,
                    firsts,
                    sinks,
                    cap,
                }
            };
        }
        match on_tensor_cores {
            true => {
                let name = if sizes.cache == Cache::Four { "four" } else { cache };
                launch(codes!(AttentionCodes), format!("attention_{name}_{d}"), grid, threads)?
            }
            false => launch(codes!(AttentionDecodeCodes), entry, grid, threads)?,
        }
    } else {
        let args = Arc::new(floats!(AttentionDecode));
        let joins = (sizes.cache, made_for, at_a_time) == (Cache::F32, 128, 4);
        phase = joins.then(|| StackPhase::AttentionF32(args.clone()));
        launch_of(args, entry, grid, threads)?
    };
    let launch = KernelLaunch { grid: [launch.grid[0], launch.grid[1], grid_z], ..launch };
    let mut kernel = NativeKernel { scratch, counters, phase, ..single(launch) };
    kernel.parts.extend(join.map(Part::Kernel));
    Some(kernel)
}

/// The positions per iteration of a workgroup of `attention_decode`, for heads of `made_for` elements, or 0 for any.
fn tile_of(cache: Cache, made_for: usize) -> u32 {
    let floats = match made_for {
        64 => 64,
        128 => 32,
        _ => 16,
    };
    if cache == Cache::F32 { floats } else { 2 * floats }
}
