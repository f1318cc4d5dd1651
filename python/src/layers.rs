//! Operations of neural networks with options: losses, convolution, attention.

use hologram_core::ops::{Conv2dOptions, LossReduction};
use pyo3::prelude::*;

use crate::error::{Result, value};
use crate::tape;
use crate::tensor::PyTensor;

/// A loss.
#[pyfunction]
pub fn loss(py: Python<'_>, name: &str, x: &PyTensor, target: &PyTensor, reduction: &str) -> Result<PyTensor> {
    let reduction = match reduction {
        "none" => LossReduction::None,
        "mean" => LossReduction::Mean,
        "sum" => LossReduction::Sum,
        other => return value(format!("there is no reduction {other:?}: use \"none\", \"mean\" or \"sum\"")),
    };
    let inner = x.get()?;
    let target = target.get()?.tensor.clone();
    tape::refuse("a loss", &[&inner])?;
    let result = py.detach(|| match name {
        "mse" => inner.tensor.mse_loss(&target, reduction).map(Some),
        "bce_with_logits" => inner.tensor.bce_with_logits(&target, reduction).map(Some),
        "cross_entropy" => inner.tensor.cross_entropy(&target, reduction).map(Some),
        _ => Ok(None),
    });
    match result? {
        Some(result) => Ok(inner.beside(result)),
        None => value(format!("there is no loss {name:?}")),
    }
}

/// Convolves images with kernels.
#[pyfunction]
#[pyo3(signature = (x, kernel, bias, stride, padding, dilation, groups))]
#[allow(clippy::too_many_arguments)]
pub fn conv2d(
    py: Python<'_>,
    x: &PyTensor,
    kernel: &PyTensor,
    bias: Option<&PyTensor>,
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
) -> Result<PyTensor> {
    let inner = x.get()?;
    tape::refuse("conv2d", &[&inner])?;
    let kernel = kernel.get()?.tensor.clone();
    let bias = bias.map(|bias| bias.get()).transpose()?.map(|bias| bias.tensor.clone());
    let options = Conv2dOptions { stride, padding, dilation, groups, bias: None };
    Ok(inner.beside(py.detach(|| inner.tensor.conv2d(&kernel, bias.as_ref(), &options))?))
}

/// Attention without a cache.
#[pyfunction]
#[pyo3(signature = (q, k, v, scale=None, causal=false))]
pub fn attention(
    py: Python<'_>,
    q: &PyTensor,
    k: &PyTensor,
    v: &PyTensor,
    scale: Option<f64>,
    causal: bool,
) -> Result<PyTensor> {
    let inner = q.get()?;
    tape::refuse("attention", &[&inner])?;
    let (k, v) = (k.get()?.tensor.clone(), v.get()?.tensor.clone());
    let options = hologram_core::TensorAttention { scale, causal };
    Ok(inner.beside(py.detach(|| inner.tensor.attention(&k, &v, &options))?))
}
