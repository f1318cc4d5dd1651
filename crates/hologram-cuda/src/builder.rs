//! Builds a recording from checked launches.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use hologram_device::host::{Argument, Faulty, Use, buffers_of, one_by_one};
use hologram_device::{BackendError, BackendType, KernelName, Launch, Result};
use hologram_gpu::{Arg, BlasCall, KernelLaunch, Memory as At, NativeKernel, Part, Range, TensorMap, Written};
use hologram_isa::Program;

use super::blas::{Blas, Operands};
use super::context::Context;
use super::memory::{CudaMemory, Usage};
use super::modules::{Function, Modules};
use super::record::{self, Faults, Kernel, Recording, Shape, Step, Value};
use super::stack::{self, Stack};

/// Alignment of each kernel's counters in their shared block.
const COUNTERS_ALIGN: usize = 256;
/// The most workgroups in y and in z.
const MAX_GRID_YZ: u32 = 65535;

/// Checked launches that become a recording; their memory is not yet complete.
pub(super) struct Builder<'a> {
    context: &'a Arc<Context>,
    modules: &'a Modules,
    /// The library of matrix products, if a launch was planned with it.
    blas: Option<&'a Arc<Blas>>,
    launches: &'a [Launch],
    work: Vec<Work<'a>>,
    usages: Vec<Arc<Usage>>,
    uses: Vec<Use>,
    scratch: usize,
    counters: usize,
    /// Launches fused to one, each with the offset of its memory among the counters.
    stacks: Vec<(Stack, usize)>,
}

enum Work<'a> {
    Native {
        kernel: &'a NativeKernel,
        arguments: Vec<Argument<(u64, usize)>>,
        counters: usize,
    },
    Program {
        function: &'a Function,
        program: &'a Arc<Program>,
        values: Vec<Value>,
        elements: Vec<u32>,
        shape: Shape,
    },
    /// A grid without workgroups.
    Nothing,
}

/// A step whose arguments are known.
enum Prepared {
    Kernel(Ready),
    Product(record::Work),
}

/// A kernel with its arguments.
struct Ready {
    function: Function,
    shape: Shape,
    values: Vec<Value>,
    /// Its own inputs, for prefetching by the step before, and the index among `values` of the next such step's inputs
    /// ([`KernelArgs::reads`]).
    ahead: Option<(Vec<Value>, usize)>,
}

/// The addresses that a native kernel's arguments refer to.
struct Memory<'a> {
    arguments: &'a [Argument<(u64, usize)>],
    scratch: u64,
    counters: u64,
    fault: u64,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        context: &'a Arc<Context>,
        modules: &'a Modules,
        blas: Option<&'a Arc<Blas>>,
        launches: &'a [Launch],
    ) -> Builder<'a> {
        let (work, usages, uses) = (Vec::with_capacity(launches.len()), Vec::new(), Vec::new());
        Builder { context, modules, blas, launches, work, usages, uses, scratch: 0, counters: 0, stacks: Vec::new() }
    }

    /// Records the memory that a launch uses.
    pub(super) fn uses(&mut self, usages: Vec<Arc<Usage>>, uses: impl Iterator<Item = Use>) {
        self.usages.extend(usages);
        self.uses.extend(uses);
    }

    pub(super) fn native(
        &mut self,
        _launch: &'a Launch,
        kernel: &'a NativeKernel,
        arguments: Vec<Argument<(u64, usize)>>,
    ) {
        let counters = self.counters;
        self.scratch = self.scratch.max(kernel.scratch);
        self.counters += kernel.counters.next_multiple_of(COUNTERS_ALIGN);
        self.work.push(Work::Native { kernel, arguments, counters });
    }

    /// # Errors
    /// [`BackendError::InvalidArgument`] for a grid that the device cannot run.
    pub(super) fn program(
        &mut self,
        launch: &Launch,
        function: &'a Function,
        program: &'a Arc<Program>,
        (values, elements): (Vec<Value>, Vec<u32>),
        early: bool,
    ) -> Result<()> {
        let grid = launch.config.grid;
        if grid.contains(&0) {
            self.work.push(Work::Nothing);
            return Ok(());
        }
        if grid[0] > i32::MAX as u32 || grid[1] > MAX_GRID_YZ || grid[2] > MAX_GRID_YZ {
            return Err(BackendError::InvalidArgument {
                device: BackendType::Cuda.to_string(),
                operation: format!("recording kernel {}", launch.pipeline.name),
                reason: format!("the grid {grid:?} is larger than [{}, {MAX_GRID_YZ}, {MAX_GRID_YZ}]", i32::MAX),
            });
        }
        let shape = Shape { grid, block: program.workgroup, shared: 0, cluster: 1, early, together: false };
        self.work.push(Work::Program { function, program, values, elements, shape });
        Ok(())
    }

    /// Fuses launches to stacks where possible, unless launches are to run one by one.
    pub(super) fn join(&mut self, max_shared: u32, multiprocessors: u32) {
        if one_by_one() {
            return;
        }
        let launches: Vec<_> = self
            .work
            .iter()
            .map(|work| match work {
                Work::Native { kernel, arguments, .. } => Some((*kernel, arguments.as_slice())),
                Work::Program { .. } | Work::Nothing => None,
            })
            .collect();
        let stacks = stack::plan(&launches, max_shared, multiprocessors);
        for stack in stacks {
            let bytes = stack.bytes();
            self.stacks.push((stack, self.counters));
            self.counters += bytes.next_multiple_of(COUNTERS_ALIGN);
        }
    }

    /// Tables in the zeroed memory, with their offsets.
    pub(super) fn tables(&self) -> Vec<(usize, Vec<u8>)> {
        let table = |(stack, at): &(Stack, usize)| {
            let (offset, data) = stack.phases();
            (at + offset, data)
        };
        self.stacks.iter().map(table).collect()
    }

    /// Bytes of scratch memory that the recording needs.
    pub(super) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Bytes of zeroed memory that the recording needs.
    pub(super) fn counters(&self) -> usize {
        self.counters
    }

    /// The recording, without its graph.
    ///
    /// # Errors
    /// Kernels that cannot be loaded or described, with their names.
    pub(super) fn finish(
        self,
        scratch: Option<Arc<CudaMemory>>,
        counters: Option<Arc<CudaMemory>>,
    ) -> Result<Recording> {
        let mut names: Vec<_> = self.launches.iter().map(|l| l.pipeline.name.clone()).collect();
        let base = |memory: &Option<Arc<CudaMemory>>| memory.as_ref().map_or(0, |m| m.address());
        let (scratch_base, counters_base) = (base(&scratch), base(&counters));
        let has_record = |part: &Part| match part {
            Part::Kernel(part) => part.has_fault_record(),
            Part::Blas(_) => false,
        };
        let mut faulty = Vec::new();
        for (launch, (work, name)) in self.work.iter().zip(&names).enumerate() {
            match work {
                Work::Program { program, elements, .. } => {
                    let (program, elements) = (Arc::clone(program), elements.clone());
                    faulty.push((launch, Faulty::Program { program, elements }));
                }
                Work::Native { kernel, .. } if kernel.parts.iter().any(has_record) => {
                    faulty.push((launch, Faulty::Native(name.clone())));
                }
                Work::Native { .. } | Work::Nothing => {}
            }
        }
        let faults = if faulty.is_empty() { None } else { Some(Faults::new(self.context, faulty)?) };
        let (mut ready, mut records) = (Vec::new(), 0..);
        let mut joined: Option<(Stack, usize, usize, u64)> = None;
        let mut record = || faults.as_ref().zip(records.next()).map_or(0, |(faults, index)| faults.address(index));
        let mut stacks = self.stacks.into_iter().peekable();
        let (mut written, mut uses) = (Written::default(), self.uses.iter().peekable());
        for (launch, work) in self.work.into_iter().enumerate() {
            while let Some(before) = uses.next_if(|u| (u.launch as usize) < launch) {
                if before.write {
                    written.add(before.start..before.end);
                }
            }
            if let Some((stack, at)) = stacks.next_if(|(stack, _)| stack.launches.start == launch) {
                let name = format!("{} launches from {}", stack.launches.len(), names[launch]);
                names.push(KernelName { text: name.into(), is_program: false });
                joined = Some((stack, at, names.len() - 1, 0));
            }
            if let Some((stack, at, name, fault)) = &mut joined {
                // A fault is written to the first record.
                if matches!(&work, Work::Native { kernel, .. } if kernel.parts.iter().any(has_record)) {
                    let address = record();
                    *fault = if *fault == 0 { address } else { *fault };
                }
                if stack.launches.end == launch + 1 {
                    let function = self.modules.kernel(stack.image(), stack.image(), stack.shape().shared, 1)?;
                    let args = stack.arguments(counters_base + *at as u64);
                    let memory = Memory { arguments: &[], scratch: 0, counters: 0, fault: *fault };
                    let values = values(self.context, &args, &memory)?;
                    let kernel = Ready { function, shape: stack.shape(), values, ahead: None };
                    ready.push((*name, Prepared::Kernel(kernel)));
                    joined = None;
                }
                continue;
            }
            match work {
                Work::Nothing => {}
                Work::Program { function, mut values, shape, .. } => {
                    values.push(Value::Address(record()));
                    let kernel = Ready { function: function.clone(), shape, values, ahead: None };
                    ready.push((launch, Prepared::Kernel(kernel)));
                }
                Work::Native { kernel, arguments, counters } => {
                    let memory = Memory {
                        arguments: &arguments,
                        scratch: scratch_base,
                        counters: counters_base + counters as u64,
                        fault: if kernel.parts.iter().any(has_record) { record() } else { 0 },
                    };
                    for part in &kernel.parts {
                        let work = match part {
                            Part::Kernel(part) => {
                                let early = starts_early(part, &memory, &written, ready.is_empty());
                                native_kernel(self.context, self.modules, part, &memory, early).map(Prepared::Kernel)
                            }
                            Part::Blas(call) => {
                                blas_product(self.context, self.blas, call, &memory).map(Prepared::Product)
                            }
                        };
                        ready.push((launch, work.map_err(|e| name(&names, launch, e))?));
                    }
                }
            }
        }
        tell_ahead(&mut ready);
        let step = |(launch, work)| {
            let work = match work {
                Prepared::Kernel(r) => record::Work::Kernel(Kernel::new(r.function, r.shape, r.values)),
                Prepared::Product(work) => work,
            };
            Step { launch, work }
        };
        let steps = ready.into_iter().map(step).collect();
        let memory: Vec<_> = scratch.into_iter().chain(counters).collect();
        let mut usages = self.usages;
        usages.extend(memory.iter().flat_map(|m| m.usages().to_vec()));
        usages.sort_unstable_by_key(|u| Arc::as_ptr(u).addr());
        usages.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Ok(Recording {
            context: self.context.clone(),
            launches: self.launches.len(),
            names,
            steps,
            graph: OnceLock::new(),
            has_run: AtomicBool::new(false),
            usages,
            uses: self.uses,
            faults,
            buffers: buffers_of(self.launches),
            _memory: memory,
        })
    }
}

/// Adds the launch's name to an error of the driver.
fn name(names: &[KernelName], launch: usize, error: BackendError) -> BackendError {
    match error {
        BackendError::Device { device, operation, reason } => {
            BackendError::Kernel { device, kernel: names[launch].to_string(), reason: format!("{operation}: {reason}") }
        }
        error => error,
    }
}

/// Whether a launch may start before the one before has ended: what it then reads must have been written by a recording
/// before. Before the first launch of this one anything may run.
fn starts_early(part: &KernelLaunch, memory: &Memory<'_>, written: &Written, is_first: bool) -> bool {
    let is_free = |place: At| match place {
        At::Null => true,
        At::Binding(index) => match memory.arguments.get(index) {
            Some(Argument::Slice((address, bytes))) => {
                !is_first && !written.meets(&(*address..*address + *bytes as u64))
            }
            _ => false,
        },
        At::Scratch(_) | At::Counters(_) | At::Fault | At::Address(_) => false,
    };
    part.early && part.args.early().into_iter().all(is_free)
}

fn native_kernel(
    context: &Arc<Context>,
    modules: &Modules,
    part: &KernelLaunch,
    memory: &Memory<'_>,
    early: bool,
) -> Result<Ready> {
    let function = modules.kernel(part.image(), &part.entry, part.shared, part.cluster)?;
    let mut own = values(context, &part.args.list(), memory)?;
    let mut ahead = None;
    if let Some(reads) = part.args.reads() {
        let list = |ranges: &[Range]| ranges.iter().flat_map(Range::list).collect::<Vec<_>>();
        ahead = Some((values(context, &list(reads), memory)?, own.len()));
        own.extend(values(context, &list(&vec![Range::NONE; reads.len()]), memory)?);
    }
    let KernelLaunch { grid, block, shared, cluster, .. } = *part;
    let shape = Shape { grid, block, shared, cluster, early, together: false };
    Ok(Ready { function, shape, values: own, ahead })
}

/// Gives each prefetching step the inputs of the next step of its kind.
fn tell_ahead(steps: &mut [(usize, Prepared)]) {
    let mut next: Vec<Value> = Vec::new();
    for (_, step) in steps.iter_mut().rev() {
        let Prepared::Kernel(step) = step else { continue };
        let Some((reads, place)) = step.ahead.take() else { continue };
        for (to, from) in step.values.iter_mut().skip(place).zip(std::mem::replace(&mut next, reads)) {
            *to = from;
        }
    }
}

fn blas_product(
    context: &Arc<Context>,
    blas: Option<&Arc<Blas>>,
    call: &BlasCall,
    memory: &Memory<'_>,
) -> Result<record::Work> {
    let found = blas.and_then(|blas| Some((blas.clone(), blas.product(call.product)?)));
    let (blas, product) = found.ok_or_else(|| context.error("reading its description", "there is no cuBLASLt"))?;
    let at = |place| address(context, place, memory);
    let y = at(call.y)?;
    let add = if call.product.adds { at(call.add)? } else { y };
    let operands = Operands { x: at(call.x)?, w: at(call.w)?, add, y, workspace: memory.scratch };
    Ok(record::Work::Product { blas, product, operands })
}

fn values(context: &Arc<Context>, args: &[Arg], memory: &Memory<'_>) -> Result<Vec<Value>> {
    args.iter().map(|arg| value(context, arg, memory)).collect()
}

fn value(context: &Arc<Context>, arg: &Arg, memory: &Memory<'_>) -> Result<Value> {
    Ok(match arg {
        Arg::U32(word) => Value::Word(*word),
        Arg::F32(number) => Value::Word(number.to_bits()),
        Arg::TensorMap(map) => Value::Map(Box::new(tensor_map(context, map, memory)?)),
        Arg::Memory(place) => Value::Address(address(context, *place, memory)?),
    })
}

fn address(context: &Arc<Context>, place: At, memory: &Memory<'_>) -> Result<u64> {
    match place {
        At::Null => Ok(0),
        At::Fault => Ok(memory.fault),
        At::Address(address) => Ok(address),
        At::Scratch(offset) => Ok(memory.scratch + offset as u64),
        At::Counters(offset) => Ok(memory.counters + offset as u64),
        At::Binding(index) => match memory.arguments.get(index) {
            Some(Argument::Slice((address, _))) => Ok(*address),
            _ => Err(context.error("reading its description", &format!("it has no buffer {index}"))),
        },
    }
}

/// The driver's description of a matrix for the bulk tensor copy engine; accesses outside the matrix read zero.
fn tensor_map(context: &Arc<Context>, map: &TensorMap, memory: &Memory<'_>) -> Result<CUtensorMap> {
    let invalid = |reason: &str| context.error("describing a matrix for the copy engine", reason);
    let element = match map.element {
        1 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        4 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        _ => return Err(invalid("elements have 1, 2 or 4 bytes")),
    };
    let swizzle = match map.swizzle {
        0 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        32 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        128 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => return Err(invalid("a swizzle has 0, 32, 64 or 128 bytes")),
    };
    let rank = map.dims.len();
    if !(1..=5).contains(&rank) || map.tile.len() != rank || map.strides.len() + 1 != rank {
        return Err(invalid("it has 1 to 5 dimensions, as many tile sizes and one stride less"));
    }
    let base = address(context, map.memory, memory)?;
    let mut out = CUtensorMap { opaque: [0; 16] };
    // SAFETY: the arrays have the rank's lengths; writes one description.
    let code = unsafe {
        (context.driver.cuTensorMapEncodeTiled)(
            &mut out,
            element,
            rank as u32,
            base as *mut std::ffi::c_void,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.tile.as_ptr(),
            [1u32; 5].as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    context.check(code, || format!("describing a matrix {:?} for the copy engine", map.dims))?;
    Ok(out)
}
