//! Apple GPUs, through Metal.
//!
//! Memory is shared with the host: buffers are read and written where they lie, and weights come straight from a mapped file. Programs and
//! native kernels are Metal Shading Language, compiled when they are first used. A recorded list is encoded into one command buffer, in
//! a concurrent encoder with a barrier wherever a launch touches what one before it wrote.
//!
//! Off Apple's platforms the feature `host-double` builds the same code against a test double of Metal (`tools/metal/double`).

#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod archive;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod backend;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod bandwidth;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod builder;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod capture;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod device;
mod dry;
#[cfg(any(target_vendor = "apple", feature = "host-double", test))]
mod hazards;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod library;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod memory;
mod plan;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod queue;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod record;
#[cfg(any(target_vendor = "apple", feature = "host-double", test))]
mod sources;
mod texts;
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
mod verdicts;

#[cfg(any(target_vendor = "apple", feature = "host-double"))]
pub use backend::{MetalBackend, MetalOptions};
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
pub(crate) use device::device;
pub use dry::{DryMetal, Plan};
