//! Rotary embedding of q and k, the cache's two updates, and attention to it: with attention for few tokens, without it for any number.

use super::super::kernels::rope_append::RopeAppend;
use super::super::launch::{Count, Places, all_f32, launch, number, single};
use super::super::{NativeKernel, Target};
use super::{Cache, Operands, Sizes, few};
use crate::{Extent, Format, GroupNode, GroupSpec, Operand};

/// The most pairs that kernels keep the angles of.
const MAX_PAIRS: usize = 128;

/// The four operations before attention, as inputs of the group.
struct Update {
    /// The node that rotates q.
    q_node: usize,
    q: usize,
    k: usize,
    v: usize,
    positions: usize,
    frequencies: usize,
    pairs: usize,
    adjacent: bool,
    /// The nodes that update the caches.
    k_node: usize,
    v_node: usize,
    keys: usize,
    values: usize,
    slots: usize,
}

/// `[rope, rope, kv_append, kv_append]` in any order of q and k, of keys and values.
fn update(group: &GroupSpec) -> Option<Update> {
    let [first, second, third, fourth, ..] = group.nodes.as_slice() else { return None };
    let rope = |node: &GroupNode| {
        let [Operand::Input(x), Operand::Input(positions), Operand::Input(frequencies)] = node.operands[..] else {
            return None;
        };
        let plain = node.op == "rope" && node.in_place.is_none() && node.output == *group.inputs.get(x)?;
        plain.then_some((x, positions, frequencies, node.attr_u32("style")?))
    };
    let append = |node: &GroupNode| {
        let [Operand::Input(cache), x, Operand::Input(slots)] = node.operands[..] else { return None };
        let plain = node.op == "kv_append" && node.in_place == Some(0) && node.output == *group.inputs.get(cache)?;
        plain.then_some((cache, x, slots))
    };
    let ropes = [rope(first)?, rope(second)?];
    let (of_key, of_value, appends) = match (append(third)?, append(fourth)?) {
        (k @ (_, Operand::Node(_), _), v @ (_, Operand::Input(_), _)) => (2, 3, (k, v)),
        (v @ (_, Operand::Input(_), _), k @ (_, Operand::Node(_), _)) => (3, 2, (k, v)),
        _ => return None,
    };
    let ((keys, Operand::Node(k_rope @ 0..=1), slots), (values, Operand::Input(v), v_slots)) = appends else {
        return None;
    };
    let (q_node, [(q, positions, frequencies, style), (k, ..)]) =
        (1 - k_rope, [*ropes.get(1 - k_rope)?, *ropes.get(k_rope)?]);
    let tensor = |i: usize| group.inputs.get(i);
    let [Extent::Fixed(pairs)] = tensor(frequencies)?.shape[..] else { return None };
    let (q_spec, k_spec, cache) = (tensor(q)?, tensor(k)?, tensor(keys)?);
    let ([n, _, Extent::Fixed(d)], [m, kv_heads, e]) = (&q_spec.shape[..], &k_spec.shape[..]) else { return None };
    let served = ropes[0].1 == ropes[1].1
        && ropes[0].2 == ropes[1].2
        && ropes[0].3 == ropes[1].3
        && style <= 1
        && v_slots == slots
        && keys != values
        && tensor(values)? == cache
        && tensor(v)? == k_spec
        && all_f32([q_spec, k_spec, tensor(frequencies)?])
        && [positions, slots].iter().all(|i| tensor(*i).is_some_and(|t| t.format == Format::U32 && t.shape == [*n]))
        && n == m
        && cache.shape.get(1) == Some(kv_heads)
        && cache.shape.get(3) == Some(e)
        && *e == Extent::Fixed(*d)
        && pairs > 0
        && pairs <= MAX_PAIRS
        && pairs.is_multiple_of(4)
        && 2 * pairs <= *d;
    served.then_some(Update {
        q_node,
        q,
        k,
        v,
        positions,
        frequencies,
        pairs,
        adjacent: style == 0,
        k_node: of_key,
        v_node: of_value,
        keys,
        values,
        slots,
    })
}

/// The native kernel for the update, with or without attention after it.
pub(in super::super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let update = update(group)?;
    match (&group.nodes[4..], &group.outputs[..]) {
        ([], [only]) if *only == update.q_node => rope_append(group, &update),
        ([attention], [4]) => attend(group, &update, attention, target),
        _ => None,
    }
}

/// Everything in one launch: each workgroup that reads new rows stores them first.
fn attend(group: &GroupSpec, update: &Update, node: &GroupNode, target: Target) -> Option<NativeKernel> {
    let [q, k, v, Operand::Input(positions), Operand::Input(sequences), Operand::Input(table)] = node.operands[..]
    else {
        return None;
    };
    let ordered = node.op == "attention"
        && node.in_place.is_none()
        && q == Operand::Node(update.q_node)
        && k == Operand::Node(update.k_node)
        && v == Operand::Node(update.v_node)
        && positions == update.positions;
    if !ordered {
        return None;
    }
    let tensor = |i: usize| group.inputs.get(i);
    let specs = [update.q, update.keys, update.values, positions, sequences, table].map(tensor);
    let [Some(q), Some(keys), Some(values), Some(p), Some(s), Some(t)] = specs else { return None };
    let sizes = Sizes::of([q, keys, values, p, s, t], &node.output)?.seeing(node.attr_u32("window"))?;
    if sizes.tokens.max() > few::MAX_APPEND || sizes.cache == Cache::Eight {
        return None;
    }
    let places = Places::of_group(group, &node.output);
    let operands = [update.q, update.keys, update.values, positions, sequences, table];
    let operands = Operands::of(operands.map(|input| places.input(input, 0)));
    let fresh = few::Fresh {
        k: places.input(update.k, 0),
        v: places.input(update.v, 0),
        slots: places.input(update.slots, 0),
        frequencies: places.input(update.frequencies, 0),
        pairs: update.pairs,
        adjacent: update.adjacent,
    };
    let scale = node.attr_f32("scale")?;
    few::kernel(sizes, operands, few::More::Fresh(fresh), places.output(0), places.step(), scale, target)
}

/// The update alone: a workgroup for each token.
fn rope_append(group: &GroupSpec, update: &Update) -> Option<NativeKernel> {
    let (q, cache) = (group.inputs.get(update.q)?, group.inputs.get(update.keys)?);
    let [n, Extent::Fixed(heads), Extent::Fixed(d)] = q.shape[..] else { return None };
    let [Extent::Fixed(blocks), Extent::Fixed(kv_heads), Extent::Fixed(block), _] = cache.shape[..] else {
        return None;
    };
    let entry = match cache.format {
        Format::F32 => "rope_append_f32",
        Format::F16 => "rope_append_f16",
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
        pairs: number(update.pairs)?,
        adjacent: u32::from(update.adjacent),
    };
    Some(single(launch(args, entry, [tokens.max(), 1], 256)?))
}
