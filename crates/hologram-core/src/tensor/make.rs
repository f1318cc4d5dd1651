//! Tensors made of numbers and of other tensors.

use hologram_backends::DType;
use hologram_isa::Type;

use super::{Axis, Dim, Nested, Tensor};
use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::executor::Executor;

impl Tensor {
    /// A tensor of the numbers and the shape of `data`: `Tensor::new(&executor, &[[1.0f32, 2.0], [3.0, 4.0]])`.
    ///
    /// # Errors
    /// When rows of slices or vectors differ in length; errors of the device.
    pub fn new<A: Nested + ?Sized>(executor: &Executor, data: &A) -> Result<Tensor> {
        let Some(mut shape) = A::reversed_shape(Some(data)) else {
            return Err(CoreError::Tensor("the rows of a tensor must have one shape".into()));
        };
        shape.reverse();
        let mut numbers = Vec::with_capacity(shape.iter().product());
        data.append_to(&mut numbers);
        Tensor::from_slice(executor, &shape, &numbers)
    }

    /// A tensor in which every element is `value`, rounded to nearest even for floats.
    ///
    /// # Errors
    /// When an integer type cannot represent the value, or the format is not plain; errors of the device.
    pub fn full(executor: &Executor, dtype: impl Into<DType>, shape: &[usize], value: f64) -> Result<Tensor> {
        let ty = plain("full", dtype.into())?;
        let dims: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        let mut key = vec![ty as u64, value.to_bits()];
        key.extend(shape.iter().map(|n| *n as u64));
        executor.cached(Call::Fill, &key, &[], |g, _| g.full(ty, &dims, value))
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`Tensor::full`].
    pub fn zeros(executor: &Executor, dtype: impl Into<DType>, shape: &[usize]) -> Result<Tensor> {
        Tensor::full(executor, dtype, shape, 0.0)
    }

    /// A tensor of ones.
    ///
    /// # Errors
    /// As [`Tensor::full`].
    pub fn ones(executor: &Executor, dtype: impl Into<DType>, shape: &[usize]) -> Result<Tensor> {
        Tensor::full(executor, dtype, shape, 1.0)
    }

    /// Zeros of this tensor's type and shape.
    ///
    /// # Errors
    /// As [`Tensor::full`].
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(&self.executor, self.format, &self.shape)
    }

    /// Ones of this tensor's type and shape.
    ///
    /// # Errors
    /// As [`Tensor::full`].
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(&self.executor, self.format, &self.shape)
    }

    /// A tensor of truth values.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_bools(executor: &Executor, shape: &[usize], values: &[bool]) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().map(|v| u8::from(*v)).collect();
        Tensor::from_bytes(executor, DType::Plain(Type::Bool), shape, &bytes)
    }

    /// Concatenates tensors of one type along a dimension. Their sizes may differ only in that dimension.
    ///
    /// # Errors
    /// When there are none, or they do not fit; errors of the device.
    pub fn cat(tensors: &[&Tensor], dim: impl Axis) -> Result<Tensor> {
        match tensors {
            [] => Err(CoreError::Tensor("cat: there are no tensors".into())),
            [first, rest @ ..] => {
                let dim = first.axis("cat", dim)?;
                if rest.is_empty() { Ok((*first).clone()) } else { first.concat(rest, dim) }
            }
        }
    }

    /// Stacks tensors of one type and shape along a new dimension.
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    pub fn stack(tensors: &[&Tensor], dim: impl Axis) -> Result<Tensor> {
        let wide = tensors.iter().map(|tensor| tensor.unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&wide.iter().collect::<Vec<_>>(), dim)
    }

    /// A copy on another device, or the tensor itself if it is already there.
    ///
    /// # Errors
    /// Errors of both devices.
    pub fn to(&self, executor: &Executor) -> Result<Tensor> {
        if self.is_of(executor) {
            return Ok(self.clone());
        }
        let whole = self.contiguous()?;
        let mut bytes = vec![0; whole.bytes()];
        self.executor.backend().copy_from_buffer(&whole.buffer, whole.offset, &mut bytes)?;
        Tensor::from_bytes(executor, self.format, &self.shape, &bytes)
    }
}

/// The type of plain elements.
pub(crate) fn plain(op: &'static str, format: DType) -> Result<Type> {
    match format {
        DType::Plain(ty) => Ok(ty),
        format => Err(CoreError::Tensor(format!("{op}: {} is no type of plain elements", format.name()))),
    }
}
