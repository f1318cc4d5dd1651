//! The device: memory, queue, kernels.

mod archive;
mod backend;
mod bandwidth;
mod builder;
mod capture;
mod compile;
mod cores;
mod device;
mod library;
mod memory;
mod parts;
mod queue;
mod record;
mod residency;
mod selftest;

pub use backend::{Metal, MetalBackend, MetalOptions};
pub use compile::compile_kernels;
