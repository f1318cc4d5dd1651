//! `Tensor`: its making, its attributes, and its way to and from Python's objects.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use half::{bf16, f16};
use hologram_core::{DType, Executor, Tensor};
use hologram_isa::Type;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyTuple};

use crate::device;
use crate::dtype::{self, PyDType, Wanted, kind};
use crate::error::{Result, value, wrong_type};
use crate::memory;
use crate::wait::{Ticks, awaited};

/// A tensor on a device. A write by index gives the object new memory: views, and what shares memory with it, keep the
/// old elements.
#[pyclass(frozen, weakref, name = "Tensor", module = "hologram")]
pub struct PyTensor {
    inner: RwLock<Arc<Inner>>,
}

/// What a `Tensor` stands for at a moment.
pub struct Inner {
    pub tensor: Tensor,
    pub device: Arc<str>,
    /// Differs for each tensor that is made.
    pub id: u64,
    generation: u32,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl PyTensor {
    pub fn new(tensor: Tensor, device: Arc<str>) -> PyTensor {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        PyTensor { inner: RwLock::new(Arc::new(Inner { tensor, device, id, generation: device::generation() })) }
    }

    /// The tensor, if it is of this process.
    pub fn get(&self) -> Result<Arc<Inner>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner).clone();
        device::alive(inner.generation)?;
        Ok(inner)
    }
}

impl Inner {
    /// The element type; tensors of Python have plain ones.
    pub fn ty(&self) -> Type {
        match self.tensor.dtype() {
            DType::Plain(ty) => ty,
            _ => Type::F32,
        }
    }

    /// A result on the same device.
    pub fn beside(&self, tensor: Tensor) -> PyTensor {
        PyTensor::new(tensor, self.device.clone())
    }

    /// The result of work of so many steps that waits for the tensor's device, if that has work.
    pub fn awaited<T: Send + 'static>(
        &self,
        py: Python<'_>,
        steps: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        awaited(py, self.tensor.executor(), steps, work)
    }

    /// The bytes of the elements in row-major order.
    pub fn bytes(&self, py: Python<'_>) -> Result<Vec<u8>> {
        crate::tape::refuse("reading elements", &[self])?;
        let tensor = self.tensor.clone();
        Ok(self.awaited(py, tensor.bytes() / 4, move || read(&tensor))??)
    }
}

/// The bytes of a tensor's elements in row-major order.
pub fn read(tensor: &Tensor) -> hologram_core::Result<Vec<u8>> {
    let whole = tensor.contiguous()?;
    let mut bytes = vec![0; whole.bytes()];
    whole.executor().backend().copy_from_buffer(whole.buffer(), whole.offset(), &mut bytes)?;
    Ok(bytes)
}

/// The little-endian bytes of a Python number as an element.
pub fn encode(object: &Bound<'_, PyAny>, ty: Type) -> PyResult<([u8; 8], usize)> {
    let mut out = [0; 8];
    let mut put = |bytes: &[u8]| {
        out[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    macro_rules! integer {
        ($rust:ty) => {{
            let object = object.call_method0("__index__").map_err(|_| not_a(object, ty))?;
            let number = object.extract::<$rust>().map_err(|_| {
                PyOverflowError::new_err(format!("{object} is outside the range of {}", dtype::name(ty)))
            })?;
            put(&number.to_le_bytes())
        }};
    }
    let float = || {
        object.extract::<f64>().map_err(|error| match error.is_instance_of::<PyOverflowError>(object.py()) {
            true => PyOverflowError::new_err(format!("an integer is outside the range of {}", dtype::name(ty))),
            false => not_a(object, ty),
        })
    };
    let n = match ty {
        Type::Bool => put(&[u8::from(object.is_truthy()?)]),
        Type::I8 => integer!(i8),
        Type::U8 => integer!(u8),
        Type::I16 => integer!(i16),
        Type::U16 => integer!(u16),
        Type::I32 => integer!(i32),
        Type::U32 => integer!(u32),
        Type::I64 => integer!(i64),
        Type::U64 => integer!(u64),
        Type::F16 => put(&f16::from_f64(float()?).to_le_bytes()),
        Type::BF16 => put(&bf16::from_f64(float()?).to_le_bytes()),
        Type::F32 => put(&(float()? as f32).to_le_bytes()),
        Type::F64 => put(&float()?.to_le_bytes()),
    };
    Ok((out, n))
}

fn not_a(object: &Bound<'_, PyAny>, ty: Type) -> PyErr {
    let class = object.get_type().name().map_or_else(|_| "this".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{class} is no element of {}", dtype::name(ty)))
}

/// An element as a Python number.
pub fn decode<'py>(py: Python<'py>, bytes: &[u8], ty: Type) -> PyResult<Bound<'py, PyAny>> {
    let mut word = [0u8; 8];
    let n = bytes.len().min(8);
    word[..n].copy_from_slice(&bytes[..n]);
    let raw = u64::from_le_bytes(word);
    Ok(match ty {
        Type::Bool => PyBool::new(py, raw != 0).to_owned().into_any(),
        Type::I8 => (raw as i8).into_pyobject(py)?.into_any(),
        Type::I16 => (raw as i16).into_pyobject(py)?.into_any(),
        Type::I32 => (raw as i32).into_pyobject(py)?.into_any(),
        Type::I64 => (raw as i64).into_pyobject(py)?.into_any(),
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => raw.into_pyobject(py)?.into_any(),
        Type::F16 => PyFloat::new(py, f16::from_bits(raw as u16).to_f64()).into_any(),
        Type::BF16 => PyFloat::new(py, bf16::from_bits(raw as u16).to_f64()).into_any(),
        Type::F32 => PyFloat::new(py, f32::from_bits(raw as u32).into()).into_any(),
        Type::F64 => PyFloat::new(py, f64::from_bits(raw)).into_any(),
    })
}

/// A tensor without dimensions of a Python number.
pub fn scalar(object: &Bound<'_, PyAny>, ty: Type, executor: &Executor) -> Result<Tensor> {
    let (bytes, n) = encode(object, ty)?;
    memory::from_bytes(object.py(), executor, ty, &[], &bytes[..n])
}

/// Numbers of nested lists or tuples.
#[derive(Default)]
struct Nested<'py> {
    shape: Vec<usize>,
    leaves: Vec<Bound<'py, PyAny>>,
}

/// Deepest nesting of lists.
const MAX_DEPTH: usize = 64;

fn flatten<'py>(object: &Bound<'py, PyAny>, depth: usize, out: &mut Nested<'py>, ticks: &mut Ticks) -> Result<()> {
    ticks.tick(object.py())?;
    let list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    if !list {
        if depth != out.shape.len() {
            return value("the nested lists do not have one shape");
        }
        out.leaves.push(object.clone());
        return Ok(());
    }
    if depth >= MAX_DEPTH {
        return value(format!("lists are nested deeper than {MAX_DEPTH}"));
    }
    let n = object.len()?;
    match out.shape.get(depth) {
        None if out.leaves.is_empty() => out.shape.push(n),
        Some(own) if *own == n => {}
        _ => return value("the nested lists do not have one shape"),
    }
    for item in object.try_iter()? {
        flatten(&item?, depth + 1, out, ticks)?;
    }
    Ok(())
}

/// A tensor of a number, or of nested lists of numbers or tensors without dimensions.
#[pyfunction]
#[pyo3(signature = (object, dtype=None, device=None))]
pub fn from_objects(
    object: &Bound<'_, PyAny>,
    dtype: Option<Wanted>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    let py = object.py();
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    let (mut nested, mut ticks) = (Nested::default(), Ticks::default());
    flatten(object, 0, &mut nested, &mut ticks)?;
    for leaf in &mut nested.leaves {
        ticks.tick(py)?;
        if let Ok(tensor) = leaf.cast::<PyTensor>() {
            *leaf = item(tensor.py(), &tensor.get().get()?)?;
        }
    }
    let mut ty = Type::Bool;
    for leaf in nested.leaves.iter().filter(|_| dtype.is_none()) {
        ticks.tick(py)?;
        // A bool is an int to Python.
        let own = if leaf.is_instance_of::<PyBool>() {
            Type::Bool
        } else if leaf.is_instance_of::<PyInt>() {
            Type::I64
        } else if leaf.is_instance_of::<PyFloat>() || leaf.hasattr("__float__")? {
            Type::F32
        } else {
            return wrong_type(format!("{} is no number", leaf.get_type().name()?));
        };
        ty = dtype::promoted(ty, own).unwrap_or(own);
    }
    if nested.leaves.is_empty() {
        ty = Type::F32;
    }
    let mut ty = dtype.map_or(ty, |Wanted(ty)| ty);
    for leaf in nested.leaves.iter().filter(|_| ty == Type::I64) {
        ticks.tick(py)?;
        if leaf.extract::<u64>().is_ok_and(|number| number > i64::MAX as u64) {
            ty = Type::U64;
            break;
        }
    }
    let mut bytes = Vec::with_capacity(nested.leaves.len() * dtype::size(ty));
    for leaf in &nested.leaves {
        ticks.tick(py)?;
        let (word, n) = encode(leaf, ty)?;
        bytes.extend_from_slice(&word[..n]);
    }
    let tensor = memory::from_bytes(py, &executor, ty, &nested.shape, &bytes)?;
    Ok(PyTensor::new(tensor, name.into()))
}

/// A tensor with these bytes, little-endian and in row-major order.
#[pyfunction]
#[pyo3(signature = (data, dtype, shape, device=None))]
pub fn from_bytes(
    py: Python<'_>,
    data: &[u8],
    dtype: Wanted,
    shape: Vec<usize>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    let tensor = memory::from_bytes(py, &executor, dtype.0, &shape, data)?;
    Ok(PyTensor::new(tensor, name.into()))
}

/// The only element of a tensor.
fn item<'py>(py: Python<'py>, inner: &Arc<Inner>) -> Result<Bound<'py, PyAny>> {
    let elements: usize = inner.tensor.shape().iter().product();
    if elements != 1 {
        return value(format!("a tensor of {elements} elements is no single number"));
    }
    Ok(decode(py, &inner.bytes(py)?, inner.ty())?)
}

fn nested_list<'py>(
    py: Python<'py>,
    bytes: &[u8],
    ty: Type,
    shape: &[usize],
    ticks: &mut Ticks,
) -> PyResult<Bound<'py, PyAny>> {
    ticks.tick(py)?;
    let Some((n, rest)) = shape.split_first() else { return decode(py, bytes, ty) };
    let each = rest.iter().product::<usize>() * dtype::size(ty);
    let mut items = Vec::with_capacity(*n);
    for i in 0..*n {
        match nested_list(py, &bytes[i * each..(i + 1) * each], ty, rest, ticks) {
            Ok(item) => items.push(item),
            Err(interrupt) => {
                // Freeing what is there may take as long as making it did.
                py.import("hologram._methods")?.call_method1("free_later", (items,))?;
                return Err(interrupt);
            }
        }
    }
    Ok(PyList::new(py, items)?.into_any())
}

#[pymethods]
impl PyTensor {
    /// Sizes, slowest first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyTuple>> {
        Ok(PyTuple::new(py, self.get()?.tensor.shape())?)
    }

    /// Number of dimensions.
    #[getter]
    fn ndim(&self) -> Result<usize> {
        Ok(self.get()?.tensor.shape().len())
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> Result<usize> {
        Ok(self.get()?.tensor.shape().iter().product())
    }

    /// Bytes of the elements.
    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.get()?.tensor.bytes())
    }

    /// The type of the elements.
    #[getter]
    fn dtype(&self) -> Result<PyDType> {
        Ok(PyDType(self.get()?.ty()))
    }

    /// The name of the device.
    #[getter]
    fn _device(&self) -> Result<String> {
        Ok(self.get()?.device.to_string())
    }

    /// A number that changes when the object gets new memory.
    #[getter]
    fn _id(&self) -> Result<u64> {
        Ok(self.get()?.id)
    }

    /// The address of the first element on its device, as other libraries there know it.
    #[getter]
    fn data_ptr(&self) -> Result<u64> {
        let inner = self.get()?;
        crate::tape::refuse("reading elements", &[&inner])?;
        match inner.tensor.address() {
            Some(address) => Ok(address),
            None => value(format!("memory of {} has no address for other libraries", inner.device)),
        }
    }

    /// The distances, in elements, from one index of each dimension to the next.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyTuple>> {
        Ok(PyTuple::new(py, self.get()?.tensor.strides())?)
    }

    /// Whether the elements lie in row-major order.
    #[getter]
    fn is_contiguous(&self) -> Result<bool> {
        Ok(self.get()?.tensor.is_contiguous())
    }

    /// The only element, as a Python number.
    fn item<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        item(py, &self.get()?)
    }

    /// The elements as nested lists of Python numbers.
    fn tolist<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let inner = self.get()?;
        let bytes = inner.bytes(py)?;
        Ok(nested_list(py, &bytes, inner.ty(), inner.tensor.shape(), &mut Ticks::default())?)
    }

    /// The elements' bytes, little-endian and in row-major order.
    fn tobytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        memory::bytes_object(py, &self.get()?.bytes(py)?)
    }

    /// As `tobytes`, for changing.
    fn _tobytearray<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyByteArray>> {
        memory::bytearray_object(py, &self.get()?.bytes(py)?)
    }

    /// Waits until the tensor is computed.
    fn wait(&self, py: Python<'_>) -> Result<()> {
        let inner = self.get()?;
        let tensor = inner.tensor.clone();
        Ok(inner.awaited(py, 0, move || tensor.wait())??)
    }

    /// Takes the place of this object's tensor.
    fn _rebind(&self, other: &PyTensor) -> Result<()> {
        let other = other.get()?;
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = other;
        Ok(())
    }

    fn __bool__(&self, py: Python<'_>) -> Result<bool> {
        let inner = self.get()?;
        Ok(item(py, &inner)?.is_truthy()?)
    }

    fn __int__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let number = item(py, &self.get()?)?;
        Ok(py.get_type::<PyInt>().call1((number,))?)
    }

    fn __float__(&self, py: Python<'_>) -> Result<f64> {
        Ok(item(py, &self.get()?)?.extract::<f64>()?)
    }

    fn __complex__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let number = item(py, &self.get()?)?;
        Ok(py.import("builtins")?.getattr("complex")?.call1((number,))?)
    }

    fn __index__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let inner = self.get()?;
        if !matches!(kind(inner.ty()), 'i' | 'u') {
            return wrong_type(format!("a tensor of {} is no index", dtype::name(inner.ty())));
        }
        if inner.tensor.shape().iter().product::<usize>() != 1 {
            return wrong_type(format!("a tensor of shape {:?} is no index", inner.tensor.shape()));
        }
        item(py, &inner)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        self.tobytes(py)
    }

    fn __len__(&self) -> Result<usize> {
        match self.get()?.tensor.shape().first() {
            Some(n) => Ok(*n),
            None => wrong_type("a tensor without dimensions has no length"),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> Result<String> {
        let inner = self.get()?;
        let text = shown(py, &inner)?;
        let shape = PyTuple::new(py, inner.tensor.shape())?.repr()?;
        let about = format!("dtype={}, device={:?}", dtype::name(inner.ty()), &*inner.device);
        // Lines after the first stand below the first.
        Ok(format!("Tensor({}, shape={shape}, {about})", text.replace('\n', "\n       ")))
    }

    fn __str__(&self, py: Python<'_>) -> Result<String> {
        shown(py, &self.get()?)
    }
}

/// The elements as text.
fn shown(py: Python<'_>, inner: &Arc<Inner>) -> Result<String> {
    crate::tape::refuse("reading elements", &[inner])?;
    let tensor = inner.tensor.clone();
    let text = inner.awaited(py, 0, move || tensor.to_string())?;
    Ok(text.rsplit_once('\n').map_or(text.clone(), |(elements, _)| elements.to_string()))
}
