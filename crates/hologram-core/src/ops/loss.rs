//! Losses: the squared error, the cross-entropy of class indices and the binary cross-entropy, both from logits.

use hologram_backends::{DType, ElementLoss, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, Type, Value};

use super::lines::{Lines, THREADS, Tile, along_some, computed, epsilon, is_float, number, plain};
use super::{Kernel, Launchable, Mismatch, Op, Reduction};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::TensorType;

/// The reduction of the losses of all elements (or rows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReduction {
    /// No reduction: the losses are the result.
    None,
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

/// The loss of each row of logits; `x` is of floats `[.., d]`, the targets are `u32 [..]`.
#[derive(Debug)]
struct CrossEntropy;

impl Graph {
    /// The squared errors `(x − target)²` of operands of one shape and float type: in `f32`, or in `f64` for `f64`.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn mse_loss(&mut self, x: NodeId, target: NodeId, reduction: LossReduction) -> Result<NodeId> {
        self.called("mse_loss", |g| {
            let losses = g.apply(ElementLoss::Squared, &[x, target])?;
            g.reduced(losses, reduction)
        })
    }

    /// The binary cross-entropy of the probabilities `sigmoid(x)` and `target`, from the logits `x`:
    /// `max(x, 0) − x·target + log(1 + exp(−|x|))`, which neither overflows nor cancels. Both operands have one
    /// shape and one float type; the result is `f32`, or `f64` for `f64`.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn bce_with_logits(&mut self, x: NodeId, target: NodeId, reduction: LossReduction) -> Result<NodeId> {
        self.called("bce_with_logits", |g| {
            let losses = g.apply(ElementLoss::BinaryCrossEntropy, &[x, target])?;
            g.reduced(losses, reduction)
        })
    }

    /// The cross-entropy `log Σ exp(x) − x[target]` of each row of logits `x` (`[.., d]`, floats) and its class
    /// (`u32 [..]`), computed relative to the row's maximum. The result is `f32`, or `f64` for `f64`. A class that is
    /// not less than d is an error of the run.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn cross_entropy(&mut self, x: NodeId, target: NodeId, reduction: LossReduction) -> Result<NodeId> {
        self.called("cross_entropy", |g| {
            let losses = g.apply(CrossEntropy, &[x, target])?;
            g.reduced(losses, reduction)
        })
    }

    fn reduced(&mut self, losses: NodeId, reduction: LossReduction) -> Result<NodeId> {
        // The loss of a single row is a scalar already.
        if self.shape_of(losses).is_empty() {
            return Ok(losses);
        }
        match reduction {
            LossReduction::None => Ok(losses),
            LossReduction::Mean => self.reduce_all(losses, Reduction::Mean),
            LossReduction::Sum => self.reduce_all(losses, Reduction::Sum),
        }
    }
}

/// log(1 + e) for e of at most 1, accurate for small e: the quotient undoes the rounding of 1 + e (Kahan).
fn log_1p(b: &mut Builder, e: Value) -> Value {
    let one = number(e.ty, 1.0);
    let sum = b.add(e, one);
    let rounded = b.sub(sum, one);
    let small = b.eq(rounded, number(e.ty, 0.0));
    let divisor = b.select(small, one, rounded);
    let factor = b.div(e, divisor);
    let log = b.log(sum);
    let product = b.mul(log, factor);
    b.select(small, e, product)
}

impl Op for ElementLoss {
    fn operation(&self) -> Operation {
        Operation::Loss(*self)
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        match inputs {
            [x, target] if x == target => match plain(x.format) {
                Some(ty) if ty.is_float() => Ok(TensorType::new(DType::Plain(computed(ty)), x.shape.clone())),
                _ => Err("takes floats; of 64 bits only for squared errors".into()),
            },
            _ => Err("takes x and a target of its type and shape".into()),
        }
    }

    /// One thread per element.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = plain(spec.output.format).unwrap_or(Type::F32);
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (x, target, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let (x, t) = (x.load_as(b, ty, i), target.load_as(b, ty, i));
            let loss = match self {
                ElementLoss::Squared => {
                    let difference = b.sub(x, t);
                    b.mul(difference, difference)
                }
                ElementLoss::BinaryCrossEntropy => {
                    let positive = b.max(x, number(ty, 0.0));
                    let minus = b.neg(x);
                    let linear = b.fma(minus, t, positive);
                    let size = b.abs(x);
                    let size = b.neg(size);
                    let e = b.exp(size);
                    let rest = log_1p(b, e);
                    b.add(linear, rest)
                }
            };
            out.store(b, i, loss);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, target] = [call.inputs[0], call.inputs[1]];
        let (wide, t) = (g.widened(x)?, g.widened(target)?);
        let (by_x, by_target) = match self {
            ElementLoss::Squared => {
                let difference = g.sub(wide, t)?;
                let slope = g.mul_scalar(difference, 2.0)?;
                let by_x = g.mul(call.grad, slope)?;
                (by_x, g.neg(by_x)?)
            }
            ElementLoss::BinaryCrossEntropy => {
                let probability = g.sigmoid(wide)?;
                let slope = g.sub(probability, t)?;
                let by_target = g.mul(call.grad, wide)?;
                (g.mul(call.grad, slope)?, g.neg(by_target)?)
            }
        };
        Ok(vec![Some(g.cast_like(by_x, x)?), Some(g.cast_like(by_target, target)?)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, target] = inputs else { return Reference::default() };
        let eps = epsilon(x.format);
        let least = f64::from(f32::MIN_POSITIVE);
        let mut out = Reference::default();
        for (x, t) in x.values.iter().zip(&target.values) {
            match self {
                ElementLoss::Squared => {
                    let y = (x - t).powi(2);
                    out.push(y, 2.0 * y * eps + least);
                }
                ElementLoss::BinaryCrossEntropy => {
                    let (linear, rest) = (x.max(0.0) - x * t, (-x.abs()).exp().ln_1p());
                    out.push(linear + rest, (linear.abs() + 8.0 * rest) * eps + least);
                }
            }
        }
        out
    }
}

impl Op for CrossEntropy {
    fn operation(&self) -> Operation {
        Operation::CrossEntropy
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, target] = inputs else { return Err("takes logits and classes".into()) };
        let Some(rows) = x.shape.len().checked_sub(1).filter(|_| is_float(x.format)) else {
            return Err("takes logits of floats, [.., d]".into());
        };
        along_some(x, rows)?;
        if **target != TensorType::new(DType::U32, &x.shape[..rows]) {
            return Err("takes a u32 class for each row of logits".into());
        }
        Ok(TensorType::new(DType::Plain(computed(plain(x.format).unwrap_or(Type::F32))), &x.shape[..rows]))
    }

    /// One workgroup per row.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = plain(spec.output.format).unwrap_or(Type::F32);
        let dim = spec.inputs[0].shape.len().saturating_sub(1);
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", ty, THREADS);
        let row = Tile::new(&mut k, &spec.inputs[0], dim);
        let (x, target, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        b.if_(row.active, |b| {
            let m = b.var(number(ty, f64::NEG_INFINITY));
            row.each(b, |b, i| {
                let at = row.at(b, i);
                let v = x.load_as(b, ty, at);
                b.assign_op(m, Opcode::Max, &[m, v]);
            });
            let m = row.reduce(b, partial, Opcode::Max, m);
            let sum = b.var(number(ty, 0.0));
            row.each(b, |b, i| {
                let at = row.at(b, i);
                let v = x.load_as(b, ty, at);
                let v = b.sub(v, m);
                let v = b.exp(v);
                b.assign_op(sum, Opcode::Add, &[sum, v]);
            });
            let sum = row.reduce(b, partial, Opcode::Add, sum);
            b.if_(row.leads, |b| {
                let class = b.load(target.views[0], row.line);
                let exists = b.lt(class, row.n);
                let at = row.at(b, class);
                // No tensor has an element at u32::MAX: the load for a class that is out of range fails.
                let at = b.select(exists, at, u32::MAX);
                let v = x.load_as(b, ty, at);
                let log = b.log(sum);
                let below = b.sub(m, v);
                let loss = b.add(log, below);
                out.store(b, row.line, loss);
            });
        });
        k.finish(Tile::workgroups(&Lines::of(&spec.inputs[0], dim)))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, target] = [call.inputs[0], call.inputs[1]];
        let shape = g.shape_of(x).to_vec();
        let dim = shape.len().saturating_sub(1);
        let wide = g.widened(x)?;
        let probabilities = g.softmax(wide, dim)?;
        let classes = g.arange(Type::U32, 0.0, 1.0, shape[dim])?;
        let target = g.unreduced(target, dim, &shape)?;
        let hit = g.eq(classes, target)?;
        let ty = g.ty(wide).format;
        let hit = g.cast(hit, ty)?;
        let difference = g.sub(probabilities, hit)?;
        let grad = g.unreduced(call.grad, dim, &shape)?;
        let by_x = g.mul(difference, grad)?;
        Ok(vec![Some(g.cast_like(by_x, x)?), None])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, target] = inputs else { return Reference::default() };
        let d = x.row_len();
        let eps = epsilon(x.format);
        let mut out = Reference::default();
        for (row, class) in x.values.chunks(d).zip(&target.values) {
            let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log = row.iter().map(|v| (v - m).exp()).sum::<f64>().ln();
            let y = log + (m - row[*class as usize]);
            // The same bound as log_softmax.
            let bound = (2.0 * y.abs() + 2.0 * log.abs() + (d as f64).sqrt() / 8.0 + 8.0) * eps;
            out.push(y, if y.is_finite() { bound } else { 0.0 });
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [ElementLoss::Squared, ElementLoss::BinaryCrossEntropy] {
        let case = |ty: Type, rows: usize, max: usize, d: usize| {
            let mut x = CaseInput::normal(DType::Plain(ty), &[Dim::Extent(0), Dim::Fixed(d)]);
            let target = x.clone();
            x.fill = Fill::Normal(4.0);
            Case::new(op, &[(max, rows)]).input(x).input(target)
        };
        let pairs = |values: &[f32], targets: &[f32]| {
            let input = |values: &[f32]| CaseInput {
                format: DType::F32,
                shape: vec![Dim::Fixed(values.len())],
                fill: Fill::Values(values.to_vec()),
            };
            Case::new(op, &[]).input(input(values)).input(input(targets))
        };
        let nan = f32::NAN;
        cases.extend([
            case(Type::F32, 0, 3, 5),
            case(Type::F32, 5, 9, 257),
            case(Type::F16, 3, 4, 33),
            case(Type::BF16, 1, 1, 1),
            case(Type::F64, 2, 2, 9),
            pairs(&[20.0, -20.0, 80.0, -80.0, 0.0, nan, 1e-6, 9.0], &[1.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.25, 1.0]),
        ]);
    }
    let case = |ty: Type, rows: usize, max: usize, d: usize| {
        let mut x = CaseInput::normal(DType::Plain(ty), &[Dim::Extent(0), Dim::Fixed(d)]);
        x.fill = Fill::Normal(6.0);
        Case::new(CrossEntropy, &[(max, rows)]).input(x).input(CaseInput::below(d as u32, &[Dim::Extent(0)]))
    };
    let row = |values: &[f32], class: u32| {
        let x = CaseInput {
            format: DType::F32,
            shape: vec![Dim::Fixed(values.len())],
            fill: Fill::Values(values.to_vec()),
        };
        let class = CaseInput { format: DType::U32, shape: Vec::new(), fill: Fill::Values(vec![class as f32]) };
        Case::new(CrossEntropy, &[]).input(x).input(class)
    };
    cases.extend([
        case(Type::F32, 0, 2, 5),
        case(Type::F32, 5, 8, 33),
        case(Type::F32, 2, 2, 20_003),
        case(Type::F16, 3, 4, 100),
        case(Type::BF16, 3, 4, 100),
        case(Type::F64, 3, 4, 300),
        row(&[80.0, -90.0, 80.0], 1),
        row(&[f32::NEG_INFINITY, 3.0], 0),
        row(&[1.0, f32::NAN, 2.0], 0),
        row(&[7.0], 0),
    ]);
    cases
}
