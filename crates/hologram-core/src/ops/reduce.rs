//! Reductions of the last dimension: the sum and the greatest element of every row.

use hologram_backends::{Format, KernelSpec};
use hologram_isa::{Array, Builder, Opcode, SUBGROUP_SIZE, Type, Value};

use super::{Kernel, Launchable, Op};
use crate::conformance::{Case, CaseInput, Fill, HostTensor, Reference};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::tensor::{Dim, TensorType};

/// Which reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    Sum,
    Max,
}

/// The operation; `x` is `f32 [.., d]`, the result `f32 [..]`.
#[derive(Debug)]
struct Reduce(Reduction);

impl Graph {
    /// The sums of the rows of `x` (`f32 [.., d]`): `f32 [..]`, a scalar for one dimension.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn reduce_sum(&mut self, x: NodeId) -> Result<NodeId> {
        self.apply(Reduce(Reduction::Sum), &[x])
    }

    /// The greatest elements of the rows of `x` (`f32 [.., d]`): `f32 [..]`, a scalar for one dimension. A NaN loses against a number.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn reduce_max(&mut self, x: NodeId) -> Result<NodeId> {
        self.apply(Reduce(Reduction::Max), &[x])
    }
}

pub(super) const THREADS: u32 = 256;

impl Op for Reduce {
    fn name(&self) -> &'static str {
        match self.0 {
            Reduction::Sum => "reduce_sum",
            Reduction::Max => "reduce_max",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = inputs else { return Err("takes x".into()) };
        match x.shape.split_last() {
            Some((Dim::Fixed(1..), rows)) if x.format == Format::F32 => Ok(TensorType::new(Format::F32, rows)),
            _ => Err("takes f32 with rows of a fixed length above 0".into()),
        }
    }

    /// One workgroup for each row.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let d = spec.inputs[0].row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", Type::F32, THREADS / SUBGROUP_SIZE);
        let rows = k.rows(&spec.inputs[0]);
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let row = b.builtin(Opcode::GroupX);
        let inside = b.lt(row, rows);
        b.if_(inside, |b| {
            let start = b.mul(row, d);
            let op = if self.0 == Reduction::Sum { Opcode::Add } else { Opcode::Max };
            let first = if self.0 == Reduction::Sum { 0.0 } else { f32::NAN };
            let thread = b.builtin(Opcode::ThreadX);
            let total = b.var(first);
            b.for_(thread, d, THREADS, |b, i| {
                let at = b.add(start, i);
                let v = x.load(b, at);
                b.assign_op(total, op, &[total, v]);
            });
            let total = workgroup_reduce(b, partial, op, total);
            let leader = b.eq(thread, 0u32);
            b.if_(leader, |b| out.store(b, row, total));
        });
        k.finish(spec.inputs[0].max_rows())
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let d = x.row_len();
        let mut out = Reference::default();
        for row in x.values.chunks(d) {
            match self.0 {
                Reduction::Sum => {
                    let size: f64 = row.iter().map(|v| v.abs()).sum();
                    // Roundings walk at random, each of half an ulp of a partial sum.
                    let bound = size * ((d as f64).sqrt() / 8.0 + 3.0) * f64::from(f32::EPSILON);
                    out.push(row.iter().sum(), bound);
                }
                Reduction::Max => out.push(row.iter().copied().fold(f64::NAN, f64::max), 0.0),
            }
        }
        out
    }
}

/// Reduces a value over the [`THREADS`] threads of a workgroup by [`Opcode::Add`], [`Opcode::Min`] or [`Opcode::Max`]; every thread gets
/// the result. All threads must call it together; `partial` has a value for each subgroup and may be used again after the next barrier.
pub(super) fn workgroup_reduce(b: &mut Builder, partial: Array, op: Opcode, value: Value) -> Value {
    let value = match op {
        Opcode::Add => b.subgroup_add(value),
        Opcode::Min => b.subgroup_min(value),
        _ => b.subgroup_max(value),
    };
    let lane = b.builtin(Opcode::Lane);
    let subgroup = b.builtin(Opcode::Subgroup);
    let leader = b.eq(lane, 0u32);
    b.if_(leader, |b| b.store(partial, subgroup, value));
    b.barrier();
    let first = b.load(partial, 0u32);
    let total = b.var(first);
    b.for_(1u32, THREADS / SUBGROUP_SIZE, 1u32, |b, i| {
        let v = b.load(partial, i);
        b.assign_op(total, op, &[total, v]);
    });
    total
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [Reduction::Sum, Reduction::Max] {
        let rows = |rows: usize, max: usize, d: usize| {
            Case::new(Reduce(op), &[(max, rows)])
                .input(CaseInput::normal(Format::F32, &[Dim::Extent(0), Dim::Fixed(d)]))
        };
        let fixed = |shape: &[usize]| {
            let shape: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
            Case::new(Reduce(op), &[]).input(CaseInput::normal(Format::F32, &shape))
        };
        let mut special = CaseInput::normal(Format::F32, &[Dim::Fixed(5)]);
        special.fill = Fill::Values(vec![-3.0, f32::NEG_INFINITY, -2.0, -2.5, -9.0]);
        cases.extend([rows(0, 3, 5), rows(1, 1, 1), rows(5, 9, 257), rows(3, 3, 4096), rows(700, 1000, 33)]);
        cases.extend([fixed(&[1]), fixed(&[100_003]), fixed(&[3, 2, 64]), Case::new(Reduce(op), &[]).input(special)]);
    }
    let mut nans = CaseInput::normal(Format::F32, &[Dim::Fixed(2), Dim::Fixed(3)]);
    nans.fill = Fill::Values(vec![f32::NAN, -1.0, f32::NAN, f32::NAN, f32::NAN, f32::NAN]);
    cases.push(Case::new(Reduce(Reduction::Max), &[]).input(nans));
    cases
}
