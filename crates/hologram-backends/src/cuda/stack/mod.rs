//! Joins the launches of a decoding step to stacks: one launch of `decode_stack.cu` each, whose phases pass values on without an end in between.
//!
//! A stack is a chain of products of one token with ternary weights (`matvec_i8.k`) and of attention over `f32` caches (`attention_decode.k`) in
//! which each reads what the one before it wrote. What else a launch reads is older than the stack, or the same workgroup wrote it.

use std::ops::Range;

use super::record::{Shape, Value};
use crate::gpu::{Arg, KernelLaunch, NativeKernel, Part};
use crate::host::Argument;

#[cfg(test)]
mod tests;

pub(super) const IMAGE: &str = "decode_stack";
/// Threads that compute, and with the warp that reads weights.
const THREADS: u32 = 480;
const ALL_THREADS: u32 = THREADS + 32;
/// What the kernel keeps in shared memory before its ring of weights.
const SHARED: u32 = 44_288;
/// Bytes of a phase's table of scales (`MOST_ROWS` words).
const TABLE: u32 = 1024;
/// Bytes of a phase's description, and the alignment of what lies in the stack's memory.
const PHASE: usize = 208;
const ALIGN: usize = 256;
/// The kernel's barriers for weights: as many phases' weights are on their way at most.
const BARRIERS: usize = 8;
/// Places for values in the exchange: each is used again so many phases later.
const PLACES: usize = 12;
/// Launches from which a stack is worth its start.
const LEAST: usize = 4;
/// Partial sums of a phase that there is room for, elements of a row, rows of a workgroup: of a gate, and of others.
const MOST_SUMS: u32 = 8192;
const MOST_LENGTH: u32 = 7680;
const MOST_GATED: u32 = THREADS / 8;
const MOST_ROWS: u32 = THREADS / 16;
/// Elements of a head, query heads of a key/value head, and the parts that its positions can be in.
const HEAD: u32 = 128;
const QUERIES: u32 = 4;
const MOST_SPLITS: u32 = 32;

/// Launches that become one.
pub(super) struct Stack {
    /// Their places.
    pub launches: Range<usize>,
    phases: Vec<Phase>,
    common: Common,
    groups: u32,
    shared: u32,
    /// Floats of a place in the exchange.
    place: usize,
}

/// One phase, as the kernel reads it.
#[derive(Clone, Default)]
struct Phase {
    kind: u32,
    flags: u32,
    k: u32,
    each: u32,
    over: u32,
    chunks: u32,
    ring: u32,
    scales: u32,
    bytes: u32,
    needs: u32,
    numbers: [f32; 4],
    m: [u32; 2],
    /// Floats that it gives, and where after them the statistics of attention begin.
    gives: usize,
    stats: usize,
    addresses: [u64; 14],
}

// Places in `Phase::addresses`.
const X: usize = 0;
const NORM: usize = 1;
const RESIDUAL: usize = 2;
const W: usize = 3;
const S: usize = 6;
const Y: usize = 9;
const KEYS: usize = 12;

/// What all phases share; zero where no phase has set it.
#[derive(Clone, Default, PartialEq)]
struct Common {
    step: Option<(u64, u32)>,
    attention: Option<Attention>,
}

#[derive(Clone, PartialEq)]
struct Attention {
    /// Positions, sequences, slots, block table, frequencies.
    addresses: [u64; 5],
    heads: u32,
    kv_heads: u32,
    shift: u32,
    blocks: u32,
    rows: u32,
    columns: u32,
    pairs: u32,
    adjacent: u32,
    splits: u32,
}

type Arguments = [Argument<(u64, usize)>];

/// The stacks of a list; `launches` are its native kernels with their arguments, or nothing for another launch.
pub(super) fn plan(launches: &[Option<(&NativeKernel, &Arguments)>], max_shared: u32) -> Vec<Stack> {
    let mut stacks = Vec::new();
    let mut at = 0;
    while at < launches.len() {
        match stack(launches, at, max_shared) {
            Some(stack) => {
                at = stack.launches.end;
                stacks.push(stack);
            }
            None => at += 1,
        }
    }
    stacks
}

/// The longest stack that begins with launch `first`.
fn stack(launches: &[Option<(&NativeKernel, &Arguments)>], first: usize, max_shared: u32) -> Option<Stack> {
    let ring = max_shared.checked_sub(SHARED)? / 128 * 128;
    let mut chain: Option<Chain> = None;
    let mut end = first;
    for launch in &launches[first..] {
        let Some((part, arguments)) = launch.and_then(single) else { break };
        let reader = Reader { part, arguments };
        let groups = part.grid[0];
        let chain = chain.get_or_insert_with(|| Chain::new(groups, ring));
        let joined = match (part.image, part.entry.as_str()) {
            ("matvec_i8", entry) if entry.starts_with("t2_") => chain.products(&reader, entry.starts_with("t2_gate")),
            ("attention_decode", "attention_decode_float_128_4") => chain.attention(&reader),
            _ => None,
        };
        if joined.is_none() {
            break;
        }
        end += 1;
    }
    let chain = chain.filter(|_| end - first >= LEAST)?;
    let place = chain.phases.iter().map(|p| p.gives).max()?.next_multiple_of(64);
    let Chain { phases, common, groups, .. } = chain;
    Some(Stack { launches: first..end, phases, common, groups, shared: SHARED + ring, place })
}

/// A kernel of one launch.
fn single<'a>((kernel, arguments): (&'a NativeKernel, &'a Arguments)) -> Option<(&'a KernelLaunch, &'a Arguments)> {
    match kernel.parts.as_slice() {
        [Part::Kernel(part)] => Some((part, arguments)),
        _ => None,
    }
}

/// Reads a launch's arguments by their places.
struct Reader<'a> {
    part: &'a KernelLaunch,
    arguments: &'a Arguments,
}

impl Reader<'_> {
    /// A number; a float's bits.
    fn word(&self, at: usize) -> Option<u32> {
        match self.part.args.get(at)? {
            Arg::U32(word) => Some(*word),
            Arg::F32(number) => Some(number.to_bits()),
            _ => None,
        }
    }

    fn float(&self, at: usize) -> Option<f32> {
        self.word(at).map(f32::from_bits)
    }

    /// An address; 0 where there is none.
    fn address(&self, at: usize) -> Option<u64> {
        match self.part.args.get(at)? {
            Arg::Null => Some(0),
            Arg::Binding(index) => match self.arguments.get(*index)? {
                Argument::Slice((address, _)) => Some(*address),
                Argument::Scalar(_) => None,
            },
            _ => None,
        }
    }
}

/// A stack in the making.
struct Chain {
    phases: Vec<Phase>,
    common: Common,
    groups: u32,
    /// What the newest phase gave: addresses and lengths of its tensors; of none that comes first.
    given: Option<Vec<(u64, u32)>>,
    /// Results of products: address, rows.
    results: Vec<(u64, u32)>,
    ring: u32,
    /// The next free byte of the ring, and what lies in it: phase, begin, end.
    head: u32,
    held: Vec<(usize, u32, u32)>,
}

impl Chain {
    fn new(groups: u32, ring: u32) -> Chain {
        let (phases, common, results, held) = (Vec::new(), Common::default(), Vec::new(), Vec::new());
        Chain { phases, common, groups, given: None, results, ring, head: 0, held }
    }

    /// The number of tokens, where the step block has it: the same for all.
    fn counts(&self, step: u64, slot: u32) -> Option<Option<(u64, u32)>> {
        let count = (step != 0 && slot != u32::MAX).then_some((step, slot));
        (self.phases.is_empty() || self.common.step == count).then_some(count)
    }

    /// The x of a phase: null where the phase before gave it; `None` where neither it nor something older did.
    fn source(&self, x: u64, k: u32) -> Option<u64> {
        match &self.given {
            None => Some(x),
            Some(tensors) => (*tensors == [(x, k)]).then_some(0),
        }
    }

    /// Joins a product with `matvec_i8.k`'s arguments, where it can be.
    fn products(&mut self, launch: &Reader<'_>, gated: bool) -> Option<()> {
        let (word, address) = (|at| launch.word(at), |at| launch.address(at));
        let (k, m, each, over) = (word(14)?, [word(15)?, word(16)?], word(17)?, word(18)?);
        let rows = self.groups * each + over;
        let most = each + u32::from(over > 0);
        let stored = if gated { 2 * most } else { most };
        let chunks = k / 64;
        let served = launch.part.grid == [self.groups, 1, 1]
            && k.is_multiple_of(256)
            && k <= MOST_LENGTH
            && chunks <= THREADS
            && each > 0
            && most <= if gated { MOST_GATED } else { MOST_ROWS }
            && stored.checked_mul(chunks)? <= MOST_SUMS
            && m[0].checked_add(m[1])? <= i32::MAX as u32;
        if !served {
            return None;
        }
        let step = self.counts(address(12)?, word(13)?)?;
        let mut phase = Phase { kind: 0, k, each, over, chunks, m, gives: rows as usize, ..Phase::default() };
        phase.flags = u32::from(gated) | if word(22)? == 2 { 2 } else { 0 };
        phase.numbers = [launch.float(23)?, launch.float(24)?, launch.float(25)?, 0.0];
        phase.addresses[X] = self.source(address(0)?, k)?;
        phase.addresses[NORM] = address(1)?;
        for i in 0..3 {
            phase.addresses[W + i] = address(2 + i)?;
            phase.addresses[S + i] = address(5 + i)?;
            phase.addresses[Y + i] = address(8 + i)?;
        }
        // Each workgroup adds rows that it computed itself, or that are older than the stack.
        let residual = address(11)?;
        if self.results.iter().rev().find(|r| r.0 == residual).is_some_and(|r| r.1 != rows || gated) {
            return None;
        }
        phase.addresses[RESIDUAL] = residual;

        // Weights, then scales with up to 15 bytes before and after each matrix's, then the table.
        phase.scales = stored * (k / 4);
        let bytes = phase.scales + stored * (k / 128) + 3 * 32;
        phase.bytes = (bytes + TABLE).next_multiple_of(128);
        if phase.bytes > self.ring {
            return None;
        }
        if self.head + phase.bytes > self.ring {
            self.head = 0;
        }
        let (begin, end) = (self.head, self.head + phase.bytes);
        self.held.retain(|(user, from, to)| {
            let free = *to <= begin || end <= *from;
            if !free {
                phase.needs = phase.needs.max(*user as u32 + 1);
            }
            free
        });
        let products = (0..self.phases.len()).rev().filter(|p| self.phases[*p].kind == 0);
        if let Some(user) = { products }.nth(BARRIERS - 1) {
            phase.needs = phase.needs.max(user as u32 + 1);
        }
        self.held.push((self.phases.len(), begin, end));
        (phase.ring, self.head) = (begin, end);

        let lengths = if gated { [rows, 0, 0] } else { split(rows, m) };
        let outputs = lengths.iter().enumerate().filter(|(_, n)| **n > 0);
        let tensors: Vec<_> = outputs.map(|(i, n)| (phase.addresses[Y + i], *n)).collect();
        if tensors.iter().any(|t| t.0 == 0) {
            return None;
        }
        self.results.extend(tensors.iter().map(|(address, n)| (*address, if tensors.len() == 1 { *n } else { 0 })));
        self.given = Some(tensors);
        self.common.step = step;
        self.phases.push(phase);
        Some(())
    }

    /// Joins attention with `attention_decode.k`'s arguments, where it can be.
    fn attention(&mut self, launch: &Reader<'_>) -> Option<()> {
        const APPEND: u32 = 1;
        const ADJACENT: u32 = 2;
        const COMBINE: u32 = 4;
        let (word, address) = (|at| launch.word(at), |at| launch.address(at));
        let (heads, kv_heads, pairs, flags) = (word(19)?, word(20)?, word(26)?, word(27)?);
        let (q, k) = (heads.checked_mul(HEAD)?, kv_heads.checked_mul(HEAD)?);
        let given = [(address(0)?, q), (address(1)?, k), (address(2)?, k)];
        let splits = (self.groups / kv_heads.max(1)).min(MOST_SPLITS);
        let served = *self.given.as_ref()? == given
            && heads == QUERIES * kv_heads
            && splits > 0
            && word(17)?.checked_mul(word(18)?)? == 1
            && word(21)? == HEAD
            && 2 * pairs <= HEAD
            && flags & !ADJACENT == APPEND | COMBINE;
        if !served {
            return None;
        }
        let attention = Attention {
            addresses: [address(3)?, address(4)?, address(5)?, address(6)?, address(7)?],
            heads,
            kv_heads,
            shift: word(22)?,
            blocks: word(23)?,
            rows: word(24)?,
            columns: word(25)?,
            pairs,
            adjacent: flags & ADJACENT,
            splits,
        };
        let step = self.counts(address(15)?, word(16)?)?;
        if self.common.attention.as_ref().is_some_and(|a| *a != attention) {
            return None;
        }
        self.common = Common { step, attention: Some(attention) };
        let sums = (kv_heads * splits * QUERIES * HEAD) as usize;
        let mut phase = Phase { kind: 1, stats: sums, ..Phase::default() };
        phase.gives = sums + (kv_heads * splits * QUERIES * 2) as usize;
        phase.numbers[3] = launch.float(29)?;
        (phase.addresses[KEYS], phase.addresses[KEYS + 1]) = (address(8)?, address(9)?);
        let (fours, out) = (q / 4, address(10)?);
        let mut combine = Phase { kind: 2, stats: sums, gives: q as usize, ..Phase::default() };
        (combine.each, combine.over) = (fours / self.groups, fours % self.groups);
        combine.addresses[Y] = out;
        self.phases.extend([phase, combine]);
        self.results.push((out, 0));
        self.given = Some(vec![(out, q)]);
        Some(())
    }
}

/// The rows of three matrices of which the last has what the first two leave.
fn split(rows: u32, m: [u32; 2]) -> [u32; 3] {
    let first = m[0].min(rows);
    let second = m[1].min(rows - first);
    [first, second, rows - first - second]
}

impl Stack {
    /// Bytes of zeroed memory: the exchange, the number of runs, and the phases.
    pub(super) fn bytes(&self) -> usize {
        self.table() + self.phases.len() * PHASE
    }

    fn table(&self) -> usize {
        (PLACES * self.place * 4 + 4).next_multiple_of(ALIGN)
    }

    /// The phases as the kernel reads them, and where in the stack's memory they belong.
    pub(super) fn phases(&self) -> (usize, Vec<u8>) {
        let count = self.phases.len();
        // The tag of a place when phase `p` gives: it differs from what was there, zero at first.
        let tag = |p: usize| {
            let uses = (count - p % PLACES).div_ceil(PLACES);
            ((p / PLACES + 1) & 1 | (uses & 1) << 1) as u32
        };
        let place = |p: usize| (p % PLACES * self.place) as u32;
        let mut out = Vec::with_capacity(count * PHASE);
        for (p, phase) in self.phases.iter().enumerate() {
            let (from, with) = p.checked_sub(1).map_or((0, 0), |before| (place(before), tag(before)));
            let together = THREADS.checked_div(phase.chunks).unwrap_or(0);
            let magic = 65_536u32.checked_div(phase.chunks).map_or(0, |n| n + 1);
            // The parts of attention come with their statistics.
            let stats = phase.stats as u32 + if phase.kind == 1 { place(p) } else { from };
            let words = [phase.kind, phase.flags, from, place(p), with, tag(p), phase.k, phase.each, phase.over];
            let words = words.into_iter().chain([phase.chunks, together, magic]);
            let words = words.chain([phase.ring, phase.scales, phase.bytes, phase.needs]);
            let words = words.chain(phase.numbers.map(f32::to_bits)).chain(phase.m).chain([stats, 0]);
            out.extend(words.flat_map(u32::to_le_bytes));
            out.extend(phase.addresses.iter().flat_map(|a| a.to_le_bytes()));
        }
        (self.table(), out)
    }

    pub(super) fn shape(&self) -> Shape {
        let (grid, block) = ([self.groups, 1, 1], [ALL_THREADS, 1, 1]);
        Shape { grid, block, shared: self.shared, cluster: 1, early: false, together: true }
    }

    /// The kernel's arguments, with the stack's memory and the record of a fault.
    pub(super) fn values(&self, memory: u64, fault: u64) -> Vec<Value> {
        let runs = memory + (PLACES * self.place * 4) as u64;
        let attention = self.common.attention.as_ref();
        let addresses = attention.map_or([0; 5], |a| a.addresses);
        let (step, slot) = self.common.step.unwrap_or((0, 0));
        let mut values =
            vec![Value::Address(memory + self.table() as u64), Value::Address(memory), Value::Address(runs)];
        values.extend(addresses.map(Value::Address));
        values.extend([Value::Address(fault), Value::Address(step), Value::Word(slot)]);
        values.push(Value::Word(self.phases.len() as u32));
        let numbers = attention.map_or([0, 1, 0, 1, 1, 1, 0, 0, 1], |a| {
            [a.heads, a.kv_heads, a.shift, a.blocks, a.rows, a.columns, a.pairs, a.adjacent, a.splits]
        });
        values.extend(numbers.map(Value::Word));
        values
    }
}
