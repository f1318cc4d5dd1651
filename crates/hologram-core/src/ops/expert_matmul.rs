//! Products of activations with the matrices of experts that each token has chosen.

use hologram_backends::{DType, KernelSpec, Operation, Reduction};
use hologram_isa::Type;

use super::kernel::without_grids;
use super::matmul::{add_products, fits, reference_products, reference_weights};
use super::{Kernel, Launchable, MatmulOptions, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp, no_derivative};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; its inputs are those of [`Graph::expert_linear`] or [`Graph::expert_linear_biased`] in order, with
/// the bias last.
#[derive(Debug)]
struct ExpertMatmul {
    experts: u32,
}

impl Graph {
    /// The products x·wᵀ with the matrices of chosen experts, as `f32 [n, s * m]`: the results of a token's s experts
    /// follow each other.
    ///
    /// - `x` is `[n, k]`, the same row for all experts of a token, or `[n, s * k]`, a row for each.
    /// - `w` is `[experts * m, k]`: the matrices of all `experts`, one after another.
    /// - `ids` is `u32 [n, s]`: each token's experts. An id that is not less than `experts` is an error of the run.
    ///
    /// The formats of `x` and `w`, and the precision, are those of [`Graph::linear`].
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn expert_linear(&mut self, x: NodeId, w: NodeId, ids: NodeId, experts: usize) -> Result<NodeId> {
        self.apply(ExpertMatmul { experts: experts as u32 }, &[x, w, ids])
    }

    /// As [`Graph::expert_linear`], with an expert's row of `bias`, `f32 [experts, m]`, added to its results.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn expert_linear_biased(
        &mut self,
        x: NodeId,
        w: NodeId,
        ids: NodeId,
        bias: NodeId,
        experts: usize,
    ) -> Result<NodeId> {
        self.apply(ExpertMatmul { experts: experts as u32 }, &[x, w, ids, bias])
    }
}

const THREADS: u32 = 256;

impl Op for ExpertMatmul {
    fn operation(&self) -> Operation {
        Operation::ExpertMatmul { experts: self.experts }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, w, ids, bias @ ..] = inputs else { return Err("takes x, w and ids".into()) };
        if !fits(x.format, w.format) {
            return Err(format!("there is no product of {} and {}", x.format.name(), w.format.name()).into());
        }
        let ([n, Dim::Fixed(width)], [Dim::Fixed(rows), Dim::Fixed(k)], [tokens, Dim::Fixed(slots)]) =
            (x.shape.as_slice(), w.shape.as_slice(), ids.shape.as_slice())
        else {
            return Err("takes x [n, k] or [n, s * k], w [experts * m, k] and ids [n, s]".into());
        };
        if ids.format != DType::U32 || n != tokens {
            return Err("takes u32 ids, a row for each row of x".into());
        }
        if self.experts == 0 || !rows.is_multiple_of(self.experts as usize) {
            return Err(format!("{rows} rows of w are not as many for each of {} experts", self.experts).into());
        }
        if *k == 0 || *slots == 0 || !(width == k || *width == slots * k) {
            return Err(format!("rows of {width} elements fit neither rows of {k} nor {slots} of them").into());
        }
        let (experts, m) = (self.experts as usize, rows / self.experts as usize);
        if bias.len() > 1 || bias.iter().any(|b| **b != TensorType::new(DType::F32, [experts, m].map(Dim::Fixed))) {
            return Err(format!("takes one f32 bias [{experts}, {m}] at most").into());
        }
        Ok(TensorType::new(DType::F32, [*n, Dim::Fixed(slots * m)]))
    }

    /// One thread per element.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        without_grids(spec)?;
        let size = |input: usize| spec.inputs.get(input).map_or(1, |t| t.row_len()) as u32;
        let (width, row_len, slots) = (size(0), size(1), size(2));
        let of_token = spec.output.row_len() as u32;
        let m = of_token / slots.max(1);
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (x, w, ids, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.inputs[2].clone(), k.output.clone());
        let bias = k.inputs.get(3).cloned();
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let slot = b.div(i, m);
            let row = b.rem(i, m);
            let expert = b.load(ids.views[0], slot);
            let known = b.lt(expert, self.experts);
            let of_expert = b.mul(expert, m);
            let row = b.add(of_expert, row);
            // No tensor has a row so far: the load for an expert that is out of range fails.
            let row = b.select(known, row, u32::MAX / row_len.max(1) - 1);
            let w_start = b.mul(row, row_len);
            let x_row = if width == row_len { b.div(slot, slots) } else { slot };
            let x_start = b.mul(x_row, row_len);
            let sum = b.var(0.0f32);
            add_products(b, [&x, &w], [x_start, w_start], row_len, sum);
            if let Some(bias) = &bias {
                let bias = bias.load(b, row);
                b.assign_op(sum, hologram_isa::Opcode::Add, &[sum, bias]);
            }
            out.store(b, i, sum);
        });
        let max = spec.output.max_rows() * of_token as usize;
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, w, ids] = [0, 1, 2].map(|i| call.inputs[i]);
        if g.float_of(x).is_none() {
            return Err(no_derivative("a product of quantized activations"));
        }
        let fixed = |g: &Graph, id, dim: usize| match g.shape_of(id).get(dim) {
            Some(Dim::Fixed(n)) => *n,
            _ => 0,
        };
        let (experts, k, slots) = (self.experts as usize, fixed(g, w, 1), fixed(g, ids, 1));
        let (m, shared) = (fixed(g, w, 0) / experts, fixed(g, x, 1) == k);
        let n = g.shape_of(x)[0];
        let grad = g.cast_like(call.grad, x)?;
        let by_x = match call.wanted[0] {
            true => {
                let rows = if g.float_of(w).is_some() { w } else { g.dequantized(w)? };
                let rows = g.cast_like(rows, x)?;
                let matrices = g.reshape(rows, &[experts, m, k].map(Dim::Fixed))?;
                let turned = g.permute(matrices, &[0, 2, 1])?;
                let turned = g.reshape(turned, &[experts * k, m].map(Dim::Fixed))?;
                let mut by_x = g.expert_linear(grad, turned, ids, experts)?;
                if shared {
                    by_x = g.reshape(by_x, &[n, Dim::Fixed(slots), Dim::Fixed(k)])?;
                    by_x = g.reduce(by_x, Reduction::Sum, 1)?;
                }
                Some(g.cast_like(by_x, x)?)
            }
            false => None,
        };
        let by_w = match call.wanted[1] {
            // A row for all experts of a token: their gradients in one product.
            true if shared => Some(gradient_by_matrices(g, x, grad, ids, self.experts)?),
            true => {
                let mut sum = None;
                for slot in 0..slots {
                    let x = g.slice(x, 1, slot * k, (slot + 1) * k)?;
                    let grad = g.slice(grad, 1, slot * m, (slot + 1) * m)?;
                    let ids = g.slice(ids, 1, slot, slot + 1)?;
                    let by_slot = gradient_by_matrices(g, x, grad, ids, self.experts)?;
                    sum = Some(sum.map_or(Ok(by_slot), |sum| g.add(sum, by_slot))?);
                }
                sum
            }
            false => None,
        };
        let by_w = by_w.map(|by_w| g.cast_like(by_w, w)).transpose()?;
        let mut all = vec![by_x, by_w, None];
        if call.inputs.len() > 3 {
            all.push(match call.wanted[3] {
                true => {
                    let spread = spread_over_experts(g, call.grad, ids, self.experts)?;
                    Some(g.reduce(spread, Reduction::Sum, 0)?)
                }
                false => None,
            });
        }
        Ok(all)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, w, ids, bias @ ..] = inputs else { return Reference::default() };
        let (k, slots) = (w.row_len(), ids.row_len());
        let of_expert = w.values.len() / self.experts.max(1) as usize;
        let weights = reference_weights(x.format, w);
        let mut out = Reference::default();
        for (slot, id) in ids.values.iter().enumerate() {
            let row = if x.row_len() == k { slot / slots } else { slot };
            let matrix = weights.chunks(of_expert).nth(*id as usize).unwrap_or_default();
            let first = out.values.len();
            reference_products([x.format, w.format], &x.values[row * k..][..k], matrix.chunks(k), &mut out);
            for bias in bias {
                let of_expert = bias.values.chunks(bias.row_len()).nth(*id as usize).unwrap_or_default();
                for (i, b) in of_expert.iter().enumerate() {
                    out.values[first + i] += b;
                    out.bounds[first + i] += (b.abs() + out.values[first + i].abs()) * f64::from(f32::EPSILON);
                }
            }
        }
        out
    }
}

/// The gradient by the matrices of all experts, `[experts * m, k]`, from the rows `x` (`[n, k]`) and the gradients of
/// the slots' results (`[n, s * m]`): one product adds up all tokens, at the cost of all experts.
fn gradient_by_matrices(g: &mut Graph, x: NodeId, grad: NodeId, ids: NodeId, experts: u32) -> Result<NodeId> {
    let (n, spread) = (g.shape_of(x)[0], spread_over_experts(g, grad, ids, experts)?);
    let width = match g.shape_of(spread)[2] {
        Dim::Fixed(m) => m * experts as usize,
        Dim::Extent(_) => 0,
    };
    let spread = g.reshape(spread, &[n, Dim::Fixed(width)])?;
    g.batch_matmul(spread, x, &MatmulOptions { transpose_a: true, ..MatmulOptions::default() })
}

/// The gradients of the slots' results (`[n, s * m]`), each in its expert's place of `[n, experts, m]`, which is 0
/// elsewhere.
fn spread_over_experts(g: &mut Graph, grad: NodeId, ids: NodeId, experts: u32) -> Result<NodeId> {
    let (n, all) = (g.shape_of(grad)[0], Dim::Fixed(experts as usize));
    let (slots, width) = (g.shape_of(ids)[1], g.shape_of(grad)[1]);
    let (Dim::Fixed(s), Dim::Fixed(width)) = (slots, width) else { return Ok(grad) };
    let m = width / s.max(1);
    let ids = g.reshape(ids, &[n, Dim::Fixed(1), slots])?;
    let ids = g.broadcast_to(ids, &[n, all, slots])?;
    let places = g.arange(Type::U32, 0.0, 1.0, all)?;
    let places = g.reshape(places, &[all, Dim::Fixed(1)])?;
    let places = g.broadcast_to(places, &[n, all, slots])?;
    let chosen = g.eq(ids, places)?;
    let chosen = g.cast_like(chosen, grad)?;
    let grad = g.reshape(grad, &[n, slots, Dim::Fixed(m)])?;
    g.batch_matmul(chosen, grad, &MatmulOptions::default())
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let i8 = |group: u32| DType::I8Groups { group };
    let mut cases = Vec::new();
    for (x, w, k) in [
        (DType::F32, DType::F32, 24),
        (DType::F32, DType::F16, 64),
        (DType::F32, DType::Plain(Type::BF16), 131),
        (DType::BF16, DType::BF16, 64),
        (DType::F32, DType::Q4_0, 96),
        (DType::BF16, DType::Q8_0, 64),
        (DType::F32, DType::F8_E4M3, 256),
        (DType::BF16, DType::F8_E4M3, 128),
        (i8(32), DType::Q8_0, 96),
        (i8(32), DType::Q4_0, 64),
        (i8(32), DType::Q4_K, 256),
        (i8(256), DType::Q4_K, 512),
        (i8(256), DType::Q6_K, 256),
        (i8(256), DType::TQ2_0, 256),
    ] {
        // Experts, chosen ones, rows of a matrix, tokens and their maximum; a few tokens and many, of which several
        // choose the same expert.
        for (experts, slots, m, n, max) in [(4, 2, 17, 1, 1), (5, 3, 33, 0, 2), (8, 2, 40, 3, 4), (3, 2, 19, 37, 40)] {
            for shared in [true, false] {
                let width = if shared { k } else { slots * k };
                let case = Case::new(ExpertMatmul { experts: experts as u32 }, &[(max, n)])
                    .input(CaseInput::normal(x, &[Dim::Extent(0), Dim::Fixed(width)]))
                    .input(CaseInput::normal(w, &[Dim::Fixed(experts * m), Dim::Fixed(k)]))
                    .input(CaseInput::below(experts as u32, &[Dim::Extent(0), Dim::Fixed(slots)]));
                // Some with a bias.
                cases.push(match slots {
                    3 => case.input(CaseInput::normal(DType::F32, &[experts, m].map(Dim::Fixed))),
                    _ => case,
                });
            }
        }
    }
    // Tiles of a few slots, and more rows than a workgroup has.
    let mut many = |w, k| {
        let case = Case::new(ExpertMatmul { experts: 4 }, &[(9, 9)])
            .input(CaseInput::normal(DType::BF16, &[Dim::Extent(0), Dim::Fixed(k)]))
            .input(CaseInput::normal(w, &[Dim::Fixed(4 * 300), Dim::Fixed(k)]))
            .input(CaseInput::below(4, &[Dim::Extent(0), Dim::Fixed(2)]));
        cases.push(case.clone());
        cases.push(case.input(CaseInput::normal(DType::F32, &[4, 300].map(Dim::Fixed))));
    };
    for w in [DType::BF16, DType::F16, DType::Q8_0, DType::Q4_0] {
        many(w, 160);
    }
    many(DType::F8_E4M3, 384);
    cases
}
