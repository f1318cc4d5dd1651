//! Layer normalization of rows: `y = (x − mean(x)) / √(var(x) + ε) · w + b` (Ba, Kiros and Hinton, 2016,
//! arXiv:1607.06450).

#[cfg(feature = "conformance")]
use hologram_backends::DType;
use hologram_backends::{KernelSpec, Operation};
use hologram_isa::{Opcode, Type};

use super::lines::{Lines, THREADS, Tile, computed, epsilon, number, plain, stored};
use super::{Kernel, Launchable, Mismatch, Op, Reduction};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is `[.., d]`, `w` and `bias` are `[d]`, all of one type of floats.
#[derive(Debug)]
struct LayerNorm {
    eps: f32,
}

impl Graph {
    /// Normalizes the rows of `x` (`[.., d]`) to mean 0 and variance 1, scales them by `w` and adds `bias` (`[d]`, of
    /// `x`'s type). `x` is `f32`, `f64`, `f16` or `bf16`; narrow floats are computed in `f32`. The variance is that of
    /// the row itself (divided by d), about its mean.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn layer_norm(&mut self, x: NodeId, w: NodeId, bias: NodeId, eps: f32) -> Result<NodeId> {
        self.apply(LayerNorm { eps }, &[x, w, bias])
    }
}

impl Op for LayerNorm {
    fn operation(&self) -> Operation {
        Operation::LayerNorm { eps: self.eps.into() }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, w, bias] = inputs else { return Err("takes x, w and a bias".into()) };
        if !plain(x.format).is_some_and(Type::is_float) {
            return Err("takes floats".into());
        }
        match x.row_len() {
            Some(d) if d > 0 && w == bias && **w == TensorType::new(x.format, [Dim::Fixed(d)]) => Ok((*x).clone()),
            _ => Err("w and the bias must be a row of x, of its type".into()),
        }
    }

    /// One workgroup per row.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = computed(plain(spec.output.format).unwrap_or(Type::F32));
        let dim = spec.output.shape.len().saturating_sub(1);
        let d = number(ty, spec.output.row_len() as f64);
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", ty, THREADS);
        let row = Tile::new(&mut k, &spec.output, dim);
        let [x, w, bias] = [0, 1, 2].map(|i| k.inputs[i].clone());
        let y = k.output.clone();
        let b = &mut k.b;
        b.if_(row.active, |b| {
            let sum = b.var(number(ty, 0.0));
            row.each(b, |b, i| {
                let at = row.at(b, i);
                let v = x.load_as(b, ty, at);
                b.assign_op(sum, Opcode::Add, &[sum, v]);
            });
            let sum = row.reduce(b, partial, Opcode::Add, sum);
            let mean = b.div(sum, d);
            let squares = b.var(number(ty, 0.0));
            row.each(b, |b, i| {
                let at = row.at(b, i);
                let v = x.load_as(b, ty, at);
                let v = b.sub(v, mean);
                b.assign_op(squares, Opcode::Fma, &[v, v, squares]);
            });
            let squares = row.reduce(b, partial, Opcode::Add, squares);
            let variance = b.div(squares, d);
            let variance = b.add(variance, number(ty, f64::from(self.eps)));
            let root = b.sqrt(variance);
            let scale = b.div(number(ty, 1.0), root);
            row.each(b, |b, i| {
                let at = row.at(b, i);
                let v = x.load_as(b, ty, at);
                let v = b.sub(v, mean);
                let v = b.mul(v, scale);
                let (g, c) = (w.load_as(b, ty, i), bias.load_as(b, ty, i));
                let v = b.fma(v, g, c);
                y.store(b, at, v);
            });
        });
        k.finish(Tile::workgroups(&Lines::of(&spec.output, dim)))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let shape = g.shape_of(call.output).to_vec();
        let dim = shape.len().saturating_sub(1);
        let x = g.widened(call.inputs[0])?;
        let mean = g.reduce(x, Reduction::Mean, dim)?;
        let mean = g.unreduced(mean, dim, &shape)?;
        let centred = g.sub(x, mean)?;
        let squares = g.mul(centred, centred)?;
        let variance = g.reduce(squares, Reduction::Mean, dim)?;
        let scale = g.add_scalar(variance, self.eps.into())?;
        let scale = g.rsqrt(scale)?;
        let scale = g.unreduced(scale, dim, &shape)?;
        let unit = g.mul(centred, scale)?;
        norm_vjp(g, call, unit, scale, true)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, w, bias] = inputs else { return Reference::default() };
        let d = x.row_len();
        let eps = epsilon(x.format);
        let mut out = Reference::default();
        for row in x.values.chunks(d) {
            let mean = row.iter().sum::<f64>() / d as f64;
            let walk = (d as f64).sqrt() / 8.0 + 3.0;
            // The maximum error of the mean, in units of x.
            let off = row.iter().map(|v| v.abs()).sum::<f64>() / d as f64 * walk * eps;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / d as f64 + f64::from(self.eps);
            let scale = 1.0 / variance.sqrt();
            // If the variance is near 0, the mean's error and the roundings of x − mean dominate it.
            let relative = walk * eps + (off * scale).powi(2) + off * scale * eps;
            for ((v, g), c) in row.iter().zip(&w.values).zip(&bias.values) {
                let scaled = (v - mean) * scale;
                let y = scaled * g + c;
                let bound =
                    ((off + (v - mean).abs() * eps) * scale + scaled.abs() * relative) * g.abs() + y.abs() * eps;
                out.push(y, stored(x.format, y, bound));
            }
        }
        out
    }
}

/// The gradients by the operands `x`, `w` and, if there is one, the bias, of a norm y = unit · w + bias, where
/// unit = (x − m) · scale, scale has a line's one value in each of its elements, and m is the line's mean if
/// `centred`, else 0.
pub(super) fn norm_vjp(
    g: &mut Graph,
    call: &Vjp<'_>,
    unit: NodeId,
    scale: NodeId,
    centred: bool,
) -> Result<Vec<Option<NodeId>>> {
    let shape = g.shape_of(call.output).to_vec();
    let dim = shape.len().saturating_sub(1);
    let mean = |g: &mut Graph, x: NodeId| {
        let mean = g.reduce(x, Reduction::Mean, dim)?;
        g.unreduced(mean, dim, &shape)
    };
    let row = g.shape_of(call.inputs[1]).to_vec();
    let (w, grad) = (g.widened(call.inputs[1])?, g.widened(call.grad)?);
    let scaled = g.mul(grad, w)?;
    let along = g.mul(scaled, unit)?;
    let along = mean(g, along)?;
    let along = g.mul(unit, along)?;
    let mut across = g.sub(scaled, along)?;
    if centred {
        let mean = mean(g, scaled)?;
        across = g.sub(across, mean)?;
    }
    let by_x = g.mul(across, scale)?;
    let by_w = g.mul(grad, unit)?;
    let by_w = g.sum_to(by_w, &row)?;
    let by_bias = g.sum_to(grad, &row)?;
    let grads = call.inputs.iter().zip([by_x, by_w, by_bias]);
    grads.map(|(input, grad)| g.cast_like(grad, *input).map(Some)).collect()
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |format: DType, rows: usize, max: usize, d: usize, size: f32| {
        let mut x = CaseInput::normal(format, &[Dim::Extent(0), Dim::Fixed(d)]);
        x.fill = Fill::Normal(size);
        Case::new(LayerNorm { eps: 1e-5 }, &[(max, rows)])
            .input(x)
            .input(CaseInput::normal(format, &[Dim::Fixed(d)]))
            .input(CaseInput::normal(format, &[Dim::Fixed(d)]))
    };
    let mut far = CaseInput::normal(DType::F32, &[Dim::Fixed(64)]);
    // Far from 0: sums of squares without subtracting the mean would cancel.
    far.fill = Fill::Values((0..64).map(|i| 1000.0 + (i * 37 % 64) as f32 / 8.0).collect());
    let row = || CaseInput::normal(DType::F32, &[Dim::Fixed(64)]);
    vec![
        case(DType::F32, 1, 1, 1, 1.0),
        case(DType::F32, 0, 4, 32, 1.0),
        case(DType::F32, 3, 4, 257, 10.0),
        case(DType::F32, 7, 8, 2048, 1.0),
        case(DType::F16, 3, 4, 100, 5.0),
        case(DType::BF16, 3, 4, 100, 5.0),
        case(DType::Plain(Type::F64), 3, 4, 300, 5.0),
        Case::new(LayerNorm { eps: 1e-5 }, &[]).input(far).input(row()).input(row()),
    ]
}
