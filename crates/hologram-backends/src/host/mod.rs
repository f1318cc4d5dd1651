//! What the devices that work in the host's memory share: buffers and their allocator, the checks of a launch's arguments, and the
//! queue's sticky error.

mod binding;
mod memory;
mod queue;

pub(crate) use binding::{Argument, Rule, resolve, rules_of_program, rules_of_spec};
pub(crate) use memory::{Allocator, HostMemory, host_memory};
pub(crate) use queue::{Counters, Sticky};
