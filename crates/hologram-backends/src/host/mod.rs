//! What the devices that work in the host's memory share: buffers and their allocator, the checks of a launch's arguments, compiled
//! programs, and what failed.

mod allocator;
mod binding;
mod failures;
mod faults;
mod memory;
mod pipelines;
mod queue;

pub(crate) use allocator::{Allocated, CachingAllocator, Source, size_class};
pub(crate) use binding::{
    Argument, Rule, buffers_of, resolve, resolve_with, rules_of_group, rules_of_program, rules_of_spec,
};
pub(crate) use failures::{Failures, Outcome, Use, uses_of};
pub(crate) use faults::{FAULT_WORDS, Faulty};
pub(crate) use memory::{Allocator, HostMemory, host_copy, host_memory};
pub(crate) use pipelines::Pipelines;
pub(crate) use queue::{Counters, ONE_BY_ONE, one_by_one};
