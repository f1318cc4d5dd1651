//! Shared code of devices that work in the host's memory: buffers and their allocator, checks of a launch's arguments,
//! compiled programs, and failures.

mod allocator;
mod binding;
mod device;
mod failures;
mod faults;
mod memory;
mod pipelines;
mod queue;
pub mod system;

pub use allocator::{Allocated, CachingAllocator, Source, size_class};
pub use binding::{
    Argument, Rule, RuleKind, buffers_of, resolve, resolve_with, rules_of_group, rules_of_program, rules_of_spec,
};
pub use device::HostDevice;
pub use failures::{Failures, Outcome, Use, uses_of};
pub use faults::{FAULT_WORDS, Faulty};
pub use memory::{Allocator, HostMemory, RawSlice, host_memory};
pub use pipelines::Pipelines;
pub use queue::{Counters, ONE_BY_ONE, one_by_one};
