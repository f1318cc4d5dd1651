//! Operations on tensors, one at a time.
//!
//! Each is a small graph, compiled the first time and cached by operation, types, shapes and layouts. A call allocates
//! the result, binds the launches and submits them; it does not wait for the device.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_backends::{BackendType, Buffer, DType, Elementwise, Event, Lru};
use hologram_isa::Type;
use tracing::span::EnteredSpan;

use crate::error::{CoreError, Result};
use crate::executor::{Executor, OperationCache};
use crate::graph::{CompileOptions, Compiled, Graph, Memory, NodeId, OutputSlot, Sharing, VIEW_ALIGN};
use crate::ops::Fill;
use crate::tensor::Tensor;

/// Maximum number of cached operations.
const CAPACITY: usize = 1024;

/// The cache of a device's compiled operations.
pub(crate) struct Eager {
    /// By the hash of the key, which an operation's own key confirms.
    compiled: Mutex<Lru<u64, Arc<Operation>>>,
    /// The memory of scalars, by type and value. Only programs read it.
    scalars: Mutex<Lru<(Type, u64), Buffer>>,
}

impl Default for Eager {
    fn default() -> Eager {
        Eager { compiled: Mutex::new(Lru::new(CAPACITY)), scalars: Mutex::new(Lru::new(CAPACITY)) }
    }
}

impl Eager {
    fn compiled(&self) -> MutexGuard<'_, Lru<u64, Arc<Operation>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn size(&self) -> OperationCache {
        let compiled = self.compiled();
        OperationCache { kept: compiled.len(), evicted: compiled.evicted() }
    }
}

macro_rules! calls {
    ($($variant:ident $name:literal,)*) => {
        /// The methods on tensors that compile a graph. A call and its attributes are part of the cache key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Call {
            Elementwise(Elementwise),
            $($variant,)*
        }

        impl Call {
            /// The method's name, for messages.
            fn name(self) -> &'static str {
                match self {
                    Call::Elementwise(op) => op.name(),
                    $(Call::$variant => $name,)*
                }
            }
        }
    };
}

calls! {
    Fill "fill",
    Cast "cast",
    Copy "copy",
    Matmul "matmul",
    Reduce "reduce",
    ReduceAll "reduce_all",
    Softmax "softmax",
    LogSoftmax "log_softmax",
    ArgMax "arg_max",
    ArgMin "arg_min",
    Sort "sort",
    ArgSort "arg_sort",
    CumSum "cumsum",
    CumProd "cumprod",
    TakeAlong "take_along",
    Scatter "scatter",
    ScatterAdd "scatter_add",
    RmsNorm "rms_norm",
    LayerNorm "layer_norm",
    MseLoss "mse_loss",
    BceWithLogits "bce_with_logits",
    CrossEntropy "cross_entropy",
    Conv2d "conv2d",
    Attention "attention",
    TopK "top_k",
    Gather "gather",
    Rope "rope",
    Concat "concat",
    Pad "pad",
    Arange "arange",
    Random "random",
    Indices "take",
    Counted "count_nonzero",
    Unravel "nonzero",
    SearchSorted "search_sorted",
}

impl Call {
    /// Whether it reads each element once, in the order of the operand's shape, so that a large transposed operand is
    /// better copied into that order first: the CPU has a kernel for this, while programs fetch element by element.
    fn reads_in_order(self) -> bool {
        matches!(self, Call::Elementwise(_) | Call::Cast | Call::Reduce | Call::ReduceAll)
    }
}

/// The least elements of a tensor whose order matters: fewer lie in the fastest cache.
const TURNED: usize = 8 << 10;

/// Whether neighbours of a view's last dimension lie apart in memory, and those of another lie together.
fn is_turned(t: &Tensor) -> bool {
    let Some(strides) = &t.strides else { return false };
    let mut dims = t.shape.iter().zip(strides).filter(|(n, _)| **n > 1).rev();
    t.shape.iter().product::<usize>() >= TURNED
        && dims.next().is_some_and(|(_, stride)| *stride > 1)
        && dims.any(|(_, stride)| *stride == 1)
}

/// The cache key: everything that a compiled operation depends on.
struct Key {
    call: Call,
    attributes: Vec<u64>,
    operands: Signature,
}

/// A compiled operation with its key.
struct Operation {
    key: Key,
    compiled: Compiled,
}

/// Types, shapes and layouts of tensors: everything that a graph over them depends on.
#[derive(Debug)]
pub(crate) struct Signature(Vec<Operand>);

#[derive(Debug)]
struct Operand {
    format: DType,
    shape: Vec<usize>,
    /// The strides of a view, and whether its first byte is aligned to [`VIEW_ALIGN`].
    strides: Option<(Vec<usize>, bool)>,
}

fn is_aligned(t: &Tensor) -> bool {
    t.offset.is_multiple_of(VIEW_ALIGN)
}

impl Signature {
    pub(crate) fn of(tensors: &[&Tensor]) -> Signature {
        let operand = |t: &&Tensor| Operand {
            format: t.format,
            shape: t.shape.clone(),
            strides: t.strides.clone().map(|s| (s, is_aligned(t))),
        };
        Signature(tensors.iter().map(operand).collect())
    }

    /// Whether tensors have this signature.
    pub(crate) fn fits(&self, tensors: &[&Tensor]) -> bool {
        let same = |(o, t): (&Operand, &&Tensor)| {
            let layout = match (&o.strides, &t.strides) {
                (None, None) => true,
                (Some((strides, aligned)), Some(other)) => strides == other && *aligned == is_aligned(t),
                _ => false,
            };
            layout && o.format == t.format && o.shape == t.shape
        };
        self.0.len() == tensors.len() && self.0.iter().zip(tensors).all(same)
    }

    /// A hash of the signature that tensors have, without allocating it.
    pub(crate) fn hash(tensors: &[&Tensor], hasher: &mut Fold) {
        for t in tensors {
            t.format.hash(hasher);
            t.shape.hash(hasher);
            if let Some(strides) = &t.strides {
                strides.hash(hasher);
                is_aligned(t).hash(hasher);
            }
        }
    }
}

/// A quick hash for keys that are compared in full afterwards: each word is multiplied, and the product folded.
#[derive(Default)]
pub(crate) struct Fold(u64);

impl Fold {
    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * u128::from(0xd6e8_feb8_6659_fd93u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.word(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }
}

impl Executor {
    /// The result of an operation on tensors of this device. `build` makes its graph if it is not cached. Calls with
    /// the same `call` and `attributes` must always build the same graph.
    pub(crate) fn cached(
        &self,
        call: Call,
        attributes: &[u64],
        operands: &[&Tensor],
        build: impl FnOnce(&mut Graph, &[NodeId]) -> Result<NodeId>,
    ) -> Result<Tensor> {
        self.own_all(call.name(), operands)?;
        let mut hasher = Fold::default();
        call.hash(&mut hasher);
        attributes.hash(&mut hasher);
        Signature::hash(operands, &mut hasher);
        let hash = hasher.finish();
        let found = self.eager().compiled().get(&hash);
        let fits =
            |o: &Operation| o.key.call == call && o.key.attributes == attributes && o.key.operands.fits(operands);
        let operation = match found.filter(|o| fits(o)) {
            Some(operation) => operation,
            None => {
                let mut graph = Graph::new();
                let mut nodes = operands.iter().map(|t| graph.constant(t)).collect::<Result<Vec<_>>>()?;
                if self.info().backend == BackendType::Cpu && call.reads_in_order() {
                    for (node, _) in nodes.iter_mut().zip(operands).filter(|(_, t)| is_turned(t)) {
                        *node = graph.copy(*node)?;
                    }
                }
                let result = build(&mut graph, &nodes)?;
                graph.output("result", result)?;
                let compiled = graph.prepare(self, &[], CompileOptions::default(), Sharing::OwnOutputs)?;
                let key = Key { call, attributes: attributes.to_vec(), operands: Signature::of(operands) };
                let operation = Arc::new(Operation { key, compiled });
                // Of two keys with one hash only the first is kept.
                self.eager().compiled().insert(hash, operation.clone());
                operation
            }
        };
        let mut results = self.run_once(&operation.compiled, |id| operands.get(id.0 as usize).copied())?;
        results.pop().ok_or_else(|| CoreError::Graph("nothing is computed".into()))
    }

    /// An operand without dimensions. Its value is in memory, not part of a program, so different values share a
    /// program; the memory is kept, so that a loop with one number uploads it once.
    ///
    /// # Errors
    /// When the type cannot represent the value; errors of the device.
    pub(crate) fn scalar(&self, ty: Type, value: f64) -> Result<Tensor> {
        let scalars = || self.eager().scalars.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ty, value.to_bits());
        let found = scalars().get(&key);
        let buffer = match found {
            Some(buffer) => buffer,
            None => {
                let bytes = Fill::new(value, ty, &[])?.bytes();
                let buffer = self.backend().allocate_buffer(bytes.len())?;
                self.backend().copy_to_buffer(&buffer, 0, &bytes)?;
                scalars().insert(key, buffer)
            }
        };
        Tensor::from_buffer(self, buffer, 0, DType::Plain(ty), &[])
    }

    /// Checks that tensors lie on this device.
    ///
    /// # Errors
    /// When one does not.
    pub(crate) fn own_all(&self, op: &'static str, operands: &[&Tensor]) -> Result<()> {
        if operands.iter().all(|t| t.is_of(self)) {
            return Ok(());
        }
        let operands = operands.iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ");
        Err(CoreError::Operands { op, reason: "the operands belong to different executors".into(), operands })
    }

    /// Runs a graph without extents or inputs, prepared with [`Sharing::OwnOutputs`]. `find` returns the tensors that
    /// its nodes stand for.
    pub(crate) fn run_once<'a>(
        &self,
        compiled: &Compiled,
        find: impl Fn(NodeId) -> Option<&'a Tensor>,
    ) -> Result<Vec<Tensor>> {
        let backend = self.backend();
        let own = compiled
            .own
            .iter()
            .map(|bytes| backend.allocate_buffer(*bytes))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let (event, arena) = self.run_into(compiled, |number| own.get(number).map(|buffer| (buffer, 0)), find)?;
        let result = |slot: &OutputSlot| {
            let buffer = slot.memory.and_then(|number| own.get(number)).or(arena.as_ref());
            Some(Tensor {
                executor: self.clone(),
                buffer: buffer?.clone(),
                offset: slot.offset,
                format: slot.spec.format,
                shape: slot.shape.clone(),
                strides: None,
                made: Some(event),
            })
        };
        Ok(compiled.outputs.iter().filter_map(result).collect())
    }

    /// The span of a list of launches that is given to the device. A GPU computes it later.
    pub(crate) fn run_span(&self, launches: usize) -> EnteredSpan {
        tracing::trace_span!("run", device = self.info().backend.name(), launches).entered()
    }

    /// As [`Executor::run_once`], with the memories of the outputs: `own` returns each by number.
    pub(crate) fn run_into<'a, 'b>(
        &self,
        compiled: &Compiled,
        own: impl Fn(usize) -> Option<(&'b Buffer, usize)>,
        find: impl Fn(NodeId) -> Option<&'a Tensor>,
    ) -> Result<(Event, Option<Buffer>)> {
        let backend = self.backend();
        let _run = self.run_span(compiled.len());
        let arena = match compiled.arena_bytes {
            0 => None,
            bytes => Some(backend.allocate_buffer(bytes)?),
        };
        let list = compiled.record(self, 0..compiled.len(), |memory| match memory {
            Memory::Arena => arena.as_ref().map(|arena| (arena, 0)),
            Memory::Own(number) => own(number),
            Memory::Tensor(id) => find(id).map(|t| (&t.buffer, t.offset)),
            Memory::Step => None,
        })?;
        Ok((backend.submit(&list)?, arena))
    }
}
