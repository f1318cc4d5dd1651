//! Operations on tensors beside the elementwise ones of the table, which has their methods: scalars, conversions, operators, and what
//! works along dimensions.

use std::ops;

use hologram_backends::Format;
use hologram_isa::Type;

use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{Graph, NodeId};
use crate::ops::{Fill, MatmulOptions, Reduction};
use crate::tensor::{Dim, Tensor};

impl Tensor {
    /// A tensor in which every element is `value`, rounded to nearest even for the floats.
    ///
    /// # Errors
    /// When an integer type does not have the value; those of the device.
    pub fn full(executor: &Executor, ty: Type, shape: &[usize], value: f64) -> Result<Tensor> {
        let dims: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        let mut key = vec![ty as u64, value.to_bits()];
        key.extend(shape.iter().map(|n| *n as u64));
        executor.cached(Call::Fill, &key, &[], |g, _| g.fill(value, ty, &dims))
    }

    /// A tensor of truth values.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_bools(executor: &Executor, shape: &[usize], values: &[bool]) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().map(|v| u8::from(*v)).collect();
        Tensor::from_bytes(executor, Format::Plain(Type::Bool), shape, &bytes)
    }

    /// Waits for the device's work and gives the elements of a `bool` tensor, such as a comparison's result.
    ///
    /// # Errors
    /// When the elements are not `bool`; as [`Tensor::to_vec`].
    pub fn to_bools(&self) -> Result<Vec<bool>> {
        if self.format != Format::Plain(Type::Bool) {
            return Err(CoreError::Tensor(format!("a tensor of {} cannot be read as bool", self.format.name())));
        }
        Ok(self.cast(Type::U8)?.to_vec::<u8>()?.into_iter().map(|v| v != 0).collect())
    }

    /// The elements converted to another type, as [`Graph::cast`] does.
    ///
    /// # Errors
    /// When the format is not plain; those of the device.
    pub fn cast(&self, to: Type) -> Result<Tensor> {
        self.executor.cached(Call::Cast, &[to as u64], &[self], |g, v| g.cast(v[0], to))
    }

    /// A copy in memory of its own.
    ///
    /// # Errors
    /// When the format is not plain; those of the device.
    pub fn copy(&self) -> Result<Tensor> {
        self.executor.cached(Call::Copy, &[], &[self], |g, v| g.copy(v[0]))
    }

    /// x between two scalars: `min(max(x, least), greatest)`.
    ///
    /// # Errors
    /// As [`Tensor::clip`]; when an integer type does not have the scalars.
    pub fn clip_scalar(&self, least: f64, greatest: f64) -> Result<Tensor> {
        self.clip(&self.scalar(least)?, &self.scalar(greatest)?)
    }

    /// x to the power of a scalar.
    ///
    /// # Errors
    /// As [`Tensor::pow`].
    pub fn pow_scalar(&self, power: f64) -> Result<Tensor> {
        self.pow(&self.scalar(power)?)
    }

    /// The matrix product of the last two dimensions; those before broadcast. `f32` sums for `f16` and `bf16`.
    ///
    /// # Errors
    /// As [`Graph::batch_matmul`].
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let product =
            |g: &mut Graph, v: &[NodeId]| g.called("matmul", |g| g.batch_matmul(v[0], v[1], &MatmulOptions::default()));
        self.executor.cached(Call::Matmul, &[], &[self, other], product)
    }

    /// Sum, mean, product, greatest or least element along a dimension.
    ///
    /// # Errors
    /// As [`Graph::reduce`].
    pub fn reduce(&self, reduction: Reduction, dim: usize) -> Result<Tensor> {
        let key = [reduction as u64, dim as u64];
        self.executor.cached(Call::Reduce, &key, &[self], |g, v| g.reduce(reduction, v[0], dim))
    }

    /// Sum, mean, product, greatest or least of all elements.
    ///
    /// # Errors
    /// As [`Graph::reduce_all`].
    pub fn reduce_all(&self, reduction: Reduction) -> Result<Tensor> {
        self.executor.cached(Call::ReduceAll, &[reduction as u64], &[self], |g, v| g.reduce_all(reduction, v[0]))
    }

    /// exp(x) over its sum along a dimension.
    ///
    /// # Errors
    /// As [`Graph::softmax_along`].
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        self.executor.cached(Call::Softmax, &[dim as u64], &[self], |g, v| g.softmax_along(v[0], dim))
    }

    /// A tensor without dimensions of this one's type. It is memory, not part of a program, so that each value needs no program of its own.
    fn scalar(&self, value: f64) -> Result<Tensor> {
        let Format::Plain(ty) = self.format else {
            return Err(CoreError::Tensor(format!("there are no scalars of {}", self.format.name())));
        };
        let bytes = Fill::new(value, ty, &[])?.bytes();
        Tensor::from_bytes(&self.executor, self.format, &[], &bytes)
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident $op:ident;)*) => {$(
        impl ops::$operator<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[doc = concat!("[`Tensor::", stringify!($op), "`].")]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                self.$op(other)
            }
        }

        impl ops::$operator<f64> for &Tensor {
            type Output = Result<Tensor>;
            #[doc = concat!("[`Tensor::", stringify!($op), "`] with a scalar of the tensor's type.")]
            fn $method(self, other: f64) -> Result<Tensor> {
                self.$op(&self.scalar(other)?)
            }
        }
    )*};
}
operators! {
    Add add add; Sub sub sub; Mul mul mul; Div div div; Rem rem rem;
    BitAnd bitand and; BitOr bitor or; BitXor bitxor xor; Shl shl shl; Shr shr shr;
}

impl ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    /// [`Tensor::neg`].
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl ops::Not for &Tensor {
    type Output = Result<Tensor>;
    /// [`Tensor::not`].
    fn not(self) -> Result<Tensor> {
        Tensor::not(self)
    }
}
