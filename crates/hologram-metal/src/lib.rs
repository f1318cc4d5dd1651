//! Apple GPUs, through Metal.
//!
//! Memory is shared with the host: buffers are read and written in place, and weights that need no other layout come
//! straight from a mapped file. Programs and native kernels are Metal Shading Language, compiled on first use. A
//! recorded list is encoded into one command buffer, in a concurrent encoder with a barrier before each launch that
//! accesses memory written by an earlier one.
//!
//! On other systems this crate has only the table of its self-tests, unless the feature `host-double` builds the same
//! code against a test double of Metal (`tools/metal/double`).

pub mod selftest;

#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod metal;

#[cfg(any(target_vendor = "apple", feature = "host-double"))]
pub use metal::{Metal, MetalBackend, MetalOptions};
