//! Sums, means and other reductions of tensors along any of their dimensions.

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
                    self.reduce_all(Reduction::$reduction)
                }
            )*
        }
    };
}

reductions! {
    sum sum_keepdim sum_all Sum "The sum";
    mean mean_keepdim mean_all Mean "The mean";
    prod prod_keepdim prod_all Prod "The product";
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

    fn reduced(&self, reduction: Reduction, dims: &dyn Dims, keep: bool) -> Result<Tensor> {
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
