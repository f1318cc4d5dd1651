//! Sorting along a dimension of any length. A bitonic network sorts blocks (Batcher, 1968); then runs are merged by the
//! rank of each element in the other run, with one launch per doubling.

use hologram_backends::{DType, Extent, KernelSpec, Operation};
use hologram_isa::{Array, Builder, Opcode, Type, Value};

use super::lines::{Lines, THREADS, computed, is_number, number, outer, plain};
use super::take::{element, place};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Axis, Dim, TensorType};

/// Elements per block, two per thread.
const BLOCK: usize = hologram_backends::SORT_BLOCK;

/// The order, `u32` indices, of each block of [`BLOCK`] elements along a dimension.
#[derive(Debug)]
struct SortBlocks {
    dim: usize,
    descending: bool,
}

/// Merges the order of runs of `run` elements to that of runs twice as long; its inputs are `x` and the order.
#[derive(Debug)]
struct MergeRuns {
    dim: usize,
    descending: bool,
    run: u32,
}

impl Graph {
    /// The elements of `x` in order along dimension `dim`, at the indices of [`Graph::arg_sort`].
    ///
    /// # Errors
    /// When `x` has no such dimension, or is not of plain numbers.
    pub fn sort(&mut self, x: NodeId, dim: impl Axis, descending: bool) -> Result<NodeId> {
        let dim = self.axis("sort", x, dim)?;
        self.called("sort", |g| {
            let order = g.arg_sort(x, dim, descending)?;
            g.take_along(x, order, dim)
        })
    }

    /// The indices (`u32`, of `x`'s shape) along dimension `dim` that put `x` in ascending or descending order.
    /// Equal elements (−0 equals +0) keep their order in both; NaN is greater than +∞, as in [`Graph::top_k`]
    /// and [`Graph::arg_max`].
    ///
    /// # Errors
    /// When `x` has no such dimension, or is not of plain numbers.
    pub fn arg_sort(&mut self, x: NodeId, dim: impl Axis, descending: bool) -> Result<NodeId> {
        let dim = self.axis("arg_sort", x, dim)?;
        self.called("arg_sort", |g| g.order_of(x, dim, descending))
    }

    fn order_of(&mut self, x: NodeId, dim: usize, descending: bool) -> Result<NodeId> {
        let mut order = self.apply(SortBlocks { dim, descending }, &[x])?;
        let n = match self.shape_of(x).get(dim) {
            Some(Dim::Fixed(n)) => *n,
            Some(Dim::Extent(e)) => self.extents.get(*e as usize).map_or(0, |e| e.max),
            None => 0,
        };
        let mut run = BLOCK;
        while run < n {
            order = self.apply(MergeRuns { dim, descending, run: run as u32 }, &[x, order])?;
            run *= 2;
        }
        Ok(order)
    }
}

/// The signed integer type of a type's size.
fn signed(ty: Type) -> Type {
    if ty.is_wide() { Type::I64 } else { Type::I32 }
}

/// The type of the keys of a type's elements.
fn unsigned(ty: Type) -> Type {
    if ty.is_wide() { Type::U64 } else { Type::U32 }
}

/// The least integer of a type's size.
fn least(ty: Type) -> Value {
    number(signed(ty), f64::NEG_INFINITY)
}

/// A key with the order of the elements: unsigned, of the same size.
fn key(b: &mut Builder, value: Value, descending: bool) -> Value {
    let key = match value.ty {
        Type::F32 | Type::F64 => {
            let nan = b.ne(value, value);
            // −0 becomes +0; then negative numbers have all bits inverted, the others only the sign.
            let value = b.add(value, number(value.ty, 0.0));
            let bits = b.bitcast(signed(value.ty), value);
            let sign = b.shr(bits, 8 * value.ty.size() as u32 - 1);
            let flip = b.or(sign, least(value.ty));
            let key = b.xor(bits, flip);
            let key = b.bitcast(unsigned(value.ty), key);
            b.select(nan, number(key.ty, f64::INFINITY), key)
        }
        Type::I32 | Type::I64 => {
            let flipped = b.xor(value, least(value.ty));
            b.bitcast(unsigned(value.ty), flipped)
        }
        _ => value,
    };
    if descending { b.not(key) } else { key }
}

/// Whether an element comes before another; no two elements have the same index.
fn before(b: &mut Builder, [key, index]: [Value; 2], [other, other_index]: [Value; 2]) -> Value {
    let less = b.lt(key, other);
    let equal = b.eq(key, other);
    let lower = b.lt(index, other_index);
    let tie = b.and(equal, lower);
    b.or(less, tie)
}

fn infer(inputs: &[&TensorType], dim: usize) -> std::result::Result<TensorType, Mismatch> {
    let Some((x, order)) = inputs.split_first() else { return Err("takes x".into()) };
    if dim >= x.shape.len() {
        return Err(format!("there is no dimension {dim}").into());
    }
    let ty = TensorType::new(DType::U32, x.shape.clone());
    match plain(x.format) {
        Some(element) if is_number(element) && order.iter().all(|o| **o == ty) => Ok(ty),
        _ => Err("takes plain numbers, and u32 indices of their shape".into()),
    }
}

impl Op for SortBlocks {
    fn operation(&self) -> Operation {
        Operation::SortBlocks { axis: self.dim as u32, descending: self.descending }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        infer(inputs, self.dim)
    }

    /// One workgroup per block of a line.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let lines = Lines::of(&spec.output, self.dim);
        let (inner, blocks) = (lines.inner as u32, lines.n.div_ceil(BLOCK).max(1) as u32);
        let ty = computed(plain(spec.inputs[0].format).unwrap_or(Type::F32));
        let mut k = Kernel::new(spec, THREADS);
        let shared = [k.b.shared("keys", unsigned(ty), BLOCK as u32), k.b.shared("indices", Type::U32, BLOCK as u32)];
        let outers = outer(&mut k, &spec.output, self.dim);
        let n = k.extent(spec.output.shape.get(self.dim).copied().unwrap_or(Extent::Fixed(1)));
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let (group, thread) = (b.builtin(Opcode::GroupX), b.builtin(Opcode::ThreadX));
        let (line, block) = (b.div(group, blocks), b.rem(group, blocks));
        let (row, column) = (b.div(line, inner.max(1)), b.rem(line, inner.max(1)));
        let first = b.mul(block, BLOCK as u32);
        let active = b.lt(row, outers);
        b.if_(active, |b| {
            for half in [0, THREADS] {
                let at = b.add(thread, half);
                let i = b.add(first, at);
                // Elements beyond the line come last.
                let (of_element, index) = (b.var(number(unsigned(ty), f64::INFINITY)), b.var(u32::MAX));
                let inside = b.lt(i, n);
                b.if_(inside, |b| {
                    let from = element(b, [row, i, column], n, inner);
                    let v = x.load_as(b, ty, from);
                    let v = key(b, v, self.descending);
                    b.assign(of_element, v);
                    b.assign(index, i);
                });
                b.store(shared[0], at, of_element);
                b.store(shared[1], at, index);
            }
            b.barrier();
            bitonic(b, shared, thread);
            for half in [0, THREADS] {
                let at = b.add(thread, half);
                let i = b.add(first, at);
                let inside = b.lt(i, n);
                b.if_(inside, |b| {
                    let index = b.load(shared[1], at);
                    let to = element(b, [row, i, column], n, inner);
                    out.store(b, to, index);
                });
            }
        });
        k.finish(lines.count() * blocks as usize)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        inputs.first().map(|x| order_of_runs(x, self.dim, self.descending, BLOCK)).unwrap_or_default()
    }
}

/// Sorts [`BLOCK`] pairs in shared memory; each thread compares and swaps two of them per round.
fn bitonic(b: &mut Builder, shared: [Array; 2], thread: Value) {
    let rounds = BLOCK.trailing_zeros();
    b.for_(1u32, rounds + 1, 1u32, |b, stage| {
        b.for_(0u32, stage, 1u32, |b, step| {
            let left = b.sub(stage, step);
            let shift = b.sub(left, 1u32);
            let distance = b.shl(1u32, shift);
            let mask = b.sub(distance, 1u32);
            let low = b.and(thread, mask);
            let high = b.sub(thread, low);
            let high = b.shl(high, 1u32);
            let i = b.or(high, low);
            let j = b.add(i, distance);
            let bit = b.shl(1u32, stage);
            let bit = b.and(i, bit);
            let rising = b.eq(bit, 0u32);
            let x = shared.map(|a| b.load(a, i));
            let y = shared.map(|a| b.load(a, j));
            let swapped = before(b, y, x);
            let swap = b.eq(swapped, rising);
            b.if_(swap, |b| {
                for e in 0..2 {
                    b.store(shared[e], i, y[e]);
                    b.store(shared[e], j, x[e]);
                }
            });
            b.barrier();
        });
    });
}

impl Op for MergeRuns {
    fn operation(&self) -> Operation {
        Operation::SortMerge { axis: self.dim as u32, descending: self.descending, run: self.run }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        if inputs.len() != 2 || !self.run.is_power_of_two() {
            return Err("takes x and the order of its runs, whose length is a power of two".into());
        }
        infer(inputs, self.dim)
    }

    /// One thread per element: its position is its position in its own run plus the number of elements of the
    /// other run before it.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let inner = Lines::of(&spec.output, self.dim).inner as u32;
        let ty = computed(plain(spec.inputs[0].format).unwrap_or(Type::F32));
        let pair = self.run.saturating_mul(2);
        // Masks a position in the line to the start of its pair of runs; a pair may be longer than a u32 can count.
        let mask = self.run.checked_mul(2).map_or(0, |pair| !(pair - 1));
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let n = k.extent(spec.output.shape.get(self.dim).copied().unwrap_or(Extent::Fixed(1)));
        let (x, order, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let [row, j, column] = place(b, i, n, inner);
            let keyed = |b: &mut Builder, j: Value| {
                let at = element(b, [row, j, column], n, inner);
                let index = b.load(order.views[0], at);
                let at = element(b, [row, index, column], n, inner);
                let v = x.load_as(b, ty, at);
                [key(b, v, self.descending), index]
            };
            let own = keyed(b, j);
            let base = b.and(j, mask);
            let rest = b.sub(n, base);
            let (first, both) = (b.min(rest, self.run), b.min(rest, pair));
            let (mid, end) = (b.add(base, first), b.add(base, both));
            let left = b.lt(j, mid);
            let start = b.select(left, mid, base);
            let (low, high) = (b.var(start), b.select(left, end, mid));
            let high = b.var(high);
            b.loop_(33, |b| {
                let found = b.ge(low, high);
                b.break_if(found);
                let size = b.sub(high, low);
                let half = b.shr(size, 1u32);
                let middle = b.add(low, half);
                let other = keyed(b, middle);
                let earlier = before(b, other, own);
                let next = b.add(middle, 1u32);
                b.if_else(earlier, |b| b.assign(low, next), |b| b.assign(high, middle));
            });
            let rank = b.sub(low, start);
            // The position in the left run is j − base, that in the right run is j − mid.
            let from = b.select(left, base, mid);
            let place = b.sub(j, from);
            let place = b.add(place, rank);
            let place = b.add(base, place);
            let to = element(b, [row, place, column], n, inner);
            out.store(b, to, own[1]);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let run = 2 * self.run as usize;
        inputs.first().map(|x| order_of_runs(x, self.dim, self.descending, run)).unwrap_or_default()
    }
}

/// The order within each run of a line.
fn order_of_runs(x: &HostTensor, dim: usize, descending: bool, run: usize) -> Reference {
    let lines = Lines::on_host(&x.shape, dim);
    let mut out = Reference { values: vec![0.0; x.values.len()], bounds: vec![0.0; x.values.len()] };
    for line in 0..lines.count() {
        let at: Vec<usize> = lines.elements(line).collect();
        let mut order: Vec<usize> = (0..lines.n).collect();
        for part in order.chunks_mut(run) {
            part.sort_by(|i, j| {
                let [a, b] = [*i, *j].map(|i| x.values[at[i]]);
                let rising = a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal));
                if descending { rising.reverse() } else { rising }
            });
        }
        for (to, index) in at.iter().zip(order) {
            out.values[*to] = index as f64;
        }
    }
    out
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for descending in [false, true] {
        let (rows, fixed) = (Dim::Extent(0), Dim::Fixed);
        let case = |dim: usize, format: DType, fill: Fill, shape: &[Dim]| {
            Case::new(SortBlocks { dim, descending }, &[(900, 700)]).input(CaseInput {
                format,
                shape: shape.to_vec(),
                fill,
            })
        };
        let (inf, nan, normal) = (f32::INFINITY, f32::NAN, Fill::Normal(1.0));
        cases.extend([
            case(1, DType::F32, normal.clone(), &[rows, fixed(7)]),
            case(0, DType::F32, normal.clone(), &[rows, fixed(3)]),
            case(0, DType::F32, normal.clone(), &[fixed(0), fixed(3)]),
            case(0, DType::F32, normal.clone(), &[fixed(3), fixed(0)]),
            case(0, DType::F32, normal.clone(), &[fixed(2), fixed(0), fixed(3)]),
            case(1, DType::F32, normal.clone(), &[fixed(2), fixed(3), fixed(0)]),
            case(0, DType::F32, normal.clone(), &[rows, fixed(0)]),
            case(1, DType::F32, normal.clone(), &[fixed(2), fixed(1100)]),
            case(1, DType::F16, normal.clone(), &[fixed(2), fixed(100), fixed(5)]),
            case(0, DType::BF16, normal, &[fixed(600)]),
            case(0, DType::I32, Fill::Normal(5.0), &[fixed(600)]),
            case(0, DType::U32, Fill::Below(9), &[fixed(600)]),
            case(0, DType::Plain(Type::F64), Fill::Normal(1.0), &[fixed(600)]),
            case(0, DType::Plain(Type::I64), Fill::Normal(50.0), &[fixed(300)]),
            case(0, DType::Plain(Type::U64), Fill::Below(50), &[fixed(300)]),
            case(0, DType::Plain(Type::I8), Fill::Normal(30.0), &[fixed(600)]),
            case(0, DType::F32, Fill::Values(vec![nan, 2.0, -inf, -nan, inf, 0.0, -0.0, nan, -1e-40]), &[fixed(9)]),
        ]);
        // Sorted runs, then merged ones.
        for (dim, shape, run) in [
            (0, vec![2500], 512),
            (0, vec![3000], 1024),
            (1, vec![2, 40, 3], 8),
            (0, vec![1 << 14], 1 << 13),
            (0, vec![600, 0], 512),
        ] {
            let n: usize = shape.iter().product();
            let values: Vec<f64> = (0..n as u64).map(|i| ((i * 7919) % 1013 / 3) as f64 - 100.0).collect();
            let x = HostTensor { format: DType::F32, shape: shape.clone(), values };
            let order = order_of_runs(&x, dim, descending, run);
            let dims: Vec<Dim> = shape.iter().map(|n| fixed(*n)).collect();
            let input = |format: DType, values: &[f64]| CaseInput {
                format,
                shape: dims.clone(),
                fill: Fill::Values(values.iter().map(|v| *v as f32).collect()),
            };
            let case = Case::new(MergeRuns { dim, descending, run: run as u32 }, &[]);
            cases.push(case.input(input(DType::F32, &x.values)).input(input(DType::U32, &order.values)));
        }
    }
    cases
}
