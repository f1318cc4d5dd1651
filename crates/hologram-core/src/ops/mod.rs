//! The tensor operations: one file each, and one line each in the list below.
//!
//! A file holds what the operation computes, its shape and type rule, its portable program, its reference in `f64` with the error
//! bound, its test cases, and its method on [`Graph`](crate::Graph).

mod elementwise;
mod kernel;
mod rms_norm;

use std::fmt;
use std::sync::Arc;

use hologram_backends::{Attr, KernelSpec};
use hologram_isa::{Builder, Value};

pub(crate) use elementwise::elementwise_program;
pub use kernel::{Kernel, TensorArg};

use crate::conformance::{Case, HostTensor, Reference};
use crate::error::Result;
use crate::tensor::TensorType;

/// A program with the grid that covers its spec's greatest extents.
pub type Launchable = (hologram_isa::Program, [u32; 3]);

/// A tensor operation: shape and type rule, portable program, reference.
pub trait Op: fmt::Debug + Send + Sync {
    /// The operation's name, as backends know it.
    fn name(&self) -> &'static str;

    /// The output's type for these inputs.
    ///
    /// # Errors
    /// A sentence that says what does not fit.
    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String>;

    /// Constant attributes.
    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    /// The input that the output overwrites, for operations on state.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// The scalar expression of an elementwise operation, through which chains are fused.
    fn elementwise(&self) -> Option<&dyn Elementwise> {
        None
    }

    /// The portable program; its parameters are those that [`KernelSpec`] describes.
    ///
    /// # Errors
    /// When the spec is none that [`Op::infer`] accepts.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable>;

    /// The result in `f64`, with an absolute error bound for each element.
    fn reference(&self, inputs: &[HostTensor]) -> Reference;
}

/// A scalar expression applied to every element: operands are converted to `f32` and the result to the output's format.
pub trait Elementwise {
    /// Emits the expression.
    fn emit(&self, b: &mut Builder, args: &[Value]) -> Value;
}

/// The conformance cases of every operation: one line for each file.
pub fn cases() -> Vec<Case> {
    let lists: &[fn() -> Vec<Case>] = &[elementwise::cases, rms_norm::cases];
    lists.iter().flat_map(|f| f()).collect()
}

/// A shared operation.
pub type SharedOp = Arc<dyn Op>;
