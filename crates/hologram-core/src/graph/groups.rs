//! Groups: consecutive launches that one native kernel of the device may compute together.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use hologram_backends::{Backend, Elementwise, GroupNode, GroupSpec, MOST_PRODUCTS, Operand, Operation, Pipeline};

use super::compile::Bounds;
use super::fuse::Step;
use super::view::{Place, elements};
use super::{Graph, NodeId, Source};
use crate::tensor::Dim;

/// Steps that one native kernel computes.
pub(crate) struct Group {
    /// Their indices among the steps.
    pub steps: Range<usize>,
    /// The values that the kernel reads, in binding order.
    pub inputs: Vec<NodeId>,
    /// The values that it writes, except states, in binding order.
    pub outputs: Vec<NodeId>,
    /// Whether the step block is bound.
    pub uses_step: bool,
    /// The kernel.
    pub pipeline: Pipeline,
}

/// The possible groups that begin at a step: `prologue` steps that prepare an operand (a norm, a conversion), then one
/// of several bodies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pattern {
    prologue: usize,
    /// Lengths of bodies, the longest first.
    bodies: Vec<usize>,
}

/// The most launches that prepare a recurrence.
const MOST_BEFORE_RECURRENCE: usize = 8;

impl Graph {
    /// The groups that the device has kernels for, in order. From each step on the longest candidates are offered
    /// first; of equally long ones, those with the longer body. A norm and a conversion before a group that does not
    /// include them are offered as a group of their own.
    ///
    /// The steps of a group are consecutive, so the group takes their place regardless of dependencies on them or on a
    /// state.
    pub(super) fn groups(&self, bounds: &Bounds<'_>, steps: &[Step], backend: &Arc<dyn Backend>) -> Vec<Group> {
        let mut users: HashMap<NodeId, Vec<usize>> = HashMap::new();
        for (i, step) in steps.iter().enumerate() {
            for input in &step.inputs {
                users.entry(self.storage(*input)).or_default().push(i);
            }
        }
        let offer = |range: Range<usize>| self.offer(bounds, steps, &users, range, backend);
        let mut groups = Vec::new();
        let mut at = 0;
        while at < steps.len() {
            let pattern = self.pattern(&steps[at..]);
            let body = at + pattern.prologue;
            let ranges = pattern.bodies.iter().flat_map(|len| (at..=body).map(move |start| start..body + len));
            let mut ranges: Vec<Range<usize>> =
                ranges.filter(|r| r.len() > 1 || !steps[r.start].fused.is_empty()).collect();
            ranges.sort_by_key(|r| Reverse(r.len()));
            let found = ranges.into_iter().find_map(offer);
            let before = at..found.as_ref().map_or(body, |g| g.steps.start);
            groups.extend(if before.len() > 1 { offer(before) } else { None });
            // All groups that begin at the body's first step were offered.
            at = match &found {
                Some(group) => group.steps.end,
                None => (body + usize::from(!pattern.bodies.is_empty())).max(at + 1),
            };
            groups.extend(found);
        }
        groups
    }

    /// The possible groups that begin with the first of these steps:
    /// - `[rms_norm]? [quantize | cast]?`, then up to four products that share their left side, or two products and
    ///   their gate with or without its conversion, or one product and an addition to it;
    /// - `rms_norm [quantize | cast]` alone, and two norms;
    /// - additions of two or three biases;
    /// - a chain of a bias's addition and GELU or another addition, with or without a conversion;
    /// - rotary embedding of queries and keys and the cache's two updates, with or without the attention that reads
    ///   them, its result converted or not, and with or without norms before all; with attention, positions, slots,
    ///   tables and the cache's earlier content must be given before the run;
    /// - a norm, a router's product, its choice, and the conversion of the norm's result for the experts;
    /// - a router's choice: the softmax of rows, their greatest elements and these elements' values, or the softmax
    ///   last;
    /// - two products with experts' matrices and their gate, or one, with or without the conversion before it, the sum
    ///   of its results and an addition to it;
    /// - the update of a recurrent state that is given before the run, and the results of its tokens, with what
    ///   prepares and follows them ([`Graph::recurrence_bodies`]);
    /// - `rms_norm swiglu`;
    /// - the sort of blocks with the merges after it.
    fn pattern(&self, steps: &[Step]) -> Pattern {
        let op = |i: usize| steps.get(i).and_then(|s| self.single(s));
        let reads = |user: usize, of: usize| steps[user].inputs.iter().any(|i| self.storage(*i) == steps[of].root);
        let is_norm = |i: usize| matches!(op(i), Some(Operation::RmsNorm { .. }));
        // A bias and the operation after it, in a chain of its own.
        if let Some(Step { fused, .. }) = steps.first()
            && let [first, second, ..] = fused[..]
        {
            let is = |id, of: Elementwise| self.op(id).is_some_and(|op| op.operation() == of.into());
            let biased = is(first, Elementwise::Add) && (is(second, Elementwise::Gelu) || is(second, Elementwise::Add));
            return Pattern { prologue: 0, bodies: if biased { vec![1] } else { Vec::new() } };
        }
        let is_rope = |i: usize| matches!(op(i), Some(Operation::Rope { .. }));
        // Bodies that begin with two rotations.
        let of_cache = |first: usize| -> Vec<usize> {
            let (op, steps) = (|i: usize| op(first + i), &steps[first..]);
            let reads = |user: usize, of: usize| reads(first + user, first + of);
            let appended = is_rope(first + 1) && [2, 3].iter().all(|i| op(*i) == Some(Operation::KvAppend));
            if !appended || !(2..4).any(|append| reads(append, 0) || reads(append, 1)) {
                return Vec::new();
            }
            // The kernel may read these while earlier launches still run.
            let given = |user: usize, operands: &[usize]| {
                operands.iter().all(|i| steps[user].inputs.get(*i).is_some_and(|id| self.is_given(*id)))
            };
            let attended = matches!(op(4), Some(Operation::Attention { .. }))
                && steps[4].inputs.len() >= 6
                && (reads(4, 0) || reads(4, 1))
                && [2, 3].iter().all(|append| reads(4, *append) && given(*append, &[0, 2]))
                && [0, 1].iter().all(|rope| given(*rope, &[1, 2]))
                && (3..steps[4].inputs.len()).all(|i| given(4, &[i]));
            let converted = attended && op(5) == Some(Operation::Cast) && reads(5, 4);
            [converted.then_some(6), attended.then_some(5), Some(4)].into_iter().flatten().collect()
        };
        if is_rope(0) {
            return Pattern { prologue: 0, bodies: of_cache(0) };
        }
        if is_norm(0) && is_norm(1) && is_rope(2) && !reads(1, 0) {
            // With attention; else the norms alone.
            let attended = of_cache(2).into_iter().filter(|len| *len > 4);
            return Pattern { prologue: 0, bodies: attended.map(|len| len + 2).chain([2]).collect() };
        }
        if matches!(op(0), Some(Operation::SortBlocks { .. })) {
            let is_merge = |i: usize| matches!(op(i), Some(Operation::SortMerge { .. }));
            let merges = (1..steps.len()).take_while(|i| is_merge(*i) && reads(*i, i - 1)).count();
            return Pattern { prologue: 0, bodies: if merges > 0 { vec![1 + merges] } else { Vec::new() } };
        }
        let routes = |at: usize| {
            matches!(
                (op(at), op(at + 1), op(at + 2)),
                (Some(Operation::TopK { .. }), Some(Operation::Take { .. }), Some(Operation::Softmax { .. }))
                    | (Some(Operation::Softmax { .. }), Some(Operation::TopK { .. }), Some(Operation::Take { .. }))
            ) && reads(at + 1, at)
                && reads(at + 2, at + 1)
        };
        if routes(0) {
            return Pattern { prologue: 0, bodies: vec![3] };
        }
        // Bodies that begin with a product with experts' matrices.
        let of_experts = |at: usize| {
            let op = |i: usize| op(at + i);
            let reads = |user: usize, of: usize| reads(at + user, at + of);
            let gate = op(1) == op(0)
                && [Elementwise::Swiglu, Elementwise::Relu2Mul, Elementwise::ClampedSwiglu]
                    .iter()
                    .any(|gate| op(2) == Some((*gate).into()))
                && reads(2, 0)
                && reads(2, 1);
            let summed = op(1) == Some(Operation::ExpertSum) && reads(1, 0);
            let added = summed && op(2) == Some(Elementwise::Add.into()) && reads(2, 1);
            [(gate || added).then_some(3), summed.then_some(2)].into_iter().flatten().collect()
        };
        let is_of_experts = |i: usize| matches!(op(i), Some(Operation::ExpertMatmul { .. }));
        if is_of_experts(0) {
            return Pattern { prologue: 0, bodies: of_experts(0) };
        }
        let bodies = self.recurrence_bodies(steps);
        if !bodies.is_empty() {
            return Pattern { prologue: 0, bodies };
        }
        if matches!(op(0), Some(Operation::RmsNorm { .. })) && op(1) == Some(Elementwise::Swiglu.into()) && reads(1, 0)
        {
            return Pattern { prologue: 0, bodies: vec![2] };
        }
        let converts = |i: usize| matches!(op(i), Some(Operation::Quantize { .. } | Operation::Cast));
        let is_sum = |i: usize| op(i) == Some(Elementwise::Add.into());
        if is_sum(0) && is_sum(1) && !reads(1, 0) {
            let third = is_sum(2) && !reads(2, 0) && !reads(2, 1);
            return Pattern { prologue: 0, bodies: if third { vec![3, 2] } else { vec![2] } };
        }
        if converts(0) && is_of_experts(1) && reads(1, 0) {
            return Pattern { prologue: 1, bodies: of_experts(1) };
        }
        let mut prologue = usize::from(matches!(op(0), Some(Operation::RmsNorm { .. })));
        if converts(prologue) && (prologue == 0 || reads(prologue, 0)) {
            prologue += 1;
        }
        let first = prologue;
        let mut bodies = Vec::new();
        if prologue == 1 && op(1) == Some(Operation::Matmul) && reads(1, 0) {
            let added = op(2) == Some(Elementwise::Add.into()) && reads(2, 1);
            let choice = if added { 3 } else { 2 };
            if routes(choice) && reads(choice, choice - 1) {
                let end = choice + 3;
                bodies.extend((converts(end) && reads(end, 0)).then_some(end));
                bodies.push(end - 1);
            }
        }
        let left = |i: usize| {
            steps.get(i).filter(|_| op(i) == Some(Operation::Matmul)).and_then(|s| s.inputs.first().copied())
        };
        if prologue == 1
            && matches!((op(0), op(1)), (Some(Operation::RmsNorm { .. }), Some(Operation::RmsNorm { .. })))
            && !reads(1, 0)
        {
            bodies.push(1);
        }
        if let Some(x) = left(first)
            && (prologue == 0 || self.storage(x) == steps[first - 1].root)
        {
            let alike = |i: usize| left(i) == Some(x);
            let products = (first..first + MOST_PRODUCTS).take_while(|i| alike(*i)).count();
            let last = first + products;
            let gate = products == 2
                && [Elementwise::Swiglu, Elementwise::Relu2Mul].iter().any(|gate| op(last) == Some((*gate).into()))
                && reads(last, first)
                && reads(last, first + 1);
            let added = products == 1 && op(last) == Some(Elementwise::Add.into()) && reads(last, first);
            let converted = gate && op(last + 1) == Some(Operation::Cast) && reads(last + 1, last);
            bodies.extend(converted.then_some(products + 2));
            bodies.extend((gate || added).then_some(products + 1));
            bodies.extend((1..=products).rev());
        }
        Pattern { prologue, bodies }
    }

    /// The bodies of a recurrent layer: the update of a state and the results of its tokens, with the copies, norms and
    /// elementwise operations that prepare a linear recurrence and those after it.
    fn recurrence_bodies(&self, steps: &[Step]) -> Vec<usize> {
        let op = |i: usize| steps.get(i).and_then(|s| self.single(s));
        let reads = |user: usize, of: usize| steps[user].inputs.iter().any(|i| self.storage(*i) == steps[of].root);
        let prepares = |step: &Step| {
            let op = self.single(step);
            op.is_none_or(|op| matches!(op, Operation::Copy | Operation::RmsNorm { .. } | Operation::Elementwise(_)))
        };
        let at = match op(0) {
            Some(Operation::Copy) => steps.iter().take(MOST_BEFORE_RECURRENCE).take_while(|s| prepares(s)).count(),
            _ => 0,
        };
        let (runs, results) = match op(at) {
            Some(Operation::RecurrentState(rule)) => (if rule.delta { 5 } else { 4 }, Operation::Recurrence(rule)),
            Some(Operation::ConvState) if at == 0 => (2, Operation::CausalConv),
            _ => return Vec::new(),
        };
        // The kernel may read these while earlier launches still run.
        let given = [0, runs].iter().all(|i| steps[at].inputs.get(*i).is_some_and(|id| self.is_given(*id)));
        if !given || op(at + 1).as_ref() != Some(&results) || !reads(at + 1, at) {
            return Vec::new();
        }
        let is = |id: NodeId, of: Elementwise| self.op(id).is_some_and(|op| op.operation() == of.into());
        let follows = steps.get(at + 2).is_some_and(|step| {
            let fused = &step.fused[..];
            let chain = match results {
                Operation::CausalConv => match fused {
                    [] => is(step.root, Elementwise::Add) || is(step.root, Elementwise::Silu),
                    [add, silu] => is(*add, Elementwise::Add) && is(*silu, Elementwise::Silu),
                    _ => false,
                },
                _ => matches!(fused, [mul, add] if is(*mul, Elementwise::Mul) && is(*add, Elementwise::Add)),
            };
            chain && reads(at + 2, at + 1)
        });
        if follows { vec![at + 3, at + 2] } else { vec![at + 2] }
    }

    /// Whether a value's elements lie in an order other than row-major.
    fn is_rearranged(&self, id: NodeId) -> bool {
        matches!(self.place(id), Place::Strided(_))
    }

    /// Whether a value has all elements of its storage in their order.
    fn is_reshaped(&self, id: NodeId) -> bool {
        let [own, whole] = [id, self.storage(id)].map(|id| &self.nodes[id.0 as usize]);
        own.layout.is_none()
            && whole.layout.is_none()
            && own.ty.format == whole.ty.format
            && elements(&own.ty.shape) == elements(&whole.ty.shape)
    }

    /// Whether a view only appends dimensions of 1 to its storage, along which elements are broadcast.
    fn is_broadcast(&self, id: NodeId, storage: NodeId) -> bool {
        let (own, whole) = (self.ty(id), self.ty(storage));
        own.format == whole.format
            && own
                .shape
                .strip_prefix(whole.shape.as_slice())
                .is_some_and(|rest| rest.iter().all(|d| *d == Dim::Fixed(1)))
    }

    /// The operation that copies a view of a value in rows; `None` for other operations and operands.
    fn copied(&self, id: NodeId, op: Operation) -> Option<Operation> {
        let Place::Strided(layout) = self.place(id) else { return None };
        if op != Operation::Copy || self.nodes[self.storage(id).0 as usize].layout.is_some() {
            return None;
        }
        let strides = layout.strides.iter().map(|stride| u32::try_from(*stride).ok()).collect::<Option<Vec<_>>>()?;
        Some(Operation::CopyView { offset: u32::try_from(layout.offset).ok()?, strides })
    }

    /// Whether no operation of the graph has written the value of a node before the node is read.
    fn is_given(&self, id: NodeId) -> bool {
        !matches!(self.nodes[self.storage(id).0 as usize].source, Source::Op { .. } | Source::Part { .. })
    }

    /// The operation of a step that is not a chain of elementwise ones.
    fn single(&self, step: &Step) -> Option<Operation> {
        self.op(step.root).filter(|_| step.fused.is_empty()).map(|op| op.operation())
    }

    /// Requests a kernel for these steps from the device.
    fn offer(
        &self,
        bounds: &Bounds<'_>,
        steps: &[Step],
        users: &HashMap<NodeId, Vec<usize>>,
        range: Range<usize>,
        backend: &Arc<dyn Backend>,
    ) -> Option<Group> {
        let members = steps.get(range.clone())?;
        let (mut inputs, mut nodes): (Vec<NodeId>, Vec<GroupNode>) = (Vec::new(), Vec::new());
        // A chain of elementwise operations has a node for each.
        let chain = |step: &'_ Step| if step.fused.is_empty() { vec![step.root] } else { step.fused.clone() };
        let roots: Vec<NodeId> = members.iter().flat_map(chain).collect();
        // Groups of recurrences read values per head with a further dimension of 1.
        let recurs = members.iter().any(|s| matches!(self.single(s), Some(Operation::RecurrentState(_))));
        let whole =
            |id: NodeId, storage: NodeId| self.ty(id) == self.ty(storage) || (recurs && self.is_broadcast(id, storage));
        for root in &roots {
            let Source::Op { op, inputs: read } = &self.nodes[root.0 as usize].source else { return None };
            let (mut operands, mut operation) = (Vec::with_capacity(read.len()), op.operation());
            for id in read {
                let storage = self.storage(*id);
                operands.push(match roots[..nodes.len()].iter().position(|root| *root == storage) {
                    // A group's specification has no views, neither between its operations nor among its inputs, but a
                    // conversion may see its operand in another shape.
                    Some(_) if self.is_rearranged(*id) => return None,
                    Some(node) if whole(*id, storage) => Operand::Node(node),
                    Some(node) if operation == Operation::Cast && self.is_reshaped(*id) => Operand::Node(node),
                    Some(_) => return None,
                    None => {
                        // A copy of a view reads the whole.
                        let of = match self.copied(*id, op.operation()) {
                            Some(copy) => {
                                operation = copy;
                                storage
                            }
                            None if self.is_rearranged(*id) => return None,
                            None => *id,
                        };
                        Operand::Input(inputs.iter().position(|i| *i == of).unwrap_or_else(|| {
                            inputs.push(of);
                            inputs.len() - 1
                        }))
                    }
                });
            }
            let in_place = op.in_place();
            if in_place.is_some_and(|i| !matches!(operands.get(i), Some(Operand::Input(_)))) {
                return None;
            }
            nodes.push(GroupNode { op: operation, operands, output: bounds.spec(*root), in_place });
        }
        let wanted = |root: NodeId| {
            self.nodes[root.0 as usize].state.is_none()
                && (self.is_output(root)
                    || users.get(&root).is_some_and(|users| users.iter().any(|user| !range.contains(user))))
        };
        let outputs: Vec<usize> = (0..roots.len()).filter(|i| wanted(roots[*i])).collect();
        let written = outputs.iter().map(|i| roots[*i]).collect();
        let spec = GroupSpec::new(inputs.iter().map(|i| bounds.spec(*i)).collect(), nodes, outputs)?;
        let pipeline = backend.kernels().native_group(&spec)?;
        Some(Group { steps: range, inputs, outputs: written, uses_step: spec.uses_step(), pipeline })
    }
}
