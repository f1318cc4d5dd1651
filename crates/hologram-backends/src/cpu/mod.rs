//! The CPU as a device.
//!
//! [`CpuBackend`] owns the memory, the worker threads and the queue; [`kernel`] is what a native kernel is written against, and
//! [`native`] has those there are; programs run as the `exec` module describes.

mod backend;
mod exec;
pub mod features;
pub mod kernel;
pub mod native;
mod pool;
mod replay;
mod system;
#[cfg(test)]
pub(crate) mod testing;

pub use backend::{CpuBackend, CpuOptions, native_pipeline};
pub(crate) use system::memory_bytes;
