//! The weighted sum of the results of each token's experts.

use hologram_backends::{DType, KernelSpec, Operation, Reduction};
use hologram_isa::Opcode;

use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; its inputs are those of [`Graph::expert_sum`] in order.
#[derive(Debug)]
struct ExpertSum;

impl Graph {
    /// The sum of each token's results with its weights, as `f32 [n, m]`: `x` is `f32 [n, s * m]`, as of
    /// [`Graph::expert_linear`], and `weights` is `f32 [n, s]`.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn expert_sum(&mut self, x: NodeId, weights: NodeId) -> Result<NodeId> {
        self.apply(ExpertSum, &[x, weights])
    }
}

const THREADS: u32 = 256;

impl Op for ExpertSum {
    fn operation(&self) -> Operation {
        Operation::ExpertSum
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, weights] = inputs else { return Err("takes x and weights".into()) };
        let ([n, Dim::Fixed(width)], [tokens, Dim::Fixed(slots)]) = (x.shape.as_slice(), weights.shape.as_slice())
        else {
            return Err("takes x [n, s * m] and weights [n, s]".into());
        };
        let f32 = DType::F32;
        if x.format != f32 || weights.format != f32 || n != tokens {
            return Err("takes f32 x and weights, a row of weights for each row of x".into());
        }
        if *slots == 0 || *width == 0 || !width.is_multiple_of(*slots) {
            return Err(format!("rows of {width} elements are not {slots} results").into());
        }
        Ok(TensorType::new(f32, [*n, Dim::Fixed(width / slots)]))
    }

    /// One thread per element.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let slots = spec.inputs.get(1).map_or(1, |t| t.row_len()) as u32;
        let m = spec.output.row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (x, weights, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let token = b.div(i, m);
            let column = b.rem(i, m);
            let first = b.mul(token, slots);
            let sum = b.var(0.0f32);
            b.for_(0u32, slots, 1u32, |b, s| {
                let slot = b.add(first, s);
                let at = b.mul(slot, m);
                let at = b.add(at, column);
                let v = b.load(x.views[0], at);
                let w = b.load(weights.views[0], slot);
                b.assign_op(sum, Opcode::Fma, &[v, w, sum]);
            });
            out.store(b, i, sum);
        });
        let max = spec.output.max_rows() * m as usize;
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, weights] = [call.inputs[0], call.inputs[1]];
        let (of_x, of_weights) = (g.shape_of(x).to_vec(), g.shape_of(weights).to_vec());
        let results = [of_weights[0], of_weights[1], g.shape_of(call.grad)[1]];
        let grad = g.reshape(call.grad, &[results[0], Dim::Fixed(1), results[2]])?;
        let grad = g.broadcast_to(grad, &results)?;
        let by_x = match call.wanted[0] {
            true => {
                let weights = g.unreduced(weights, 2, &results)?;
                let by_x = g.mul(weights, grad)?;
                Some(g.reshape(by_x, &of_x)?)
            }
            false => None,
        };
        let by_weights = match call.wanted[1] {
            true => {
                let x = g.reshape(x, &results)?;
                let products = g.mul(x, grad)?;
                Some(g.reduce(products, Reduction::Sum, 2)?)
            }
            false => None,
        };
        Ok(vec![by_x, by_weights])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, weights] = inputs else { return Reference::default() };
        let slots = weights.row_len();
        let m = x.row_len() / slots;
        let mut out = Reference::default();
        for (x, weights) in x.values.chunks(slots * m).zip(weights.values.chunks(slots)) {
            for column in 0..m {
                let terms = || x.iter().skip(column).step_by(m).zip(weights).map(|(x, w)| x * w);
                // A rounding for each term, of sums that are at most the terms' magnitudes.
                let most: f64 = terms().map(f64::abs).sum();
                out.push(terms().sum(), most * slots as f64 * f64::from(f32::EPSILON));
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |n: usize, max: usize, slots: usize, m: usize| {
        Case::new(ExpertSum, &[(max, n)])
            .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(slots * m)]))
            .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(slots)]))
    };
    vec![case(0, 2, 2, 8), case(1, 1, 8, 64), case(3, 4, 3, 257), case(37, 40, 2, 96), case(5, 5, 1, 33)]
}
