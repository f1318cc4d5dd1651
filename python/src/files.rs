//! Tensors in files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hologram_core::Tensor;
use pyo3::prelude::*;

use crate::device;
use crate::error::{Result, value};
use crate::tensor::PyTensor;

/// Writes a `.npy` file.
#[pyfunction]
pub fn save_npy(py: Python<'_>, path: PathBuf, x: &PyTensor) -> Result<()> {
    let x = x.get()?.tensor;
    Ok(py.detach(|| x.save_npy(path))?)
}

/// Reads a `.npy` file.
#[pyfunction]
#[pyo3(signature = (path, device=None))]
pub fn load_npy(py: Python<'_>, path: PathBuf, device: Option<&Bound<'_, PyAny>>) -> Result<PyTensor> {
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    exists(&path)?;
    Ok(PyTensor::new(py.detach(|| Tensor::load_npy(&executor, path))?, name.into()))
}

/// Writes a safetensors file.
#[pyfunction]
pub fn save_safetensors(py: Python<'_>, path: PathBuf, tensors: BTreeMap<String, Py<PyTensor>>) -> Result<()> {
    let one = |(name, tensor): (String, Py<PyTensor>)| Ok((name, tensor.get().get()?.tensor));
    let all = tensors.into_iter().map(one).collect::<Result<BTreeMap<_, _>>>()?;
    if all.is_empty() {
        return value("there are no tensors to save");
    }
    Ok(py.detach(|| Tensor::save_safetensors(&all, path))?)
}

/// Reads a safetensors file.
#[pyfunction]
#[pyo3(signature = (path, device=None))]
pub fn load_safetensors(
    py: Python<'_>,
    path: PathBuf,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<BTreeMap<String, PyTensor>> {
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    exists(&path)?;
    let all = py.detach(|| Tensor::load_safetensors(&executor, path))?;
    Ok(all.into_iter().map(|(own, tensor)| (own, PyTensor::new(tensor, name.as_str().into()))).collect())
}

/// A missing file is Python's FileNotFoundError.
fn exists(path: &std::path::Path) -> PyResult<()> {
    std::fs::metadata(path).map(drop).map_err(|error| {
        pyo3::exceptions::PyOSError::new_err((error.raw_os_error(), error.to_string(), path.display().to_string()))
    })
}
