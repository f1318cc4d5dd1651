//! Recorded lists: launches with every argument fixed, and the graph that replays them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUtensorMap,
};
use hologram_device::host::{FAULT_WORDS, Faulty, ONE_BY_ONE, Use, one_by_one};
use hologram_device::{BackendError, BackendType, Buffer, KernelName, Result};
use hologram_isa::{ParamKind, Program};

use super::blas::{Blas, Operands, Product};
use super::context::{Context, GraphExec, Pinned, Stream};
use super::memory::{CudaMemory, Usage};
use super::modules::Function;

/// Added to an error after which the device cannot be used.
pub(super) const LOST: &str = "; the device is lost to this process";

/// The contents of a [`CommandList`](hologram_device::CommandList) for a GPU.
pub(super) struct Recording {
    pub(super) context: Arc<Context>,
    /// The launches' names in order, then the stacks' names.
    pub(super) names: Vec<KernelName>,
    pub(super) launches: usize,
    pub(super) steps: Vec<Step>,
    /// All steps as one graph. Several steps: from the start; one step: from its second run on.
    pub(super) graph: OnceLock<GraphExec>,
    pub(super) has_run: AtomicBool,
    /// Everything that the steps use.
    pub(super) usages: Vec<Arc<Usage>>,
    /// The memory of the launches' arguments, in their order.
    pub(super) uses: Vec<Use>,
    pub(super) faults: Option<Faults>,
    /// Keeps the memory of the steps alive.
    pub(super) buffers: Vec<Buffer>,
    pub(super) _memory: Vec<Arc<CudaMemory>>,
}

/// One kernel, or one call of the library of matrix products.
pub(super) struct Step {
    /// The launch that it is part of.
    pub(super) launch: usize,
    pub(super) work: Work,
}

/// The action of a step.
pub(super) enum Work {
    Kernel(Kernel),
    Product { blas: Arc<Blas>, product: Arc<Product>, operands: Operands },
}

impl Recording {
    /// Puts the steps into a stream, one by one.
    ///
    /// # Errors
    /// A launch that the driver rejects, with the kernel's name.
    pub(super) fn launch_steps(&self, stream: &Stream) -> Result<()> {
        self.steps.iter().try_for_each(|step| self.launch_step(step, stream))
    }

    pub(super) fn launch_step(&self, step: &Step, stream: &Stream) -> Result<()> {
        let done = match &step.work {
            Work::Kernel(kernel) => kernel.launch(&self.context, stream),
            Work::Product { blas, product, operands } => blas.launch(product, *operands, stream),
        };
        done.map_err(|error| self.name_kernel(step.launch, error))
    }

    /// Runs the recording.
    ///
    /// # Errors
    /// Those that are known at once.
    pub(super) fn run(&self, stream: &Stream) -> Result<()> {
        if one_by_one() {
            return self.steps.iter().try_for_each(|step| {
                self.launch_step(step, stream)?;
                stream.synchronize().map_err(|error| self.name_lost(step.launch, error))
            });
        }
        match self.graph.get() {
            Some(graph) => graph.launch(stream),
            None if self.steps.is_empty() || !self.has_run.swap(true, Ordering::Relaxed) => self.launch_steps(stream),
            // A graph launch costs the host half of a kernel launch, so building the graph pays off when the list runs
            // again.
            None => {
                let graph = stream.capture(|| self.launch_steps(stream))?.instantiate()?;
                self.graph.get_or_init(|| graph).launch(stream)
            }
        }
    }

    /// Adds the kernel's name to an error of a launch.
    pub(super) fn name_kernel(&self, launch: usize, error: BackendError) -> BackendError {
        match error {
            BackendError::Device { device, reason, .. } if !self.context.is_lost() => {
                let kernel = self.names.get(launch).map(ToString::to_string).unwrap_or_default();
                BackendError::Kernel { device, kernel, reason }
            }
            error => error,
        }
    }

    /// Adds the kernel's name to an error of waiting for a single launch.
    fn name_lost(&self, launch: usize, error: BackendError) -> BackendError {
        let BackendError::Device { device, reason, .. } = error else { return error };
        let kernel = self.names.get(launch).map(ToString::to_string).unwrap_or_default();
        let lost = if self.context.is_lost() { LOST } else { "" };
        BackendError::Kernel { device, kernel, reason: reason + lost }
    }

    /// The name of the failed kernel, if only the recording is known.
    pub(super) fn suspects(&self) -> String {
        match self.names.as_slice() {
            [] => "of an empty list".into(),
            [one] => one.to_string(),
            [first, .., last] => {
                format!("one of the {} from {first} to {last} ({ONE_BY_ONE}=1 tells which)", self.names.len())
            }
        }
    }
}

/// A kernel with its arguments.
pub(super) struct Kernel {
    function: Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    attributes: Vec<CUlaunchAttribute>,
    /// Addresses of the arguments in `words` and `maps`.
    pointers: Box<[*mut c_void]>,
    _words: Box<[u64]>,
    _maps: Box<[CUtensorMap]>,
}

// SAFETY: the pointers refer to the kernel's own boxes, which move with it and never change.
unsafe impl Send for Kernel {}
// SAFETY: `pointers`, `_words` and `_maps` are only read after construction.
unsafe impl Sync for Kernel {}

/// An argument's value.
pub(super) enum Value {
    Word(u32),
    Wide(u64),
    Address(u64),
    Map(Box<CUtensorMap>),
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    /// Workgroups of a cluster in x.
    pub(super) cluster: u32,
    /// Whether it may start while the kernel before it ends.
    pub(super) early: bool,
    /// Whether all workgroups must be resident at the same time.
    pub(super) together: bool,
}

impl Kernel {
    pub(super) fn new(function: Function, shape: Shape, values: Vec<Value>) -> Kernel {
        let mut attributes = Vec::new();
        if shape.cluster > 1 {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            value.clusterDim.x = shape.cluster;
            value.clusterDim.y = 1;
            value.clusterDim.z = 1;
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes.push(CUlaunchAttribute { id, pad: [0; 4], value });
        }
        if shape.early {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            value.programmaticStreamSerializationAllowed = 1;
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes.push(CUlaunchAttribute { id, pad: [0; 4], value });
        }
        if shape.together {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            value.cooperative = 1;
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes.push(CUlaunchAttribute { id, pad: [0; 4], value });
        }
        // Little-endian words: a 32-bit argument is the lower half of its word.
        let (mut words, mut maps) = (Vec::with_capacity(values.len()), Vec::new());
        let mut places = Vec::with_capacity(values.len());
        for value in values {
            match value {
                Value::Word(word) => words.push(u64::from(word)),
                Value::Wide(word) | Value::Address(word) => words.push(word),
                Value::Map(map) => {
                    places.push(Err(maps.len()));
                    maps.push(*map);
                    continue;
                }
            }
            places.push(Ok(words.len() - 1));
        }
        let (mut words, mut maps) = (words.into_boxed_slice(), maps.into_boxed_slice());
        let (first_word, first_map) = (words.as_mut_ptr(), maps.as_mut_ptr());
        let pointers = places.into_iter().map(|place| match place {
            Ok(word) => first_word.wrapping_add(word).cast::<c_void>(),
            Err(map) => first_map.wrapping_add(map).cast::<c_void>(),
        });
        let pointers = pointers.collect();
        let Shape { grid, block, shared, .. } = shape;
        Kernel { function, grid, block, shared, attributes, pointers, _words: words, _maps: maps }
    }

    fn launch(&self, context: &Context, stream: &Stream) -> Result<()> {
        let config = CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            hStream: stream.raw,
            attrs: self.attributes.as_ptr().cast_mut(),
            numAttrs: self.attributes.len() as u32,
        };
        // SAFETY: number and sizes of the arguments are those that the kernel takes (the program's parameters, or the
        // native kernel's description), and the recording keeps their memory alive.
        let code = unsafe {
            (context.driver.cuLaunchKernelEx)(
                &config,
                self.function.raw,
                self.pointers.as_ptr().cast_mut(),
                std::ptr::null_mut(),
            )
        };
        context.check(code, || "launching a kernel".into())
    }
}

/// The fault records of a recording's programs, and of its native kernels that have one. They lie in host memory that
/// the device writes to.
pub(super) struct Faults {
    pub(super) records: Pinned,
    /// Each with the index of its launch.
    pub(super) programs: Vec<(usize, Faulty)>,
}

impl Faults {
    pub(super) fn new(context: &Arc<Context>, programs: Vec<(usize, Faulty)>) -> Result<Faults> {
        Ok(Faults { records: Pinned::new(context, programs.len() * FAULT_WORDS * 4)?, programs })
    }

    /// The address of a program's record.
    pub(super) fn address(&self, index: usize) -> u64 {
        self.records.raw.addr() as u64 + (index * FAULT_WORDS * 4) as u64
    }

    fn record(&self, index: usize) -> *mut u32 {
        self.records.raw.cast::<u32>().wrapping_add(index * FAULT_WORDS)
    }

    /// Whether a program has failed.
    pub(super) fn any(&self) -> bool {
        // SAFETY: there is a record per program. The device may write at the same time, so each flag is read once.
        (0..self.programs.len()).any(|i| unsafe { self.record(i).read_volatile() } != 0)
    }

    /// The first launch that failed, with its error; clears all records. The queue must have passed every run of the
    /// recording.
    pub(super) fn take(&self) -> Option<(usize, BackendError)> {
        let mut first = None;
        for (index, (launch, faulty)) in self.programs.iter().enumerate() {
            // SAFETY: the record lies in the pinned memory, and the device no longer writes to it.
            let words = unsafe { self.record(index).cast::<[u32; FAULT_WORDS]>().read_volatile() };
            if words[0] != 0 {
                first = first.or_else(|| Some((*launch, faulty.error(BackendType::Cuda, words))));
                // SAFETY: a record has FAULT_WORDS words in the pinned memory, and no run of the recording is in the
                // queue.
                unsafe { self.record(index).write_bytes(0, FAULT_WORDS) };
            }
        }
        first
    }
}

/// The arguments of a program without the last one, the fault record's address; and the elements of its buffers.
pub(super) fn program_values(
    program: &Program,
    arguments: &[hologram_device::host::Argument<(u64, usize)>],
) -> (Vec<Value>, Vec<u32>) {
    let (mut values, mut elements) = (Vec::new(), Vec::new());
    for (param, argument) in program.params.iter().zip(arguments) {
        match (argument, param.kind) {
            (hologram_device::host::Argument::Slice((address, bytes)), ParamKind::Buffer { element, .. }) => {
                let len = u32::try_from(bytes / element.size()).unwrap_or(u32::MAX);
                values.extend([Value::Address(*address), Value::Word(len)]);
                elements.push(len);
            }
            (hologram_device::host::Argument::Scalar(word), kind) => {
                let wide = matches!(kind, ParamKind::Scalar(ty) if ty.is_wide());
                values.push(if wide { Value::Wide(*word) } else { Value::Word(*word as u32) });
                elements.push(0);
            }
            // The rules of the program's parameters were checked.
            (hologram_device::host::Argument::Slice(_), ParamKind::Scalar(_)) => elements.push(0),
        }
    }
    (values, elements)
}
