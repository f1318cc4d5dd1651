//! Softmax along a dimension, `y = exp(x − m) / Σ exp(x − m)` with m the line's maximum, and its logarithm.

#[cfg(feature = "conformance")]
use hologram_backends::DType;
use hologram_backends::{KernelSpec, Operation};
use hologram_isa::{Opcode, Type};

use super::lines::{Lines, THREADS, Tile, along, computed, epsilon, is_float, not_for, number, plain, stored};
use super::{Kernel, Launchable, Mismatch, Op, Reduction};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::{Axis, TensorType};

/// The operation; `x` is of floats.
#[derive(Debug)]
struct Softmax {
    dim: usize,
    log: bool,
}

impl Graph {
    /// The softmax of the rows of `x` (`[.., d]`): [`Graph::softmax`] along the last dimension.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn softmax_rows(&mut self, x: NodeId) -> Result<NodeId> {
        self.softmax(x, -1)
    }

    /// The softmax of `x` along dimension `dim`. Narrow floats are computed in `f32`. An element of −∞ has
    /// probability 0. A line that has a NaN or +∞, or only −∞, gives NaN.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn softmax(&mut self, x: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("softmax", x, dim)?;
        self.apply(Softmax { dim, log: false }, &[x])
    }

    /// The logarithm of the softmax of `x` along dimension `dim`, `x − m − log Σ exp(x − m)`: as
    /// [`Graph::softmax`], but accurate for small probabilities.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn log_softmax(&mut self, x: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("log_softmax", x, dim)?;
        self.apply(Softmax { dim, log: true }, &[x])
    }
}

impl Op for Softmax {
    fn operation(&self) -> Operation {
        Operation::Softmax { log: self.log, axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x] = inputs else { return Err("takes x".into()) };
        along(x, self.dim)?;
        if !is_float(x.format) {
            return Err(not_for(x.format, Type::is_float));
        }
        Ok((*x).clone())
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = computed(plain(spec.output.format).unwrap_or(Type::F32));
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", ty, THREADS);
        let tile = Tile::new(&mut k, &spec.output, self.dim);
        let (x, y) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        b.if_(tile.active, |b| {
            let m = b.var(number(ty, f64::NEG_INFINITY));
            tile.each(b, |b, i| {
                let at = tile.at(b, i);
                let v = x.load_as(b, ty, at);
                b.assign_op(m, Opcode::Max, &[m, v]);
            });
            let m = tile.reduce(b, partial, Opcode::Max, m);
            let sum = b.var(number(ty, 0.0));
            tile.each(b, |b, i| {
                let at = tile.at(b, i);
                let v = x.load_as(b, ty, at);
                let v = b.sub(v, m);
                let v = b.exp(v);
                b.assign_op(sum, Opcode::Add, &[sum, v]);
            });
            let sum = tile.reduce(b, partial, Opcode::Add, sum);
            let log = if self.log { b.log(sum) } else { sum };
            tile.each(b, |b, i| {
                let at = tile.at(b, i);
                let v = x.load_as(b, ty, at);
                let v = b.sub(v, m);
                let v = if self.log {
                    b.sub(v, log)
                } else {
                    let v = b.exp(v);
                    b.div(v, sum)
                };
                y.store(b, at, v);
            });
        });
        k.finish(Tile::workgroups(&Lines::of(&spec.output, self.dim)))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let (y, grad) = (g.widened(call.output)?, g.widened(call.grad)?);
        let shape = g.shape_of(y).to_vec();
        let by_x = if self.log {
            let sum = g.reduce(grad, Reduction::Sum, self.dim)?;
            let sum = g.unreduced(sum, self.dim, &shape)?;
            let share = g.exp(y)?;
            let share = g.mul(share, sum)?;
            g.sub(grad, share)?
        } else {
            let products = g.mul(grad, y)?;
            let sum = g.reduce(products, Reduction::Sum, self.dim)?;
            let sum = g.unreduced(sum, self.dim, &shape)?;
            let difference = g.sub(grad, sum)?;
            g.mul(y, difference)?
        };
        Ok(vec![Some(g.cast_like(by_x, call.inputs[0])?)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let lines = Lines::on_host(&x.shape, self.dim);
        let mut out = Reference { values: vec![0.0; x.values.len()], bounds: vec![0.0; x.values.len()] };
        let eps = epsilon(x.format);
        for line in 0..lines.count() {
            let elements = || lines.elements(line);
            let m = elements().map(|at| x.values[at]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = elements().map(|at| (x.values[at] - m).exp()).sum();
            for at in elements() {
                let v = x.values[at];
                // Half an ulp of x − m is an absolute error of the exponent. exp has 2 ulp, in the numerator and in
                // the sum; the sum's roundings add up like a random walk. Subnormal results may be flushed.
                let exponent = if v.is_finite() { (v - m).abs() } else { 0.0 };
                let of_sum = (lines.n as f64).sqrt() / 8.0 + 8.0;
                let (y, bound) = if self.log {
                    let y = v - m - sum.ln();
                    let size = if y.is_finite() { y.abs() } else { 0.0 };
                    (y, (exponent + size + 2.0 * sum.ln().abs() + of_sum) * eps)
                } else {
                    let y = (v - m).exp() / sum;
                    (y, y * (exponent / 2.0 + of_sum) * eps + f64::from(f32::MIN_POSITIVE))
                };
                out.values[at] = y;
                out.bounds[at] = if y.is_finite() { stored(x.format, y, bound) } else { 0.0 };
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for log in [false, true] {
        let case = |ty: Type, dim: usize, rows: usize, max: usize, rest: &[usize], size: f32| {
            let shape: Vec<Dim> = std::iter::once(Dim::Extent(0)).chain(rest.iter().map(|n| Dim::Fixed(*n))).collect();
            let mut input = CaseInput::normal(DType::Plain(ty), &shape);
            input.fill = Fill::Normal(size);
            Case::new(Softmax { dim, log }, &[(max, rows)]).input(input)
        };
        let row = |values: &[f32]| {
            let mut input = CaseInput::normal(DType::F32, &[Dim::Fixed(values.len())]);
            input.fill = Fill::Values(values.to_vec());
            Case::new(Softmax { dim: 0, log }, &[]).input(input)
        };
        let none = f32::NEG_INFINITY;
        cases.extend([
            case(Type::F32, 1, 0, 2, &[8], 1.0),
            case(Type::F32, 1, 1, 1, &[1], 1.0),
            case(Type::F32, 1, 5, 8, &[33], 10.0),
            case(Type::F32, 1, 3, 3, &[257], 40.0),
            case(Type::F32, 0, 33, 33, &[33], 10.0),
            case(Type::F32, 0, 20, 30, &[7], 3.0),
            case(Type::F32, 1, 2, 3, &[70, 40], 3.0),
            case(Type::F16, 1, 2, 3, &[100], 3.0),
            case(Type::BF16, 1, 2, 3, &[20, 3], 3.0),
            case(Type::F64, 1, 5, 8, &[333], 40.0),
            case(Type::F64, 0, 20, 30, &[7], 3.0),
            row(&[none, 3.0, none, 3.0]),
            row(&[none, none]),
            row(&[1.0, f32::NAN, 2.0]),
            row(&[1.0, f32::INFINITY, 2.0]),
            row(&[3e38, -3e38, 0.0]),
        ]);
        // Rows that a warp, a workgroup and neither holds, whole vectors of elements and not.
        for ty in [Type::F32, Type::F16, Type::BF16] {
            cases.extend([256, 1024, 1001, 2048, 8190, 9001].map(|n| case(ty, 1, 9, 12, &[n], 3.0)));
        }
        if !log {
            cases.extend([case(Type::F32, 1, 2, 3, &[8192], 1.0), case(Type::F32, 1, 2, 2, &[20_003], 3.0)]);
        }
    }
    cases
}
