//! Kernel requests: the data about one or several operations by which a backend chooses a native kernel.

use crate::fused::Fused;
use crate::{DType, Operation};

/// The size of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Known when the graph is compiled.
    Fixed(usize),
    /// Known at run time: word `slot` of the step block, at most `max`. Memory and strides are laid out for `max`.
    Step {
        /// Index of the `u32` in the step block.
        slot: u32,
        /// The greatest value that this plan serves.
        max: usize,
        /// Whether a row's results must have the same bits whatever the number of rows, their order and the other
        /// rows: a kernel then adds in an order that depends on nothing but the plan and the row.
        independent: bool,
    },
}

impl Extent {
    /// A size that is known at run time.
    pub const fn step(slot: u32, max: usize) -> Extent {
        Extent::Step { slot, max, independent: false }
    }

    /// Whether rows must be independent; see [`Extent::Step`].
    pub const fn is_independent(self) -> bool {
        matches!(self, Extent::Step { independent: true, .. })
    }

    /// The greatest size.
    pub const fn max(self) -> usize {
        match self {
            Extent::Fixed(n) => n,
            Extent::Step { max, .. } => max,
        }
    }

    /// The size in a run with this step block.
    pub fn value(self, step: &[u32]) -> usize {
        match self {
            Extent::Fixed(n) => n,
            Extent::Step { slot, max, .. } => step.get(slot as usize).map_or(0, |n| (*n as usize).min(max)),
        }
    }
}

/// A tensor operand: row-major, dense.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Storage format.
    pub format: DType,
    /// Sizes, slowest first.
    pub shape: Vec<Extent>,
}

impl TensorSpec {
    /// Length of the last dimension; 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.shape.last().map_or(1, |e| e.max())
    }

    /// Product of the other dimensions at their greatest.
    pub fn max_rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, rest)| rest.iter().map(|e| e.max()).product())
    }

    /// Product of the other dimensions in a run with this step block.
    pub fn rows(&self, step: &[u32]) -> usize {
        self.shape.split_last().map_or(1, |(_, rest)| rest.iter().map(|e| e.value(step)).product())
    }

    /// Bytes at the greatest size; 0 when the shape does not fit the format.
    pub fn max_bytes(&self) -> usize {
        self.format.bytes(self.max_rows(), self.row_len()).unwrap_or(0)
    }
}

/// An operation on tensors, as a backend sees it.
///
/// **Bindings.** A pipeline for a spec, native or compiled from the operation's program, takes one buffer for each view
/// ([`DType::views`]) of each input in order, then of each output that is not `in_place`, and last, when any extent is
/// [`Extent::Step`], the step block as `u32`. So a native kernel and the program it replaces are called alike.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelSpec {
    /// The operation with its attributes.
    pub op: Operation,
    /// Inputs.
    pub inputs: Vec<TensorSpec>,
    /// The output.
    pub output: TensorSpec,
    /// The input that the output overwrites, for operations on state; its buffers are bound once, at the input's place.
    pub in_place: Option<usize>,
}

impl KernelSpec {
    /// Whether any operand's size is known only at run time, so that the step block is bound.
    pub fn uses_step(&self) -> bool {
        self.inputs.iter().chain([&self.output]).any(|t| t.shape.iter().any(|e| matches!(e, Extent::Step { .. })))
    }
}

/// Several operations that one kernel may compute together, keeping only some of their results: a norm with the matrix
/// products that read it, or a product with the addition after it. Graphs request such kernels with
/// [`Kernels::native_group`](crate::Kernels::native_group).
///
/// **Bindings.** One buffer for each view of each input in order, then of each value in `outputs` in order, and last,
/// when any extent is [`Extent::Step`], the step block. A value that overwrites an input ([`GroupNode::in_place`]) is
/// bound once, as that input, and is not in `outputs`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupSpec {
    /// The inputs of the group.
    pub inputs: Vec<TensorSpec>,
    /// The operations; each reads inputs and nodes before it.
    pub nodes: Vec<GroupNode>,
    /// Indices of the nodes whose values are required; the others may never exist in memory.
    pub outputs: Vec<usize>,
    /// The group's meaning, by which devices choose kernels.
    pub fused: Fused,
}

/// One operation of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNode {
    /// The operation with its attributes.
    pub op: Operation,
    /// Its operands.
    pub operands: Vec<Operand>,
    /// Its value.
    pub output: TensorSpec,
    /// The index in `operands` of the state that it overwrites, which is an input of the group.
    pub in_place: Option<usize>,
}

/// An operand of an operation of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An input of the group.
    Input(usize),
    /// The value of a node of the group.
    Node(usize),
}

impl GroupSpec {
    /// A group of these operations; `None` if no device may have a kernel for them.
    pub fn new(inputs: Vec<TensorSpec>, nodes: Vec<GroupNode>, outputs: Vec<usize>) -> Option<GroupSpec> {
        let fused = Fused::of(&inputs, &nodes, &outputs)?;
        Some(GroupSpec { inputs, nodes, outputs, fused })
    }

    /// The group after a change of its operations, which are recognised again; `None` if they no longer form a group.
    pub fn changed(mut self, change: impl FnOnce(&mut GroupSpec)) -> Option<GroupSpec> {
        change(&mut self);
        GroupSpec::new(self.inputs, self.nodes, self.outputs)
    }

    /// The operations' names for profiles, such as `matmul+matmul+swiglu`.
    pub fn name(&self) -> String {
        self.nodes.iter().map(|n| n.op.name()).collect::<Vec<_>>().join("+")
    }

    /// Format and shape of an operand.
    pub fn operand(&self, operand: Operand) -> &TensorSpec {
        match operand {
            Operand::Input(i) => &self.inputs[i],
            Operand::Node(i) => &self.nodes[i].output,
        }
    }

    /// The tensors in binding order, each with whether a kernel writes it.
    pub fn bound(&self) -> Vec<(&TensorSpec, bool)> {
        let written = |input: usize| {
            self.nodes.iter().any(|n| n.in_place.is_some_and(|i| n.operands.get(i) == Some(&Operand::Input(input))))
        };
        let inputs = self.inputs.iter().enumerate().map(|(i, t)| (t, written(i)));
        inputs.chain(self.outputs.iter().map(|o| (&self.nodes[*o].output, true))).collect()
    }

    /// Whether any operand's size is known only at run time, so that the step block is bound.
    pub fn uses_step(&self) -> bool {
        let tensors = self.inputs.iter().chain(self.nodes.iter().map(|n| &n.output));
        tensors.flat_map(|t| &t.shape).any(|e| matches!(e, Extent::Step { .. }))
    }
}
