//! DLPack (<https://dmlc.github.io/dlpack>), both ways: tensors and arrays of other libraries over the same memory.
//!
//! A capsule holds a structure of the legacy or the versioned form. Whoever takes it renames the capsule and calls the
//! deleter when it is done; a capsule that was not consumed calls it itself.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use hologram_backends::ForeignPointer;
use hologram_core::dlpack::{
    CPU, CUDA, CUDA_HOST, CUDA_MANAGED, DLManagedTensor, DLManagedTensorVersioned, DLTensor, Exported, IS_COPIED,
    READ_ONLY, VERSION, is_read_only,
};
use hologram_core::{DType, Executor, Tensor};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::device;
use crate::dtype::{name as type_name, size};
use crate::error::{Result, value};
use crate::memory::Array;
use crate::tensor::{Inner, PyTensor};
use crate::wait::worked;

const LEGACY: &CStr = c"dltensor";
const USED_LEGACY: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

fn buffer_error<T>(text: impl Into<String>) -> Result<T> {
    Err(PyBufferError::new_err(text.into()).into())
}

/// DLPack's numbers of a tensor's device.
fn device_of(inner: &Arc<Inner>) -> Result<(i32, i32)> {
    let (kind, number) = inner.device.split_once(':').unwrap_or((&inner.device, "0"));
    match kind {
        "cpu" | "reference" => Ok((CPU, 0)),
        "cuda" => Ok((CUDA, number.parse().unwrap_or(0))),
        other => {
            buffer_error(format!("memory of {other} cannot be given to other libraries: use .to_device(\"cpu\") first"))
        }
    }
}

/// What an exported structure keeps alive.
struct Held {
    exported: Box<Exported>,
    generation: u32,
}

impl Held {
    fn free(context: *mut c_void) {
        // SAFETY: the context is a box of `export`, whose deleter is called once.
        let held = unsafe { Box::from_raw(context.cast::<Held>()) };
        if held.generation != device::generation() {
            // The memory is the parent's.
            std::mem::forget(held.exported);
        }
    }
}

unsafe extern "C" fn free_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: the structure is a box of `export`, and its deleter is called once.
    let managed = unsafe { Box::from_raw(managed) };
    Held::free(managed.context);
}

unsafe extern "C" fn free_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: as in `free_legacy`.
    let managed = unsafe { Box::from_raw(managed) };
    Held::free(managed.context);
}

/// Called when a capsule is destroyed: frees a structure that was not consumed.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls it with a live capsule; a valid name tells which structure it holds.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            free_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) != 0 {
            free_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}

fn export<'py>(py: Python<'py>, inner: &Arc<Inner>, versioned: bool, flags: u64) -> Result<Bound<'py, PyAny>> {
    let (device_type, device_id) = device_of(inner)?;
    let Some((exported, tensor)) = Exported::new(inner.tensor.clone(), [device_type, device_id]) else {
        return buffer_error(format!("memory of {} has no address for other libraries", inner.device));
    };
    let context = Box::into_raw(Box::new(Held { exported, generation: device::generation() })).cast::<c_void>();
    let (pointer, name) = match versioned {
        true => {
            let managed =
                DLManagedTensorVersioned { version: VERSION, context, deleter: Some(free_versioned), flags, tensor };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), VERSIONED)
        }
        false => {
            let managed = DLManagedTensor { tensor, context, deleter: Some(free_legacy) };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), LEGACY)
        }
    };
    // SAFETY: the pointer is not null, the name is static, and the destructor fits both structures.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)) };
    // SAFETY: a new reference, or null with an exception.
    Ok(unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?)
}

#[pymethods]
impl PyTensor {
    /// DLPack's numbers of the device: its kind, and which one of it.
    fn __dlpack_device__(&self) -> Result<(i32, i32)> {
        device_of(&self.get()?)
    }

    /// A capsule with the tensor's memory for another library, which shares it. `stream` is the consumer's on a GPU;
    /// `copy=True` gives it memory of its own. Read-only memory, and a broadcast, are flagged as read-only.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>> {
        let mut inner = self.get()?;
        crate::tape::refuse("reading elements", &[&inner])?;
        let (own, mut flags) = (device_of(&inner)?, 0);
        match dl_device {
            Some(wanted) if wanted != own => {
                if wanted != (CPU, 0) || copy == Some(false) {
                    return buffer_error(format!(
                        "{} is not the device {wanted:?}, and no copy is allowed",
                        inner.device
                    ));
                }
                let (name, executor) = device::open(py, Some("cpu"))?;
                let x = inner.tensor.clone();
                let moved = inner.awaited(py, x.bytes() / 4, move || x.to(&executor))??;
                inner = PyTensor::new(moved, name.into()).get()?;
                flags = IS_COPIED;
            }
            _ if copy == Some(true) => {
                let x = inner.tensor.clone();
                inner = inner.beside(worked(py, inner.tensor.executor(), x.bytes() / 4, move || x.copy())??).get()?;
                flags = IS_COPIED;
            }
            _ => {}
        }
        match device_of(&inner)? {
            (CUDA, _) => {
                let stream = match stream {
                    None => Some(1),
                    Some(-1) => None,
                    Some(0) => return value("stream 0 means two things: use 1 or 2"),
                    Some(stream) => Some(stream as u64),
                };
                if let (Some(stream), Some(streams)) = (stream, inner.tensor.executor().backend().streams()) {
                    // SAFETY: DLPack's protocol: the consumer names a stream of the device.
                    unsafe { streams.make_stream_wait(inner.tensor.buffer(), stream) }?;
                }
            }
            _ if stream.is_some_and(|stream| stream != -1) => return value("a tensor on the CPU takes no stream"),
            // An error of the work that computes it comes here, not with a wrong number.
            _ => py.detach(|| inner.tensor.wait())?,
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= VERSION.major);
        if is_read_only(&inner.tensor) {
            if !versioned {
                return buffer_error(
                    "the tensor is read-only, which DLPack can say from version 1 on: ask for that by max_version, or \
                     for memory of its own by copy=True",
                );
            }
            flags |= READ_ONLY;
        }
        export(py, &inner, versioned, flags)
    }
}

/// A structure that was taken from a capsule: its deleter is called on drop.
enum Taken {
    Legacy(*mut DLManagedTensor),
    Versioned(*mut DLManagedTensorVersioned),
}

// SAFETY: the protocol lets the consumer call the deleter on any thread.
unsafe impl Send for Taken {}
// SAFETY: a shared reference gives nothing.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the structure was taken from its capsule, so that only this calls its deleter.
        unsafe {
            match *self {
                Taken::Legacy(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
                Taken::Versioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
            }
        }
    }
}

impl Taken {
    /// Takes the structure of a capsule.
    fn of(capsule: &Bound<'_, PyAny>) -> Result<Taken> {
        let py = capsule.py();
        if !capsule.is_instance_of::<PyCapsule>() {
            return Err(PyTypeError::new_err(format!(
                "__dlpack__ gave no capsule, but {}",
                capsule.get_type().name()?
            ))
            .into());
        }
        let raw = capsule.as_ptr();
        // SAFETY: the capsule is alive; its name says which structure it holds, and that it was not consumed.
        unsafe {
            for (name, used) in [(VERSIONED, USED_VERSIONED), (LEGACY, USED_LEGACY)] {
                if ffi::PyCapsule_IsValid(raw, name.as_ptr()) == 0 {
                    continue;
                }
                let pointer = ffi::PyCapsule_GetPointer(raw, name.as_ptr());
                if name == VERSIONED {
                    (*pointer.cast::<DLManagedTensorVersioned>()).version.check().or_else(buffer_error)?;
                }
                if ffi::PyCapsule_SetName(raw, used.as_ptr()) != 0 {
                    return Err(PyErr::fetch(py).into());
                }
                return Ok(match name == VERSIONED {
                    true => Taken::Versioned(pointer.cast()),
                    false => Taken::Legacy(pointer.cast()),
                });
            }
        }
        buffer_error("the capsule holds no DLPack tensor, or another consumer took it")
    }

    fn tensor(&self) -> &DLTensor {
        // SAFETY: the structure lives until the deleter is called, on drop.
        unsafe {
            match *self {
                Taken::Legacy(managed) => &(*managed).tensor,
                Taken::Versioned(managed) => &(*managed).tensor,
            }
        }
    }

    fn read_only(&self) -> bool {
        match *self {
            Taken::Legacy(_) => false,
            // SAFETY: as in `tensor`.
            Taken::Versioned(managed) => unsafe { (*managed).flags & READ_ONLY != 0 },
        }
    }
}

fn imported(py: Python<'_>, executor: &Executor, taken: Taken, host: bool, copy: Option<bool>) -> Result<Tensor> {
    // SAFETY: the producer gave as many sizes, and strides if any, as dimensions.
    let of = unsafe { taken.tensor().describe() }.or_else(buffer_error)?;
    let format = DType::Plain(of.ty);
    if of.elements == 0 {
        return Ok(Tensor::empty(executor, format, &of.shape)?);
    }
    let aligned = of.address % size(of.ty) == 0;
    let backwards = of.strides.iter().any(|s| *s < 0);
    if !aligned || backwards {
        if copy == Some(false) || !host {
            let why = if backwards { "has negative strides" } else { "is not aligned to its elements" };
            return buffer_error(format!("an array of {} that {why} needs a copy", type_name(of.ty)));
        }
        let strides = of.strides.iter().map(|stride| *stride as isize * size(of.ty) as isize).collect();
        let array = Array { ty: of.ty, shape: of.shape, strides, address: of.address };
        // SAFETY: the producer promised that its elements are readable until the deleter, which `taken` calls.
        return unsafe { array.copy(py, executor) };
    }
    let (strides, bytes) = of.span().or_else(buffer_error)?;
    let writable = !taken.read_only();
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(taken);
    // SAFETY: the producer promised that its elements may be used until the deleter, which the owner calls; the strides
    // span these bytes.
    let memory = unsafe { ForeignPointer::new(owner, of.address as u64, bytes, writable) };
    let tensor = py.detach(|| Tensor::from_pointer(executor, memory, format, &of.shape, Some(&strides)))?;
    if copy != Some(true) {
        return Ok(tensor);
    }
    Ok(worked(py, executor, of.elements, move || tensor.copy())??)
}

/// A tensor over the memory of an object with `__dlpack__`.
#[pyfunction]
#[pyo3(signature = (object, copy=None))]
pub fn from_dlpack(object: &Bound<'_, PyAny>, copy: Option<bool>) -> Result<PyTensor> {
    let py = object.py();
    let (kind, number) = object.call_method0("__dlpack_device__")?.extract::<(i64, i64)>()?;
    let (wanted, host) = match kind as i32 {
        CPU | CUDA_HOST => ("cpu".to_string(), true),
        CUDA | CUDA_MANAGED => (format!("cuda:{number}"), false),
        other => {
            return buffer_error(format!("arrays on DLPack's device {other} cannot be read: move it to the CPU first"));
        }
    };
    let (name, executor) = device::open(py, Some(&wanted))?;
    let arguments = PyDict::new(py);
    if let Some(streams) = executor.backend().streams().filter(|_| !host) {
        arguments.set_item("stream", streams.stream())?;
    }
    let plain = arguments.copy()?;
    arguments.set_item("max_version", (VERSION.major, VERSION.minor))?;
    // Producers of before DLPack 1.0 do not know the argument.
    let capsule = match object.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method("__dlpack__", (), Some(&plain)),
        result => result,
    }?;
    let taken = Taken::of(&capsule)?;
    let tensor = imported(py, &executor, taken, host, copy)?;
    Ok(PyTensor::new(tensor, name.into()))
}
