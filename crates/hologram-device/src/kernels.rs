//! A device's kernels: programs that it compiles, and native kernels.

use hologram_isa::Program;

use crate::DType;
use crate::error::Result;
use crate::launch::Pipeline;
use crate::spec::{GroupSpec, KernelSpec};

/// A device's kernels. No method is provided, so a wrapper cannot forget one.
pub trait Kernels: Send + Sync {
    /// Compiles a program, or finds it in the cache (keyed by the program's whole text).
    ///
    /// # Errors
    /// The verifier's error; [`BackendError::Unsupported`](crate::BackendError::Unsupported).
    fn compile(&self, program: &Program) -> Result<Pipeline>;

    /// A native kernel for this operation; `None` means: compile the operation's program.
    fn native(&self, spec: &KernelSpec) -> Option<Pipeline>;

    /// A native kernel that computes several operations together; `None` means: launch them one by one.
    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline>;

    /// Whether this operation with all sizes fixed is faster than with sizes known only at run time. If so, a step of
    /// exactly these sizes is worth a plan of its own.
    fn prefers_fixed(&self, spec: &KernelSpec) -> bool;

    /// Announces that weights of this layout are about to be loaded, so that the device can start slow preparations of
    /// their products.
    fn expect_weights(&self, layout: DType);
}
