//! Operations by name: one at a time, or several as a function that is compiled once.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

use hologram_core::ops::Reduction;
use hologram_core::{CoreError, DType, Dim, Executor, Function, Graph, NodeId, Tensor};
use hologram_isa::Type;

use crate::device::HologramDevice;
use crate::error::{HologramStatus, Result, guard, invalid};
use crate::pointers::{give, list, object, options, place, release, room, text};
use crate::tensor::{HologramTensor, sizes, type_of};

/// What operations take beside tensors. `HOLOGRAM_OPERATION_OPTIONS` is its initial value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HologramOperationOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// The dimension of reductions, `softmax`, `log_softmax`, `arg_max`, `arg_min`, `cumsum`, `sort`, `arg_sort` and
    /// `cat`; negative ones count from the last.
    pub axis: i64,
    /// The shape of `reshape` and `broadcast_to`, the order of `permute`.
    pub dims: *const i64,
    /// Their number.
    pub dim_count: usize,
    /// The type of `cast`, a `HologramType`.
    pub r#type: i32,
    /// Whether `sort` and `arg_sort` begin with the greatest: 0 or 1.
    pub descending: i32,
    /// What `rms_norm` and `layer_norm` add to the variance.
    pub epsilon: f64,
}

const DEFAULT: HologramOperationOptions = HologramOperationOptions {
    struct_size: size_of::<HologramOperationOptions>(),
    axis: -1,
    dims: std::ptr::null(),
    dim_count: 0,
    r#type: 11,
    descending: 0,
    epsilon: 1e-5,
};

/// Options that own their lists.
#[derive(Clone, Debug)]
struct Options {
    axis: i64,
    dims: Vec<usize>,
    ty: Type,
    descending: bool,
    epsilon: f32,
}

impl Options {
    unsafe fn read(given: *const HologramOperationOptions) -> Result<Options> {
        let o = options(given, DEFAULT, "options")?;
        let (dims, ty) = (sizes(o.dims, o.dim_count)?, type_of(o.r#type)?);
        Ok(Options { axis: o.axis, dims, ty, descending: o.descending != 0, epsilon: o.epsilon as f32 })
    }
}

/// An operation on values of a function.
#[derive(Clone, Debug)]
struct Step {
    name: String,
    operands: Vec<usize>,
    options: Options,
}

macro_rules! table {
    (unary $($one:ident)*; binary $($two:ident)*;) => {
        const UNARY: &[&str] = &[$(stringify!($one)),*];
        const BINARY: &[&str] = &[$(stringify!($two)),*];

        fn elementwise(name: &str, g: &mut Graph, v: &[NodeId]) -> Option<hologram_core::Result<NodeId>> {
            match (name, v) {
                $((stringify!($one), [x]) => Some(g.$one(*x)),)*
                $((stringify!($two), [a, b]) => Some(g.$two(*a, *b)),)*
                _ => None,
            }
        }
    };
}

table! {
    unary neg abs sqrt rsqrt exp exp2 log log2 sin cos tan tanh asin acos atan sinh cosh asinh acosh atanh expm1 log1p
        log10 erf floor ceil round trunc sign relu sigmoid silu gelu gelu_tanh not signbit isnan isinf isfinite copy
        contiguous transpose;
    binary add sub mul div rem maximum minimum pow atan2 copysign eq ne lt le gt ge and or xor shl shr swiglu relu2_mul
        clamped_swiglu floor_divide remainder hypot logaddexp nextafter matmul linear gather take;
}

/// Operations with options, and how many tensors they take.
const OTHERS: &[(&str, usize)] = &[
    ("sum", 1),
    ("mean", 1),
    ("prod", 1),
    ("max", 1),
    ("min", 1),
    ("arg_max", 1),
    ("arg_min", 1),
    ("softmax", 1),
    ("log_softmax", 1),
    ("cumsum", 1),
    ("sort", 1),
    ("arg_sort", 1),
    ("reshape", 1),
    ("broadcast_to", 1),
    ("permute", 1),
    ("cast", 1),
    ("rms_norm", 2),
    ("layer_norm", 3),
];

/// Checks that an operation of this name takes this many tensors.
fn check(name: &str, given: usize) -> Result {
    let takes = if UNARY.contains(&name) {
        1
    } else if BINARY.contains(&name) {
        2
    } else if name == "cat" {
        given.max(1)
    } else {
        match OTHERS.iter().find(|(other, _)| *other == name) {
            Some((_, takes)) => *takes,
            None => return invalid(format!("there is no operation {name:?}; hologram_operation_names lists them")),
        }
    };
    if takes != given {
        return invalid(format!("{name} takes {takes} tensors, not {given}"));
    }
    Ok(())
}

/// Adds an operation to a graph.
fn apply(g: &mut Graph, step: &Step, v: &[NodeId]) -> hologram_core::Result<NodeId> {
    let Step { name, options, .. } = step;
    if let Some(value) = elementwise(name, g, v) {
        return value;
    }
    let rank = g.type_of(v[0])?.shape.len();
    let axis = if options.axis < 0 { options.axis + rank as i64 } else { options.axis };
    let axis = || match usize::try_from(axis) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => Err(CoreError::Graph(format!("{name}: there is no dimension {} of {rank}", options.axis))),
    };
    let dims: Vec<Dim> = options.dims.iter().map(|n| Dim::Fixed(*n)).collect();
    match (name.as_str(), v) {
        ("sum", [x]) => g.reduce(*x, Reduction::Sum, axis()?),
        ("mean", [x]) => g.reduce(*x, Reduction::Mean, axis()?),
        ("prod", [x]) => g.reduce(*x, Reduction::Prod, axis()?),
        ("max", [x]) => g.reduce(*x, Reduction::Max, axis()?),
        ("min", [x]) => g.reduce(*x, Reduction::Min, axis()?),
        ("arg_max", [x]) => g.arg_max(*x, axis()?),
        ("arg_min", [x]) => g.arg_min(*x, axis()?),
        ("softmax", [x]) => g.softmax(*x, axis()?),
        ("log_softmax", [x]) => g.log_softmax(*x, axis()?),
        ("cumsum", [x]) => g.cumsum(*x, axis()?),
        ("sort", [x]) => g.sort(*x, axis()?, options.descending),
        ("arg_sort", [x]) => g.arg_sort(*x, axis()?, options.descending),
        ("cat", parts) => g.cat(parts, axis()?),
        ("reshape", [x]) => g.reshape(*x, &dims),
        ("broadcast_to", [x]) => g.broadcast_to(*x, &dims),
        ("permute", [x]) => g.permute(*x, &options.dims),
        ("cast", [x]) => g.cast(*x, DType::Plain(options.ty)),
        ("rms_norm", [x, w]) => g.rms_norm(*x, *w, options.epsilon),
        ("layer_norm", [x, w, b]) => g.layer_norm(*x, *w, *b, options.epsilon),
        _ => Err(CoreError::Graph(format!("there is no operation {name} of {} tensors", v.len()))),
    }
}

/// A function of the device: steps on values, of which the first are the arguments.
fn compiled(executor: &Executor, steps: Vec<Step>, results: Vec<usize>) -> Arc<Function> {
    Arc::new(Function::new(executor, move |g, arguments| {
        let mut values = arguments.to_vec();
        for step in &steps {
            let operands: Vec<NodeId> = step.operands.iter().map(|i| values[*i]).collect();
            values.push(apply(g, step, &operands)?);
        }
        Ok(results.iter().map(|i| values[*i]).collect())
    }))
}

unsafe fn tensors<'a>(given: *const *const HologramTensor, count: usize, name: &str) -> Result<Vec<&'a Tensor>> {
    list(given, count, name)?.iter().map(|tensor| Ok(&object(*tensor, name)?.0)).collect()
}

/// The names of the operations, one per line. Free them by `hologram_string_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_operation_names(names: *mut *mut c_char) -> HologramStatus {
    guard(|| {
        let others = OTHERS.iter().map(|(name, _)| *name).chain(["cat"]);
        let mut all: Vec<&str> = UNARY.iter().chain(BINARY).copied().chain(others).collect();
        all.sort_unstable();
        crate::pointers::give_text(place(names, "names")?, all.join("\n"))
    })
}

/// The result of an operation on `count` tensors of one device. `options` may be NULL. On a GPU the call returns when
/// the device has accepted the work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_operation(
    device: *const HologramDevice,
    name: *const c_char,
    operands: *const *const HologramTensor,
    count: usize,
    options: *const HologramOperationOptions,
    result: *mut *mut HologramTensor,
) -> HologramStatus {
    guard(|| {
        let (device, name) = (object(device, "device")?, text(name, "name")?);
        let (operands, result) = (tensors(operands, count, "operands")?, place(result, "result")?);
        check(name, count)?;
        let step = Step { name: name.into(), operands: (0..count).collect(), options: Options::read(options)? };
        let key = format!("{step:?}");
        let function = {
            let mut kept = device.operations.lock().unwrap_or_else(PoisonError::into_inner);
            // Shapes in options make many of them.
            if kept.len() >= 1024 {
                kept.clear();
            }
            kept.entry(key).or_insert_with(|| compiled(&device.executor, vec![step], vec![count])).clone()
        };
        match function.call(&operands)?.pop() {
            Some(tensor) => give(result, HologramTensor(tensor)),
            None => return invalid("the operation has no result"),
        }
        Ok(())
    })
}

/// A function of tensors: operations on its arguments and on each other's results, compiled at the first call with
/// arguments of some types and shapes, so that a chain of elementwise operations is one launch.
pub struct HologramFunction {
    executor: Executor,
    arguments: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    steps: Vec<Step>,
    results: Vec<usize>,
    compiled: Option<Arc<Function>>,
}

/// A function of `arguments` tensors, which are its values 0, 1, and so on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_function_new(
    device: *const HologramDevice,
    arguments: usize,
    function: *mut *mut HologramFunction,
) -> HologramStatus {
    guard(|| {
        let executor = object(device, "device")?.executor.clone();
        give(place(function, "function")?, HologramFunction { executor, arguments, state: Mutex::default() });
        Ok(())
    })
}

/// Adds an operation on values of the function. `value` is the number of its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_function_apply(
    function: *mut HologramFunction,
    name: *const c_char,
    operands: *const usize,
    count: usize,
    options: *const HologramOperationOptions,
    value: *mut usize,
) -> HologramStatus {
    guard(|| {
        let (function, name) = (object(function, "function")?, text(name, "name")?);
        let (operands, value) = (list(operands, count, "operands")?.to_vec(), place(value, "value")?);
        check(name, count)?;
        let options = Options::read(options)?;
        let mut state = function.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = function.arguments + state.steps.len();
        if let Some(unknown) = operands.iter().find(|operand| **operand >= known) {
            return invalid(format!("there is no value {unknown}; the last is {}", known.wrapping_sub(1) as isize));
        }
        if state.compiled.is_some() {
            return invalid("the function was called before: it cannot be changed");
        }
        state.steps.push(Step { name: name.into(), operands, options });
        value.write(known);
        Ok(())
    })
}

/// Says which values the function returns; it may be called then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_function_return(
    function: *mut HologramFunction,
    values: *const usize,
    count: usize,
) -> HologramStatus {
    guard(|| {
        let (function, values) = (object(function, "function")?, list(values, count, "values")?);
        let mut state = function.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = function.arguments + state.steps.len();
        match values.iter().find(|value| **value >= known) {
            _ if values.is_empty() => return invalid("a function returns at least one value"),
            Some(unknown) => return invalid(format!("there is no value {unknown}")),
            None => {}
        }
        (state.results, state.compiled) = (values.to_vec(), None);
        Ok(())
    })
}

/// Calls a function. `results` gets as many tensors as it returns, which must be `result_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_function_call(
    function: *const HologramFunction,
    arguments: *const *const HologramTensor,
    count: usize,
    results: *mut *mut HologramTensor,
    result_count: usize,
) -> HologramStatus {
    guard(|| {
        let function = object(function, "function")?;
        let (arguments, places) = (tensors(arguments, count, "arguments")?, room(results, result_count, "results")?);
        if count != function.arguments {
            return invalid(format!("the function takes {} arguments, not {count}", function.arguments));
        }
        let compiled = {
            let mut state = function.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.results.is_empty() || state.results.len() != result_count {
                return invalid(format!("the function returns {} values, not {result_count}", state.results.len()));
            }
            let (steps, results) = (state.steps.clone(), state.results.clone());
            state.compiled.get_or_insert_with(|| compiled(&function.executor, steps, results)).clone()
        };
        for (place, tensor) in places.iter_mut().zip(compiled.call(&arguments)?) {
            give(place, HologramTensor(tensor));
        }
        Ok(())
    })
}

/// Frees a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_function_release(function: *mut HologramFunction) {
    release(function);
}
