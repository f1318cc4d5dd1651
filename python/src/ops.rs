//! Operations on tensors: promotion of types as the array API standard has it, then the operation of the core crate.

use std::sync::Arc;

use hologram_core::{CoreError, DType, Dim, Graph, NodeId, Tensor};
use hologram_isa::Type;
use pyo3::exceptions::PyNotImplementedError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::device;
use crate::dtype::{self, Wanted, kind, promoted};
use crate::error::{Result, value, wrong_type};
use crate::products::matmul;
use crate::tape;
use crate::tensor::{Inner, PyTensor, scalar};
use crate::wait::{interruptible, is_long, of_sorting, worked};

pub type Core = hologram_core::Result<Tensor>;

/// Which types an operation computes with.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Floats; integers become floats.
    Float,
    /// Numbers; `bool` is rejected.
    Number,
    /// Integers and `bool`.
    Bits,
    /// Integers.
    Integer,
    /// Floats of 32 and 64 bits; integers become floats.
    Wide,
    /// Everything.
    Any,
}

impl Kind {
    pub fn check(self, name: &str, ty: Type) -> Result<()> {
        let fits = match self {
            Kind::Any | Kind::Float => true,
            Kind::Wide => kind(ty) != 'f' || dtype::size(ty) >= 4,
            Kind::Number => ty != Type::Bool,
            Kind::Bits => kind(ty) != 'f',
            Kind::Integer => matches!(kind(ty), 'i' | 'u'),
        };
        if fits { Ok(()) } else { wrong_type(format!("{} is not defined for {}", public(name), dtype::name(ty))) }
    }
}

/// The name of an operation's function in the package.
fn public(name: &str) -> &str {
    match name {
        "and" => "bitwise_and",
        "or" => "bitwise_or",
        "xor" => "bitwise_xor",
        "not" => "bitwise_invert",
        "shl" => "bitwise_left_shift",
        "shr" => "bitwise_right_shift",
        "neg" => "negative",
        "sub" => "subtract",
        "mul" => "multiply",
        "div" => "divide",
        "eq" => "equal",
        "ne" => "not_equal",
        "lt" => "less",
        "le" => "less_equal",
        "gt" => "greater",
        "ge" => "greater_equal",
        name => name,
    }
}

/// The float that an integer becomes.
fn as_float(ty: Type) -> Type {
    if kind(ty) == 'f' { ty } else { Type::F32 }
}

macro_rules! unary {
    ($name:expr, $x:expr; $($op:ident)*) => {
        match $name {
            $(stringify!($op) => Some(Tensor::$op($x)),)*
            _ => None,
        }
    };
}

macro_rules! binary {
    ($name:expr, $a:expr, $b:expr; $($op:ident)*) => {
        match $name {
            $(stringify!($op) => Some(Tensor::$op($a, $b)),)*
            _ => None,
        }
    };
}

macro_rules! tables {
    (unary $($one:ident)*; binary $($two:ident)*;) => {
        fn unary_core(name: &str, x: &Tensor) -> Option<Core> {
            unary!(name, x; $($one)*)
        }

        fn binary_core(name: &str, a: &Tensor, b: &Tensor) -> Option<Core> {
            binary!(name, a, b; $($two)*)
        }

        /// The operation of this name in a graph.
        pub fn in_graph(name: &str, g: &mut Graph, v: &[NodeId]) -> hologram_core::Result<NodeId> {
            match (name, v) {
                $((stringify!($one), [x]) => g.$one(*x),)*
                $((stringify!($two), [a, b]) => g.$two(*a, *b),)*
                _ => Err(CoreError::Graph(format!("{name} cannot be compiled"))),
            }
        }
    };
}

tables! {
    unary neg abs sqrt rsqrt exp exp2 log log2 sin cos tan tanh asin acos atan sinh cosh asinh acosh atanh expm1 log1p
        log10 erf floor ceil round trunc sign relu sigmoid silu gelu gelu_tanh not signbit isnan isinf isfinite copy;
    binary add sub mul div rem maximum minimum pow atan2 copysign eq ne lt le gt ge and or xor shl shr swiglu relu2_mul
        clamped_swiglu floor_divide remainder hypot logaddexp nextafter;
}

/// A graph value in another type, if it has another.
pub fn converted(g: &mut Graph, x: NodeId, to: Option<Type>) -> hologram_core::Result<NodeId> {
    match to {
        Some(ty) => g.cast(x, ty),
        None => Ok(x),
    }
}

fn kind_of(name: &str) -> Kind {
    match name {
        "add" | "sub" | "mul" | "rem" | "maximum" | "minimum" | "lt" | "le" | "gt" | "ge" | "neg" | "abs" | "relu"
        | "floor_divide" | "remainder" | "pow" | "sign" => Kind::Number,
        "and" | "or" | "xor" | "not" => Kind::Bits,
        "shl" | "shr" => Kind::Integer,
        "eq" | "ne" | "copy" => Kind::Any,
        "nextafter" => Kind::Wide,
        _ => Kind::Float,
    }
}

/// A tensor or a Python number beside a tensor.
enum Side<'py> {
    Tensor(Arc<Inner>),
    Number(Bound<'py, PyAny>),
}

fn side<'py>(object: &Bound<'py, PyAny>) -> Result<Option<Side<'py>>> {
    if let Ok(tensor) = object.cast::<PyTensor>() {
        return Ok(Some(Side::Tensor(tensor.get().get()?)));
    }
    let is_number = |object: &Bound<'py, PyAny>| {
        object.is_instance_of::<PyBool>() || object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>()
    };
    if is_number(object) {
        return Ok(Some(Side::Number(object.clone())));
    }
    // NumPy's numbers, which are of classes of their own.
    let py = object.py();
    let is_array = object.hasattr(intern!(py, "__array_interface__"))?;
    if is_array && object.getattr(intern!(py, "ndim")).and_then(|n| n.extract::<usize>()).is_ok_and(|n| n == 0) {
        let number = object.call_method0(intern!(py, "item"))?;
        return Ok(is_number(&number).then_some(Side::Number(number)));
    }
    Ok(None)
}

/// The type of a number's operation with a tensor of type `ty`: the tensor's, unless its kind cannot hold the number.
fn with_number(ty: Type, number: &Bound<'_, PyAny>) -> Type {
    if number.is_instance_of::<PyBool>() || kind(ty) == 'f' {
        ty
    } else if number.is_instance_of::<PyFloat>() {
        Type::F32
    } else if ty == Type::Bool {
        Type::I64
    } else {
        ty
    }
}

/// The operands of an operation, a number as a tensor, and their common type.
struct Pair {
    first: Arc<Inner>,
    given: [Arc<Inner>; 2],
    ty: Type,
}

/// Both operands in the type that they are promoted to. `None`: one is neither a tensor nor a number.
fn operands(name: &str, kind: Kind, a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> Result<Option<Pair>> {
    let (Some(left), Some(right)) = (side(a)?, side(b)?) else { return Ok(None) };
    let (first, ty) = match (&left, &right) {
        (Side::Tensor(x), Side::Tensor(y)) => {
            if x.device != y.device {
                return value(format!(
                    "{}: one tensor is on {}, the other on {}: move one by to_device",
                    public(name),
                    x.device,
                    y.device
                ));
            }
            let Some(ty) = promoted(x.ty(), y.ty()) else {
                let (x, y) = (dtype::name(x.ty()), dtype::name(y.ty()));
                let name = public(name);
                return wrong_type(format!("{name}: {x} and {y} have no common type: convert one by astype"));
            };
            (x.clone(), ty)
        }
        (Side::Tensor(x), Side::Number(number)) | (Side::Number(number), Side::Tensor(x)) => {
            (x.clone(), with_number(x.ty(), number))
        }
        _ => return Ok(None),
    };
    kind.check(name, ty)?;
    let ty = if matches!(kind, Kind::Float | Kind::Wide) { as_float(ty) } else { ty };
    let given = |side: Side<'_>| -> Result<Arc<Inner>> {
        match side {
            Side::Tensor(x) => Ok(x),
            Side::Number(number) => first.beside(scalar(&number, ty, first.tensor.executor())?).get(),
        }
    };
    let given = [given(left)?, given(right)?];
    Ok(Some(Pair { first, given, ty }))
}

fn two(py: Python<'_>, name: &str, a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> Result<Option<PyTensor>> {
    let Some(Pair { first, given, ty }) = operands(name, kind_of(name), a, b)? else {
        return Ok(None);
    };
    let compute = move |name: &str, x: &Tensor, y: &Tensor| -> hologram_core::Result<Option<Tensor>> {
        let convert = |x: &Tensor| (x_type(x) != ty).then(|| x.cast(ty)).transpose();
        let (left, right) = (convert(x)?, convert(y)?);
        binary_core(name, left.as_ref().unwrap_or(x), right.as_ref().unwrap_or(y)).transpose()
    };
    let [x, y] = [0, 1].map(|k| &given[k].tensor);
    let result = if is_long(first.tensor.executor(), elements(x).max(elements(y))) {
        let (name, x, y) = (name.to_string(), x.clone(), y.clone());
        interruptible(py, move || compute(&name, &x, &y))?
    } else {
        py.detach(|| compute(name, x, y))
    };
    let Some(result) = result? else {
        return Err(PyNotImplementedError::new_err(format!("there is no operation {name}")).into());
    };
    let result = first.beside(result);
    let emit = tape::emit(|| {
        let name = name.to_string();
        let to = [&given[0], &given[1]].map(|x| (x.ty() != ty).then_some(ty));
        Arc::new(move |g, v| {
            let both = [converted(g, v[0], to[0])?, converted(g, v[1], to[1])?];
            in_graph(&name, g, &both)
        })
    });
    tape::record(emit, &given, &result);
    Ok(Some(result))
}

/// An elementwise operation of one or two operands, tensors or numbers (one is a tensor).
#[pyfunction]
#[pyo3(signature = (name, a, b=None))]
pub fn elementwise(py: Python<'_>, name: &str, a: &Bound<'_, PyAny>, b: Option<&Bound<'_, PyAny>>) -> Result<PyTensor> {
    if let Some(b) = b {
        return match two(py, name, a, b)? {
            Some(result) => Ok(result),
            None => {
                let (a, b) = (a.get_type().name()?, b.get_type().name()?);
                wrong_type(format!("{} takes tensors, or a tensor and a number, not {a} and {b}", public(name)))
            }
        };
    }
    let x = tensor(name, a)?;
    let own = kind_of(name);
    own.check(name, x.ty())?;
    let to = (own == Kind::Float && kind(x.ty()) != 'f').then_some(Type::F32);
    // The magnitude of an unsigned integer is itself.
    let same = kind(x.ty()) == 'u' && matches!(name, "abs" | "relu");
    let wraps = kind(x.ty()) == 'u' && name == "neg";
    let compute = move |name: &str, x: &Tensor| -> hologram_core::Result<Option<Tensor>> {
        let x = to.map_or_else(|| Ok(x.clone()), |ty| x.cast(ty))?;
        match () {
            () if same => Ok(Some(x)),
            () if wraps => Tensor::zeros(x.executor(), x.dtype(), &[])?.sub(&x).map(Some),
            () => unary_core(name, &x).transpose(),
        }
    };
    let result = if is_long(x.tensor.executor(), elements(&x.tensor)) {
        let (name, x) = (name.to_string(), x.tensor.clone());
        interruptible(py, move || compute(&name, &x))?
    } else {
        py.detach(|| compute(name, &x.tensor))
    };
    let Some(result) = result? else {
        // Python's None came as no second operand.
        let name = public(name);
        return wrong_type(format!("{name} takes tensors, or a tensor and a number, not Tensor and NoneType"));
    };
    let emit = tape::emit(|| {
        let (name, ty) = (name.to_string(), x.ty());
        Arc::new(move |g, v| match () {
            () if same => Ok(v[0]),
            () if wraps => {
                let zero = g.scalar(ty, 0.0)?;
                g.sub(zero, v[0])
            }
            () => {
                let x = converted(g, v[0], to)?;
                in_graph(&name, g, &[x])
            }
        })
    });
    let result = x.beside(result);
    tape::record(emit, &[x], &result);
    Ok(result)
}

pub fn x_type(x: &Tensor) -> Type {
    if let DType::Plain(ty) = x.dtype() { ty } else { Type::F32 }
}

fn tensor(name: &str, object: &Bound<'_, PyAny>) -> Result<Arc<Inner>> {
    match object.cast::<PyTensor>() {
        Ok(tensor) => tensor.get().get(),
        Err(_) => wrong_type(format!("{} takes a tensor, not {}", public(name), object.get_type().name()?)),
    }
}

macro_rules! operators {
    ($($left:ident $right:ident $name:literal;)*) => {
        #[pymethods]
        impl PyTensor {
            $(
                fn $left<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> Result<Py<PyAny>> {
                    operator(slf.py(), $name, slf.as_any(), other)
                }

                fn $right<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> Result<Py<PyAny>> {
                    operator(slf.py(), $name, other, slf.as_any())
                }
            )*

            fn __pow__<'py>(
                slf: &Bound<'py, Self>,
                other: &Bound<'py, PyAny>,
                modulo: Option<&Bound<'py, PyAny>>,
            ) -> Result<Py<PyAny>> {
                power(slf.as_any(), other, modulo)
            }

            fn __rpow__<'py>(
                slf: &Bound<'py, Self>,
                other: &Bound<'py, PyAny>,
                modulo: Option<&Bound<'py, PyAny>>,
            ) -> Result<Py<PyAny>> {
                power(other, slf.as_any(), modulo)
            }

            fn __neg__(slf: &Bound<'_, Self>) -> Result<PyTensor> {
                elementwise(slf.py(), "neg", slf.as_any(), None)
            }

            fn __pos__(slf: &Bound<'_, Self>) -> Result<PyTensor> {
                let inner = slf.get().get()?;
                Kind::Number.check("positive", inner.ty())?;
                let result = inner.beside(inner.tensor.clone());
                tape::record(tape::emit(|| Arc::new(|_, v| Ok(v[0]))), &[inner], &result);
                Ok(result)
            }

            fn __abs__(slf: &Bound<'_, Self>) -> Result<PyTensor> {
                elementwise(slf.py(), "abs", slf.as_any(), None)
            }

            fn __invert__(slf: &Bound<'_, Self>) -> Result<PyTensor> {
                elementwise(slf.py(), "not", slf.as_any(), None)
            }

            fn __richcmp__<'py>(
                slf: &Bound<'py, Self>,
                other: &Bound<'py, PyAny>,
                op: pyo3::pyclass::CompareOp,
            ) -> Result<Py<PyAny>> {
                use pyo3::pyclass::CompareOp::*;
                let name = match op {
                    Eq => "eq",
                    Ne => "ne",
                    Lt => "lt",
                    Le => "le",
                    Gt => "gt",
                    Ge => "ge",
                };
                operator(slf.py(), name, slf.as_any(), other)
            }
        }
    };
}

operators! {
    __add__ __radd__ "add";
    __sub__ __rsub__ "sub";
    __mul__ __rmul__ "mul";
    __truediv__ __rtruediv__ "div";
    __floordiv__ __rfloordiv__ "floor_divide";
    __mod__ __rmod__ "remainder";
    __and__ __rand__ "and";
    __or__ __ror__ "or";
    __xor__ __rxor__ "xor";
    __lshift__ __rlshift__ "shl";
    __rshift__ __rrshift__ "shr";
    __matmul__ __rmatmul__ "matmul";
}

fn power(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>, modulo: Option<&Bound<'_, PyAny>>) -> Result<Py<PyAny>> {
    match modulo {
        Some(modulo) if !modulo.is_none() => wrong_type("pow of tensors takes no modulus"),
        _ => operator(a.py(), "pow", a, b),
    }
}

fn operator(py: Python<'_>, name: &str, a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> Result<Py<PyAny>> {
    let result = match name {
        "matmul" => match (a.cast::<PyTensor>(), b.cast::<PyTensor>()) {
            (Ok(a), Ok(b)) => Some(matmul(py, a.get(), b.get())?),
            _ => None,
        },
        name => two(py, name, a, b)?,
    };
    match result {
        Some(result) => Ok(Py::new(py, result)?.into_any()),
        None => Ok(py.NotImplemented()),
    }
}

/// The number of elements.
pub fn elements(x: &Tensor) -> usize {
    product(x.shape())
}

/// The product of sizes, or the greatest number if it is greater.
pub fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
}

/// Steps of a function on a tensor; views take none.
fn steps_of(name: &str, x: &Tensor) -> usize {
    match name {
        "permute" | "broadcast_to" | "slice" | "detach" | "straight_through" => 0,
        "reshape" | "contiguous" if x.is_contiguous() => 0,
        "sort" | "arg_sort" => of_sorting(elements(x)),
        _ => elements(x),
    }
}

/// Defines functions of a tensor, further operands, and attributes: at once, and in a graph that is recorded.
macro_rules! methods {
    ($($name:ident($x:ident $(, $operand:ident)*; $($attribute:ident: $ty:ty),*) $body:expr, $graph:expr;)*) => {
        $(
            #[pyfunction]
            #[allow(clippy::too_many_arguments)]
            pub fn $name(
                py: Python<'_>,
                $x: &PyTensor
                $(, $operand: &PyTensor)* $(, $attribute: $ty)*
            ) -> Result<PyTensor> {
                let all = [$x.get()? $(, $operand.get()?)*];
                let emit = tape::emit(|| {
                    $(let $attribute = $attribute.clone();)*
                    Arc::new(move |g, v| tape::call(g, v, $graph))
                });
                let [$x $(, $operand)*] = all.each_ref().map(|inner| inner.tensor.clone());
                let steps = steps_of(stringify!($name), &$x);
                let result: Core = worked(py, all[0].tensor.executor(), steps, move || $body)?;
                let result = all[0].beside(result?);
                tape::record(emit, &all, &result);
                Ok(result)
            }
        )*
    };
}

methods! {
    cast(x; dtype: Wanted) x.cast(dtype.0), |g, v| g.cast(v[0], dtype.0);
    reshape(x; shape: Vec<usize>) x.reshape(&shape), |g, v| g.reshape(v[0], &tape::fixed(&shape));
    permute(x; order: Vec<usize>) x.permute(&order), |g, v| g.permute(v[0], &order);
    broadcast_to(x; shape: Vec<usize>) x.broadcast_to(&shape), |g, v| g.broadcast_to(v[0], &tape::fixed(&shape));
    slice(x; dim: usize, start: usize, end: usize) x.slice(dim, start, end), |g, v| g.slice(v[0], dim, start, end);
    contiguous(x;) x.contiguous(), |g, v| g.contiguous(v[0]);
    detach(x;) Ok(x.clone()), |g, v| g.detach(v[0]);
    straight_through(x, y;) same(&x, y), |g, v| g.straight_through(v[0], v[1]);
    sort(x; dim: usize, descending: bool) x.sort(dim, descending), |g, v| g.sort(v[0], dim, descending);
    arg_sort(x; dim: usize, descending: bool) x.arg_sort(dim, descending), |g, v| g.arg_sort(v[0], dim, descending);
    arg_max(x; dim: usize) x.arg_max(dim), |g, v| g.arg_max(v[0], dim);
    arg_min(x; dim: usize) x.arg_min(dim), |g, v| g.arg_min(v[0], dim);
    cumsum(x; dim: usize) x.cumsum(dim), |g, v| g.cumsum(v[0], dim);
    cumprod(x; dim: usize) x.cumprod(dim), |g, v| g.cumprod(v[0], dim);
    softmax(x; dim: usize) x.softmax(dim), |g, v| g.softmax(v[0], dim);
    log_softmax(x; dim: usize) x.log_softmax(dim), |g, v| g.log_softmax(v[0], dim);
    take_along(x, indices; dim: usize) x.take_along(&indices, dim), |g, v| g.take_along(v[0], v[1], dim);
    scatter(x, indices, updates; dim: usize) x.scatter(&indices, &updates, dim),
        |g, v| g.scatter(v[0], v[1], v[2], dim);
    scatter_add(x, indices, updates; dim: usize) x.scatter_add(&indices, &updates, dim),
        |g, v| g.scatter_add(v[0], v[1], v[2], dim);
    select(condition, a, b;) condition.select(&a, &b), |g, v| g.select(v[0], v[1], v[2]);
    clip(x, least, greatest;) x.clip(&least, &greatest), |g, v| g.clip(v[0], v[1], v[2]);
    rms_norm(x, weight; eps: f32) x.rms_norm(&weight, eps), |g, v| g.rms_norm(v[0], v[1], eps);
    layer_norm(x, weight, bias; eps: f32) x.layer_norm(&weight, &bias, eps), |g, v| g.layer_norm(v[0], v[1], v[2], eps);
    gather(x, ids;) x.gather(&ids), |g, v| g.gather(v[0], v[1]);
    pad(x; sides: Vec<(usize, usize)>, with_: f64) x.pad(&sides, with_), |g, v| g.pad(v[0], &sides, with_);
}

/// Defines functions of a tensor, further operands, and attributes that no graph has.
macro_rules! eager {
    ($($name:ident($x:ident $(, $operand:ident)*; $($attribute:ident: $ty:ty),*) $body:expr;)*) => {
        $(
            #[pyfunction]
            pub fn $name(
                py: Python<'_>,
                $x: &PyTensor
                $(, $operand: &PyTensor)* $(, $attribute: $ty)*
            ) -> Result<PyTensor> {
                let all = [$x.get()? $(, $operand.get()?)*];
                tape::refuse_eager(stringify!($name), &all.each_ref().map(|inner| &**inner))?;
                let [$x $(, $operand)*] = all.each_ref().map(|inner| inner.tensor.clone());
                let steps = of_sorting(0 $(.max(elements(&$operand)))*);
                let result: Core = worked(py, all[0].tensor.executor(), steps, move || $body)?;
                Ok(all[0].beside(result?))
            }
        )*
    };
}

eager! {
    search_sorted(x, values; right: bool) x.search_sorted(&values, right);
}

/// `count` indices of a dimension: `start`, `start + step` and so on, all of which it has.
#[pyfunction]
pub fn slice_step(py: Python<'_>, x: &PyTensor, dim: usize, start: i64, step: i64, count: i64) -> Result<PyTensor> {
    let inner = x.get()?;
    let size = inner.tensor.shape().get(dim).map_or(0, |n| *n as i64);
    let last = step.checked_mul((count - 1).max(0)).and_then(|way| way.checked_add(start));
    let inside = |at: i64| (0..size).contains(&at);
    let fits = count == 0 || (count > 0 && inside(start) && last.is_some_and(inside));
    let Some(last) = last.filter(|_| fits && step != 0) else {
        return value(format!("{count} indices from {start} on with the step {step} are not in a dimension of {size}"));
    };
    let stop = if step > 0 { Some(last + 1) } else { (last > 0).then_some(last - 1) };
    let x = inner.tensor.clone();
    let result = worked(py, inner.tensor.executor(), product(x.shape()), move || match count {
        0 => x.slice(dim, 0, 0),
        _ => x.slice_step(dim, Some(start), stop, step),
    })?;
    let result = inner.beside(result?);
    let emit = tape::emit(|| {
        Arc::new(move |g, v| {
            if count == 0 {
                return g.slice(v[0], dim, 0, 0);
            }
            let places = g.arange(Type::I64, start as f64, step as f64, Dim::Fixed(count as usize))?;
            let places = g.cast(places, Type::U32)?;
            g.take_along(v[0], places, dim)
        })
    });
    tape::record(emit, &[inner], &result);
    Ok(result)
}

/// The second of two tensors of one float type and shape.
fn same(x: &Tensor, y: Tensor) -> Core {
    if x.dtype() == y.dtype() && x.shape() == y.shape() {
        return Ok(y);
    }
    Err(CoreError::Tensor(format!("straight_through takes two tensors of one type and shape, not {x:?} and {y:?}")))
}

/// Concatenates tensors of one type along a dimension.
#[pyfunction]
pub fn concat(py: Python<'_>, tensors: Vec<Bound<'_, PyTensor>>, dim: usize) -> Result<PyTensor> {
    let all = tensors.iter().map(|t| t.get().get()).collect::<Result<Vec<_>>>()?;
    let Some(first) = all.first() else { return value("there are no tensors to concatenate") };
    let cores: Vec<Tensor> = all.iter().map(|t| t.tensor.clone()).collect();
    let steps = cores.iter().map(elements).fold(0, usize::saturating_add);
    let result = worked(py, first.tensor.executor(), steps, move || {
        // One operation takes up to 64.
        let join = |part: &[Tensor]| Tensor::cat(&part.iter().collect::<Vec<_>>(), dim);
        let mut parts = cores.chunks(64).map(join).collect::<hologram_core::Result<Vec<_>>>()?;
        while parts.len() > 1 {
            parts = parts.chunks(64).map(join).collect::<hologram_core::Result<Vec<_>>>()?;
        }
        parts.pop().ok_or_else(|| CoreError::Tensor("there are no tensors to concatenate".into()))
    })?;
    let result = first.beside(result?);
    let emit = tape::emit(|| {
        Arc::new(move |g, v| {
            let mut parts = v.to_vec();
            while parts.len() > 1 {
                parts = parts.chunks(64).map(|part| g.cat(part, dim)).collect::<hologram_core::Result<_>>()?;
            }
            parts.pop().ok_or_else(|| CoreError::Graph("nothing is concatenated".into()))
        })
    });
    tape::record(emit, &all, &result);
    Ok(result)
}

/// A copy on a device, or the tensor itself if it is there.
#[pyfunction]
#[pyo3(signature = (x, device=None))]
pub fn to_device(py: Python<'_>, x: &PyTensor, device: Option<&Bound<'_, PyAny>>) -> Result<PyTensor> {
    let inner = x.get()?;
    let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
    let x = inner.tensor.clone();
    let moved = match *name == *inner.device {
        true => x,
        false => inner.awaited(py, elements(&x), move || x.to(&executor))??,
    };
    let moved = PyTensor::new(moved, name.into());
    if moved.get()?.device != inner.device {
        tape::refuse_eager("a copy to another device", &[&inner])?;
    }
    tape::record(tape::emit(|| Arc::new(|_, v| Ok(v[0]))), &[inner], &moved);
    Ok(moved)
}

/// The promoted type of two types; an error if there is none.
#[pyfunction]
pub fn promote_types(a: Wanted, b: Wanted) -> Result<crate::dtype::PyDType> {
    match promoted(a.0, b.0) {
        Some(ty) => Ok(crate::dtype::PyDType(ty)),
        None => wrong_type(format!("{} and {} have no common type", dtype::name(a.0), dtype::name(b.0))),
    }
}

/// The indices of the elements that are not zero, one tensor per dimension.
#[pyfunction]
pub fn nonzero(py: Python<'_>, x: &PyTensor) -> Result<Vec<PyTensor>> {
    let inner = x.get()?;
    tape::refuse("nonzero", &[&inner])?;
    let x = inner.tensor.clone();
    let columns = inner.awaited(py, of_sorting(elements(&x)), move || x.nonzero())??;
    Ok(columns.into_iter().map(|column| inner.beside(column)).collect())
}

/// The distinct elements: values, first indices, the value of each element, counts.
#[pyfunction]
pub fn unique(py: Python<'_>, x: &PyTensor) -> Result<[PyTensor; 4]> {
    let inner = x.get()?;
    tape::refuse("unique", &[&inner])?;
    let x = inner.tensor.clone();
    let found = inner.awaited(py, of_sorting(elements(&x)), move || x.unique())??;
    Ok([found.values, found.indices, found.inverse, found.counts].map(|part| inner.beside(part)))
}
