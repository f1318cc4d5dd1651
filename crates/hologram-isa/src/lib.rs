//! Atlas: portable kernel programs.
//!
//! A [`Program`] is one kernel as data: typed parameters, a workgroup size, shared memory and a structured body. It is
//! built from Rust with a [`Builder`], or read from text with [`parse`] or from its [binary form](binary). [`verify()`]
//! checks it; [`interpret`](interp::interpret) runs it and thereby defines its meaning. Devices compile programs
//! without changing their results: arithmetic is correctly rounded everywhere, and functions such as `exp` are fixed
//! decompositions into it ([`decompose`]).

pub mod binary;
mod builder;
mod capability;
pub mod decompose;
mod error;
pub mod interp;
mod joint;
pub mod meaning;
pub mod msl;
mod program;
pub mod ptx;
#[cfg(feature = "random")]
pub mod random;
mod table;
pub mod text;
mod types;
mod verify;

pub use builder::{Array, Builder, Value};
pub use capability::Capability;
pub use error::{IsaError, shown_index};
pub use program::*;
pub use table::{OpInfo, Opcode, OperandType, Signature};
pub use text::{number_lines, parse, print};
pub use types::{Type, TypeSet};
pub use verify::{Warning, lint, verify};
