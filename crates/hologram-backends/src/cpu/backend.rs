//! The CPU behind the [`Backend`] trait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_isa::Program;

use super::features::Features;
use super::kernel::NativeKernel;
use super::pool::Workers;
use super::replay::{Recording, Scratch, Step, Work, replay};
use super::{native, system};
use crate::backend::{
    Backend, BackendType, Binding, Buffer, CommandList, DeviceInfo, Event, ForeignMemory, Launch, Pipeline,
};
use crate::error::{BackendError, Result};
use crate::host::{Allocator, Argument, Counters, Rule, Sticky, host_memory, resolve, rules_of_spec};
use crate::metrics::Metrics;
use crate::spec::KernelSpec;

/// The most worker threads.
const MAX_THREADS: usize = 1024;

/// How a [`CpuBackend`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Worker threads, 1 to 1024; by default one for each physical core that the process may use.
    pub threads: Option<usize>,
    /// The most bytes that buffers and the allocator's cache may hold together; by default no limit but the system's.
    pub memory_cap: Option<u64>,
    /// Instruction sets to use, for tests of lesser paths; those that the processor lacks are left out. By default all it has.
    pub features: Option<Features>,
}

/// The host's processor as a device: work is done when `submit` returns, by all worker threads.
pub struct CpuBackend {
    info: DeviceInfo,
    features: Features,
    allocator: Arc<Allocator>,
    counters: Counters,
    queue: Mutex<Queue>,
}

/// What runs work, one submission at a time.
struct Queue {
    workers: Workers,
    scratch: Scratch,
    sticky: Sticky,
}

/// What a [`Pipeline`] of a native kernel holds.
struct NativePipeline {
    kernel: Arc<dyn NativeKernel>,
    rules: Vec<Rule>,
}

/// A pipeline that runs this kernel on a [`CpuBackend`], with the arguments that the spec gives it ([`KernelSpec`]).
pub fn native_pipeline(kernel: Arc<dyn NativeKernel>, spec: &KernelSpec) -> Pipeline {
    Pipeline::new(spec.op, NativePipeline { kernel, rules: rules_of_spec(spec) })
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
        let features = options.features.map_or(detected, |wanted| wanted.and(detected));
        let workers = Workers::new(threads)
            .map_err(|e| unavailable(format!("cannot start {threads} threads ({e}); ask for fewer")))?;
        Ok(CpuBackend {
            info: DeviceInfo {
                backend: BackendType::Cpu,
                name: system::processor_name(),
                memory_bytes: system::memory_bytes(),
                parallelism: threads,
                features: features.names(),
            },
            features,
            allocator: Allocator::new(BackendType::Cpu, options.memory_cap),
            counters: Counters::default(),
            queue: Mutex::new(Queue { workers, scratch: Scratch::new(), sticky: Sticky::default() }),
        })
    }

    /// The instruction sets that kernels are chosen by.
    pub fn features(&self) -> Features {
        self.features
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn invalid(&self, operation: &str, reason: &str) -> BackendError {
        let device = BackendType::Cpu.to_string();
        BackendError::InvalidArgument { device, operation: operation.into(), reason: reason.into() }
    }

    /// Checks one launch.
    fn step(&self, launch: &Launch) -> Result<Step> {
        let name = launch.pipeline.name.clone();
        if let Some(native) = launch.pipeline.downcast::<NativePipeline>() {
            let arguments = resolve(BackendType::Cpu, &name, &native.rules, &launch.bindings)?;
            return Ok(Step { name, slices: slices(&arguments), work: Work::Native(native.kernel.clone()) });
        }
        Err(self.invalid(&format!("recording kernel {name}"), "its pipeline was made by another device"))
    }
}

/// The memory among the arguments.
fn slices(arguments: &[Argument]) -> Box<[super::kernel::RawSlice]> {
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

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        self.allocator.wrap(memory).map(Buffer::new)
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        let to = host_memory(BackendType::Cpu, "copy_to_buffer", buffer, offset, data.len(), true)?;
        let _queue = self.queue();
        // SAFETY: the range was checked, and no kernel runs while the queue is held. The host's bytes cannot be the buffer's.
        unsafe { to.data.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Counters::add(&self.counters.to_device, data.len());
        Ok(())
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        let from = host_memory(BackendType::Cpu, "copy_from_buffer", buffer, offset, data.len(), false)?;
        let mut queue = self.queue();
        queue.sticky.take()?;
        // SAFETY: as in `copy_to_buffer`.
        unsafe { from.data.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
        Counters::add(&self.counters.from_device, data.len());
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
        let source = host_memory(BackendType::Cpu, "copy_buffer", from, from_offset, bytes, false)?;
        let target = host_memory(BackendType::Cpu, "copy_buffer", to, to_offset, bytes, true)?;
        if from.same_memory(to) && from_offset.abs_diff(to_offset) < bytes {
            return Err(self.invalid("copy_buffer", "the ranges overlap"));
        }
        self.queue().sticky.run(|| {
            // SAFETY: both ranges were checked; `copy` allows that foreign memory overlaps; no kernel runs while the queue is held.
            unsafe { source.data.copy_to(target.data, bytes) };
            Ok(())
        });
        Ok(())
    }

    fn compile(&self, _program: &Program) -> Result<Pipeline> {
        Err(BackendError::Unsupported { device: BackendType::Cpu.to_string(), what: "running programs".into() })
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        native::find(spec, self.features).map(|kernel| native_pipeline(kernel, spec))
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let steps = launches.iter().map(|launch| self.step(launch)).collect::<Result<Vec<_>>>()?;
        let buffers = launches.iter().flat_map(|l| &l.bindings).filter_map(|binding| match binding {
            Binding::Buffer { buffer, .. } => Some(buffer.clone()),
            Binding::Scalar(_) => None,
        });
        let recording = Recording::new(steps, buffers.collect());
        let queue = &mut *self.queue();
        queue.scratch.reserve(&self.allocator, recording.scratch, queue.workers.count())?;
        Ok(CommandList::new(recording))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let Some(recording) = list.downcast::<Recording>() else {
            return Err(self.invalid("submit", "the list was recorded by another device"));
        };
        let Queue { workers, scratch, sticky } = &mut *self.queue();
        // No more than a comparison, unless another CPU device recorded the list.
        scratch.reserve(&self.allocator, recording.scratch, workers.count())?;
        Ok(sticky.run(|| {
            Counters::add(&self.counters.launches, recording.steps.len());
            replay(workers, scratch, &recording.steps)
        }))
    }

    fn wait(&self, event: Event) -> Result<()> {
        self.queue().sticky.wait(BackendType::Cpu, event)
    }

    fn synchronize(&self) -> Result<()> {
        self.queue().sticky.take()
    }

    fn read_bandwidth(&self) -> Result<f64> {
        native::bandwidth::measure_read_bandwidth(self, self.features)
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(self.allocator.metrics())
    }
}
