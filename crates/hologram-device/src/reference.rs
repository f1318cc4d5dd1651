//! The reference interpreter as a device. It only runs programs, slowly, on the submitting thread, and checks
//! everything.

use std::sync::Arc;
use std::time::Instant;

use hologram_isa::interp::{self, Bytes};
use hologram_isa::meaning::Subnormals;
use hologram_isa::{Access, Capability, ParamKind, Program};

use crate::DType;
use crate::backend::{Backend, Streams};
use crate::error::Result;
use crate::host::{
    Allocator, Argument, Counters, HostDevice, RawSlice, Rule, Use, buffers_of, resolve, rules_of_program, system,
    uses_of,
};
use crate::info::{BackendType, DeviceInfo, DeviceLimits};
use crate::kernels::Kernels;
use crate::launch::{CommandList, Event, KernelName, Launch, Pipeline};
use crate::measure::Measure;
use crate::memory::Buffer;
use crate::metrics::Metrics;
use crate::open::{DeviceKind, OpenOptions};
use crate::policy::Policy;
use crate::spec::{GroupSpec, KernelSpec};

const DEVICE: BackendType = BackendType::Reference;

/// The reference interpreter as a device; it has no native kernels.
pub struct ReferenceBackend {
    /// Its queue is the number of submissions.
    host: HostDevice<u64>,
}

/// The contents of a [`Pipeline`].
struct Compiled {
    program: Arc<Program>,
    rules: Vec<Rule>,
}

/// The contents of a [`CommandList`].
struct Recording {
    steps: Vec<Step>,
    uses: Vec<Use>,
    /// The allocator of the recording device; only that device may run the list.
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

    /// Opens the interpreter as the reference of devices with such arithmetic: see [`DeviceInfo::subnormals`].
    pub fn with_subnormals(subnormals: Subnormals) -> ReferenceBackend {
        ReferenceBackend::with(None, subnormals)
    }

    /// Opens the interpreter with a limit of the bytes that buffers and the allocator's cache may hold together.
    pub fn with_memory_cap(cap: Option<u64>) -> ReferenceBackend {
        ReferenceBackend::with(cap, Subnormals::Kept)
    }

    fn with(cap: Option<u64>, subnormals: Subnormals) -> ReferenceBackend {
        let info = DeviceInfo {
            backend: DEVICE,
            name: "reference interpreter".into(),
            memory_bytes: system::memory_bytes(),
            parallelism: 1,
            limits: DeviceLimits::PROGRAM,
            capabilities: Capability::ALL.to_vec(),
            subnormals,
            features: Vec::new(),
            details: Vec::new(),
        };
        ReferenceBackend { host: HostDevice::new(info, Policy::default(), cap, 0) }
    }

    /// The recording in a list of this device.
    fn recording<'a>(&self, list: &'a CommandList, operation: &str) -> Result<&'a Recording> {
        match list.downcast::<Recording>() {
            Some(recording) if Arc::ptr_eq(&recording.allocator, &self.host.allocator) => Ok(recording),
            _ => Err(self.host.invalid(operation, "the list was recorded by another device")),
        }
    }

    fn step(&self, index: usize, launch: &Launch, uses: &mut Vec<Use>) -> Result<Step> {
        let name = &launch.pipeline.name;
        let Some(compiled) = launch.pipeline.downcast::<Compiled>() else {
            return Err(self
                .host
                .invalid(&format!("recording kernel {name}"), "its pipeline was made by another device"));
        };
        let arguments = resolve(&self.host.allocator, name, &compiled.rules, &launch.bindings)?;
        uses.extend(uses_of(index, &compiled.rules, &arguments, RawSlice::addresses));
        Ok(Step { program: compiled.program.clone(), arguments, grid: launch.config.grid })
    }
}

impl Step {
    fn run(&self, subnormals: Subnormals) -> Result<()> {
        // Arguments may overlap (two views of the same blocks), but the interpreter requires ranges of bytes that do
        // not. Overlapping arguments are merged into one range, which is writable if one of them is.
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
                // SAFETY: no other range overlaps it. It lies in a buffer that the recording keeps alive; recording has
                // checked that the buffer is not foreign, and nobody else uses it while the queue is held.
                Bytes::Write(unsafe { std::slice::from_raw_parts_mut(*data, *bytes) })
            } else {
                // SAFETY: it lies in a buffer that the recording keeps alive: one of this device, which nobody else
                // uses while the queue is held, or a foreign one, which nobody writes.
                Bytes::Read(unsafe { std::slice::from_raw_parts(*data, *bytes) })
            }
        };
        let mut memories: Vec<_> = ranges.iter().map(memory).collect();
        Ok(interp::interpret_in(&self.program, self.grid, &mut memories, &bindings, subnormals)?)
    }
}

impl Backend for ReferenceBackend {
    crate::pass_on!(self => self.host;
        info is_available policy allocate_buffer allocate_pool owns wrap wrap_pointer copy_to_buffer copy_from_buffer copy_buffer clear_error
        synchronize);

    fn available_memory(&self) -> Option<u64> {
        None
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
        let mut uses = Vec::new();
        let step = |(index, launch)| self.step(index, launch, &mut uses);
        let steps = launches.iter().enumerate().map(step).collect::<Result<_>>()?;
        Ok(CommandList::new(Recording {
            steps,
            uses,
            allocator: self.host.allocator.clone(),
            _buffers: buffers_of(launches),
        }))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let recording = self.recording(list, "submit")?;
        let mut submitted = self.host.queue();
        *submitted += 1;
        self.host.counters.submitted(|| {
            self.host.allocator.failures().run(*submitted, &recording.uses, || {
                for (index, step) in recording.steps.iter().enumerate() {
                    Counters::add(&self.host.counters.launches, 1);
                    step.run(self.host.info.subnormals).map_err(|error| (index, error))?;
                }
                Ok(())
            });
        });
        Ok(Event(*submitted))
    }

    fn wait(&self, event: Event) -> Result<()> {
        let submitted = *self.host.queue();
        self.host.allocator.failures().wait(DEVICE, event, submitted)
    }
}

impl Kernels for ReferenceBackend {
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.host.pipelines.get_or_compile(&self.host.info, &self.host.counters, program, || {
            let rules = rules_of_program(program);
            Ok(Pipeline::program(&program.name, Compiled { program: Arc::new(program.clone()), rules }))
        })
    }

    fn native(&self, _spec: &KernelSpec) -> Option<Pipeline> {
        None
    }

    fn native_group(&self, _group: &GroupSpec) -> Option<Pipeline> {
        None
    }

    fn prefers_fixed(&self, _spec: &KernelSpec) -> bool {
        false
    }

    fn expect_weights(&self, _layout: DType) {}
}

impl Measure for ReferenceBackend {
    fn device(&self) -> BackendType {
        DEVICE
    }

    fn metrics(&self) -> Metrics {
        self.host.counters.metrics(self.host.allocator.metrics())
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(KernelName, f64)>> {
        let recording = self.recording(list, "profile")?;
        let mut submitted = self.host.queue();
        *submitted += 1;
        let mut times = Vec::new();
        self.host.allocator.failures().run(*submitted, &recording.uses, || {
            for (index, step) in recording.steps.iter().enumerate() {
                Counters::add(&self.host.counters.launches, 1);
                let start = Instant::now();
                step.run(self.host.info.subnormals).map_err(|error| (index, error))?;
                times.push((
                    KernelName { text: step.program.name.as_str().into(), is_program: true },
                    start.elapsed().as_secs_f64(),
                ));
            }
            Ok(())
        });
        self.host.allocator.failures().wait(DEVICE, Event(*submitted), *submitted)?;
        Ok(times)
    }
}

/// The reference interpreter as a kind of device.
pub struct Reference;

impl DeviceKind for Reference {
    fn backend(&self) -> BackendType {
        DEVICE
    }

    fn devices(&self) -> Vec<(String, Result<DeviceInfo>)> {
        vec![(DEVICE.to_string(), Ok(ReferenceBackend::new().host.info))]
    }

    fn open(&self, _number: u32, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(ReferenceBackend::with_memory_cap(options.memory_cap)))
    }
}
