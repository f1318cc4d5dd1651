//! Cumulative sums along a dimension: lines are summed in chunks, the chunks' sums are summed in the same way, and each
//! chunk starts from the sum of the chunks before it.

use hologram_backends::{DType, Extent, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, Type, Value};

use super::lines::{Lines, THREADS, along, computed, epsilon, number, outer, plain, stored};
use super::take::element;
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Axis, Dim, TensorType};

/// Consecutive elements per thread; [`CHUNK`] elements per workgroup.
const EACH: u32 = 8;
const CHUNK: usize = (EACH * THREADS) as usize;

/// The sums of the `chunks` chunks of `x` along a dimension; sums of narrow floats are `f32`.
#[derive(Debug)]
struct ChunkSums {
    dim: usize,
    chunks: usize,
}

/// Cumulative sums; its inputs are `x` and, for lines of several chunks, the cumulative sums of the chunks' sums.
#[derive(Debug)]
struct CumSum {
    dim: usize,
}

impl Graph {
    /// The inclusive cumulative sums of `x` along dimension `dim`, in `x`'s type. Floats: narrow ones are summed in
    /// `f32`, and each result is rounded once. Integers: 32 or 64 bits, which wrap.
    ///
    /// # Errors
    /// When `x` has no such dimension, or is of another type.
    pub fn cumsum(&mut self, x: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("cumsum", x, dim)?;
        self.called("cumsum", |g| g.cumulative(x, dim))
    }

    /// The inclusive cumulative products of `x` along a fixed dimension `dim`, in `x`'s type, by the products of ever
    /// longer parts (Hillis and Steele, 1986).
    ///
    /// # Errors
    /// When `x` has no such dimension, its size is an extent, or `x` is not of numbers.
    pub fn cumprod(&mut self, x: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("cumprod", x, dim)?;
        let Some(Dim::Fixed(n)) = self.shape_of(x).get(dim).copied() else {
            return Err(CoreError::Graph("cumprod takes a fixed dimension".into()));
        };
        self.called("cumprod", |g| {
            let (mut product, mut distance) = (if n < 2 { g.copy(x)? } else { x }, 1);
            while distance < n {
                let (start, rest) = (g.slice(product, dim, 0, distance)?, g.slice(product, dim, distance, n)?);
                let before = g.slice(product, dim, 0, n - distance)?;
                let rest = g.mul(rest, before)?;
                product = g.cat(&[start, rest], dim)?;
                distance *= 2;
            }
            Ok(product)
        })
    }

    fn cumulative(&mut self, x: NodeId, dim: usize) -> Result<NodeId> {
        let n = match self.shape_of(x).get(dim) {
            Some(Dim::Fixed(n)) => *n,
            Some(Dim::Extent(e)) => self.extents.get(*e as usize).map_or(0, |e| e.max),
            None => 0,
        };
        if n <= CHUNK {
            return self.apply(CumSum { dim }, &[x]);
        }
        let sums = self.apply(ChunkSums { dim, chunks: n.div_ceil(CHUNK) }, &[x])?;
        let before = self.cumulative(sums, dim)?;
        self.apply(CumSum { dim }, &[x, before])
    }
}

/// The program of both operations: one workgroup per chunk of a line. With `total` it stores a chunk's sum instead of
/// each cumulative sum.
fn program(spec: &KernelSpec, dim: usize, total: bool) -> Result<Launchable> {
    let lines = Lines::of(&spec.inputs[0], dim);
    let (inner, chunks) = (lines.inner as u32, lines.n.div_ceil(CHUNK).max(1) as u32);
    let ty = computed(plain(spec.inputs[0].format).unwrap_or(Type::F32));
    let mut k = Kernel::new(spec, THREADS);
    let partial = k.b.shared("partial", ty, THREADS);
    let outers = outer(&mut k, &spec.inputs[0], dim);
    let n = k.extent(spec.inputs[0].shape.get(dim).copied().unwrap_or(Extent::Fixed(1)));
    let (inputs, out) = (k.inputs.clone(), k.output.clone());
    let b = &mut k.b;
    let (group, thread) = (b.builtin(Opcode::GroupX), b.builtin(Opcode::ThreadX));
    let (line, chunk) = (b.div(group, chunks), b.rem(group, chunks));
    let (row, column) = (b.div(line, inner.max(1)), b.rem(line, inner.max(1)));
    let active = b.lt(row, outers);
    b.if_(active, |b| {
        let first = b.mul(chunk, CHUNK as u32);
        let own = b.mul(thread, EACH);
        let start = b.add(first, own);
        let end = b.add(start, EACH);
        let end = b.min(end, n);
        let each = |b: &mut Builder, sum: Value, store: bool| {
            b.for_(start, end, 1u32, |b, i| {
                let at = element(b, [row, i, column], n, inner);
                let v = inputs[0].load_as(b, ty, at);
                b.assign_op(sum, Opcode::Add, &[sum, v]);
                if store {
                    out.store(b, at, sum);
                }
            });
        };
        let sum = b.var(number(ty, 0.0));
        each(b, sum, false);
        b.store(partial, thread, sum);
        b.barrier();
        // Each step adds the sum that lies `distance` before (Hillis and Steele, 1986).
        let mut distance = 1;
        while distance < THREADS {
            let before = b.var(number(ty, 0.0));
            let has = b.ge(thread, distance);
            b.if_(has, |b| {
                let from = b.sub(thread, distance);
                let v = b.load(partial, from);
                b.assign(before, v);
            });
            b.barrier();
            b.assign_op(sum, Opcode::Add, &[sum, before]);
            b.store(partial, thread, sum);
            b.barrier();
            distance *= 2;
        }
        if total {
            let last = b.eq(thread, THREADS - 1);
            b.if_(last, |b| {
                let to = element(b, [row, chunk, column], chunks.into(), inner);
                out.store(b, to, sum);
            });
            return;
        }
        let sum = b.var(number(ty, 0.0));
        if let Some(carries) = inputs.get(1) {
            let later = b.gt(chunk, 0u32);
            b.if_(later, |b| {
                let last = b.sub(chunk, 1u32);
                let from = element(b, [row, last, column], chunks.into(), inner);
                let v = carries.load_as(b, ty, from);
                b.assign(sum, v);
            });
        }
        let has = b.gt(thread, 0u32);
        b.if_(has, |b| {
            let from = b.sub(thread, 1u32);
            let v = b.load(partial, from);
            b.assign_op(sum, Opcode::Add, &[sum, v]);
        });
        each(b, sum, true);
    });
    k.finish(lines.count() * chunks as usize)
}

fn is_summed(format: DType) -> bool {
    plain(format).is_some_and(|ty| ty.is_float() || computed(ty) == ty)
}

impl Op for ChunkSums {
    fn operation(&self) -> Operation {
        Operation::ChunkSums { axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x] = inputs else { return Err("takes x".into()) };
        along(x, self.dim)?;
        let ty = plain(x.format).filter(|_| is_summed(x.format)).ok_or("takes floats or integers of 32 or 64 bits")?;
        let mut shape = x.shape.clone();
        shape[self.dim] = Dim::Fixed(self.chunks);
        Ok(TensorType::new(DType::Plain(computed(ty)), shape))
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        program(spec, self.dim, true)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let lines = Lines::on_host(&x.shape, self.dim);
        let len = lines.count() * self.chunks;
        let mut out = Reference { values: vec![0.0; len], bounds: vec![0.0; len] };
        let of_chunks = Lines { n: self.chunks, ..lines };
        for line in 0..lines.count() {
            for (i, at) in lines.elements(line).enumerate() {
                let to = (line / lines.inner * of_chunks.n + i / CHUNK) * lines.inner + line % lines.inner;
                out.values[to] += x.values[at];
                out.bounds[to] += bound(x.format, x.values[at]);
            }
        }
        out
    }
}

/// The contribution of an element to the bound of a sum: it passes 18 roundings, in the chain of a thread's elements,
/// in the steps between threads and in the sums carried over.
fn bound(format: DType, value: f64) -> f64 {
    let float = plain(format).is_some_and(Type::is_float);
    if float { value.abs() * 9.0 * epsilon(format) } else { 0.0 }
}

impl Op for CumSum {
    fn operation(&self) -> Operation {
        Operation::CumSum { axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let (Some(x), carries) = (inputs.first(), inputs.get(1)) else { return Err("takes x".into()) };
        along(x, self.dim)?;
        let ty = plain(x.format).filter(|_| is_summed(x.format)).ok_or("takes floats or integers of 32 or 64 bits")?;
        if let Some(carries) = carries {
            let others = |t: &TensorType| super::lines::without(&t.shape, self.dim);
            if carries.format != DType::Plain(computed(ty)) || others(carries) != others(x) {
                return Err("what is carried over must have x's other dimensions".into());
            }
        }
        Ok((*x).clone())
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        program(spec, self.dim, false)
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        // The sums of the chunks before are sums of `x` too: the gradient by `x` is that by the whole.
        let grad = g.flip(call.grad, self.dim)?;
        let sums = g.cumsum(grad, self.dim)?;
        Ok(vec![Some(g.flip(sums, self.dim)?), None])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let (Some(x), carries) = (inputs.first(), inputs.get(1)) else { return Reference::default() };
        let lines = Lines::on_host(&x.shape, self.dim);
        let float = plain(x.format).is_some_and(Type::is_float);
        let mut out = Reference { values: vec![0.0; x.values.len()], bounds: vec![0.0; x.values.len()] };
        for line in 0..lines.count() {
            let (mut sum, mut off) = (0.0, 0.0);
            for (i, at) in lines.elements(line).enumerate() {
                if let Some(carries) = carries.filter(|_| i > 0 && i % CHUNK == 0) {
                    let of_chunks = Lines::on_host(&carries.shape, self.dim);
                    let from = of_chunks.elements(line).nth(i / CHUNK - 1).unwrap_or(0);
                    sum = carries.values[from];
                    off = bound(x.format, sum);
                }
                sum += x.values[at];
                off += bound(x.format, x.values[at]);
                out.values[at] = sum;
                out.bounds[at] = if float { stored(x.format, sum, off) } else { 0.0 };
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let input = |ty: Type, shape: &[Dim]| CaseInput {
        format: DType::Plain(ty),
        shape: shape.to_vec(),
        fill: match ty {
            ty if ty.is_float() => Fill::Normal(1.0),
            Type::U32 => Fill::Below(1000),
            _ => Fill::Normal(1000.0),
        },
    };
    let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let mut cases = Vec::new();
    for (ty, dim, shape) in [
        (Type::F32, 0, &[1][..]),
        (Type::F32, 0, &[700]),
        (Type::F32, 1, &[3, 257, 5]),
        (Type::F16, 1, &[2, 100]),
        (Type::BF16, 0, &[100, 3]),
        (Type::F64, 0, &[1500]),
        (Type::I64, 1, &[2, 100]),
        (Type::I32, 0, &[2048]),
        (Type::U32, 1, &[2, 9, 2]),
        (Type::F32, 0, &[3, 0]),
        (Type::F32, 0, &[2, 0, 3]),
        (Type::F32, 1, &[2, 3, 0]),
    ] {
        cases.push(Case::new(CumSum { dim }, &[]).input(input(ty, &dims(shape))));
    }
    for (ty, dim, shape) in [
        (Type::F32, 0, &[5000][..]),
        (Type::I32, 1, &[2, 2049, 3]),
        (Type::F16, 0, &[2050]),
        (Type::F32, 0, &[3000, 0]),
    ] {
        let mut before = dims(shape);
        before[dim] = Dim::Fixed(shape[dim].div_ceil(CHUNK));
        let chunks = ChunkSums { dim, chunks: shape[dim].div_ceil(CHUNK) };
        cases.push(Case::new(chunks, &[]).input(input(ty, &dims(shape))));
        let case = Case::new(CumSum { dim }, &[]).input(input(ty, &dims(shape)));
        cases.push(case.input(input(computed(ty), &before)));
    }
    let rows = |n: usize| input(Type::F32, &[Dim::Extent(0), Dim::Fixed(n)]);
    cases.push(Case::new(CumSum { dim: 0 }, &[(900, 300)]).input(rows(2)));
    cases.push(Case::new(CumSum { dim: 1 }, &[(4, 3)]).input(rows(50)));
    cases.push(Case::new(CumSum { dim: 0 }, &[(4, 3)]).input(rows(0)));
    cases.push(Case::new(ChunkSums { dim: 0, chunks: 2 }, &[(4000, 300)]).input(rows(2)));
    cases
}
