//! The reference interpreter as a device: it runs programs and nothing else, slowly, on the submitting thread, and checks everything.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hologram_isa::interp::{self, Bytes};
use hologram_isa::{Access, Capability, ParamKind, Program};

use crate::backend::{Backend, BackendType, Buffer, CommandList, DeviceInfo, Event, ForeignMemory, Launch, Pipeline};
use crate::cpu::kernel::RawSlice;
use crate::error::{BackendError, Result};
use crate::host::{
    Allocator, Argument, Counters, HostMemory, Pipelines, Rule, Use, buffers_of, host_copy, host_memory, resolve,
    rules_of_program, uses_of,
};
use crate::metrics::Metrics;
use crate::spec::KernelSpec;

const DEVICE: BackendType = BackendType::Reference;

/// The reference interpreter as a device; [`Backend::native`] has no kernel for anything.
pub struct ReferenceBackend {
    info: DeviceInfo,
    allocator: Arc<Allocator>,
    counters: Counters,
    pipelines: Pipelines,
    /// The number of submissions; held while one runs.
    queue: Mutex<u64>,
}

/// What a [`Pipeline`] holds.
struct Compiled {
    program: Arc<Program>,
    rules: Vec<Rule>,
}

/// What a [`CommandList`] holds.
struct Recording {
    steps: Vec<Step>,
    uses: Vec<Use>,
    /// Of the device that recorded it, which alone may run it.
    allocator: Arc<Allocator>,
    /// Keeps the memory of the steps alive.
    _buffers: Vec<Buffer>,
}

struct Step {
    program: Arc<Program>,
    arguments: Vec<Argument>,
    grid: [u32; 3],
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        ReferenceBackend::new()
    }
}

impl ReferenceBackend {
    /// Opens the interpreter.
    pub fn new() -> ReferenceBackend {
        ReferenceBackend::with_memory_cap(None)
    }

    /// Opens the interpreter with a limit of the bytes that buffers and the allocator's cache may hold together.
    pub fn with_memory_cap(cap: Option<u64>) -> ReferenceBackend {
        ReferenceBackend {
            info: DeviceInfo {
                backend: DEVICE,
                name: "reference interpreter".into(),
                memory_bytes: crate::cpu::memory_bytes(),
                parallelism: 1,
                capabilities: Capability::ALL.to_vec(),
                features: Vec::new(),
                details: Vec::new(),
            },
            allocator: Allocator::new(DEVICE, cap),
            counters: Counters::default(),
            pipelines: Pipelines::default(),
            queue: Mutex::default(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, u64> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn invalid(&self, operation: String, reason: &str) -> BackendError {
        BackendError::InvalidArgument { device: DEVICE.to_string(), operation, reason: reason.into() }
    }

    /// What this device has recorded.
    fn recording<'a>(&self, list: &'a CommandList, operation: &str) -> Result<&'a Recording> {
        match list.downcast::<Recording>() {
            Some(recording) if Arc::ptr_eq(&recording.allocator, &self.allocator) => Ok(recording),
            _ => Err(self.invalid(operation.into(), "the list was recorded by another device")),
        }
    }

    fn step(&self, index: usize, launch: &Launch, uses: &mut Vec<Use>) -> Result<Step> {
        let name = &launch.pipeline.name;
        let Some(compiled) = launch.pipeline.downcast::<Compiled>() else {
            return Err(self.invalid(format!("recording kernel {name}"), "its pipeline was made by another device"));
        };
        let arguments = resolve(&self.allocator, name, &compiled.rules, &launch.bindings)?;
        uses.extend(uses_of(index, &compiled.rules, &arguments, RawSlice::addresses));
        Ok(Step { program: compiled.program.clone(), arguments, grid: launch.config.grid })
    }
}

impl Step {
    fn run(&self) -> Result<()> {
        // Arguments may overlap (two views of the same blocks), so each memory that the interpreter is given is a range of bytes that
        // no other touches: arguments that overlap are merged into one, which is for writing where one of them is.
        let slices = self.program.params.iter().zip(&self.arguments).filter_map(|(param, argument)| match argument {
            Argument::Slice(slice) => {
                let written = matches!(param.kind, ParamKind::Buffer { access, .. } if access != Access::Read);
                Some((slice.data.addr(), slice.data, slice.bytes, written))
            }
            Argument::Scalar(_) => None,
        });
        let mut slices: Vec<_> = slices.collect();
        slices.sort_unstable_by_key(|(address, ..)| *address);
        let mut ranges: Vec<(usize, *mut u8, usize, bool)> = Vec::new();
        for (address, data, bytes, written) in slices {
            match ranges.last_mut() {
                Some((start, _, length, any_written)) if address < *start + *length => {
                    *length = (*length).max(address + bytes - *start);
                    *any_written |= written;
                }
                _ => ranges.push((address, data, bytes, written)),
            }
        }
        let bindings = self.arguments.iter().map(|argument| match argument {
            Argument::Scalar(word) => interp::Binding::Scalar(*word),
            Argument::Slice(slice) => {
                let address = slice.data.addr();
                let memory = ranges.iter().rposition(|(start, ..)| *start <= address).unwrap_or(0);
                interp::Binding::Buffer { memory, offset: address - ranges[memory].0, len: slice.bytes }
            }
        });
        let bindings: Vec<_> = bindings.collect();
        let memory = |(_, data, bytes, written): &(usize, *mut u8, usize, bool)| {
            if *written {
                // SAFETY: no other range overlaps it. It lies in a buffer that the recording keeps alive, which is not foreign, as was
                // checked when the launch was recorded, and which nobody else touches while the queue is held.
                Bytes::Write(unsafe { std::slice::from_raw_parts_mut(*data, *bytes) })
            } else {
                // SAFETY: it lies in a buffer that the recording keeps alive, of this device, which nobody else touches while the queue is
                // held, or foreign, which nobody writes.
                Bytes::Read(unsafe { std::slice::from_raw_parts(*data, *bytes) })
            }
        };
        let mut memories: Vec<_> = ranges.iter().map(memory).collect();
        Ok(interp::interpret_in(&self.program, self.grid, &mut memories, &bindings)?)
    }
}

impl Backend for ReferenceBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.allocator.allocate(bytes).map(Buffer::new)
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.downcast::<HostMemory>().is_some_and(|memory| memory.is_of(&self.allocator))
    }

    fn shares_host_memory(&self) -> bool {
        true
    }

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        Ok(Buffer::new(self.allocator.wrap(&memory)))
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        let _queue = self.queue();
        let to = host_memory(&self.allocator, "copy_to_buffer", buffer, offset, data.len(), true)?;
        to.write(data);
        self.allocator.failures().clear(to.0.addresses());
        Counters::add(&self.counters.to_device, data.len());
        Ok(())
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        let _queue = self.queue();
        let from = host_memory(&self.allocator, "copy_from_buffer", buffer, offset, data.len(), false)?;
        self.allocator.failures().check(from.0.addresses())?;
        from.read(data);
        Counters::add(&self.counters.from_device, data.len());
        Ok(())
    }

    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
        let _queue = self.queue();
        let range = host_memory(&self.allocator, "clear_error", buffer, offset, bytes, false)?;
        self.allocator.failures().clear(range.0.addresses());
        Ok(())
    }

    fn copy_buffer(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let (from, to) = host_copy(&self.allocator, (from, from_offset), (to, to_offset), bytes)?;
        let _queue = self.queue();
        from.copy_to(to);
        self.allocator.failures().copy(from.0.addresses().start, to.0.addresses().start, bytes as u64);
        Ok(())
    }

    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.pipelines.get_or_compile(&self.info, &self.counters, program, || {
            let rules = rules_of_program(program);
            Ok(Pipeline::new(&program.name, Compiled { program: Arc::new(program.clone()), rules }))
        })
    }

    fn native(&self, _spec: &KernelSpec) -> Option<Pipeline> {
        None
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let mut uses = Vec::new();
        let step = |(index, launch)| self.step(index, launch, &mut uses);
        let steps = launches.iter().enumerate().map(step).collect::<Result<_>>()?;
        Ok(CommandList::new(Recording {
            steps,
            uses,
            allocator: self.allocator.clone(),
            _buffers: buffers_of(launches),
        }))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let recording = self.recording(list, "submit")?;
        let mut submitted = self.queue();
        *submitted += 1;
        self.allocator.failures().run(*submitted, &recording.uses, || {
            for (index, step) in recording.steps.iter().enumerate() {
                Counters::add(&self.counters.launches, 1);
                step.run().map_err(|error| (index, error))?;
            }
            Ok(())
        });
        Ok(Event(*submitted))
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(Arc<str>, f64)>> {
        let recording = self.recording(list, "profile")?;
        let mut submitted = self.queue();
        *submitted += 1;
        let mut times = Vec::new();
        self.allocator.failures().run(*submitted, &recording.uses, || {
            for (index, step) in recording.steps.iter().enumerate() {
                Counters::add(&self.counters.launches, 1);
                let start = Instant::now();
                step.run().map_err(|error| (index, error))?;
                times.push((step.program.name.as_str().into(), start.elapsed().as_secs_f64()));
            }
            Ok(())
        });
        self.allocator.failures().wait(DEVICE, Event(*submitted), *submitted)?;
        Ok(times)
    }

    fn wait(&self, event: Event) -> Result<()> {
        let submitted = *self.queue();
        self.allocator.failures().wait(DEVICE, event, submitted)
    }

    fn synchronize(&self) -> Result<()> {
        let _queue = self.queue();
        self.allocator.failures().synchronize()
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(self.allocator.metrics())
    }
}
