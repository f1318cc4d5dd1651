//! Tensors joined along a dimension.

use hologram_backends::{DType, Extent, KernelSpec, Operation};

use super::kernel::divide;
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill, View};
use crate::eager::Call;
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Axis, Dim, Tensor, TensorType};

/// The operation; its inputs have one plain type, and their shapes differ only in dimension `dim`.
#[derive(Debug)]
struct Concat {
    dim: usize,
}

/// The number of inputs that one program can bind.
const MOST: usize = 64;
const THREADS: u32 = 256;

impl Graph {
    /// Concatenates up to 64 tensors of one plain type along a dimension. Their shapes may differ only in that
    /// dimension.
    ///
    /// # Errors
    /// When the operands do not fit together, or the dimension is a run-time extent.
    pub fn cat(&mut self, parts: &[NodeId], dim: impl Axis) -> Result<NodeId> {
        let dim = parts.first().map_or(Ok(0), |x| self.axis("cat", *x, dim))?;
        self.apply(Concat { dim }, parts)
    }
}

impl Tensor {
    /// Concatenates this tensor and `others`, up to 64 tensors of one plain type, along a dimension. Their shapes may
    /// differ only in that dimension.
    ///
    /// # Errors
    /// As [`Graph::cat`]; when they lie on different devices; errors of the device.
    pub fn concat(&self, others: &[&Tensor], dim: impl Axis) -> Result<Tensor> {
        let dim = self.axis("concat", dim)?;
        let parts: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
        self.executor.cached(Call::Concat, &[dim as u64], &parts, |g, v| g.cat(v, dim))
    }
}

impl Op for Concat {
    fn operation(&self) -> Operation {
        Operation::Concat { axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [first, rest @ ..] = inputs else { return Err("takes at least one tensor".into()) };
        if inputs.len() > MOST {
            return Err(format!("takes at most {MOST} tensors, not {}", inputs.len()).into());
        }
        if !matches!(first.format, DType::Plain(_)) || rest.iter().any(|t| t.format != first.format) {
            return Err("takes tensors of one plain type".into());
        }
        let mut shape = first.shape.clone();
        for (i, t) in inputs.iter().enumerate() {
            let Some(Dim::Fixed(n)) = t.shape.get(self.dim) else {
                return Err(format!("dimension {} must be there, and no run-time extent", self.dim).into());
            };
            let other = |k: &usize| *k != self.dim;
            if t.shape.len() != shape.len() || (0..shape.len()).filter(other).any(|k| t.shape[k] != shape[k]) {
                return Err(format!("shapes must be equal except in dimension {}", self.dim).into());
            }
            if let (Dim::Fixed(sum), true) = (&mut shape[self.dim], i > 0) {
                *sum = sum.checked_add(*n).ok_or("too many elements")?;
            }
        }
        Ok(TensorType::new(first.format, shape))
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let inner: usize = spec.output.shape[self.dim + 1..].iter().map(|e| e.max()).product();
        let run = |shape: &[Extent]| (shape[self.dim].max() * inner) as u32;
        let whole = run(&spec.output.shape);
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (inputs, out) = (k.inputs.clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let row = divide(b, i, whole);
            let start = b.mul(row, whole);
            let column = b.sub(i, start);
            let mut from = 0;
            for input in &inputs {
                let len = run(&input.spec.shape);
                // Below `from` the difference wraps to a large number.
                let here = b.sub(column, from);
                let mine = b.lt(here, len);
                b.if_(mine, |b| {
                    let at = b.mul(row, len);
                    let at = b.add(at, here);
                    let value = b.load(input.views[0], at);
                    b.store(out.views[0], i, value);
                });
                from += len;
            }
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let mut start = 0;
        let part = |(input, wanted): (&NodeId, &bool)| {
            let Some(Dim::Fixed(n)) = g.shape_of(*input).get(self.dim).copied() else { return Ok(None) };
            start += n;
            wanted.then(|| g.slice(call.grad, self.dim, start - n, start)).transpose()
        };
        call.inputs.iter().zip(call.wanted).map(part).collect()
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        let Some(first) = inputs.first() else { return out };
        let outer: usize = first.shape[..self.dim].iter().product();
        for row in 0..outer {
            for t in inputs {
                let run: usize = t.shape[self.dim..].iter().product();
                t.values[row * run..(row + 1) * run].iter().for_each(|v| out.push(*v, 0.0));
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    use hologram_isa::Type;
    let case = |dim: usize, ty: Type, shapes: &[&[usize]]| {
        shapes.iter().fold(Case::new(Concat { dim }, &[]), |case, shape| {
            let shape = shape.iter().map(|n| Dim::Fixed(*n)).collect();
            case.input(CaseInput { format: DType::Plain(ty), shape, fill: Fill::Below(2) })
        })
    };
    let normal = |sizes: &[Dim]| CaseInput::normal(DType::F32, sizes);
    let (rows, fixed) = (Dim::Extent(0), Dim::Fixed);
    vec![
        case(0, Type::F32, &[&[3], &[0], &[1], &[500]]),
        case(0, Type::Bool, &[&[2, 5], &[3, 5]]),
        case(1, Type::I8, &[&[7, 3], &[7, 2], &[7, 11]]),
        case(2, Type::F16, &[&[2, 3, 4], &[2, 3, 1]]),
        case(1, Type::BF16, &[&[2, 3, 4], &[2, 1, 4]]),
        case(1, Type::I64, &[&[5, 2, 3], &[5, 1, 3]]),
        case(0, Type::F64, &[&[1, 1]]),
        Case::new(Concat { dim: 1 }, &[(5, 4)]).input(normal(&[rows, fixed(33)])).input(normal(&[rows, fixed(7)])),
        Case::new(Concat { dim: 0 }, &[])
            .input(normal(&[fixed(4), fixed(3)]))
            .input(normal(&[fixed(3), fixed(4)]))
            .view(View::Permute(vec![1, 0])),
    ]
}
