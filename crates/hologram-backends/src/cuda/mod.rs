//! NVIDIA GPUs, through nothing but their driver.
//!
//! Programs are printed as PTX, which the driver compiles; native kernels ([`native`]) come compiled in the binary. `kernels/` holds
//! their sources, `images/` what `tools/cuda-kernels` made of them.

#[allow(dead_code, reason = "the device that launches them is being built")]
pub(crate) mod native;
