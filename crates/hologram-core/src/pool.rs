//! Pools of device memory, for data larger than the device's memory.

use hologram_backends::DType;

use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::VIEW_ALIGN;
use crate::tensor::{Element, Tensor, bytes_of, bytes_of_mut};

/// An arena of a fixed size on a device, addressed by offsets in bytes. Data larger than the device's memory go
/// through it in parts: while a plan works on one part, the host writes the next. Clones share the memory, and tensors
/// in it keep it alive.
///
/// [`Pool::write`] and the work submitted by [`Plan::submit`](crate::Plan::submit) keep their order only where
/// they touch the same part, so a GPU copies to one part while it computes on another. `examples/sum_file.rs`
/// sums a file in this way.
#[derive(Clone, Debug)]
pub struct Pool {
    executor: Executor,
    raw: hologram_backends::Pool,
}

impl Executor {
    /// An arena of this many bytes with undefined content.
    ///
    /// # Errors
    /// When the device does not have enough memory, or its cap does not allow it.
    pub fn pool(&self, bytes: usize) -> Result<Pool> {
        Ok(Pool { executor: self.clone(), raw: self.backend().allocate_pool(bytes)? })
    }
}

impl Pool {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.raw.0.bytes()
    }

    /// A tensor in the arena, from byte `offset` on, which must be a multiple of 64. Later writes to these bytes change
    /// the tensor's content.
    ///
    /// # Errors
    /// When the offset is not a multiple of 64; as [`Tensor::from_buffer`].
    pub fn tensor(&self, offset: usize, format: DType, shape: &[usize]) -> Result<Tensor> {
        if !offset.is_multiple_of(VIEW_ALIGN) {
            return Err(CoreError::Tensor(format!(
                "a tensor in a pool begins at a multiple of {VIEW_ALIGN}, not at {offset}"
            )));
        }
        Tensor::from_buffer(&self.executor, self.raw.0.clone(), offset, format, shape)
    }

    /// Copies elements into the arena, from byte `offset` on, after the work submitted so far that touches this part.
    /// The caller may change the data when the call returns, even if the device is still copying.
    ///
    /// # Errors
    /// When they do not fit; errors of the device.
    pub fn write<T: Element>(&self, offset: usize, data: &[T]) -> Result<()> {
        Ok(self.executor.backend().copy_to_pool(&self.raw, offset, bytes_of(data))?)
    }

    /// Waits for the device's work and copies elements from byte `offset` on to the host.
    ///
    /// # Errors
    /// When they lie outside; the error of the work that writes them.
    pub fn read<T: Element>(&self, offset: usize, data: &mut [T]) -> Result<()> {
        Ok(self.executor.backend().copy_from_pool(&self.raw, offset, bytes_of_mut(data))?)
    }
}
