//! The indices of the greatest and of the least elements along a dimension.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Type, Value};

use super::lines::{Lines, THREADS, Tile, along_some, computed, is_number, number, plain, without};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::{Axis, TensorType};

/// The operation; `x` is of any plain numbers, the result is `u32`.
#[derive(Debug)]
struct ArgReduce {
    least: bool,
    dim: usize,
}

/// The index when there is no element.
const NONE: u32 = u32::MAX;

impl Graph {
    /// The indices (`u32`) of the greatest elements of `x` along dimension `dim`, which the result does not have.
    ///
    /// - Of equal elements (−0 equals +0) the lowest index counts.
    /// - The first NaN is found if there is one, as [`Graph::sort`] and [`Graph::top_k`] have it greater than +∞.
    /// - A line without elements (a run-time extent of 0) gives `u32::MAX`.
    ///
    /// # Errors
    /// When `x` has no such dimension, the dimension is fixed at 0, or `x` is not of plain numbers.
    pub fn arg_max(&mut self, x: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("arg_max", x, dim)?;
        self.apply(ArgReduce { least: false, dim }, &[x])
    }

    /// The indices of the least elements, as [`Graph::arg_max`]: the first NaN, too, is found if there is one.
    ///
    /// # Errors
    /// As [`Graph::arg_max`].
    pub fn arg_min(&mut self, x: NodeId, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis("arg_min", x, dim)?;
        self.apply(ArgReduce { least: true, dim }, &[x])
    }
}

impl ArgReduce {
    /// The better of two elements, with their indices; either index may be [`NONE`].
    fn better(&self, b: &mut Builder, [x, i]: [Value; 2], [y, j]: [Value; 2]) -> [Value; 2] {
        let none = b.eq(i, NONE);
        let beyond = if self.least { b.lt(y, x) } else { b.gt(y, x) };
        let (mut wins, mut ties) = (b.or(none, beyond), b.eq(x, y));
        if x.ty.is_float() {
            let (x_nan, y_nan) = (b.ne(x, x), b.ne(y, y));
            // NaN is better than any number.
            let number = b.not(x_nan);
            let over = b.and(y_nan, number);
            wins = b.or(wins, over);
            let both = b.and(x_nan, y_nan);
            ties = b.or(ties, both);
        }
        let lower = b.lt(j, i);
        let tie = b.and(ties, lower);
        let wins = b.or(wins, tie);
        let some = b.ne(j, NONE);
        let wins = b.and(wins, some);
        [b.select(wins, y, x), b.select(wins, j, i)]
    }
}

impl Op for ArgReduce {
    fn operation(&self) -> Operation {
        Operation::ArgReduce { least: self.least, axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x] = inputs else { return Err("takes x".into()) };
        along_some(x, self.dim)?;
        match plain(x.format) {
            Some(ty) if is_number(ty) => Ok(TensorType::new(DType::U32, without(&x.shape, self.dim))),
            _ => Err("takes plain numbers".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = computed(plain(spec.inputs[0].format).unwrap_or(Type::F32));
        let mut k = Kernel::new(spec, THREADS);
        let shared = [k.b.shared("values", ty, THREADS), k.b.shared("indices", Type::U32, THREADS)];
        let tile = Tile::new(&mut k, &spec.inputs[0], self.dim);
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        b.if_(tile.active, |b| {
            let best = [b.var(number(ty, 0.0)), b.var(NONE)];
            tile.each(b, |b, i| {
                let at = tile.at(b, i);
                let v = x.load_as(b, ty, at);
                let [v, i] = self.better(b, best, [v, i]);
                b.assign(best[0], v);
                b.assign(best[1], i);
            });
            let [_, index] = tile.combine(b, shared, best, |b, x, y| self.better(b, x, y));
            b.if_(tile.leads, |b| out.store(b, tile.line, index));
        });
        k.finish(Tile::workgroups(&Lines::of(&spec.inputs[0], self.dim)))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let lines = Lines::on_host(&x.shape, self.dim);
        let mut out = Reference::default();
        for line in 0..lines.count() {
            let values: Vec<f64> = lines.elements(line).map(|at| x.values[at]).collect();
            let best = values.iter().copied().fold(f64::NAN, if self.least { f64::min } else { f64::max });
            let nan = values.iter().position(|v| v.is_nan());
            let index = nan.or_else(|| values.iter().position(|v| *v == best));
            out.push(index.map_or(f64::from(NONE), |i| i as f64), 0.0);
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for least in [false, true] {
        let case = |dim: usize, format: DType, fill: Fill, shape: &[Dim]| {
            Case::new(ArgReduce { least, dim }, &[(9, 5)]).input(CaseInput { format, shape: shape.to_vec(), fill })
        };
        let (rows, fixed, normal) = (Dim::Extent(0), Dim::Fixed, Fill::Normal(1.0));
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        cases.extend([
            case(1, DType::F32, normal.clone(), &[rows, fixed(257)]),
            case(0, DType::F32, normal.clone(), &[rows, fixed(70)]),
            case(1, DType::F32, normal.clone(), &[fixed(3), fixed(300), fixed(5)]),
            case(0, DType::F32, normal.clone(), &[fixed(20_003)]),
            // Many ties.
            case(1, DType::U32, Fill::Below(4), &[rows, fixed(300)]),
            case(1, DType::I32, Fill::Normal(2.0), &[fixed(2), fixed(600), fixed(3)]),
            case(1, DType::Plain(Type::I8), Fill::Normal(50.0), &[rows, fixed(90)]),
            case(1, DType::Plain(Type::F64), normal.clone(), &[rows, fixed(300)]),
            case(0, DType::Plain(Type::I64), Fill::Normal(30.0), &[fixed(300), fixed(3)]),
            case(1, DType::F16, normal.clone(), &[rows, fixed(300)]),
            case(0, DType::BF16, normal, &[fixed(300), fixed(3)]),
            case(
                1,
                DType::F32,
                Fill::Values(vec![nan, 2.0, -inf, nan, nan, nan, inf, nan, inf]),
                &[fixed(3), fixed(3)],
            ),
            // The first NaN, before and after the infinities, across a row and down columns.
            case(
                1,
                DType::F32,
                Fill::Values(vec![-inf, nan, inf, nan, 1.0, -inf, nan, 2.0, 1.0, inf, nan, inf, -inf, nan, -inf, 0.0]),
                &[fixed(4), fixed(4)],
            ),
            case(
                0,
                DType::F16,
                Fill::Values(vec![-inf, inf, 1.0, nan, nan, -inf, inf, nan, 2.0]),
                &[fixed(3), fixed(3)],
            ),
            case(0, DType::F32, Fill::Values(vec![-0.0, 0.0, -0.0, 0.0]), &[fixed(4)]),
        ]);
        cases.push(
            Case::new(ArgReduce { least, dim: 0 }, &[(9, 0)])
                .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(3)])),
        );
    }
    cases
}
