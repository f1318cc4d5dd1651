//! Views of tensors: other shapes, parts and orders of their elements, without a copy.

use hologram_backends::DType;

use crate::error::{CoreError, Result};
use crate::graph::VIEW_ALIGN;
use crate::layout::Layout;
use crate::tensor::{Axis, Dims, Tensor};

impl Tensor {
    /// The same elements in row-major order with another shape. Copies only a view whose elements cannot have
    /// this shape by strides.
    ///
    /// # Errors
    /// When the number of elements differs or the format is not plain; errors of the device if a copy is needed.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let count = |shape: &[usize]| elements(shape).map_or("too many".into(), |n| n.to_string());
        if elements(shape) != elements(&self.shape) {
            return Err(
                self.refuse("reshape", format!("{shape:?} has {} elements, not {}", count(shape), count(&self.shape)))
            );
        }
        let layout = self.plain_layout("reshape")?;
        let strides =
            if elements(shape) == Some(0) { Some(Layout::dense(shape)) } else { layout.reshape(&self.shape, shape) };
        match strides {
            Some(layout) => Ok(self.view(shape.to_vec(), layout)),
            None => self.contiguous()?.reshape(shape),
        }
    }

    /// Indices `start..end` of a dimension, as a view.
    ///
    /// # Errors
    /// When the range is not in the dimension or the format is not plain.
    pub fn slice(&self, dim: impl Axis, start: usize, end: usize) -> Result<Tensor> {
        let dim = self.axis("slice", dim)?;
        let layout = self.plain_layout("slice")?;
        let (shape, layout) = layout.slice(&self.shape, dim, start, end).map_err(|e| self.refuse("slice", e))?;
        Ok(self.view(shape, layout))
    }

    /// A view with the dimensions in another order: dimension `k` of the result is dimension `order[k]`.
    ///
    /// # Errors
    /// When `order` does not name each dimension once or the format is not plain.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        let layout = self.plain_layout("permute")?;
        let (shape, layout) = layout.permute(&self.shape, order).map_err(|e| self.refuse("permute", e))?;
        Ok(self.view(shape, layout))
    }

    /// A view with the last two dimensions swapped.
    ///
    /// # Errors
    /// When there are fewer than two dimensions or the format is not plain.
    pub fn transpose(&self) -> Result<Tensor> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        match order.as_mut_slice() {
            [.., a, b] => std::mem::swap(a, b),
            _ => return Err(self.refuse("transpose", "takes two dimensions".into())),
        }
        self.permute(&order)
    }

    /// A view of another shape in which dimensions of size 1, and leading dimensions that the tensor lacks, repeat.
    ///
    /// # Errors
    /// When the shapes do not broadcast as in NumPy, there are more than 2³² − 1 elements, or the
    /// format is not plain.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        crate::tensor::size_in_bytes(self.format, shape)?;
        let layout = self.plain_layout("broadcast_to")?;
        let layout = layout.broadcast(&self.shape, shape).map_err(|e| self.refuse("broadcast_to", e))?;
        Ok(self.view(shape.to_vec(), layout))
    }

    /// As [`Tensor::transpose`].
    ///
    /// # Errors
    /// As [`Tensor::transpose`].
    pub fn t(&self) -> Result<Tensor> {
        self.transpose()
    }

    /// A view without dimensions of size 1: one, several, or all with `..`.
    ///
    /// # Errors
    /// When a dimension does not exist or has another size.
    pub fn squeeze(&self, dims: impl Dims) -> Result<Tensor> {
        let all = dims.dims(self.shape.len()).map_err(|e| self.refuse("squeeze", e))?;
        let every = all.len() == self.shape.len();
        if let Some(dim) = all.iter().find(|dim| self.shape[**dim] != 1).filter(|_| !every || self.shape.len() == 1) {
            return Err(self.refuse("squeeze", format!("dimension {dim} has size {}, not 1", self.shape[*dim])));
        }
        let kept = |(dim, n): (usize, &usize)| (!(all.contains(&dim) && *n == 1)).then_some(*n);
        self.reshape(&self.shape.iter().enumerate().filter_map(kept).collect::<Vec<_>>())
    }

    /// A view with an additional dimension of size 1, at index `dim` of the result.
    ///
    /// # Errors
    /// When the index is beyond the dimensions.
    pub fn unsqueeze(&self, dim: impl Axis) -> Result<Tensor> {
        let rank = self.shape.len() + 1;
        let at = dim.axis(rank).ok_or_else(|| self.refuse("unsqueeze", format!("the result has {rank} dimensions")))?;
        let mut shape = self.shape.clone();
        shape.insert(at, 1);
        self.reshape(&shape)
    }

    /// Whether the elements lie in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout().is_none_or(|layout| layout.is_dense(&self.shape))
    }

    /// The elements in row-major order: the tensor itself, or a copy of a view.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.strides.is_none() {
            return Ok(self.clone());
        }
        self.copy()
    }

    /// The layout of a view's elements, relative to its first one. `None`: a row-major tensor that
    /// operations may read as it is.
    pub(crate) fn layout(&self) -> Option<Layout> {
        self.strides.clone().map(|strides| Layout { offset: 0, strides })
    }

    fn plain_layout(&self, op: &'static str) -> Result<Layout> {
        match self.format {
            DType::Plain(_) => Ok(self.layout().unwrap_or_else(|| Layout::dense(&self.shape))),
            _ => Err(self.refuse(op, "only plain formats have views".into())),
        }
    }

    pub(super) fn view(&self, shape: Vec<usize>, layout: Layout) -> Tensor {
        // An empty view keeps the start of the tensor.
        let start = if shape.contains(&0) { 0 } else { layout.offset * self.format.block_bytes() };
        let offset = self.offset + start;
        // A contiguous view at an aligned address is as good as a whole tensor. An empty view has not moved.
        let moved = start > 0 && !offset.is_multiple_of(VIEW_ALIGN);
        let own = layout.is_dense(&shape) && !moved && self.strides.is_none();
        let strides = (!own).then_some(layout.strides);
        Tensor { offset, shape, strides, ..self.clone() }
    }

    pub(super) fn refuse(&self, op: &'static str, reason: String) -> CoreError {
        CoreError::Operands { op, reason, operands: format!("{}{:?}", self.format.name(), self.shape) }
    }
}
