//! The conformance suite: every operation's cases, run on a device as program and as native kernel, compared with the
//! reference in `f64`.

mod bounded;
mod chain;
mod data;
mod gradients;
mod groups;
mod recurrent;
mod run;
mod view;

pub use chain::chain;
pub use gradients::check_gradients;
pub use run::{CaseOutput, CaseResult, Outputs, op_names, run, run_case, run_native, run_on_threads, run_op};
pub use view::View;

use std::fmt;

use hologram_backends::{DType, Extent, KernelSpec, TensorSpec};

use crate::error::{CoreError, Result};
pub use crate::ops::reference::{HostTensor, Reference};
use crate::ops::{Launchable, Op, SharedOp};
use crate::tensor::{Dim, TensorType};

/// One case of an operation.
#[derive(Clone, Debug)]
pub struct Case {
    /// The operation.
    pub op: SharedOp,
    /// Maximum and actual value of each extent; the inputs' shapes refer to extents by index.
    pub extents: Vec<(usize, usize)>,
    /// The inputs.
    pub inputs: Vec<CaseInput>,
    /// Views that replace inputs, each applied to the previous one: the input's index and the view.
    pub views: Vec<(usize, View)>,
}

impl Case {
    /// A case without inputs.
    pub fn new(op: impl Op + 'static, extents: &[(usize, usize)]) -> Case {
        Case { op: std::sync::Arc::new(op), extents: extents.to_vec(), inputs: Vec::new(), views: Vec::new() }
    }

    /// Adds an input.
    pub fn input(mut self, input: CaseInput) -> Case {
        self.inputs.push(input);
        self
    }

    /// Applies a view to the last input, or to its last view.
    pub fn view(mut self, view: View) -> Case {
        self.views.push((self.inputs.len().saturating_sub(1), view));
        self
    }

    /// The operation's program for this case as if it had no views, and its grid.
    ///
    /// # Errors
    /// When the operation rejects the inputs.
    pub fn program(&self) -> Result<Launchable> {
        let extent = |dim: &Dim| match *dim {
            Dim::Fixed(n) => Extent::Fixed(n),
            Dim::Extent(slot) => Extent::step(slot, self.size(*dim).0),
        };
        let tensor = |ty: &TensorType| TensorSpec { format: ty.format, shape: ty.shape.iter().map(extent).collect() };
        let inputs: Vec<TensorType> = self.inputs.iter().map(|i| TensorType::new(i.format, i.shape.clone())).collect();
        let output = self.op.infer(&inputs.iter().collect::<Vec<_>>()).map_err(|e| CoreError::Graph(e.to_string()))?;
        self.op.program(&KernelSpec {
            op: self.op.operation(),
            inputs: inputs.iter().map(tensor).collect(),
            output: tensor(&output),
            in_place: self.op.in_place(),
        })
    }

    /// The maximum size of a dimension, for which memory is laid out, and the actual size.
    pub(crate) fn size(&self, dim: Dim) -> (usize, usize) {
        size(&self.extents, dim)
    }

    /// The formats of the inputs except indices, each once; without inputs, the format of the result.
    pub fn dtype(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for input in &self.inputs {
            let name = match input.format {
                DType::U32 if self.inputs.len() > 1 => continue,
                DType::I8Groups { .. } => "i8".to_string(),
                DType::F8Groups { .. } => "f8".to_string(),
                format => format.name(),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            // All inputs have the type of indices, so they are operands.
            let made = || self.op.infer(&[]).ok().map(|made| made.format);
            names.extend(self.inputs.first().map(|input| input.format).or_else(made).map(|format| format.name()));
        }
        names.join(" × ")
    }
}

fn size(extents: &[(usize, usize)], dim: Dim) -> (usize, usize) {
    match dim {
        Dim::Fixed(n) => (n, n),
        Dim::Extent(e) => extents.get(e as usize).copied().unwrap_or_default(),
    }
}

/// Formats and shapes, with an extent as actual/maximum size: `quantize(f32[3/4, 64])`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |d: &Dim| match (*d, self.size(*d)) {
            (Dim::Fixed(n), _) => n.to_string(),
            (Dim::Extent(_), (max, actual)) => format!("{actual}/{max}"),
        };
        let operand =
            |i: &CaseInput| format!("{}[{}]", i.format.name(), i.shape.iter().map(dim).collect::<Vec<_>>().join(", "));
        write!(f, "{}({})", self.op.name(), self.inputs.iter().map(operand).collect::<Vec<_>>().join(", "))?;
        if !self.views.is_empty() {
            write!(f, " of views {:?}", self.views)?;
        }
        // The attributes, if any.
        let op = format!("{:?}", self.op.operation());
        if op.contains('{') { write!(f, " {op}") } else { Ok(()) }
    }
}

/// An input of a case: its type and the distribution of its values.
#[derive(Clone, Debug)]
pub struct CaseInput {
    /// Storage format.
    pub format: DType,
    /// Shape; [`Dim::Extent`] indexes [`Case::extents`].
    pub shape: Vec<Dim>,
    /// The values.
    pub fill: Fill,
}

/// The distribution of an input's values. The generator is seeded with the case's number.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Normal with this standard deviation; block formats get random codes, and scales of this magnitude.
    Normal(f32),
    /// Whole numbers below this bound.
    Below(u32),
    /// These values.
    Values(Vec<f32>),
}

impl CaseInput {
    /// An input of standard normal values.
    pub fn normal(format: DType, shape: &[Dim]) -> CaseInput {
        CaseInput { format, shape: shape.to_vec(), fill: Fill::Normal(1.0) }
    }

    /// A `u32` input of whole numbers below a bound.
    pub fn below(bound: u32, shape: &[Dim]) -> CaseInput {
        CaseInput { format: DType::U32, shape: shape.to_vec(), fill: Fill::Below(bound) }
    }
}

/// The operations that a test of the suite checks: `elementwise` stands for all of the table, any other name for
/// itself.
pub fn operations_of(test: &'static str) -> Vec<&'static str> {
    match test {
        "elementwise" => hologram_backends::Elementwise::ALL.iter().map(|op| op.name()).collect(),
        op => vec![op],
    }
}

/// Makes a module of tests of a device: one `#[test]` per operation (`with_operation_names!` in `ops/mod.rs`), which
/// runs all its cases.
///
/// The expression opens the device and is evaluated once. `max_work` bounds the size of the cases in multiplications,
/// for devices that are slow by design. Attributes at the end go to the tests.
///
/// ```text
/// hologram_core::conformance_suite!(Executor::open("reference", None).unwrap(), max_work: 100_000);
/// ```
#[macro_export]
macro_rules! conformance_suite {
    ($executor:expr, max_work: $max_work:expr $(, attributes: $(#[$attribute:meta])*)?) => {
        $crate::with_operation_names!(@tests [$($(#[$attribute])*)?] $executor, $max_work,);
    };
    ($executor:expr $(, attributes: $(#[$attribute:meta])*)?) => {
        $crate::conformance_suite!($executor, max_work: usize::MAX $(, attributes: $(#[$attribute])*)?);
    };
    (@tests $attributes:tt $executor:expr, $max_work:expr, $($op:ident)*) => {
        mod conformance {
            use super::*;

            fn executor() -> &'static $crate::Executor {
                static EXECUTOR: std::sync::LazyLock<$crate::Executor> = std::sync::LazyLock::new(|| $executor);
                &EXECUTOR
            }

            fn check(test: &'static str) {
                let mut results = Vec::new();
                for op in $crate::conformance::operations_of(test) {
                    let of_op = $crate::conformance::run_op(executor(), op, $max_work);
                    assert!(!of_op.is_empty(), "{op} has no cases");
                    results.extend(of_op);
                }
                let failures: Vec<String> = results.iter().filter(|r| r.failure.is_some()).map(|r| r.to_string()).collect();
                assert!(failures.is_empty(), "{} of {} cases fail:\n{}", failures.len(), results.len(), failures.join("\n"));
            }

            $($crate::conformance_suite!(@test $attributes $op);)*
            $crate::conformance_suite!(@gradients $attributes);

            #[test]
            fn every_operation_is_tested() {
                let tests = [$(stringify!($op)),*];
                let tested: Vec<&str> = tests.into_iter().flat_map($crate::conformance::operations_of).collect();
                for case in $crate::ops::cases() {
                    assert!(tested.contains(&case.op.name()), "{} has cases but no test", case.op.name());
                }
            }
        }
    };
    (@gradients [$(#[$attribute:meta])*]) => {
        #[test]
        $(#[$attribute])*
        fn gradients() {
            let (cases, failures) = $crate::conformance::check_gradients(Some(executor()));
            assert!(failures.is_empty(), "{} of {cases} gradients fail:\n{}", failures.len(), failures.join("\n"));
        }
    };
    (@test [$(#[$attribute:meta])*] $op:ident) => {
        #[test]
        $(#[$attribute])*
        fn $op() {
            check(stringify!($op));
        }
    };
}
