//! Root-mean-square normalization of rows: `y = x / √(mean(x²) + ε) · w` (Zhang and Sennrich,
//! 2019, arXiv:1910.07467).

#[cfg(feature = "conformance")]
use hologram_backends::DType;
use hologram_backends::{KernelSpec, Operation};
use hologram_isa::{Opcode, SUBGROUP_SIZE, Type};

use super::layer_norm::norm_vjp;
use super::lines::{computed, epsilon, is_float, number, plain, stored};
use super::reduce::{THREADS, workgroup_reduce};
use super::{Kernel, Launchable, Mismatch, Op, Reduction};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is `[.., d]`, `w` is `[d]`, both of one float type.
#[derive(Debug)]
struct RmsNorm {
    eps: f32,
}

impl Graph {
    /// Normalizes the rows of `x` (`[.., d]`) by their root mean square and scales by `w` (`[d]`). Both have one float
    /// type; narrow floats are computed in `f32`.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn rms_norm(&mut self, x: NodeId, w: NodeId, eps: f32) -> Result<NodeId> {
        self.apply(RmsNorm { eps }, &[x, w])
    }
}

impl Op for RmsNorm {
    fn operation(&self) -> Operation {
        Operation::RmsNorm { eps: self.eps.into() }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, w] = inputs else { return Err("takes x and w".into()) };
        if x.format != w.format || !is_float(x.format) {
            return Err("takes floats of one type".into());
        }
        match (x.row_len(), w.shape.as_slice()) {
            (Some(d), [Dim::Fixed(n)]) if d == *n && d > 0 => Ok((*x).clone()),
            _ => Err("w must be one row of x".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let d = spec.output.row_len() as u32;
        let ty = computed(plain(spec.output.format).unwrap_or(Type::F32));
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", ty, THREADS / SUBGROUP_SIZE);
        let rows = k.rows(&spec.output);
        let (x, w, y) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let row = b.builtin(Opcode::GroupX);
        let inside = b.lt(row, rows);
        b.if_(inside, |b| {
            let thread = b.builtin(Opcode::ThreadX);
            let start = b.mul(row, d);
            let sum = b.var(number(ty, 0.0));
            b.for_(thread, d, THREADS, |b, i| {
                let at = b.add(start, i);
                let v = x.load_as(b, ty, at);
                b.assign_op(sum, Opcode::Fma, &[v, v, sum]);
            });
            let total = workgroup_reduce(b, partial, Opcode::Add, sum);
            let mean = b.div(total, number(ty, d.into()));
            let mean = b.add(mean, number(ty, self.eps.into()));
            let root = b.sqrt(mean);
            let scale = b.div(number(ty, 1.0), root);
            b.for_(thread, d, THREADS, |b, i| {
                let at = b.add(start, i);
                let v = x.load_as(b, ty, at);
                let v = b.mul(v, scale);
                let g = w.load_as(b, ty, i);
                let v = b.mul(v, g);
                y.store(b, at, v);
            });
        });
        k.finish(spec.output.max_rows())
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let shape = g.shape_of(call.output).to_vec();
        let dim = shape.len().saturating_sub(1);
        let x = g.widened(call.inputs[0])?;
        let squares = g.mul(x, x)?;
        let mean = g.reduce(squares, Reduction::Mean, dim)?;
        let scale = g.add_scalar(mean, self.eps.into())?;
        let scale = g.rsqrt(scale)?;
        let scale = g.unreduced(scale, dim, &shape)?;
        let unit = g.mul(x, scale)?;
        norm_vjp(g, call, unit, scale, false)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, w] = inputs else { return Reference::default() };
        let d = x.row_len();
        let mut out = Reference::default();
        for row in x.values.chunks(d) {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
            let scale = 1.0 / (mean + f64::from(self.eps)).sqrt();
            for (v, g) in row.iter().zip(&w.values) {
                let y = v * scale * g;
                // The sum of squares does not cancel. Its roundings add up like a random walk, and the root halves
                // them. Five more roundings follow.
                let bound = y.abs() * ((d as f64).sqrt() / 8.0 + 3.0) * epsilon(x.format);
                out.push(y, stored(x.format, y, bound));
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |format: DType, rows: usize, max: usize, d: usize| {
        Case::new(RmsNorm { eps: 1e-5 }, &[(max, rows)])
            .input(CaseInput::normal(format, &[Dim::Extent(0), Dim::Fixed(d)]))
            .input(CaseInput::normal(format, &[Dim::Fixed(d)]))
    };
    vec![
        case(DType::F32, 1, 1, 1),
        case(DType::F32, 0, 4, 32),
        case(DType::F32, 3, 4, 257),
        case(DType::F32, 7, 8, 2048),
        case(DType::F16, 3, 4, 257),
        case(DType::BF16, 3, 4, 64),
        case(DType::Plain(Type::F64), 3, 4, 257),
    ]
}
