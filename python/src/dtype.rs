//! Element types.

use hologram_isa::Type;
use pyo3::prelude::*;

use crate::error::{Error, Result, wrong_type};

/// What NumPy calls each type, in the order of [`Type::ALL`].
const NAMES: [&str; 13] = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64",
];

/// The type of a tensor's elements. It equals itself and nothing else.
#[pyclass(frozen, eq, hash, name = "DType", module = "hologram")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PyDType(pub Type);

#[pymethods]
impl PyDType {
    #[new]
    fn new(name: &str) -> Result<PyDType> {
        by_name(name).map(PyDType)
    }

    /// NumPy's name, such as `float32`.
    #[getter]
    fn name(&self) -> &'static str {
        name(self.0)
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        size(self.0)
    }

    /// `b` for bool, `i` for signed and `u` for unsigned integers, `f` for floats.
    #[getter]
    fn kind(&self) -> char {
        kind(self.0)
    }

    fn __repr__(&self) -> String {
        format!("hologram.{}", name(self.0))
    }

    fn __str__(&self) -> &'static str {
        name(self.0)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let name = name(slf.get().0);
        Ok((slf.get_type(), (name,)).into_pyobject(slf.py())?.into_any().unbind())
    }
}

/// NumPy's name of a type.
pub fn name(ty: Type) -> &'static str {
    Type::ALL.iter().position(|t| *t == ty).map_or("unknown", |at| NAMES[at])
}

/// Bytes of an element.
pub fn size(ty: Type) -> usize {
    hologram_core::DType::Plain(ty).block_bytes()
}

/// The kind of a type, as [`PyDType::kind`] gives it.
pub fn kind(ty: Type) -> char {
    match ty {
        Type::Bool => 'b',
        Type::F16 | Type::BF16 | Type::F32 | Type::F64 => 'f',
        _ if name(ty).starts_with('u') => 'u',
        _ => 'i',
    }
}

fn by_name(text: &str) -> Result<Type> {
    match NAMES.iter().position(|name| *name == text).map(|at| Type::ALL[at]).or(Type::from_name(text)) {
        Some(ty) => Ok(ty),
        None => wrong_type(format!("there is no element type {text:?}: use one of {}", NAMES.join(", "))),
    }
}

/// The type that an argument names: a `DType`, a name, `bool`, `int`, `float`, or anything with a NumPy-like name.
pub fn extract(object: &Bound<'_, PyAny>) -> Result<Type> {
    if let Ok(ty) = object.cast::<PyDType>() {
        return Ok(ty.get().0);
    }
    if let Ok(text) = object.extract::<String>() {
        return by_name(&text);
    }
    let py = object.py();
    for (class, ty) in [
        (py.get_type::<pyo3::types::PyBool>().into_any(), Type::Bool),
        (py.get_type::<pyo3::types::PyInt>().into_any(), Type::I64),
        (py.get_type::<pyo3::types::PyFloat>().into_any(), Type::F32),
    ] {
        if object.is(&class) {
            return Ok(ty);
        }
    }
    // numpy.dtype has a name; numpy.float32 and the like have one as a class.
    for attribute in ["name", "__name__"] {
        if let Some(text) = object.getattr_opt(attribute)?
            && let Ok(text) = text.extract::<String>()
        {
            return by_name(&text);
        }
    }
    wrong_type(format!("{} is no element type", object.repr()?))
}

/// An element type as an argument.
pub struct Wanted(pub Type);

impl<'a, 'py> FromPyObject<'a, 'py> for Wanted {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Wanted> {
        extract(&object.to_owned()).map(Wanted).map_err(Error::into)
    }
}

/// The type of an operation on two types: the wider one, floats before integers. `None`: there is none, for `uint64`
/// with a signed integer.
pub fn promoted(a: Type, b: Type) -> Option<Type> {
    let (small, large) = if rank(a) <= rank(b) { (a, b) } else { (b, a) };
    match (kind(small), kind(large)) {
        _ if small == large => Some(large),
        ('b', _) => Some(large),
        ('f', 'f') if size(small) == size(large) => Some(Type::F32),
        ('f', 'f') | ('i', 'i') | ('u', 'u') => Some(large),
        (_, 'f') => Some(large),
        // One is signed: the smallest signed type that holds both.
        _ => {
            let (signed, unsigned) = if kind(a) == 'i' { (a, b) } else { (b, a) };
            match size(signed).max(2 * size(unsigned)) {
                2 => Some(Type::I16),
                4 => Some(Type::I32),
                8 => Some(Type::I64),
                _ => None,
            }
        }
    }
}

fn rank(ty: Type) -> usize {
    let class = match kind(ty) {
        'b' => 0,
        'f' => 2,
        _ => 1,
    };
    class * 100 + size(ty)
}
