//! The greatest elements of rows.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::Opcode;

use super::lines::is_in_f32;
use super::reduce::THREADS;
use super::sample::{NONE, Team, key};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, Tensor, TensorType};

/// Indices of the greatest elements; `x` is of floats `[.., d]`, the result is `u32 [.., k]`.
#[derive(Debug)]
struct TopK {
    k: u32,
}

/// The maximum k of the operation; for a greater k the row is sorted.
const MAX_K: u32 = 256;

impl Graph {
    /// The `k` greatest elements of each row of `x` (any plain numbers `[.., d]`, k from 1 to d) in descending order,
    /// `[.., k]`, and their indices in the row, `u32 [.., k]`.
    ///
    /// Of equal elements (−0 equals +0) the one with the lower index comes first. NaN is greater than +∞, as in
    /// [`Graph::sort`]. A k above 256, and numbers other than `f32`, `f16` and `bf16`, sort the row.
    ///
    /// # Errors
    /// When the operand does not fit, or its rows are shorter than k.
    pub fn top_k(&mut self, x: NodeId, k: usize) -> Result<(NodeId, NodeId)> {
        let narrow = is_in_f32(self.operand("top_k", x)?.ty.format);
        self.called("top_k", |g| {
            let indices = if narrow && k <= MAX_K as usize {
                g.apply(TopK { k: k as u32 }, &[x])?
            } else {
                g.first_of_order(x, k)?
            };
            Ok((g.take(x, indices)?, indices))
        })
    }

    fn first_of_order(&mut self, x: NodeId, k: usize) -> Result<NodeId> {
        let ty = self.ty(x);
        let refuse = |reason: String| CoreError::Operands { op: "top_k", reason, operands: ty.to_string() };
        let last = ty.shape.len().saturating_sub(1);
        match ty.shape.last() {
            Some(Dim::Fixed(d)) => fits(k, *d).map_err(refuse)?,
            _ => return Err(refuse("takes rows of a fixed length".into())),
        }
        let order = self.arg_sort(x, last, true)?;
        let first = self.slice(order, last, 0, k)?;
        self.contiguous(first)
    }
}

impl Tensor {
    /// The greatest elements of each row in descending order, and their indices, as [`Graph::top_k`].
    ///
    /// # Errors
    /// As [`Graph::top_k`]; errors of the device.
    pub fn top_k(&self, k: usize) -> Result<(Tensor, Tensor)> {
        let indices = |g: &mut Graph, v: &[NodeId]| Ok(g.top_k(v[0], k)?.1);
        let indices = self.executor.cached(Call::TopK, &[k as u64], &[self], indices)?;
        Ok((self.take_along(&indices, self.shape.len().saturating_sub(1))?, indices))
    }
}

/// Checks that a row of `d` elements has `k`.
fn fits(k: usize, d: usize) -> std::result::Result<(), String> {
    match (1..=d).contains(&k) {
        true => Ok(()),
        false => Err(format!("k is {k}, but rows have {d} elements; it must be from 1 to that")),
    }
}

impl Op for TopK {
    fn operation(&self) -> Operation {
        Operation::TopK { k: self.k }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x] = inputs else { return Err("takes x".into()) };
        match x.shape.split_last() {
            Some((Dim::Fixed(d), rows)) if is_in_f32(x.format) => {
                fits(self.k as usize, *d)?;
                if self.k > MAX_K {
                    return Err(format!("k is {}, but must be at most {MAX_K}", self.k).into());
                }
                Ok(TensorType::new(DType::U32, [rows, &[Dim::Fixed(self.k as usize)]].concat()))
            }
            _ => Err("takes f32, f16 or bf16 with rows of a fixed length".into()),
        }
    }

    /// One workgroup per row, with one pass over the row per element found.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let d = spec.inputs[0].row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let rows = k.rows(&spec.inputs[0]);
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let team = Team::new(b);
        let row = b.builtin(Opcode::GroupX);
        let inside = b.lt(row, rows);
        b.if_(inside, |b| {
            let thread = b.builtin(Opcode::ThreadX);
            let (start, first) = (b.mul(row, d), b.mul(row, self.k));
            // The last element found. `begun` is false for the first, which has no predecessor.
            let (last_key, last_index) = (b.var(u32::MAX), b.var(NONE));
            let begun = b.var(false);
            b.for_(0u32, self.k, 1u32, |b, i| {
                let (best, at) = (b.var(0u32), b.var(NONE));
                b.for_(thread, d, THREADS, |b, j| {
                    let from = b.add(start, j);
                    let v = x.load(b, from);
                    let nan = b.ne(v, v);
                    let key = key(b, v);
                    let key = b.select(nan, u32::MAX, key);
                    let less = b.lt(key, last_key);
                    let equal = b.eq(key, last_key);
                    let later = b.gt(j, last_index);
                    let tie = b.and(equal, later);
                    let after = b.or(less, tie);
                    let fresh = b.not(begun);
                    let after = b.or(after, fresh);
                    let better = b.gt(key, best);
                    let better = b.and(after, better);
                    b.if_(better, |b| {
                        b.assign(best, key);
                        b.assign(at, j);
                    });
                });
                let greatest = team.reduce(b, Opcode::Max, best);
                let has = b.eq(best, greatest);
                let index = b.select(has, at, NONE);
                let index = team.reduce(b, Opcode::Min, index);
                b.assign(last_key, greatest);
                b.assign(last_index, index);
                b.assign(begun, true);
                let leader = b.eq(thread, 0u32);
                b.if_(leader, |b| {
                    let to = b.add(first, i);
                    out.store(b, to, index);
                });
            });
        });
        k.finish(spec.inputs[0].max_rows())
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        for row in x.values.chunks(x.row_len()) {
            // -0 equals +0.
            let value = |i: &usize| if row[*i].is_nan() { f64::INFINITY } else { row[*i] + 0.0 };
            let rank =
                |i: &usize| (!row[*i].is_nan(), std::cmp::Reverse(value(i).to_bits() as i64 ^ sign(value(i))), *i);
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by_key(rank);
            order.iter().take(self.k as usize).for_each(|i| out.push(*i as f64, 0.0));
        }
        out
    }
}

/// The mask for XOR with the bits of a number that makes them sort as signed integers.
fn sign(v: f64) -> i64 {
    ((v.to_bits() as i64 >> 63) as u64 >> 1) as i64
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let top = |k: u32, rows: usize, max: usize, d: usize| {
        Case::new(TopK { k }, &[(max, rows)]).input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(d)]))
    };
    let row = |k: u32, values: &[f32]| {
        let mut input = CaseInput::normal(DType::F32, &[Dim::Fixed(values.len())]);
        input.fill = Fill::Values(values.to_vec());
        Case::new(TopK { k }, &[]).input(input)
    };
    let narrow =
        |format| Case::new(TopK { k: 9 }, &[]).input(CaseInput::normal(format, &[Dim::Fixed(2), Dim::Fixed(300)]));
    let (none, inf, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
    let equal: Vec<f32> = (0..700).map(|i| (i % 7) as f32 / 2.0 - 2.0).collect();
    vec![
        top(1, 1, 1, 1),
        top(3, 0, 2, 5),
        top(5, 3, 4, 257),
        top(40, 2, 3, 20_003),
        top(256, 2, 2, 300),
        narrow(DType::F16),
        narrow(DType::BF16),
        row(5, &[1.0, none, inf, -0.0, 0.0]),
        row(7, &[nan, inf, none, -nan, 3.0, none, nan]),
        row(256, &equal),
        row(200, &[none; 300]),
    ]
}
