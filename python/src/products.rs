//! Matrix products of any numbers.

use std::sync::Arc;

use hologram_core::ops::Reduction;
use hologram_core::{CoreError, Dim, Graph, NodeId, Tensor};
use hologram_isa::Type;
use pyo3::prelude::*;

use crate::dtype::{self, kind, promoted};
use crate::error::{Result, value, wrong_type};
use crate::ops::{Core, Kind, converted, elements, x_type};
use crate::tape;
use crate::tensor::PyTensor;
use crate::wait::worked;

/// The matrix product of the last two dimensions.
#[pyfunction]
pub fn matmul(py: Python<'_>, a: &PyTensor, b: &PyTensor) -> Result<PyTensor> {
    let (x, y) = (a.get()?, b.get()?);
    let Some(ty) = promoted(x.ty(), y.ty()) else {
        return wrong_type(format!("matmul: {} and {} have no common type", dtype::name(x.ty()), dtype::name(y.ty())));
    };
    Kind::Number.check("matmul", ty)?;
    if x.tensor.shape().is_empty() || y.tensor.shape().is_empty() {
        return value("matmul takes matrices and vectors, not a tensor without dimensions");
    }
    let (left, right) = (x.tensor.clone(), y.tensor.clone());
    let columns = right.shape().last().copied().unwrap_or(1);
    let steps = elements(&left).saturating_mul(if right.shape().len() > 1 { columns } else { 1 });
    let result = worked(py, x.tensor.executor(), steps, move || integer_matmul(&left.cast(ty)?, &right.cast(ty)?))?;
    let result = x.beside(result?);
    let emit = tape::emit(|| {
        let to = [&x, &y].map(|x| (x.ty() != ty).then_some(ty));
        let shapes = [&x, &y].map(|x| x.tensor.shape().to_vec());
        Arc::new(move |g, v| {
            let both = [converted(g, v[0], to[0])?, converted(g, v[1], to[1])?];
            product_in_graph(g, both, &shapes, ty)
        })
    });
    tape::record(emit, &[x, y], &result);
    Ok(result)
}

/// The matrix product of any numbers: of integers as sums of products, in their type.
fn integer_matmul(a: &Tensor, b: &Tensor) -> Core {
    if kind(x_type(a)) == 'f' {
        return a.matmul(b);
    }
    if b.shape().len() == 1 {
        let column = b.reshape(&[b.shape()[0], 1])?;
        return integer_matmul(a, &column)?.squeeze(-1);
    }
    if a.shape().len() == 1 {
        let row = a.reshape(&[1, a.shape()[0]])?;
        return integer_matmul(&row, b)?.squeeze(-2);
    }
    if a.shape().is_empty() || b.shape().is_empty() {
        return Err(CoreError::Tensor("matmul takes at least one dimension".into()));
    }
    let (inner_a, inner_b) = (a.shape()[a.shape().len() - 1], b.shape()[b.shape().len() - 2]);
    if inner_a != inner_b {
        return Err(CoreError::Tensor(format!("matmul: the inner sizes {inner_a} and {inner_b} differ")));
    }
    a.unsqueeze(-1)?.mul(b.unsqueeze(-3)?)?.sum(-2)?.cast(x_type(a))
}

/// The matrix product of two values of one type and these shapes, as `matmul` computes it.
fn product_in_graph(
    g: &mut Graph,
    [mut a, mut b]: [NodeId; 2],
    [left, right]: &[Vec<usize>; 2],
    ty: Type,
) -> hologram_core::Result<NodeId> {
    if let [n] = **left {
        a = g.reshape(a, &tape::fixed(&[1, n]))?;
    }
    if let [n] = **right {
        b = g.reshape(b, &tape::fixed(&[n, 1]))?;
    }
    let mut product = if kind(ty) == 'f' {
        g.matmul(a, b)?
    } else {
        let wide = if kind(ty) == 'u' { Type::U64 } else { Type::I64 };
        let (a, b) = (g.cast(a, wide)?, g.cast(b, wide)?);
        let (mut rows, mut columns) = (g.type_of(a)?.shape.clone(), g.type_of(b)?.shape.clone());
        rows.push(Dim::Fixed(1));
        columns.insert(columns.len().saturating_sub(2), Dim::Fixed(1));
        let (a, b) = (g.reshape(a, &rows)?, g.reshape(b, &columns)?);
        let products = g.mul(a, b)?;
        let dim = g.type_of(products)?.shape.len() - 2;
        let sum = g.reduce(products, Reduction::Sum, dim)?;
        g.cast(sum, ty)?
    };
    // A vector on the left has no rows, one on the right no columns.
    let mut shape = g.type_of(product)?.shape.clone();
    if right.len() == 1 {
        shape.pop();
    }
    if left.len() == 1 {
        shape.remove(shape.len() - if right.len() == 1 { 1 } else { 2 });
    }
    if left.len() == 1 || right.len() == 1 {
        product = g.reshape(product, &shape)?;
    }
    Ok(product)
}
