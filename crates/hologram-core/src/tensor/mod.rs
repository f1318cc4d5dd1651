//! Tensors in device memory, and the types of graph values.

mod along;
mod dims;
mod files;
mod index;
mod make;
mod nested;
mod ops;
mod pointer;
mod print;
mod reductions;
mod rows;
mod search;
mod view;

pub use along::TensorAttention;
pub use dims::{Axis, Dims};
pub(crate) use make::plain;
pub use nested::Nested;
pub use ops::Operand;
pub use search::Unique;

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};
use hologram_backends::{Binding, Buffer, DType, Event};
use hologram_isa::Type;

use crate::error::{CoreError, Result};
use crate::executor::Executor;

/// A host type with an element type of the same layout.
///
/// # Safety
/// The type has no padding, every bit pattern is valid, and it has the size and layout of [`Element::TYPE`] in memory.
pub unsafe trait Element: Copy + Default + Send + Sync + 'static {
    /// The element type.
    const TYPE: Type;
}

macro_rules! elements {
    ($($rust:ty, $ty:ident;)*) => {$(
        // SAFETY: a number (or a transparent wrapper of one) without padding, laid out as the element type.
        unsafe impl Element for $rust {
            const TYPE: Type = Type::$ty;
        }
    )*};
}
elements! {
    i8, I8; u8, U8; i16, I16; u16, U16; i32, I32; u32, U32; i64, I64; u64, U64;
    f16, F16; bf16, BF16; f32, F32; f64, F64;
}

/// The bytes of a slice of elements.
pub fn bytes_of<T: Element>(data: &[T]) -> &[u8] {
    // SAFETY: elements have no padding.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// The bytes of a slice of elements, for writing.
pub fn bytes_of_mut<T: Element>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: elements have no padding and every bit pattern is valid.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// A tensor in device memory: row-major, or a view of part of another tensor ([`Tensor::slice`], [`Tensor::permute`]
/// …). Clones and views share the memory.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) executor: Executor,
    pub(crate) buffer: Buffer,
    pub(crate) offset: usize,
    pub(crate) format: DType,
    pub(crate) shape: Vec<usize>,
    /// The strides of a view, in elements.
    pub(crate) strides: Option<Vec<usize>>,
    /// The end of the operation that computes it.
    pub(crate) made: Option<Event>,
}

impl Tensor {
    /// Whether both tensors lie on one open device.
    pub fn is_beside(&self, other: &Tensor) -> bool {
        self.is_of(&other.executor)
    }

    /// Whether the tensor lies on the executor's device.
    pub(crate) fn is_of(&self, executor: &Executor) -> bool {
        self.executor.is(executor)
    }

    /// A tensor over the bytes of a buffer from `offset` on.
    ///
    /// # Errors
    /// When the buffer belongs to another executor, the row does not fit the format, the bytes lie outside the buffer,
    /// or the tensor has more than 2³² − 1 elements (programs compute indices in `u32`).
    pub fn from_buffer(
        executor: &Executor,
        buffer: Buffer,
        offset: usize,
        format: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        if !executor.backend().owns(&buffer) {
            return Err(CoreError::Tensor(format!("a buffer on {} belongs to another executor", buffer.backend())));
        }
        let bytes = size_in_bytes(format, shape)?;
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.bytes()) {
            return Err(CoreError::Tensor(format!(
                "{} {shape:?} takes {bytes} bytes, which do not fit at byte {offset} of a buffer of {}",
                format.name(),
                buffer.bytes()
            )));
        }
        Ok(Tensor {
            executor: executor.clone(),
            buffer,
            offset,
            format,
            shape: shape.to_vec(),
            strides: None,
            made: None,
        })
    }

    /// A tensor with undefined content.
    ///
    /// # Errors
    /// When the shape does not fit the format or the device does not have enough memory.
    pub fn empty(executor: &Executor, format: DType, shape: &[usize]) -> Result<Tensor> {
        let buffer = executor.backend().allocate_buffer(size_in_bytes(format, shape)?)?;
        Tensor::from_buffer(executor, buffer, 0, format, shape)
    }

    /// A tensor with these bytes in the format's layout.
    ///
    /// # Errors
    /// As [`Tensor::empty`]; when the number of bytes is wrong.
    pub fn from_bytes(executor: &Executor, format: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let want = size_in_bytes(format, shape)?;
        if bytes.len() != want {
            return Err(CoreError::Tensor(format!(
                "{} {shape:?} takes {want} bytes, not {}",
                format.name(),
                bytes.len()
            )));
        }
        let tensor = Tensor::empty(executor, format, shape)?;
        executor.backend().copy_to_buffer(&tensor.buffer, 0, bytes)?;
        Ok(tensor)
    }

    /// A tensor of plain elements.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_slice<T: Element>(executor: &Executor, shape: &[usize], data: &[T]) -> Result<Tensor> {
        Tensor::from_bytes(executor, DType::Plain(T::TYPE), shape, bytes_of(data))
    }

    /// Sets every byte to zero.
    ///
    /// # Errors
    /// Errors of the device; when the tensor is a view.
    pub fn zero(&self) -> Result<()> {
        if self.strides.is_some() {
            return Err(CoreError::Tensor("only a whole tensor can be set to zero, not a view".into()));
        }
        let zeros = vec![0u8; self.bytes().min(1 << 20)];
        let mut done = 0;
        while done < self.bytes() {
            let n = zeros.len().min(self.bytes() - done);
            self.executor.backend().copy_to_buffer(&self.buffer, self.offset + done, &zeros[..n])?;
            done += n;
        }
        Ok(())
    }

    /// Waits for the device's work and copies the elements to the host. Block formats are read as `f32`.
    ///
    /// # Errors
    /// When the tensor's elements are not of type `T`. At each read: the error of the operation that computes them, or
    /// of an earlier operation that it depends on.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if !matches!(self.format, DType::Plain(_)) && T::TYPE == Type::F32 {
            return self.to_dtype(Type::F32)?.to_vec();
        }
        if self.format != DType::Plain(T::TYPE) {
            return Err(CoreError::Tensor(format!("a tensor of {} cannot be read as {}", self.format.name(), T::TYPE)));
        }
        if self.strides.is_some() {
            return self.contiguous()?.to_vec();
        }
        let mut out = vec![T::default(); self.shape.iter().product()];
        self.executor.backend().copy_from_buffer(&self.buffer, self.offset, bytes_of_mut(&mut out))?;
        Ok(out)
    }

    /// Waits for the work that uses the tensor and copies its first elements to the host.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; when the tensor is a view or has fewer elements.
    pub fn read_into<T: Element>(&self, out: &mut [T]) -> Result<()> {
        if self.format != DType::Plain(T::TYPE) || self.strides.is_some() {
            let kind = if self.strides.is_some() { "view" } else { "tensor" };
            return Err(CoreError::Tensor(format!("a {kind} of {} cannot be read as {}", self.format.name(), T::TYPE)));
        }
        let out = bytes_of_mut(out);
        if out.len() > self.bytes() {
            return Err(CoreError::Tensor(format!("a tensor of {} bytes has no {}", self.bytes(), out.len())));
        }
        Ok(self.executor.backend().copy_from_buffer(&self.buffer, self.offset, out)?)
    }

    /// Declares the content valid although an operation failed that should have changed it in place. The caller must
    /// know which part that operation should have changed, and must not read this part before writing it anew.
    ///
    /// # Errors
    /// Errors of the device; when the tensor is a view.
    pub fn clear_error(&self) -> Result<()> {
        if self.strides.is_some() {
            return Err(CoreError::Tensor("only the error of a whole tensor can be cleared, not of a view".into()));
        }
        Ok(self.executor.backend().clear_error(&self.buffer, self.offset, self.bytes())?)
    }

    /// The storage format.
    pub fn dtype(&self) -> DType {
        self.format
    }

    /// Sizes, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Size of the elements in bytes.
    pub fn bytes(&self) -> usize {
        size_in_bytes(self.format, &self.shape).unwrap_or(0)
    }

    /// The device it lies on.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Whether both tensors begin at the same byte of the same memory.
    pub fn same_memory(&self, other: &Tensor) -> bool {
        self.offset == other.offset && self.buffer.same_memory(&other.buffer)
    }

    /// Whether the tensors share a byte. The bytes between the elements of a view count.
    pub(crate) fn overlaps(&self, other: &Tensor) -> bool {
        let bytes =
            |t: &Tensor| t.ranges().into_iter().map(|r| t.offset + r.start..t.offset + r.end).collect::<Vec<_>>();
        let meet = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
        self.buffer.same_memory(&other.buffer) && bytes(self).iter().any(|a| bytes(other).iter().any(|b| meet(a, b)))
    }

    /// The buffer ranges of the format's parts, in order, for a launch.
    pub fn bindings(&self) -> Vec<Binding> {
        let bind = |range: Range<usize>| Binding::Buffer {
            buffer: self.buffer.clone(),
            range: self.offset + range.start..self.offset + range.end,
        };
        self.ranges().into_iter().map(bind).collect()
    }

    /// The byte ranges of the format's parts, relative to the tensor's first byte, in order.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        if let Some(layout) = self.layout() {
            let bytes = layout.span(&self.shape) * self.format.block_bytes();
            return std::iter::once(0..bytes).collect();
        }
        let (rows, row_len) = rows_of(&self.shape);
        self.format.views(rows, row_len).into_iter().map(|v| v.offset..v.offset + v.bytes).collect()
    }

    /// Waits until the operation that computes the tensor, and the work submitted before it, are done. Returns at once
    /// for a tensor that no operation computes.
    ///
    /// # Errors
    /// The error of the operation that computes it, or of an earlier operation that it depends on, each time.
    pub fn wait(&self) -> Result<()> {
        match self.made {
            Some(event) => Ok(self.executor.backend().wait(event)?),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.format.name(), self.shape, self.buffer.backend())
    }
}

fn rows_of(shape: &[usize]) -> (usize, usize) {
    shape.split_last().map_or((1, 1), |(last, rest)| (rest.iter().product(), *last))
}

pub(crate) fn size_in_bytes(format: DType, shape: &[usize]) -> Result<usize> {
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let (rows, row_len) = match elements {
        Some(n) if n <= u32::MAX as usize => rows_of(shape),
        _ => return Err(CoreError::Tensor(format!("{shape:?} has more than {} elements", u32::MAX))),
    };
    format.bytes(rows, row_len).ok_or_else(|| {
        CoreError::Tensor(format!(
            "rows of {row_len} elements do not divide into the blocks of {} of {}",
            format.block_len(),
            format.name()
        ))
    })
}

/// The size of a dimension of a graph value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known when the graph is built.
    Fixed(usize),
    /// A named run-time extent of the graph.
    Extent(u32),
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Fixed(n)
    }
}

/// The type of a graph value: format and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Storage format.
    pub format: DType,
    /// Sizes, slowest first.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A type.
    pub fn new(format: DType, shape: impl Into<Vec<Dim>>) -> TensorType {
        TensorType { format, shape: shape.into() }
    }

    /// The last dimension, if it is fixed.
    pub fn row_len(&self) -> Option<usize> {
        match self.shape.last() {
            Some(Dim::Fixed(n)) => Some(*n),
            _ => None,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.format.name())?;
        for (i, d) in self.shape.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match d {
                Dim::Fixed(n) => write!(f, "{comma}{n}")?,
                Dim::Extent(e) => write!(f, "{comma}extent {e}")?,
            }
        }
        f.write_str("]")
    }
}
