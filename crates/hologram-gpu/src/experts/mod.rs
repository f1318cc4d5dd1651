//! `expert_matmul` and `expert_sum`: products with the matrices of the experts that each token has chosen, alone, two
//! with their gate, or one with the sum of its results.
//!
//! A slot is a token and one of its experts. [`few`] and [`tiles`] read an expert's matrix for each slot, the latter for
//! tensor cores; [`many`] sorts the slots by expert and reads each matrix once for all of them, on tensor cores.

use hologram_device::{
    AfterExperts, Conversion, DType, Extent, Fused, Gate, GroupSpec, KernelSpec, Operation, TensorSpec,
};

mod few;
mod many;
#[cfg(test)]
mod tests;
mod tiles;
mod wide;

use super::gemm::Mode;
use super::kernels::expert_sums::{self, ExpertSum};
use super::launch::{Count, Places, all_f32, launch, number, one_token, single};
use super::stack::{self, PhaseExperts, PhaseMatrix};
use super::{Memory, NativeKernel, Part, StackPhase, Target, elementwise};

/// The operation after the products; the numbers are those of `After` in `experts.k`, except for sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Store = 0,
    Swiglu = 1,
    Relu2 = 2,
    ClampedSwiglu = 3,
    Sum,
}

/// A request in the kernels' terms.
#[derive(Clone, Debug)]
struct Request {
    /// The format of the activations that are multiplied.
    x: DType,
    /// The least magnitude of a scale, if f32 activations are quantized to `x` first.
    quantized: Option<f32>,
    /// How many `f32` activations are converted to `bf16` first, if they are, by a launch of its own.
    cast: Option<Count>,
    w: DType,
    places: Places,
    /// The inputs that hold the activations, the experts' matrices and, with a gate, the second matrices, the ids, the
    /// weights of a sum and what is added to it.
    inputs: Inputs,
    tokens: Extent,
    slots: usize,
    experts: usize,
    /// Length of rows; rows of an expert's matrix.
    k: usize,
    m: usize,
    /// Whether each slot has activations of its own.
    per_slot: bool,
    after: After,
}

#[derive(Clone, Copy, Debug)]
struct Inputs {
    x: usize,
    w: [Option<usize>; 2],
    bias: [Option<usize>; 2],
    ids: usize,
    weights: Option<usize>,
    residual: Option<usize>,
}

/// The native kernel for `expert_matmul`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let Operation::ExpertMatmul { experts } = spec.op else { return None };
    if spec.in_place.is_some() {
        return None;
    }
    let bias = [(spec.inputs.len() > 3).then_some(3), None];
    let inputs = Inputs { x: 0, w: [Some(1), None], bias, ids: 2, weights: None, residual: None };
    let (tensors, output) = (&spec.inputs, &spec.output);
    Request::of(tensors, output, Places::of(spec), inputs, (experts, After::Store), None)?.kernel(target)
}

/// The native kernel for products with a gate or a sum.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::Experts(fused) = &group.fused else { return None };
    let (w, bias) = (Some(fused.weights), fused.bias);
    let mut inputs =
        Inputs { x: fused.x, w: [w, None], bias: [bias, None], ids: fused.ids, weights: None, residual: None };
    let after = match fused.after {
        AfterExperts::Gate { gate, up, up_bias } => {
            (inputs.w, inputs.bias) = ([w, Some(up)], [bias, up_bias]);
            match gate {
                Gate::Swiglu => After::Swiglu,
                Gate::Relu2 => After::Relu2,
                Gate::ClampedSwiglu => After::ClampedSwiglu,
            }
        }
        AfterExperts::Sum { weights, residual } => {
            (inputs.weights, inputs.residual) = (Some(weights), residual);
            After::Sum
        }
    };
    let converted = match &fused.conversion {
        None => None,
        Some((Conversion::Quantize { floor, .. }, to)) => Some((to.format, Some(*floor))),
        Some((Conversion::Cast, to)) => Some((to.format, None)),
    };
    let output = &group.nodes.last()?.output;
    let places = Places::of_group(group, output);
    Request::of(&group.inputs, output, places, inputs, (fused.experts, after), converted)?.kernel(target)
}

/// The native kernel for `expert_sum`.
pub(super) fn find_sum(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [x, weights] = spec.inputs.as_slice() else { return None };
    let [tokens, Extent::Fixed(slots)] = weights.shape[..] else { return None };
    let m = spec.output.row_len();
    if spec.in_place.is_some() || !all_f32([x, weights, &spec.output]) || x.row_len() != slots * m {
        return None;
    }
    let (places, count) = (Places::of(spec), Count::of(&[tokens])?);
    let args = ExpertSum {
        x: places.input(0, 0),
        weights: places.input(1, 0),
        y: places.output(0),
        tokens: places.counted(count),
        m: number(m)?,
        slots: number(slots)?,
    };
    let threads = expert_sums::THREADS as usize;
    Some(single(launch(args, "expert_sum", [m.div_ceil(threads), count.max()], threads)?))
}

impl Request {
    fn of(
        tensors: &[TensorSpec],
        output: &TensorSpec,
        places: Places,
        inputs: Inputs,
        (experts, after): (u32, After),
        converted: Option<(DType, Option<f32>)>,
    ) -> Option<Request> {
        let [x, ids] = [inputs.x, inputs.ids].map(|i| tensors.get(i));
        let (x, ids, w) = (x?, ids?, tensors.get(inputs.w[0]?)?);
        let ([tokens, Extent::Fixed(width)], [Extent::Fixed(rows), Extent::Fixed(k)], [n, Extent::Fixed(slots)]) =
            (x.shape.as_slice(), w.shape.as_slice(), ids.shape.as_slice())
        else {
            return None;
        };
        let experts = experts as usize;
        if experts == 0 || *slots == 0 || *k == 0 || !rows.is_multiple_of(experts) {
            return None;
        }
        let (m, summed) = (rows / experts, after == After::Sum);
        let out = [*tokens, Extent::Fixed(if summed { m } else { m * slots })];
        let of_sum = |i: Option<usize>, shape: &[Extent]| {
            i.is_none_or(|i| tensors.get(i).is_some_and(|t| t.format == DType::F32 && t.shape == shape))
        };
        let fits = m > 0
            && n == tokens
            && ids.format == DType::U32
            && (width == k || *width == slots * k)
            && output.format == DType::F32
            && output.shape == out
            && inputs.w[1].is_none_or(|up| tensors.get(up) == Some(w))
            && inputs.bias.into_iter().all(|b| of_sum(b, &[experts, m].map(Extent::Fixed)))
            && (inputs.w[1].is_none() || inputs.bias[0].is_some() == inputs.bias[1].is_some())
            && (converted.is_none() || x.format == DType::F32)
            && of_sum(inputs.weights, &ids.shape)
            && of_sum(inputs.residual, &out);
        let cast = match converted {
            Some((_, None)) => Some(Count::elements(x)?),
            _ => None,
        };
        fits.then(|| Request {
            x: converted.map_or(x.format, |(format, _)| format),
            quantized: converted.and_then(|(_, floor)| floor),
            cast,
            w: w.format,
            places,
            inputs,
            tokens: *tokens,
            slots: *slots,
            experts,
            k: *k,
            m,
            per_slot: width != k,
            after,
        })
    }

    fn kernel(&self, target: Target) -> Option<NativeKernel> {
        // The products of many tokens are summed by a kernel of its own.
        match many::serves(self, target) {
            true if self.after == After::Sum || self.cast.is_some() => None,
            true => many::find(self, target),
            false => {
                let mut kernel = tiles::find(self, target).or_else(|| few::find(self, target))?;
                if let Some(elements) = self.cast {
                    let (x, y) = (self.places.input(self.inputs.x, 0), self.x(0));
                    let cast = elementwise::to_bf16(x, y, elements, self.places.step())?;
                    kernel.parts.insert(0, Part::Kernel(cast));
                    kernel.scratch = elements.max() * 2;
                }
                Some(NativeKernel { phase: self.phase().filter(|_| stack::fuses_to_stacks(target)), ..kernel })
            }
        }
    }

    /// View `view` of the activations that kernels of a few tokens read.
    fn x(&self, view: usize) -> Memory {
        match self.cast {
            Some(_) => Memory::Scratch(0),
            None => self.places.input(self.inputs.x, view),
        }
    }

    /// The request of one token as a phase of a stack.
    fn phase(&self) -> Option<StackPhase> {
        let summed = self.after == After::Sum;
        let quantized = if summed && !stack::has_floats(self.w) { Some(0.0) } else { None };
        let served = (summed || self.gated())
            && stack::serves(self.w, self.x)
            && self.per_slot == summed
            && self.quantized == quantized
            // Sums read f32.
            && (!summed || self.cast.is_some() || self.x != DType::BF16);
        if !served {
            return None;
        }
        let rows = number(self.m)?;
        let (inputs, places) = (&self.inputs, &self.places);
        let tensors = inputs.w.iter().flatten().map(|i| PhaseMatrix::of(self.w, places.at(*i), rows));
        let phase = PhaseExperts {
            x: places.input(inputs.x, 0),
            k: number(self.k)?,
            slots: number(self.slots)?,
            experts: number(self.experts)?,
            matrices: tensors.collect::<Option<_>>()?,
            gate: match self.after {
                After::Swiglu => Some(Gate::Swiglu),
                After::Relu2 => Some(Gate::Relu2),
                After::ClampedSwiglu => Some(Gate::ClampedSwiglu),
                After::Store | After::Sum => None,
            },
            bias: inputs.bias.map(|b| b.map(|b| places.input(b, 0))),
            ids: places.input(inputs.ids, 0),
            weights: inputs.weights.map(|w| places.input(w, 0)),
            residual: inputs.residual.map(|r| places.input(r, 0)),
            y: places.output(0),
            step: one_token(places.counted(Count::of(&[self.tokens])?))?,
        };
        Some(if summed { StackPhase::ExpertSum(phase) } else { StackPhase::Experts(phase) })
    }

    /// What the products of many tokens do before they are stored.
    fn mode(&self) -> Mode {
        match self.after {
            After::Swiglu => Mode::Swiglu,
            After::Relu2 => Mode::Relu2,
            After::ClampedSwiglu => Mode::ClampedSwiglu,
            After::Store | After::Sum => Mode::Store,
        }
    }

    fn gated(&self) -> bool {
        matches!(self.after, After::Swiglu | After::Relu2 | After::ClampedSwiglu)
    }

    /// The codes, high plane and records or scales of matrix `i`.
    fn matrix(&self, i: usize) -> [Memory; 3] {
        let Some(input) = self.inputs.w[i] else { return [Memory::Null; 3] };
        match self.w {
            DType::Planes(packed) => {
                let planes = super::launch::Planes::at(packed, self.places.at(input));
                [planes.low, planes.high, planes.records]
            }
            DType::Plain(_) => [self.places.input(input, 0), Memory::Null, Memory::Null],
            _ => [self.places.input(input, 0), Memory::Null, self.places.input(input, 1)],
        }
    }

    /// The first view of an input that may be absent.
    fn optional(&self, input: Option<usize>) -> Memory {
        Memory::optional(input.map(|i| self.places.at(i)))
    }

    /// The part of kernel names for the weights, and the elements of a row that the kernels take at a time.
    fn weights(&self) -> Option<(String, usize)> {
        Some(match self.w {
            DType::F32 => ("f32".into(), 4),
            DType::F16 => ("f16".into(), 8),
            DType::BF16 => ("bf16".into(), 8),
            DType::Q8Planes => ("q8".into(), 32),
            DType::Q4Planes => ("q4".into(), 32),
            DType::Planes(packed) if !self.w.is_ternary() => {
                (super::launch::packed_name(packed), packed.row().len.max(32))
            }
            _ => return None,
        })
    }
}
