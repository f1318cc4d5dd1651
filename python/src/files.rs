//! Tensors in files.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use hologram_core::Tensor;
use pyo3::prelude::*;

use crate::device;
use crate::error::{Result, system, value};
use crate::tensor::PyTensor;
use crate::wait::interruptible;

/// Writes a `.npy` file.
#[pyfunction]
pub fn save_npy(py: Python<'_>, path: PathBuf, x: &PyTensor) -> Result<()> {
    let x = x.get()?;
    crate::tape::refuse("reading elements", &[&x])?;
    let x = x.tensor.clone();
    writable(&path)?;
    Ok(interruptible(py, move || x.save_npy(path))??)
}

/// Reads a `.npy` file.
#[pyfunction]
#[pyo3(signature = (path, device=None))]
pub fn load_npy(py: Python<'_>, path: PathBuf, device: Option<&Bound<'_, PyAny>>) -> Result<PyTensor> {
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    exists(&path)?;
    Ok(PyTensor::new(interruptible(py, move || Tensor::load_npy(&executor, path))??, name.into()))
}

/// Writes a safetensors file.
#[pyfunction]
pub fn save_safetensors(py: Python<'_>, path: PathBuf, tensors: BTreeMap<String, Py<PyTensor>>) -> Result<()> {
    let one = |(name, tensor): (String, Py<PyTensor>)| {
        let inner = tensor.get().get()?;
        crate::tape::refuse("reading elements", &[&inner])?;
        Ok((name, inner.tensor.clone()))
    };
    let all = tensors.into_iter().map(one).collect::<Result<BTreeMap<_, _>>>()?;
    if all.is_empty() {
        return value("there are no tensors to save");
    }
    writable(&path)?;
    Ok(interruptible(py, move || Tensor::save_safetensors(&all, path))??)
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
    let all = interruptible(py, move || Tensor::load_safetensors(&executor, path))??;
    Ok(all.into_iter().map(|(own, tensor)| (own, PyTensor::new(tensor, name.as_str().into()))).collect())
}

/// Checks that a file can be opened for reading.
fn exists(path: &Path) -> PyResult<()> {
    // Some systems open folders, and fail to read them.
    let opened = std::fs::File::open(path).and_then(|mut file| file.read(&mut [0]));
    opened.map(drop).map_err(|error| system(&error, path))
}

/// Checks that a file can be written beside `path` and take its place.
fn writable(path: &Path) -> PyResult<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let probed = match path.is_dir() {
        true => Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)),
        false => {
            let probe = folder.join(format!(".hologram.{}.probe", std::process::id()));
            std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe))
        }
    };
    probed.map_err(|error| system(&error, path))
}
