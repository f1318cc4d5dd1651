//! NVIDIA GPUs, using only their driver.
//!
//! Programs are printed as PTX, which the driver compiles. `hologram-gpu` chooses native kernels, whose compiled images
//! are in the binary: `images/` holds the output of `tools/cuda-kernels` for the texts in `hologram-gpu`.

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
mod short_ptx;
mod stack;
mod staging;
#[cfg(test)]
mod tests;

pub use backend::{CudaBackend, CudaOptions};
pub use device::Cuda;
