//! Python's buffer protocol, both ways: NumPy arrays, `memoryview`, `bytes`, `array.array`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use hologram_core::Tensor;
use hologram_isa::Type;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::device;
use crate::dtype::{self, Wanted, size};
use crate::error::{Result, wrong_type};
use crate::memory::{Array, from_bytes, row_major};
use crate::ops::elements;
use crate::tensor::PyTensor;

/// The letter of the struct module for a type; `bfloat16` has none.
fn format(ty: Type) -> Option<&'static CStr> {
    Some(match ty {
        Type::Bool => c"?",
        Type::I8 => c"b",
        Type::U8 => c"B",
        Type::I16 => c"h",
        Type::U16 => c"H",
        Type::I32 => c"i",
        Type::U32 => c"I",
        Type::I64 => c"q",
        Type::U64 => c"Q",
        Type::F16 => c"e",
        Type::F32 => c"f",
        Type::F64 => c"d",
        Type::BF16 => return None,
    })
}

/// The type of a letter of the struct module, by its size, as `l` has that of the platform.
fn parsed(format: &str, bytes: usize) -> Option<Type> {
    let letter = format.trim_start_matches(['@', '=', if cfg!(target_endian = "little") { '<' } else { '>' }]);
    Some(match (letter, bytes) {
        ("?", 1) => Type::Bool,
        ("b" | "h" | "i" | "l" | "q" | "n", 1) => Type::I8,
        ("b" | "h" | "i" | "l" | "q" | "n", 2) => Type::I16,
        ("b" | "h" | "i" | "l" | "q" | "n", 4) => Type::I32,
        ("b" | "h" | "i" | "l" | "q" | "n", 8) => Type::I64,
        ("B" | "H" | "I" | "L" | "Q" | "N" | "c", 1) => Type::U8,
        ("B" | "H" | "I" | "L" | "Q" | "N", 2) => Type::U16,
        ("B" | "H" | "I" | "L" | "Q" | "N", 4) => Type::U32,
        ("B" | "H" | "I" | "L" | "Q" | "N", 8) => Type::U64,
        ("e", 2) => Type::F16,
        ("f", 4) => Type::F32,
        ("d", 8) => Type::F64,
        _ => return None,
    })
}

/// A tensor's first byte in the host's memory; `None` for one on a device of its own memory.
fn address(tensor: &Tensor) -> Option<*mut u8> {
    let base = tensor.buffer().host_address()? as usize;
    Some(ptr::with_exposed_provenance_mut(base + tensor.offset()))
}

/// Row-major, to Python.
const ORDER: std::ffi::c_char = b'C' as std::ffi::c_char;

/// A view that was acquired, released on drop.
struct View(Box<ffi::Py_buffer>);

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view was acquired, and the interpreter is attached: views do not leave this module's functions.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) }
    }
}

/// A copy of an object's buffer; `None` if it has no buffer of a type of ours. `dtype` is another type of the elements'
/// size, which they are taken for.
#[pyfunction]
#[pyo3(signature = (object, device=None, dtype=None))]
pub fn from_buffer(
    object: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
    dtype: Option<Wanted>,
) -> Result<Option<PyTensor>> {
    let py = object.py();
    let mut view = View(Box::new(ffi::Py_buffer::new()));
    // SAFETY: the object is alive, and the view is ours.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view.0, ffi::PyBUF_FULL_RO) } != 0 {
        drop(PyErr::take(py));
        // The view was not acquired.
        std::mem::forget(view);
        return Ok(None);
    }
    let raw = &*view.0;
    let letters = match raw.format.is_null() {
        true => "B".to_string(),
        // SAFETY: the exporter gave a string that lives as long as the view.
        false => unsafe { CStr::from_ptr(raw.format) }.to_string_lossy().into_owned(),
    };
    let Some(ty) = usize::try_from(raw.itemsize).ok().and_then(|bytes| parsed(&letters, bytes)) else {
        return wrong_type(format!("a buffer of elements {letters:?} has no element type here"));
    };
    let rank = usize::try_from(raw.ndim).unwrap_or(0);
    let shape: Vec<usize> = match raw.shape.is_null() {
        true => (rank > 0).then_some(raw.len as usize / size(ty)).into_iter().collect(),
        // SAFETY: the exporter gave as many sizes as dimensions.
        false => unsafe { std::slice::from_raw_parts(raw.shape, rank) }.iter().map(|n| *n as usize).collect(),
    };
    let ty = match dtype {
        Some(Wanted(other)) if size(other) == size(ty) => other,
        Some(Wanted(other)) => return wrong_type(format!("a buffer of {letters:?} is not of {}", dtype::name(other))),
        None => ty,
    };
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    let tensor = if raw.suboffsets.is_null() && !raw.buf.is_null() {
        let strides = match raw.strides.is_null() {
            true => row_major(&shape, size(ty)),
            // SAFETY: the exporter gave as many strides as dimensions.
            false => unsafe { std::slice::from_raw_parts(raw.strides, rank) }.to_vec(),
        };
        let array = Array { ty, shape, strides, address: raw.buf.expose_provenance() };
        // SAFETY: the exporter promised that these elements are readable as long as the view, which is released below.
        unsafe { array.copy(py, &executor) }?
    } else {
        let mut bytes = vec![0u8; raw.len.max(0) as usize];
        let status = match bytes.is_empty() {
            true => 0,
            // SAFETY: the destination has the length of the view, whose elements are copied in row-major order.
            false => unsafe { ffi::PyBuffer_ToContiguous(bytes.as_mut_ptr().cast::<c_void>(), raw, raw.len, ORDER) },
        };
        if status != 0 {
            return Err(PyErr::fetch(py).into());
        }
        from_bytes(py, &executor, ty, &shape, &bytes)?
    };
    drop(view);
    Ok(Some(PyTensor::new(tensor, name.into())))
}

/// What an exported view keeps: the tensor, and the arrays that the view points to.
struct Exported {
    #[expect(dead_code, reason = "held for its drop")]
    tensor: Tensor,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

#[pymethods]
impl PyTensor {
    /// A read-only view of the elements, without a copy. Only of tensors in the host's memory.
    ///
    /// # Safety
    /// Python calls it with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        // SAFETY: the view is the caller's, to be filled; on an error its object is null.
        unsafe { (*view).obj = ptr::null_mut() };
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a tensor's buffer is read-only"));
        }
        let py = slf.py();
        let inner = slf.get().get()?;
        crate::tape::refuse("reading elements", &[&inner])?;
        if flags & ffi::PyBUF_F_CONTIGUOUS == ffi::PyBUF_F_CONTIGUOUS && inner.tensor.shape().len() > 1 {
            return Err(PyBufferError::new_err("a tensor's elements are not in column-major order"));
        }
        let ty = inner.ty();
        let Some(format) = format(ty) else {
            return Err(PyBufferError::new_err(format!("buffers have no format for {}", dtype::name(ty))));
        };
        // Who does not ask for strides of any kind gets row-major elements.
        let asked = |flag: c_int| flags & flag == flag;
        let dense = asked(ffi::PyBUF_C_CONTIGUOUS) || asked(ffi::PyBUF_ANY_CONTIGUOUS);
        let strided = asked(ffi::PyBUF_STRIDES) && !dense;
        let x = inner.tensor.clone();
        let whole = move || {
            let tensor = if strided { x } else { x.contiguous()? };
            tensor.wait().map(|()| tensor)
        };
        let steps = if strided || inner.tensor.is_contiguous() { 0 } else { elements(&inner.tensor) };
        let tensor = inner.awaited(py, steps, whole)?.map_err(crate::error::Error::from)?;
        let Some(data) = address(&tensor) else {
            let text = format!("the tensor is on {}, out of the host's reach: use .to_device(\"cpu\")", inner.device);
            return Err(PyBufferError::new_err(text));
        };
        let shape: Vec<ffi::Py_ssize_t> = tensor.shape().iter().map(|n| *n as ffi::Py_ssize_t).collect();
        let strides = tensor.strides().iter().map(|n| (n * size(ty)) as ffi::Py_ssize_t).collect();
        let bytes = tensor.bytes();
        let mut exported = Box::new(Exported { tensor, shape, strides });
        // SAFETY: the view is the caller's; the arrays live in the box until `__releasebuffer__`, the memory as long
        // as the box's tensor.
        unsafe {
            (*view).buf = data.cast();
            (*view).len = bytes as ffi::Py_ssize_t;
            (*view).readonly = 1;
            (*view).itemsize = size(ty) as ffi::Py_ssize_t;
            (*view).format = match flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
                true => format.as_ptr().cast_mut(),
                false => ptr::null_mut(),
            };
            // Without a shape there is one line of bytes.
            let dimensions = exported.shape.len() as c_int;
            (*view).ndim = if flags & ffi::PyBUF_ND == ffi::PyBUF_ND { dimensions } else { dimensions.min(1) };
            (*view).shape = match flags & ffi::PyBUF_ND == ffi::PyBUF_ND {
                true => exported.shape.as_mut_ptr(),
                false => ptr::null_mut(),
            };
            (*view).strides = match flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES {
                true => exported.strides.as_mut_ptr(),
                false => ptr::null_mut(),
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = Box::into_raw(exported).cast();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    /// Gives a view up.
    ///
    /// # Safety
    /// Python calls it with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` is the box of `__getbuffer__`, released once.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Exported>()) });
    }
}
