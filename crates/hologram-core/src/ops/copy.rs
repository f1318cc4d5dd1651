//! A copy of a tensor. It makes an output of a value that no operation computes, and row-major memory of a view.

use hologram_backends::{DType, KernelSpec, Operation};
#[cfg(feature = "conformance")]
use hologram_isa::Type;

use super::{Launchable, Layout, Mismatch, Op, copy_program};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill, View};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::TensorType;

/// The operation; `x` is of any plain type and shape.
#[derive(Debug)]
pub(crate) struct Copy;

impl Graph {
    /// A copy of `x`, which has a plain format: the same bits in memory of its own.
    ///
    /// # Errors
    /// When the format is not plain.
    pub fn copy(&mut self, x: NodeId) -> Result<NodeId> {
        self.apply(Copy, &[x])
    }
}

impl Op for Copy {
    fn operation(&self) -> Operation {
        Operation::Copy
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        match inputs {
            [x] if matches!(x.format, DType::Plain(_)) => Ok((*x).clone()),
            _ => Err("takes one tensor of a plain format".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        copy_program(spec, &[], 1)
    }

    fn takes_views(&self) -> bool {
        true
    }

    fn program_of_views(
        &self,
        spec: &KernelSpec,
        layouts: &[Option<&Layout>],
        per_thread: u32,
    ) -> Option<Result<Launchable>> {
        Some(copy_program(spec, layouts, per_thread))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let _ = g;
        Ok(vec![Some(call.grad)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        x.values.iter().for_each(|v| out.push(*v, 0.0));
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |format: DType, rows: usize, max: usize, d: usize| {
        let shape = [Dim::Extent(0), Dim::Fixed(d)];
        let input =
            if format == DType::U32 { CaseInput::below(1 << 24, &shape) } else { CaseInput::normal(format, &shape) };
        Case::new(Copy, &[(max, rows)]).input(input)
    };
    let line = |n: usize| Case::new(Copy, &[]).input(CaseInput::normal(DType::F32, &[Dim::Fixed(n)]));
    vec![
        case(DType::F32, 0, 3, 5),
        case(DType::F32, 5, 9, 257),
        case(DType::F16, 3, 4, 33),
        case(DType::BF16, 1, 1, 1),
        case(DType::U32, 7, 7, 100),
        case(DType::Plain(Type::I8), 3, 5, 7),
        line(1),
        line(70_001),
    ]
    .into_iter()
    .chain(views())
    .collect()
}

#[cfg(feature = "conformance")]
/// Copies of views, of elements of each size.
fn views() -> Vec<Case> {
    let fixed = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let rows = |sizes: &[usize]| std::iter::once(Dim::Extent(0)).chain(fixed(sizes)).collect::<Vec<_>>();
    let case = |ty: Type, shape: &[Dim], views: Vec<View>| {
        let fill = Fill::Below(if ty.size() == 1 { 2 } else { 1 << 11 });
        let input = CaseInput { format: DType::Plain(ty), shape: shape.to_vec(), fill };
        views.into_iter().fold(Case::new(Copy, &[(5, 4)]).input(input), Case::view)
    };
    let mut cases = Vec::new();
    for ty in [Type::Bool, Type::I8, Type::F16, Type::BF16, Type::F32, Type::I32] {
        let whole = fixed(&[6, 10, 8]);
        cases.push(case(ty, &whole, vec![View::Permute(vec![2, 0, 1])]));
        cases.push(case(ty, &whole, vec![View::Slice(1, 3, 9), View::Permute(vec![1, 0, 2])]));
        cases.push(case(ty, &whole, vec![View::Slice(0, 2, 5)]));
        cases.push(case(ty, &rows(&[7, 3]), vec![View::Permute(vec![0, 2, 1]), View::Slice(2, 2, 6)]));
    }
    let f32 = |shape: &[Dim], views: Vec<View>| case(Type::F32, shape, views);
    cases.extend([
        f32(&fixed(&[9, 4]), vec![View::Slice(0, 8, 9), View::Reshape(fixed(&[4])), View::Slice(0, 1, 3)]),
        f32(&fixed(&[4, 5]), vec![View::Slice(1, 2, 2)]),
        f32(&fixed(&[4, 6]), vec![View::Permute(vec![1, 0]), View::Reshape(fixed(&[24]))]),
        f32(&fixed(&[4, 6]), vec![View::Permute(vec![1, 0]), View::Reshape(fixed(&[3, 2, 4]))]),
        f32(&fixed(&[3, 1, 4]), vec![View::Broadcast(fixed(&[2, 3, 5, 4])), View::Permute(vec![3, 1, 0, 2])]),
        f32(&fixed(&[7]), vec![View::Broadcast(rows(&[7]))]),
        f32(&rows(&[12]), vec![View::Slice(1, 4, 10), View::Reshape(rows(&[2, 3])), View::Permute(vec![0, 2, 1])]),
        f32(&rows(&[3, 1]), vec![View::Broadcast(rows(&[3, 8]))]),
        f32(&fixed(&[130, 257]), vec![View::Permute(vec![1, 0])]),
    ]);
    cases
}
