//! The CPU as a device.

pub mod features;
pub mod kernel;
pub mod native;
