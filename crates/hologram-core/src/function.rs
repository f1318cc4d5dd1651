//! Graphs as functions of tensors.

use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_backends::Lru;

use crate::eager::{Fold, Signature};
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{CompileOptions, Compiled, Event, Graph, NodeId, Sharing};
use crate::tensor::Tensor;

/// Signatures of which a function keeps its compiled graph.
const CAPACITY: usize = 256;

/// Builds a function's graph: gets a value per argument and returns those of the results.
type Build = dyn Fn(&mut Graph, &[NodeId]) -> Result<Vec<NodeId>> + Send + Sync;

/// A graph that is called with tensors and returns tensors, each in memory of its own.
///
/// The graph is built and compiled at the first call with arguments of some types, shapes and layouts. Later calls with
/// such arguments only bind their memory, so a chain of elementwise operations is one launch. Several threads may call
/// it.
///
/// ```
/// use hologram_core::{Executor, Function, Tensor};
///
/// let device = Executor::open("cpu", None)?;
/// let norm = Function::new(&device, |g, x| {
///     let squares = g.mul(x[0], x[0])?;
///     let sum = g.reduce_sum(squares)?;
///     Ok(vec![squares, g.sqrt(sum)?])
/// });
/// for numbers in [&[3.0f32, 4.0][..], &[1.0, 2.0, 2.0]] {
///     let x = Tensor::from_slice(&device, &[numbers.len()], numbers)?;
///     let results = norm.call(&[&x])?;
///     assert_eq!(results[0].to_vec::<f32>()?[0], numbers[0] * numbers[0]);
///     assert_eq!(results[1].to_scalar::<f32>()?, if numbers.len() == 2 { 5.0 } else { 3.0 });
/// }
/// assert_eq!(norm.compiled(), 2);
/// # Ok::<(), hologram_core::CoreError>(())
/// ```
pub struct Function {
    executor: Executor,
    build: Box<Build>,
    options: CompileOptions,
    /// By the hash of the signature, which an entry's own signature confirms.
    compiled: Mutex<Lru<u64, Arc<Entry>>>,
}

/// The compiled graph for arguments of one signature.
struct Entry {
    signature: Signature,
    compiled: Compiled,
    /// The tensors in the graph, by node; `None` for arguments and computed values.
    tensors: Vec<Option<Tensor>>,
}

impl Entry {
    /// The tensor that a node stands for.
    fn find<'a>(&'a self, arguments: &[&'a Tensor], id: NodeId) -> Option<&'a Tensor> {
        match arguments.get(id.0 as usize) {
            Some(argument) => Some(*argument),
            None => self.tensors.get(id.0 as usize).and_then(Option::as_ref),
        }
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({:?}, {} compiled)", self.executor, self.compiled())
    }
}

impl Function {
    /// A function of tensors of this device. `build` must give the same graph whenever the arguments have the same
    /// types, shapes and layouts; other tensors in it, such as weights, are [constants](Graph::constant). A result may
    /// be an argument or a part of one: it is copied.
    pub fn new(
        executor: &Executor,
        build: impl Fn(&mut Graph, &[NodeId]) -> Result<Vec<NodeId>> + Send + Sync + 'static,
    ) -> Function {
        Function::with_options(executor, CompileOptions::default(), build)
    }

    /// As [`Function::new`], with options.
    pub fn with_options(
        executor: &Executor,
        options: CompileOptions,
        build: impl Fn(&mut Graph, &[NodeId]) -> Result<Vec<NodeId>> + Send + Sync + 'static,
    ) -> Function {
        let compiled = Mutex::new(Lru::new(CAPACITY));
        Function { executor: executor.clone(), build: Box::new(build), options, compiled }
    }

    /// The results for these arguments. On a GPU the call returns when the device has accepted the work.
    ///
    /// # Errors
    /// When an argument lies on another device, or the graph has run-time extents or inputs; those of `build` and of
    /// the device.
    pub fn call(&self, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
        let entry = self.entry(arguments)?;
        self.executor.run_once(&entry.compiled, |id| entry.find(arguments, id))
    }

    /// As [`Function::call`], with the results in the memory of these tensors, such as another library's
    /// ([`Tensor::from_pointer`]).
    ///
    /// # Errors
    /// When a result has another type or shape, is no row-major tensor at a multiple of 64 bytes, or lies on another
    /// device; those of [`Function::call`].
    pub fn call_into(&self, arguments: &[&Tensor], results: &[&Tensor]) -> Result<Event> {
        let entry = self.entry(arguments)?;
        self.executor.own_all("function", results)?;
        let outputs = &entry.compiled.outputs;
        if outputs.len() != results.len() {
            let (n, m) = (outputs.len(), results.len());
            return Err(CoreError::Tensor(format!("the function has {n} results; memory is given for {m}")));
        }
        for (slot, result) in outputs.iter().zip(results) {
            if slot.spec.format != result.format || slot.shape != result.shape || result.strides.is_some() {
                return Err(CoreError::Tensor(format!(
                    "a result is {} {:?}; its memory must be a row-major tensor at a multiple of 64 bytes, not {result:?}",
                    slot.spec.format.name(),
                    slot.shape
                )));
            }
        }
        // The memories of the outputs are numbered in their order.
        let own = |number: usize| results.get(number).map(|result| (&result.buffer, result.offset));
        let (event, _) = self.executor.run_into(&entry.compiled, own, |id| entry.find(arguments, id))?;
        Ok(Event { executor: self.executor.clone(), event })
    }

    /// The compiled graph for these arguments.
    fn entry(&self, arguments: &[&Tensor]) -> Result<Arc<Entry>> {
        self.executor.own_all("function", arguments)?;
        let mut hasher = Fold::default();
        Signature::hash(arguments, &mut hasher);
        let hash = hasher.finish();
        let found = self.entries().get(&hash);
        if let Some(entry) = found.filter(|e| e.signature.fits(arguments)) {
            return Ok(entry);
        }
        let entry = Arc::new(self.compile(arguments)?);
        self.entries().insert(hash, entry.clone());
        Ok(entry)
    }

    /// The number of signatures for which the graph is compiled.
    pub fn compiled(&self) -> usize {
        self.entries().len()
    }

    /// The number of launches of a call with these arguments; 0 before the first.
    pub fn launches(&self, arguments: &[&Tensor]) -> usize {
        let mut hasher = Fold::default();
        Signature::hash(arguments, &mut hasher);
        let found = self.entries().get(&hasher.finish());
        found.filter(|e| e.signature.fits(arguments)).map_or(0, |e| e.compiled.len())
    }

    fn entries(&self) -> MutexGuard<'_, Lru<u64, Arc<Entry>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile(&self, arguments: &[&Tensor]) -> Result<Entry> {
        let mut graph = Graph::new();
        let nodes = arguments.iter().map(|t| graph.constant(t)).collect::<Result<Vec<_>>>()?;
        let results = (self.build)(&mut graph, &nodes)?;
        for (number, result) in results.into_iter().enumerate() {
            let result = if graph.fills_its_memory(result) { result } else { graph.copy(result)? };
            graph.output(&number.to_string(), result)?;
        }
        if graph.has_inputs() {
            return Err(CoreError::Graph("a function has neither run-time extents nor inputs; pass tensors".into()));
        }
        let compiled = graph.prepare(&self.executor, &[], self.options, Sharing::OwnOutputs)?;
        let held = |i: usize| graph.tensor(graph.node(i)).filter(|_| i >= arguments.len()).cloned();
        let tensors = (0..graph.nodes.len()).map(held).collect();
        Ok(Entry { signature: Signature::of(arguments), compiled, tensors })
    }
}
