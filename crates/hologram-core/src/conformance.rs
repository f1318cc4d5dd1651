//! The conformance suite: every operation's cases, run on a device as program and as native kernel, against the reference in `f64`.

use hologram_backends::Format;

use crate::ops::{Op, SharedOp};
use crate::tensor::Dim;

/// One case of an operation.
#[derive(Clone, Debug)]
pub struct Case {
    /// The operation.
    pub op: SharedOp,
    /// Greatest and actual value of each extent that the inputs' shapes name by index.
    pub extents: Vec<(usize, usize)>,
    /// The inputs.
    pub inputs: Vec<CaseInput>,
}

impl Case {
    /// A case without inputs yet.
    pub fn new(op: impl Op + 'static, extents: &[(usize, usize)]) -> Case {
        Case { op: std::sync::Arc::new(op), extents: extents.to_vec(), inputs: Vec::new() }
    }

    /// Adds an input.
    pub fn input(mut self, input: CaseInput) -> Case {
        self.inputs.push(input);
        self
    }
}

/// An input of a case: its type and how its values are drawn.
#[derive(Clone, Debug)]
pub struct CaseInput {
    /// Storage format.
    pub format: Format,
    /// Shape; [`Dim::Extent`] indexes [`Case::extents`].
    pub shape: Vec<Dim>,
    /// The values.
    pub fill: Fill,
}

/// How an input's values are drawn, by a generator seeded with the case's number.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Normal with this standard deviation; block formats get random codes and scales of this size.
    Normal(f32),
    /// Whole numbers below a bound.
    Below(u32),
    /// These values.
    Values(Vec<f32>),
}

impl CaseInput {
    /// An input of standard normal values.
    pub fn normal(format: Format, shape: &[Dim]) -> CaseInput {
        CaseInput { format, shape: shape.to_vec(), fill: Fill::Normal(1.0) }
    }

    /// A `u32` input of whole numbers below a bound.
    pub fn below(bound: u32, shape: &[Dim]) -> CaseInput {
        CaseInput { format: Format::U32, shape: shape.to_vec(), fill: Fill::Below(bound) }
    }
}

/// An operand on the host: actual shape and decoded values.
#[derive(Clone, Debug)]
pub struct HostTensor {
    /// Storage format it was decoded from.
    pub format: Format,
    /// Actual sizes, slowest first.
    pub shape: Vec<usize>,
    /// Decoded values, row-major.
    pub values: Vec<f64>,
}

impl HostTensor {
    /// Length of the last dimension.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// A reference result.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Values, row-major.
    pub values: Vec<f64>,
    /// The greatest absolute deviation allowed for each.
    pub bounds: Vec<f64>,
}

impl Reference {
    /// Appends a value with its bound.
    pub fn push(&mut self, value: f64, bound: f64) {
        self.values.push(value);
        self.bounds.push(bound);
    }
}
