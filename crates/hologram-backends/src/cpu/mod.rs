//! The CPU as a device.

pub mod features;
pub mod kernel;
pub mod native;
#[cfg(test)]
pub(crate) mod testing;
