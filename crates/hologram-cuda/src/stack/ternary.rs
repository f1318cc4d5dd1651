//! Stacks of products of one token with ternary weights (`matvec_i8.k`) and of attention over `f32` caches
//! (`attention_decode.k`): `decode_stack.cu`.

use hologram_device::Gate;
use hologram_gpu::kernels::attention::{ATTENTION_ADJACENT, ATTENTION_APPEND, ATTENTION_COMBINE, ATTENTION_PAIRS};
use hologram_gpu::kernels::attention_decode::AttentionDecode;
use hologram_gpu::kernels::cuda::decode_stack;
use hologram_gpu::kernels::cuda::decode_stack::{DecodeStack, SHARED_BYTES};
use hologram_gpu::kernels::matvec_i8::MatvecI8;
use hologram_gpu::{KernelLaunch, Part, StackPhase};

use super::{Arguments, Attention, Common, Exchange, LEAST, Launches, address, arguments, attention, memory};

pub(super) const IMAGE: &str = "decode_stack";
/// Threads that compute.
const THREADS: u32 = decode_stack::THREADS;
/// Shared memory that the kernel uses before its ring of weights.
pub(super) const SHARED: u32 = (SHARED_BYTES as u32).next_multiple_of(128);
/// Bytes of a phase's table of scales.
const TABLE: u32 = decode_stack::MOST_ROWS * 4;
/// The kernel's barriers for weights: the most phases whose weights can be in flight.
pub(super) const BARRIERS: usize = decode_stack::BARS as usize;
/// Limits of a phase: its partial sums, elements of a row, rows of a workgroup with a gate, and without one.
const MOST_SUMS: u32 = 8192;
const MOST_LENGTH: u32 = 7680;
const MOST_GATED: u32 = THREADS / 8;
const MOST_ROWS: u32 = THREADS / 16;
/// The served attention: elements of a head, query heads per key/value head, and the most splits of the positions.
const HEAD: u32 = 128;
const QUERIES: u32 = 4;
const MOST_SPLITS: u32 = 32;

/// Launches fused to one.
pub(super) struct Stack {
    pub(super) phases: Vec<Phase>,
    common: Common,
    pub(super) groups: u32,
    pub(super) shared: u32,
    pub(super) exchange: Exchange,
}

/// One phase. Its places in the exchange are known when all phases are: [`Stack::told`].
#[derive(Clone, Default)]
pub(super) struct Phase {
    /// The phase as the kernel reads it.
    pub(super) told: decode_stack::Phase,
    /// Floats that it outputs, and the offset after them of the statistics of attention.
    gives: usize,
    stats: usize,
}

/// The longest stack that begins with the first of these launches, and how many they are.
pub(super) fn plan(launches: &Launches, max_shared: u32) -> Option<(Stack, usize)> {
    let ring = max_shared.checked_sub(SHARED)? / 128 * 128;
    let mut chain: Option<Chain> = None;
    let mut count = 0;
    for launch in launches {
        let Some((kernel, arguments)) = launch else { break };
        let [Part::Kernel(KernelLaunch { grid, .. })] = kernel.parts[..] else { break };
        let chain = chain.get_or_insert_with(|| Chain::new(grid[0], ring));
        let joined = match &kernel.phase {
            Some(StackPhase::Ternary { gate, args }) => chain.products(args, grid, *gate, arguments),
            Some(StackPhase::AttentionF32(args)) => chain.attention(args, arguments),
            _ => None,
        };
        if joined.is_none() {
            break;
        }
        count += 1;
    }
    let Chain { phases, common, groups, .. } = chain.filter(|_| count >= LEAST)?;
    let exchange = Exchange::of(phases.iter().map(|p| p.gives))?;
    Some((Stack { phases, common, groups, shared: SHARED + ring, exchange }, count))
}

/// A stack under construction.
struct Chain {
    phases: Vec<Phase>,
    common: Common,
    groups: u32,
    /// Addresses and lengths of the newest phase's outputs; `None` before the first phase.
    given: Option<Vec<(u64, u32)>>,
    /// Results of products: address, rows.
    results: Vec<(u64, u32)>,
    ring: u32,
    /// The next free byte of the ring, and its contents: phase, begin, end.
    head: u32,
    held: Vec<(usize, u32, u32)>,
}

impl Chain {
    fn new(groups: u32, ring: u32) -> Chain {
        let (phases, common, results, held) = (Vec::new(), Common::default(), Vec::new(), Vec::new());
        Chain { phases, common, groups, given: None, results, ring, head: 0, held }
    }

    /// The number of tokens, if it comes from the step block: it must be the same for all phases.
    fn counts(&self, step: u64, slot: u32) -> Option<Option<(u64, u32)>> {
        let count = (step != 0 && slot != u32::MAX).then_some((step, slot));
        (self.phases.is_empty() || self.common.step == count).then_some(count)
    }

    /// The x of a phase: null if the phase before outputs it; `None` if x is neither that nor older than the stack.
    fn source(&self, x: u64, k: u32) -> Option<u64> {
        match &self.given {
            None => Some(x),
            Some(tensors) => (*tensors == [(x, k)]).then_some(0),
        }
    }

    /// Adds products to the chain, if possible.
    fn products(&mut self, args: &MatvecI8, grid: [u32; 3], gate: Option<Gate>, arguments: &Arguments) -> Option<()> {
        let gated = gate.is_some();
        let at = |memory| address(memory, arguments);
        let MatvecI8 { k, each, over, m0, m1, .. } = *args;
        let rows = self.groups * each + over;
        let most = each + u32::from(over > 0);
        let stored = if gated { 2 * most } else { most };
        let chunks = k / 64;
        let served = grid == [self.groups, 1, 1]
            && k.is_multiple_of(256)
            && k <= MOST_LENGTH
            && chunks <= THREADS
            && each > 0
            && most <= if gated { MOST_GATED } else { MOST_ROWS }
            && stored.checked_mul(chunks)? <= MOST_SUMS
            && m0.checked_add(m1)? <= i32::MAX as u32;
        if !served {
            return None;
        }
        let step = self.counts(at(args.step)?, args.slot)?;
        let mut phase = decode_stack::Phase {
            kind: decode_stack::PRODUCTS,
            flags: match gate {
                None => 0,
                Some(Gate::Swiglu) => decode_stack::GATED,
                Some(Gate::Relu2) => decode_stack::GATED | decode_stack::RELU2,
                Some(Gate::ClampedSwiglu) => return None,
            },
            k,
            each,
            over,
            chunks,
            eps: args.eps,
            least: args.least,
            per: args.per,
            m0,
            m1,
            x: self.source(at(args.x)?, k)?,
            norm: at(args.norm)?,
            w: [at(args.w0)?, at(args.w1)?, at(args.w2)?],
            s: [at(args.s0)?, at(args.s1)?, at(args.s2)?],
            y: [at(args.y0)?, at(args.y1)?, at(args.y2)?],
            ..Default::default()
        };
        // Each workgroup adds rows that it computed itself, or rows older than the stack.
        let residual = at(args.residual)?;
        if self.results.iter().rev().find(|r| r.0 == residual).is_some_and(|r| r.1 != rows || gated) {
            return None;
        }
        phase.residual = residual;

        // Weights, then scales with up to 15 bytes before and after those of each matrix, then the table.
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
        let products = (0..self.phases.len()).rev().filter(|p| self.phases[*p].told.kind == decode_stack::PRODUCTS);
        if let Some(user) = { products }.nth(BARRIERS - 1) {
            phase.needs = phase.needs.max(user as u32 + 1);
        }
        self.held.push((self.phases.len(), begin, end));
        (phase.ring, self.head) = (begin, end);

        let lengths = if gated { [rows, 0, 0] } else { split(rows, [m0, m1]) };
        let outputs = lengths.iter().enumerate().filter(|(_, n)| **n > 0);
        let tensors: Vec<_> = outputs.map(|(i, n)| (phase.y[i], *n)).collect();
        if tensors.iter().any(|t| t.0 == 0) {
            return None;
        }
        self.results.extend(tensors.iter().map(|(address, n)| (*address, if tensors.len() == 1 { *n } else { 0 })));
        self.given = Some(tensors);
        self.common.step = step;
        self.phases.push(Phase { told: phase, gives: rows as usize, stats: 0 });
        Some(())
    }

    /// Adds attention to the chain, if possible.
    fn attention(&mut self, args: &AttentionDecode, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let AttentionDecode { heads, kv_heads, sizes, flags, tokens, .. } = *args;
        let (d, pairs) = (sizes & 0xffff, sizes >> ATTENTION_PAIRS);
        let (q, k) = (heads.checked_mul(HEAD)?, kv_heads.checked_mul(HEAD)?);
        let given = [(at(args.q)?, q), (at(args.k)?, k), (at(args.v)?, k)];
        let splits = (self.groups / kv_heads.max(1)).min(MOST_SPLITS);
        let served = *self.given.as_ref()? == given
            && heads == QUERIES * kv_heads
            && splits > 0
            && tokens.most.checked_mul(tokens.per)? == 1
            && d == HEAD
            && 2 * pairs <= HEAD
            && flags & !ATTENTION_ADJACENT == ATTENTION_APPEND | ATTENTION_COMBINE
            && args.cap == 0.0;
        if !served {
            return None;
        }
        let attention = attention!(args, at, splits, HEAD, flags);
        let step = self.counts(at(tokens.step)?, tokens.slot)?;
        if self.common.attention.as_ref().is_some_and(|a| *a != attention) {
            return None;
        }
        self.common = Common { step, attention: Some(attention) };
        let stats = (kv_heads * splits * QUERIES * HEAD) as usize;
        let told = decode_stack::Phase {
            kind: decode_stack::ATTENTION,
            scale: args.scale,
            keys: at(args.keys)?,
            values: at(args.values)?,
            ..Default::default()
        };
        let phase = Phase { told, gives: stats + (kv_heads * splits * QUERIES * 2) as usize, stats };
        let (fours, out) = (q / 4, at(args.out)?);
        let told = decode_stack::Phase {
            kind: decode_stack::COMBINE,
            each: fours / self.groups,
            over: fours % self.groups,
            y: [out, 0, 0],
            ..Default::default()
        };
        let combine = Phase { told, gives: q as usize, stats };
        self.phases.extend([phase, combine]);
        self.results.push((out, 0));
        self.given = Some(vec![(out, q)]);
        Some(())
    }
}

/// The rows of three matrices: the last has the rows left by the first two.
fn split(rows: u32, m: [u32; 2]) -> [u32; 3] {
    let first = m[0].min(rows);
    let second = m[1].min(rows - first);
    [first, second, rows - first - second]
}

impl Stack {
    /// Phase `p` as the kernel reads it, with its places in the exchange.
    pub(super) fn told(&self, p: usize) -> decode_stack::Phase {
        let (exchange, phase) = (&self.exchange, &self.phases[p]);
        let (in_at, in_tag) = p.checked_sub(1).map_or((0, 0), |before| (exchange.place(before), exchange.tag(before)));
        let chunks = phase.told.chunks;
        // The splits of attention come with their statistics.
        let stats_from = if phase.told.kind == decode_stack::ATTENTION { exchange.place(p) } else { in_at };
        decode_stack::Phase {
            in_at,
            in_tag,
            out_at: exchange.place(p),
            out_tag: exchange.tag(p),
            together: THREADS.checked_div(chunks).unwrap_or(0),
            magic: 65_536u32.checked_div(chunks).map_or(0, |n| n + 1),
            stats_at: phase.stats as u32 + stats_from,
            ..phase.told.clone()
        }
    }

    /// The kernel's arguments, with the stack's memory.
    pub(super) fn arguments(&self, own: u64) -> DecodeStack {
        arguments!(DecodeStack, self, own, of)
    }
}
