//! Sets or adds elements along a dimension by index. Every element of the result looks up its own updates, so on every
//! device the order of sums is the order of the updates.

#[cfg(feature = "conformance")]
use hologram_backends::DType;
use hologram_backends::{Extent, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, Type, Value};

use super::lines::{Lines, THREADS, along_some, computed, epsilon, not_for, plain, stored};
use super::take::{element, indices_along, place};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Axis, Dim, TensorType};

/// The operation; its inputs are `x`, the `u32` indices, their order from `arg_sort`, and the updates.
#[derive(Debug)]
struct Scatter {
    dim: usize,
    add: bool,
}

impl Graph {
    /// Replaces elements of `x`, of any plain type, along dimension `dim` with `updates`, at the indices `indices`
    /// (`u32`): the reverse of [`Graph::take_along`].
    ///
    /// The indices have the updates' shape, or one dimension (an index per slice). The updates have `x`'s shape except
    /// in that dimension. Of several updates of one element the last counts. An index that is not less than the
    /// dimension's size is an error of the run.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn scatter(&mut self, x: NodeId, indices: NodeId, updates: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("scatter", x, dim)?;
        self.scattered(x, indices, updates, Scatter { dim, add: false })
    }

    /// As [`Graph::scatter`], but adds the updates to the elements, in the order of the updates. `f16` and `bf16` are
    /// added in `f32` and rounded once. Integers below 32 bits are rejected.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn scatter_add(&mut self, x: NodeId, indices: NodeId, updates: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("scatter_add", x, dim)?;
        self.scattered(x, indices, updates, Scatter { dim, add: true })
    }

    fn scattered(&mut self, x: NodeId, indices: NodeId, updates: NodeId, op: Scatter) -> Result<NodeId> {
        self.called(op.name(), |g| {
            // No updates of no elements: the operation itself takes at least one element.
            let is_empty = g.shape_of(x).get(op.dim) == Some(&Dim::Fixed(0));
            if is_empty && g.ty(updates) == g.ty(x) && g.shape_of(indices).contains(&Dim::Fixed(0)) {
                return g.copy(x);
            }
            let along = if g.shape_of(indices).len() == 1 { 0 } else { op.dim };
            let order = g.arg_sort(indices, along, false)?;
            g.apply(op, &[x, indices, order, updates])
        })
    }
}

impl Op for Scatter {
    fn operation(&self) -> Operation {
        Operation::Scatter { add: self.add, axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, indices, order, updates] = inputs else { return Err("takes x, indices, order and updates".into()) };
        along_some(x, self.dim)?;
        let mut shape = x.shape.clone();
        shape[self.dim] = indices_along(&x.shape, indices, self.dim)?;
        let exists = |ty: Type| !self.add || ty.is_float() || computed(ty) == ty;
        if !plain(x.format).is_some_and(exists) {
            return Err(not_for(x.format, exists));
        }
        if updates.format != x.format || updates.shape != shape || indices != order {
            return Err("updates must be of x's type, and of its shape but for the dimension of the indices".into());
        }
        Ok((*x).clone())
    }

    /// One thread per element of the result; it finds its updates by bisection in the sorted indices.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let size = |shape: &[Extent]| shape.get(self.dim).copied().unwrap_or(Extent::Fixed(1));
        let inner = Lines::of(&spec.output, self.dim).inner as u32;
        let slices = spec.inputs[1].shape.len() == 1;
        let ty = plain(spec.output.format).unwrap_or(Type::F32);
        let most = size(&spec.inputs[3].shape).max().max(1) as u32;
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (n, m) = (k.extent(size(&spec.output.shape)), k.extent(size(&spec.inputs[3].shape)));
        let [x, indices, order, updates] = [0, 1, 2, 3].map(|i| k.inputs[i].clone());
        let out = k.output.clone();
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let [row, place, column] = place(b, i, n, inner);
            let at = |b: &mut Builder, j: Value| {
                if slices { j } else { element(b, [row, j, column], m, inner) }
            };
            // The j-th update in sorted order, and its index.
            let update = |b: &mut Builder, j: Value| {
                let from = at(b, j);
                let update = b.load(order.views[0], from);
                let from = at(b, update);
                [update, b.load(indices.views[0], from)]
            };
            // The first thread of each line checks the greatest index.
            let (first, some) = (b.eq(place, 0u32), b.gt(m, 0u32));
            let looks = b.and(first, some);
            let from = b.var(i);
            b.if_(looks, |b| {
                let last = b.sub(m, 1u32);
                let [_, greatest] = update(b, last);
                let outside = b.ge(greatest, n);
                // No tensor has an element at u32::MAX, so the load fails.
                b.if_(outside, |b| b.assign(from, u32::MAX));
            });
            let v = b.load(x.views[0], from);
            // Finds the number of updates with a lower index; to set elements, also of those with this index.
            let bound = if self.add { place } else { b.add(place, 1u32) };
            let (low, high) = (b.var(0u32), b.var(m));
            b.loop_(33, |b| {
                let found = b.ge(low, high);
                b.break_if(found);
                let size = b.sub(high, low);
                let half = b.shr(size, 1u32);
                let middle = b.add(low, half);
                let [_, index] = update(b, middle);
                let earlier = b.lt(index, bound);
                let next = b.add(middle, 1u32);
                b.if_else(earlier, |b| b.assign(low, next), |b| b.assign(high, middle));
            });
            let result = if self.add {
                let v = b.cvt(computed(ty), v);
                let sum = b.var(v);
                b.loop_(most, |b| {
                    let end = b.ge(low, m);
                    b.break_if(end);
                    let [which, index] = update(b, low);
                    let other = b.ne(index, place);
                    b.break_if(other);
                    let from = element(b, [row, which, column], m, inner);
                    let v = updates.load_as(b, computed(ty), from);
                    b.assign_op(sum, Opcode::Add, &[sum, v]);
                    b.assign_op(low, Opcode::Add, &[low, 1u32.into()]);
                });
                sum
            } else {
                let v = b.var(v);
                let some = b.gt(low, 0u32);
                b.if_(some, |b| {
                    let last = b.sub(low, 1u32);
                    let [which, index] = update(b, last);
                    let here = b.eq(index, place);
                    b.if_(here, |b| {
                        let from = element(b, [row, which, column], m, inner);
                        let update = b.load(updates.views[0], from);
                        b.assign(v, update);
                    });
                });
                v
            };
            out.store(b, i, result);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, indices, _, updates] = [0, 1, 2, 3].map(|k| call.inputs[k]);
        let taken = g.take_along(call.grad, indices, self.dim)?;
        if self.add {
            return Ok(vec![Some(call.grad), None, None, Some(taken)]);
        }
        // Of several updates of an element the last has its gradient.
        let shape = g.shape_of(updates).to_vec();
        let zeros = g.zeros_like(updates)?;
        let by_x = g.scatter(call.grad, indices, zeros, self.dim)?;
        let places = g.arange(Type::U32, 0.0, 1.0, shape[self.dim])?;
        let mut along = vec![Dim::Fixed(1); shape.len()];
        along[self.dim] = shape[self.dim];
        let places = g.reshape(places, &along)?;
        let places = g.broadcast_to(places, &shape)?;
        let whole = g.shape_of(x).to_vec();
        let none = g.full(Type::U32, &whole, 0.0)?;
        let last = g.scatter(none, indices, places, self.dim)?;
        let last = g.take_along(last, indices, self.dim)?;
        let is_last = g.eq(last, places)?;
        let by_updates = g.select(is_last, taken, zeros)?;
        Ok(vec![Some(by_x), None, None, Some(by_updates)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, indices, _, updates] = inputs else { return Reference::default() };
        let (lines, slices) = (Lines::on_host(&x.shape, self.dim), indices.shape.len() == 1);
        let m = updates.shape[self.dim];
        let (mut values, mut sizes) = (x.values.clone(), x.values.iter().map(|v| v.abs()).collect::<Vec<_>>());
        let mut counts = vec![0.0; values.len()];
        for (i, update) in updates.values.iter().enumerate() {
            let (outer, j, column) = (i / (m * lines.inner), i / lines.inner % m, i % lines.inner);
            let index = indices.values[if slices { j } else { i }] as usize;
            let at = (outer * lines.n + index) * lines.inner + column;
            values[at] = if self.add { values[at] + update } else { *update };
            sizes[at] += update.abs();
            counts[at] += 1.0;
        }
        let float = plain(x.format).is_some_and(Type::is_float);
        let bound = |at: usize| match self.add && float {
            true => stored(x.format, values[at], sizes[at] * counts[at] * epsilon(x.format) / 2.0),
            false => 0.0,
        };
        Reference { bounds: (0..values.len()).map(bound).collect(), values }
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for add in [false, true] {
        // The arguments: the shape of x, the dimension, the number of updates, and whether each of their
        // elements has an index.
        let case = |ty: Type, x: &[usize], dim: usize, m: usize, each: bool| {
            let mut shape = x.to_vec();
            shape[dim] = m;
            let of_indices = if each { shape.clone() } else { vec![m] };
            let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
            let lines = Lines::on_host(&of_indices, if each { dim } else { 0 });
            // Pairs of neighbours have the same index, as have some others.
            let count = of_indices.iter().product::<usize>();
            let indices: Vec<usize> = (0..count).map(|i| (i / 2 * 7 + i / 90) * 31 % x[dim]).collect();
            let mut order = vec![0usize; count];
            for line in 0..lines.count() {
                let at: Vec<usize> = lines.elements(line).collect();
                let mut sorted: Vec<usize> = (0..m).collect();
                sorted.sort_by_key(|j| indices[at[*j]]);
                at.iter().zip(sorted).for_each(|(at, j)| order[*at] = j);
            }
            let whole = |values: Vec<usize>| CaseInput {
                format: DType::U32,
                shape: dims(&of_indices),
                fill: Fill::Values(values.iter().map(|v| *v as f32).collect()),
            };
            let numbers = |shape: &[usize]| CaseInput {
                format: DType::Plain(ty),
                shape: dims(shape),
                fill: if ty == Type::U32 { Fill::Below(1000) } else { Fill::Normal(30.0) },
            };
            let case = Case::new(Scatter { dim, add }, &[]).input(numbers(x));
            case.input(whole(indices)).input(whole(order)).input(numbers(&shape))
        };
        cases.extend([
            case(Type::F32, &[1], 0, 1, false),
            case(Type::F32, &[40, 7], 0, 60, false),
            case(Type::F32, &[3, 20, 5], 1, 33, true),
            case(Type::F16, &[3, 20, 5], 1, 0, true),
            case(Type::F32, &[3, 0], 0, 2, true),
            case(Type::F32, &[2, 0, 3], 0, 4, false),
            case(Type::F16, &[30, 50], 1, 70, true),
            case(Type::BF16, &[30, 50], 1, 70, false),
            case(Type::I32, &[500], 0, 600, false),
            case(Type::F64, &[50], 0, 90, false),
            case(Type::I64, &[50], 0, 90, true),
            case(Type::U32, &[500, 2], 0, 600, true),
        ]);
        if !add {
            cases.push(case(Type::I8, &[500], 0, 300, false));
        }
    }
    cases
}
