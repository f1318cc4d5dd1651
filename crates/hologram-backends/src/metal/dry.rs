//! A device that plans as an Apple GPU does, on any platform, and computes nothing: what a step would launch can be counted.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use hologram_isa::{Capability, Program};

use super::plan;
use crate::backend::{
    Backend, BackendType, Buffer, CommandList, DeviceInfo, DeviceMemory, Event, ForeignMemory, Launch, Pipeline,
    check_apart, check_range,
};
use crate::error::{BackendError, Result};
use crate::host::Counters;
use crate::metrics::{MemoryMetrics, Metrics};
use crate::spec::{Extent, GroupSpec, KernelSpec, TensorSpec};
use crate::{Format, Operation};

/// What a list would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Launches.
    pub launches: usize,
    /// Those of them that are programs, as no native kernel serves them.
    pub programs: usize,
    /// Multiplications and additions of matrix products, each counted, at the most tokens of the step.
    pub flops: u64,
}

/// A list that was recorded, with the names of its programs.
#[derive(Clone, Default)]
struct Planned {
    plan: Plan,
    programs: BTreeSet<Arc<str>>,
}

/// See the module's documentation: reads give zeros, and nothing that is read means anything.
pub struct DryMetal {
    info: DeviceInfo,
    counters: Counters,
    last: Mutex<Planned>,
}

/// Memory that is not there.
struct DryMemory(usize);

impl DeviceMemory for DryMemory {
    fn bytes(&self) -> usize {
        self.0
    }

    fn backend(&self) -> BackendType {
        BackendType::Metal
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Default for DryMetal {
    fn default() -> DryMetal {
        let info = DeviceInfo {
            backend: BackendType::Metal,
            name: "a plan for Apple GPUs".into(),
            memory_bytes: u64::MAX,
            parallelism: 1,
            capabilities: vec![Capability::MatrixTile],
            features: Vec::new(),
            details: Vec::new(),
        };
        DryMetal { info, counters: Counters::default(), last: Mutex::default() }
    }
}

impl DryMetal {
    /// What the last list would have done.
    pub fn last(&self) -> Plan {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).plan
    }

    /// The names of its programs, each once.
    pub fn last_programs(&self) -> Vec<Arc<str>> {
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

fn most(extent: &Extent) -> u64 {
    match extent {
        Extent::Fixed(n) => *n as u64,
        Extent::Step { max, .. } => *max as u64,
    }
}

/// Operations of the product of `x [n, k]` with `w [m, k]`.
fn product(x: &TensorSpec, w: &TensorSpec) -> u64 {
    let m = w.shape.first().map_or(1, most);
    x.shape.iter().map(most).product::<u64>().saturating_mul(2).saturating_mul(m)
}

fn of_spec(spec: &KernelSpec) -> u64 {
    match spec.inputs.as_slice() {
        [x, w] if spec.op == Operation::Matmul => product(x, w),
        _ => 0,
    }
}

fn of_group(group: &GroupSpec) -> u64 {
    let one = |node: &crate::GroupNode| match node.operands[..] {
        [x, w] if node.op == Operation::Matmul => product(group.operand(x), group.operand(w)),
        _ => 0,
    };
    group.nodes.iter().map(one).sum()
}

/// `parts`: launches of a native kernel; none for a program.
fn pipeline(name: &str, parts: Option<usize>, flops: u64) -> Pipeline {
    let programs = usize::from(parts.is_none());
    Pipeline::new(name, Plan { launches: parts.unwrap_or(1), programs, flops })
}

impl Backend for DryMetal {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        Ok(Buffer::new(DryMemory(bytes)))
    }

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        Ok(Buffer::new(DryMemory(memory.as_bytes().len())))
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        check_range(BackendType::Metal, "copy_to_buffer", buffer, offset, data.len())
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        check_range(BackendType::Metal, "copy_from_buffer", buffer, offset, data.len())?;
        data.fill(0);
        Ok(())
    }

    fn copy_buffer(&self, from: &Buffer, at: usize, to: &Buffer, to_at: usize, bytes: usize) -> Result<()> {
        check_range(BackendType::Metal, "copy_buffer", from, at, bytes)?;
        check_range(BackendType::Metal, "copy_buffer", to, to_at, bytes)?;
        check_apart(BackendType::Metal, (from, at), (to, to_at), bytes)
    }

    fn clear_error(&self, _buffer: &Buffer, _offset: usize, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn compile(&self, program: &Program) -> Result<Pipeline> {
        hologram_isa::verify(program)?;
        Ok(pipeline(&program.name, None, 0))
    }

    /// A pipeline for every product, so that its operations are counted where a program computes it too.
    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        let (parts, flops) = (plan::find(spec).map(|kernel| kernel.parts.len()), of_spec(spec));
        (parts.is_some() || flops > 0).then(|| pipeline(spec.op.name(), parts, flops))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let kernel = plan::find_group(group)?;
        Some(pipeline(&group.name(), Some(kernel.parts.len()), of_group(group)))
    }

    fn shares_host_memory(&self) -> bool {
        true
    }

    fn weight_layout(&self, format: Format) -> Format {
        plan::weight_layout(format)
    }

    fn activations(&self, weights: Format, tokens: usize, choices: &[Format]) -> Option<Format> {
        plan::activations(weights, tokens, choices)
    }

    fn cache_format(&self, choices: &[Format]) -> Option<Format> {
        plan::cache_format(choices)
    }

    fn elements_per_thread(&self) -> u32 {
        4
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        let Planned { plan: mut all, mut programs } = Planned::default();
        for launch in launches {
            let one = launch.pipeline.downcast::<Plan>().ok_or_else(|| self.foreign("record"))?;
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
        Counters::add(&self.counters.launches, planned.plan.launches);
        Ok(Event(0))
    }

    fn wait(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn profile(&self, _list: &CommandList) -> Result<Vec<(Arc<str>, f64)>> {
        Err(BackendError::Unsupported { device: self.info.name.clone(), what: "measuring".into() })
    }

    fn metrics(&self) -> Metrics {
        self.counters.metrics(MemoryMetrics::default())
    }
}
