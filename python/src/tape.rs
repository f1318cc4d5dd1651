//! `hologram.compile`: a function's operations are recorded as they run once, and become a graph that is compiled as a
//! whole and called with other tensors of the same types and shapes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use hologram_core::{CoreError, Dim, Function, Graph, NodeId, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error::{Result, value};
use crate::tensor::{Inner, PyTensor};

/// Adds an operation to a graph.
pub type Emit = Arc<dyn Fn(&mut Graph, &[NodeId]) -> hologram_core::Result<NodeId> + Send + Sync>;

/// An operation's operand: an argument or an earlier result, by number, or a tensor from outside.
#[derive(Clone)]
enum Source {
    Value(usize),
    Constant(Tensor),
}

struct Step {
    emit: Emit,
    operands: Vec<Source>,
}

/// The operations of one run of a function.
#[derive(Default)]
struct Tape {
    arguments: usize,
    /// The numbers of values, by the ids of their tensors.
    values: HashMap<u64, usize>,
    steps: Vec<Step>,
    /// What cannot be part of a graph.
    refused: Option<String>,
}

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

/// Whether this thread records.
pub fn active() -> bool {
    TAPE.with_borrow(Option::is_some)
}

/// An operation to record: `make` gives its part of the graph if this thread records.
pub fn emit(make: impl FnOnce() -> Emit) -> Option<Emit> {
    active().then(make)
}

/// Lets a closure's types follow from its use.
pub fn call(
    g: &mut Graph,
    v: &[NodeId],
    f: impl FnOnce(&mut Graph, &[NodeId]) -> hologram_core::Result<NodeId>,
) -> hologram_core::Result<NodeId> {
    f(g, v)
}

/// A shape without run-time extents.
pub fn fixed(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|n| Dim::Fixed(*n)).collect()
}

impl Tape {
    fn source(&self, of: &Arc<Inner>) -> Source {
        match self.values.get(&of.id) {
            Some(value) => Source::Value(*value),
            None => Source::Constant(of.tensor.clone()),
        }
    }
}

/// Records an operation that has been run, if this thread records.
pub fn record(emit: Option<Emit>, operands: &[Arc<Inner>], result: &PyTensor) {
    let Some(emit) = emit else { return };
    let Ok(result) = result.get() else { return };
    TAPE.with_borrow_mut(|tape| {
        let Some(tape) = tape else { return };
        let operands = operands.iter().map(|operand| tape.source(operand)).collect();
        let number = tape.arguments + tape.steps.len();
        tape.steps.push(Step { emit, operands });
        tape.values.insert(result.id, number);
    });
}

/// Notes that an operation on these tensors cannot be compiled.
pub fn refuse(name: &str, operands: &[&Inner]) -> Result<()> {
    TAPE.with_borrow_mut(|tape| match tape {
        Some(tape) if operands.iter().any(|operand| tape.values.contains_key(&operand.id)) => {
            let reason =
                format!("compile: {name} depends on the elements, which are not known when a function is compiled");
            tape.refused.get_or_insert(reason.clone());
            value(reason)
        }
        _ => Ok(()),
    })
}

/// Starts to record operations on these tensors.
#[pyfunction]
pub fn begin_recording(arguments: Vec<Bound<'_, PyTensor>>) -> Result<()> {
    if active() {
        return value("compile: a compiled function is being recorded already");
    }
    let mut tape = Tape { arguments: arguments.len(), ..Tape::default() };
    for (number, argument) in arguments.iter().enumerate() {
        tape.values.insert(argument.get().get()?.id, number);
    }
    TAPE.set(Some(tape));
    Ok(())
}

/// Forgets what was recorded.
#[pyfunction]
pub fn cancel_recording() {
    TAPE.set(None);
}

/// Ends the recording: the function from the arguments to these results.
#[pyfunction]
pub fn end_recording(device: &PyTensor, results: Vec<Bound<'_, PyTensor>>) -> Result<PyFunction> {
    let Some(tape) = TAPE.take() else { return value("compile: nothing is being recorded") };
    if let Some(reason) = tape.refused {
        return value(reason);
    }
    let of = device.get()?;
    let results = results.iter().map(|result| Ok(tape.source(&result.get().get()?))).collect::<Result<Vec<_>>>()?;
    let steps = tape.steps;
    let function = Function::new(of.tensor.executor(), move |g, arguments| {
        let mut values = arguments.to_vec();
        let find = |g: &mut Graph, values: &[NodeId], source: &Source| match source {
            Source::Constant(tensor) => g.constant(tensor),
            Source::Value(number) => {
                values.get(*number).copied().ok_or_else(|| CoreError::Graph("a recorded value is missing".into()))
            }
        };
        for step in &steps {
            let operands = step.operands.iter().map(|source| find(g, &values, source));
            let operands = operands.collect::<hologram_core::Result<Vec<_>>>()?;
            values.push((step.emit)(g, &operands)?);
        }
        results.iter().map(|source| find(g, &values, source)).collect()
    });
    Ok(PyFunction { function, device: of.device.clone() })
}

/// Devices, types and shapes of tensors, as bytes; `None` if one of the objects is no tensor.
#[pyfunction]
pub fn signature<'py>(py: Python<'py>, objects: &Bound<'py, PyTuple>) -> Result<Option<Bound<'py, PyBytes>>> {
    let mut bytes = Vec::with_capacity(32 * objects.len());
    for object in objects.iter_borrowed() {
        let Ok(tensor) = object.cast::<PyTensor>() else { return Ok(None) };
        let inner = tensor.get().get()?;
        bytes.extend_from_slice(inner.device.as_bytes());
        bytes.push(inner.ty() as u8);
        bytes.push(inner.tensor.shape().len() as u8);
        bytes.extend(inner.tensor.shape().iter().flat_map(|n| n.to_le_bytes()));
    }
    Ok(Some(PyBytes::new(py, &bytes)))
}

/// A compiled graph.
#[pyclass(frozen, name = "Function", module = "hologram._native")]
pub struct PyFunction {
    function: Function,
    device: Arc<str>,
}

#[pymethods]
impl PyFunction {
    /// The results for other arguments.
    fn call(&self, py: Python<'_>, arguments: Vec<Bound<'_, PyTensor>>) -> Result<Vec<PyTensor>> {
        let arguments = arguments.iter().map(|argument| argument.get().get()).collect::<Result<Vec<_>>>()?;
        let tensors: Vec<&Tensor> = arguments.iter().map(|argument| &argument.tensor).collect();
        let results = py.detach(|| self.function.call(&tensors))?;
        Ok(results.into_iter().map(|tensor| PyTensor::new(tensor, self.device.clone())).collect())
    }

    /// The number of launches of a call with these arguments; 0 before the first.
    fn launches(&self, arguments: Vec<Bound<'_, PyTensor>>) -> Result<usize> {
        let arguments = arguments.iter().map(|argument| argument.get().get()).collect::<Result<Vec<_>>>()?;
        Ok(self.function.launches(&arguments.iter().map(|argument| &argument.tensor).collect::<Vec<_>>()))
    }
}
