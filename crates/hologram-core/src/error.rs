//! Errors of tensors and graphs.

use hologram_backends::BackendError;
use hologram_isa::IsaError;

/// An error of the core crate.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// An error of the device.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An operation rejects these operands.
    #[error("operation {op}: {reason} (operands: {operands})")]
    Operands {
        /// The operation.
        op: &'static str,
        /// The reason.
        reason: String,
        /// The operands' formats and shapes.
        operands: String,
    },
    /// An operation does not exist for the type of these operands' elements.
    #[error("operation {op}: {reason} (operands: {operands})")]
    Type {
        /// The operation.
        op: &'static str,
        /// The reason, with the types that it takes.
        reason: String,
        /// The operands' formats and shapes.
        operands: String,
    },
    /// A mistake in the construction of a graph.
    #[error("graph: {0}")]
    Graph(String),
    /// A run does not fit its plan.
    #[error("plan: {0}")]
    Run(String),
    /// Arguments do not fit a program.
    #[error("program {program}: {reason}")]
    Program {
        /// The program's name.
        program: String,
        /// The reason.
        reason: String,
    },
    /// A tensor's data do not fit its shape.
    #[error("tensor: {0}")]
    Tensor(String),
}

/// The message, so that a `main` that returns the error prints a sentence.
impl std::fmt::Debug for CoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<IsaError> for CoreError {
    fn from(e: IsaError) -> Self {
        CoreError::Backend(e.into())
    }
}

/// A result with a [`CoreError`].
pub type Result<T> = std::result::Result<T, CoreError>;
