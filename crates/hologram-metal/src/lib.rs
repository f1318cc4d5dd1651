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
pub use metal::{Metal, MetalBackend, MetalOptions, compile_kernels};

/// Compiles every native kernel text and these programs with the system's compiler, which only Apple's platforms have.
///
/// # Errors
/// [`BackendError::Unavailable`](hologram_device::BackendError::Unavailable): this is another platform.
#[cfg(not(any(target_vendor = "apple", feature = "host-double")))]
pub fn compile_kernels(
    _programs: &mut dyn Iterator<Item = hologram_isa::Program>,
    _failed: &mut dyn FnMut(&str, &str),
) -> hologram_device::Result<usize> {
    let reason = "the compiler of Metal's language is part of macOS, which this is not";
    Err(hologram_device::BackendError::Unavailable { device: "metal".into(), reason: reason.into() })
}
