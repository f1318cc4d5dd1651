//! Devices behind one trait.
//!
//! A [`Backend`] owns memory ([`Buffer`]), compiles Atlas programs and names native kernels ([`Pipeline`]), records launches into a
//! [`CommandList`] and runs the list again and again. Nothing above this crate knows a device; nothing in it knows a model.
//!
//! Each device is a crate and a feature of this one, all on by default: `cpu`, `cuda`, `metal`. Without a feature its device is not
//! there to open. What they share is in `hologram-device`, whose public face this crate shows.

mod open;

#[cfg(feature = "cpu")]
pub use hologram_cpu as cpu;
pub use hologram_device::*;
pub use hologram_gpu::{DryGpu, DryRun, Target};
#[cfg(feature = "metal")]
pub use hologram_metal as metal;
pub use open::{available_backends, devices, is_device_name, open, open_noting, open_with};
