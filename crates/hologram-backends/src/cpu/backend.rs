//! The CPU behind the [`Backend`] trait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_isa::{Capability, Program};

use super::exec::{Code, translate};
use super::features::{Features, InstructionSet};
use super::kernel::{NativeKernel, RawSlice};
use super::pool::Workers;
use super::replay::{Recording, Scratch, Step, Work, profile, replay};
use super::{native, system};
use crate::backend::{
    Backend, BackendType, Buffer, Ceiling, CeilingKind, CommandList, DeviceInfo, Event, ForeignMemory, Launch, Pipeline,
};
use crate::error::{BackendError, Result};
use crate::format::Format;
use crate::host::{
    Allocator, Argument, Counters, HostMemory, Pipelines, Rule, Use, buffers_of, host_copy, host_memory, resolve,
    rules_of_program, rules_of_spec, uses_of,
};
use crate::metrics::Metrics;
use crate::spec::{GroupSpec, KernelSpec};

/// The most worker threads.
const MAX_THREADS: usize = 1024;

/// The fewest tokens of a step whose weights are worth decoding for tiles.
const TILED_TOKENS: usize = 16;

/// How a [`CpuBackend`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Worker threads, 1 to 1024; by default one for each physical core that the process may use.
    pub threads: Option<usize>,
    /// The most bytes that buffers and the allocator's cache may hold together; by default no limit but the system's.
    pub memory_cap: Option<u64>,
    /// The most that kernels may use of the processor's vector instructions, for tests of lesser paths; by default all that it has.
    pub max_isa: Option<InstructionSet>,
}

/// The host's processor as a device: work is done when `submit` returns, by all worker threads.
pub struct CpuBackend {
    info: DeviceInfo,
    features: Features,
    allocator: Arc<Allocator>,
    counters: Counters,
    pipelines: Pipelines,
    queue: Mutex<Queue>,
}

/// What runs work, one submission at a time.
struct Queue {
    workers: Workers,
    scratch: Scratch,
    submitted: u64,
}

/// What a [`Pipeline`] of a native kernel holds.
struct NativePipeline {
    kernel: Arc<dyn NativeKernel>,
    rules: Vec<Rule>,
}

/// What a [`Pipeline`] of a program holds.
struct ProgramPipeline {
    code: Arc<Code>,
    rules: Vec<Rule>,
}

/// A pipeline that runs this kernel on a [`CpuBackend`], with the arguments that the spec gives it ([`KernelSpec`]).
pub(super) fn native_pipeline(kernel: Arc<dyn NativeKernel>, spec: &KernelSpec) -> Pipeline {
    Pipeline::new(spec.op.name(), NativePipeline { kernel, rules: rules_of_spec(spec) })
}

impl CpuBackend {
    /// Opens the CPU with this many worker threads; by default one for each physical core that the process may use.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] for a count of 0 or above 1024, or when a thread cannot be started.
    pub fn new(threads: Option<usize>) -> Result<CpuBackend> {
        CpuBackend::with_options(CpuOptions { threads, ..CpuOptions::default() })
    }

    /// Opens the CPU.
    ///
    /// # Errors
    /// As [`CpuBackend::new`].
    pub fn with_options(options: CpuOptions) -> Result<CpuBackend> {
        let unavailable = |reason| BackendError::Unavailable { device: BackendType::Cpu.to_string(), reason };
        let threads = options.threads.unwrap_or_else(system::default_threads);
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(unavailable(format!("{threads} threads were asked for; give 1 to {MAX_THREADS}")));
        }
        let detected = Features::detect();
        let features = options.max_isa.map_or(detected, |most| detected.up_to(most));
        let workers = Workers::new(threads)
            .map_err(|e| unavailable(format!("cannot start {threads} threads ({e}); ask for fewer")))?;
        Ok(CpuBackend {
            info: DeviceInfo {
                backend: BackendType::Cpu,
                name: system::processor_name(),
                memory_bytes: system::memory_bytes(),
                parallelism: threads,
                capabilities: Capability::ALL.to_vec(),
                features: features.names(),
                details: Vec::new(),
            },
            features,
            allocator: Allocator::new(BackendType::Cpu, options.memory_cap),
            counters: Counters::default(),
            pipelines: Pipelines::default(),
            queue: Mutex::new(Queue { workers, scratch: Scratch::new(), submitted: 0 }),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn invalid(&self, operation: &str, reason: &str) -> BackendError {
        let device = BackendType::Cpu.to_string();
        BackendError::InvalidArgument { device, operation: operation.into(), reason: reason.into() }
    }

    /// What this device has recorded.
    fn recording<'a>(&self, list: &'a CommandList, operation: &str) -> Result<&'a Recording> {
        match list.downcast::<Recording>() {
            Some(recording) if Arc::ptr_eq(&recording.allocator, &self.allocator) => Ok(recording),
            _ => Err(self.invalid(operation, "the list was recorded by another device")),
        }
    }

    /// Checks one launch, and notes the memory that it touches.
    fn step(&self, index: usize, launch: &Launch, uses: &mut Vec<Use>) -> Result<Step> {
        let name = launch.pipeline.name.clone();
        if let Some(native) = launch.pipeline.downcast::<NativePipeline>() {
            let arguments = resolve(&self.allocator, &name, &native.rules, &launch.bindings)?;
            uses.extend(uses_of(index, &native.rules, &arguments, RawSlice::addresses));
            return Ok(Step { name, slices: slices(&arguments), work: Work::Native(native.kernel.clone()) });
        }
        if let Some(program) = launch.pipeline.downcast::<ProgramPipeline>() {
            let arguments = resolve(&self.allocator, &name, &program.rules, &launch.bindings)?;
            uses.extend(uses_of(index, &program.rules, &arguments, RawSlice::addresses));
            let scalars = arguments.iter().filter_map(|argument| match argument {
                Argument::Scalar(word) => Some(*word),
                Argument::Slice(_) => None,
            });
            let (scalars, grid) = (scalars.collect(), launch.config.grid);
            let work = Work::Program { code: program.code.clone(), scalars, grid };
            return Ok(Step { name, slices: slices(&arguments), work });
        }
        Err(self.invalid(&format!("recording kernel {name}"), "its pipeline was made by another device"))
    }
}

/// The memory among the arguments.
fn slices(arguments: &[Argument]) -> Box<[RawSlice]> {
    let slice = |argument: &Argument| match argument {
        Argument::Slice(slice) => Some(*slice),
        Argument::Scalar(_) => None,
    };
    arguments.iter().filter_map(slice).collect()
}

impl Backend for CpuBackend {
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
            let code = Arc::new(translate(program, self.features));
            Ok(Pipeline::new(&program.name, ProgramPipeline { code, rules: rules_of_program(program) }))
        })
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        native::find(spec, self.features).map(|kernel| native_pipeline(kernel, spec))
    }

    fn available_memory(&self) -> Option<u64> {
        system::available_memory()
    }

    fn activations(&self, weights: Format, tokens: usize, choices: &[Format]) -> Option<Format> {
        // For a prompt's worth of tokens tiles of bf16 are faster than products of codes.
        if self.features.amx && tokens >= TILED_TOKENS && choices.contains(&Format::BF16) {
            return Some(Format::BF16);
        }
        // Codes are multiplied where a kernel does it; weights of the other formats are decoded.
        let codes = native::multiplies_codes(weights);
        let float = choices.iter().find(|c| !codes && **c == Format::F32);
        float.or(choices.first()).copied()
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let (kernel, spec) = native::find_group(group, self.features)?;
        Some(native_pipeline(kernel, &spec))
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let mut uses = Vec::with_capacity(launches.iter().map(|launch| launch.bindings.len()).sum());
        let step = |(index, launch)| self.step(index, launch, &mut uses);
        let steps = launches.iter().enumerate().map(step).collect::<Result<Vec<_>>>()?;
        let recording = Recording::new(&self.allocator, steps, uses, buffers_of(launches));
        let queue = &mut *self.queue();
        queue.scratch.reserve(&self.allocator, recording.scratch, queue.workers.count())?;
        Ok(CommandList::new(recording))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let recording = self.recording(list, "submit")?;
        let Queue { workers, scratch, submitted } = &mut *self.queue();
        *submitted += 1;
        self.allocator.failures().run(*submitted, &recording.uses, || {
            Counters::add(&self.counters.launches, recording.len());
            replay(workers, scratch, recording)
        });
        Ok(Event(*submitted))
    }

    fn wait(&self, event: Event) -> Result<()> {
        let submitted = self.queue().submitted;
        self.allocator.failures().wait(BackendType::Cpu, event, submitted)
    }

    fn synchronize(&self) -> Result<()> {
        let _queue = self.queue();
        self.allocator.failures().synchronize()
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(Arc<str>, f64)>> {
        let recording = self.recording(list, "profile")?;
        let Queue { workers, scratch, submitted } = &mut *self.queue();
        *submitted += 1;
        let mut times = Vec::new();
        let failures = self.allocator.failures();
        failures.run(*submitted, &recording.uses, || {
            Counters::add(&self.counters.launches, recording.len());
            times = profile(workers, scratch, recording)?;
            Ok(())
        });
        failures.wait(BackendType::Cpu, Event(*submitted), *submitted)?;
        Ok(times)
    }

    fn read_bandwidth(&self) -> Result<f64> {
        native::bandwidth::measure_read_bandwidth(self, self.features)
    }

    fn copy_bandwidth(&self) -> Result<f64> {
        native::bandwidth::measure_copy_bandwidth(self, self.features)
    }

    fn ceiling(&self, kind: CeilingKind) -> Result<Option<Ceiling>> {
        match kind {
            CeilingKind::Read | CeilingKind::Copy | CeilingKind::Triad => {
                native::bandwidth::traffic(self, self.features, kind).map(Some)
            }
            CeilingKind::F32 | CeilingKind::Bf16 | CeilingKind::I8 => {
                native::peak::arithmetic(self, self.features, kind)
            }
        }
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(self.allocator.metrics())
    }
}
