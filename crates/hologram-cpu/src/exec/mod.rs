//! Runs Atlas programs on the CPU: a workgroup at a time in one thread, each register an array over the workgroup's threads.
//!
//! A program is translated once ([`translate`]) into instructions that are decoded, typed and placed: each is one call of a loop over
//! lanes, compiled for the vector instructions that the processor has. What is the same for all threads is computed once, as a scalar;
//! an index that grows by one from thread to thread is kept as its base, and moves neighbours at once. Divergence is a mask, made only
//! where threads can part. Barriers cost nothing, because the workgroup is in lock step anyway.
//!
//! The results are the reference interpreter's to the bit (but for the payload of a NaN), and so are the errors. What only the
//! interpreter reports are races within a workgroup and shared memory that is read before it is written.

mod atomic;
mod code;
mod convert;
mod facts;
mod lanes;
mod level;
mod machine;
mod masks;
mod memory;
mod subgroup;
mod translate;
mod words;

pub(crate) use code::Code;
pub(crate) use machine::{Launch, Machine};
pub(crate) use translate::translate;
