//! Operations along a dimension of tensors, one at a time: each method computes the result of the [`Graph`]
//! method of the same name.

use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Conv2dOptions, LossReduction, RopeStyle};
use crate::tensor::{Axis, Tensor};

/// One method per operation of these operands, with attributes that are part of its cache key.
macro_rules! along {
    ($($call:ident $name:ident($($operand:ident),*; $([$dim:ident])? $($attribute:ident: $ty:ty as $key:expr),*) $doc:literal;)*) => {
        impl Tensor {
            $(
                #[doc = $doc]
                #[doc = concat!("As [`Graph::", stringify!($name), "`].")]
                ///
                /// # Errors
                #[doc = concat!("As [`Graph::", stringify!($name), "`]; those of the device.")]
                pub fn $name(&self, $($operand: &Tensor,)* $($dim: impl Axis,)? $($attribute: $ty),*) -> Result<Tensor> {
                    $(let $dim = self.axis(stringify!($name), $dim)?;)?
                    let build = |g: &mut Graph, v: &[NodeId]| {
                        let &[x, $($operand),*] = v else {
                            return Err(CoreError::Graph(concat!(stringify!($name), ": an operand is a value of another graph").into()));
                        };
                        g.$name(x, $($operand,)* $($dim,)? $($attribute),*)
                    };
                    self.executor.cached(Call::$call, &[$($dim as u64,)? $($key),*], &[self, $($operand),*], build)
                }
            )*
        }
    };
}

along! {
    ArgMax arg_max(; [dim]) "The indices of the greatest elements along a dimension.";
    ArgMin arg_min(; [dim]) "The indices of the least elements along a dimension.";
    Sort sort(; [dim] descending: bool as descending.into()) "The elements in order along a dimension.";
    ArgSort arg_sort(; [dim] descending: bool as descending.into()) "The indices that put the elements in order.";
    CumSum cumsum(; [dim]) "Cumulative sums along a dimension.";
    CumProd cumprod(; [dim]) "Cumulative products along a dimension.";
    LogSoftmax log_softmax(; [dim]) "The logarithm of the softmax along a dimension.";
    TakeAlong take_along(indices; [dim]) "Elements along a dimension by index.";
    Scatter scatter(indices, updates; [dim]) "The tensor with other elements where indices say.";
    ScatterAdd scatter_add(indices, updates; [dim]) "The tensor with updates added where indices say.";
    RmsNorm rms_norm(w; eps: f32 as eps.to_bits().into()) "Rows by their root mean square, scaled.";
    LayerNorm layer_norm(w, bias; eps: f32 as eps.to_bits().into()) "Rows of mean 0 and variance 1, scaled and moved.";
    Gather gather(ids;) "The rows that ids (`u32 [n]`) name, of a matrix in any weight format, as `f32`.";
    Rope rope(positions, freqs; style: RopeStyle as style as u64) "Heads (`f32 [n, h, d]`) rotated by their positions.";
    MseLoss mse_loss(target; reduction: LossReduction as reduction as u64) "Squared errors.";
    BceWithLogits bce_with_logits(target; reduction: LossReduction as reduction as u64) "Binary cross-entropy of logits.";
    CrossEntropy cross_entropy(target; reduction: LossReduction as reduction as u64) "Cross-entropy of rows of logits and their classes.";
}

impl Tensor {
    /// Convolves images with kernels and adds a bias per output channel, as [`Graph::conv2d`]. The bias in
    /// `options` is ignored.
    ///
    /// # Errors
    /// As [`Graph::conv2d`]; errors of the device.
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

/// Options of [`Tensor::attention`] and [`Graph::dot_product_attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorAttention {
    /// The factor of the products before the softmax; default 1/√d.
    pub scale: Option<f64>,
    /// Whether a query sees only the keys up to its own position. The last query sees all keys.
    pub causal: bool,
}

impl Tensor {
    /// Scaled dot-product attention without a cache: queries `[.., h, n, d]`, keys `[.., k, m, d]` and values
    /// `[.., k, m, e]` give `[.., h, n, e]`, as [`Graph::dot_product_attention`].
    ///
    /// # Errors
    /// As [`Graph::dot_product_attention`]; errors of the device.
    pub fn attention(&self, keys: &Tensor, values: &Tensor, options: &TensorAttention) -> Result<Tensor> {
        let key = [options.scale.map_or(u64::MAX, f64::to_bits), options.causal.into()];
        self.executor.cached(Call::Attention, &key, &[self, keys, values], |g, v| {
            g.dot_product_attention(v[0], v[1], v[2], options)
        })
    }

    /// The elements at these indices (`u32 [n]`) of a dimension.
    ///
    /// # Errors
    /// When the operands do not fit; errors of the device.
    pub fn index_select(&self, indices: &Tensor, dim: impl Axis) -> Result<Tensor> {
        let at = self.axis("index_select", dim)?;
        let [n] = indices.shape() else {
            return Err(self.refuse("index_select", "takes indices of one dimension".into()));
        };
        let mut shape = vec![1; self.shape().len()];
        shape[at] = *n;
        let mut whole = self.shape().to_vec();
        whole[at] = *n;
        self.take_along(&indices.reshape(&shape)?.broadcast_to(&whole)?.contiguous()?, at)
    }
}
