//! Graphs that Python builds value by value, compiled as functions of another library's tensors.
//!
//! A value is a number. The operations are recorded, and applied at once to a graph of placeholders, which has the
//! types and shapes and reports what does not fit.

use std::sync::Arc;

use hologram_backends::cpu::OpenMp;
use hologram_core::ops::{Conv2dOptions, MatmulOptions, Reduction};
use hologram_core::{DType, Dim, Executor, ForeignPointer, Function, Graph, NodeId, Tensor, TensorAttention};
use hologram_isa::Type;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::device;
use crate::dtype::{PyDType, Wanted, size};
use crate::error::{Result, value};
use crate::ops::in_graph;
use crate::tape::{Emit, fixed};
use crate::tensor::PyTensor;

/// An argument's or a result's elements, as they lie in its memory.
#[derive(Clone)]
struct Place {
    ty: Type,
    shape: Vec<usize>,
    strides: Vec<usize>,
    dense: bool,
}

impl Place {
    fn new(ty: Type, shape: Vec<usize>, strides: Option<Vec<usize>>) -> Place {
        let mut dense = vec![1; shape.len()];
        for k in (1..shape.len()).rev() {
            dense[k - 1] = dense[k] * shape[k].max(1);
        }
        // The stride of a dimension with one element means nothing.
        let strides: Vec<usize> = match strides {
            Some(own) => own.iter().zip(&dense).zip(&shape).map(|((s, d), n)| if *n <= 1 { *d } else { *s }).collect(),
            None => dense.clone(),
        };
        let dense = strides == dense || shape.contains(&0);
        Place { ty, shape, strides, dense }
    }

    /// Bytes from the first element to the end of the last.
    fn bytes(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let last: usize = self.shape.iter().zip(&self.strides).map(|(n, stride)| (n - 1) * stride).sum();
        (last + 1) * size(self.ty)
    }

    /// The tensor at an address.
    ///
    /// # Safety
    /// As [`ForeignPointer::new`], as long as the tensor is used.
    unsafe fn at(&self, executor: &Executor, address: u64, nobody: &Owner, writable: bool) -> Result<Tensor> {
        // SAFETY: the caller promises it.
        let memory = unsafe { ForeignPointer::new(nobody.clone(), address, self.bytes(), writable) };
        let strides = (!self.dense).then_some(self.strides.as_slice());
        Ok(Tensor::from_pointer(executor, memory, DType::Plain(self.ty), &self.shape, strides)?)
    }
}

type Owner = Arc<dyn std::any::Any + Send + Sync>;

struct Step {
    emit: Emit,
    operands: Vec<usize>,
}

/// A graph under construction.
#[pyclass(name = "Graph", module = "hologram._native")]
pub struct PyGraph {
    device: Arc<str>,
    executor: Executor,
    arguments: Vec<Place>,
    steps: Vec<Step>,
    shapes: Graph,
    nodes: Vec<NodeId>,
}

impl PyGraph {
    fn push(&mut self, operands: Vec<usize>, emit: Emit) -> Result<usize> {
        let nodes = operands.iter().map(|value| self.node(*value)).collect::<Result<Vec<_>>>()?;
        let node = emit(&mut self.shapes, &nodes)?;
        self.nodes.push(node);
        self.steps.push(Step { emit, operands });
        Ok(self.nodes.len() - 1)
    }

    /// The type and shape of a value.
    fn place(&self, number: usize) -> Result<Place> {
        let ty = self.shapes.type_of(self.node(number)?)?;
        let size = |dim: &Dim| if let Dim::Fixed(n) = dim { Some(*n) } else { None };
        match (ty.format, ty.shape.iter().map(size).collect::<Option<Vec<_>>>()) {
            (DType::Plain(element), Some(shape)) => Ok(Place::new(element, shape, None)),
            _ => value("the value is of no plain type"),
        }
    }

    fn node(&self, number: usize) -> Result<NodeId> {
        match self.nodes.get(number) {
            Some(node) => Ok(*node),
            None => value(format!("the graph has no value {number}")),
        }
    }
}

/// Defines methods that add an operation on values, with attributes.
macro_rules! methods {
    ($($name:ident($($operand:ident),*; $($attribute:ident: $ty:ty),*) $graph:expr;)*) => {
        #[pymethods]
        impl PyGraph {
            $(
                #[allow(clippy::too_many_arguments)]
                fn $name(&mut self $(, $operand: usize)* $(, $attribute: $ty)*) -> Result<usize> {
                    let emit: Emit = Arc::new(move |g, v| crate::tape::call(g, v, $graph));
                    self.push(vec![$($operand),*], emit)
                }
            )*
        }
    };
}

methods! {
    scalar(; dtype: Wanted, number: f64) |g, _| g.scalar(dtype.0, number);
    full(; dtype: Wanted, shape: Vec<usize>, number: f64) |g, _| g.full(dtype.0, &fixed(&shape), number);
    arange(; dtype: Wanted, start: f64, step: f64, len: usize)
        |g, _| g.arange(dtype.0, start, step, Dim::Fixed(len));
    cast(x; dtype: Wanted) |g, v| g.cast(v[0], dtype.0);
    reshape(x; shape: Vec<usize>) |g, v| g.reshape(v[0], &fixed(&shape));
    permute(x; order: Vec<usize>) |g, v| g.permute(v[0], &order);
    broadcast_to(x; shape: Vec<usize>) |g, v| g.broadcast_to(v[0], &fixed(&shape));
    slice(x; dim: usize, start: usize, end: usize) |g, v| g.slice(v[0], dim, start, end);
    contiguous(x;) |g, v| g.contiguous(v[0]);
    sort(x; dim: usize, descending: bool) |g, v| g.sort(v[0], dim, descending);
    arg_sort(x; dim: usize, descending: bool) |g, v| g.arg_sort(v[0], dim, descending);
    arg_max(x; dim: usize) |g, v| g.arg_max(v[0], dim);
    arg_min(x; dim: usize) |g, v| g.arg_min(v[0], dim);
    cumsum(x; dim: usize) |g, v| g.cumsum(v[0], dim);
    softmax(x; dim: usize) |g, v| g.softmax(v[0], dim);
    log_softmax(x; dim: usize) |g, v| g.log_softmax(v[0], dim);
    take_along(x, indices; dim: usize) |g, v| g.take_along(v[0], v[1], dim);
    scatter(x, indices, updates; dim: usize) |g, v| g.scatter(v[0], v[1], v[2], dim);
    scatter_add(x, indices, updates; dim: usize) |g, v| g.scatter_add(v[0], v[1], v[2], dim);
    select(condition, a, b;) |g, v| g.select(v[0], v[1], v[2]);
    clip(x, least, greatest;) |g, v| g.clip(v[0], v[1], v[2]);
    mul_add(a, b, c;) |g, v| g.mul_add(v[0], v[1], v[2]);
    pad(x; sides: Vec<(usize, usize)>, number: f64) |g, v| g.pad(v[0], &sides, number);
    random_uniform(key; dtype: Wanted, shape: Vec<usize>) |g, v| g.random_uniform(v[0], dtype.0, &fixed(&shape));
    random_normal(key; dtype: Wanted, shape: Vec<usize>) |g, v| g.random_normal(v[0], dtype.0, &fixed(&shape));
    matmul(a, b; transpose_a: bool, transpose_b: bool) |g, v| {
        g.batch_matmul(v[0], v[1], &MatmulOptions { transpose_a, transpose_b, ..MatmulOptions::default() })
    };
    matmul_bias(a, b, bias; transpose_a: bool, transpose_b: bool) |g, v| {
        let bias = Some(v[2]);
        g.batch_matmul(v[0], v[1], &MatmulOptions { transpose_a, transpose_b, bias, ..MatmulOptions::default() })
    };
    flash_attention(q, k, v; scale: f64, causal: bool)
        |g, v| g.flash_attention(v[0], v[1], v[2], &TensorAttention { scale: Some(scale), causal });
    flash_attention_sums(q, k; scale: f64, causal: bool)
        |g, v| g.flash_attention_sums(v[0], v[1], &TensorAttention { scale: Some(scale), causal });
    flash_attention_gradients(q, k, v, result, sums, grad; scale: f64, causal: bool) |g, v| {
        let options = TensorAttention { scale: Some(scale), causal };
        g.flash_attention_gradients([v[0], v[1], v[2]], v[3], v[4], v[5], &options)
    };
    conv2d(x, kernel; stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups: usize) |g, v| {
        g.conv2d(v[0], v[1], &Conv2dOptions { stride, padding, dilation, groups, bias: None })
    };
}

#[pymethods]
impl PyGraph {
    #[new]
    fn new(py: Python<'_>, device: &str) -> Result<PyGraph> {
        let (name, executor) = device::open(py, Some(device))?;
        let (arguments, steps, nodes) = Default::default();
        Ok(PyGraph { device: name.into(), executor, arguments, steps, shapes: Graph::new(), nodes })
    }

    /// The next argument of the function. Arguments come before operations.
    #[pyo3(signature = (dtype, shape, strides=None))]
    fn argument(&mut self, dtype: Wanted, shape: Vec<usize>, strides: Option<Vec<usize>>) -> Result<usize> {
        if !self.steps.is_empty() {
            return value("arguments come before operations");
        }
        if strides.as_ref().is_some_and(|strides| strides.len() != shape.len()) {
            return value("an argument has as many strides as dimensions");
        }
        let name = self.arguments.len().to_string();
        self.nodes.push(self.shapes.input(&name, DType::Plain(dtype.0), &fixed(&shape))?);
        self.arguments.push(Place::new(dtype.0, shape, strides));
        Ok(self.nodes.len() - 1)
    }

    /// An elementwise operation by name; operands of one type, which broadcast.
    fn elementwise(&mut self, name: String, operands: Vec<usize>) -> Result<usize> {
        self.push(operands, Arc::new(move |g, v| in_graph(&name, g, v)))
    }

    /// Reduces a dimension: `sum`, `mean`, `prod`, `max` or `min`.
    fn reduce(&mut self, name: &str, x: usize, dim: usize) -> Result<usize> {
        let reduction = match name {
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            "prod" => Reduction::Prod,
            "max" => Reduction::Max,
            "min" => Reduction::Min,
            other => return value(format!("there is no reduction {other}")),
        };
        self.push(vec![x], Arc::new(move |g, v| g.reduce(v[0], reduction, dim)))
    }

    /// Concatenates up to 64 values.
    fn concat(&mut self, parts: Vec<usize>, dim: usize) -> Result<usize> {
        self.push(parts, Arc::new(move |g, v| g.cat(v, dim)))
    }

    /// A value's element type and shape.
    fn type_of<'py>(&self, py: Python<'py>, number: usize) -> Result<(PyDType, Bound<'py, PyTuple>)> {
        let place = self.place(number)?;
        Ok((PyDType(place.ty), PyTuple::new(py, place.shape)?))
    }

    /// The function from the arguments to these values.
    fn finish(&mut self, results: Vec<usize>) -> Result<PyCompiled> {
        let places = results.iter().map(|number| self.place(*number)).collect::<Result<Vec<_>>>()?;
        let steps = std::mem::take(&mut self.steps);
        self.nodes.clear();
        let function = Function::new(&self.executor, move |g, arguments| {
            let mut values = arguments.to_vec();
            // The numbers were checked when the steps were recorded.
            let find = |values: &[NodeId], number: &usize| {
                let missing = || hologram_core::CoreError::Graph("a recorded value is missing".into());
                values.get(*number).copied().ok_or_else(missing)
            };
            for step in &steps {
                let operands = step.operands.iter().map(|number| find(&values, number));
                let operands = operands.collect::<hologram_core::Result<Vec<_>>>()?;
                values.push((step.emit)(g, &operands)?);
            }
            results.iter().map(|number| find(&values, number)).collect()
        });
        let arguments = std::mem::take(&mut self.arguments);
        let (device, executor) = (self.device.clone(), self.executor.clone());
        Ok(PyCompiled {
            function,
            device,
            executor,
            arguments,
            results: places,
            nobody: Arc::new(()),
            generation: device::generation(),
        })
    }
}

/// A compiled graph, called with the tensors of another library that lie on its device.
#[pyclass(frozen, name = "Compiled", module = "hologram._native")]
pub struct PyCompiled {
    function: Function,
    device: Arc<str>,
    executor: Executor,
    arguments: Vec<Place>,
    results: Vec<Place>,
    /// The owner of memory that its library keeps alive during a call.
    nobody: Owner,
    generation: u32,
}

impl PyCompiled {
    /// The tensor in the memory of a torch tensor, whose type and shape the caller has checked.
    fn argument(&self, place: &Place, tensor: &Bound<'_, PyAny>) -> Result<Tensor> {
        let py = tensor.py();
        let address: u64 = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let expected = place.dense && tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()?;
        if expected {
            // SAFETY: see `call`.
            return unsafe { place.at(&self.executor, address, &self.nobody, false) };
        }
        let strides: Vec<usize> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
        let place = Place::new(place.ty, place.shape.clone(), Some(strides));
        // SAFETY: see `call`.
        unsafe { place.at(&self.executor, address, &self.nobody, false) }
    }
}

#[pymethods]
impl PyCompiled {
    /// Runs on torch tensors: results go to the memory of the tensors `results`, which are row-major at multiples of 64
    /// bytes. Types and shapes are those of the graph, which the caller has checked, and all tensors lie on its device.
    /// On a GPU `stream` is torch's stream: the work comes after what was queued there, and before what will be. On the
    /// CPU `openmp` lends the threads of torch's OpenMP runtime: the address of its `GOMP_parallel`, and their number.
    #[pyo3(signature = (arguments, results, stream=None, openmp=None))]
    fn call(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyList>,
        results: &Bound<'_, PyList>,
        stream: Option<u64>,
        openmp: Option<(usize, usize)>,
    ) -> Result<()> {
        device::alive(self.generation)?;
        if arguments.len() != self.arguments.len() || results.len() != self.results.len() {
            let (n, m) = (self.arguments.len(), self.results.len());
            return value(format!("the graph takes {n} arguments and memory for {m} results"));
        }
        let tensors = self.arguments.iter().zip(arguments.iter());
        let tensors = tensors.map(|(place, tensor)| self.argument(place, &tensor)).collect::<Result<Vec<_>>>()?;
        let into = self.results.iter().zip(results.iter()).map(|(place, tensor)| {
            let address: u64 = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
            // SAFETY: the lists keep the tensors alive; on a GPU their memory returns to torch's allocator in the order
            // of torch's stream, which waits for this call's work. Types and shapes are as promised by the caller.
            unsafe { place.at(&self.executor, address, &self.nobody, true) }
        });
        let into = into.collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller found the address by the function's name in the runtime that torch has loaded.
        let openmp = openmp.and_then(|(parallel, threads)| unsafe { OpenMp::new(parallel, threads) });
        py.detach(|| match openmp {
            Some(openmp) => openmp.lend(|| self.run(&tensors, &into, stream)),
            None => self.run(&tensors, &into, stream),
        })
    }

    /// Runs on tensors of this package; the results are new ones.
    fn call_tensors(&self, py: Python<'_>, arguments: Vec<Bound<'_, PyTensor>>) -> Result<Vec<PyTensor>> {
        let arguments = arguments.iter().map(|argument| argument.get().get()).collect::<Result<Vec<_>>>()?;
        for argument in &arguments {
            crate::tape::refuse_eager("a graph's call", &[argument])?;
        }
        let tensors: Vec<&Tensor> = arguments.iter().map(|argument| &argument.tensor).collect();
        let results = py.detach(|| self.function.call(&tensors))?;
        Ok(results.into_iter().map(|tensor| PyTensor::new(tensor, self.device.clone())).collect())
    }
}

impl PyCompiled {
    fn run(&self, arguments: &[Tensor], results: &[Tensor], stream: Option<u64>) -> Result<()> {
        let named = stream.zip(self.executor.backend().streams());
        if let Some((stream, streams)) = named {
            // SAFETY: the caller names a stream of the device.
            unsafe { streams.wait_for_stream(stream) }?;
        }
        let arguments: Vec<&Tensor> = arguments.iter().collect();
        let results: Vec<&Tensor> = results.iter().collect();
        let event = self.function.call_into(&arguments, &results)?;
        match (named, results.first()) {
            // SAFETY: as above. One stream has all the work of the call, so any result stands for all.
            (Some((stream, streams)), Some(result)) => unsafe { streams.make_stream_wait(result.buffer(), stream) }?,
            (Some(_), None) => {}
            (None, _) => event.wait()?,
        }
        Ok(())
    }
}
