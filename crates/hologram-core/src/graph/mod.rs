//! Graphs of tensor operations with run-time extents and state.

mod checkpoint;
mod compile;
mod elsewhere;
mod fuse;
mod gradients;
mod groups;
mod memory;
mod plan;
mod text;
mod view;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use compile::CompileOptions;
pub(crate) use compile::{Compiled, Memory, Sharing};
use elsewhere::Part;
pub use gradients::Vjp;
pub(crate) use gradients::no_derivative;
pub(crate) use plan::OutputSlot;
pub use plan::{Event, Plan};
use view::Place;
pub(crate) use view::VIEW_ALIGN;
use view::ViewStep;

use hologram_backends::DType;

use crate::error::{CoreError, Result};
use crate::layout::Layout;
use crate::ops::{Mismatch, Op, SharedOp};
use crate::tensor::{Axis, Dim, Tensor, TensorType};

/// A value of a graph: the number of its node, and of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32, u32);

/// A graph of operations, built in execution order and compiled for one device by [`Graph::compile`].
///
/// Everything that changes between runs is declared:
/// - *extents*: named sizes of a first dimension, with maxima;
/// - *inputs*: small tensors that the host writes before a run;
/// - *state*: tensors that operations update in place and that outlive runs.
///
/// Everything else is constant, so a compiled plan is replayed without changing a kernel's arguments.
#[derive(Debug)]
pub struct Graph {
    /// Tells values of this graph from those of others.
    number: u32,
    pub(crate) extents: Vec<ExtentInfo>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) outputs: Vec<(String, NodeId)>,
    /// Per state tensor, the node of its newest version.
    newest: Vec<NodeId>,
    /// Copies of views, by view.
    copies: HashMap<NodeId, NodeId>,
    /// Nodes that the backward pass computes again.
    checkpoints: Vec<Range<usize>>,
    /// The operation that the user called, while the operations it consists of are applied.
    calling: Option<&'static str>,
}

/// A named run-time extent.
#[derive(Clone, Debug)]
pub(crate) struct ExtentInfo {
    pub name: String,
    pub max: usize,
    /// See [`Extent::Step`](hologram_backends::Extent::Step).
    pub independent: bool,
}

/// A node: where its value comes from, and its type.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub source: Source,
    pub ty: TensorType,
    /// The state tensor that this value is a version of.
    pub state: Option<usize>,
    /// Where the elements lie in the storage. `None`: row-major, from its start.
    pub layout: Option<Layout>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Written by the host before a run.
    Input { name: String },
    /// A tensor that operations only read, or the first version of a state.
    Tensor(Tensor),
    /// An operation.
    Op { op: SharedOp, inputs: Vec<NodeId> },
    /// A graph that another device computes.
    Part { part: Arc<Part>, inputs: Vec<NodeId> },
    /// Another node's memory, with another shape or in another order; and how that follows from a value over it.
    View(NodeId, ViewStep),
}

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        static GRAPHS: AtomicU32 = AtomicU32::new(0);
        Graph {
            // After 2³² graphs numbers come again; values of graphs so far apart are hardly confused.
            number: GRAPHS.fetch_add(1, Ordering::Relaxed),
            extents: Vec::new(),
            nodes: Vec::new(),
            outputs: Vec::new(),
            newest: Vec::new(),
            copies: HashMap::new(),
            checkpoints: Vec::new(),
            calling: None,
        }
    }

    /// Declares a run-time extent with its maximum. It may be the first dimension of inputs. Its name must be unique;
    /// [`Graph::compile`] checks this.
    pub fn extent(&mut self, name: &str, max: usize) -> Dim {
        self.add_extent(name, max, false)
    }

    /// As [`Graph::extent`], of rows each of which must have the same bits whatever the number of rows and the other
    /// rows; see [`Extent::Step`](hologram_backends::Extent::Step). Plans with another maximum may give other bits.
    pub fn independent_extent(&mut self, name: &str, max: usize) -> Dim {
        self.add_extent(name, max, true)
    }

    fn add_extent(&mut self, name: &str, max: usize, independent: bool) -> Dim {
        self.extents.push(ExtentInfo { name: name.into(), max, independent });
        Dim::Extent(self.extents.len() as u32 - 1)
    }

    /// Declares a tensor that the host writes before each run.
    ///
    /// # Errors
    /// When the name is taken or a dimension other than the first is an extent.
    pub fn input(&mut self, name: &str, format: DType, shape: &[Dim]) -> Result<NodeId> {
        if self.nodes.iter().any(|n| matches!(&n.source, Source::Input { name: other } if other == name)) {
            return Err(CoreError::Graph(format!("two inputs are named {name}")));
        }
        self.push(Source::Input { name: name.into() }, TensorType::new(format, shape))
    }

    /// A tensor that the graph only reads, such as a weight.
    ///
    /// # Errors
    /// When the tensor belongs to a different executor from an earlier tensor, or shares memory with a state.
    pub fn constant(&mut self, tensor: &Tensor) -> Result<NodeId> {
        for state in self.tensors(|node| node.state.is_some()) {
            self.distinct(state, "constant", tensor)?;
        }
        self.push_tensor(tensor)
    }

    fn push_tensor(&mut self, tensor: &Tensor) -> Result<NodeId> {
        let other = |node: &Node| matches!(&node.source, Source::Tensor(t) if !t.is_of(tensor.executor()));
        if self.nodes.iter().any(other) {
            return Err(CoreError::Graph(format!("{tensor:?} belongs to another executor than the tensors before it")));
        }
        let shape: Vec<Dim> = tensor.shape().iter().map(|n| Dim::Fixed(*n)).collect();
        let id = self.push(Source::Tensor(tensor.clone()), TensorType::new(tensor.dtype(), shape))?;
        self.nodes[id.0 as usize].layout = tensor.layout();
        Ok(id)
    }

    /// A tensor that operations update in place and that keeps its content between runs and plans, such as a KV cache.
    ///
    /// # Errors
    /// When the tensor is a view, belongs to a different executor from an earlier tensor, or shares memory with one.
    pub fn state(&mut self, tensor: &Tensor) -> Result<NodeId> {
        if tensor.layout().is_some() {
            return Err(CoreError::Graph("a state must not be a view".into()));
        }
        for other in self.tensors(|_| true) {
            self.distinct(tensor, "tensor", other)?;
        }
        let id = self.push_tensor(tensor)?;
        self.nodes[id.0 as usize].state = Some(self.newest.len());
        self.newest.push(id);
        Ok(id)
    }

    /// The tensors of the nodes for which `of` holds.
    fn tensors(&self, of: impl Fn(&Node) -> bool) -> impl Iterator<Item = &Tensor> {
        self.nodes.iter().filter_map(move |node| match &node.source {
            Source::Tensor(tensor) if of(node) => Some(tensor),
            _ => None,
        })
    }

    /// Rejects another tensor in the memory of a state: an operation could read it while that operation, or another
    /// one, writes the state.
    fn distinct(&self, state: &Tensor, kind: &str, other: &Tensor) -> Result<()> {
        if !state.overlaps(other) {
            return Ok(());
        }
        Err(CoreError::Graph(format!(
            "the state {state:?} and the {kind} {other:?} share memory; declare the state once, or give the graph a copy (Tensor::copy) of one"
        )))
    }

    /// Applies an operation.
    ///
    /// # Errors
    /// When the operands do not fit, when one is a version of a state that an earlier operation has overwritten, or
    /// when the operation also reads the state that it updates as another operand.
    pub fn apply(&mut self, op: impl Op + 'static, inputs: &[NodeId]) -> Result<NodeId> {
        self.apply_shared(Arc::new(op), inputs)
    }

    /// Applies the operations that `op` consists of; errors name `op`.
    pub(crate) fn called<T>(&mut self, op: &'static str, apply: impl FnOnce(&mut Graph) -> Result<T>) -> Result<T> {
        let outer = self.calling;
        self.calling = Some(outer.unwrap_or(op));
        let result = apply(self);
        self.calling = outer;
        result
    }

    /// The dimension of `x` that an operation works along.
    pub(crate) fn axis(&self, op: &'static str, x: NodeId, dim: impl Axis) -> Result<usize> {
        let op = self.calling.unwrap_or(op);
        let ty = &self.operand(op, x)?.ty;
        let rank = ty.shape.len();
        dim.axis(rank).ok_or_else(|| CoreError::Operands {
            op,
            reason: format!("there is no dimension {dim} of {rank}"),
            operands: self.describe(ty),
        })
    }

    /// As [`Graph::apply`].
    pub(crate) fn apply_shared(&mut self, op: SharedOp, inputs: &[NodeId]) -> Result<NodeId> {
        let name = self.calling.unwrap_or(op.name());
        let mut types = Vec::with_capacity(inputs.len());
        for id in inputs {
            let node = self.operand(name, *id)?;
            let storage = self.storage(*id);
            if let Some(state) = self.nodes[storage.0 as usize].state
                && self.newest[state] != storage
            {
                return Err(CoreError::Graph(format!(
                    "{name} reads an older version of a state that a later operation has overwritten"
                )));
            }
            types.push(&node.ty);
        }
        let describe = |mismatch: Mismatch| {
            let operands = types.iter().map(|t| self.describe(t)).collect::<Vec<_>>().join(", ");
            match mismatch {
                Mismatch::Type(reason) => CoreError::Type { op: name, reason, operands },
                Mismatch::Other(reason) => CoreError::Operands { op: name, reason, operands },
            }
        };
        let ty = op.infer(&types).map_err(describe)?;
        let mut inputs = inputs.to_vec();
        let state = match op.in_place() {
            None => None,
            Some(i) => match inputs.get(i).and_then(|id| self.nodes[id.0 as usize].state) {
                Some(state) => Some(state),
                None => return Err(CoreError::Graph(format!("{name} updates a tensor that is not a state"))),
            },
        };
        if let (Some(at), Some(state)) = (op.in_place(), state) {
            let again = |(i, id): (usize, &NodeId)| i != at && self.state_of(*id) == Some(state);
            if let Some(i) = inputs.iter().enumerate().position(again) {
                return Err(CoreError::Graph(format!(
                    "{name} updates its operand {at}, a state, in place, and reads it as operand {i} too; copy it first (Graph::copy)"
                )));
            }
        }
        if !op.takes_views() {
            inputs = inputs.into_iter().map(|id| self.contiguous(id)).collect::<Result<_>>()?;
        }
        let id = self.push(Source::Op { op, inputs }, ty)?;
        if let Some(state) = state {
            self.nodes[id.0 as usize].state = Some(state);
            self.newest[state] = id;
        }
        Ok(id)
    }

    /// Names a value that is read after a run.
    ///
    /// # Errors
    /// When the name is taken, or the value is a state or is not computed by an operation.
    pub fn output(&mut self, name: &str, value: NodeId) -> Result<()> {
        if self.outputs.iter().any(|(other, _)| other == name) {
            return Err(CoreError::Graph(format!("two outputs are named {name}")));
        }
        if !self.has(value) {
            return Err(CoreError::Graph(format!("output {name} is a value of another graph")));
        }
        if !self.is_computed(value) {
            return Err(CoreError::Graph(format!("output {name} must be the result of an operation and not a state")));
        }
        let value = self.contiguous(value)?;
        self.outputs.push((name.into(), value));
        Ok(())
    }

    /// Whether a value is the result of an operation, or a view of one, and not a state.
    pub(crate) fn is_computed(&self, value: NodeId) -> bool {
        self.has(value)
            && matches!(
                self.nodes[self.storage(value).0 as usize],
                Node { source: Source::Op { .. } | Source::Part { .. }, state: None, .. }
            )
    }

    /// Whether a value is computed, in row-major order in memory that no other value of the graph's outputs has.
    pub(crate) fn fills_its_memory(&self, value: NodeId) -> bool {
        if !self.is_computed(value) {
            return false;
        }
        let storage = self.storage(value);
        let taken = self.outputs.iter().any(|(_, output)| self.storage(*output) == storage);
        let whole = self.sizes(&self.ty(value).shape).iter().product::<usize>()
            == self.sizes(&self.ty(storage).shape).iter().product::<usize>();
        !taken && whole && matches!(self.place(value), Place::Dense(0))
    }

    /// Whether the host writes something before a run.
    pub(crate) fn has_inputs(&self) -> bool {
        !self.extents.is_empty() || self.nodes.iter().any(|node| matches!(node.source, Source::Input { .. }))
    }

    /// The tensor of a node, if it has one.
    pub(crate) fn tensor(&self, id: NodeId) -> Option<&Tensor> {
        match &self.nodes[id.0 as usize].source {
            Source::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The type of a value.
    ///
    /// # Errors
    /// When the graph has no such value.
    pub fn type_of(&self, id: NodeId) -> Result<&TensorType> {
        Ok(&self.operand("type_of", id)?.ty)
    }

    /// The state that a value, or the storage of a view, is a version of.
    pub(crate) fn state_of(&self, id: NodeId) -> Option<usize> {
        self.nodes[self.storage(id).0 as usize].state
    }

    /// The type of a value of this graph.
    pub(crate) fn ty(&self, id: NodeId) -> &TensorType {
        &self.nodes[id.0 as usize].ty
    }

    /// The value of a node.
    pub(crate) fn node(&self, index: usize) -> NodeId {
        NodeId(index as u32, self.number)
    }

    /// Whether a value is of this graph.
    fn has(&self, id: NodeId) -> bool {
        id.1 == self.number && (id.0 as usize) < self.nodes.len()
    }

    /// The node of an operand. An error for a value of another graph.
    pub(crate) fn operand(&self, op: &'static str, id: NodeId) -> Result<&Node> {
        if self.has(id) {
            return Ok(&self.nodes[id.0 as usize]);
        }
        let op = self.calling.unwrap_or(op);
        Err(CoreError::Graph(format!("{op}: an operand is a value of another graph")))
    }

    /// The shape of a value. It is empty for a value that this graph does not have; the operation then rejects the
    /// value.
    pub(crate) fn shape_of(&self, id: NodeId) -> &[Dim] {
        if self.has(id) { &self.nodes[id.0 as usize].ty.shape } else { &[] }
    }

    fn push(&mut self, source: Source, ty: TensorType) -> Result<NodeId> {
        for (i, d) in ty.shape.iter().enumerate() {
            match d {
                Dim::Extent(e) if *e as usize >= self.extents.len() => {
                    return Err(CoreError::Graph("a shape names an extent of another graph".into()));
                }
                Dim::Extent(_) if i > 0 => {
                    return Err(CoreError::Graph(format!(
                        "only the first dimension may be a run-time extent: {}",
                        self.describe(&ty)
                    )));
                }
                _ => {}
            }
        }
        // Programs compute indices in u32.
        let size = |d: &Dim| match d {
            Dim::Fixed(n) => *n,
            Dim::Extent(e) => self.extents[*e as usize].max,
        };
        let elements = ty.shape.iter().try_fold(1usize, |n, d| n.checked_mul(size(d)));
        if elements.is_none_or(|n| n > u32::MAX as usize) {
            return Err(CoreError::Graph(format!("{} has more than {} elements", self.describe(&ty), u32::MAX)));
        }
        self.nodes.push(Node { source, ty, state: None, layout: None });
        Ok(self.node(self.nodes.len() - 1))
    }

    /// A type with the names of its extents.
    fn describe(&self, ty: &TensorType) -> String {
        let dim = |d: &Dim| match d {
            Dim::Fixed(n) => n.to_string(),
            Dim::Extent(e) => self.extents.get(*e as usize).map_or_else(|| "?".into(), |e| e.name.clone()),
        };
        format!("{}[{}]", ty.format.name(), ty.shape.iter().map(dim).collect::<Vec<_>>().join(", "))
    }
}
