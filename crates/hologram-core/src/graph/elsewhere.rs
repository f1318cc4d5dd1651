//! Parts of a graph that another device computes.

use std::sync::Arc;

use hologram_backends::{Buffer, CommandList, DType, TensorSpec};

use super::compile::{Compiled, Memory, Slot};
use super::{Graph, NodeId, Source};
use crate::error::{CoreError, Result};
use crate::executor::Executor;

/// A graph within another one.
#[derive(Debug)]
pub(crate) struct Part {
    pub executor: Executor,
    pub graph: Graph,
}

/// A part with its kernels, not yet bound to memory.
pub(crate) struct CompiledPart {
    pub part: Arc<Part>,
    pub compiled: Compiled,
    /// Where its inputs and its result lie on the device of the graph around it.
    pub inputs: Vec<Slot>,
    pub result: Slot,
    /// The launches of the graph around it that come before it, and before the first that needs its result.
    pub after: usize,
    pub before: usize,
}

/// A part that is ready to run, with the work of the device around it that follows.
pub(super) struct BoundPart {
    pub executor: Executor,
    pub list: CommandList,
    step: Buffer,
    /// Bytes of the step block, and of the extents at its start.
    bytes: [usize; 2],
    arena: Buffer,
    inputs: Vec<Moved>,
    result: Moved,
    /// What the device around it does while the part is computed, and with its result.
    pub beside: Option<CommandList>,
    pub next: Option<CommandList>,
}

/// A value that moves between the devices.
struct Moved {
    spec: TensorSpec,
    /// Where it lies around the part.
    buffer: Buffer,
    offset: usize,
    /// Where it lies in the part's step block, or its result in the part's arena.
    own: usize,
}

impl Moved {
    /// Its bytes with these extents.
    fn bytes(&self, extents: &[u32]) -> usize {
        let DType::Plain(ty) = self.spec.format else { return 0 };
        self.spec.shape.iter().map(|e| e.value(extents)).product::<usize>() * ty.size()
    }
}

impl Graph {
    /// Lets another device compute a part of the graph. `build` gets the inputs as values of a graph of that device,
    /// with the extents of this one, and returns the result; constants there are tensors of that device. In a run the
    /// inputs go there through the host's memory, and the result comes back. The device of this graph meanwhile runs
    /// the operations applied after this one, up to the first that needs the result.
    ///
    /// Such a graph runs as a [`Plan`](super::Plan), and has no gradients.
    ///
    /// # Errors
    /// Those of `build`; when an input or the result is quantized or a state, or the part has parts itself.
    pub fn elsewhere<E: From<CoreError>>(
        &mut self,
        executor: &Executor,
        inputs: &[NodeId],
        build: impl FnOnce(&mut Graph, &[NodeId]) -> std::result::Result<NodeId, E>,
    ) -> std::result::Result<NodeId, E> {
        let mut part = Graph::new();
        part.extents = self.extents.clone();
        let (mut outer, mut inner) = (Vec::with_capacity(inputs.len()), Vec::with_capacity(inputs.len()));
        for (i, input) in inputs.iter().enumerate() {
            if self.operand("elsewhere", *input)?.state.is_some() || self.state_of(*input).is_some() {
                return Err(CoreError::Graph("elsewhere: a state cannot go to another device".into()).into());
            }
            let input = self.contiguous(*input)?;
            let ty = plain(self, input)?;
            inner.push(part.input(&i.to_string(), ty.format, &ty.shape)?);
            outer.push(input);
        }
        let result = build(&mut part, &inner)?;
        part.output("result", result)?;
        if part.nodes.iter().any(|node| matches!(node.source, Source::Part { .. })) {
            return Err(CoreError::Graph("elsewhere: a part cannot have parts".into()).into());
        }
        let ty = plain(&part, result)?;
        let part = Arc::new(Part { executor: executor.clone(), graph: part });
        Ok(self.push(Source::Part { part, inputs: outer }, ty)?)
    }

    /// The part whose result this node is.
    pub(super) fn part(&self, id: NodeId) -> Option<&Arc<Part>> {
        match &self.nodes[id.0 as usize].source {
            Source::Part { part, .. } => Some(part),
            _ => None,
        }
    }
}

/// The type of a value that can move between devices.
fn plain(graph: &Graph, id: NodeId) -> Result<crate::tensor::TensorType> {
    let ty = graph.ty(id);
    match ty.format {
        DType::Plain(_) => Ok(ty.clone()),
        format => {
            let format = format.name();
            Err(CoreError::Graph(format!("elsewhere: a value of {format} cannot move between devices")))
        }
    }
}

/// Binds parts to memory. Parts of one device run one after another and share theirs. `find` gives the memory around
/// them, and `record` records some of the launches there.
pub(super) fn bind<'a>(
    parts: Vec<CompiledPart>,
    launches: usize,
    find: impl Fn(Memory) -> Option<(&'a Buffer, usize)>,
    record: impl Fn(std::ops::Range<usize>) -> Result<Option<CommandList>>,
) -> Result<Vec<BoundPart>> {
    let mut memory: Vec<(Executor, [Buffer; 2])> = Vec::new();
    for part in &parts {
        let executor = &part.part.executor;
        if memory.iter().any(|(known, _)| known.is(executor)) {
            continue;
        }
        let own = || parts.iter().filter(|p| p.part.executor.is(executor)).map(|p| &p.compiled);
        let step = own().map(|c| c.step_bytes).max().unwrap_or(0);
        let arena = own().map(|c| c.arena_bytes).max().unwrap_or(0);
        let allocate = |bytes| executor.backend().allocate_buffer(bytes);
        memory.push((executor.clone(), [allocate(step)?, allocate(arena)?]));
    }
    let starts: Vec<usize> = parts.iter().skip(1).map(|p| p.after).chain([launches]).collect();
    let bound =
        parts.into_iter().zip(starts).map(|(CompiledPart { part, compiled, inputs, result, after, before }, next)| {
            let nothing = || CoreError::Graph("a part without memory".into());
            let (executor, [step, arena]) =
                memory.iter().find(|(known, _)| known.is(&part.executor)).ok_or_else(nothing)?;
            let list = compiled.record(executor, 0..compiled.len(), |memory| match memory {
                Memory::Step => Some((step, 0)),
                Memory::Arena => Some((arena, 0)),
                Memory::Tensor(id) => part.graph.tensor(id).map(|t| (&t.buffer, t.offset)),
                Memory::Own(_) => None,
            })?;
            let moved = |slot: &Slot, own: usize, spec: &TensorSpec| {
                let (buffer, at) = find(slot.memory).ok_or_else(nothing)?;
                Ok(Moved { spec: spec.clone(), buffer: buffer.clone(), offset: at + slot.range.start, own })
            };
            let inputs = inputs.iter().zip(&compiled.inputs).map(|(slot, own)| moved(slot, own.offset, &own.spec));
            let output = compiled.outputs.first().ok_or_else(nothing)?;
            let before = before.min(next);
            Ok(BoundPart {
                inputs: inputs.collect::<Result<_>>()?,
                result: moved(&result, output.offset, &output.spec)?,
                executor: executor.clone(),
                list,
                step: step.clone(),
                bytes: [compiled.step_bytes, compiled.extents.len() * size_of::<u32>()],
                arena: arena.clone(),
                beside: record(after..before)?,
                next: record(before..next)?,
            })
        });
    bound.collect()
}

impl BoundPart {
    /// Waits for the inputs and reads them into `host`, in the layout of the step block. Returns the bytes to send.
    pub fn read(&self, around: &Executor, extents: &[u32], host: &mut Vec<u8>) -> Result<usize> {
        let [bytes, of_extents] = self.bytes;
        host.resize(bytes.max(host.len()), 0);
        let values = extents.iter().flat_map(|value| value.to_le_bytes());
        host.iter_mut().take(of_extents).zip(values).for_each(|(byte, value)| *byte = value);
        let mut end = of_extents;
        for input in &self.inputs {
            let to = input.own..input.own + input.bytes(extents);
            end = end.max(to.end);
            let to = host.get_mut(to).ok_or_else(|| CoreError::Run("an input beyond its step block".into()))?;
            around.backend().copy_from_buffer(&input.buffer, input.offset, to)?;
        }
        Ok(end)
    }

    /// Hands the inputs to the part's device.
    pub fn send(&self, host: &[u8]) -> Result<()> {
        Ok(self.executor.backend().copy_to_buffer(&self.step, 0, host)?)
    }

    /// Waits for the result and moves it to the device around the part.
    pub fn finish(&self, around: &Executor, extents: &[u32], host: &mut Vec<u8>) -> Result<()> {
        let bytes = self.result.bytes(extents);
        host.resize(bytes.max(host.len()), 0);
        let host = &mut host[..bytes];
        self.executor.backend().copy_from_buffer(&self.arena, self.result.own, host)?;
        Ok(around.backend().copy_to_buffer(&self.result.buffer, self.result.offset, host)?)
    }
}
