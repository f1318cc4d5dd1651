//! From graph to plan: sizes, kernels, memory plan, recording.

use std::ops::Range;

use hologram_backends::{
    Binding, Buffer, CommandList, Extent, KernelSpec, Launch, LaunchConfig, Operation, Pipeline, TensorSpec, View,
};
use hologram_isa::{Builder, Value};

use super::elsewhere::{self, CompiledPart};
use super::fuse::Step;
use super::groups::Group;
use super::memory::{Lifetime, assign};
use super::plan::{InputSlot, OutputSlot, Plan};
use super::view::Place;
use super::{Graph, NodeId, Source, VIEW_ALIGN};
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::layout::Layout;
use crate::ops::{Launchable, elementwise_program};
use crate::tensor::{Dim, TensorType};

/// Alignment in bytes of the step block's parts.
const STEP_ALIGN: usize = 64;

/// The maximum values of the extents of one plan.
pub(super) struct Bounds<'a> {
    graph: &'a Graph,
    max: Vec<usize>,
}

impl Bounds<'_> {
    fn extent(&self, dim: Dim) -> Extent {
        match dim {
            Dim::Fixed(n) => Extent::Fixed(n),
            Dim::Extent(e) => {
                let (max, independent) = (self.max[e as usize], self.graph.extents[e as usize].independent);
                Extent::Step { slot: e, max, independent }
            }
        }
    }

    pub(super) fn spec(&self, id: NodeId) -> TensorSpec {
        let ty: &TensorType = self.graph.ty(id);
        TensorSpec { format: ty.format, shape: ty.shape.iter().map(|d| self.extent(*d)).collect() }
    }
}

/// One launch.
enum Unit<'a> {
    Step(&'a Step),
    Group(&'a Group),
}

impl Unit<'_> {
    /// The values that it reads, in binding order.
    fn reads(&self) -> &[NodeId] {
        match self {
            Unit::Step(step) => &step.inputs,
            Unit::Group(group) => &group.inputs,
        }
    }

    /// The values that it writes, in binding order. Versions of states may be left out, because they are bound among
    /// the inputs.
    fn writes(&self) -> &[NodeId] {
        match self {
            Unit::Step(step) => std::slice::from_ref(&step.root),
            Unit::Group(group) => &group.outputs,
        }
    }
}

/// The launches in order; groups replace their steps.
fn units<'a>(steps: &'a [Step], groups: &'a [Group]) -> Vec<Unit<'a>> {
    let mut units = Vec::with_capacity(steps.len());
    let mut at = 0;
    for group in groups {
        units.extend(steps[at..group.steps.start].iter().map(Unit::Step));
        units.push(Unit::Group(group));
        at = group.steps.end;
    }
    units.extend(steps[at..].iter().map(Unit::Step));
    units
}

/// The launches of a graph, not yet bound to memory.
pub(crate) struct Compiled {
    launches: Vec<(Pipeline, LaunchConfig, Vec<Slot>)>,
    /// The number of native kernels among them.
    pub native: usize,
    pub step_bytes: usize,
    pub arena_bytes: usize,
    /// The sizes in bytes of the memories that hold outputs and nothing else.
    pub own: Vec<usize>,
    /// The extents' names and maximum values.
    pub extents: Vec<(String, usize)>,
    pub inputs: Vec<InputSlot>,
    pub outputs: Vec<OutputSlot>,
    /// What other devices compute, in order.
    pub parts: Vec<CompiledPart>,
}

/// An argument of a launch: a range of bytes in a memory.
pub(crate) struct Slot {
    pub memory: Memory,
    pub range: Range<usize>,
}

/// The memory of an argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// The tensor of a node, from its first byte.
    Tensor(NodeId),
    Step,
    Arena,
    /// A memory that holds outputs and nothing else: an index of [`Compiled::own`].
    Own(usize),
}

impl Compiled {
    /// The number of launches.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    /// Binds some of the launches to memory. `find` returns the buffer of a memory and the byte where it begins.
    pub fn record<'a>(
        &self,
        executor: &Executor,
        launches: Range<usize>,
        find: impl Fn(Memory) -> Option<(&'a Buffer, usize)>,
    ) -> Result<CommandList> {
        let bind = |slot: &Slot| match find(slot.memory) {
            Some((buffer, at)) => {
                Ok(Binding::Buffer { buffer: buffer.clone(), range: at + slot.range.start..at + slot.range.end })
            }
            None => Err(CoreError::Graph(format!("{:?} is bound to nothing", slot.memory))),
        };
        let launch = |(pipeline, config, slots): &(Pipeline, LaunchConfig, Vec<Slot>)| {
            let bindings = slots.iter().map(bind).collect::<Result<_>>()?;
            Ok(Launch { pipeline: pipeline.clone(), bindings, config: *config })
        };
        let launches = self.launches[launches].iter().map(launch).collect::<Result<Vec<_>>>()?;
        Ok(executor.backend().record(&launches)?)
    }
}

/// How the values of a graph share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Values that are not alive together share the arena; outputs live to the end.
    Arena,
    /// As [`Sharing::Arena`], but outputs lie in memory of their own.
    OwnOutputs,
    #[cfg(feature = "conformance")]
    /// No values share memory.
    Apart,
}

/// Options of [`Graph::compile_with`].
#[derive(Clone, Copy, Debug)]
pub struct CompileOptions {
    /// Whether a backend's native kernels, of operations and of groups, are used. Without them every operation runs its
    /// portable program.
    pub native: bool,
    /// Whether programs of elementwise operations and of their fused chains use the `.fast` forms of `exp` and similar
    /// functions. A device may then return results within the error bounds of
    /// [`OpInfo::fast`](hologram_isa::OpInfo::fast).
    pub fast: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions { native: true, fast: false }
    }
}

impl Graph {
    /// Compiles the graph for a device: fuses elementwise chains, chooses native kernels or compiles programs, plans
    /// memory, records launches. `bounds` lowers the maximum of extents for this plan (a bucket); the others keep
    /// theirs.
    ///
    /// # Errors
    /// When two extents have one name, a bound names no extent or exceeds it, a tensor belongs to another executor, or
    /// the device fails.
    pub fn compile(&self, executor: &Executor, bounds: &[(&str, usize)]) -> Result<Plan> {
        self.compile_with(executor, bounds, CompileOptions::default())
    }

    /// As [`Graph::compile`], with options.
    ///
    /// # Errors
    /// As [`Graph::compile`].
    pub fn compile_with(&self, executor: &Executor, bounds: &[(&str, usize)], options: CompileOptions) -> Result<Plan> {
        self.compile_in(executor, bounds, options, Sharing::Arena)
    }

    #[cfg(feature = "conformance")]
    /// As [`Graph::compile_with`], with separate memory for every value, so that a test detects a write beyond a
    /// value's extents.
    pub(crate) fn compile_apart(&self, executor: &Executor, options: CompileOptions) -> Result<Plan> {
        self.compile_in(executor, &[], options, Sharing::Apart)
    }

    fn compile_in(
        &self,
        executor: &Executor,
        bounds: &[(&str, usize)],
        options: CompileOptions,
        sharing: Sharing,
    ) -> Result<Plan> {
        let mut compiled = self.prepare(executor, bounds, options, sharing)?;
        let backend = executor.backend();
        let step = backend.allocate_buffer(compiled.step_bytes)?;
        let arena = backend.allocate_buffer(compiled.arena_bytes)?;
        let find = |memory| match memory {
            Memory::Step => Some((&step, 0)),
            Memory::Arena => Some((&arena, 0)),
            Memory::Tensor(id) => self.tensor(id).map(|t| (&t.buffer, t.offset)),
            Memory::Own(_) => None,
        };
        let (parts, launches) = (std::mem::take(&mut compiled.parts), compiled.len());
        let first = parts.first().map_or(launches, |part| part.after);
        let list = compiled.record(executor, 0..first, find)?;
        let record = |range: Range<usize>| match range.is_empty() {
            true => Ok(None),
            false => compiled.record(executor, range, find).map(Some),
        };
        let of_parts = parts.iter().map(|part| [part.compiled.len(), part.compiled.native]);
        let counts = of_parts.fold([launches, compiled.native], |[a, b], [c, d]| [a + c, b + d]);
        let parts = elsewhere::bind(parts, launches, find, record)?;
        Ok(Plan::new(executor.clone(), (list, parts), counts, compiled, step, arena))
    }

    /// Chooses kernels, compiles programs, and locates each argument of each launch.
    pub(crate) fn prepare(
        &self,
        executor: &Executor,
        bounds: &[(&str, usize)],
        options: CompileOptions,
        sharing: Sharing,
    ) -> Result<Compiled> {
        for (i, e) in self.extents.iter().enumerate() {
            if self.extents[..i].iter().any(|other| other.name == e.name) {
                return Err(CoreError::Graph(format!("two extents are named {}", e.name)));
            }
        }
        if sharing == Sharing::OwnOutputs && self.nodes.iter().any(|node| matches!(node.source, Source::Part { .. })) {
            return Err(CoreError::Graph("a graph with a part elsewhere runs as a plan (Graph::compile)".into()));
        }
        let foreign = self.nodes.iter().find_map(|node| match &node.source {
            Source::Tensor(t) if !t.is_of(executor) => Some(t),
            _ => None,
        });
        if let Some(tensor) = foreign {
            let device = executor.info().backend;
            return Err(CoreError::Graph(format!(
                "{tensor:?} belongs to another executor than the one on {device} that is to run it"
            )));
        }
        let mut max: Vec<usize> = self.extents.iter().map(|e| e.max).collect();
        for (name, bound) in bounds {
            let Some(i) = self.extents.iter().position(|e| e.name == *name) else {
                return Err(CoreError::Graph(format!("there is no extent named {name}")));
            };
            if *bound > max[i] {
                return Err(CoreError::Graph(format!("extent {name} is at most {}, not {bound}", max[i])));
            }
            max[i] = *bound;
        }
        let bounds = Bounds { graph: self, max };
        let backend = executor.backend();
        let device = executor.info().backend.name();
        let _compile = tracing::debug_span!("compile", device, nodes = self.nodes.len()).entered();
        let steps = self.steps();
        let groups = if options.native { self.groups(&bounds, &steps, backend) } else { Vec::new() };
        let units = units(&steps, &groups);

        let (inputs, step_bytes) = self.lay_out_step(&bounds);
        let mut own: Vec<NodeId> = Vec::new();
        if sharing == Sharing::OwnOutputs {
            for (_, id) in &self.outputs {
                let storage = self.storage(*id);
                if !own.contains(&storage) {
                    own.push(storage);
                }
            }
        }
        let (offsets, arena_bytes) = self.plan_memory(&bounds, &units, sharing, &own);

        // Versions of a state are bound to the state's tensor.
        let mut states: Vec<Option<NodeId>> = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let (Some(s), Source::Tensor(_)) = (node.state, &node.source) {
                if states.len() <= s {
                    states.resize(s + 1, None);
                }
                states[s] = Some(self.node(i));
            }
        }
        let bind = |id: NodeId| -> Vec<Slot> {
            let id = self.nodes[id.0 as usize].state.and_then(|s| states[s]).unwrap_or(id);
            // A view that is not a dense part of its storage is bound as the whole storage.
            let (id, start) = match self.place(id) {
                Place::Dense(bytes) => (id, bytes),
                Place::Strided(_) => (self.storage(id), 0),
            };
            let storage = self.storage(id);
            let (memory, at) = match &self.nodes[storage.0 as usize].source {
                Source::Tensor(t) if id == storage => {
                    let slot = |range: Range<usize>| Slot { memory: Memory::Tensor(id), range };
                    return t.ranges().into_iter().map(slot).collect();
                }
                Source::Tensor(_) => (Memory::Tensor(storage), 0),
                Source::Input { name } => {
                    (Memory::Step, inputs.iter().find(|i| i.name == *name).map_or(0, |i| i.offset))
                }
                Source::Op { .. } | Source::Part { .. } | Source::View(..) => {
                    match own.iter().position(|id| *id == storage) {
                        Some(number) => (Memory::Own(number), 0),
                        None => (Memory::Arena, offsets[storage.0 as usize]),
                    }
                }
            };
            let spec = bounds.spec(id);
            let views = spec.format.views(spec.max_rows(), spec.row_len());
            let from = |v: View| at + start + v.offset..at + start + v.offset + v.bytes;
            views.into_iter().map(|v| Slot { memory, range: from(v) }).collect()
        };

        let mut launches = Vec::with_capacity(units.len());
        let mut native = 0;
        let mut parts: Vec<CompiledPart> = Vec::new();
        let mut waiting: Option<NodeId> = None;
        for unit in &units {
            // The first that needs the result of a part.
            if waiting.is_some_and(|result| unit.reads().iter().any(|id| self.storage(*id) == result))
                && let (Some(part), Some(_)) = (parts.last_mut(), waiting.take())
            {
                part.before = launches.len();
            }
            if let Unit::Step(step) = unit
                && let Some(part) = self.part(step.root)
            {
                let known = part.graph.extents.iter().zip(&bounds.max);
                let own: Vec<(&str, usize)> = known.map(|(e, max)| (e.name.as_str(), *max)).collect();
                let compiled = part.graph.prepare(&part.executor, &own, options, Sharing::Arena)?;
                let result = bind(step.root).pop();
                parts.push(CompiledPart {
                    part: part.clone(),
                    compiled,
                    inputs: step.inputs.iter().flat_map(|id| bind(*id)).collect(),
                    result: result.ok_or_else(|| CoreError::Graph("a part without a result".into()))?,
                    after: launches.len(),
                    before: usize::MAX,
                });
                waiting = Some(step.root);
                continue;
            }
            let written = unit.writes().iter().filter(|id| self.nodes[id.0 as usize].state.is_none());
            let mut slots: Vec<Slot> = unit.reads().iter().chain(written).flat_map(|id| bind(*id)).collect();
            let (pipeline, grid, uses_step) = match unit {
                Unit::Group(group) => {
                    native += 1;
                    (group.pipeline.clone(), [1, 1, 1], group.uses_step)
                }
                Unit::Step(one) => {
                    let spec = self.kernel_spec(&bounds, one)?;
                    let views = self.layouts(one);
                    // Empty tensors take the program: it is as fast, and native kernels need not handle them.
                    let nothing = spec.inputs.iter().chain([&spec.output]).any(|t| t.shape.contains(&Extent::Fixed(0)));
                    let asked =
                        if views.is_empty() { Some(spec.clone()) } else { self.view_spec(&bounds, one, &spec, &views) };
                    let kernel = asked.filter(|_| options.native && !nothing);
                    let kernel = kernel.and_then(|s| backend.kernels().native(&s));
                    let (pipeline, grid) = match kernel {
                        Some(pipeline) => {
                            native += 1;
                            (pipeline, [1, 1, 1])
                        }
                        None => {
                            let per_thread = backend.policy().elements_per_thread;
                            let (program, grid) = self.program(one, &spec, &views, per_thread, options.fast)?;
                            (backend.compile(&program)?, grid)
                        }
                    };
                    (pipeline, grid, spec.uses_step())
                }
            };
            if uses_step {
                slots.push(Slot { memory: Memory::Step, range: 0..self.extents.len() * 4 });
            }
            launches.push((pipeline, LaunchConfig { grid }, slots));
        }
        let in_arena = |slot: &Slot| matches!(slot.memory, Memory::Arena);
        let needs_arena = sharing != Sharing::OwnOutputs || launches.iter().any(|(_, _, s)| s.iter().any(in_arena));
        let output = |(name, id): &(String, NodeId)| {
            let Place::Dense(start) = self.place(*id) else {
                return Err(CoreError::Graph(format!("output {name} is a view")));
            };
            let storage = self.storage(*id);
            let memory = own.iter().position(|id| *id == storage);
            let offset = if memory.is_some() { start } else { offsets[storage.0 as usize] + start };
            let spec = bounds.spec(*id);
            let shape = spec.shape.iter().map(|e| e.max()).collect();
            Ok(OutputSlot { name: name.clone(), memory, offset, spec, shape })
        };
        Ok(Compiled {
            launches,
            native,
            step_bytes,
            arena_bytes: if needs_arena { arena_bytes.max(STEP_ALIGN) } else { 0 },
            own: own.iter().map(|id| bounds.spec(*id).max_bytes().max(STEP_ALIGN)).collect(),
            extents: self.extents.iter().zip(&bounds.max).map(|(e, max)| (e.name.clone(), *max)).collect(),
            outputs: self.outputs.iter().map(output).collect::<Result<_>>()?,
            inputs,
            parts,
        })
    }

    /// The specification of a launch that a backend gets.
    fn kernel_spec(&self, bounds: &Bounds<'_>, step: &Step) -> Result<KernelSpec> {
        let op = self.op(step.root).ok_or_else(|| CoreError::Graph("a step without an operation".into()))?;
        let fused = !step.fused.is_empty();
        Ok(KernelSpec {
            op: if fused { Operation::FusedElementwise } else { op.operation() },
            inputs: step.inputs.iter().map(|i| bounds.spec(*i)).collect(),
            output: bounds.spec(step.root),
            in_place: op.in_place(),
        })
    }

    /// The specification of the copy of a view ([`Operation::CopyView`]); `None` for other operations.
    fn view_spec(
        &self,
        bounds: &Bounds<'_>,
        step: &Step,
        spec: &KernelSpec,
        views: &[Option<&Layout>],
    ) -> Option<KernelSpec> {
        let ([Some(layout)], [input], Operation::Copy) = (views, step.inputs.as_slice(), &spec.op) else { return None };
        let strides = layout.strides.iter().map(|stride| u32::try_from(*stride).ok()).collect::<Option<Vec<_>>>()?;
        let op = Operation::CopyView { offset: u32::try_from(layout.offset).ok()?, strides };
        let storage = self.storage(*input);
        let mut memory = bounds.spec(storage);
        if let (Some(own), Source::Tensor(tensor)) =
            (&self.nodes[storage.0 as usize].layout, &self.nodes[storage.0 as usize].source)
        {
            // Native kernels use vector accesses from the first element on.
            if !tensor.offset().is_multiple_of(VIEW_ALIGN) {
                return None;
            }
            // A tensor that is itself a view is bound up to its last element: fewer elements than its shape has where
            // they repeat.
            memory.shape = vec![Extent::Fixed(own.span(tensor.shape()))];
        }
        let inputs = vec![memory];
        let asked = KernelSpec { op, inputs, output: spec.output.clone(), in_place: None };
        // A kernel is requested only if it binds the step block like the copy.
        (asked.uses_step() == spec.uses_step()).then_some(asked)
    }

    /// The portable program of a launch. Elementwise ones process the device's preferred number of elements per thread.
    fn program(
        &self,
        step: &Step,
        spec: &KernelSpec,
        views: &[Option<&Layout>],
        per_thread: u32,
        fast: bool,
    ) -> Result<Launchable> {
        let op = self.op(step.root).filter(|_| step.fused.is_empty());
        let emit = |b: &mut Builder, leaves: &[Value]| {
            b.fast(fast);
            match op {
                Some(op) => op.elementwise().map(|e| e.emit(b, leaves)),
                None => self.emit_fused(b, step, leaves),
            }
        };
        match op {
            Some(op) if op.elementwise().is_none() => {
                op.program_of_views(spec, views, per_thread).unwrap_or_else(|| op.program(spec))
            }
            _ => elementwise_program(spec, views, per_thread, emit),
        }
    }

    /// Per input of a launch its layout if it is a view; empty if no input is one.
    fn layouts(&self, step: &Step) -> Vec<Option<&Layout>> {
        let layout = |id: &NodeId| match self.place(*id) {
            Place::Dense(_) => None,
            Place::Strided(layout) => Some(layout),
        };
        let layouts: Vec<_> = step.inputs.iter().map(layout).collect();
        if layouts.iter().all(Option::is_none) { Vec::new() } else { layouts }
    }

    /// Offsets of the inputs in the step block, and its size. The block begins with the extents' values; large inputs
    /// come last, as they may change in parts.
    fn lay_out_step(&self, bounds: &Bounds<'_>) -> (Vec<InputSlot>, usize) {
        let mut at = (self.extents.len() * 4).next_multiple_of(STEP_ALIGN);
        let mut inputs = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Source::Input { name } = &node.source {
                inputs.push(InputSlot { name: name.clone(), offset: 0, spec: bounds.spec(self.node(i)) });
            }
        }
        let mut order: Vec<&mut InputSlot> = inputs.iter_mut().collect();
        order.sort_by_key(|input| input.spec.max_bytes());
        for input in order {
            input.offset = at;
            at = (at + input.spec.max_bytes()).next_multiple_of(STEP_ALIGN);
        }
        (inputs, at.max(STEP_ALIGN))
    }

    /// Offsets in the arena, by node, of the values that launches write, and the arena's size. A value that only a
    /// group uses has no offset, and neither has one with memory of its own.
    fn plan_memory(
        &self,
        bounds: &Bounds<'_>,
        units: &[Unit<'_>],
        sharing: Sharing,
        own: &[NodeId],
    ) -> (Vec<usize>, usize) {
        let shared = matches!(sharing, Sharing::Arena | Sharing::OwnOutputs);
        let mut lifetimes: Vec<(NodeId, Lifetime)> = Vec::new();
        for (now, unit) in units.iter().enumerate() {
            for written in unit.writes() {
                if self.nodes[written.0 as usize].state.is_none() && !own.contains(written) {
                    let last = if !shared || self.is_output(*written) { units.len() } else { now };
                    let bytes = bounds.spec(*written).max_bytes();
                    lifetimes.push((*written, Lifetime { bytes, first: now, last }));
                }
            }
            for read in unit.reads() {
                if let Some((_, l)) = lifetimes.iter_mut().find(|(id, _)| *id == self.storage(*read)) {
                    l.last = l.last.max(now);
                }
            }
        }
        let (placed, size) = assign(&lifetimes.iter().map(|(_, l)| *l).collect::<Vec<_>>());
        let mut offsets = vec![0; self.nodes.len()];
        for ((id, _), at) in lifetimes.iter().zip(placed) {
            offsets[id.0 as usize] = at;
        }
        (offsets, size)
    }
}
