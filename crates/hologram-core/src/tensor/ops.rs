//! Operations on tensors apart from the table's elementwise ones: scalars, conversions, operators, and
//! operations along dimensions.

use std::ops;

use hologram_backends::DType;
use hologram_isa::Type;

use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::ops::Reduction;
use crate::tensor::{Axis, Element, Tensor};

impl Tensor {
    /// Waits for the device's work and returns the elements of a `bool` tensor, such as a comparison's result.
    ///
    /// # Errors
    /// When the elements are not `bool`; as [`Tensor::to_vec`].
    pub fn to_bools(&self) -> Result<Vec<bool>> {
        if self.format != DType::Plain(Type::Bool) {
            return Err(CoreError::Tensor(format!("a tensor of {} cannot be read as bool", self.format.name())));
        }
        Ok(self.cast(Type::U8)?.to_vec::<u8>()?.into_iter().map(|v| v != 0).collect())
    }

    /// The element of a tensor that has exactly one.
    ///
    /// # Errors
    /// When there are more or none; as [`Tensor::to_vec`].
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        match self.to_vec()?.as_slice() {
            [value] => Ok(*value),
            values => Err(self.refuse("to_scalar", format!("it has {} elements, not one", values.len()))),
        }
    }

    /// The rows of a matrix.
    ///
    /// # Errors
    /// When there are not two dimensions; as [`Tensor::to_vec`].
    pub fn to_vec2<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        let [rows, columns] = self.shape[..] else {
            return Err(self.refuse("to_vec2", "takes two dimensions".into()));
        };
        let values = self.to_vec()?;
        Ok((0..rows).map(|row| values[row * columns..(row + 1) * columns].to_vec()).collect())
    }

    /// The elements converted to another type, as by [`Graph::cast`](crate::Graph::cast). Block formats are dequantized
    /// first, on the host.
    ///
    /// # Errors
    /// When the type is not plain; errors of the device.
    pub fn to_dtype(&self, to: impl Into<DType>) -> Result<Tensor> {
        let DType::Plain(ty) = to.into() else {
            return Err(self.refuse("to_dtype", "tensors are quantized by Executor::quantize".into()));
        };
        match self.format {
            DType::Plain(own) if own == ty => Ok(self.clone()),
            DType::Plain(_) => self.executor.cached(Call::Cast, &[ty as u64], &[self], |g, v| g.cast(v[0], ty)),
            _ => {
                let mut bytes = vec![0; self.bytes()];
                self.executor.backend().copy_from_buffer(&self.buffer, self.offset, &mut bytes)?;
                let mut values = vec![0.0f32; self.shape.iter().product()];
                self.format.decode_row(&bytes, &mut values)?;
                Tensor::from_slice(&self.executor, &self.shape, &values)?.to_dtype(ty)
            }
        }
    }

    /// As [`Tensor::to_dtype`].
    ///
    /// # Errors
    /// As [`Tensor::to_dtype`].
    pub fn cast(&self, to: impl Into<DType>) -> Result<Tensor> {
        self.to_dtype(to)
    }

    /// A copy in separate memory.
    ///
    /// # Errors
    /// When the format is not plain; errors of the device.
    pub fn copy(&self) -> Result<Tensor> {
        self.executor.cached(Call::Copy, &[], &[self], |g, v| g.copy(v[0]))
    }

    /// The matrix product of the last two dimensions; the others broadcast. A vector is a row on the left and a column
    /// on the right, and the result lacks that dimension. Sums of `f16` and `bf16` are in `f32`.
    ///
    /// # Errors
    /// As [`Graph::batch_matmul`](crate::Graph::batch_matmul).
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        if let [n] = other.shape[..] {
            let product = self.matmul(&other.reshape(&[n, 1])?)?;
            return product.squeeze(-1);
        }
        if let [n] = self.shape[..] {
            return self.reshape(&[1, n])?.matmul(other)?.squeeze(-2);
        }
        self.executor.cached(Call::Matmul, &[], &[self, other], |g, v| g.matmul(v[0], v[1]))
    }

    pub(super) fn reduce_one(&self, reduction: Reduction, dim: usize) -> Result<Tensor> {
        let key = [reduction as u64, dim as u64];
        self.executor.cached(Call::Reduce, &key, &[self], |g, v| g.reduce(v[0], reduction, dim))
    }

    /// The sum, mean, product, greatest or least of all elements.
    ///
    /// # Errors
    /// As [`Graph::reduce_all`](crate::Graph::reduce_all).
    pub fn reduce_all(&self, reduction: Reduction) -> Result<Tensor> {
        self.executor.cached(Call::ReduceAll, &[reduction as u64], &[self], |g, v| g.reduce_all(v[0], reduction))
    }

    /// exp(x) over its sum along a dimension.
    ///
    /// # Errors
    /// As [`Graph::softmax`](crate::Graph::softmax).
    pub fn softmax(&self, dim: impl Axis) -> Result<Tensor> {
        let dim = self.axis("softmax", dim)?;
        self.executor.cached(Call::Softmax, &[dim as u64], &[self], |g, v| g.softmax(v[0], dim))
    }

    /// A dimension of this tensor.
    pub(crate) fn axis(&self, op: &'static str, dim: impl Axis) -> Result<usize> {
        let rank = self.shape.len();
        dim.axis(rank).ok_or_else(|| self.refuse(op, format!("it has no such dimension: it has {rank}")))
    }

    /// An operand without dimensions of this tensor's type.
    fn scalar(&self, value: f64) -> Result<Tensor> {
        let DType::Plain(ty) = self.format else {
            return Err(CoreError::Tensor(format!("there are no scalars of {}", self.format.name())));
        };
        self.executor.scalar(ty, value)
    }
}

/// An operand of an operation on a tensor: a tensor, a number of the tensor's type, or the result of another operation,
/// whose error is passed on. The tensor of a number shares its memory with others of the same value: it is only read.
pub trait Operand {
    /// The operand as a tensor, for an operation on `of`.
    ///
    /// # Errors
    /// The error that it holds; when the tensor's type cannot represent the number.
    fn operand(self, of: &Tensor) -> Result<Tensor>;
}

impl Operand for &Tensor {
    fn operand(self, _of: &Tensor) -> Result<Tensor> {
        Ok(self.clone())
    }
}

impl Operand for &&Tensor {
    fn operand(self, _of: &Tensor) -> Result<Tensor> {
        Ok((*self).clone())
    }
}

impl Operand for Tensor {
    fn operand(self, _of: &Tensor) -> Result<Tensor> {
        Ok(self)
    }
}

impl Operand for Result<Tensor> {
    fn operand(self, _of: &Tensor) -> Result<Tensor> {
        self
    }
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl Operand for $ty {
            fn operand(self, of: &Tensor) -> Result<Tensor> {
                of.scalar(self.into())
            }
        }
    )*};
}
numbers!(f32 f64 i32 u32);

/// Operators for tensors by reference and by value, with a tensor, a result or a number on the right, and
/// a number on the left.
macro_rules! operators {
    ($($operator:ident $method:ident $op:ident;)*) => {
        $(
            operators!(@ $operator $method $op; &Tensor; &Tensor, Tensor, Result<Tensor>, f64);
            operators!(@ $operator $method $op; Tensor; &Tensor, Tensor, Result<Tensor>, f64);
            operators!(@number $operator $method $op; &Tensor, Tensor);
        )*
    };
    (@ $operator:ident $method:ident $op:ident; $left:ty; $($right:ty),*) => {$(
        impl ops::$operator<$right> for $left {
            type Output = Result<Tensor>;
            #[doc = concat!("[`Tensor::", stringify!($op), "`].")]
            fn $method(self, other: $right) -> Result<Tensor> {
                Tensor::$op(&self, other)
            }
        }
    )*};
    (@number $operator:ident $method:ident $op:ident; $($right:ty),*) => {$(
        impl ops::$operator<$right> for f64 {
            type Output = Result<Tensor>;
            #[doc = concat!("[`Tensor::", stringify!($op), "`] of a number and a tensor.")]
            fn $method(self, other: $right) -> Result<Tensor> {
                other.scalar(self)?.$op(other)
            }
        }
    )*};
}
operators! {
    Add add add; Sub sub sub; Mul mul mul; Div div div; Rem rem rem;
    BitAnd bitand and; BitOr bitor or; BitXor bitxor xor; Shl shl shl; Shr shr shr;
}

macro_rules! unary {
    ($($ty:ty),*) => {$(
        impl ops::Neg for $ty {
            type Output = Result<Tensor>;
            /// [`Tensor::neg`].
            fn neg(self) -> Result<Tensor> {
                Tensor::neg(&self)
            }
        }

        impl ops::Not for $ty {
            type Output = Result<Tensor>;
            /// [`Tensor::not`].
            fn not(self) -> Result<Tensor> {
                Tensor::not(&self)
            }
        }
    )*};
}
unary!(&Tensor, Tensor);
