//! `hologram.compile`: a function's operations are recorded as they run once, and become a graph that is compiled as a
//! whole and called with other tensors of the same types and shapes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use hologram_core::{CoreError, Dim, Executor, Function, Graph, NodeId, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error::{Result, value};
use crate::ops::elements;
use crate::tensor::{Inner, PyTensor};
use crate::wait::{interruptible, is_long};

/// Adds an operation to a graph.
pub type Emit = Arc<dyn Fn(&mut Graph, &[NodeId]) -> hologram_core::Result<NodeId> + Send + Sync>;

/// An operation's operand: an argument or an earlier result, by number, or a tensor from outside.
#[derive(Clone)]
enum Source {
    Value(usize),
    Constant(Tensor),
}

#[derive(Clone)]
enum Step {
    /// One more value.
    Operation { emit: Emit, operands: Vec<Source> },
    /// The gradients of a value by others: as many more values as `wrt` has.
    Gradients { loss: usize, wrt: Vec<usize> },
    /// One more value: the argument of this number, one of those that came while the function ran.
    Input(usize),
}

/// The operations of one run of a function.
#[derive(Default)]
struct Tape {
    /// The arguments that the recording began with, and those that came later: random numbers.
    arguments: Vec<Tensor>,
    /// The number of the first of these.
    own: usize,
    /// The number of arguments and results so far.
    count: usize,
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
        let operands: Vec<Source> = operands.iter().map(|operand| tape.source(operand)).collect();
        // What follows from tensors from outside alone keeps its elements, like them.
        if operands.iter().all(|operand| matches!(operand, Source::Constant(_))) {
            return;
        }
        tape.steps.push(Step::Operation { emit, operands });
        tape.values.insert(result.id, tape.count);
        tape.count += 1;
    });
}

/// Notes that something depends on the elements of these tensors, so that it cannot be compiled.
pub fn refuse(name: &str, operands: &[&Inner]) -> Result<()> {
    let why = "depends on the elements, which are not known when a function is compiled or its gradient is taken";
    refuse_as(name, why, operands)
}

/// Notes that an operation on these tensors runs at once, not as part of a graph, so that it cannot be compiled.
pub fn refuse_eager(name: &str, operands: &[&Inner]) -> Result<()> {
    refuse_as(name, "has no compiled form and no gradient", operands)
}

fn refuse_as(name: &str, why: &str, operands: &[&Inner]) -> Result<()> {
    TAPE.with_borrow_mut(|tape| match tape {
        Some(tape) if operands.iter().any(|operand| tape.values.contains_key(&operand.id)) => {
            let reason = format!("compile: {name} {why}");
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
    let mut tape = Tape { count: arguments.len(), own: arguments.len(), ..Tape::default() };
    for (number, argument) in arguments.iter().enumerate() {
        let inner = argument.get().get()?;
        tape.values.insert(inner.id, number);
        tape.arguments.push(inner.tensor.clone());
    }
    TAPE.set(Some(tape));
    Ok(())
}

/// One more argument of the function that is being recorded, behind the others: what is not the same in each call.
#[pyfunction]
pub fn record_input(input: &PyTensor) -> Result<()> {
    let inner = input.get()?;
    TAPE.with_borrow_mut(|tape| {
        let Some(tape) = tape else { return value("compile: nothing is being recorded") };
        tape.steps.push(Step::Input(tape.arguments.len()));
        tape.arguments.push(inner.tensor.clone());
        tape.values.insert(inner.id, tape.count);
        tape.count += 1;
        Ok(())
    })
}

/// Whether a tensor is a value of the function that this thread records, so that its elements cannot be read.
#[pyfunction]
pub fn is_recorded(tensor: &PyTensor) -> Result<bool> {
    let id = tensor.get()?.id;
    Ok(TAPE.with_borrow(|tape| tape.as_ref().is_some_and(|tape| tape.values.contains_key(&id))))
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
    Ok(PyFunction {
        function: Arc::new(function(of.tensor.executor(), tape.own, tape.steps, results)),
        device: of.device.clone(),
    })
}

/// Whether this thread records.
#[pyfunction]
pub fn is_recording() -> bool {
    active()
}

/// The gradients of a recorded value of one element by other recorded values, computed from the tape and recorded.
#[pyfunction]
pub fn gradients(py: Python<'_>, loss: &PyTensor, wrt: Vec<Bound<'_, PyTensor>>) -> Result<Vec<PyTensor>> {
    let of = loss.get()?;
    let wrt = wrt.iter().map(|value| value.get().get()).collect::<Result<Vec<_>>>()?;
    let (own, steps, arguments, count, wrt) = TAPE.with_borrow(|tape| {
        let Some(tape) = tape else { return value("grad: nothing is being recorded") };
        if let Some(reason) = &tape.refused {
            return value(reason.clone());
        }
        let number = |inner: &Arc<Inner>| match tape.values.get(&inner.id) {
            Some(number) => Ok(*number),
            None => value("grad: the function's value does not depend on its arguments"),
        };
        let wrt = wrt.iter().map(number).collect::<Result<Vec<_>>>()?;
        let mut steps = tape.steps.clone();
        steps.push(Step::Gradients { loss: number(&of)?, wrt: wrt.clone() });
        Ok((tape.own, steps, tape.arguments.clone(), tape.count, wrt))
    })?;
    let results = (count..count + wrt.len()).map(Source::Value).collect();
    let step = steps.last().cloned();
    let function = function(of.tensor.executor(), own, steps, results);
    let grads = called(py, &of, &Arc::new(function), &arguments.iter().collect::<Vec<_>>())?;
    let grads: Vec<PyTensor> = grads.into_iter().map(|grad| of.beside(grad)).collect();
    let ids = grads.iter().map(|grad| grad.get().map(|inner| inner.id)).collect::<Result<Vec<_>>>()?;
    TAPE.with_borrow_mut(|tape| {
        if let Some(tape) = tape {
            tape.steps.extend(step);
            for id in ids {
                tape.values.insert(id, tape.count);
                tape.count += 1;
            }
        }
    });
    Ok(grads)
}

/// Calls a function of tensors on one device; Ctrl-C ends the wait for long work of the host.
fn called(py: Python<'_>, of: &Inner, function: &Arc<Function>, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
    // A guess: some operations per element.
    let steps = arguments.iter().map(|x| elements(x).saturating_mul(64)).fold(0, usize::saturating_add);
    if !is_long(of.tensor.executor(), steps) {
        return Ok(py.detach(|| function.call(arguments))?);
    }
    let (function, arguments) = (function.clone(), arguments.iter().copied().cloned().collect::<Vec<_>>());
    Ok(interruptible(py, move || function.call(&arguments.iter().collect::<Vec<_>>()))??)
}

/// The function from the arguments of a tape, of which it began with `own`, to these of its values.
fn function(executor: &Executor, own: usize, steps: Vec<Step>, results: Vec<Source>) -> Function {
    Function::new(executor, move |g, arguments| {
        let missing = || CoreError::Graph("an argument is missing".into());
        let mut values = arguments.get(..own).ok_or_else(missing)?.to_vec();
        let find = |g: &mut Graph, values: &[NodeId], source: &Source| match source {
            Source::Constant(tensor) => g.constant(tensor),
            Source::Value(number) => {
                values.get(*number).copied().ok_or_else(|| CoreError::Graph("a recorded value is missing".into()))
            }
        };
        for step in &steps {
            match step {
                Step::Operation { emit, operands } => {
                    let operands = operands.iter().map(|source| find(g, &values, source));
                    let operands = operands.collect::<hologram_core::Result<Vec<_>>>()?;
                    values.push(emit(g, &operands)?);
                }
                Step::Input(number) => values.push(*arguments.get(*number).ok_or_else(missing)?),
                Step::Gradients { loss, wrt } => {
                    let loss = find(g, &values, &Source::Value(*loss))?;
                    let wrt = wrt.iter().map(|number| find(g, &values, &Source::Value(*number)));
                    let wrt = wrt.collect::<hologram_core::Result<Vec<_>>>()?;
                    values.extend(g.gradients(loss, &wrt)?);
                }
            }
        }
        results.iter().map(|source| find(g, &values, source)).collect()
    })
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
    function: Arc<Function>,
    device: Arc<str>,
}

#[pymethods]
impl PyFunction {
    /// The results for other arguments.
    fn call(&self, py: Python<'_>, arguments: Vec<Bound<'_, PyTensor>>) -> Result<Vec<PyTensor>> {
        let arguments = arguments.iter().map(|argument| argument.get().get()).collect::<Result<Vec<_>>>()?;
        for argument in &arguments {
            refuse_eager("a graph's call", &[argument])?;
        }
        let tensors: Vec<&Tensor> = arguments.iter().map(|argument| &argument.tensor).collect();
        let results = match arguments.first() {
            Some(first) => called(py, first, &self.function, &tensors)?,
            None => py.detach(|| self.function.call(&tensors))?,
        };
        Ok(results.into_iter().map(|tensor| PyTensor::new(tensor, self.device.clone())).collect())
    }

    /// The number of launches of a call with these arguments; 0 before the first.
    fn launches(&self, arguments: Vec<Bound<'_, PyTensor>>) -> Result<usize> {
        let arguments = arguments.iter().map(|argument| argument.get().get()).collect::<Result<Vec<_>>>()?;
        Ok(self.function.launches(&arguments.iter().map(|argument| &argument.tensor).collect::<Vec<_>>()))
    }
}
