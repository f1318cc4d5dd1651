//! Operations on tensors, one at a time.
//!
//! Each is a small graph, compiled the first time and cached by operation, types, shapes and layouts. A call allocates
//! the result, binds the launches and submits them; it does not wait for the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_backends::{DType, Elementwise, Lru};

use crate::error::{CoreError, Result};
use crate::executor::{Executor, OperationCache};
use crate::graph::{CompileOptions, Compiled, Graph, Memory, NodeId, VIEW_ALIGN};
use crate::tensor::Tensor;

/// Maximum number of cached operations.
const CAPACITY: usize = 1024;

/// The cache of a device's compiled operations.
pub(crate) struct Eager {
    compiled: Mutex<Lru<Key, Arc<Compiled>>>,
}

impl Default for Eager {
    fn default() -> Eager {
        Eager { compiled: Mutex::new(Lru::new(CAPACITY)) }
    }
}

impl Eager {
    fn compiled(&self) -> MutexGuard<'_, Lru<Key, Arc<Compiled>>> {
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
    TakeAlong "take_along",
    Scatter "scatter",
    ScatterAdd "scatter_add",
    RmsNorm "rms_norm",
    LayerNorm "layer_norm",
    MseLoss "mse_loss",
    BceWithLogits "bce_with_logits",
    CrossEntropy "cross_entropy",
    Conv2d "conv2d",
    TopK "top_k",
    Gather "gather",
    Rope "rope",
    Concat "concat",
    Pad "pad",
    Arange "arange",
    Random "random",
}

/// The cache key: everything that a compiled operation depends on.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    call: Call,
    attributes: Vec<u64>,
    operands: Vec<Operand>,
}

#[derive(PartialEq, Eq, Hash)]
struct Operand {
    format: DType,
    shape: Vec<usize>,
    /// The strides of a view, and whether its first byte is aligned to [`VIEW_ALIGN`].
    strides: Option<(Vec<usize>, bool)>,
}

impl Operand {
    fn of(t: &Tensor) -> Operand {
        let aligned = t.offset.is_multiple_of(VIEW_ALIGN);
        Operand { format: t.format, shape: t.shape.clone(), strides: t.strides.clone().map(|s| (s, aligned)) }
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
        if operands.iter().any(|t| !t.is_of(self)) {
            let operands = operands.iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ");
            return Err(CoreError::Operands {
                op: call.name(),
                reason: "the operands belong to different executors".into(),
                operands,
            });
        }
        let key =
            Key { call, attributes: attributes.to_vec(), operands: operands.iter().map(|t| Operand::of(t)).collect() };
        let found = self.eager().compiled().get(&key);
        let compiled = match found {
            Some(compiled) => compiled,
            None => {
                let mut graph = Graph::new();
                let nodes = operands.iter().map(|t| graph.constant(t)).collect::<Result<Vec<_>>>()?;
                let result = build(&mut graph, &nodes)?;
                graph.output("result", result)?;
                let compiled = Arc::new(graph.prepare(self, &[], CompileOptions::default(), false)?);
                self.eager().compiled().insert(key, compiled)
            }
        };
        self.run_once(&compiled, |id| operands.get(id.0 as usize).copied())
    }

    /// Runs a graph that has one output and no extents or inputs. `find` returns the tensors that its nodes stand for.
    pub(crate) fn run_once<'a>(
        &self,
        compiled: &Compiled,
        find: impl Fn(NodeId) -> Option<&'a Tensor>,
    ) -> Result<Tensor> {
        let arena = self.backend().allocate_buffer(compiled.arena_bytes)?;
        let list = compiled.record(self, |memory| match memory {
            Memory::Arena => Some((&arena, 0)),
            Memory::Tensor(id) => find(id).map(|t| (&t.buffer, t.offset)),
            Memory::Step => None,
        })?;
        let event = self.backend().submit(&list)?;
        let slot = compiled.outputs.first().ok_or_else(|| CoreError::Graph("nothing is computed".into()))?;
        let shape: Vec<usize> = slot.spec.shape.iter().map(|e| e.max()).collect();
        let result = Tensor::from_buffer(self, arena.clone(), slot.offset, slot.spec.format, &shape)?;
        Ok(Tensor { made: Some(event), ..result })
    }
}
