//! Products of a few tokens with weights (`matvec.k`; of one token in 8-bit arithmetic `matvec_i8.k`; of packed weights
//! `matvec_packed.k`, of two types of them `matvec_two.cu`; of codes with `f32` on Apple GPUs `matvec_floats.metal`):
//! alone or several that read the same activations; fused with the gate or the residual addition after them, and with
//! the norm and the conversion of the activations before them.

use hologram_device::{
    AfterProducts, Conversion, DType, Extent, Fused, Gate, GroupSpec, KernelSpec, Operation, TensorSpec,
};

mod floats;
mod int8;
mod packed;
mod plan;
#[cfg(test)]
mod tests;
mod two;

pub(super) use packed::ZEROS;

use super::gemm;
use super::kernels::matvec::Matvec;
use super::launch::{MATRICES, launch, number, single};
use super::stack::{self, PhaseMatrix, PhaseProducts};
use super::{FEW_TOKENS, FEW_TOKENS_AS_F32, KernelLaunch, Memory, NativeKernel, StackPhase, Target};
use plan::{Activations, Plan, Weights, Work};

/// Values of ε that mean: no norm; no norm, and activations already quantised.
const NO_NORM: f32 = -1.0;
const QUANTISED: f32 = -2.0;
/// The most rows of all matrices, and elements of one: within the kernel's 32-bit numbers, with a margin.
const MOST_ROWS: usize = 1 << 24;
const MOST_ELEMENTS: usize = 1 << 38;

/// Whether the kernels can count so many rows of `k` elements, and the elements of so many tokens.
fn fits(rows: usize, k: usize, tokens: usize) -> bool {
    let within = |a: usize, b: usize, most: usize| a.checked_mul(b).is_some_and(|n| n <= most);
    rows <= MOST_ROWS && within(rows, k, MOST_ELEMENTS) && within(k, tokens, MOST_ROWS)
}

/// The operation after the products, numbered as in the kernel; `Bf16`: with a conversion of the gate's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Store = 0,
    Swiglu = 1,
    Relu2 = 2,
    Residual = 3,
    SwigluBf16 = 4,
    Relu2Bf16 = 5,
}

/// A tensor with the index of its binding.
type Bound<'a> = (&'a TensorSpec, usize);

/// The operations in the kernel's terms.
struct Products<'a> {
    x: Bound<'a>,
    /// The norm's weights and ε.
    norm: Option<(Bound<'a>, f32)>,
    /// The products' input, and the floor of its quantisation; `x` itself if nothing converts it.
    converted: (&'a TensorSpec, f32),
    weights: Vec<Bound<'a>>,
    after: After,
    residual: Option<Bound<'a>>,
    outputs: Vec<Bound<'a>>,
    step: Option<usize>,
}

/// The most tokens of a step for which these kernels are the fastest for rows of `k` elements. On an NVIDIA H200 tensor
/// cores were faster with `bf16` by 12 % at 3 tokens and by 90 % at 8, with ternary weights by 12 % at 4 and by 72 % at
/// 8.
fn few_tokens(activations: DType, weights: DType, k: usize, target: Target) -> usize {
    match (activations, weights) {
        (DType::BF16, DType::BF16) | (DType::I8Groups { .. }, DType::T2Planes) => 2,
        (_, w) if w.has_float_codes() => FEW_TOKENS_AS_F32,
        _ if gemm::serves_codes(activations, weights, k, target) => 1,
        _ => FEW_TOKENS,
    }
}

/// The native kernel for `matmul`, if it is the fastest.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x, w] = spec.inputs.as_slice() else { return None };
    product(spec, few_tokens(x.format, w.format, w.row_len(), target), target)
}

/// As [`find`], for products that only these kernels serve.
pub(super) fn find_rest(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    product(spec, FEW_TOKENS, target)
}

fn product(spec: &KernelSpec, most_tokens: usize, target: Target) -> Option<NativeKernel> {
    if spec.op != Operation::Matmul || spec.in_place.is_some() {
        return None;
    }
    let tensors: Vec<&TensorSpec> = spec.inputs.iter().chain([&spec.output]).collect();
    let (bound, step) = places(&tensors);
    let [x, w, y] = bound[..] else { return None };
    let products = Products {
        x,
        norm: None,
        converted: (x.0, 0.0),
        weights: vec![w],
        after: After::Store,
        residual: None,
        outputs: vec![y],
        step: spec.uses_step().then_some(step),
    };
    products.kernel_or_phase(most_tokens, target)
}

/// The native kernel for `[rms_norm]? [quantize | cast]?`, then products, two and their gate (converted to `bf16` or not),
/// or one and an addition.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::Products(fused) = &group.fused else { return None };
    let tensors: Vec<&TensorSpec> = group.bound().into_iter().map(|(t, _)| t).collect();
    let (bound, step) = places(&tensors);
    let input = |i: usize| bound.get(i).copied();
    let x = input(fused.x)?;
    let norm = match fused.norm {
        Some(norm) => Some((input(norm.weights)?, norm.eps)),
        None => None,
    };
    let converted = match &fused.conversion {
        Some((Conversion::Quantize { floor, .. }, to)) => (to, *floor),
        Some((Conversion::Cast, to)) => (to, 0.0),
        None => (x.0, 0.0),
    };
    let weights = fused.products.iter().map(|p| input(p.weights)).collect::<Option<Vec<_>>>()?;
    let (after, residual) = match fused.after {
        AfterProducts::Store => (After::Store, None),
        AfterProducts::Add { residual } => (After::Residual, Some(input(residual)?)),
        AfterProducts::Gate { gate: Gate::Swiglu, bf16: false } => (After::Swiglu, None),
        AfterProducts::Gate { gate: Gate::Relu2, bf16: false } => (After::Relu2, None),
        AfterProducts::Gate { gate: Gate::ClampedSwiglu, .. } => return None,
        AfterProducts::Gate { gate: Gate::Swiglu, bf16: true } => (After::SwigluBf16, None),
        AfterProducts::Gate { gate: Gate::Relu2, bf16: true } => (After::Relu2Bf16, None),
    };
    let outputs = bound.get(group.inputs.len()..)?.to_vec();
    let step = group.uses_step().then_some(step);
    let first = weights.first()?.0;
    let few = few_tokens(converted.0.format, first.format, first.row_len(), target);
    Products { x, norm, converted, weights, after, residual, outputs, step }.kernel_or_phase(few, target)
}

/// Tensors with the indices of their first views' bindings, and the index after all of them.
fn places<'a>(tensors: &[&'a TensorSpec]) -> (Vec<Bound<'a>>, usize) {
    let mut next = 0;
    let place = |t: &&'a TensorSpec| {
        let at = next;
        next += t.format.views(t.max_rows(), t.row_len()).len();
        (*t, at)
    };
    let bound = tensors.iter().map(place).collect();
    (bound, next)
}

impl Products<'_> {
    /// The kernel, with its form as a phase of a stack if it has one.
    fn kernel_or_phase(&self, most_tokens: usize, target: Target) -> Option<NativeKernel> {
        let kernel = self.kernel(most_tokens, target)?;
        let phase = kernel.phase.clone().or_else(|| self.phase().filter(|_| stack::fuses_to_stacks(target)));
        Some(NativeKernel { phase, ..kernel })
    }

    /// The slot of the number of tokens, the step block with it, and the greatest number.
    fn count(&self, tokens: Extent) -> Option<(u32, Memory, usize)> {
        Some(match tokens {
            Extent::Fixed(n) => (u32::MAX, Memory::Null, n),
            Extent::Step { slot, max, .. } => (slot, Memory::Binding(self.step?), max),
        })
    }

    /// The products of one token as a phase of a stack.
    fn phase(&self) -> Option<StackPhase> {
        let ((x, at), (converted, floor)) = (self.x, self.converted);
        let [tokens, Extent::Fixed(k)] = x.shape[..] else { return None };
        let (slot, step, most) = self.count(tokens)?;
        let gate = match self.after {
            After::Store | After::Residual => None,
            After::Swiglu => Some(Gate::Swiglu),
            After::Relu2 => Some(Gate::Relu2),
            After::SwigluBf16 | After::Relu2Bf16 => return None,
        };
        let served = self.weights.iter().all(|(w, _)| stack::serves(w.format, converted.format));
        if most != 1 || !served || floor != 0.0 || x.format != DType::F32 {
            return None;
        }
        let matrix = |(w, at): &Bound| PhaseMatrix::of(w.format, *at, number(w.max_rows())?);
        Some(StackPhase::Products(PhaseProducts {
            x: Memory::Binding(at),
            norm: self.norm.map(|((_, at), eps)| (Memory::Binding(at), eps)),
            k: number(k)?,
            matrices: self.weights.iter().map(matrix).collect::<Option<_>>()?,
            gate,
            residual: self.residual.map(|(_, at)| Memory::Binding(at)),
            outputs: self.outputs.iter().map(|(_, at)| Memory::Binding(*at)).collect(),
            step: (step, slot),
        }))
    }

    /// Matrices of several formats, or more than a launch has: one launch per run of one format.
    fn apart(&self, most_tokens: usize, target: Target) -> Option<NativeKernel> {
        if self.after != After::Store || self.outputs.len() != self.weights.len() {
            return None;
        }
        let (mut parts, mut outputs) = (Vec::new(), &self.outputs[..]);
        let of_one_format = self.weights.chunk_by(|(a, _), (b, _)| a.format == b.format);
        for weights in of_one_format.flat_map(|run| run.chunks(MATRICES)) {
            let (own, rest) = outputs.split_at(weights.len());
            outputs = rest;
            let (weights, outputs) = (weights.to_vec(), own.to_vec());
            let run = Products { weights, outputs, residual: None, ..*self };
            let kernel = run.kernel(most_tokens, target)?;
            if kernel.scratch + kernel.counters > 0 {
                return None;
            }
            parts.extend(kernel.parts);
        }
        Some(NativeKernel { parts, scratch: 0, counters: 0, phase: None })
    }

    fn kernel(&self, most_tokens: usize, target: Target) -> Option<NativeKernel> {
        let (x, at) = self.x;
        let (converted, floor) = self.converted;
        let [tokens, Extent::Fixed(k)] = x.shape[..] else { return None };
        let (slot, step, most) = self.count(tokens)?;
        if self.weights.len() > MATRICES || self.weights.iter().any(|(w, _)| w.format != self.weights[0].0.format) {
            return self.two(most, (slot, step), target).or_else(|| self.apart(most_tokens, target));
        }
        let format = self.weights.first()?.0.format;
        if let Some(kernel) = self.floats(most, (slot, step), target).filter(|_| (1..=most_tokens).contains(&most)) {
            return Some(kernel);
        }
        if let Some(packed) = format.packed().filter(|_| !format.has_float_codes()) {
            let few = (1..=most_tokens).contains(&most);
            return if few { self.packed(packed, most, (slot, step), target) } else { None };
        }
        let weights = Weights::of(self.weights.first()?.0.format)?;
        let activations = Activations::of(converted.format)?;
        // Already converted, or nothing to convert.
        let unchanged = std::ptr::eq(x, converted);
        let f32 = |t: &TensorSpec, shape: &[Extent]| t.format == DType::F32 && t.shape == shape;
        let served = (1..=most_tokens).contains(&most)
            && k > 0
            && k.is_multiple_of(weights.unit)
            && activations.fits(weights, k)
            && (unchanged && self.norm.is_none() || x.format == DType::F32)
            && self.norm.is_none_or(|((w, _), _)| f32(w, &[Extent::Fixed(k)]));
        if !served {
            return None;
        }
        let narrow = matches!(self.after, After::SwigluBf16 | After::Relu2Bf16);
        let gated = narrow || matches!(self.after, After::Swiglu | After::Relu2);
        let mut rows = [0; 3];
        for (i, ((w, _), m)) in self.weights.iter().zip(&mut rows).enumerate() {
            let [Extent::Fixed(n), Extent::Fixed(l)] = w.shape[..] else { return None };
            let output = self.outputs.get(i).or(self.outputs.first())?.0;
            let result = if narrow { DType::BF16 } else { DType::F32 };
            let fits = output.format == result && output.shape == [tokens, Extent::Fixed(n)];
            if l != k || n == 0 || w.format != self.weights[0].0.format || !fits {
                return None;
            }
            *m = n;
        }
        let total = if gated { rows[0] } else { rows.iter().sum() };
        if !fits(total, k, most) {
            return None;
        }
        // f32 activations without a norm are used as they are.
        let ready = unchanged && self.norm.is_none();
        let (norm, added) = (self.norm.is_some(), self.residual.is_some());
        let work = Work { weights, activations, k, rows: total, gated, tokens: most, ready, norm, added };
        if let Some(kernel) = self.int8(&work, rows, (slot, step), target) {
            return Some(kernel);
        }
        let plan = Plan::of(&work, target)?;

        let group = match activations {
            Activations::I8 { group } => group,
            _ => 1,
        };
        let matrix = |i: usize| Memory::optional(self.weights.get(i).map(|(_, at)| *at));
        let scales = |i: usize| Memory::optional(self.weights.get(i).filter(|_| weights.scaled).map(|(_, at)| at + 1));
        let result = |i: usize| Memory::optional(self.outputs.get(i).map(|(_, at)| *at));
        let args = Matvec {
            x: Memory::Binding(at),
            x_scales: Memory::optional(matches!(x.format, DType::I8Groups { .. }).then_some(at + 1)),
            norm: Memory::optional(self.norm.map(|((_, at), _)| at)),
            w0: matrix(0),
            w1: matrix(1),
            w2: matrix(2),
            s0: scales(0),
            s1: scales(1),
            s2: scales(2),
            y0: result(0),
            y1: result(1),
            y2: result(2),
            residual: Memory::optional(self.residual.map(|(_, at)| at)),
            step,
            slot,
            tokens: number(most)?,
            k: number(k)?,
            m0: number(rows[0])?,
            m1: number(rows[1])?,
            m2: number(rows[2])?,
            each: number(total / plan.workgroups)?,
            over: number(total % plan.workgroups)?,
            lanes: number(plan.lanes)?,
            after: self.after as u32,
            ready: u32::from(ready),
            group,
            eps: self.norm.map_or(NO_NORM, |(_, eps)| eps),
            least: floor,
        };
        let entry = format!("{}_{}_t{}_r{}", weights.name, activations.name(), plan.tokens, plan.rows);
        let grid = [plan.workgroups, most.div_ceil(plan.tokens)];
        let launch = launch(args, entry, grid, plan.threads)?;
        Some(single(KernelLaunch { shared: number(plan.shared)?, ..launch }))
    }
}
