//! The CPU as a device.
//!
//! [`CpuBackend`] owns the memory, the worker threads and the queue. The `kernel` module is the interface of native
//! kernels, and `native` has the kernels. Programs run as the `exec` module describes. Kernels trust their arguments
//! and the instruction sets that they were chosen for, so none of this is public:
//!
//! ```compile_fail,E0603
//! use hologram_cpu::kernel::{Args, RawSlice};
//! ```
//!
//! ```compile_fail,E0603
//! use hologram_cpu::native;
//! ```
//!
//! ```compile_fail,E0603
//! use hologram_cpu::features::Features;
//! ```
//!
//! Lesser instruction sets than the processor's are chosen by name:
//!
//! ```
//! use hologram_device::Backend;
//! use hologram_cpu::{CpuBackend, CpuOptions, InstructionSet};
//!
//! let options = CpuOptions { max_isa: Some(InstructionSet::Plain), ..CpuOptions::default() };
//! assert!(CpuBackend::with_options(options)?.info().features.is_empty());
//! # Ok::<(), hologram_device::BackendError>(())
//! ```

mod backend;
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "loops over lanes have one reason for all their accesses")]
mod exec;
pub(crate) mod features;
pub(crate) mod kernel;
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a line of vector code has one reason for its accesses")]
pub(crate) mod native;
mod openmp;
mod pool;
#[cfg(feature = "testing")]
pub(crate) mod queue_tests;
mod replay;
#[cfg(feature = "testing")]
pub(crate) mod testing;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod tests;

pub use backend::{Cpu, CpuBackend, CpuOptions};
pub use features::InstructionSet;
pub use openmp::OpenMp;
