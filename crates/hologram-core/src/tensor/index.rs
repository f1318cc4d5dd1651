//! Parts of tensors by slices with steps, by indices of any integer type, and by masks.

use hologram_backends::DType;
use hologram_isa::Type;

use super::{Axis, Dims, Tensor};
use crate::eager::Call;
use crate::error::Result;
use crate::layout::Layout;

impl Tensor {
    /// The indices `start`, `start + step`, … of a dimension, up to but without `stop`, as Python's
    /// `start:stop:step`: negative bounds count from the end, bounds beyond the dimension are moved to its ends, and
    /// `None` is the end that the step comes from or goes to. A view if the step is positive.
    ///
    /// ```
    /// use hologram_core::{Executor, Tensor};
    ///
    /// let x = Tensor::from_slice(&Executor::open("cpu", None)?, &[6], &[0, 1, 2, 3, 4, 5])?;
    /// assert_eq!(x.slice_step(0, Some(1), None, 2)?.to_vec::<i32>()?, [1, 3, 5]);
    /// assert_eq!(x.slice_step(0, Some(-2), None, -2)?.to_vec::<i32>()?, [4, 2, 0]);
    /// # Ok::<(), hologram_core::CoreError>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such dimension, the step is 0, or the format is not plain; errors of the device.
    pub fn slice_step(&self, dim: impl Axis, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<Tensor> {
        let dim = self.axis("slice_step", dim)?;
        let n = self.shape[dim] as i64;
        if step == 0 {
            return Err(self.refuse("slice_step", "the step is 0".into()));
        }
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let (first, last) = if step > 0 { (low, high) } else { (high, low) };
        let bound = |at: i64| if at < 0 { at.saturating_add(n).max(low) } else { at.min(high) };
        let (start, stop) = (start.map_or(first, bound), stop.map_or(last, bound));
        let size = step.unsigned_abs() as usize;
        let span = if step > 0 { stop - start } else { start - stop }.max(0) as usize;
        let count = span.div_ceil(size);
        let reach = count.saturating_sub(1) * size;
        // The lowest of the indices.
        let lowest = match (count, step > 0) {
            (0, _) => 0,
            (_, true) => start as usize,
            (_, false) => start as usize - reach,
        };
        let part = self.slice(dim, lowest, if count == 0 { 0 } else { lowest + reach + 1 })?;
        let part = if size == 1 { part } else { part.every(dim, size, count) };
        if step < 0 { part.flip(dim) } else { Ok(part) }
    }

    /// Every `step`-th of the indices of a dimension, from the first on; there are `count`.
    fn every(&self, dim: usize, step: usize, count: usize) -> Tensor {
        let mut layout = self.layout().unwrap_or_else(|| Layout::dense(&self.shape));
        if count > 1 {
            layout.strides[dim] *= step;
        }
        let mut shape = self.shape.clone();
        shape[dim] = count;
        self.view(shape, layout)
    }

    /// The elements in reverse order along dimensions.
    ///
    /// # Errors
    /// When the tensor lacks a dimension or the format is not plain; errors of the device.
    pub fn flip(&self, dims: impl Dims) -> Result<Tensor> {
        let dims = dims.dims(self.shape.len()).map_err(|e| self.refuse("flip", e))?;
        dims.into_iter().filter(|dim| self.shape[*dim] > 1).try_fold(self.clone(), |x, dim| {
            let n = self.shape[dim];
            let last = Tensor::arange(&self.executor, Type::I64, n as f64 - 1.0, -1.0, n)?;
            x.take_along(&last.cast(Type::U32)?, dim)
        })
    }

    /// The elements moved along a dimension by `shift` places; those that leave at one end enter at the other.
    ///
    /// # Errors
    /// When the tensor lacks the dimension or the format is not plain; errors of the device.
    pub fn roll(&self, shift: i64, dim: impl Axis) -> Result<Tensor> {
        let dim = self.axis("roll", dim)?;
        let n = self.shape[dim];
        let split = if n == 0 { 0 } else { n - shift.rem_euclid(n as i64) as usize };
        if split == 0 || split == n {
            return Ok(self.clone());
        }
        Tensor::cat(&[&self.slice(dim, split, n)?, &self.slice(dim, 0, split)?], dim)
    }

    /// The elements at indices of a dimension, in whose place the result has the dimensions of `indices`. These are of
    /// any integer type; negative ones count from the end. An index that does not exist is an error of the run.
    ///
    /// # Errors
    /// When the tensor lacks the dimension, the indices are no integers, or the format is not plain; errors of the
    /// device.
    pub fn take(&self, indices: &Tensor, dim: impl Axis) -> Result<Tensor> {
        let dim = self.axis("take", dim)?;
        let shape = [&self.shape[..dim], &indices.shape, &self.shape[dim + 1..]].concat();
        let line = indices.reshape(&[indices.shape.iter().product()])?;
        self.take_along(&line.indices("take", self.shape[dim])?, dim)?.reshape(&shape)
    }

    /// Elements along a dimension by an index for each element of the result. Indices are as for [`Tensor::take`]; in
    /// the other dimensions they broadcast with the tensor.
    ///
    /// # Errors
    /// As [`Tensor::take`]; when the shapes do not fit.
    pub fn take_along_axis(&self, indices: &Tensor, dim: impl Axis) -> Result<Tensor> {
        let dim = self.axis("take_along_axis", dim)?;
        if indices.shape.len() != self.shape.len() {
            return Err(self.refuse("take_along_axis", format!("the indices have {} dimensions", indices.shape.len())));
        }
        let common = |a: &[usize], b: &[usize]| a.iter().zip(b).map(|(a, b)| if *a == 1 { *b } else { *a }).collect();
        let (mut own, mut other): (Vec<usize>, Vec<usize>) =
            (common(&self.shape, &indices.shape), common(&self.shape, &indices.shape));
        (own[dim], other[dim]) = (self.shape[dim], indices.shape[dim]);
        let indices = indices.indices("take_along_axis", self.shape[dim])?.broadcast_to(&other)?;
        self.broadcast_to(&own)?.take_along(&indices, dim)
    }

    /// Indices of a dimension of size `n` as `u32`, negative ones counted from its start; 2³² − 1 for those that do not
    /// exist.
    fn indices(&self, op: &'static str, n: usize) -> Result<Tensor> {
        let signed = match self.format {
            DType::U32 => return Ok(self.clone()),
            DType::Plain(Type::U8 | Type::U16) => return self.cast(Type::U32),
            DType::Plain(Type::I8 | Type::I16 | Type::I32 | Type::I64) => true,
            DType::Plain(Type::U64) => false,
            _ => return Err(self.refuse(op, "the indices are no integers".into())),
        };
        self.executor.cached(Call::Indices, &[n as u64], &[self], |g, v| {
            let ty = if signed { Type::I64 } else { Type::U64 };
            let i = g.cast(v[0], ty)?;
            let (zero, size) = (g.scalar(ty, 0.0)?, g.scalar(ty, n as f64)?);
            let (negative, behind) = (g.lt(i, zero)?, g.add(i, size)?);
            let i = g.select(negative, behind, i)?;
            let (negative, beyond) = (g.lt(i, zero)?, g.ge(i, size)?);
            let outside = g.or(negative, beyond)?;
            let none = g.scalar(ty, u32::MAX.into())?;
            let i = g.select(outside, none, i)?;
            g.cast(i, Type::U32)
        })
    }

    /// Whether any element along dimensions is not zero (NaN is not), as `bool`; false if there is none. With `keep`
    /// the dimensions have size 1 in the result.
    ///
    /// # Errors
    /// When the tensor lacks a dimension or the format is not plain; errors of the device.
    pub fn any(&self, dims: impl Dims, keep: bool) -> Result<Tensor> {
        self.nonzeros(&dims, keep, false)?.gt(0)
    }

    /// Whether all elements along dimensions are not zero, as `bool`; true if there is none.
    ///
    /// # Errors
    /// As [`Tensor::any`].
    pub fn all(&self, dims: impl Dims, keep: bool) -> Result<Tensor> {
        self.nonzeros(&dims, keep, true)?.eq(0)
    }

    /// The number (`i64`) of elements along dimensions that are not zero.
    ///
    /// # Errors
    /// As [`Tensor::any`].
    pub fn count_nonzero(&self, dims: impl Dims, keep: bool) -> Result<Tensor> {
        self.nonzeros(&dims, keep, false)?.cast(Type::I64)
    }

    /// The number (`u32`) of elements along dimensions that are not zero, or that are.
    fn nonzeros(&self, dims: &dyn Dims, keep: bool, zeros: bool) -> Result<Tensor> {
        let counted = self.executor.cached(Call::Counted, &[zeros.into()], &[self], |g, v| {
            let truth = g.cast(v[0], Type::Bool)?;
            let truth = if zeros { g.not(truth)? } else { truth };
            g.cast(truth, Type::U32)
        })?;
        counted.reduced(crate::ops::Reduction::Sum, dims, keep)
    }

    /// The row-major indices (`u32`) of the elements that are not zero, in order. Waits for their number.
    ///
    /// # Errors
    /// When the format is not plain; errors of the device.
    pub fn flat_nonzero(&self) -> Result<Tensor> {
        let n = self.shape.iter().product();
        let line = self.reshape(&[n])?;
        if n == 0 {
            return Tensor::empty(&self.executor, DType::U32, &[0]);
        }
        let counted = line.cast(Type::Bool)?.cast(Type::U32)?.cumsum(0)?;
        let count = counted.slice(0, n - 1, n)?.to_scalar::<u32>()?;
        let numbers = Tensor::arange(&self.executor, Type::U32, 1.0, 1.0, count as usize)?;
        counted.search_sorted(&numbers, false)
    }

    /// The indices (`i64`) of the elements that are not zero: a tensor per dimension, in row-major order. Waits for
    /// their number.
    ///
    /// # Errors
    /// When there are no dimensions; as [`Tensor::flat_nonzero`].
    pub fn nonzero(&self) -> Result<Vec<Tensor>> {
        if self.shape.is_empty() {
            return Err(self.refuse("nonzero", "it has no dimensions".into()));
        }
        let flat = self.flat_nonzero()?;
        let strides = Layout::dense(&self.shape).strides;
        let along = |(n, stride): (&usize, &usize)| {
            self.executor.cached(Call::Unravel, &[*n as u64, *stride as u64], &[&flat], |g, v| {
                // An empty dimension has no index.
                let (n, stride) =
                    (g.scalar(DType::U32, (*n).max(1) as f64)?, g.scalar(DType::U32, (*stride).max(1) as f64)?);
                let line = g.div(v[0], stride)?;
                let at = g.rem(line, n)?;
                g.cast(at, Type::I64)
            })
        };
        self.shape.iter().zip(&strides).map(along).collect()
    }

    /// The elements where a mask is true, in row-major order. The mask has the tensor's first dimensions; the others
    /// stay. Waits for their number.
    ///
    /// # Errors
    /// When the mask's shape does not fit; as [`Tensor::flat_nonzero`].
    pub fn masked(&self, mask: &Tensor) -> Result<Tensor> {
        let rank = mask.shape.len();
        if !self.shape.starts_with(&mask.shape) {
            return Err(self.refuse("masked", format!("a mask of shape {:?} does not fit", mask.shape)));
        }
        let rest = &self.shape[rank..];
        let rows = self.reshape(&[&[mask.shape.iter().product()], rest].concat())?;
        rows.take(&mask.flat_nonzero()?, 0)
    }
}
