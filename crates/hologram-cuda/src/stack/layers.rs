//! Stacks of products of one token with weights in codes or floats, attention over `f16` caches, routers and experts:
//! `decode_layers.cu`.

use hologram_device::{BlockType, DType, Gate};
use hologram_gpu::kernels::attention::{
    ATTENTION_ADJACENT, ATTENTION_APPEND, ATTENTION_COMBINE, ATTENTION_PAIRS, ATTENTION_SINKS, ATTENTION_WINDOW,
};
use hologram_gpu::kernels::cuda::attention_few::AttentionFew;
use hologram_gpu::kernels::cuda::decode_layers::{self as kernel, DecodeLayers, SHARED_BYTES};
use hologram_gpu::kernels::cuda::router::{self, Router};
use hologram_gpu::{Memory, PhaseBiases, PhaseExperts, PhaseMatrix, PhaseProducts, StackPhase};

use super::{Arguments, Attention, Common, Exchange, LEAST, Launches, address, arguments, attention, memory};

pub(super) const IMAGE: &str = "decode_layers";
/// Shared memory that the kernel uses before its ring of weights.
const SHARED: u32 = (SHARED_BYTES as u32).next_multiple_of(128);
/// Places in the ring of weights. More of them are smaller, and a piece costs each warp the same whatever its size: on
/// an H200 a step of Qwen3 30B A3B in BF16 makes 397, 382, 377 and 349 tokens/s with 2, 3, 4 and 6.
const SLOTS: u32 = 2;
const _: () = assert!(SLOTS <= kernel::MOST_SLOTS);
/// Bytes by which a copy's place may exceed what it is for: it begins and ends at multiples of 16 bytes.
const COPY_MORE: u32 = 48;
/// Elements of a chunk, and of the chunks that a warp's threads have.
const CHUNK: u32 = 32;
const OF_WARP: u32 = 32 * CHUNK;
const WARPS: u32 = kernel::THREADS / 32;
/// The most positions of a sequence. Attention for tensor cores reads long caches faster: on an H200 a step of Qwen3 30B
/// A3B takes 1.61 ms instead of 2.10 after 128 positions, 1.82 instead of 2.17 after 2,048, but about 2.7 instead of
/// 2.41 after 8,192.
const MOST_POSITIONS: u64 = 8192;

/// Launches fused to one.
pub(super) struct Stack {
    pub(super) phases: Vec<Phase>,
    common: Common,
    pub(super) groups: u32,
    /// Bytes of a place in the ring of weights.
    pub(super) slot_bytes: u32,
    pub(super) exchange: Exchange,
}

/// One phase. Its places in the exchange are known when all phases are: [`Stack::told`].
#[derive(Clone, Default)]
pub(super) struct Phase {
    /// The phase as the kernel reads it.
    pub(super) told: kernel::Phase,
    /// The phase whose values it reads, and the router whose logits it reads.
    pub(super) source: Option<usize>,
    pub(super) logits: Option<usize>,
    /// Floats that it outputs, and the offset after them of the statistics of attention.
    gives: usize,
    stats: usize,
}

/// The longest stack that begins with the first of these launches, and how many they are.
pub(super) fn plan(launches: &Launches, max_shared: u32, groups: u32) -> Option<(Stack, usize)> {
    let ring = max_shared.checked_sub(SHARED)?;
    let mut chain = Chain { groups, ..Chain::default() };
    // A router's choice is part of the next phase: it cannot be the last.
    let mut complete = (0, 0);
    for (i, launch) in launches.iter().enumerate() {
        let Some((native, arguments)) = launch else { break };
        let joined = match &native.phase {
            Some(StackPhase::Products(args)) => chain.products(args, arguments),
            Some(StackPhase::Biases(args)) => chain.biases(args, arguments),
            Some(StackPhase::Attention(args, d)) => chain.attention(args, *d, arguments),
            Some(StackPhase::Router(args)) => chain.router(args, arguments),
            Some(StackPhase::Experts(args)) => chain.experts(args, arguments),
            Some(StackPhase::ExpertSum(args)) => chain.sum(args, arguments),
            Some(StackPhase::Ternary { .. } | StackPhase::AttentionF32(_)) | None => None,
        };
        if joined.is_none() {
            break;
        }
        if !chain.routes() {
            complete = (i + 1, chain.phases.len());
        }
    }
    let (count, phases) = complete;
    let Chain { phases: mut all, common, .. } = chain;
    all.truncate(phases);
    // Others stay apart. On an H200 a layer of Qwen3 30B A3B takes 32 µs instead of 42, but dense layers of 8B take 52
    // instead of 46, because the products' instructions, not the memory, then say the speed. Without attention nothing
    // was measured.
    let has = |what: &dyn Fn(&kernel::Phase) -> bool| all.iter().any(|p| what(&p.told));
    if count < LEAST || !has(&|p| p.flags & kernel::CHOOSE != 0) || !has(&|p| p.kind == kernel::ATTENTION) {
        return None;
    }
    let slot_bytes = divide(ring, &mut all)?;
    let exchange = Exchange::of(all.iter().map(|p| p.gives))?;
    Some((Stack { phases: all, common, groups, slot_bytes, exchange }, count))
}

/// The size of a place in the ring; sets the rows that are copied at a time. `None` if a row of some matrix has no room.
fn divide(ring: u32, phases: &mut [Phase]) -> Option<u32> {
    let bytes = ring / SLOTS / 128 * 128;
    let mut products = phases.iter_mut().filter(|p| p.told.kind == kernel::PRODUCTS);
    products.all(|p| p.told.divide(bytes)).then_some(bytes)
}

/// The division of a phase's rows into pieces.
trait Pieces {
    /// Sets the rows of each matrix that fit into this many bytes; whether at least one does.
    fn divide(&mut self, bytes: u32) -> bool;
}

impl Pieces for kernel::Phase {
    fn divide(&mut self, bytes: u32) -> bool {
        let gated = self.flags & kernel::GATED != 0;
        let copies = if gated { 2 } else { self.segments };
        let room = bytes.saturating_sub(copies * 3 * COPY_MORE);
        let matrices = if gated { 1 } else { 3 };
        let mut fits = true;
        for m in 0..matrices {
            let row: u32 = self.bytes[3 * m..3 * m + 3].iter().sum();
            if row == 0 {
                continue;
            }
            let fit = room / (row * copies);
            fits &= fit > 0;
            // Warps take four rows each at a time, or fewer.
            let together = WARPS / self.parts.max(1);
            let unit = (1..=4).rev().map(|rows| rows * together).find(|unit| *unit <= fit).unwrap_or(1);
            self.piece[m] = fit - fit % unit;
        }
        fits
    }
}

/// A stack under construction.
#[derive(Default)]
struct Chain {
    phases: Vec<Phase>,
    common: Common,
    groups: u32,
    /// Addresses and lengths of the newest phase's outputs; `None` before the first phase.
    given: Option<Vec<(u64, u32)>>,
    /// Results: address, and rows if a phase has only this result.
    results: Vec<(u64, u32)>,
    /// The router whose experts follow, and the results of its choice.
    router: Option<Routed>,
}

/// A router's phase, and what its launch reads and writes.
#[derive(Clone, Default)]
struct Routed {
    phase: usize,
    /// Whether its experts have not come yet.
    open: bool,
    experts: u32,
    chosen: u32,
    form: u32,
    ids: u64,
    weights: u64,
    /// What the experts read: codes with scales, or floats, the flag of which is `floats`.
    converted: u64,
    x_scales: u64,
    floats: Option<u32>,
}

impl Chain {
    fn routes(&self) -> bool {
        self.router.as_ref().is_some_and(|r| r.open)
    }

    /// Sets the number of tokens, if it comes from the step block: it must be the same for all phases.
    fn counts(&mut self, step: u64, slot: u32) -> Option<()> {
        let count = (step != 0 && slot != u32::MAX).then_some((step, slot));
        if self.phases.is_empty() {
            self.common.step = count;
        }
        (self.common.step == count).then_some(())
    }

    /// The x of a phase: null and the phase before if that outputs it; `None` if x is neither that nor older than the
    /// stack.
    fn source(&self, x: u64, k: u32) -> Option<(u64, Option<usize>)> {
        match &self.given {
            None => Some((x, None)),
            Some(tensors) => (!self.routes() && *tensors == [(x, k)]).then_some((0, Some(self.phases.len() - 1))),
        }
    }

    /// The rows of a workgroup, and how many workgroups have one more: all must have some, so that those that read a
    /// phase's results know that all others have come as far.
    fn share(&self, rows: u32) -> Option<(u32, u32)> {
        let (each, over) = (rows / self.groups, rows % self.groups);
        (each > 0).then_some((each, over))
    }

    /// Whether each workgroup adds rows that it computed itself, or rows older than the stack.
    fn adds(&self, residual: u64, rows: u32) -> bool {
        self.results.iter().rev().find(|r| r.0 == residual).is_none_or(|r| r.1 == rows)
    }

    /// A phase of products with these matrices, without its results. `k`: elements of a segment.
    fn template(
        &self,
        matrices: &[PhaseMatrix],
        [k, segments, rows]: [u32; 3],
        gated: bool,
        arguments: &Arguments,
    ) -> Option<kernel::Phase> {
        let floats = matrices.first()?.has_floats();
        if matrices.iter().any(|m| m.has_floats() != floats) {
            return None;
        }
        let (of_warp, longest) =
            if floats { (kernel::SHORT_OF_WARP, kernel::MOST_SHORT) } else { (OF_WARP, kernel::MOST_LENGTH) };
        let length = k.checked_mul(segments)?;
        let (chunks, parts) = (k / CHUNK, length.div_ceil(of_warp));
        let (each, over) = self.share(rows)?;
        let most = (each + u32::from(over > 0)) * if gated { 2 } else { 1 };
        let served =
            k > 0 && k.is_multiple_of(CHUNK) && length <= longest && most.checked_mul(parts)? <= kernel::MOST_SUMS;
        if !served {
            return None;
        }
        let mut told = kernel::Phase {
            kind: kernel::PRODUCTS,
            flags: if gated { kernel::GATED } else { 0 } | if floats { kernel::SHORT } else { 0 },
            k: length,
            each,
            over,
            chunks,
            parts,
            magic: 256 / parts + 1,
            segments,
            segment_magic: 65_536 / chunks + 1,
            m0: rows,
            per: 1.0 / length as f32,
            ..Default::default()
        };
        set_matrices(&mut told, matrices, k, arguments)?;
        Some(told)
    }

    fn products(&mut self, args: &PhaseProducts, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let gated = args.gate.is_some();
        let rows = match gated {
            true => args.matrices.first()?.rows,
            false => args.matrices.iter().try_fold(0u32, |sum, m| sum.checked_add(m.rows))?,
        };
        let (x, source) = self.source(at(args.x)?, args.k)?;
        let mut told = self.template(&args.matrices, [args.k, 1, rows], gated, arguments)?;
        if !gated {
            told.m0 = args.matrices.first()?.rows;
            told.m1 = args.matrices.get(1).map_or(0, |m| m.rows);
        }
        told.after = args.gate.map_or(0, number_of);
        told.x = x;
        if let Some((norm, eps)) = args.norm {
            (told.norm, told.eps) = (at(norm)?, eps);
        }
        if let Some(residual) = args.residual {
            told.residual = at(residual)?;
            if told.each >= kernel::MOST_RESIDUAL || gated || !self.adds(told.residual, rows) {
                return None;
            }
        }
        let mut tensors = Vec::new();
        for (i, output) in args.outputs.iter().enumerate() {
            *told.y.get_mut(i)? = at(*output)?;
            tensors.push((told.y[i], if gated { rows } else { args.matrices.get(i)?.rows }));
        }
        if tensors.iter().any(|t| t.0 == 0) || tensors.len() != if gated { 1 } else { args.matrices.len() } {
            return None;
        }
        self.counts(at(args.step.0)?, args.step.1)?;
        self.give(Phase { told, source, gives: rows as usize, ..Phase::default() }, tensors);
        Some(())
    }

    /// What is added to the results of the phase before, which are then its results.
    fn biases(&mut self, args: &PhaseBiases, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let sums = args.sums.iter().map(|(x, bias, y, m)| Some((at(*x)?, at(*bias)?, at(*y)?, *m)));
        let sums = sums.collect::<Option<Vec<_>>>()?;
        let residual = match args.residual {
            Some(residual) => at(residual)?,
            None => 0,
        };
        let told = &self.phases.last()?.told;
        let plain = kernel::GATED | kernel::EXPERTS | kernel::JOINED | kernel::FLOATS;
        let rows = if told.m1 == 0 { told.m0 } else { 0 };
        // Workgroups write results while others read x, if it comes from memory: a result may have its place since.
        let apart =
            |y: u64, m: u32| told.x == 0 || y + u64::from(m) * 4 <= told.x || told.x + u64::from(told.k) * 4 <= y;
        let served = !self.routes()
            && told.kind == kernel::PRODUCTS
            && told.flags & plain == 0
            && told.bias == [0; 3]
            && told.residual == 0
            && told.each < kernel::MOST_RESIDUAL
            && sums.iter().all(|(_, _, y, m)| apart(*y, *m))
            && self.given.as_ref()?.iter().copied().eq(sums.iter().map(|(x, _, _, m)| (*x, *m)))
            && (residual == 0 || self.adds(residual, rows));
        if !served {
            return None;
        }
        self.counts(at(args.step.0)?, args.step.1)?;
        let told = &mut self.phases.last_mut()?.told;
        told.residual = residual;
        for (i, (x, bias, y, _)) in sums.iter().enumerate() {
            told.bias[i] = *bias;
            // In place there is nothing without the bias that others could read.
            told.plain[i] = if x == y { 0 } else { *x };
            told.y[i] = *y;
        }
        let tensors: Vec<_> = sums.iter().map(|(_, _, y, m)| (*y, *m)).collect();
        self.record(&tensors);
        self.given = Some(tensors);
        Some(())
    }

    /// Notes results, which later phases may add.
    fn record(&mut self, tensors: &[(u64, u32)]) {
        let only = tensors.len() == 1;
        self.results.extend(tensors.iter().map(|(address, n)| (*address, if only { *n } else { 0 })));
    }

    /// Adds a phase with its results.
    fn give(&mut self, phase: Phase, tensors: Vec<(u64, u32)>) {
        self.record(&tensors);
        self.given = Some(tensors);
        self.phases.push(phase);
    }

    fn attention(&mut self, args: &AttentionFew, d: u32, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let AttentionFew { heads, kv_heads, sizes, flags, tokens, .. } = *args;
        let (pairs, window) = (sizes >> ATTENTION_PAIRS, flags >> ATTENTION_WINDOW);
        let (q, k) = (heads.checked_mul(d)?, kv_heads.checked_mul(d)?);
        let given = [(at(args.q)?, q), (at(args.k)?, k), (at(args.v)?, k)];
        let splits = (self.groups / kv_heads.max(1)).min(kernel::PARTS_OF_HEAD);
        let flags = flags & !(window << ATTENTION_WINDOW);
        let sinks = flags & ATTENTION_SINKS != 0;
        let served = *self.given.as_ref()? == given
            && !self.routes()
            && splits > 0
            && heads.is_multiple_of(kv_heads)
            && heads / kv_heads <= kernel::MOST_HEADS
            && matches!(d, 64 | 128)
            && 2 * pairs <= d
            && flags & !(ATTENTION_ADJACENT | ATTENTION_SINKS) == ATTENTION_APPEND | ATTENTION_COMBINE
            && args.cap == 0.0
            && args.narrow == 0
            && u64::from(args.columns) << args.shift <= MOST_POSITIONS;
        if !served {
            return None;
        }
        let attention = attention!(args, at, splits, d, flags);
        if self.common.attention.as_ref().is_some_and(|a| *a != attention) {
            return None;
        }
        self.counts(at(tokens.step)?, tokens.slot)?;
        self.common.attention = Some(attention);
        let before = self.phases.len() - 1;
        let stats = (kv_heads * splits * (heads / kv_heads) * d) as usize;
        let (keys, values, normed) = (at(args.keys)?, at(args.values)?, args.eps >= 0.0);
        let told = kernel::Phase {
            kind: kernel::ATTENTION,
            scale: args.scale,
            window,
            eps: args.eps,
            keys,
            values,
            q_norm: if normed { at(args.q_norm)? } else { 0 },
            k_norm: if normed { at(args.k_norm)? } else { 0 },
            ..Default::default()
        };
        let gives = stats + (heads * splits * 2) as usize;
        self.phases.push(Phase { told, source: Some(before), gives, stats, logits: None });
        let (fours, out) = (q / 4, at(args.out)?);
        let told = kernel::Phase {
            kind: kernel::COMBINE,
            each: fours / self.groups,
            over: fours % self.groups,
            sinks: if sinks { at(args.sinks)? } else { 0 },
            y: [out, 0, 0],
            ..Default::default()
        };
        let combine = Phase { told, source: Some(before + 1), gives: q as usize, stats, logits: None };
        self.give(combine, vec![(out, q)]);
        // Its rows are shared otherwise than those of products.
        self.results.last_mut()?.1 = 0;
        Some(())
    }

    fn router(&mut self, args: &Router, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let (x, source) = self.source(at(args.x)?, args.k)?;
        let (converted, floats) = match args.conversion {
            router::TO_CODES => (args.converted, None),
            router::TO_BF16 => (args.converted, Some(kernel::AS_BF16)),
            _ => (args.normed, Some(0)),
        };
        let served = (args.stored == 0) == (args.conversion != router::NONE)
            && args.least == 0.0
            && args.n <= kernel::MOST_EXPERTS
            && args.chosen <= kernel::MOST_JOINED
            && args.k.is_multiple_of(CHUNK)
            && args.k <= kernel::MOST_FLOATS
            // Its experts read the same values of the phase before.
            && source.is_some();
        if !served {
            return None;
        }
        self.counts(at(args.tokens.step)?, args.tokens.slot)?;
        let told = kernel::Phase {
            kind: kernel::PRODUCTS,
            flags: kernel::FLOATS,
            k: args.k,
            each: args.n / self.groups,
            over: args.n % self.groups,
            parts: WARPS,
            segments: 1,
            m0: args.n,
            types: [kernel::TYPE_F32, 0, 0],
            bytes: [args.k * 4, 0, 0, 0, 0, 0, 0, 0, 0],
            eps: args.eps,
            per: 1.0 / args.k as f32,
            x,
            norm: at(args.norm)?,
            bias: [if args.biased != 0 { at(args.bias)? } else { 0 }, 0, 0],
            planes: [at(args.w)?, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Default::default()
        };
        self.router = Some(Routed {
            phase: self.phases.len(),
            open: true,
            experts: args.n,
            chosen: args.chosen,
            form: args.form,
            ids: at(args.ids)?,
            weights: at(args.weights)?,
            converted: at(converted)?,
            x_scales: at(args.x_scales)?,
            floats,
        });
        self.phases.push(Phase { told, source, gives: args.n as usize, ..Phase::default() });
        Some(())
    }

    fn experts(&mut self, args: &PhaseExperts, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let routed = self.router.clone().filter(|r| r.open)?;
        let router = self.phases.get(routed.phase)?.clone();
        let m = args.matrices.first()?.rows;
        let rows = m.checked_mul(args.slots)?;
        let served = args.matrices.len() == 2
            && (at(args.x)?, at(args.ids)?) == (routed.converted, routed.ids)
            && (args.slots, args.experts, args.k) == (routed.chosen, routed.experts, router.told.k)
            && args.matrices[0].has_floats() == routed.floats.is_some()
            && args.bias[0].is_some() == args.bias[1].is_some();
        if !served {
            return None;
        }
        let mut told = self.template(&args.matrices, [args.k, 1, rows], true, arguments)?;
        told.flags |= kernel::CHOOSE | kernel::EXPERTS | routed.floats.unwrap_or(0);
        told.m0 = m;
        set_biases(&mut told, args.bias, arguments)?;
        told.after = number_of(args.gate?);
        (told.norm, told.eps) = (router.told.norm, router.told.eps);
        (told.experts, told.chosen, told.form) = (routed.experts, routed.chosen, routed.form);
        (told.ids, told.weights) = (routed.ids, routed.weights);
        (told.converted, told.x_scales) = (routed.converted, routed.x_scales);
        told.y[0] = at(args.y)?;
        self.counts(at(args.step.0)?, args.step.1)?;
        let tensors = vec![(told.y[0], rows)];
        let phase =
            Phase { told, source: router.source, logits: Some(routed.phase), gives: rows as usize, ..Phase::default() };
        self.give(phase, tensors);
        self.router = Some(Routed { open: false, ..routed });
        Some(())
    }

    fn sum(&mut self, args: &PhaseExperts, arguments: &Arguments) -> Option<()> {
        let at = |memory| address(memory, arguments);
        let routed = self.router.clone().filter(|r| !r.open)?;
        let [matrix] = &args.matrices[..] else { return None };
        let (rows, x) = (matrix.rows, at(args.x)?);
        let (_, source) = self.source(x, args.k.checked_mul(args.slots)?)?;
        let served = source == Some(routed.phase + 1)
            && (at(args.ids)?, at(args.weights?)?) == (routed.ids, routed.weights)
            && (args.slots, args.experts) == (routed.chosen, routed.experts);
        if !served {
            return None;
        }
        let mut told = self.template(&args.matrices, [args.k, args.slots, rows], false, arguments)?;
        told.flags |= kernel::JOINED;
        set_biases(&mut told, args.bias, arguments)?;
        if let Some(residual) = args.residual {
            told.residual = at(residual)?;
            if told.each >= kernel::MOST_RESIDUAL || !self.adds(told.residual, rows) {
                return None;
            }
        }
        told.y[0] = at(args.y)?;
        self.counts(at(args.step.0)?, args.step.1)?;
        let tensors = vec![(told.y[0], rows)];
        self.give(Phase { told, source, gives: rows as usize, ..Phase::default() }, tensors);
        Some(())
    }
}

/// Sets types, planes and sizes of a phase's matrices, whose rows or segments have `k` elements.
fn set_matrices(told: &mut kernel::Phase, matrices: &[PhaseMatrix], k: u32, arguments: &Arguments) -> Option<()> {
    for (i, matrix) in matrices.iter().enumerate() {
        *told.types.get_mut(i)? = type_of(matrix.weights)?;
        for (plane, bytes) in matrix.row_bytes(k)?.into_iter().enumerate() {
            told.bytes[3 * i + plane] = bytes;
            told.planes[3 * i + plane] = address(matrix.planes[plane], arguments)?;
        }
    }
    Some(())
}

/// Sets the biases of a phase whose rows have one round.
fn set_biases(told: &mut kernel::Phase, biases: [Option<Memory>; 2], arguments: &Arguments) -> Option<()> {
    for (bias, memory) in told.bias.iter_mut().zip(biases) {
        if let Some(memory) = memory {
            *bias = address(memory, arguments)?;
        }
    }
    (told.bias == [0; 3] || told.each < kernel::MOST_RESIDUAL).then_some(())
}

/// The kernel's number of a gate.
fn number_of(gate: Gate) -> u32 {
    match gate {
        Gate::Swiglu => kernel::GATE_SWIGLU,
        Gate::Relu2 => kernel::GATE_RELU2,
        Gate::ClampedSwiglu => kernel::GATE_CLAMPED_SWIGLU,
    }
}

/// The kernel's number of a type of weights.
pub(super) fn type_of(weights: DType) -> Option<u32> {
    let block = match weights {
        DType::BF16 => return Some(kernel::TYPE_BF16),
        DType::F16 => return Some(kernel::TYPE_F16),
        DType::Planes(block) => block,
        _ => return None,
    };
    Some(match block {
        BlockType::Q8_0 => kernel::TYPE_Q8_0,
        BlockType::Q4_0 => kernel::TYPE_Q4_0,
        BlockType::Q4_1 => kernel::TYPE_Q4_1,
        BlockType::Q5_0 => kernel::TYPE_Q5_0,
        BlockType::Q5_1 => kernel::TYPE_Q5_1,
        BlockType::Q2_K => kernel::TYPE_Q2_K,
        BlockType::Q3_K => kernel::TYPE_Q3_K,
        BlockType::Q4_K => kernel::TYPE_Q4_K,
        BlockType::Q5_K => kernel::TYPE_Q5_K,
        BlockType::Q6_K => kernel::TYPE_Q6_K,
        BlockType::IQ4_NL => kernel::TYPE_IQ4_NL,
        BlockType::IQ4_XS => kernel::TYPE_IQ4_XS,
        BlockType::MXFP4 => kernel::TYPE_MXFP4,
        BlockType::NVFP4 => kernel::TYPE_NVFP4,
        BlockType::IQ2_N => kernel::TYPE_IQ2_N,
        BlockType::IQ3_XXS_N => kernel::TYPE_IQ3_XXS_N,
        BlockType::IQ3_S_N => kernel::TYPE_IQ3_S_N,
        BlockType::F8_E4M3 => kernel::TYPE_F8,
        _ => return None,
    })
}

impl Stack {
    /// Phase `p` as the kernel reads it, with its places in the exchange.
    pub(super) fn told(&self, p: usize) -> kernel::Phase {
        let (exchange, phase) = (&self.exchange, &self.phases[p]);
        let of = |phase: Option<usize>| phase.map_or((0, 0), |p| (exchange.place(p), exchange.tag(p)));
        let ((in_at, in_tag), (logits_at, logits_tag)) = (of(phase.source), of(phase.logits));
        // The parts of attention come with their statistics.
        let stats_from = if phase.told.kind == kernel::ATTENTION { exchange.place(p) } else { in_at };
        kernel::Phase {
            in_at,
            in_tag,
            out_at: exchange.place(p),
            out_tag: exchange.tag(p),
            logits_at,
            logits_tag,
            stats_at: phase.stats as u32 + stats_from,
            ..phase.told.clone()
        }
    }

    /// Bytes of shared memory.
    pub(super) fn shared(&self) -> u32 {
        SHARED + SLOTS * self.slot_bytes
    }

    /// The kernel's arguments, with the stack's memory.
    pub(super) fn arguments(&self, own: u64) -> DecodeLayers {
        let (ring_slots, slot_bytes) = (SLOTS, self.slot_bytes);
        arguments!(DecodeLayers, self, own, of, d: of.d, ring_slots: ring_slots, slot_bytes: slot_bytes)
    }
}
