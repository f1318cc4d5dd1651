//! Copies from the host's memory into tensors, in pieces: Ctrl-C ends a copy between two of them, and other threads of
//! Python run meanwhile.

use std::ptr;

use hologram_core::{DType, Executor, Tensor};
use hologram_isa::Type;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::dtype::size;
use crate::error::Result;
use crate::wait::{interruptible, is_behind, is_long, worked};

/// Bytes of a piece: some milliseconds.
const PIECE: usize = 32 << 20;

/// Elements of a piece that are not in row-major order.
const SCATTERED: usize = 1 << 21;

/// The distances, in bytes, between elements in row-major order without gaps.
pub fn row_major(shape: &[usize], width: usize) -> Vec<isize> {
    (0..shape.len()).map(|k| (shape[k + 1..].iter().product::<usize>() * width) as isize).collect()
}

/// An array in the host's memory.
pub struct Array {
    pub ty: Type,
    pub shape: Vec<usize>,
    /// The distances, in bytes, from one index of each dimension to the next.
    pub strides: Vec<isize>,
    /// The address of the first element.
    pub address: usize,
}

impl Array {
    /// Whether the elements lie in row-major order without gaps.
    fn is_dense(&self) -> bool {
        let mut next = size(self.ty) as isize;
        self.shape.iter().zip(&self.strides).rev().all(|(n, stride)| {
            let fits = *n == 1 || *stride == next;
            next = next.saturating_mul(*n as isize);
            fits
        })
    }

    /// Appends `count` elements, in row-major order from the element `first` on.
    ///
    /// # Safety
    /// The elements of the shape and strides are readable.
    unsafe fn gather(&self, first: usize, count: usize, out: &mut Vec<u8>) {
        let width = size(self.ty);
        let (n, along) = match (self.shape.last(), self.strides.last()) {
            (Some(n), Some(stride)) => ((*n).max(1), *stride),
            _ => (1, 0),
        };
        let (mut at, end) = (first, first + count);
        while at < end {
            let (mut rest, mut offset) = (at / n, 0isize);
            for (size, stride) in self.shape.iter().zip(&self.strides).rev().skip(1) {
                offset += (rest % size) as isize * stride;
                rest /= size;
            }
            let line = at % n..n.min(at % n + (end - at));
            at += line.len();
            // Elements beside one another are copied together.
            let together = if along == width as isize { line.len() } else { 1 };
            for i in line.step_by(together) {
                let address = self.address.wrapping_add_signed(offset + i as isize * along);
                let bytes = together * width;
                // SAFETY: promised by the caller.
                let elements = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(address), bytes) };
                out.extend_from_slice(elements);
            }
        }
    }

    /// A tensor with a copy of the elements.
    ///
    /// # Safety
    /// The elements of the shape and strides are readable until the function returns.
    pub unsafe fn copy(&self, py: Python<'_>, executor: &Executor) -> Result<Tensor> {
        let (of, shape, format) = (executor.clone(), self.shape.clone(), DType::Plain(self.ty));
        let tensor = worked(py, executor, 0, move || Tensor::empty(&of, format, &shape))??;
        let (width, dense) = (size(self.ty), self.is_dense());
        let elements = tensor.bytes() / width;
        let piece = if dense { PIECE / width } else { SCATTERED };
        let mut staged = Vec::new();
        for first in (0..elements).step_by(piece) {
            if first > 0 {
                py.check_signals()?;
            }
            let count = piece.min(elements - first);
            let bytes = py.detach(|| {
                if dense {
                    let address = self.address + first * width;
                    // SAFETY: promised by the caller.
                    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(address), count * width) }
                } else {
                    staged.clear();
                    // SAFETY: as above.
                    unsafe { self.gather(first, count, &mut staged) };
                    &staged
                }
            });
            write(py, &tensor, first * width, bytes)?;
        }
        Ok(tensor)
    }
}

/// Fills the memory of a new object of Python piece by piece.
///
/// # Safety
/// The address is that of as many bytes as `bytes` has, which nobody else uses.
unsafe fn fill(py: Python<'_>, to: *mut u8, bytes: &[u8]) -> PyResult<()> {
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        if index > 0 {
            py.check_signals()?;
        }
        let to = to.wrapping_add(index * PIECE).expose_provenance();
        // SAFETY: promised by the caller.
        py.detach(|| unsafe {
            ptr::with_exposed_provenance_mut::<u8>(to).copy_from_nonoverlapping(piece.as_ptr(), piece.len());
        });
    }
    Ok(())
}

/// Objects of Python of so many bytes, made without writing to them.
macro_rules! objects {
    ($($name:ident($class:ident) $new:ident $address:ident;)*) => {$(
        /// A copy of the bytes as an object of Python.
        pub fn $name<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Bound<'py, $class>> {
            // SAFETY: makes an object of so many bytes, or an exception.
            let object = unsafe { Bound::from_owned_ptr_or_err(py, ffi::$new(ptr::null(), bytes.len() as isize)) }?;
            // SAFETY: the object is of this class, as large as the bytes, and nobody else has it.
            unsafe { fill(py, ffi::$address(object.as_ptr()).cast(), bytes) }?;
            // SAFETY: as above.
            Ok(unsafe { object.cast_into_unchecked() })
        }
    )*};
}

objects! {
    bytes_object(PyBytes) PyBytes_FromStringAndSize PyBytes_AsString;
    bytearray_object(PyByteArray) PyByteArray_FromStringAndSize PyByteArray_AsString;
}

/// Copies bytes into a tensor's memory. Those for a GPU that has work are copied on the host first, so that Ctrl-C ends
/// the wait for the GPU, which reads them later.
fn write(py: Python<'_>, tensor: &Tensor, offset: usize, bytes: &[u8]) -> Result<()> {
    let executor = tensor.executor();
    if !is_long(executor, 0) && !is_behind(executor, 0) {
        return Ok(py.detach(|| executor.backend().copy_to_buffer(tensor.buffer(), offset, bytes))?);
    }
    let (tensor, bytes) = (tensor.clone(), py.detach(|| bytes.to_vec()));
    Ok(interruptible(py, move || tensor.executor().backend().copy_to_buffer(tensor.buffer(), offset, &bytes))??)
}

/// A tensor with these bytes, little-endian and in row-major order.
pub fn from_bytes(py: Python<'_>, executor: &Executor, ty: Type, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
    let fits = shape.iter().try_fold(size(ty), |n, d| n.checked_mul(*d)) == Some(bytes.len());
    if fits && bytes.len() > PIECE {
        let strides = row_major(shape, size(ty));
        let array = Array { ty, shape: shape.to_vec(), strides, address: bytes.as_ptr().expose_provenance() };
        // SAFETY: the bytes are borrowed, and have the shape's size.
        return unsafe { array.copy(py, executor) };
    }
    if !is_long(executor, 0) {
        return Ok(py.detach(|| Tensor::from_bytes(executor, DType::Plain(ty), shape, bytes))?);
    }
    let (of, shape, bytes) = (executor.clone(), shape.to_vec(), bytes.to_vec());
    Ok(interruptible(py, move || Tensor::from_bytes(&of, DType::Plain(ty), &shape, &bytes))??)
}
