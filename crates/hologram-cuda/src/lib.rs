//! NVIDIA GPUs, through nothing but their driver.
//!
//! Programs are printed as PTX, which the driver compiles; native kernels, chosen by `hologram-gpu`, come
//! compiled in the binary: `images/` holds what `tools/cuda-kernels` made of the texts in `hologram-gpu`.

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
pub use device::Cuda;
