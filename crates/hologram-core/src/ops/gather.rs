//! Rows of a table by index: token embeddings, and the hidden states whose logits are needed.

use hologram_backends::{DType, KernelSpec, Operation};

use super::kernel::without_grids;
use super::{Kernel, Launchable, Mismatch, Op, is_weight};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; the table is `[rows, d]` in a weight format, `ids` is `u32 [n]` or `[n, s]`.
#[derive(Debug)]
struct Gather;

impl Graph {
    /// The rows of `table` (`[rows, d]` in any weight format) at the indices `ids` (`u32 [n]`), dequantized:
    /// `f32 [n, d]`. Ids `[n, s]` give `[n, s * d]`, rows one after another. An id that is not less than the number of
    /// rows is an error of the run.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn gather(&mut self, table: NodeId, ids: NodeId) -> Result<NodeId> {
        self.apply(Gather, &[table, ids])
    }
}

const THREADS: u32 = 256;

impl Op for Gather {
    fn operation(&self) -> Operation {
        Operation::Gather
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [table, ids] = inputs else { return Err("takes a table and ids".into()) };
        if !is_weight(table.format) {
            return Err("the table must be in a weight format".into());
        }
        match (table.shape.as_slice(), ids.shape.as_slice()) {
            ([_, Dim::Fixed(d)], [n]) if ids.format == DType::U32 && *d > 0 => {
                Ok(TensorType::new(DType::F32, [*n, Dim::Fixed(*d)]))
            }
            ([_, Dim::Fixed(d)], [n, Dim::Fixed(s)]) if ids.format == DType::U32 && *d > 0 && *s > 0 => {
                Ok(TensorType::new(DType::F32, [*n, Dim::Fixed(s * d)]))
            }
            _ => Err("takes a table of two dimensions and u32 ids [n] or [n, s]".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        without_grids(spec)?;
        let d = spec.inputs[0].row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let rows = k.rows(&spec.inputs[0]);
        let (table, ids, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let token = b.div(i, d);
            let column = b.rem(i, d);
            let id = b.load(ids.views[0], token);
            let exists = b.lt(id, rows);
            let start = b.mul(id, d);
            let at = b.add(start, column);
            // No table has an element at u32::MAX: the load for an id that is out of range fails instead of wrapping.
            let at = b.select(exists, at, u32::MAX);
            let value = table.load(b, at);
            out.store(b, i, value);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [table, ids] = [call.inputs[0], call.inputs[1]];
        let d = g.shape_of(table).last().copied().unwrap_or(Dim::Fixed(1));
        let (mut ids, mut rows) = (ids, call.grad);
        if let [Dim::Fixed(n), Dim::Fixed(s)] = *g.shape_of(ids) {
            ids = g.reshape(ids, &[Dim::Fixed(n * s)])?;
            rows = g.reshape(rows, &[Dim::Fixed(n * s), d])?;
        }
        let shape = g.shape_of(table).to_vec();
        let zeros = g.full(DType::F32, &shape, 0.0)?;
        let sums = g.scatter_add(zeros, ids, rows, 0)?;
        Ok(vec![Some(g.cast_like(sums, table)?), None])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [table, ids] = inputs else { return Reference::default() };
        let d = table.row_len();
        let mut out = Reference::default();
        for id in &ids.values {
            // Scales and minimums times codes are exact in f32, so dequantizing rounds at most once.
            for v in table.values.iter().skip(*id as usize * d).take(d) {
                out.push(*v, 0.0);
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |format: DType, rows: usize, d: usize, n: usize, max: usize| {
        Case::new(Gather, &[(max, n)])
            .input(CaseInput::normal(format, &[Dim::Fixed(rows), Dim::Fixed(d)]))
            .input(CaseInput::below(rows as u32, &[Dim::Extent(0)]))
    };
    let mut cases = vec![
        case(DType::F32, 1, 1, 1, 1),
        case(DType::F32, 10, 33, 0, 4),
        case(DType::F16, 10, 33, 3, 4),
        case(DType::BF16, 7, 65, 9, 9),
    ];
    for format in DType::BLOCKS {
        for format in format.layouts() {
            cases.push(case(format, 5, 256, 3, 4));
            cases.push(case(format, 11, 1024, 9, 9));
        }
    }
    // Several ids for each row of the result.
    for format in [DType::F32, DType::Q8_0] {
        let table = CaseInput::normal(format, &[Dim::Fixed(7), Dim::Fixed(32)]);
        let ids = CaseInput::below(7, &[Dim::Extent(0), Dim::Fixed(3)]);
        cases.push(Case::new(Gather, &[(6, 5)]).input(table).input(ids));
    }
    // A table whose number of rows is a run-time extent.
    let ids = CaseInput { format: DType::U32, shape: vec![Dim::Fixed(3)], fill: Fill::Values(vec![4.0, 0.0, 2.0]) };
    cases.push(
        Case::new(Gather, &[(8, 5)]).input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(48)])).input(ids),
    );
    cases
}
