//! What the devices that work in the host's memory share: buffers and their allocator, the checks of a launch's arguments, compiled
//! programs, and the queue's sticky error.

mod binding;
mod memory;
mod pipelines;
mod queue;

pub(crate) use binding::{Argument, Rule, buffers_of, resolve, rules_of_program, rules_of_spec};
pub(crate) use memory::{Allocator, HostMemory, host_copy, host_memory};
pub(crate) use pipelines::Pipelines;
pub(crate) use queue::{Counters, Sticky};
