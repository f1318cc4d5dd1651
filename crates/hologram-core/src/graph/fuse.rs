//! Fusion: chains of elementwise operations become one kernel.

use std::collections::HashMap;

use hologram_backends::{DType, Operation};
use hologram_isa::{Builder, Value};

use super::{Graph, NodeId, Source};
use crate::ops::{SharedOp, register_type};

/// The work of one launch: an operation, a part for another device, or a tree of elementwise operations that ends in
/// `root`.
#[derive(Debug)]
pub(crate) struct Step {
    /// The node whose value the launch writes.
    pub root: NodeId,
    /// The nodes that the launch reads, in binding order.
    pub inputs: Vec<NodeId>,
    /// The elementwise nodes that the launch computes, `root` included; empty for an operation that runs as it is.
    pub fused: Vec<NodeId>,
}

impl Graph {
    /// The launches of a graph in order. Nodes that no output or state update needs are left out. An elementwise node
    /// is computed inside its user if it has a single user, which is elementwise and of the same shape. A conversion to
    /// a wider type of a value in memory is computed inside each of several such users, which then read fewer bytes.
    ///
    /// A node that reads a state is not fused: the state may be overwritten before its user runs.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let live = self.live();
        let mut users: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        for (id, op_inputs) in self.op_nodes().filter(|(id, _)| live[id.0 as usize]) {
            for input in op_inputs {
                users.entry(self.storage(*input)).or_default().push(id);
            }
        }
        let reads = |user: NodeId, id: NodeId| matches!(&self.nodes[user.0 as usize].source, Source::Op { inputs, .. } if inputs.contains(&id));
        // A device may have a kernel for a product and the operation after it. Fusing that operation with a conversion
        // would hide it.
        let of_product = |inputs: &[NodeId]| {
            let is = |op: Operation| matches!(op, Operation::Matmul | Operation::ExpertMatmul { .. });
            inputs.iter().any(|i| self.op(self.storage(*i)).is_some_and(|op| is(op.operation())))
        };
        // Whether it is a conversion to a wider type of a value that is in memory, as its own user does not compute it.
        let widens = |op: &SharedOp, inputs: &[NodeId], id: NodeId| {
            let bytes = |id: NodeId| match self.ty(id).format {
                DType::Plain(ty) => Some(ty.size()),
                _ => None,
            };
            let [x] = inputs else { return false };
            let computed = self.op(*x).is_some_and(|op| op.elementwise().is_some()) && !self.is_output(*x);
            let alone = users.get(x).is_none_or(|users| users.len() == 1);
            let wider = bytes(*x).zip(bytes(id)).is_some_and(|(from, to)| from < to);
            op.operation() == Operation::Cast && wider && !(computed && alone)
        };
        let inlined = |id: NodeId| {
            let Source::Op { op, inputs } = &self.nodes[id.0 as usize].source else { return false };
            // A constant that only elementwise operations read becomes part of each of them.
            if inputs.is_empty() && op.elementwise().is_some() && !self.is_output(id) {
                return users.get(&id).is_some_and(|users| {
                    users
                        .iter()
                        .all(|user| reads(*user, id) && self.op(*user).is_some_and(|u| u.elementwise().is_some()))
                });
            }
            let within = |user: NodeId| {
                let fits = |u: &SharedOp| {
                    u.elementwise().is_some() && !(u.operation() == Operation::Cast && of_product(inputs))
                };
                self.op(user).is_some_and(fits) && reads(user, id) && self.ty(user).shape == self.ty(id).shape
            };
            op.elementwise().is_some()
                && inputs.iter().all(|i| self.state_of(*i).is_none())
                && !self.is_output(id)
                && match users.get(&id).map(Vec::as_slice) {
                    Some([user]) => within(*user),
                    Some(several) => widens(op, inputs, id) && several.iter().all(|user| within(*user)),
                    None => false,
                }
        };
        let mut steps = Vec::new();
        for (id, op_inputs) in self.op_nodes() {
            if !live[id.0 as usize] || inlined(id) {
                continue;
            }
            let mut step = Step { root: id, inputs: Vec::new(), fused: Vec::new() };
            if op_inputs.iter().any(|i| inlined(*i)) {
                self.collect(id, &inlined, &mut step);
            } else {
                step.inputs = op_inputs.to_vec();
            }
            steps.push(step);
        }
        steps
    }

    /// Emits the expression of a fused step; `leaves` are the values of the step's inputs.
    pub(crate) fn emit_fused(&self, b: &mut Builder, step: &Step, leaves: &[Value]) -> Option<Value> {
        let mut values: HashMap<NodeId, Value> = step.inputs.iter().copied().zip(leaves.iter().copied()).collect();
        for id in &step.fused {
            let Source::Op { op, inputs } = &self.nodes[id.0 as usize].source else { return None };
            let args: Option<Vec<Value>> = inputs.iter().map(|i| values.get(i).copied()).collect();
            let mut value = op.elementwise()?.emit(b, &args?);
            // A value is rounded to its type whether it passes through memory or not.
            if let DType::Plain(ty) = self.ty(*id).format {
                value = b.cvt(ty, value);
                if *id != step.root {
                    value = b.cvt(register_type(ty), value);
                }
            }
            values.insert(*id, value);
        }
        values.get(&step.root).copied()
    }

    /// Adds a fused node after the nodes inlined into it; its other operands become inputs of the step.
    fn collect(&self, id: NodeId, inlined: &dyn Fn(NodeId) -> bool, step: &mut Step) {
        if let Source::Op { inputs, .. } = &self.nodes[id.0 as usize].source {
            for input in inputs {
                if inlined(*input) {
                    if !step.fused.contains(input) {
                        self.collect(*input, inlined, step);
                    }
                } else if !step.inputs.contains(input) {
                    step.inputs.push(*input);
                }
            }
        }
        step.fused.push(id);
    }

    /// The nodes that an output or a state update needs.
    fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        for (_, id) in &self.outputs {
            live[id.0 as usize] = true;
        }
        for (i, node) in self.nodes.iter().enumerate().rev() {
            live[i] |= node.state.is_some();
            if !live[i] {
                continue;
            }
            match &node.source {
                Source::Op { inputs, .. } | Source::Part { inputs, .. } => {
                    inputs.iter().for_each(|input| live[input.0 as usize] = true);
                }
                Source::View(of, _) => live[of.0 as usize] = true,
                Source::Input { .. } | Source::Tensor(_) => {}
            }
        }
        live
    }

    /// Whether the value is read after a run, possibly with another shape.
    pub(super) fn is_output(&self, id: NodeId) -> bool {
        self.outputs.iter().any(|(_, output)| self.storage(*output) == id)
    }

    fn op_nodes(&self) -> impl Iterator<Item = (NodeId, &[NodeId])> {
        self.nodes.iter().enumerate().filter_map(|(i, n)| match &n.source {
            Source::Op { inputs, .. } | Source::Part { inputs, .. } => Some((self.node(i), inputs.as_slice())),
            _ => None,
        })
    }

    pub(crate) fn op(&self, id: NodeId) -> Option<&SharedOp> {
        match &self.nodes[id.0 as usize].source {
            Source::Op { op, .. } => Some(op),
            _ => None,
        }
    }
}
