//! A compiled graph: write inputs, set extents, run, read outputs.

use std::ops::Range;

use hologram_backends::{Buffer, CommandList, DType, KernelName, TensorSpec};

use hologram_isa::Type;

use super::compile::Compiled;
use super::elsewhere::BoundPart;
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::tensor::{Element, Tensor, bytes_of, bytes_of_mut};

/// A graph compiled for one device and one bucket of extents.
///
/// ```text
/// plan.write("ids", &[1u32, 5, 9])?;
/// plan.set_extent("tokens", 3)?;
/// plan.run()?;
/// let logits: Vec<f32> = plan.read("logits")?;
/// ```
pub struct Plan {
    executor: Executor,
    /// The launches, up to the first part that another device computes.
    list: CommandList,
    /// These parts, each with the launches that follow it.
    parts: Vec<BoundPart>,
    /// Bytes on their way between devices.
    moved: Vec<u8>,
    /// The number of all launches, and of native kernels.
    launches: [usize; 2],
    /// The step block: the extents' values, then the inputs. Before a run, what has changed of the host's copy is sent.
    step: Buffer,
    host_step: Vec<u8>,
    changed: Vec<Range<usize>>,
    extents: Vec<(String, usize)>,
    /// The extents' values, as at the start of the step block. Stored as `u32`, so that reading a result allocates
    /// nothing for them.
    values: Vec<u32>,
    inputs: Vec<InputSlot>,
    /// Elements of inputs that the device copies from tensors before the next run.
    copies: Vec<InputCopy>,
    arena: Buffer,
    outputs: Vec<OutputSlot>,
    /// Whether the plan has run, so that the outputs have content.
    has_run: bool,
}

/// Bytes between two changes of the step block that are sent with them, as a copy of its own would cost more.
const JOINED: usize = 8192;

/// A point in a device's queue, after the kernels of a run.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) executor: Executor,
    pub(crate) event: hologram_backends::Event,
}

impl Event {
    /// Waits until the device has passed the point.
    ///
    /// # Errors
    /// The error of the event's run, at each call.
    pub fn wait(&self) -> Result<()> {
        Ok(self.executor.backend().wait(self.event)?)
    }
}

/// Bytes that the device copies from a tensor into the step block.
struct InputCopy {
    from: Tensor,
    from_offset: usize,
    /// The offset in the step block.
    to: usize,
    bytes: usize,
}

/// Where an input lies in the step block.
pub(crate) struct InputSlot {
    pub name: String,
    pub offset: usize,
    pub spec: TensorSpec,
}

/// Where an output lies: in the arena, or in a result's own memory.
pub(crate) struct OutputSlot {
    pub name: String,
    /// The memory of its own, by its number in [`Compiled::own`]; `None` in the arena.
    pub memory: Option<usize>,
    pub offset: usize,
    pub spec: TensorSpec,
    /// Maximum sizes.
    pub shape: Vec<usize>,
}

impl Plan {
    pub(super) fn new(
        executor: Executor,
        (list, parts): (CommandList, Vec<BoundPart>),
        launches: [usize; 2],
        compiled: Compiled,
        step: Buffer,
        arena: Buffer,
    ) -> Plan {
        let Compiled { extents, inputs, outputs, .. } = compiled;
        let mut host_step = vec![0; step.bytes()];
        for (i, (_, max)) in extents.iter().enumerate() {
            host_step[i * 4..i * 4 + 4].copy_from_slice(&(*max as u32).to_le_bytes());
        }
        let values = extents.iter().map(|(_, max)| *max as u32).collect();
        let (moved, changed) = (Vec::new(), std::iter::once(0..host_step.len()).collect());
        Plan {
            executor,
            list,
            parts,
            moved,
            launches,
            step,
            host_step,
            changed,
            extents,
            values,
            inputs,
            copies: Vec::new(),
            arena,
            outputs,
            has_run: false,
        }
    }

    /// Sets an input's first elements; the rest keep their values.
    ///
    /// # Errors
    /// When there is no such input, its elements are of another type, or there are too many.
    pub fn write<T: Element>(&mut self, name: &str, data: &[T]) -> Result<()> {
        self.write_plain(name, T::TYPE, 0, bytes_of(data))
    }

    /// Sets an input's elements from `first` on; the others keep their values. Of large inputs only what is written is
    /// sent to the device.
    ///
    /// # Errors
    /// As [`Plan::write`].
    pub fn write_at<T: Element>(&mut self, name: &str, first: usize, data: &[T]) -> Result<()> {
        self.write_plain(name, T::TYPE, first, bytes_of(data))
    }

    /// Sets the first elements of an input of `bool`, such as a mask.
    ///
    /// # Errors
    /// As [`Plan::write`].
    pub fn write_bools(&mut self, name: &str, data: &[bool]) -> Result<()> {
        let bytes: Vec<u8> = data.iter().map(|v| u8::from(*v)).collect();
        self.write_plain(name, Type::Bool, 0, &bytes)
    }

    fn write_plain(&mut self, name: &str, ty: Type, first: usize, bytes: &[u8]) -> Result<()> {
        let Some(slot) = self.inputs.iter().find(|i| i.name == name) else {
            return Err(CoreError::Run(format!("there is no input named {name}")));
        };
        if slot.spec.format != DType::Plain(ty) {
            let have = slot.spec.format.name();
            return Err(CoreError::Run(format!("input {name} has elements of {have}, not {ty}")));
        }
        let end = first.saturating_mul(ty.size()).saturating_add(bytes.len());
        if end > slot.spec.max_bytes() {
            return Err(CoreError::Run(format!(
                "input {name} holds at most {} elements, not {}",
                slot.spec.max_bytes() / ty.size(),
                end / ty.size()
            )));
        }
        self.put(slot.offset + end - bytes.len(), bytes);
        Ok(())
    }

    /// Writes bytes of the step block, which are inside it.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let range = at..at + bytes.len();
        self.host_step[range.clone()].copy_from_slice(bytes);
        match self.changed.last_mut() {
            // Inputs are mostly written in their order.
            Some(last) if (last.start..=last.end + JOINED).contains(&range.start) => last.end = last.end.max(range.end),
            _ => self.changed.push(range),
        }
    }

    /// Sends what has changed of the step block.
    fn send(&mut self) -> Result<()> {
        self.changed.sort_unstable_by_key(|range| range.start);
        let mut ranges = self.changed.iter().filter(|range| !range.is_empty()).cloned().peekable();
        while let Some(mut range) = ranges.next() {
            while let Some(next) = ranges.next_if(|next| next.start <= range.end + JOINED) {
                range.end = range.end.max(next.end);
            }
            self.executor.backend().copy_to_buffer(&self.step, range.start, &self.host_step[range])?;
        }
        self.changed.clear();
        Ok(())
    }

    /// Lets the device set elements of an input before the next run, and only before that: `count` of them from `first`
    /// on, as elements `from..` of a dense tensor of the same type then are. Work submitted before may still be
    /// computing them: the host does not wait.
    ///
    /// # Errors
    /// When there is no such input, its elements are of another type, or a range is out of bounds.
    pub fn write_from(&mut self, name: &str, first: usize, tensor: &Tensor, from: usize, count: usize) -> Result<()> {
        let slot = self.inputs.iter().find(|i| i.name == name);
        let slot = slot.ok_or_else(|| CoreError::Run(format!("there is no input named {name}")))?;
        let (bytes, from_offset) = elements_of(tensor, slot.spec.format, from, count)?;
        let at = first.saturating_mul(bytes / count.max(1));
        if at.saturating_add(bytes) > slot.spec.max_bytes() {
            return Err(CoreError::Run(format!("input {name} has no {count} elements from {first} on")));
        }
        self.copies.push(InputCopy { from: tensor.clone(), from_offset, to: slot.offset + at, bytes });
        Ok(())
    }

    /// Copies the first `count` elements of an output to the elements `from..` of a dense tensor of the same type, on
    /// the device and in the order of its work: the host does not wait.
    ///
    /// # Errors
    /// When there was no run, there is no such output, its elements are of another type, or a range is out of bounds.
    pub fn copy_output(&self, name: &str, tensor: &Tensor, from: usize, count: usize) -> Result<()> {
        let slot = self.output(name)?;
        if !self.has_run {
            return Err(CoreError::Run(format!("output {name} is read before the first run")));
        }
        let (bytes, to) = elements_of(tensor, slot.spec.format, from, count)?;
        let have = self.output_len(name)?;
        if count > have {
            return Err(CoreError::Run(format!("output {name} has {have} elements, not {count}")));
        }
        Ok(self.executor.backend().copy_buffer(&self.arena, slot.offset, &tensor.buffer, to, bytes)?)
    }

    /// Sets a run-time extent.
    ///
    /// # Errors
    /// When there is no such extent or the value is beyond the plan's bound.
    pub fn set_extent(&mut self, name: &str, value: usize) -> Result<()> {
        let Some(i) = self.extents.iter().position(|(n, _)| n == name) else {
            return Err(CoreError::Run(format!("there is no extent named {name}")));
        };
        let max = self.extents[i].1;
        if value > max {
            return Err(CoreError::Run(format!("extent {name} is at most {max} in this plan, not {value}")));
        }
        self.values[i] = value as u32;
        self.put(i * 4, &(value as u32).to_le_bytes());
        Ok(())
    }

    /// Sends the step block and submits the recorded kernels; returns when the device has accepted them, and other
    /// devices have computed their [parts](super::Graph::elsewhere).
    ///
    /// # Errors
    /// Errors that the device detects at once. Errors of kernels come with [`Plan::read`].
    pub fn run(&mut self) -> Result<()> {
        self.enqueue().map(drop)
    }

    /// As [`Plan::run`]; returns an event, the point at which the kernels of this run are done.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn submit(&mut self) -> Result<Event> {
        let event = self.enqueue()?;
        Ok(Event { executor: self.executor.clone(), event })
    }

    fn enqueue(&mut self) -> Result<hologram_backends::Event> {
        let executor = self.executor.clone();
        let copies = std::mem::take(&mut self.copies);
        let _run = executor.run_span(self.launches());
        if !(self.extents.is_empty() && self.inputs.is_empty()) {
            self.send()?;
        }
        for InputCopy { from, from_offset, to, bytes } in copies {
            // The next run's elements are the host's again.
            self.changed.push(to..to + bytes);
            executor.backend().copy_buffer(&from.buffer, from_offset, &self.step, to, bytes)?;
        }
        let mut event = executor.backend().submit(&self.list)?;
        if !self.parts.is_empty() {
            // An error of a part leaves outputs of an earlier run.
            self.has_run = false;
            let mut host = std::mem::take(&mut self.moved);
            let done = self.run_parts(&mut host, &mut |executor, list| {
                let submitted = executor.backend().submit(list)?;
                if executor.is(&self.executor) {
                    event = submitted;
                }
                Ok(())
            });
            self.moved = host;
            done?;
        }
        self.has_run = true;
        Ok(event)
    }

    /// Runs what follows the first list. `run` gets each list with its device.
    fn run_parts(&self, host: &mut Vec<u8>, run: &mut dyn FnMut(&Executor, &CommandList) -> Result<()>) -> Result<()> {
        for part in &self.parts {
            let bytes = part.read(&self.executor, &self.values, host)?;
            part.beside.iter().try_for_each(|list| run(&self.executor, list))?;
            part.send(&host[..bytes])?;
            run(&part.executor, &part.list)?;
            part.finish(&self.executor, &self.values, host)?;
            part.next.iter().try_for_each(|list| run(&self.executor, list))?;
        }
        Ok(())
    }

    /// Runs the recorded kernels once more with the last run's inputs, one by one. Returns the name of each and the
    /// seconds it took on the device.
    ///
    /// # Errors
    /// When the device cannot measure them; the error of the run.
    pub fn profile(&self) -> Result<Vec<(KernelName, f64)>> {
        let mut kernels = self.executor.backend().measure().profile(&self.list)?;
        self.run_parts(&mut Vec::new(), &mut |executor, list| {
            kernels.extend(executor.backend().measure().profile(list)?);
            Ok(())
        })?;
        Ok(kernels)
    }

    /// Waits and reads an output at its actual size.
    ///
    /// # Errors
    /// When there was no run, there is no such output, or its elements are of another type. If the last run failed
    /// before it computed the output: its error, at each read.
    pub fn read<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        let mut out = vec![T::default(); self.output_len(name)?];
        self.read_into(name, &mut out)?;
        Ok(out)
    }

    /// Waits and reads the first elements of an output into a slice.
    ///
    /// # Errors
    /// As [`Plan::read`]; when the slice is longer than the output.
    pub fn read_into<T: Element>(&self, name: &str, out: &mut [T]) -> Result<()> {
        self.read_plain(name, T::TYPE, out.len(), bytes_of_mut(out))
    }

    /// Waits and reads an output of `bool`, such as a comparison's result, at its actual size.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn read_bools(&self, name: &str) -> Result<Vec<bool>> {
        let mut bytes = vec![0u8; self.output_len(name)?];
        self.read_plain(name, Type::Bool, bytes.len(), &mut bytes)?;
        Ok(bytes.into_iter().map(|v| v != 0).collect())
    }

    fn read_plain(&self, name: &str, ty: Type, len: usize, out: &mut [u8]) -> Result<()> {
        let slot = self.output(name)?;
        if slot.spec.format != DType::Plain(ty) {
            let have = slot.spec.format.name();
            return Err(CoreError::Run(format!("output {name} has elements of {have}, not {ty}")));
        }
        if !self.has_run {
            return Err(CoreError::Run(format!("output {name} is read before the first run")));
        }
        let have = self.output_len(name)?;
        if len > have {
            return Err(CoreError::Run(format!("output {name} has {have} elements, not {len}")));
        }
        Ok(self.executor.backend().copy_from_buffer(&self.arena, slot.offset, out)?)
    }

    #[cfg(feature = "conformance")]
    /// Sets all bytes of an input, in its format's layout for the maximum extents.
    pub(crate) fn write_raw(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        match self.inputs.iter().find(|i| i.name == name && i.spec.max_bytes() == bytes.len()) {
            Some(slot) => self.put(slot.offset, bytes),
            None => return Err(CoreError::Run(format!("there is no input named {name} of {} bytes", bytes.len()))),
        }
        Ok(())
    }

    #[cfg(feature = "conformance")]
    /// Fills the arena with a byte.
    pub(crate) fn fill_arena(&self, byte: u8) -> Result<()> {
        let bytes = vec![byte; self.arena.bytes()];
        Ok(self.executor.backend().copy_to_buffer(&self.arena, 0, &bytes)?)
    }

    #[cfg(feature = "conformance")]
    /// Waits and reads all bytes of an output, in its format's layout for the maximum extents.
    pub(crate) fn read_raw(&self, name: &str) -> Result<Vec<u8>> {
        let slot = self.output(name)?;
        let mut bytes = vec![0; slot.spec.max_bytes()];
        self.executor.backend().copy_from_buffer(&self.arena, slot.offset, &mut bytes)?;
        Ok(bytes)
    }

    #[cfg(feature = "conformance")]
    /// Format and maximum shape of an output.
    pub(crate) fn output_spec(&self, name: &str) -> Result<&TensorSpec> {
        Ok(&self.output(name)?.spec)
    }

    /// Number of elements of an output with the current extents.
    ///
    /// # Errors
    /// When there is no such output.
    pub fn output_len(&self, name: &str) -> Result<usize> {
        Ok(self.output(name)?.spec.shape.iter().map(|e| e.value(&self.values)).product())
    }

    /// Kernels per run.
    pub fn launches(&self) -> usize {
        self.launches[0]
    }

    /// Native kernels of the backend per run.
    pub fn native_launches(&self) -> usize {
        self.launches[1]
    }

    /// Bytes of the arena that holds every intermediate value.
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    fn output(&self, name: &str) -> Result<&OutputSlot> {
        let slot = self.outputs.iter().find(|o| o.name == name);
        slot.ok_or_else(|| CoreError::Run(format!("there is no output named {name}")))
    }
}

/// The bytes of `count` elements of a tensor, and the offset of element `first` in its buffer.
fn elements_of(tensor: &Tensor, format: DType, first: usize, count: usize) -> Result<(usize, usize)> {
    let fail = |reason: String| Err(CoreError::Run(reason));
    let DType::Plain(ty) = format else {
        return fail(format!("elements of {} are not copied one by one", format.name()));
    };
    if tensor.dtype() != format || tensor.strides.is_some() {
        return fail(format!(
            "a copy of {} elements takes a dense tensor of them, not one of {}",
            ty,
            tensor.dtype().name()
        ));
    }
    let (offset, bytes) = (first.saturating_mul(ty.size()), count.saturating_mul(ty.size()));
    if offset.saturating_add(bytes) > tensor.bytes() {
        return fail(format!("a tensor of {} bytes has no {count} elements from {first} on", tensor.bytes()));
    }
    Ok((bytes, tensor.offset + offset))
}
