//! Sums, means and other reductions of tensors along any of their dimensions.

use hologram_backends::DType;
use hologram_isa::Type;

use super::{Axis, Dims, Tensor};
use crate::error::Result;
use crate::ops::Reduction;

macro_rules! reductions {
    ($($name:ident $keep:ident $all:ident $reduction:ident $doc:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!($doc, " along dimensions, which the result does not have.")]
                ///
                /// # Errors
                /// When the tensor lacks a dimension or its type has no such operation; errors of the device.
                pub fn $name(&self, dims: impl Dims) -> Result<Tensor> {
                    self.reduced(Reduction::$reduction, &dims, false)
                }

                #[doc = concat!($doc, " along dimensions, which have size 1 in the result.")]
                ///
                /// # Errors
                #[doc = concat!("As [`Tensor::", stringify!($name), "`].")]
                pub fn $keep(&self, dims: impl Dims) -> Result<Tensor> {
                    self.reduced(Reduction::$reduction, &dims, true)
                }

                #[doc = concat!($doc, " of all elements.")]
                ///
                /// # Errors
                #[doc = concat!("As [`Tensor::", stringify!($name), "`].")]
                pub fn $all(&self) -> Result<Tensor> {
                    self.reduced(Reduction::$reduction, &(..), false)
                }
            )*
        }
    };
}

/// The type of sums and products of integers of fewer than 32 bits.
fn widened(format: DType) -> Option<Type> {
    match format {
        DType::Plain(Type::I8 | Type::I16 | Type::Bool) => Some(Type::I64),
        DType::Plain(Type::U8 | Type::U16) => Some(Type::U64),
        _ => None,
    }
}

reductions! {
    sum sum_keepdim sum_all Sum "The sum (of 8 and 16 bits and of `bool` in 64 bits)";
    mean mean_keepdim mean_all Mean "The mean";
    prod prod_keepdim prod_all Prod "The product (of 8 and 16 bits and of `bool` in 64 bits)";
    max max_keepdim max_all Max "The greatest element";
    min min_keepdim min_all Min "The least element";
}

impl Tensor {
    /// The sum, mean, product, greatest or least element along a dimension.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn reduce(&self, reduction: Reduction, dim: impl Axis) -> Result<Tensor> {
        let dim = self.axis("reduce", dim)?;
        self.reduce_one(reduction, dim)
    }

    /// The sum, mean, product, greatest or least element along dimensions, which have size 1 in the result with `keep`.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn reduce_over(&self, reduction: Reduction, dims: impl Dims, keep: bool) -> Result<Tensor> {
        self.reduced(reduction, &dims, keep)
    }

    pub(super) fn reduced(&self, reduction: Reduction, dims: &dyn Dims, keep: bool) -> Result<Tensor> {
        if let (Reduction::Sum | Reduction::Prod, Some(wide)) = (reduction, widened(self.format)) {
            return self.cast(wide)?.reduced(reduction, dims, keep);
        }
        let rank = self.shape.len();
        let dims = dims.dims(rank).map_err(|e| self.refuse("reduce", e))?;
        let done = match dims.as_slice() {
            [] => self.clone(),
            [dim] => self.reduce_one(reduction, *dim)?,
            all if all.len() == rank => self.reduce_all(reduction)?,
            several => {
                // Several dimensions are merged into one behind all others, so that the sums are rounded once.
                let others = (0..rank).filter(|dim| !several.contains(dim));
                let order: Vec<usize> = others.clone().chain(several.iter().copied()).collect();
                let mut shape: Vec<usize> = others.map(|dim| self.shape[dim]).collect();
                shape.push(several.iter().map(|dim| self.shape[*dim]).product());
                self.permute(&order)?.reshape(&shape)?.reduce_one(reduction, shape.len() - 1)?
            }
        };
        if !keep {
            return Ok(done);
        }
        let size = |dim: usize| if dims.contains(&dim) { 1 } else { self.shape[dim] };
        done.reshape(&(0..rank).map(size).collect::<Vec<_>>())
    }
}
