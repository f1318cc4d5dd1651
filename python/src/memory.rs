//! Copies from the host's memory into tensors, in pieces: Ctrl-C ends a copy between two of them, and other threads of
//! Python run meanwhile.

use std::ptr;

use hologram_core::{DType, Executor, Tensor};
use hologram_isa::Type;
use pyo3::prelude::*;

use crate::dtype::size;
use crate::error::Result;

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
        let tensor = py.detach(|| Tensor::empty(executor, DType::Plain(self.ty), &self.shape))?;
        let (width, dense, backend) = (size(self.ty), self.is_dense(), executor.backend());
        let elements = tensor.bytes() / width;
        let piece = if dense { PIECE / width } else { SCATTERED };
        let mut staged = Vec::new();
        for first in (0..elements).step_by(piece) {
            if first > 0 {
                py.check_signals()?;
            }
            let count = piece.min(elements - first);
            py.detach(|| {
                let bytes = if dense {
                    let address = self.address + first * width;
                    // SAFETY: promised by the caller.
                    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(address), count * width) }
                } else {
                    staged.clear();
                    // SAFETY: as above.
                    unsafe { self.gather(first, count, &mut staged) };
                    &staged
                };
                backend.copy_to_buffer(tensor.buffer(), first * width, bytes)
            })?;
        }
        Ok(tensor)
    }
}

/// A tensor with these bytes, little-endian and in row-major order.
pub fn from_bytes(py: Python<'_>, executor: &Executor, ty: Type, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
    let fits = shape.iter().try_fold(size(ty), |n, d| n.checked_mul(*d)) == Some(bytes.len());
    if bytes.len() <= PIECE || !fits {
        return Ok(py.detach(|| Tensor::from_bytes(executor, DType::Plain(ty), shape, bytes))?);
    }
    let strides = row_major(shape, size(ty));
    let array = Array { ty, shape: shape.to_vec(), strides, address: bytes.as_ptr().expose_provenance() };
    // SAFETY: the bytes are borrowed, and have the shape's size.
    unsafe { array.copy(py, executor) }
}
