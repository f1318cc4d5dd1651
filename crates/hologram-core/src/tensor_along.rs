//! Operations along a dimension of tensors, one at a time: each method computes what the method of its name on [`Graph`] says.

use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Conv2dOptions, LossReduction};
use crate::tensor::Tensor;

/// One method for each operation of the operands named, with attributes that make its key.
macro_rules! along {
    ($($call:ident $name:ident($($operand:ident),*; $($attribute:ident: $ty:ty as $key:expr),*) $doc:literal;)*) => {
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
                    self.executor.cached(Call::$call, &[$($key),*], &[self, $($operand),*], build)
                }
            )*
        }
    };
}

along! {
    ArgMax arg_max(; dim: usize as dim as u64) "The indices of the greatest elements along a dimension.";
    ArgMin arg_min(; dim: usize as dim as u64) "The indices of the least elements along a dimension.";
    Sort sort(; dim: usize as dim as u64, descending: bool as descending.into()) "The elements in order along a dimension.";
    ArgSort arg_sort(; dim: usize as dim as u64, descending: bool as descending.into()) "The indices that put the elements in order.";
    CumSum cumsum(; dim: usize as dim as u64) "Cumulative sums along a dimension.";
    LogSoftmax log_softmax(; dim: usize as dim as u64) "The logarithm of the softmax along a dimension.";
    TakeAlong take_along(indices; dim: usize as dim as u64) "Elements along a dimension by index.";
    Scatter scatter(indices, updates; dim: usize as dim as u64) "The tensor with other elements where indices say.";
    ScatterAdd scatter_add(indices, updates; dim: usize as dim as u64) "The tensor with updates added where indices say.";
    RmsNorm rms_norm(w; eps: f32 as eps.to_bits().into()) "Rows by their root mean square, scaled.";
    LayerNorm layer_norm(w, bias; eps: f32 as eps.to_bits().into()) "Rows of mean 0 and variance 1, scaled and moved.";
    MseLoss mse_loss(target; reduction: LossReduction as reduction as u64) "Squared errors.";
    BceWithLogits bce_with_logits(target; reduction: LossReduction as reduction as u64) "Binary cross-entropy of logits.";
    CrossEntropy cross_entropy(target; reduction: LossReduction as reduction as u64) "Cross-entropy of rows of logits and their classes.";
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
        self.executor.cached(Call::Conv2d, &key, &operands, |g, v| {
            g.conv2d(v[0], v[1], &Conv2dOptions { bias: v.get(2).copied(), ..*options })
        })
    }
}
