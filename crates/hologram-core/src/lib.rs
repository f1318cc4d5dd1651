//! Tensors, graphs and operations, compiled for any Hologram backend.
//!
//! An [`Executor`] is a device; a [`Tensor`] is data on it. A [`Graph`] of operations is compiled into a [`Plan`],
//! which runs many times with changing inputs and extents.
//!
//! ```
//! use hologram_core::{Dim, Executor, DType, Graph, Tensor};
//!
//! # fn main() -> hologram_core::Result<()> {
//! let executor = Executor::new_auto()?;
//!
//! // Memory on the device, as plain elements or with a shape.
//! let buffer = executor.upload(&[1.0f32, 2.0, 3.0])?;
//! assert_eq!(buffer.read()?, [1.0, 2.0, 3.0]);
//! let a = Tensor::from_slice(&executor, &[3], &[1.0f32, 2.0, 3.0])?;
//! let b = Tensor::from_slice(&executor, &[3], &[10.0f32, 20.0, 30.0])?;
//!
//! // Operations on tensors, one at a time.
//! let sum = (&a + &b)?;
//! assert_eq!(sum.relu()?.to_vec::<f32>()?, [11.0, 22.0, 33.0]);
//!
//! // A graph, compiled once for up to 8 rows and run with any number of them.
//! let mut g = Graph::new();
//! let rows = g.extent("rows", 8);
//! let x = g.input("x", DType::F32, &[rows, Dim::Fixed(3)])?;
//! let w = g.constant(&a)?;
//! let y = g.mul(x, w)?;
//! let y = g.relu(y)?;
//! g.output("y", y)?;
//! let mut plan = g.compile(&executor, &[])?;
//!
//! plan.set_extent("rows", 2)?;
//! plan.write("x", &[1.0f32, 1.0, 1.0, -1.0, 0.0, 1.0])?;
//! plan.run()?;
//! assert_eq!(plan.read::<f32>("y")?, [1.0, 2.0, 3.0, 0.0, 0.0, 3.0]);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod dlpack;
mod eager;
mod error;
mod executor;
mod function;
mod graph;
mod layout;
pub mod npy;
pub mod ops;
mod pool;
mod program;
mod tensor;
mod train;

pub use error::{CoreError, Result};
pub use executor::{Buffer, Executor, OperationCache};
pub use function::Function;
pub use graph::{CompileOptions, Event, Graph, NodeId, Plan, Vjp};
pub use half::{bf16, f16};
pub use hologram_backends::{
    BackendType, DType, DeviceInfo, DeviceLimits, ForeignPointer, Metrics, OpenOptions, Precision,
};
pub use pool::Pool;
pub use program::{Argument, CompiledProgram};
pub use tensor::{
    Axis, Dim, Dims, Element, Nested, Operand, Tensor, TensorAttention, TensorType, Unique, bytes_of, bytes_of_mut,
};
pub use train::{Parameters, TrainOptions, Trainer, Weights};
