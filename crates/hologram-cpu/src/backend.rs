//! The CPU behind the [`Backend`] trait.

use std::sync::Arc;

use hologram_device::host::{
    Argument, Counters, HostDevice, RawSlice, Rule, Use, buffers_of, resolve, rules_of_program, rules_of_spec, system,
    uses_of,
};
use hologram_device::{
    Backend, BackendError, BackendType, Ceiling, CeilingKind, CommandList, DType, DeviceInfo, DeviceKind, DeviceLimits,
    Event, GroupSpec, KernelName, KernelSpec, Kernels, Launch, Measure, Metrics, OpenOptions, Pipeline, Policy,
    Preference, Result, Streams,
};
use hologram_isa::meaning::Subnormals;
use hologram_isa::{Capability, Program};

use super::exec::{Code, translate};
use super::features::{Features, Flags, InstructionSet};
use super::kernel::NativeKernel;
use super::native;
use super::pool::Workers;
use super::replay::{Recording, Scratch, Step, Work, profile, replay};

/// The largest allowed number of worker threads.
const MAX_THREADS: usize = 1024;

/// The fewest tokens per step for which dequantizing the weights for tiles pays.
const TILED_TOKENS: usize = 16;

/// Tokens per step of independent rows. Products take them row by row, so that fewer take less time.
const INDEPENDENT_TOKENS: usize = TILED_TOKENS - 1;

/// How a [`CpuBackend`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Worker threads, 1 to 1024. Default: one per physical core that the process may use.
    pub threads: Option<usize>,
    /// Limit in bytes on buffers plus the allocator's cache. Default: only the system's limit.
    pub memory_cap: Option<u64>,
    /// Limit on the vector instructions that kernels may use, for tests of lesser paths. Default: all that the
    /// processor has.
    pub max_isa: Option<InstructionSet>,
}

/// The host's processor as a device. `submit` returns when the work is done; all worker threads take part.
pub struct CpuBackend {
    host: HostDevice<Queue>,
    features: Features,
}

/// Runs one submission at a time.
struct Queue {
    workers: Workers,
    scratch: Scratch,
    submitted: u64,
}

/// Contents of a [`Pipeline`] of a native kernel.
struct NativePipeline {
    kernel: Arc<dyn NativeKernel>,
    rules: Vec<Rule>,
}

/// Contents of a [`Pipeline`] of a program.
struct ProgramPipeline {
    code: Arc<Code>,
    rules: Vec<Rule>,
}

/// A pipeline that runs this kernel on a [`CpuBackend`]. The spec defines its arguments ([`KernelSpec`]).
pub(super) fn native_pipeline(kernel: Arc<dyn NativeKernel>, spec: &KernelSpec) -> Pipeline {
    Pipeline::native(spec.op.name(), NativePipeline { kernel, rules: rules_of_spec(spec) })
}

impl CpuBackend {
    /// Opens the CPU with this many worker threads. Default: one per physical core that the process may use.
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
        let info = DeviceInfo {
            backend: BackendType::Cpu,
            name: system::processor_name(),
            memory_bytes: system::memory_bytes(),
            parallelism: threads,
            limits: DeviceLimits::PROGRAM,
            capabilities: Capability::ALL.to_vec(),
            subnormals: Subnormals::Kept,
            features: features.names(),
            details: Vec::new(),
        };
        let queue = Queue { workers, scratch: Scratch::new(), submitted: 0 };
        Ok(CpuBackend { host: HostDevice::new(info, policy(&features), options.memory_cap, queue), features })
    }

    /// The recording in a command list.
    fn recording<'a>(&self, list: &'a CommandList, operation: &str) -> Result<&'a Recording> {
        match list.downcast::<Recording>() {
            Some(recording) if Arc::ptr_eq(&recording.allocator, &self.host.allocator) => Ok(recording),
            _ => Err(self.host.invalid(operation, "the list was recorded by another device")),
        }
    }

    /// Checks one launch and notes the memory that it uses.
    fn step(&self, index: usize, launch: &Launch, uses: &mut Vec<Use>) -> Result<Step> {
        let name = launch.pipeline.name.clone();
        if let Some(native) = launch.pipeline.downcast::<NativePipeline>() {
            let arguments = resolve(&self.host.allocator, &name, &native.rules, &launch.bindings)?;
            uses.extend(uses_of(index, &native.rules, &arguments, RawSlice::addresses));
            return Ok(Step { name, slices: slices(&arguments), work: Work::Native(native.kernel.clone()) });
        }
        if let Some(program) = launch.pipeline.downcast::<ProgramPipeline>() {
            let arguments = resolve(&self.host.allocator, &name, &program.rules, &launch.bindings)?;
            uses.extend(uses_of(index, &program.rules, &arguments, RawSlice::addresses));
            let scalars = arguments.iter().filter_map(|argument| match argument {
                Argument::Scalar(word) => Some(*word),
                Argument::Slice(_) => None,
            });
            let (scalars, grid) = (scalars.collect(), launch.config.grid);
            let work = Work::Program { code: program.code.clone(), scalars, grid };
            return Ok(Step { name, slices: slices(&arguments), work });
        }
        Err(self.host.invalid(&format!("recording kernel {name}"), "its pipeline was made by another device"))
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

/// The formats that the processor prefers.
fn policy(features: &Flags) -> Policy {
    // For the tokens of a prompt, bf16 tiles are faster than products of codes. Of f16 they multiply all bits. What
    // they do not decode are grids and floats of 4 bits.
    let tiled: fn(DType, usize) -> bool = |format, _| format != DType::F16 && native::has_tiles(format);
    let tiles = Preference { format: DType::BF16, weights: tiled, tokens: TILED_TOKENS..=usize::MAX };
    // Codes are multiplied where a kernel can; weights of the other formats are dequantized.
    let decoded = Preference {
        format: DType::F32,
        weights: |format, _| !native::multiplies_codes(format),
        tokens: 0..=usize::MAX,
    };
    Policy {
        activations: features.amx.then_some(tiles).into_iter().chain([decoded]).collect(),
        independent_tokens: INDEPENDENT_TOKENS,
        // Products with experts' matrices have no tiles.
        not_of_experts: |format| format == DType::BF16,
        ..Policy::default()
    }
}

impl Backend for CpuBackend {
    hologram_device::pass_on!(self => self.host;
        info is_available policy allocate_buffer allocate_pool owns wrap wrap_pointer copy_to_buffer copy_from_buffer copy_buffer clear_error
        synchronize);

    fn available_memory(&self) -> Option<u64> {
        system::available_memory()
    }

    fn kernels(&self) -> &dyn Kernels {
        self
    }

    fn measure(&self) -> &dyn Measure {
        self
    }

    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let mut uses = Vec::with_capacity(launches.iter().map(|launch| launch.bindings.len()).sum());
        let step = |(index, launch)| self.step(index, launch, &mut uses);
        let steps = launches.iter().enumerate().map(step).collect::<Result<Vec<_>>>()?;
        let recording = Recording::new(&self.host.allocator, steps, uses, buffers_of(launches));
        let queue = &mut *self.host.queue();
        queue.scratch.reserve(&self.host.allocator, recording.scratch, queue.workers.count())?;
        Ok(CommandList::new(recording))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let recording = self.recording(list, "submit")?;
        let Queue { workers, scratch, submitted } = &mut *self.host.queue();
        *submitted += 1;
        self.host.counters.submitted(|| {
            self.host.allocator.failures().run(*submitted, &recording.uses, || {
                Counters::add(&self.host.counters.launches, recording.len());
                replay(workers, scratch, recording)
            });
        });
        Ok(Event(*submitted))
    }

    fn wait(&self, event: Event) -> Result<()> {
        let submitted = self.host.queue().submitted;
        self.host.allocator.failures().wait(BackendType::Cpu, event, submitted)
    }
}

impl Kernels for CpuBackend {
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.host.pipelines.get_or_compile(&self.host.info, &self.host.counters, program, || {
            let code = Arc::new(translate(program, self.features));
            Ok(Pipeline::program(&program.name, ProgramPipeline { code, rules: rules_of_program(program) }))
        })
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        native::find(spec, self.features).map(|kernel| native_pipeline(kernel, spec))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let (kernel, spec) = native::find_group(group, self.features)?;
        Some(native_pipeline(kernel, &spec))
    }

    fn prefers_fixed(&self, _spec: &KernelSpec) -> bool {
        false
    }

    fn expect_weights(&self, _layout: DType) {}
}

impl Measure for CpuBackend {
    fn device(&self) -> BackendType {
        BackendType::Cpu
    }

    fn metrics(&self) -> Metrics {
        self.host.counters.metrics(self.host.allocator.metrics())
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(KernelName, f64)>> {
        let recording = self.recording(list, "profile")?;
        let Queue { workers, scratch, submitted } = &mut *self.host.queue();
        *submitted += 1;
        let mut times = Vec::new();
        let failures = self.host.allocator.failures();
        failures.run(*submitted, &recording.uses, || {
            Counters::add(&self.host.counters.launches, recording.len());
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
}

/// The processor as a kind of device.
pub struct Cpu;

impl DeviceKind for Cpu {
    fn backend(&self) -> BackendType {
        BackendType::Cpu
    }

    fn devices(&self) -> Vec<(String, Result<DeviceInfo>)> {
        vec![(BackendType::Cpu.to_string(), CpuBackend::new(None).map(|device| device.host.info))]
    }

    fn open(&self, _number: u32, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
        let OpenOptions { threads, memory_cap, .. } = *options;
        Ok(Arc::new(CpuBackend::with_options(CpuOptions { threads, memory_cap, max_isa: None })?))
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;

    /// Tiles multiply a prompt with packed weights, but not with those of experts, which would then have no kernel.
    pub(crate) fn experts_have_no_tiles() {
        let policy = policy(&Flags { amx: true, ..Flags::default() });
        let codes = DType::I8Groups { group: 32 };
        let choices = [codes, DType::BF16, DType::F32];
        for weights in [DType::MXFP4, DType::Q4_0] {
            assert_eq!(policy.activations(weights, 2880, 512, &choices), Some(DType::BF16));
            assert_eq!(policy.activations_of_experts(weights, 2880, 512, &choices), Some(codes));
        }
    }
}
