//! Reductions: sums, means and other figures along dimensions.

use std::sync::Arc;

use hologram_core::ops::Reduction;
use hologram_core::{Graph, NodeId, Tensor};
use hologram_isa::Type;
use pyo3::prelude::*;

use crate::dtype::{self, kind};
use crate::error::{Result, value};
use crate::ops::elements;
use crate::tape;
use crate::tensor::PyTensor;
use crate::wait::worked;

/// A reduction in a graph, of a tensor of this type and shape.
fn reduced(
    g: &mut Graph,
    x: NodeId,
    (ty, shape): (Type, &[usize]),
    name: &str,
    dims: &[usize],
    keep: bool,
) -> hologram_core::Result<NodeId> {
    let mut x = x;
    let reduction = match name {
        "sum" | "any" | "all" | "count_nonzero" => Reduction::Sum,
        "mean" => Reduction::Mean,
        "prod" => Reduction::Prod,
        "max" => Reduction::Max,
        _ => Reduction::Min,
    };
    match name {
        "any" | "all" | "count_nonzero" => {
            x = g.cast(x, Type::Bool)?;
            x = if name == "all" { g.not(x)? } else { x };
            x = g.cast(x, Type::U32)?;
        }
        "sum" | "prod" if dtype::size(ty) < 4 && kind(ty) != 'f' => {
            x = g.cast(x, if kind(ty) == 'u' { Type::U64 } else { Type::I64 })?;
        }
        _ => {}
    }
    // The dimensions are merged into one behind all others, so that the sums are rounded once.
    let others: Vec<usize> = (0..shape.len()).filter(|dim| !dims.contains(dim)).collect();
    if !dims.is_empty() {
        let order: Vec<usize> = others.iter().chain(dims).copied().collect();
        let mut sizes: Vec<usize> = others.iter().map(|dim| shape[*dim]).collect();
        sizes.push(dims.iter().map(|dim| shape[*dim]).product());
        x = g.permute(x, &order)?;
        x = g.reshape(x, &tape::fixed(&sizes))?;
        x = g.reduce(x, reduction, others.len())?;
    }
    if keep {
        let size = |dim: usize| if dims.contains(&dim) { 1 } else { shape[dim] };
        x = g.reshape(x, &tape::fixed(&(0..shape.len()).map(size).collect::<Vec<_>>()))?;
    }
    match name {
        "any" | "all" => {
            let zero = g.scalar(Type::U32, 0.0)?;
            if name == "any" { g.gt(x, zero) } else { g.eq(x, zero) }
        }
        "count_nonzero" => g.cast(x, Type::I64),
        _ => Ok(x),
    }
}

/// A reduction; `None` if there is none of this name.
fn reduced_now(name: &str, x: &Tensor, dims: &[i64], keep: bool) -> hologram_core::Result<Option<Tensor>> {
    match (name, keep) {
        ("sum", false) => x.sum(dims).map(Some),
        ("sum", true) => x.sum_keepdim(dims).map(Some),
        ("mean", false) => x.mean(dims).map(Some),
        ("mean", true) => x.mean_keepdim(dims).map(Some),
        ("prod", false) => x.prod(dims).map(Some),
        ("prod", true) => x.prod_keepdim(dims).map(Some),
        ("max", false) => x.max(dims).map(Some),
        ("max", true) => x.max_keepdim(dims).map(Some),
        ("min", false) => x.min(dims).map(Some),
        ("min", true) => x.min_keepdim(dims).map(Some),
        ("any", keep) => x.any(dims, keep).map(Some),
        ("all", keep) => x.all(dims, keep).map(Some),
        ("count_nonzero", keep) => x.count_nonzero(dims, keep).map(Some),
        _ => Ok(None),
    }
}

/// Reduces dimensions (each once, in order); all for `None`.
#[pyfunction]
#[pyo3(signature = (name, x, dims, keepdims=false))]
pub fn reduce(py: Python<'_>, name: &str, x: &PyTensor, dims: Vec<i64>, keepdims: bool) -> Result<PyTensor> {
    let inner = x.get()?;
    let x = &inner.tensor;
    let dims = dims.as_slice();
    let (of, own, along) = (name.to_string(), x.clone(), dims.to_vec());
    let result = worked(py, inner.tensor.executor(), elements(x), move || reduced_now(&of, &own, &along, keepdims))?;
    let Some(result) = result? else { return value(format!("there is no reduction {name}")) };
    let result = inner.beside(result);
    let emit = tape::emit(|| {
        let (name, ty, shape) = (name.to_string(), inner.ty(), x.shape().to_vec());
        let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
        Arc::new(move |g, v| reduced(g, v[0], (ty, &shape), &name, &dims, keepdims))
    });
    tape::record(emit, std::slice::from_ref(&inner), &result);
    Ok(result)
}
