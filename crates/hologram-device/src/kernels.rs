//! What a device computes with: programs that it compiles, and native kernels.

use hologram_isa::Program;

use crate::Format;
use crate::error::Result;
use crate::launch::Pipeline;
use crate::spec::{GroupSpec, KernelSpec};

/// A device's kernels. A wrapper that implements this trait cannot forget a method: none is provided.
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

    /// Whether the device serves this operation, whose sizes are all fixed, faster than the same with sizes that are known only when it
    /// runs. Then a step of exactly these sizes is worth a plan of its own.
    fn prefers_fixed(&self, spec: &KernelSpec) -> bool;

    /// Says that weights of this layout are about to be loaded, so that the device may begin at once what their products need and takes long.
    fn expect_weights(&self, layout: Format);
}
