//! New tensors on a device.

use hologram_core::{DType, Executor, Tensor};
use pyo3::prelude::*;

use crate::device;
use crate::dtype::Wanted;
use crate::error::Result;
use crate::ops::{Core, product};
use crate::tensor::PyTensor;
use crate::wait::worked;

/// Makes a tensor on a device.
pub fn made(
    py: Python<'_>,
    device: Option<&Bound<'_, PyAny>>,
    elements: usize,
    make: impl FnOnce(&Executor) -> Core + Send + 'static,
) -> Result<PyTensor> {
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    let tensor = worked(py, &executor.clone(), elements, move || make(&executor))?;
    Ok(PyTensor::new(tensor?, name.into()))
}

/// A tensor in which every element is a Python number.
#[pyfunction]
#[pyo3(signature = (shape, number, dtype, device=None))]
pub fn full(
    py: Python<'_>,
    shape: Vec<usize>,
    number: &Bound<'_, PyAny>,
    dtype: Wanted,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    let (word, n) = crate::tensor::encode(number, dtype.0)?;
    made(py, device, product(&shape), move |executor| {
        let one = Tensor::from_bytes(executor, DType::Plain(dtype.0), &[], &word[..n])?;
        if shape.contains(&0) {
            return Tensor::empty(executor, DType::Plain(dtype.0), &shape);
        }
        one.broadcast_to(&shape)?.contiguous()
    })
}

/// `start + i·step` for each `i` below `len`.
#[pyfunction]
#[pyo3(signature = (start, step, len, dtype, device=None))]
pub fn arange(
    py: Python<'_>,
    start: f64,
    step: f64,
    len: usize,
    dtype: Wanted,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    made(py, device, len, move |executor| Tensor::arange(executor, dtype.0, start, step, len))
}

/// Uniform or normal random numbers.
#[pyfunction]
#[pyo3(signature = (normal, shape, dtype, seed, counter, device=None))]
pub fn random(
    py: Python<'_>,
    normal: bool,
    shape: Vec<usize>,
    dtype: Wanted,
    seed: u64,
    counter: u64,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    // A number takes about as long as some additions.
    made(py, device, product(&shape).saturating_mul(8), move |executor| match normal {
        true => Tensor::random_normal(executor, dtype.0, &shape, seed, counter),
        false => Tensor::random_uniform(executor, dtype.0, &shape, seed, counter),
    })
}
