//! Rotary embedding of q and k, the two cache updates, and the attention after them: with attention for few tokens,
//! without it for any number.

use hologram_device::{CacheUpdate, DType, Extent, Fused, FusedAttention, FusedNorm, GroupSpec, RopeStyle};

use super::super::kernels::rope_append::RopeAppend;
use super::super::launch::{Count, Places, all_f32, launch, number, single};
use super::super::{FEW_TOKENS_AS_F32, NativeKernel, Target};
use super::{Cache, Operands, Sizes, few};

/// The most pairs whose angles kernels keep.
const MAX_PAIRS: usize = 128;

/// Rotated pairs, if kernels serve the update's sizes.
fn pairs(group: &GroupSpec, update: &CacheUpdate) -> Option<usize> {
    let tensor = |i: usize| group.inputs.get(i);
    let [Extent::Fixed(pairs)] = tensor(update.frequencies)?.shape[..] else { return None };
    let (q, k, cache) = (tensor(update.q)?, tensor(update.k)?, tensor(update.keys)?);
    let ([n, _, Extent::Fixed(d)], [m, kv_heads, e]) = (&q.shape[..], &k.shape[..]) else { return None };
    let of_tokens = |i: usize| tensor(i).is_some_and(|t| t.format == DType::U32 && t.shape == [*n]);
    let served = tensor(update.values)? == cache
        && tensor(update.v)? == k
        && all_f32([q, k, tensor(update.frequencies)?])
        && [update.positions, update.slots].into_iter().all(of_tokens)
        && n == m
        && cache.shape.get(1) == Some(kv_heads)
        && cache.shape.get(3) == Some(e)
        && *e == Extent::Fixed(*d)
        && pairs > 0
        && pairs <= MAX_PAIRS
        && pairs.is_multiple_of(4)
        && 2 * pairs <= *d;
    served.then_some(pairs)
}

/// The native kernel for the update, with or without attention after it.
pub(in super::super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::CacheUpdate(update) = &group.fused else { return None };
    let pairs = pairs(group, update)?;
    match &update.attention {
        None if update.norms.is_some() => None,
        None => rope_append(group, update, pairs),
        Some(attention) => attend(group, update, attention, pairs, target),
    }
}

/// A single launch: each workgroup that reads new rows first stores them; `None` where an Apple GPU would need several.
fn attend(
    group: &GroupSpec,
    update: &CacheUpdate,
    attention: &FusedAttention,
    pairs: usize,
    target: Target,
) -> Option<NativeKernel> {
    let (positions, sequences, table) = (update.positions, attention.sequences, attention.table);
    let (output, attended) = (&group.nodes.last()?.output, &group.nodes.get(update.attention_node())?.output);
    let tensor = |i: usize| group.inputs.get(i);
    let specs = [update.q, update.keys, update.values, positions, sequences, table].map(tensor);
    let [Some(q), Some(keys), Some(values), Some(p), Some(s), Some(t)] = specs else { return None };
    let sizes = Sizes::of([q, keys, values, p, s, t], attended)?.seeing(attention.window)?.capped(attention.cap);
    let weights = |norm: &FusedNorm| tensor(norm.weights).is_some_and(|w| all_f32([w]) && w.shape[..] == q.shape[2..]);
    if !update.norms.iter().flatten().all(weights) {
        return None;
    }
    if !sizes.are_few(false) || matches!(sizes.cache, Cache::Floats | Cache::Eight | Cache::Four) {
        return None;
    }
    // With fewer tokens products take f32, or convert it themselves.
    if attention.bf16 && sizes.tokens.max() <= FEW_TOKENS_AS_F32 {
        return None;
    }
    let places = Places::of_group(group, output);
    let operands = [update.q, update.keys, update.values, positions, sequences, table];
    let input = |input| places.input(input, 0);
    let operands = Operands { sinks: attention.sinks.map(input), ..Operands::of(operands.map(input)) };
    let fresh = few::Fresh {
        k: places.input(update.k, 0),
        v: places.input(update.v, 0),
        slots: places.input(update.slots, 0),
        frequencies: places.input(update.frequencies, 0),
        pairs,
        adjacent: update.style == RopeStyle::Adjacent,
        norms: update.norms.map(|norms| (norms.map(|norm| input(norm.weights)), norms[0].eps)),
    };
    let more = few::More::Fresh(fresh);
    let out = few::Out { place: places.output(0), narrow: attention.bf16 };
    few::kernel(sizes, operands, more, out, places.step(), attention.scale, target)
}

/// The update alone: one workgroup per token.
fn rope_append(group: &GroupSpec, update: &CacheUpdate, pairs: usize) -> Option<NativeKernel> {
    let (q, cache) = (group.inputs.get(update.q)?, group.inputs.get(update.keys)?);
    let [n, Extent::Fixed(heads), Extent::Fixed(d)] = q.shape[..] else { return None };
    let [Extent::Fixed(blocks), Extent::Fixed(kv_heads), Extent::Fixed(block), _] = cache.shape[..] else {
        return None;
    };
    let entry = match cache.format {
        DType::F32 => "rope_append_f32",
        DType::F16 => "rope_append_f16",
        _ => return None,
    };
    let tokens = Count::of(&[n])?;
    let positions = blocks.checked_mul(block).filter(|n| *n < 1 << 31)?;
    if !d.is_multiple_of(4) || !block.is_power_of_two() || heads == 0 || kv_heads == 0 || positions == 0 {
        return None;
    }
    let places = Places::of_group(group, q);
    let input = |input| places.input(input, 0);
    let args = RopeAppend {
        q: input(update.q),
        k: input(update.k),
        v: input(update.v),
        positions: input(update.positions),
        slots: input(update.slots),
        freqs: input(update.frequencies),
        y: places.output(0),
        keys: input(update.keys),
        values: input(update.values),
        tokens: places.counted(tokens),
        heads: number(heads)?,
        kv_heads: number(kv_heads)?,
        d: number(d)?,
        shift: block.trailing_zeros(),
        blocks: number(blocks)?,
        pairs: number(pairs)?,
        adjacent: u32::from(update.style == RopeStyle::Adjacent),
    };
    Some(single(launch(args, entry, [tokens.max(), 1], 256)?))
}
