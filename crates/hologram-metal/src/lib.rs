//! Apple GPUs, through Metal.
//!
//! Memory is shared with the host: buffers are read and written where they lie, and weights come straight from a mapped file. Programs and
//! native kernels are Metal Shading Language, compiled when they are first used. A recorded list is encoded into one command buffer, in
//! a concurrent encoder with a barrier wherever a launch touches what one before it wrote.
//!
//! Elsewhere this crate has only the table of its self-tests, unless the feature `host-double` builds the same code against a test double of Metal
//! (`tools/metal/double`).

pub mod selftest;

#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod metal;

#[cfg(any(target_vendor = "apple", feature = "host-double"))]
pub use metal::{Metal, MetalBackend, MetalOptions};
