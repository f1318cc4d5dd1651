//! Devices behind one trait.
//!
//! A [`Backend`] owns memory ([`Buffer`]), compiles Atlas programs and names native kernels ([`Pipeline`]), records
//! launches into a [`CommandList`] and runs the list repeatedly. No crate above this one depends on a particular
//! device; this crate depends on no model.
//!
//! Each device is a crate and a feature of this one, all on by default: `cpu`, `cuda`, `metal`. Without its feature a
//! device cannot be opened. Shared code is in `hologram-device`, whose public items this crate re-exports.

mod open;

#[cfg(feature = "cpu")]
pub use hologram_cpu as cpu;
pub use hologram_device::*;
pub use hologram_gpu::{DryGpu, DryRun, Target};
#[cfg(feature = "metal")]
pub use hologram_metal as metal;
pub use open::{available_backends, devices, is_device_name, open, open_noting, open_with};
