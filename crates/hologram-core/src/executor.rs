//! The device a program uses, and typed buffers on it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use hologram_backends::{Backend, BackendType, DeviceInfo, Metrics, OpenOptions};

use crate::eager::Eager;
use crate::error::{CoreError, Result};
use crate::graph::{CompileOptions, Graph, NodeId, Sharing};
use crate::tensor::{Element, Tensor, bytes_of, bytes_of_mut};

/// A handle to one device. Clones share it.
#[derive(Clone)]
pub struct Executor {
    backend: Arc<dyn Backend>,
    eager: Arc<Eager>,
    /// Why no GPU was taken.
    fallback: Option<Arc<str>>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executor({}: {})", self.info().backend, self.info().name)
    }
}

impl Executor {
    /// Opens the best device of this machine that works.
    ///
    /// # Errors
    /// When not even the CPU can be opened.
    pub fn new_auto() -> Result<Executor> {
        Executor::open("auto", None)
    }

    /// Opens a device of this kind.
    ///
    /// # Errors
    /// [`hologram_backends::BackendError::Unavailable`] with the devices there are.
    pub fn new_with_backend(kind: BackendType) -> Result<Executor> {
        Executor::open(kind.name(), None)
    }

    /// Opens a device by its name on the command line (`auto`, `cuda`, `cuda:1`, `cpu`, `reference`). `threads` bounds
    /// the number of a CPU's workers.
    ///
    /// # Errors
    /// [`hologram_backends::BackendError::Unavailable`] with the devices there are.
    pub fn open(device: &str, threads: Option<usize>) -> Result<Executor> {
        Executor::open_with(device, &OpenOptions { threads, ..OpenOptions::default() })
    }

    /// As [`Executor::open`], with options: the CPU's threads, and a cap on the device's memory.
    ///
    /// # Errors
    /// As [`Executor::open`].
    pub fn open_with(device: &str, options: &OpenOptions) -> Result<Executor> {
        let (backend, fallback) = hologram_backends::open_with(device, options)?;
        Ok(Executor { fallback: fallback.map(Arc::from), ..Executor::from_backend(backend) })
    }

    /// An executor of a backend that is already open.
    pub fn from_backend(backend: Arc<dyn Backend>) -> Executor {
        Executor { backend, eager: Arc::default(), fallback: None }
    }

    /// Why `auto` took the CPU although the machine has a GPU, as a sentence for the user. `None` if a GPU was taken or
    /// there is none. [`hologram_backends::devices`] gives the reason for every device that is not available.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether both are handles to one open device.
    pub(crate) fn is(&self, other: &Executor) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The device's description.
    pub fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    /// The device's counters.
    pub fn metrics(&self) -> Metrics {
        self.backend.measure().metrics()
    }

    /// The size of the cache of operations on tensors.
    pub fn operation_cache(&self) -> OperationCache {
        self.eager.size()
    }

    /// The compiled operations on tensors.
    pub(crate) fn eager(&self) -> &Eager {
        &self.eager
    }

    /// Waits for all submitted work.
    ///
    /// # Errors
    /// The first unreported error of the work, if any; clears it. Tensors keep theirs.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.backend.synchronize()?)
    }

    /// Computes a small graph once: `build` gets the tensors as graph values and returns the result. Work that runs
    /// more than once is better compiled once, as a [`Graph`].
    ///
    /// # Errors
    /// When an operation rejects its operands, or the device fails at once. Errors of kernels come with
    /// [`Tensor::to_vec`].
    pub fn eval<const N: usize>(
        &self,
        inputs: [&Tensor; N],
        build: impl FnOnce(&mut Graph, [NodeId; N]) -> Result<NodeId>,
    ) -> Result<Tensor> {
        let mut graph = Graph::new();
        let mut nodes = [graph.node(0); N];
        for (node, tensor) in nodes.iter_mut().zip(inputs) {
            *node = graph.constant(tensor)?;
        }
        let result = build(&mut graph, nodes)?;
        graph.output("result", result)?;
        let compiled = graph.prepare(self, &[], CompileOptions::default(), Sharing::OwnOutputs)?;
        let mut results = self.run_once(&compiled, |id| graph.tensor(id))?;
        results.pop().ok_or_else(|| CoreError::Graph("nothing is computed".into()))
    }

    /// Memory for `len` elements with undefined content.
    ///
    /// # Errors
    /// When the device does not have enough memory.
    pub fn allocate<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| CoreError::Tensor(format!("{len} elements of {} are too many", T::TYPE)))?;
        Ok(Buffer { raw: self.backend.allocate_buffer(bytes)?, executor: self.clone(), len, element: PhantomData })
    }

    /// A buffer with these elements.
    ///
    /// # Errors
    /// When the device does not have enough memory.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer<T>> {
        let buffer = self.allocate(data.len())?;
        self.backend.copy_to_buffer(&buffer.raw, 0, bytes_of(data))?;
        Ok(buffer)
    }
}

/// The size of the cache of operations on tensors: an entry per combination of operation, types, shapes and layouts. It
/// holds at most 1,024 entries; an evicted operation is compiled again when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationCache {
    /// Operations in the cache.
    pub kept: usize,
    /// Operations that were evicted, the least recently used first.
    pub evicted: u64,
}

/// Device memory for elements of type `T`, freed on drop.
#[derive(Clone)]
pub struct Buffer<T: Element> {
    raw: hologram_backends::Buffer,
    executor: Executor,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The backend's buffer.
    pub fn raw(&self) -> &hologram_backends::Buffer {
        &self.raw
    }

    /// Copies elements to the device, from element `offset` on.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn write(&self, offset: usize, data: &[T]) -> Result<()> {
        let offset = offset.saturating_mul(size_of::<T>());
        Ok(self.executor.backend.copy_to_buffer(&self.raw, offset, bytes_of(data))?)
    }

    /// Waits for the device's work and copies all elements to the host.
    ///
    /// # Errors
    /// The error of the work that writes them, at each read.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut out = vec![T::default(); self.len];
        self.executor.backend.copy_from_buffer(&self.raw, 0, bytes_of_mut(&mut out))?;
        Ok(out)
    }
}
