//! Runs Atlas programs on the CPU. One thread runs a workgroup at a time; each register is an array over its threads.
//!
//! A program is translated once ([`translate`]) into decoded, typed instructions with places for their operands. Each
//! is one call of a loop over lanes, compiled for the vector instructions that the processor has. A value that is the
//! same for all threads is computed once, as a scalar. An index that grows by one from thread to thread is kept as its
//! base, and its loads and stores move neighbouring elements at once. Divergence is a mask, made only where threads can
//! diverge. Barriers cost nothing, because the workgroup runs in lock step anyway.
//!
//! The results equal the reference interpreter's to the bit (except for the payload of a NaN), and so do the errors.
//! Only the interpreter reports races within a workgroup and shared memory that is read before it is written.

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
pub(crate) mod words;

pub(crate) use code::Code;
pub(crate) use machine::{Launch, Machine};
pub(crate) use translate::translate;
