//! A device that plans as a GPU does, on any machine, and computes nothing. It counts the launches of a step.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use hologram_device::host::Counters;
use hologram_device::{
    Backend, BackendError, BackendType, Buffer, CommandList, DType, DeviceInfo, DeviceLimits, DeviceMemory, Event,
    ForeignMemory, GroupSpec, KernelName, KernelSpec, Kernels, Launch, Measure, MemoryMetrics, Metrics, Pipeline,
    Policy, Pool, Result, Streams, check_apart, check_range,
};
use hologram_isa::meaning::Subnormals;
use hologram_isa::{Capability, Program};

use super::{Target, Vendor, Work, find, find_group, policy};

/// The work of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Launches.
    pub launches: usize,
    /// Launches of programs, for lack of a native kernel.
    pub programs: usize,
    /// Multiplications and additions of matrix products, each counted, at the step's maximum number of tokens.
    pub flops: u64,
}

/// A list that was recorded, with the names of its programs.
#[derive(Clone, Default)]
struct Planned {
    plan: DryRun,
    programs: BTreeSet<KernelName>,
}

/// See the module's documentation: reads return zeros without meaning.
pub struct DryGpu {
    info: DeviceInfo,
    target: Target,
    policy: Policy,
    counters: Counters,
    last: Mutex<Planned>,
}

/// Memory without contents.
struct DryMemory {
    bytes: usize,
    backend: BackendType,
}

impl DeviceMemory for DryMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn backend(&self) -> BackendType {
        self.backend
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl DryGpu {
    /// A device that plans as this GPU.
    pub fn new(target: Target) -> DryGpu {
        let (backend, name, capabilities) = match target.vendor {
            Vendor::Apple => (BackendType::Metal, "a plan for Apple GPUs", vec![Capability::MatrixTile]),
            Vendor::Nvidia { .. } => (BackendType::Cuda, "a plan for NVIDIA GPUs", Capability::ALL.to_vec()),
        };
        let info = DeviceInfo {
            backend,
            name: name.into(),
            memory_bytes: u64::MAX,
            parallelism: 1,
            limits: DeviceLimits::PROGRAM,
            capabilities,
            subnormals: Subnormals::Kept,
            features: Vec::new(),
            details: Vec::new(),
        };
        DryGpu { info, target, policy: policy(target), counters: Counters::default(), last: Mutex::default() }
    }

    /// The work of the last list.
    pub fn last(&self) -> DryRun {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).plan
    }

    /// The names of the last list's programs, each once.
    pub fn last_programs(&self) -> Vec<KernelName> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).programs.iter().cloned().collect()
    }

    fn foreign(&self, operation: &str) -> BackendError {
        BackendError::InvalidArgument {
            device: self.info.name.clone(),
            operation: operation.into(),
            reason: "it was made by another device".into(),
        }
    }
}

/// `parts`: launches of a native kernel; `None` for a program.
fn pipeline(name: &str, parts: Option<usize>, flops: u64) -> Pipeline {
    let programs = usize::from(parts.is_none());
    let plan = DryRun { launches: parts.unwrap_or(1), programs, flops };
    if parts.is_some() { Pipeline::native(name, plan) } else { Pipeline::program(name, plan) }
}

impl Backend for DryGpu {
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
        Ok(Buffer::new(DryMemory { bytes, backend: self.info.backend }))
    }

    fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        self.allocate_buffer(bytes).map(Pool)
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.downcast::<DryMemory>().is_some()
    }

    fn available_memory(&self) -> Option<u64> {
        None
    }

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        Ok(Buffer::new(DryMemory { bytes: memory.as_bytes().len(), backend: self.info.backend }))
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        check_range(self.info.backend, "copy_to_buffer", buffer, offset, data.len())
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        check_range(self.info.backend, "copy_from_buffer", buffer, offset, data.len())?;
        data.fill(0);
        Ok(())
    }

    fn copy_buffer(&self, from: &Buffer, at: usize, to: &Buffer, to_at: usize, bytes: usize) -> Result<()> {
        check_range(self.info.backend, "copy_buffer", from, at, bytes)?;
        check_range(self.info.backend, "copy_buffer", to, to_at, bytes)?;
        check_apart(self.info.backend, (from, at), (to, to_at), bytes)
    }

    fn clear_error(&self, _buffer: &Buffer, _offset: usize, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let Planned { plan: mut all, mut programs } = Planned::default();
        for launch in launches {
            let one = launch.pipeline.downcast::<DryRun>().ok_or_else(|| self.foreign("record"))?;
            all.launches += one.launches;
            all.programs += one.programs;
            programs.extend((one.programs > 0).then(|| launch.pipeline.name.clone()));
            all.flops = all.flops.saturating_add(one.flops);
        }
        Ok(CommandList::new(Planned { plan: all, programs }))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let planned = list.downcast::<Planned>().ok_or_else(|| self.foreign("submit"))?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = planned.clone();
        Counters::add(&self.counters.submissions, 1);
        Counters::add(&self.counters.launches, planned.plan.launches);
        Ok(Event(0))
    }

    fn wait(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

impl Kernels for DryGpu {
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        hologram_isa::verify(program)?;
        Ok(pipeline(&program.name, None, 0))
    }

    /// A pipeline for every product, so that its operations are counted even if a program computes it.
    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        let (parts, flops) = (find(spec, self.target).map(|kernel| kernel.parts.len()), Work::of_spec(spec).products);
        (parts.is_some() || flops > 0).then(|| pipeline(spec.op.name(), parts, flops))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let kernel = find_group(group, self.target)?;
        Some(pipeline(&group.name(), Some(kernel.parts.len()), Work::of_group(group).products))
    }

    fn prefers_fixed(&self, _spec: &KernelSpec) -> bool {
        false
    }

    fn expect_weights(&self, _layout: DType) {}
}

impl Measure for DryGpu {
    fn device(&self) -> BackendType {
        self.info.backend
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(MemoryMetrics::default())
    }
}
