//! A copy of a tensor: the way to make an output of what no operation computes.

use hologram_backends::{Format, KernelSpec};
use hologram_isa::Type;

use super::{Kernel, Launchable, Op};
use crate::conformance::{Case, CaseInput, HostTensor, Reference};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is of any plain type and shape.
#[derive(Debug)]
struct Copy;

impl Graph {
    /// A copy of `x`, which has a plain format: the same bits in memory of its own.
    ///
    /// # Errors
    /// When the format is not plain.
    pub fn copy(&mut self, x: NodeId) -> Result<NodeId> {
        self.apply(Copy, &[x])
    }
}

const THREADS: u32 = 256;

impl Op for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String> {
        match inputs {
            [x] if matches!(x.format, Format::Plain(_)) => Ok((*x).clone()),
            _ => Err("takes one tensor of a plain format".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let value = b.load(x.views[0], i);
            b.store(out.views[0], i, value);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        x.values.iter().for_each(|v| out.push(*v, 0.0));
        out
    }
}

pub(super) fn cases() -> Vec<Case> {
    let case = |format: Format, rows: usize, max: usize, d: usize| {
        let shape = [Dim::Extent(0), Dim::Fixed(d)];
        let input =
            if format == Format::U32 { CaseInput::below(1 << 24, &shape) } else { CaseInput::normal(format, &shape) };
        Case::new(Copy, &[(max, rows)]).input(input)
    };
    let line = |n: usize| Case::new(Copy, &[]).input(CaseInput::normal(Format::F32, &[Dim::Fixed(n)]));
    vec![
        case(Format::F32, 0, 3, 5),
        case(Format::F32, 5, 9, 257),
        case(Format::F16, 3, 4, 33),
        case(Format::BF16, 1, 1, 1),
        case(Format::U32, 7, 7, 100),
        case(Format::Plain(Type::I8), 3, 5, 7),
        line(1),
        line(70_001),
    ]
}
