//! Operations along a dimension of tensors, one at a time: each method computes what the method of its name on [`Graph`] says.

use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Conv2dOptions, LossReduction};
use crate::tensor::Tensor;

/// One method for each operation of the operands named, with attributes that make its key.
macro_rules! along {
    ($($name:ident($($operand:ident),*; $($attribute:ident: $ty:ty as $key:expr),*) $doc:literal;)*) => {
        impl Tensor {
            $(
                #[doc = $doc]
                #[doc = concat!("As [`Graph::", stringify!($name), "`].")]
                ///
                /// # Errors
                #[doc = concat!("As [`Graph::", stringify!($name), "`]; those of the device.")]
                pub fn $name(&self, $($operand: &Tensor,)* $($attribute: $ty),*) -> Result<Tensor> {
                    let build = |g: &mut Graph, v: &[NodeId]| {
                        let &[x, $($operand),*] = v else {
                            return Err(CoreError::Graph(concat!(stringify!($name), ": unknown operands").into()));
                        };
                        g.$name(x, $($operand,)* $($attribute),*)
                    };
                    self.executor.cached(stringify!($name), &[$($key),*], &[self, $($operand),*], build)
                }
            )*
        }
    };
}

along! {
    arg_max(; dim: usize as dim as u64) "The indices of the greatest elements along a dimension.";
    arg_min(; dim: usize as dim as u64) "The indices of the least elements along a dimension.";
    sort(; dim: usize as dim as u64, descending: bool as descending.into()) "The elements in order along a dimension.";
    arg_sort(; dim: usize as dim as u64, descending: bool as descending.into()) "The indices that put the elements in order.";
    cumsum(; dim: usize as dim as u64) "Cumulative sums along a dimension.";
    log_softmax(; dim: usize as dim as u64) "The logarithm of the softmax along a dimension.";
    take_along(indices; dim: usize as dim as u64) "Elements along a dimension by index.";
    scatter(indices, updates; dim: usize as dim as u64) "The tensor with other elements where indices say.";
    scatter_add(indices, updates; dim: usize as dim as u64) "The tensor with updates added where indices say.";
    rms_norm(w; eps: f32 as eps.to_bits().into()) "Rows by their root mean square, scaled.";
    layer_norm(w, bias; eps: f32 as eps.to_bits().into()) "Rows of mean 0 and variance 1, scaled and moved.";
    mse_loss(target; reduction: LossReduction as reduction as u64) "Squared errors.";
    bce_with_logits(target; reduction: LossReduction as reduction as u64) "Binary cross-entropy of logits.";
    cross_entropy(target; reduction: LossReduction as reduction as u64) "Cross-entropy of rows of logits and their classes.";
}

impl Tensor {
    /// Convolution of images with kernels, and a bias of each output channel. As [`Graph::conv2d`]; the options' own bias does not count.
    ///
    /// # Errors
    /// As [`Graph::conv2d`]; those of the device.
    pub fn conv2d(&self, kernel: &Tensor, bias: Option<&Tensor>, options: &Conv2dOptions) -> Result<Tensor> {
        let Conv2dOptions { stride, padding, dilation, groups, .. } = *options;
        let key =
            [stride, padding, dilation].into_iter().flatten().chain([groups]).map(|n| n as u64).collect::<Vec<_>>();
        let operands: Vec<&Tensor> = [self, kernel].into_iter().chain(bias).collect();
        self.executor.cached("conv2d", &key, &operands, |g, v| {
            g.conv2d(v[0], v[1], &Conv2dOptions { bias: v.get(2).copied(), ..*options })
        })
    }
}
