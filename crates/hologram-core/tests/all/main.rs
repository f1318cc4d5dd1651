//! The tests of tensors, graphs and operations that may share a process.
//! One binary, because each is linked with all of the library.

#[path = "../common/mod.rs"]
mod common;

mod array;
mod cache;
mod compositions;
mod conformance_cpu;
mod conformance_reference;
mod conformance_reports;
mod dry;
mod eager;
mod edges;
mod elsewhere;
mod fast;
mod functions;
mod gradients;
mod graph;
mod groups;
mod long_attention;
mod own_programs;
mod pointers;
mod streaming;
mod tensors;
mod train;
mod views;
