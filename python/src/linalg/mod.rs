//! Decompositions of matrices, on the host in `f64`: the results of `float32` are rounded once.

mod orthogonal;
mod symmetric;
mod triangles;

use std::sync::Arc;

use hologram_core::Tensor;
use hologram_isa::Type;
use pyo3::prelude::*;

use crate::error::{Result, value, wrong_type};
use crate::tensor::{Inner, PyTensor};
use crate::wait::worked;
use crate::{dtype, tape};
use orthogonal::{Svd, qr, svd};
use symmetric::eigh;
use triangles::{Lu, cholesky};

/// A matrix with its rows as columns.
fn transposed(matrix: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|j| (0..rows).map(move |i| matrix[i * columns + j])).collect()
}

/// Matrices one after another, all of one shape.
struct Matrices {
    batch: Vec<usize>,
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrices {
    fn of(inner: &Inner, py: Python<'_>) -> Result<Matrices> {
        tape::refuse_eager("a decomposition", &[inner])?;
        let ty = inner.ty();
        if !matches!(ty, Type::F32 | Type::F64) {
            return wrong_type(format!("linear algebra takes float32 or float64, not {}", dtype::name(ty)));
        }
        let shape = inner.tensor.shape();
        let [batch @ .., rows, columns] = shape else { return value("a matrix has two dimensions") };
        let bytes = inner.bytes(py)?;
        let values = match ty {
            Type::F64 => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect(),
        };
        Ok(Matrices { batch: batch.to_vec(), rows: *rows, columns: *columns, values })
    }

    fn len(&self) -> usize {
        self.batch.iter().product()
    }

    fn get(&self, index: usize) -> &[f64] {
        let size = self.rows * self.columns;
        &self.values[index * size..(index + 1) * size]
    }

    fn check_square(&self) -> Result<()> {
        let (rows, columns) = (self.rows, self.columns);
        if rows == columns { Ok(()) } else { value(format!("a square matrix is wanted, not {rows} × {columns}")) }
    }
}

/// A tensor beside another, of these elements.
fn tensor(inner: &Inner, shape: &[usize], values: &[f64]) -> Result<PyTensor> {
    let executor = inner.tensor.executor();
    let made = match inner.ty() {
        Type::F64 => Tensor::from_slice(executor, shape, values)?,
        _ => Tensor::from_slice(executor, shape, &values.iter().map(|v| *v as f32).collect::<Vec<_>>())?,
    };
    Ok(inner.beside(made))
}

/// A decomposition of a matrix: its parts.
type Parts = std::result::Result<Vec<Vec<f64>>, &'static str>;

/// Decomposes matrices. `option`: of `cholesky`, whether the triangle is the upper one; of `qr` and `svd`, whether the
/// bases are complete.
#[pyfunction]
#[pyo3(signature = (name, x, option=false))]
pub fn decompose(py: Python<'_>, name: &str, x: &PyTensor, option: bool) -> Result<Vec<PyTensor>> {
    let inner = x.get()?;
    let all = Matrices::of(&inner, py)?;
    let (m, n) = (all.rows, all.columns);
    let least = m.min(n);
    if !matches!(name, "qr" | "svd" | "svdvals") {
        all.check_square()?;
    }
    let basis = |size: usize| if option { size } else { least };
    let flat = |rows: Vec<Vec<f64>>| rows.concat();
    type Of = Box<dyn Fn(&[f64]) -> Parts + Send>;
    let (shapes, of): (Vec<Vec<usize>>, Of) = match name {
        "cholesky" => {
            let of = move |a: &[f64]| -> Parts {
                let lower = cholesky(a, n).ok_or("a matrix is not positive definite")?;
                Ok(vec![if option { transposed(&lower, n, n) } else { lower }])
            };
            (vec![vec![n, n]], Box::new(of))
        }
        "det" => (vec![vec![]], Box::new(move |a| Ok(vec![vec![Lu::of(a, n).determinant()]]))),
        "slogdet" => {
            let of = move |a: &[f64]| -> Parts { Ok(Lu::of(a, n).log_determinant().map(|v| vec![v]).to_vec()) };
            (vec![vec![], vec![]], Box::new(of))
        }
        "eigh" => {
            let of = move |a: &[f64]| -> Parts {
                let (values, vectors): (Vec<f64>, Vec<Vec<f64>>) = eigh(a, n).into_iter().unzip();
                Ok(vec![values, transposed(&vectors.concat(), n, n)])
            };
            (vec![vec![n], vec![n, n]], Box::new(of))
        }
        "qr" => {
            let shapes = vec![vec![m, basis(m)], vec![basis(m), n]];
            (shapes, Box::new(move |a| Ok(qr(a, m, n, option).to_vec())))
        }
        "svdvals" => (vec![vec![least]], Box::new(move |a| Ok(vec![svd(a, m, n, false).values]))),
        "svd" => {
            let of = move |a: &[f64]| -> Parts {
                let Svd { values, left, right } = svd(a, m, n, option);
                let columns = left.len();
                Ok(vec![transposed(&flat(left), columns, m), values, flat(right)])
            };
            (vec![vec![m, basis(m)], vec![least], vec![basis(n), n]], Box::new(of))
        }
        other => return value(format!("there is no decomposition {other}")),
    };
    let batch = all.batch.clone();
    // Singular and eigenvalues take tens of sweeps.
    let steps = all.values.len().saturating_mul(8 * least);
    let count = shapes.len();
    let parts = worked(py, inner.tensor.executor(), steps, move || {
        let mut parts = vec![Vec::new(); count];
        for index in 0..all.len() {
            parts.iter_mut().zip(of(all.get(index))?).for_each(|(all, own)| all.extend(own));
        }
        Ok::<_, &str>(parts)
    })?;
    let parts = match parts {
        Ok(parts) => parts,
        Err(reason) => return value(reason),
    };
    let whole = |shape: &Vec<usize>| [&batch[..], shape].concat();
    shapes.iter().zip(&parts).map(|(shape, values)| tensor(&inner, &whole(shape), values)).collect()
}

/// Solves a · x = b for matrices of the same batch.
#[pyfunction]
pub fn solve(py: Python<'_>, a: &PyTensor, b: &PyTensor) -> Result<PyTensor> {
    let (a, b): (Arc<Inner>, Arc<Inner>) = (a.get()?, b.get()?);
    let (left, right) = (Matrices::of(&a, py)?, Matrices::of(&b, py)?);
    left.check_square()?;
    if left.rows != right.rows || left.batch != right.batch || a.ty() != b.ty() {
        return value(format!("matrices of {:?} and {:?} do not fit", a.tensor.shape(), b.tensor.shape()));
    }
    let steps = left.values.len().saturating_mul(left.rows + right.columns);
    let solved = worked(py, a.tensor.executor(), steps, move || {
        let one = |i: usize| Lu::of(left.get(i), left.rows).solve(right.get(i), right.columns);
        (0..left.len()).map(one).collect::<Option<Vec<_>>>()
    })?;
    let Some(solved) = solved else { return value("a matrix is singular") };
    tensor(&b, b.tensor.shape(), &solved.concat())
}
