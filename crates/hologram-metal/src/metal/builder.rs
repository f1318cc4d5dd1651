//! Builds a recording from checked launches.

use std::sync::Arc;

use hologram_device::host::{Argument, Faulty, Use, buffers_of};
use hologram_device::{BackendError, BackendType, Launch, Result};
use hologram_gpu::{Arg, Hazards, KernelLaunch, Memory as At, Part, split};
use hologram_isa::ParamKind;

use super::backend::{NativePipeline, ProgramPipeline};
use super::device::Device;
use super::library::Modules;
use super::memory::{MetalMemory, Slice, Usage};
use super::parts;
use super::record::{FAULT_BYTES, Faults, Recording, SHARED_ALIGN, Step};

/// Alignment of each kernel's counters in their shared block.
const COUNTERS_ALIGN: usize = 256;

/// Checked launches that become a recording; their memory is not yet complete.
pub(super) struct Builder<'a> {
    device: &'a Arc<Device>,
    modules: &'a Modules,
    launches: &'a [Launch],
    work: Vec<Work<'a>>,
    usages: Vec<Arc<Usage>>,
    uses: Vec<Use>,
    faulty: Vec<(usize, Faulty)>,
    scratch: usize,
    counters: usize,
}

enum Work<'a> {
    Native {
        pipeline: &'a NativePipeline,
        arguments: Vec<Argument<Slice>>,
        counters: usize,
        record: usize,
    },
    Program {
        pipeline: &'a ProgramPipeline,
        arguments: Vec<Argument<Slice>>,
        grid: [u32; 3],
        record: usize,
    },
    /// A grid without workgroups.
    Nothing,
}

/// The memory that arguments refer to.
struct Memory<'a> {
    arguments: &'a [Argument<Slice>],
    /// The fault record.
    record: (&'a Slice, usize),
    counters: (&'a Slice, usize),
    scratch: Option<&'a Slice>,
    /// Stands in for empty memory.
    nothing: &'a Slice,
}

impl<'a> Builder<'a> {
    pub(super) fn new(device: &'a Arc<Device>, modules: &'a Modules, launches: &'a [Launch]) -> Builder<'a> {
        Builder {
            device,
            modules,
            launches,
            work: Vec::with_capacity(launches.len()),
            usages: Vec::new(),
            uses: Vec::new(),
            faulty: Vec::new(),
            scratch: 0,
            counters: 0,
        }
    }

    /// Records the memory that a launch uses.
    pub(super) fn uses(&mut self, usages: Vec<Arc<Usage>>, uses: impl Iterator<Item = Use>) {
        self.usages.extend(usages);
        self.uses.extend(uses);
    }

    pub(super) fn native(&mut self, launch: &Launch, pipeline: &'a NativePipeline, arguments: Vec<Argument<Slice>>) {
        let kernel = &pipeline.kernel;
        let (counters, record) = (self.counters, self.faulty.len());
        self.scratch = self.scratch.max(kernel.scratch);
        self.counters += kernel.counters.next_multiple_of(COUNTERS_ALIGN);
        let has_record = |part: &Part| match part {
            Part::Kernel(part) => part.has_fault_record(),
            Part::Blas(_) => false,
        };
        if kernel.parts.iter().any(has_record) {
            self.faulty.push((self.work.len(), Faulty::Native(launch.pipeline.name.clone())));
        }
        self.work.push(Work::Native { pipeline, arguments, counters, record });
    }

    /// # Errors
    /// [`BackendError::InvalidArgument`] for a grid that the device cannot run.
    pub(super) fn program(
        &mut self,
        launch: &Launch,
        pipeline: &'a ProgramPipeline,
        arguments: Vec<Argument<Slice>>,
    ) -> Result<()> {
        let (grid, program) = (launch.config.grid, &pipeline.program);
        if grid.contains(&0) {
            self.work.push(Work::Nothing);
            return Ok(());
        }
        if grid.iter().zip(program.workgroup).any(|(groups, threads)| groups.checked_mul(threads).is_none()) {
            return Err(BackendError::InvalidArgument {
                device: BackendType::Metal.to_string(),
                operation: format!("recording kernel {}", launch.pipeline.name),
                reason: format!("the grid {grid:?} has 2^32 threads or more in a dimension"),
            });
        }
        let record = self.faulty.len();
        if pipeline.layout.faults.is_some() {
            let elements = arguments.iter().zip(&program.params).map(|(a, p)| match (a, p.kind) {
                (Argument::Slice(slice), ParamKind::Buffer { element, .. }) => elements(slice, element.size()),
                _ => 0,
            });
            let faulty = Faulty::Program { program: program.clone(), elements: elements.collect() };
            self.faulty.push((self.work.len(), faulty));
        }
        self.work.push(Work::Program { pipeline, arguments, grid, record });
        Ok(())
    }

    /// Bytes of scratch memory that the recording needs.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    /// The offset of the counters, after the fault records.
    fn counters_at(&self) -> usize {
        (self.faulty.len() * FAULT_BYTES).next_multiple_of(COUNTERS_ALIGN)
    }

    /// Bytes of zeroed memory that the recording needs.
    pub(super) fn zeroed_bytes(&self) -> usize {
        self.counters_at() + self.counters
    }

    /// The recording.
    ///
    /// # Errors
    /// Kernels that cannot be compiled or described, with their names.
    pub(super) fn finish(
        self,
        zeroed: MetalMemory,
        scratch: Option<Arc<MetalMemory>>,
        nothing: Slice,
    ) -> Result<Recording> {
        let (counters_at, zeroed_all) = (self.counters_at(), zeroed.all());
        let scratch_all = scratch.as_ref().map(|memory| memory.all());
        let (mut hazards, mut steps) = (Hazards::default(), Vec::with_capacity(self.work.len()));
        let mut seconds = Vec::with_capacity(self.work.len());
        for (launch, work) in self.work.iter().enumerate() {
            let first = self.uses.partition_point(|u| (u.launch as usize) < launch);
            let mut uses: Vec<Use> =
                self.uses[first..].iter().take_while(|u| u.launch as usize == launch).copied().collect();
            let bytes = uses.iter().map(|u| u.end - u.start).sum();
            let mut memory = Memory {
                arguments: &[],
                record: (&zeroed_all, 0),
                counters: (&zeroed_all, 0),
                scratch: scratch_all.as_ref(),
                nothing: &nothing,
            };
            match work {
                Work::Nothing => {}
                Work::Program { pipeline, arguments, grid, record } => {
                    memory = Memory { arguments, record: (&zeroed_all, record * FAULT_BYTES), ..memory };
                    let mut step = program_step(pipeline, *grid, &memory);
                    (step.launch, step.barrier) = (launch, hazards.needs_barrier(uses.iter()));
                    steps.push(step);
                    seconds.push(parts::seconds(0, bytes));
                }
                Work::Native { pipeline, arguments, counters, record } => {
                    let kernel = &pipeline.kernel;
                    memory = Memory {
                        arguments,
                        record: (&zeroed_all, record * FAULT_BYTES),
                        counters: (&zeroed_all, counters_at + counters),
                        ..memory
                    };
                    // All kernels with scratch memory share one block.
                    if let Some(all) = scratch_all.as_ref().filter(|_| kernel.scratch > 0) {
                        let (bytes, launch) = (all.addresses(), launch as u32);
                        uses.push(Use { launch, start: bytes.start, end: bytes.end, read: true, write: true });
                    }
                    for part in &kernel.parts {
                        let name = &self.launches[launch].pipeline.name;
                        let mut step = self.native_step(name, part, &memory)?;
                        (step.launch, step.barrier) = (launch, hazards.needs_barrier(uses.iter()));
                        steps.push(step);
                        seconds.push(parts::seconds(pipeline.flops, bytes) / kernel.parts.len() as f64);
                    }
                }
            }
        }
        let mut usages = self.usages;
        usages.extend(scratch_all.iter().flat_map(|s| s.usages.iter().cloned()));
        usages.sort_unstable_by_key(|u| Arc::as_ptr(u).addr());
        usages.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Ok(Recording {
            device: self.device.clone(),
            names: self.launches.iter().map(|l| l.pipeline.name.clone()).collect(),
            parts: split(&seconds, self.device.command_seconds),
            steps,
            usages,
            uses: self.uses,
            faults: Faults::new(zeroed, self.faulty),
            _buffers: buffers_of(self.launches),
            _scratch: scratch,
        })
    }

    fn native_step(&self, name: &str, part: &Part, memory: &Memory<'_>) -> Result<Step> {
        let broken = |reason: &str| self.device.error(&format!("reading the description of kernel {name}"), reason);
        let Part::Kernel(part) = part else { return Err(broken("there is no library of matrix products")) };
        let kernel = self.modules.kernel(self.device, part.image(), &part.entry)?;
        kernel.check_threads(self.device, name, part.block.iter().product())?;
        let KernelLaunch { grid, block, .. } = *part;
        let shared = (part.shared as usize).next_multiple_of(SHARED_ALIGN);
        let mut step =
            Step { launch: 0, kernel, buffers: Vec::new(), constants: Vec::new(), shared, grid, block, barrier: false };
        // Prefetch ranges exist only in CUDA.
        for (index, arg) in part.args.list().iter().enumerate() {
            let place =
                |(slice, at): (&Slice, usize)| slice.metal.clone().map(|(buffer, offset)| (buffer, offset + at));
            let memory_at = match arg {
                Arg::Memory(at) => at,
                Arg::U32(word) => {
                    step.constants.push((index, word.to_le_bytes().into()));
                    continue;
                }
                Arg::F32(number) => {
                    step.constants.push((index, number.to_le_bytes().into()));
                    continue;
                }
                Arg::TensorMap(_) => return Err(broken("it asks for CUDA's copy engine")),
            };
            let found = match memory_at {
                // Numbers tell a kernel which memory is unused.
                At::Null => place((memory.nothing, 0)),
                At::Fault => place(memory.record),
                At::Counters(offset) => place((memory.counters.0, memory.counters.1 + offset)),
                At::Scratch(offset) => match memory.scratch {
                    Some(scratch) => place((scratch, *offset)),
                    None => return Err(broken("it has no scratch memory")),
                },
                At::Binding(i) => match memory.arguments.get(*i) {
                    Some(Argument::Slice(slice)) => place((slice, 0)).or_else(|| place((memory.nothing, 0))),
                    _ => return Err(broken(&format!("it has no buffer {i}"))),
                },
                At::Address(_) => return Err(broken("it has an address of CUDA's")),
            };
            let (buffer, offset) = found.ok_or_else(|| broken(&format!("argument {index} has no memory")))?;
            step.buffers.push((index, buffer, offset));
        }
        Ok(step)
    }
}

fn elements(slice: &Slice, size: usize) -> u32 {
    u32::try_from(slice.bytes / size).unwrap_or(u32::MAX)
}

fn program_step(pipeline: &ProgramPipeline, grid: [u32; 3], memory: &Memory<'_>) -> Step {
    let (program, layout) = (&pipeline.program, &pipeline.layout);
    let mut words = vec![0u8; layout.argument_bytes];
    let mut buffers = Vec::with_capacity(memory.arguments.len() + 1);
    for (index, (argument, (param, word))) in
        memory.arguments.iter().zip(program.params.iter().zip(&layout.arguments)).enumerate()
    {
        let value = match (argument, param.kind) {
            (Argument::Slice(slice), ParamKind::Buffer { element, .. }) => {
                let place = slice.metal.as_ref().or(memory.nothing.metal.as_ref());
                buffers.extend(place.map(|(buffer, offset)| (index, buffer.clone(), *offset)));
                u64::from(elements(slice, element.size()))
            }
            (Argument::Scalar(word), _) => *word,
            // The rules of the program's parameters were checked.
            (Argument::Slice(_), ParamKind::Scalar(_)) => 0,
        };
        words[word.offset..word.offset + word.size].copy_from_slice(&value.to_le_bytes()[..word.size]);
    }
    if let (Some(index), Some((buffer, offset))) = (layout.faults, &memory.record.0.metal) {
        buffers.push((index, buffer.clone(), offset + memory.record.1));
    }
    let constants = if words.is_empty() { Vec::new() } else { vec![(layout.argument_binding, words.into())] };
    let (kernel, block) = (pipeline.kernel.clone(), program.workgroup);
    Step { launch: 0, kernel, buffers, constants, shared: 0, grid, block, barrier: false }
}
