//! Operations of neural networks with options: losses, convolution, attention.

use std::sync::Arc;

use hologram_core::ops::{Conv2dOptions, LossReduction};
use pyo3::prelude::*;

use crate::error::{Result, value};
use crate::ops::elements;
use crate::tape;
use crate::tensor::PyTensor;
use crate::wait::worked;

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
    let of_target = target.get()?;
    let target = of_target.tensor.clone();
    let (own, x) = (name.to_string(), inner.tensor.clone());
    let result = worked(py, inner.tensor.executor(), elements(&x), move || match own.as_str() {
        "mse" => x.mse_loss(&target, reduction).map(Some),
        "bce_with_logits" => x.bce_with_logits(&target, reduction).map(Some),
        "cross_entropy" => x.cross_entropy(&target, reduction).map(Some),
        _ => Ok(None),
    })?;
    match result? {
        Some(result) => {
            let result = inner.beside(result);
            let name = name.to_string();
            let emit = tape::emit(|| {
                Arc::new(move |g, v| match name.as_str() {
                    "mse" => g.mse_loss(v[0], v[1], reduction),
                    "bce_with_logits" => g.bce_with_logits(v[0], v[1], reduction),
                    _ => g.cross_entropy(v[0], v[1], reduction),
                })
            });
            tape::record(emit, &[inner, of_target], &result);
            Ok(result)
        }
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
    let mut operands = vec![inner.clone(), kernel.get()?];
    operands.extend(bias.map(|bias| bias.get()).transpose()?);
    let options = Conv2dOptions { stride, padding, dilation, groups, bias: None };
    let (image, weight) = (inner.tensor.clone(), operands[1].tensor.clone());
    let bias = operands.get(2).map(|bias| bias.tensor.clone());
    let steps = elements(&image).saturating_mul(elements(&weight));
    let result = inner
        .beside(worked(py, inner.tensor.executor(), steps, move || image.conv2d(&weight, bias.as_ref(), &options))??);
    let emit = tape::emit(|| {
        Arc::new(move |g, v| g.conv2d(v[0], v[1], &Conv2dOptions { bias: v.get(2).copied(), ..options }))
    });
    tape::record(emit, &operands, &result);
    Ok(result)
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
    let (k, v) = (k.get()?, v.get()?);
    let options = hologram_core::TensorAttention { scale, causal };
    let [queries, keys, values] = [&inner, &k, &v].map(|operand| operand.tensor.clone());
    let tokens = keys.shape().iter().rev().nth(1).copied().unwrap_or(1);
    let steps = elements(&queries).saturating_mul(tokens);
    let result = worked(py, inner.tensor.executor(), steps, move || queries.attention(&keys, &values, &options))?;
    let result = inner.beside(result?);
    let emit = tape::emit(|| Arc::new(move |g, n| g.dot_product_attention(n[0], n[1], n[2], &options)));
    tape::record(emit, &[inner, k, v], &result);
    Ok(result)
}
