//! Elements along a dimension by index.

use hologram_backends::{DType, Extent, KernelSpec, Operation};
#[cfg(feature = "conformance")]
use hologram_isa::Type;
use hologram_isa::{Builder, Value};

use super::lines::{Lines, THREADS, along, plain};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Axis, Dim, TensorType};

/// The operation; `x` is of any plain type, `indices` are `u32`.
#[derive(Debug)]
struct Take {
    dim: usize,
}

impl Graph {
    /// Elements of each row of `x` (`[.., d]`) by their indices in the row (`u32 [.., k]`):
    /// [`Graph::take_along`] the last dimension.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn take(&mut self, x: NodeId, indices: NodeId) -> Result<NodeId> {
        let last = self.shape_of(x).len().saturating_sub(1);
        self.called("take", |g| g.take_along(x, indices, last))
    }

    /// Elements of `x`, of any plain type, along dimension `dim` by `u32` indices.
    ///
    /// The indices have `x`'s shape except in that dimension (an index per element of the result, which has the
    /// indices' shape), or one dimension (an index per slice of the result). An index that is not less than the
    /// dimension's size is an error of the run.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn take_along(&mut self, x: NodeId, indices: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("take_along", x, dim)?;
        self.called("take_along", |g| g.apply(Take { dim }, &[x, indices]))
    }
}

/// The number of indices along a dimension of `shape`, for indices per element or per slice.
pub(super) fn indices_along(shape: &[Dim], indices: &TensorType, dim: usize) -> std::result::Result<Dim, String> {
    let others = |s: &[Dim]| super::lines::without(s, dim);
    if indices.format != DType::U32 {
        return Err("indices must be u32".into());
    }
    match indices.shape.as_slice() {
        [n] => Ok(*n),
        each if each.len() == shape.len() && others(each) == others(shape) => Ok(each[dim]),
        _ => Err("indices must be of one dimension, or of the other's shape but for the dimension taken along".into()),
    }
}

/// The position of an element in `[outer, n, inner]`: its three indices.
pub(super) fn place(b: &mut Builder, i: Value, n: Value, inner: u32) -> [Value; 3] {
    let (line, column) = if inner == 1 { (i, Value::from(0u32)) } else { (b.div(i, inner), b.rem(i, inner)) };
    [b.div(line, n), b.rem(line, n), column]
}

/// The row-major index of a position in `[outer, n, inner]`.
pub(super) fn element(b: &mut Builder, [outer, i, column]: [Value; 3], n: Value, inner: u32) -> Value {
    let line = b.mul(outer, n);
    let line = b.add(line, i);
    if inner == 1 {
        return line;
    }
    let at = b.mul(line, inner);
    b.add(at, column)
}

impl Op for Take {
    fn operation(&self) -> Operation {
        Operation::Take { axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, indices] = inputs else { return Err("takes x and indices".into()) };
        let size = along(x, self.dim)?;
        if plain(x.format).is_none() {
            return Err("takes a plain format".into());
        }
        let mut shape = x.shape.clone();
        shape[self.dim] = indices_along(&x.shape, indices, self.dim)?;
        if size == Dim::Fixed(0) && shape[self.dim] != size {
            return Err(format!("dimension {} has no elements", self.dim).into());
        }
        Ok(TensorType::new(x.format, shape))
    }

    /// One thread per element of the result.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let extent = |shape: &[Extent]| shape.get(self.dim).copied().unwrap_or(Extent::Fixed(1));
        let inner = Lines::of(&spec.output, self.dim).inner as u32;
        let slices = spec.inputs[1].shape.len() == 1;
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (n, m) = (k.extent(extent(&spec.inputs[0].shape)), k.extent(extent(&spec.output.shape)));
        let (x, indices, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let [outer, j, column] = place(b, i, m, inner);
            let index = b.load(indices.views[0], if slices { j } else { i });
            let exists = b.lt(index, n);
            let at = element(b, [outer, index, column], n, inner);
            // No tensor has an element at u32::MAX: the load for an index that is out of range fails.
            let at = b.select(exists, at, u32::MAX);
            let v = b.load(x.views[0], at);
            out.store(b, i, v);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let zeros = g.zeros_like(call.inputs[0])?;
        Ok(vec![Some(g.scatter_add(zeros, call.inputs[1], call.grad, self.dim)?), None])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, indices] = inputs else { return Reference::default() };
        let lines = Lines::on_host(&x.shape, self.dim);
        let slices = indices.shape.len() == 1;
        let m = if slices { indices.values.len() } else { indices.shape[self.dim] };
        let mut out = Reference::default();
        for i in 0..lines.count() * m {
            let (outer, j, column) = (i / (m * lines.inner), i / lines.inner % m, i % lines.inner);
            let index = indices.values[if slices { j } else { i }] as usize;
            out.push(x.values[(outer * lines.n + index) * lines.inner + column], 0.0);
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let rows = |k: usize, rows: usize, max: usize, d: usize| {
        Case::new(Take { dim: 1 }, &[(max, rows)])
            .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(d)]))
            .input(CaseInput::below(d as u32, &[Dim::Extent(0), Dim::Fixed(k)]))
    };
    let fixed = |ty: Type, dim: usize, x: &[usize], indices: &[usize]| {
        let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let mut input = CaseInput::normal(DType::Plain(ty), &dims(x));
        input.fill = if ty == Type::Bool { Fill::Below(2) } else { Fill::Normal(50.0) };
        Case::new(Take { dim }, &[]).input(input).input(CaseInput::below(x[dim] as u32, &dims(indices)))
    };
    let extents = |n: usize, m: usize, indices: &[Dim]| {
        Case::new(Take { dim: 0 }, &[(9, n), (20, m)])
            .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(3)]))
            .input(CaseInput::below(n as u32, indices))
    };
    vec![
        rows(1, 1, 1, 1),
        rows(3, 0, 2, 5),
        rows(40, 3, 4, 257),
        fixed(Type::F32, 0, &[33, 33], &[33, 33]),
        fixed(Type::F16, 1, &[3, 7, 5], &[3, 90, 5]),
        fixed(Type::BF16, 1, &[3, 7, 5], &[9]),
        fixed(Type::I32, 2, &[3, 7, 5], &[300]),
        fixed(Type::I8, 0, &[50], &[20]),
        fixed(Type::F64, 1, &[5, 9], &[5, 20]),
        fixed(Type::U64, 0, &[5, 9], &[7]),
        fixed(Type::Bool, 0, &[50, 2], &[20]),
        extents(7, 15, &[Dim::Extent(1), Dim::Fixed(3)]),
        extents(7, 0, &[Dim::Extent(1)]),
    ]
}
