//! From graph to plan: sizes, kernels, memory, recording.

use hologram_backends::{Binding, Extent, KernelSpec, Launch, LaunchConfig, TensorSpec};

use super::fuse::Step;
use super::memory::{Lifetime, assign};
use super::plan::{InputSlot, OutputSlot, Plan};
use super::{Graph, NodeId, Source};
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::ops::{Launchable, elementwise_program};
use crate::tensor::{Dim, Tensor, TensorType, bind_views};

/// Alignment in bytes of the step block's parts.
const STEP_ALIGN: usize = 64;

/// The greatest values of the extents that one plan serves.
struct Bounds<'a> {
    graph: &'a Graph,
    max: Vec<usize>,
}

impl Bounds<'_> {
    fn extent(&self, dim: Dim) -> Extent {
        match dim {
            Dim::Fixed(n) => Extent::Fixed(n),
            Dim::Extent(e) => Extent::Step { slot: e, max: self.max[e as usize] },
        }
    }

    fn spec(&self, id: NodeId) -> TensorSpec {
        let ty: &TensorType = self.graph.type_of(id);
        TensorSpec { format: ty.format, shape: ty.shape.iter().map(|d| self.extent(*d)).collect() }
    }
}

/// Choices of [`Graph::compile_with`].
#[derive(Clone, Copy, Debug)]
pub struct CompileOptions {
    /// Whether a backend's native kernels are used; without them every operation runs its portable program.
    pub native: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions { native: true }
    }
}

impl Graph {
    /// Compiles the graph for a device: fuses elementwise chains, chooses native kernels or compiles programs, plans memory, records.
    /// `bounds` lowers the greatest value of extents for this plan (a bucket); the others keep their own.
    ///
    /// # Errors
    /// When two extents have one name, a bound names no extent or exceeds it, a state or weight lies on another device, or the device fails.
    pub fn compile(&self, executor: &Executor, bounds: &[(&str, usize)]) -> Result<Plan> {
        self.compile_with(executor, bounds, CompileOptions::default())
    }

    /// As [`Graph::compile`], with choices.
    ///
    /// # Errors
    /// As [`Graph::compile`].
    pub fn compile_with(&self, executor: &Executor, bounds: &[(&str, usize)], options: CompileOptions) -> Result<Plan> {
        for (i, e) in self.extents.iter().enumerate() {
            if self.extents[..i].iter().any(|other| other.name == e.name) {
                return Err(CoreError::Graph(format!("two extents are named {}", e.name)));
            }
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
        let steps = self.steps();

        let (inputs, step_bytes) = self.lay_out_step(&bounds);
        let step = executor.backend().allocate_buffer(step_bytes)?;
        let (offsets, arena_bytes) = self.plan_memory(&bounds, &steps);
        let arena = executor.backend().allocate_buffer(arena_bytes.max(STEP_ALIGN))?;

        // A version of a state is bound to the state's tensor.
        let mut states: Vec<Option<&Tensor>> = Vec::new();
        for node in &self.nodes {
            if let (Some(s), Source::Tensor(t)) = (node.state, &node.source) {
                if states.len() <= s {
                    states.resize(s + 1, None);
                }
                states[s] = Some(t);
            }
        }
        let bind = |id: NodeId| -> Vec<Binding> {
            let node = &self.nodes[id.0 as usize];
            if let Some(tensor) = node.state.and_then(|s| states[s]) {
                return tensor.bindings();
            }
            let spec = bounds.spec(id);
            let (rows, row_len) = (spec.max_rows(), spec.row_len());
            let storage = self.storage(id).0 as usize;
            match &self.nodes[storage].source {
                Source::Tensor(t) => t.bindings(),
                Source::Input { name } => {
                    let at = inputs.iter().find(|i| i.name == *name).map_or(0, |i| i.offset);
                    bind_views(&step, at, spec.format, rows, row_len)
                }
                Source::Op { .. } | Source::Reshape(_) => {
                    bind_views(&arena, offsets[storage], spec.format, rows, row_len)
                }
            }
        };

        let mut launches = Vec::with_capacity(steps.len());
        let mut native_launches = 0;
        for s in &steps {
            let spec = self.kernel_spec(&bounds, s)?;
            let mut bindings: Vec<Binding> = s.inputs.iter().flat_map(|i| bind(*i)).collect();
            if spec.in_place.is_none() {
                bindings.extend(bind(s.root));
            }
            if spec.uses_step() {
                bindings.push(Binding::Buffer { buffer: step.clone(), range: 0..self.extents.len() * 4 });
            }
            let native = if options.native { executor.backend().native(&spec) } else { None };
            let (pipeline, grid) = match native {
                Some(pipeline) => {
                    native_launches += 1;
                    (pipeline, [1, 1, 1])
                }
                None => {
                    let (program, grid) = self.program(s, &spec)?;
                    (executor.backend().compile(&program)?, grid)
                }
            };
            launches.push(Launch { pipeline, bindings, config: LaunchConfig { grid } });
        }
        let list = executor.backend().record(&launches)?;

        let outputs = self
            .outputs
            .iter()
            .map(|(name, id)| {
                let offset = offsets[self.storage(*id).0 as usize];
                OutputSlot { name: name.clone(), offset, spec: bounds.spec(*id) }
            })
            .collect();
        let extents = self.extents.iter().zip(&bounds.max).map(|(e, max)| (e.name.clone(), *max)).collect();
        let launches = [launches.len(), native_launches];
        Ok(Plan::new(executor.clone(), list, launches, step, extents, inputs, arena, outputs))
    }

    /// What a backend is told of a launch.
    fn kernel_spec(&self, bounds: &Bounds<'_>, step: &Step) -> Result<KernelSpec> {
        let op = self.op(step.root).ok_or_else(|| CoreError::Graph("a step without an operation".into()))?;
        let fused = !step.fused.is_empty();
        Ok(KernelSpec {
            op: if fused { "fused" } else { op.name() },
            inputs: step.inputs.iter().map(|i| bounds.spec(*i)).collect(),
            output: bounds.spec(step.root),
            in_place: op.in_place(),
            attrs: if fused { Vec::new() } else { op.attrs() },
        })
    }

    /// The portable program of a launch.
    fn program(&self, step: &Step, spec: &KernelSpec) -> Result<Launchable> {
        match self.op(step.root) {
            Some(op) if step.fused.is_empty() => op.program(spec),
            _ => elementwise_program(spec, |b, leaves| self.emit_fused(b, step, leaves)),
        }
    }

    /// Offsets of the inputs in the step block, which begins with the extents' values; and its size.
    fn lay_out_step(&self, bounds: &Bounds<'_>) -> (Vec<InputSlot>, usize) {
        let mut at = (self.extents.len() * 4).next_multiple_of(STEP_ALIGN);
        let mut inputs = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Source::Input { name } = &node.source {
                let spec = bounds.spec(NodeId(i as u32));
                let bytes = spec.max_bytes();
                inputs.push(InputSlot { name: name.clone(), offset: at, spec });
                at = (at + bytes).next_multiple_of(STEP_ALIGN);
            }
        }
        (inputs, at.max(STEP_ALIGN))
    }

    /// Offsets in the arena, by node, of what the steps compute; and the arena's size.
    fn plan_memory(&self, bounds: &Bounds<'_>, steps: &[Step]) -> (Vec<usize>, usize) {
        let mut lifetimes: Vec<(NodeId, Lifetime)> = Vec::new();
        for (now, step) in steps.iter().enumerate() {
            if self.nodes[step.root.0 as usize].state.is_none() {
                let is_output = self.outputs.iter().any(|(_, o)| self.storage(*o) == step.root);
                let last = if is_output { steps.len() } else { now };
                let bytes = bounds.spec(step.root).max_bytes();
                lifetimes.push((step.root, Lifetime { bytes, first: now, last }));
            }
            for input in &step.inputs {
                if let Some((_, l)) = lifetimes.iter_mut().find(|(id, _)| *id == self.storage(*input)) {
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
