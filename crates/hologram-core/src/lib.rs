//! Tensors, graphs and operations, compiled for any Hologram backend.
//!
//! An [`Executor`] is a device; a [`Tensor`] is data on it; a [`Graph`] of operations is compiled into a [`Plan`] that is run again
//! and again while its inputs and extents change.

pub mod conformance;
mod error;
mod executor;
mod graph;
pub mod ops;
mod tensor;

pub use error::{CoreError, Result};
pub use executor::{Buffer, Executor};
pub use graph::{Graph, NodeId, Plan};
pub use tensor::{Dim, Element, Tensor, TensorType, bytes_of, bytes_of_mut};
