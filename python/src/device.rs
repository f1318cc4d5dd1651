//! Devices: opened when they are first used, once each, and shared by everything in the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hologram_backends::BackendError;
use hologram_core::{Executor, OpenOptions, Precision};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Error, Result};
use crate::wait::{awaited, interruptible};

/// Rises in the child of a fork: what was opened before is the parent's.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The name of the device that `None` and "auto" mean.
static DEFAULT: Mutex<Option<String>> = Mutex::new(None);

/// The open devices by name.
static OPEN: Mutex<Option<HashMap<String, Executor>>> = Mutex::new(None);

/// The precision of products of `f32` on devices that are opened from now on and have a choice.
static PRECISION: Mutex<Precision> = Mutex::new(Precision::Exact);

/// The current generation.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Checks that something was made in this process.
pub fn alive(made: u32) -> Result<()> {
    if made == generation() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "the device was opened before this process was forked, and its threads and memory stayed with the parent: \
         use multiprocessing's start method \"spawn\", or make tensors and models in the child",
    )
    .into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name under which a device is kept: `cuda` is `cuda:0`.
fn full_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    if name == "cuda" {
        return "cuda:0".into();
    }
    name
}

/// The device of this name, opened if it is not yet, with its full name.
pub fn open(py: Python<'_>, name: Option<&str>) -> Result<(String, Executor)> {
    let default = lock(&DEFAULT).clone();
    let name = match name.filter(|name| !name.eq_ignore_ascii_case("auto")) {
        Some(name) => full_name(name),
        None => match default {
            Some(name) => name,
            None => {
                let executor = interruptible(py, || open_new("auto"))??;
                let name = full_name(executor.info().backend.name());
                let executor = keep(&name, executor);
                if let Some(reason) = executor.fallback() {
                    let warnings = py.import("warnings")?;
                    warnings.call_method1("warn", (format!("hologram: {reason}"),))?;
                }
                *lock(&DEFAULT) = Some(name.clone());
                return Ok((name, executor));
            }
        },
    };
    if let Some(executor) = lock(&OPEN).as_ref().and_then(|open| open.get(&name)) {
        return Ok((name, executor.clone()));
    }
    let new = name.clone();
    let executor = interruptible(py, move || open_new(&new))??;
    let executor = keep(&name, executor);
    Ok((name, executor))
}

/// Opens a device, with the precision if it has it.
fn open_new(name: &str) -> hologram_core::Result<Executor> {
    let options = OpenOptions { precision: *lock(&PRECISION), ..OpenOptions::default() };
    match Executor::open_with(name, &options) {
        Err(hologram_core::CoreError::Backend(BackendError::Unsupported { .. })) => {
            Executor::open_with(name, &OpenOptions::default())
        }
        opened => opened,
    }
}

/// The precision of products of `f32` on NVIDIA GPUs, "exact" or "tf32", before they are used.
#[pyfunction]
pub fn set_float32_precision(name: &str) -> Result<()> {
    let Some(precision) = Precision::from_name(name) else {
        let names = Precision::ALL.map(|precision| format!("{:?}", precision.name())).join(" or ");
        return crate::error::value(format!("the precision is {name:?}, but must be {names}"));
    };
    let open = lock(&OPEN);
    let mut names = open.iter().flatten().map(|(name, _)| name);
    if let Some(name) = names.find(|name| name.starts_with("cuda")).filter(|_| *lock(&PRECISION) != precision) {
        let reason = format!("{name} is in use already: set the precision before the first call that uses it");
        return Err(PyRuntimeError::new_err(reason).into());
    }
    *lock(&PRECISION) = precision;
    Ok(())
}

/// Keeps an open device, unless another thread was faster.
fn keep(name: &str, executor: Executor) -> Executor {
    lock(&OPEN).get_or_insert_default().entry(name.into()).or_insert(executor).clone()
}

/// The default device from now on; `auto` lets the machine decide.
#[pyfunction]
pub fn set_default_device(py: Python<'_>, name: &str) -> Result<()> {
    let name = if name.eq_ignore_ascii_case("auto") { None } else { Some(open(py, Some(name))?.0) };
    *lock(&DEFAULT) = name;
    Ok(())
}

/// The name of the default device, which is opened by this.
#[pyfunction]
pub fn default_device(py: Python<'_>) -> Result<String> {
    Ok(open(py, None)?.0)
}

/// Opens a device; returns its full name.
#[pyfunction]
#[pyo3(signature = (name=None))]
pub fn open_device(py: Python<'_>, name: Option<&str>) -> Result<String> {
    Ok(open(py, name)?.0)
}

/// The devices of this machine as dictionaries, best first, with what is wrong with those that cannot be used.
#[pyfunction]
pub fn devices(py: Python<'_>) -> Result<Vec<Py<PyDict>>> {
    let one = |(name, info): (String, hologram_backends::Result<hologram_core::DeviceInfo>)| -> PyResult<Py<PyDict>> {
        let entry = PyDict::new(py);
        entry.set_item("name", &name)?;
        entry.set_item("available", info.is_ok())?;
        match info {
            Ok(info) => {
                entry.set_item("description", &info.name)?;
                entry.set_item("memory_bytes", info.memory_bytes)?;
                entry.set_item("features", info.features.clone())?;
                entry.set_item("float64", info.capabilities.iter().any(|c| c.to_string() == "f64"))?;
            }
            Err(error) => entry.set_item("reason", error.to_string())?,
        }
        Ok(entry.unbind())
    };
    let found = py.detach(hologram_backends::devices);
    Ok(found.into_iter().map(one).collect::<PyResult<_>>()?)
}

/// What a device counted: launches, bytes copied, memory.
#[pyfunction]
pub fn metrics(py: Python<'_>, name: &str) -> Result<String> {
    Ok(format!("{:?}", open(py, Some(name))?.1.metrics()))
}

/// Waits for all work of a device.
#[pyfunction]
#[pyo3(signature = (name=None))]
pub fn synchronize(py: Python<'_>, name: Option<&str>) -> Result<()> {
    let (_, executor) = open(py, name)?;
    let of = executor.clone();
    Ok(awaited(py, &executor, 0, move || of.synchronize())??)
}

/// Called in the child of a fork: the parent's devices are out of reach, new ones can be opened.
#[pyfunction]
pub fn forked() {
    crate::wait::forked();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // The thread that forked holds the interpreter, so no other one holds these locks for long; one that did left its
    // lock closed in the child, and only then is the child without devices.
    if let Ok(mut open) = OPEN.try_lock() {
        // Dropping a device would wait for threads that the child does not have.
        std::mem::forget(open.take());
    }
}

/// A device as an argument: a name, a `Device`, or `None` for the default.
pub fn name_of(object: Option<&Bound<'_, PyAny>>) -> Result<Option<String>> {
    match object.filter(|object| !object.is_none()) {
        None => Ok(None),
        Some(object) if object.is_instance_of::<pyo3::types::PyString>() => Ok(Some(object.extract::<String>()?)),
        Some(object) => match object.getattr_opt("name")? {
            Some(name) => Ok(Some(name.extract::<String>().map_err(Error::from)?)),
            None => crate::error::wrong_type(format!("{} is no device: use a name such as \"cpu\"", object.repr()?)),
        },
    }
}
