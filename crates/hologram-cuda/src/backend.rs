//! An NVIDIA GPU behind the [`Backend`] trait.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hologram_device::host::{
    Argument, CachingAllocator, Counters, Pipelines, Rule, resolve_with, rules_of_group, rules_of_program,
    rules_of_spec, uses_of,
};
use hologram_device::{
    Backend, BackendError, BackendType, Buffer, CommandList, DType, DeviceInfo, Event, ForeignMemory, ForeignPointer,
    GroupSpec, KernelName, KernelSpec, Kernels, Launch, Measure, Metrics, Pipeline, Policy, Pool, Precision, Result,
    Streams, check_apart,
};
use hologram_gpu::{self as gpu, BLAS_WORKSPACE, BlasCall, NativeKernel, Part, Target, Unpacked};
use hologram_isa::{Program, ptx};

use super::blas::{Blas, Functions};
use super::context::{Context, CudaEvent, Pinned, Stream};
use super::device::Gpu;
use super::memory::{Allocator, CudaMemory, DeviceSource, range};
use super::modules::{Function, Modules};
use super::queue::{Progress, Queue, SLOT};
use super::record::{Recording, program_values};
use super::staging::Staging;
use super::{bandwidth, builder};

/// How a [`CudaBackend`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Which GPU, in the driver's order.
    pub ordinal: u32,
    /// The most bytes that buffers and the allocator's cache may hold together; by default only the device limits them.
    pub memory_cap: Option<u64>,
    /// The precision of products of `f32` matrices.
    pub precision: Precision,
}

/// An NVIDIA GPU. Work runs beside the host, in the order of submission.
///
/// The host learns of a program's fault when it waits. Work submitted in the meantime has run on the failed program's
/// results, and its own results are discarded with them. After an error raised by the device itself (an address outside
/// all buffers) the driver reports only that it happened: a waiting list of one launch names the kernel, else the list
/// is described. The device is then lost to the process, and every call says so.
pub struct CudaBackend {
    info: DeviceInfo,
    policy: Policy,
    target: Target,
    context: Arc<Context>,
    allocator: Arc<Allocator>,
    memory_cap: Option<u64>,
    counters: Counters,
    pipelines: Pipelines,
    pub(super) modules: Modules,
    queue: Mutex<Queue>,
    progress: Arc<Progress>,
    staging: Staging,
    reads: Mutex<Reads>,
    /// The stream that records graphs.
    capture: Mutex<Stream>,
    /// The scratch memory of later recordings; earlier ones keep theirs alive.
    scratch: Mutex<Option<Arc<CudaMemory>>>,
    /// The library of matrix products, loaded when a plan first can use it.
    blas: OnceLock<Option<Arc<Blas>>>,
}

/// Small reads.
struct Reads {
    pinned: Pinned,
    /// For reads that would wait for later work in the queue's stream, and the end of the last.
    stream: Stream,
    end: CudaEvent,
}

/// The contents of a [`Pipeline`] of a native kernel.
struct NativePipeline {
    kernel: NativeKernel,
    rules: Vec<Rule>,
}

/// The contents of a [`Pipeline`] of a program.
pub(super) struct ProgramPipeline {
    pub(super) function: Function,
    pub(super) program: Arc<Program>,
    pub(super) rules: Vec<Rule>,
}

/// Marks the library's kernels in profiles and errors.
const BY_BLAS: &str = " (cuBLASLt)";

/// Bytes of the widest access of native kernels.
const VECTOR: u64 = 16;

impl CudaBackend {
    /// Opens a GPU by its place in the driver's order.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with what is missing: the driver, the device, or a compute capability of 8.0.
    pub fn new(ordinal: u32) -> Result<CudaBackend> {
        CudaBackend::with_options(CudaOptions { ordinal, ..CudaOptions::default() })
    }

    /// Opens a GPU.
    ///
    /// # Errors
    /// As [`CudaBackend::new`].
    pub fn with_options(options: CudaOptions) -> Result<CudaBackend> {
        let gpu = Gpu::open(options.ordinal)?;
        let context = &gpu.context;
        let target = Target { tf32: options.precision == Precision::Tf32, ..gpu.target };
        let source = DeviceSource { context: context.clone(), max_cached: gpu.info.memory_bytes / 4 };
        let allocator = CachingAllocator::with_source(source, BackendType::Cuda, options.memory_cap);
        let queue = Queue::new(context, allocator.failures())?;
        Ok(CudaBackend {
            policy: gpu::policy(target),
            target,
            counters: Counters::default(),
            pipelines: Pipelines::default(),
            modules: Modules::new(context, gpu.target.capability(), gpu.driver),
            progress: queue.progress().clone(),
            queue: Mutex::new(queue),
            allocator,
            memory_cap: options.memory_cap,
            staging: Staging::new(context),
            reads: Mutex::new(Reads {
                pinned: Pinned::new(context, SLOT)?,
                stream: Stream::new(context)?,
                end: CudaEvent::new(context, false)?,
            }),
            capture: Mutex::new(Stream::new(context)?),
            scratch: Mutex::new(None),
            blas: OnceLock::new(),
            info: gpu.info,
            context: gpu.context,
        })
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Adds the suspected kernel to an error that means a lost device.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| if self.context.is_lost() { self.queue().explain(error) } else { error })
    }

    /// Waits until the device has passed a submission.
    pub(super) fn wait_for(&self, number: u64) -> Result<()> {
        self.context.enter()?;
        let event = self.queue().event_of(number)?;
        if let Some((events, index)) = event {
            self.told(events[index].synchronize())?;
        }
        let mut queue = self.queue();
        queue.passed(number)?;
        self.allocator.failures().wait(BackendType::Cuda, Event(number), queue.last())
    }

    /// Waits for everything submitted; failures are ignored.
    fn wait_for_all(&self) -> Result<()> {
        let last = self.queue().last();
        self.context.enter()?;
        let event = self.queue().event_of(last)?;
        if let Some((events, index)) = event {
            self.told(events[index].synchronize())?;
        }
        self.queue().passed(last)
    }

    /// Allocates memory; if there is none, once more after the work that keeps some of it alive.
    fn memory(&self, allocate: impl Fn() -> Result<CudaMemory>) -> Result<CudaMemory> {
        match allocate() {
            Err(BackendError::OutOfMemory { .. }) => {}
            other => return other,
        }
        self.wait_for_all()?;
        allocate()
    }

    fn invalid(&self, operation: String, reason: &str) -> BackendError {
        BackendError::InvalidArgument { device: BackendType::Cuda.to_string(), operation, reason: reason.into() }
    }

    /// A product by cuBLASLt; `None` without the library or an algorithm.
    fn by_blas(&self, call: Option<(BlasCall, Unpacked)>) -> Option<NativeKernel> {
        let (call, unpacked) = call?;
        let blas = self.blas.get_or_init(|| Blas::new(&self.context)).as_ref()?;
        blas.product(call.product)?;
        let kernel =
            NativeKernel { parts: vec![Part::Blas(Box::new(call))], scratch: BLAS_WORKSPACE, counters: 0, phase: None };
        Some(unpacked.before(kernel))
    }

    /// Scratch memory of at least this size, for a new recording.
    fn scratch(&self, bytes: usize) -> Result<Option<Arc<CudaMemory>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = scratch.as_ref().filter(|m| hologram_device::DeviceMemory::bytes(&***m) >= bytes) {
            return Ok(Some(memory.clone()));
        }
        let memory = Arc::new(self.memory(|| CudaMemory::new(&self.context, &self.allocator, bytes, true))?);
        *scratch = Some(memory.clone());
        Ok(Some(memory))
    }

    /// Checks one launch.
    fn checked<'a>(
        &self,
        index: usize,
        launch: &'a Launch,
        rules: &[Rule],
        builder: &mut builder::Builder<'a>,
    ) -> Result<Vec<Argument<(u64, usize)>>> {
        let usages = RefCell::new(Vec::new());
        let arguments = resolve_with(BackendType::Cuda, &launch.pipeline.name, rules, &launch.bindings, |w| {
            let found = range(&self.context, w.operation, w.buffer, w.offset, w.bytes, w.write)?;
            usages.borrow_mut().extend_from_slice(found.usages);
            Ok(((found.address, w.bytes), found.address as usize))
        })?;
        let place = |(address, bytes): &(u64, usize)| *address..*address + *bytes as u64;
        builder.uses(usages.into_inner(), uses_of(index, rules, &arguments, place));
        Ok(arguments)
    }

    /// Native kernels use vector accesses, so tensors must begin at multiples of [`VECTOR`] bytes.
    fn check_alignment(&self, launch: &Launch, rules: &[Rule], arguments: &[Argument<(u64, usize)>]) -> Result<()> {
        let mut before = "";
        for (index, (rule, argument)) in rules.iter().zip(arguments).enumerate() {
            // The views of a tensor are consecutive and share one name.
            let begins = rule.name != before;
            before = &rule.name;
            if let Argument::Slice((address, _)) = argument
                && begins
                && address % VECTOR != 0
            {
                let reason = format!("argument {index} ({}) does not begin at a multiple of {VECTOR} bytes", rule.name);
                return Err(self.invalid(format!("recording kernel {}", launch.pipeline.name), &reason));
            }
        }
        Ok(())
    }

    /// Waits for the work that uses them and copies bytes to the host.
    fn read(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        self.context.enter()?;
        let from = range(&self.context, "copy_from_buffer", buffer, offset, data.len(), false)?;
        let bytes = from.address..from.address + data.len() as u64;
        if data.is_empty() || data.len() > SLOT {
            self.wait_for_all()?;
            self.allocator.failures().check(bytes)?;
            self.told(self.staging.download(&self.queue, from.address, from.usages, data))?;
        } else {
            let reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
            let Reads { pinned, stream: beside, end } = &*reads;
            let copy = |stream: &Stream| {
                // SAFETY: the range was checked; the pinned memory has SLOT bytes and is this call's until it returns.
                let code = unsafe {
                    (self.context.driver.cuMemcpyDtoHAsync_v2)(pinned.raw, from.address, data.len(), stream.raw)
                };
                self.context.check(code, || format!("copying {} bytes from the device", data.len()))
            };
            // Work submitted since does not use the bytes: the host need not wait for it.
            let earlier = self.queue().read_beside(from.usages, (beside, end), copy);
            match self.told(earlier)? {
                // That use of the bytes may have failed without changing them.
                Some(number) => {
                    self.told(beside.synchronize())?;
                    self.queue().passed(number)?;
                }
                None => {
                    let number = self.queue().enqueue(from.usages.iter(), copy);
                    self.wait_for(self.told(number)?)?;
                }
            }
            self.allocator.failures().check(bytes)?;
            // SAFETY: the device has written these bytes.
            data.copy_from_slice(unsafe { std::slice::from_raw_parts(pinned.raw.cast::<u8>(), data.len()) });
        }
        Counters::add(&self.counters.from_device, data.len());
        Ok(())
    }
}

impl Backend for CudaBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_available(&self) -> bool {
        !self.context.is_lost()
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
        Some(self)
    }

    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.memory(|| CudaMemory::new(&self.context, &self.allocator, bytes, true)).map(Buffer::new)
    }

    fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        self.memory(|| CudaMemory::pool(&self.context, &self.allocator, bytes)).map(|memory| Pool(Buffer::new(memory)))
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.downcast::<CudaMemory>().is_some_and(|memory| memory.is_of(&self.context))
    }

    fn available_memory(&self) -> Option<u64> {
        let (free, _) = self.context.memory()?;
        let below_cap = self.memory_cap.map(|cap| cap.saturating_sub(self.allocator.metrics().live));
        Some(below_cap.map_or(free, |left| left.min(free)))
    }

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        let data = memory.as_bytes();
        let buffer = self.memory(|| CudaMemory::new(&self.context, &self.allocator, data.len(), false))?;
        if !data.is_empty() {
            let upload = || self.staging.upload(&self.queue, buffer.address(), buffer.usages(), data);
            self.told(Counters::timed(&self.counters.writing, upload))?;
            Counters::add(&self.counters.to_device, data.len());
        }
        Ok(Buffer::new(buffer))
    }

    fn wrap_pointer(&self, memory: ForeignPointer) -> Result<Buffer> {
        let events = self.queue().events();
        Ok(Buffer::new(CudaMemory::wrap(&self.context, &memory, events)))
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        self.context.enter()?;
        let to = range(&self.context, "copy_to_buffer", buffer, offset, data.len(), true)?;
        let done = Counters::timed(&self.counters.writing, || match data.len() {
            0 => Ok(()),
            1..=SLOT => self.queue().write(to.address, to.usages, data),
            _ => self.staging.upload(&self.queue, to.address, to.usages, data),
        });
        self.told(done)?;
        self.queue().written(to.address, data.len());
        Counters::add(&self.counters.to_device, data.len());
        Ok(())
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        Counters::timed(&self.counters.reading, || self.read(buffer, offset, data))
    }

    fn copy_buffer(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.context.enter()?;
        let source = range(&self.context, "copy_buffer", from, from_offset, bytes, false)?;
        let target = range(&self.context, "copy_buffer", to, to_offset, bytes, true)?;
        check_apart(BackendType::Cuda, (from, from_offset), (to, to_offset), bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let done = self.queue().enqueue(source.usages.iter().chain(target.usages), |stream| {
            let driver = self.context.driver;
            // SAFETY: the ranges were checked.
            let code = unsafe { (driver.cuMemcpyDtoDAsync_v2)(target.address, source.address, bytes, stream.raw) };
            self.context.check(code, || format!("copying {bytes} bytes on the device"))
        });
        self.told(done)?;
        self.queue().copied(source.address, target.address, bytes);
        Ok(())
    }

    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
        // Submitted work may still fail.
        self.wait_for_all()?;
        let bytes_of = range(&self.context, "clear_error", buffer, offset, bytes, false)?;
        self.allocator.failures().clear(bytes_of.address..bytes_of.address + bytes as u64);
        Ok(())
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        self.context.enter()?;
        let blas = self.blas.get().and_then(Option::as_ref);
        let mut builder = builder::Builder::new(&self.context, &self.modules, blas, launches);
        for (index, launch) in launches.iter().enumerate() {
            if let Some(native) = launch.pipeline.downcast::<NativePipeline>() {
                let arguments = self.checked(index, launch, &native.rules, &mut builder)?;
                self.check_alignment(launch, &native.rules, &arguments)?;
                builder.native(launch, &native.kernel, arguments);
            } else if let Some(program) = launch.pipeline.downcast::<ProgramPipeline>() {
                let arguments = self.checked(index, launch, &program.rules, &mut builder)?;
                let values = program_values(&program.program, &arguments);
                let early = self.target.has(90);
                builder.program(launch, &program.function, &program.program, values, early)?;
            } else {
                let operation = format!("recording kernel {}", launch.pipeline.name);
                return Err(self.invalid(operation, "its pipeline was made by another device"));
            }
        }
        if gpu::fuses_to_stacks(self.target) {
            builder.join(self.target.max_shared, self.target.multiprocessors);
        }
        let scratch = self.scratch(builder.scratch())?;
        let counters = match builder.counters() {
            0 => None,
            bytes => {
                let memory = Arc::new(self.memory(|| CudaMemory::new(&self.context, &self.allocator, bytes, true))?);
                self.queue().enqueue(memory.usages().iter(), |stream| {
                    // SAFETY: the memory just allocated.
                    let code = unsafe { (self.context.driver.cuMemsetD8Async)(memory.address(), 0, bytes, stream.raw) };
                    self.context.check(code, || "clearing counters".into())
                })?;
                for (offset, data) in builder.tables() {
                    let to = memory.address() + offset as u64;
                    self.told(self.staging.upload(&self.queue, to, memory.usages(), &data))?;
                }
                Some(memory)
            }
        };
        let recording = builder.finish(scratch, counters)?;
        if recording.steps.len() > 1 {
            let capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
            let graph = self.told(capture.capture(|| recording.launch_steps(&capture)))?.instantiate()?;
            graph.upload(&self.queue().compute)?;
            let _ = recording.graph.set(graph);
        }
        Ok(CommandList::new(Arc::new(recording)))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let recording = self.recording(list, "submit")?;
        self.context.enter()?;
        let reclaimed = self.queue().reclaim();
        drop(self.told(reclaimed)?);
        let number = self.counters.submitted(|| self.queue().submit(recording));
        Counters::add(&self.counters.launches, recording.launches);
        self.told(number).map(Event)
    }

    fn wait(&self, event: Event) -> Result<()> {
        Counters::timed(&self.counters.waiting, || self.wait_for(event.0))
    }

    fn is_behind(&self, submissions: u64) -> Result<bool> {
        // Without the queue's lock: a launch holds it while it waits for room.
        self.progress.is_behind(submissions)
    }

    fn synchronize(&self) -> Result<()> {
        Counters::timed(&self.counters.waiting, || self.wait_for_all())?;
        self.allocator.failures().synchronize()
    }
}

impl Streams for CudaBackend {
    fn stream(&self) -> u64 {
        self.queue().compute.raw.addr() as u64
    }

    unsafe fn wait_for_stream(&self, stream: u64) -> Result<()> {
        let event = CudaEvent::new(&self.context, false)?;
        // SAFETY: the caller promises the stream. The driver keeps what a destroyed event orders.
        let recorded = unsafe { event.record_in(stream) };
        let ordered = recorded.and_then(|()| self.queue().compute.wait_for(&event));
        self.told(ordered)
    }

    unsafe fn make_stream_wait(&self, buffer: &Buffer, stream: u64) -> Result<()> {
        let event = CudaEvent::new(&self.context, false)?;
        let whole = range(&self.context, "make_stream_wait", buffer, buffer.bytes(), 0, false)?;
        let usages = buffer.downcast::<CudaMemory>().map_or(whole.usages, CudaMemory::usages);
        // After the uploads to the buffer too, which run in a stream of their own.
        let recorded = self.queue().enqueue(usages.iter(), |compute| event.record(compute));
        // SAFETY: the caller promises the stream. The driver keeps what a destroyed event orders.
        self.told(recorded.and_then(|_| unsafe { event.hold_back(stream) }))
    }

    fn wait_for_all_streams(&self, buffer: &Buffer) -> Result<()> {
        let event = CudaEvent::new(&self.context, false)?;
        let whole = range(&self.context, "wait_for_all_streams", buffer, buffer.bytes(), 0, false)?;
        let usages = buffer.downcast::<CudaMemory>().map_or(whole.usages, CudaMemory::usages);
        // As a use of the buffer: uploads to its memory wait for it too.
        let ordered = self.queue().enqueue(usages.iter(), |compute| {
            event.record_all()?;
            compute.wait_for(&event)
        });
        self.told(ordered.map(|_| ()))
    }
}

impl Kernels for CudaBackend {
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.pipelines.get_or_compile(&self.info, &self.counters, program, || {
            // Version 7.8 serves every capability from 8.0 to 9.0; newer devices run what is made for 9.0.
            let target = ptx::PtxTarget { capability: self.target.capability().min(90), version: (7, 8) };
            let kernel = ptx::print(program, &target)?;
            let function = self.modules.program(&program.name, &kernel.text, &kernel.entry)?;
            let rules = rules_of_program(program);
            let program = Arc::new(program.clone());
            Ok(Pipeline::program(&program.name.clone(), ProgramPipeline { function, program, rules }))
        })
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        let (name, kernel) = match self.by_blas(gpu::find_blas(spec, self.target)) {
            Some(kernel) => (format!("{}{BY_BLAS}", spec.op), kernel),
            None => (spec.op.to_string(), gpu::find(spec, self.target)?),
        };
        Some(Pipeline::native(&name, NativePipeline { kernel, rules: rules_of_spec(spec) }))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let ops = group.name();
        let (name, kernel) = match self.by_blas(gpu::find_blas_group(group, self.target)) {
            Some(kernel) => (ops + BY_BLAS, kernel),
            None => (ops, gpu::find_group(group, self.target)?),
        };
        Some(Pipeline::native(&name, NativePipeline { kernel, rules: rules_of_group(group) }))
    }

    fn prefers_fixed(&self, spec: &KernelSpec) -> bool {
        self.by_blas(gpu::find_blas(spec, self.target)).is_some()
    }

    fn expect_weights(&self, layout: DType) {
        if layout == DType::BF16 || layout.packed().is_some() {
            Functions::load_ahead();
        }
    }
}

impl Measure for CudaBackend {
    fn device(&self) -> BackendType {
        BackendType::Cuda
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(self.allocator.metrics())
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(KernelName, f64)>> {
        let recording = self.recording(list, "profile")?;
        self.wait_for_all()?;
        let derived = self.queue().derive(recording);
        if let Some(number) = self.told(derived)? {
            self.wait_for(number)?;
        }
        self.told(bandwidth::profile(self, recording))
    }

    fn copy_bandwidth(&self) -> Result<f64> {
        bandwidth::copy_bandwidth(self)
    }
}

impl CudaBackend {
    fn recording<'a>(&self, list: &'a CommandList, operation: &str) -> Result<&'a Arc<Recording>> {
        match list.downcast::<Arc<Recording>>() {
            Some(recording) if Arc::ptr_eq(&recording.context, &self.context) => Ok(recording),
            _ => Err(self.invalid(operation.into(), "the list was recorded by another device")),
        }
    }
}
