//! Tensors over memory of other libraries, and the memory of tensors for other libraries.

use hologram_backends::{DType, ForeignPointer, POINTER_ALIGN};

use super::{Element, Tensor, size_in_bytes};
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::layout::Layout;

impl Tensor {
    /// A tensor over another library's memory on the executor's device, without a copy. The elements begin at the
    /// pointer; `strides` are in elements, and `None` is row-major. Clones and views keep the owner alive.
    ///
    /// A row-major tensor that does not begin at a multiple of 64 bytes is treated like a view: operations other than
    /// elementwise ones copy it first.
    ///
    /// # Errors
    /// When the device has no such addresses, the format is not plain, the elements lie outside the memory, or the
    /// pointer is not aligned to an element (copy the bytes with [`Tensor::from_bytes`]); when the tensor has more than
    /// 2³² − 1 elements, or spans as many.
    pub fn from_pointer(
        executor: &Executor,
        memory: ForeignPointer,
        dtype: impl Into<DType>,
        shape: &[usize],
        strides: Option<&[usize]>,
    ) -> Result<Tensor> {
        let format = dtype.into();
        let DType::Plain(ty) = format else {
            return Err(CoreError::Tensor(format!("from_pointer: {} is no type of plain elements", format.name())));
        };
        size_in_bytes(format, shape)?;
        let dense = Layout::dense(shape);
        let layout = match strides {
            Some(strides) if strides.len() != shape.len() => {
                return Err(CoreError::Tensor(format!("from_pointer: {strides:?} are no strides of {shape:?}")));
            }
            Some(strides) => Layout { offset: 0, strides: strides.to_vec() },
            None => dense.clone(),
        };
        let reach = shape
            .iter()
            .zip(&layout.strides)
            .try_fold(1usize, |reach, (n, stride)| n.saturating_sub(1).checked_mul(*stride)?.checked_add(reach));
        let span = if shape.contains(&0) { Some(0) } else { reach };
        let fits = span.filter(|n| *n <= u32::MAX as usize).and_then(|n| n.checked_mul(ty.size()));
        if fits.is_none_or(|bytes| bytes > memory.bytes()) {
            return Err(CoreError::Tensor(format!(
                "from_pointer: {ty} {shape:?} with strides {:?} does not fit in {} bytes",
                layout.strides,
                memory.bytes()
            )));
        }
        if !memory.address().is_multiple_of(ty.size() as u64) {
            return Err(CoreError::Tensor(format!(
                "from_pointer: address {:#x} is not aligned to {ty}; copy the elements",
                memory.address()
            )));
        }
        let offset = memory.lead();
        let buffer = executor.backend().wrap_pointer(memory)?;
        let own = offset == 0 && layout.is_dense(shape) || shape.contains(&0);
        Ok(Tensor {
            executor: executor.clone(),
            buffer,
            offset,
            format,
            shape: shape.to_vec(),
            strides: (!own).then_some(layout.strides),
            made: None,
        })
    }

    /// The device's address of the first element, as other libraries on the device know it: the host's address on a
    /// CPU, a `CUdeviceptr` on an NVIDIA GPU; `None` on other devices. A clone of the tensor keeps the memory alive.
    ///
    /// The elements are there once [`Tensor::wait`] has returned; on a GPU another library's stream can be made to wait
    /// instead ([`Streams::make_stream_wait`](hologram_backends::Streams::make_stream_wait) with [`Tensor::buffer`]).
    pub fn address(&self) -> Option<u64> {
        self.buffer.address().map(|address| address + self.offset as u64)
    }

    /// The memory that the tensor lies in, from byte [`Tensor::offset`] on.
    pub fn buffer(&self) -> &hologram_backends::Buffer {
        &self.buffer
    }

    /// The byte of [`Tensor::buffer`] at which the first element lies.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The distances, in elements, from one index of each dimension to the next.
    pub fn strides(&self) -> Vec<usize> {
        self.strides.clone().unwrap_or_else(|| Layout::dense(&self.shape).strides)
    }

    /// The elements of a row-major tensor in the memory that the host shares with the device, without a copy. Waits for
    /// the operation that computes them.
    ///
    /// # Safety
    /// As long as the slice lives, nothing writes the tensor's memory: no plan of which it is a state, no
    /// [`Pool::write`](crate::Pool::write), and no other library that it belongs to or was given to.
    ///
    /// # Errors
    /// When the host does not share the device's memory, the tensor is a view with other strides, or its elements are
    /// not of type `T`; the error of the operation.
    pub unsafe fn host_slice<T: Element>(&self) -> Result<&[T]> {
        if self.format != DType::Plain(T::TYPE) {
            return Err(self.refuse("host_slice", format!("its elements are not {}", T::TYPE)));
        }
        if !self.is_contiguous() {
            return Err(self.refuse("host_slice", "the elements of a view are not row-major; copy it".into()));
        }
        let Some(base) = self.buffer.host_address() else {
            return Err(self.refuse("host_slice", "the host does not share the device's memory; use to_vec".into()));
        };
        self.wait()?;
        let count = self.shape.iter().product();
        if count == 0 {
            return Ok(&[]);
        }
        let first = std::ptr::with_exposed_provenance::<T>(base as usize + self.offset);
        if !first.is_aligned() {
            return Err(self.refuse("host_slice", "the elements are not aligned for the host".into()));
        }
        // SAFETY: the tensor's elements lie in its buffer, which the borrow keeps; they have the layout of `T`, of
        // which every bit pattern is valid. The caller promises that nothing writes them.
        Ok(unsafe { std::slice::from_raw_parts(first, count) })
    }
}

const _: () = assert!(POINTER_ALIGN == crate::graph::VIEW_ALIGN, "offsets stand for addresses");
