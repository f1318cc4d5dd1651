//! NVIDIA GPUs, through nothing but their driver.
//!
//! Programs are printed as PTX, which the driver compiles; native kernels, chosen by `gpu`, come compiled in the
//! binary. `kernels/` holds the sources of those that use CUDA's own units, `images/` what `tools/cuda-kernels` made of all.

mod backend;
mod bandwidth;
mod blas;
mod builder;
mod context;
mod device;
mod driver;
mod images;
mod memory;
mod modules;
mod queue;
mod record;
mod stack;
mod staging;
#[cfg(test)]
mod tests;

pub use backend::{CudaBackend, CudaOptions};
pub(crate) use device::{Presence, presence, with_libraries};
