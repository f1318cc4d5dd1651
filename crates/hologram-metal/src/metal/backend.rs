//! An Apple GPU behind the [`Backend`] trait.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use hologram_device::host::{
    Argument, CachingAllocator, Counters, Pipelines, Rule, resolve_with, rules_of_group, rules_of_program,
    rules_of_spec, uses_of,
};
use hologram_device::{
    Backend, BackendError, BackendType, Buffer, CommandList, DType, DeviceInfo, DeviceKind, DeviceMemory, Event,
    ForeignMemory, GroupSpec, KernelName, KernelSpec, Kernels, Launch, Measure, Metrics, OpenOptions, Pipeline, Policy,
    Pool, Result, Streams, check_apart,
};
use hologram_gpu::{self as gpu, NativeKernel};
use hologram_isa::{Program, msl};

use super::bandwidth;
use super::builder::Builder;
use super::capture::Capture;
use super::device::Device;
use super::library::{Kernel, LANGUAGE, Modules};
use super::memory::{Access, Allocator, DeviceSource, MetalMemory, Slice, slice};
use super::queue::Queue;
use super::record::Recording;
use super::selftest::Verdicts;

/// How a [`MetalBackend`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetalOptions {
    /// The most bytes that buffers and the allocator's cache may hold together; by default, and at most, the device's
    /// recommended amount.
    pub memory_cap: Option<u64>,
}

/// An Apple GPU. Work runs beside the host, in the order of submission, in memory that both share.
///
/// The host learns of a program's fault, or of a command buffer that the device could not run, when it waits. Work
/// submitted in the meantime has run on the failed list's results, and its own results are discarded with them.
pub struct MetalBackend {
    info: DeviceInfo,
    policy: Policy,
    pub(super) device: Arc<Device>,
    pub(super) verdicts: Verdicts,
    allocator: Arc<Allocator>,
    counters: Counters,
    pipelines: Pipelines,
    modules: Modules,
    queue: Mutex<Queue>,
    /// The scratch memory of later recordings; earlier ones keep theirs alive.
    scratch: Mutex<Option<Arc<MetalMemory>>>,
    /// Stands in for empty memory in launches.
    nothing: MetalMemory,
}

/// The contents of a [`Pipeline`] of a program.
pub(super) struct ProgramPipeline {
    pub(super) kernel: Kernel,
    pub(super) program: Arc<Program>,
    pub(super) layout: msl::MslKernel,
    pub(super) rules: Vec<Rule>,
}

/// The contents of a [`Pipeline`] of a native kernel.
pub(super) struct NativePipeline {
    pub(super) kernel: NativeKernel,
    /// Its arithmetic, at the most.
    pub(super) flops: u64,
    pub(super) rules: Vec<Rule>,
}

/// Bytes of the widest access of native kernels.
const VECTOR: usize = 16;

/// Size of the memory that stands in for empty memory.
const NOTHING: usize = 256;

impl MetalBackend {
    /// Opens the system's GPU.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with what is missing.
    pub fn new() -> Result<MetalBackend> {
        MetalBackend::with_options(MetalOptions::default())
    }

    /// Opens the system's GPU.
    ///
    /// # Errors
    /// As [`MetalBackend::new`].
    pub fn with_options(options: MetalOptions) -> Result<MetalBackend> {
        let (device, info) = Device::open()?;
        let device = Arc::new(device);
        let cap = options.memory_cap.map_or(device.working_set, |cap| cap.min(device.working_set));
        let source = DeviceSource { device: device.clone() };
        let allocator = CachingAllocator::with_source(source, BackendType::Metal, Some(cap));
        Ok(MetalBackend {
            counters: Counters::default(),
            pipelines: Pipelines::default(),
            modules: Modules::new(),
            verdicts: Verdicts::new(),
            scratch: Mutex::new(None),
            queue: Mutex::new(Queue::new(&device, allocator.failures())?),
            nothing: MetalMemory::new(&allocator, NOTHING)?,
            allocator,
            policy: gpu::policy(device.target),
            info,
            device,
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the device has passed a submission.
    fn pass(&self, number: u64) -> Result<()> {
        let commands = self.queue().waits_for(number)?;
        if let Some(commands) = commands {
            commands.wait();
        }
        self.queue().passed(number);
        Ok(())
    }

    /// Waits for everything submitted; failures are ignored.
    fn pass_all(&self) -> Result<()> {
        let last = self.queue().last();
        self.pass(last)
    }

    fn slice(&self, operation: &str, buffer: &Buffer, offset: usize, bytes: usize, access: Access) -> Result<Slice> {
        slice(&self.allocator, operation, buffer, offset, bytes, access)
    }

    fn invalid(&self, operation: String, reason: &str) -> BackendError {
        BackendError::InvalidArgument { device: BackendType::Metal.to_string(), operation, reason: reason.into() }
    }

    fn recording<'a>(&self, list: &'a CommandList, operation: &str) -> Result<&'a Arc<Recording>> {
        match list.downcast::<Arc<Recording>>() {
            Some(recording) if Arc::ptr_eq(&recording.device, &self.device) => Ok(recording),
            _ => Err(self.invalid(operation.into(), "the list was recorded by another device")),
        }
    }

    /// Copies host bytes into a range of this device.
    fn write(&self, to: &Slice, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        while !self.queue().write(to, data)? {
            self.pass(to.last_use())?;
        }
        Counters::add(&self.counters.to_device, data.len());
        Ok(())
    }

    /// The device's seconds for a copy of this many bytes from the start of one buffer to the start of another.
    pub(super) fn timed_copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<f64> {
        let source = self.slice("timing a copy", from, 0, bytes, Access::Read)?;
        let target = self.slice("timing a copy", to, 0, bytes, Access::Write)?;
        let commands = self.queue().copy(&source, &target, [from.clone(), to.clone()])?;
        self.synchronize()?;
        Ok(commands.map_or(0.0, |commands| commands.seconds()))
    }

    /// Checks one launch.
    fn checked(
        &self,
        index: usize,
        launch: &Launch,
        rules: &[Rule],
        builder: &mut Builder<'_>,
    ) -> Result<Vec<Argument<Slice>>> {
        let usages = RefCell::new(Vec::new());
        let arguments = resolve_with(BackendType::Metal, &launch.pipeline.name, rules, &launch.bindings, |w| {
            let found = self.slice(
                w.operation,
                w.buffer,
                w.offset,
                w.bytes,
                if w.write { Access::Write } else { Access::Read },
            )?;
            usages.borrow_mut().extend(found.usages.iter().cloned());
            let address = found.data.addr();
            Ok((found, address))
        })?;
        builder.uses(usages.into_inner(), uses_of(index, rules, &arguments, Slice::addresses));
        Ok(arguments)
    }

    /// Native kernels use vector accesses, so tensors must begin at multiples of [`VECTOR`] bytes.
    fn check_alignment(&self, launch: &Launch, rules: &[Rule], arguments: &[Argument<Slice>]) -> Result<()> {
        let mut before = "";
        for (index, (rule, argument)) in rules.iter().zip(arguments).enumerate() {
            // The views of a tensor are consecutive and share one name.
            let begins = rule.name != before;
            before = &rule.name;
            if let Argument::Slice(slice) = argument
                && begins
                && !slice.data.addr().is_multiple_of(VECTOR)
            {
                let reason = format!("argument {index} ({}) does not begin at a multiple of {VECTOR} bytes", rule.name);
                return Err(self.invalid(format!("recording kernel {}", launch.pipeline.name), &reason));
            }
        }
        Ok(())
    }

    /// Scratch memory of at least this size, for a new recording.
    fn scratch(&self, bytes: usize) -> Result<Option<Arc<MetalMemory>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = scratch.as_ref().filter(|m| m.bytes() >= bytes) {
            return Ok(Some(memory.clone()));
        }
        let memory = Arc::new(MetalMemory::new(&self.allocator, bytes)?);
        *scratch = Some(memory.clone());
        Ok(Some(memory))
    }

    /// Zeroed memory for a recording's fault records and counters.
    fn zeroed(&self, bytes: usize) -> Result<MetalMemory> {
        let memory = MetalMemory::new(&self.allocator, bytes)?;
        let all = memory.all();
        self.write(&all, &vec![0; bytes])?;
        // Writes of the host and the device must be complete before the first launch.
        self.pass(all.last_use())?;
        Ok(memory)
    }
}

impl Backend for MetalBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_available(&self) -> bool {
        true
    }

    fn kernels(&self) -> &dyn Kernels {
        self
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn measure(&self) -> &dyn Measure {
        self
    }

    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        MetalMemory::new(&self.allocator, bytes).map(Buffer::new)
    }

    fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        MetalMemory::pool(&self.allocator, bytes).map(|memory| Pool(Buffer::new(memory)))
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.downcast::<MetalMemory>().is_some_and(|memory| memory.is_of(&self.allocator))
    }

    fn available_memory(&self) -> Option<u64> {
        Some(self.device.available())
    }

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        if let Some(wrapped) = MetalMemory::wrap(&self.device, &self.allocator, &memory) {
            return Ok(Buffer::new(wrapped));
        }
        let data = memory.as_bytes();
        let buffer = MetalMemory::new(&self.allocator, data.len())?;
        if !data.is_empty() {
            self.write(&buffer.all(), data)?;
        }
        Ok(Buffer::new(buffer.read_only()))
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        let to = self.slice("copy_to_buffer", buffer, offset, data.len(), Access::Write)?;
        Counters::timed(&self.counters.writing, || self.write(&to, data))
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        let from = self.slice("copy_from_buffer", buffer, offset, data.len(), Access::Host)?;
        Counters::timed(&self.counters.reading, || {
            self.pass(from.last_use())?;
            self.allocator.failures().check(from.addresses())?;
            from.read(data);
            Result::Ok(())
        })?;
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
        let source = self.slice("copy_buffer", from, from_offset, bytes, Access::Read)?;
        let target = self.slice("copy_buffer", to, to_offset, bytes, Access::Write)?;
        check_apart(BackendType::Metal, (from, from_offset), (to, to_offset), bytes)?;
        self.queue().copy(&source, &target, [from.clone(), to.clone()]).map(drop)
    }

    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
        // Submitted work may still fail.
        self.pass_all()?;
        let range = self.slice("clear_error", buffer, offset, bytes, Access::Host)?;
        self.allocator.failures().clear(range.addresses());
        Ok(())
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let mut builder = Builder::new(&self.device, &self.modules, launches);
        for (index, launch) in launches.iter().enumerate() {
            if let Some(native) = launch.pipeline.downcast::<NativePipeline>() {
                let arguments = self.checked(index, launch, &native.rules, &mut builder)?;
                self.check_alignment(launch, &native.rules, &arguments)?;
                builder.native(launch, native, arguments);
            } else if let Some(program) = launch.pipeline.downcast::<ProgramPipeline>() {
                let arguments = self.checked(index, launch, &program.rules, &mut builder)?;
                builder.program(launch, program, arguments)?;
            } else {
                let operation = format!("recording kernel {}", launch.pipeline.name);
                return Err(self.invalid(operation, "its pipeline was made by another device"));
            }
        }
        let zeroed = self.zeroed(builder.zeroed_bytes())?;
        let scratch = self.scratch(builder.scratch_bytes())?;
        let recording = builder.finish(zeroed, scratch, self.nothing.all())?;
        Ok(CommandList::new(Arc::new(recording)))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let recording = self.recording(list, "submit")?;
        let number = self.counters.submitted(|| self.queue().submit(recording))?;
        Counters::add(&self.counters.launches, recording.names.len());
        Ok(Event(number))
    }

    fn wait(&self, event: Event) -> Result<()> {
        Counters::timed(&self.counters.waiting, || self.pass(event.0))?;
        let last = self.queue().last();
        self.allocator.failures().wait(BackendType::Metal, event, last)
    }

    fn is_behind(&self, submissions: u64) -> Result<bool> {
        // A submission holds the lock while it waits for room.
        let queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(queue)) => queue.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(true),
        };
        Ok(queue.unfinished() > submissions)
    }

    fn synchronize(&self) -> Result<()> {
        Counters::timed(&self.counters.waiting, || self.pass_all())?;
        self.allocator.failures().synchronize()
    }
}

impl Kernels for MetalBackend {
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.pipelines.get_or_compile(&self.info, &self.counters, program, || {
            let layout = msl::print(program, &msl::MslTarget { version: LANGUAGE })?;
            let kernel = self.modules.program(&self.device, &program.name, &layout.text, &layout.entry)?;
            kernel.check_threads(&self.device, &program.name, program.workgroup_threads())?;
            let rules = rules_of_program(program);
            let program = Arc::new(program.clone());
            Ok(Pipeline::program(&program.name.clone(), ProgramPipeline { kernel, program, layout, rules }))
        })
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        let kernel = self.admit(gpu::find(spec, self.device.target)?)?;
        Some(Pipeline::native(
            spec.op.name(),
            NativePipeline { kernel, flops: gpu::Work::of_spec(spec).flops(), rules: rules_of_spec(spec) },
        ))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let kernel = self.admit(gpu::find_group(group, self.device.target)?)?;
        Some(Pipeline::native(
            &group.name(),
            NativePipeline { kernel, flops: gpu::Work::of_group(group).flops(), rules: rules_of_group(group) },
        ))
    }

    fn prefers_fixed(&self, _spec: &KernelSpec) -> bool {
        false
    }

    fn expect_weights(&self, _layout: DType) {}
}

impl Measure for MetalBackend {
    fn device(&self) -> BackendType {
        BackendType::Metal
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(self.allocator.metrics())
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(KernelName, f64)>> {
        let recording = self.recording(list, "profile")?;
        self.pass_all()?;
        let derived = self.queue().derive(recording)?;
        if let Some(number) = derived {
            self.wait(Event(number))?;
        }
        let (number, seconds) = self.queue().run_steps(recording)?;
        self.wait(Event(number))?;
        let mut times: Vec<_> = recording.names.iter().map(|name| (name.clone(), 0.0)).collect();
        for (step, seconds) in recording.steps.iter().zip(seconds) {
            times[step.launch].1 += seconds;
        }
        Ok(times)
    }

    fn capture(&self, path: &Path, work: &mut dyn FnMut()) -> Result<()> {
        self.pass_all()?;
        let _capture = Capture::begin(&self.device, path)?;
        // A capture contains only the command buffers created while it runs.
        self.queue().forget_ready();
        work();
        self.pass_all()
    }

    fn copy_bandwidth(&self) -> Result<f64> {
        bandwidth::copy_bandwidth(self)
    }
}

/// Apple GPUs as a kind of device.
pub struct Metal;

impl DeviceKind for Metal {
    fn backend(&self) -> BackendType {
        BackendType::Metal
    }

    fn devices(&self) -> Vec<(String, Result<DeviceInfo>)> {
        vec![(BackendType::Metal.to_string(), Device::open().map(|(_, info)| info))]
    }

    fn open(&self, _number: u32, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(MetalBackend::with_options(MetalOptions { memory_cap: options.memory_cap })?))
    }
}
