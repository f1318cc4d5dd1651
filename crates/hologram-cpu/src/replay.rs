//! Recorded lists: launches with resolved memory, and the walk of the workers through them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hologram_device::host::{Allocator, HostMemory, Outcome, Use};
use hologram_device::{BackendError, BackendType, Buffer, KernelName, Result};
use hologram_isa::IsaError;

use super::exec::{Code, Launch, Machine};
use super::kernel::{Args, NativeKernel, RawSlice, SharedScratch, Worker};
use super::pool::{Progress, Workers};

/// The most bytes that the launches of a list use, and the most workgroups of a program, for which the submitting
/// thread does not wake the others.
const ALONE_BYTES: u64 = 32 << 10;
const ALONE_GROUPS: u64 = 16;

/// One launch, ready to run.
pub(crate) struct Step {
    /// The kernel's name.
    pub(crate) name: KernelName,
    /// The memory of its buffers.
    pub(crate) slices: Box<[RawSlice]>,
    pub(crate) work: Work,
}

/// The work of a step.
pub(crate) enum Work {
    Native(Arc<dyn NativeKernel>),
    Program {
        code: Arc<Code>,
        /// The words of the scalar parameters, in order.
        scalars: Box<[u64]>,
        grid: [u32; 3],
    },
}

impl Work {
    fn phases(&self) -> usize {
        match self {
            Work::Native(kernel) => kernel.phases(),
            Work::Program { .. } => 1,
        }
    }

    /// Workgroups of a program.
    fn groups(&self) -> u64 {
        match self {
            Work::Native(_) => 1,
            Work::Program { grid, .. } => grid.iter().map(|n| u64::from(*n)).product(),
        }
    }

    /// Bytes of scratch: shared by the workers, and per worker.
    fn scratch(&self) -> (usize, usize) {
        match self {
            Work::Native(kernel) => (kernel.shared_scratch(), kernel.worker_scratch()),
            Work::Program { code, .. } => (0, code.bytes()),
        }
    }
}

/// Contents of a [`CommandList`](hologram_device::CommandList) of the CPU.
pub(crate) struct Recording {
    steps: Vec<Step>,
    /// The phases of all steps in order, as (step, phase of the step).
    phases: Vec<(usize, usize)>,
    progress: Mutex<Progress>,
    /// The memory that the steps use, in their order.
    pub(crate) uses: Vec<Use>,
    /// The most scratch that a step requires, shared and per worker.
    pub(crate) scratch: (usize, usize),
    /// Whether the submitting thread runs the list without the others, because waking them takes longer.
    alone: bool,
    /// The allocator of the device that recorded the list; only that device may run it.
    pub(crate) allocator: Arc<Allocator>,
    /// Keeps the memory of the steps alive.
    _buffers: Vec<Buffer>,
}

impl Recording {
    pub(crate) fn new(allocator: &Arc<Allocator>, steps: Vec<Step>, uses: Vec<Use>, buffers: Vec<Buffer>) -> Recording {
        let scratch = steps.iter().map(|s| s.work.scratch()).fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let phases: Vec<_> =
            steps.iter().enumerate().flat_map(|(i, s)| (0..s.work.phases()).map(move |p| (i, p))).collect();
        let progress = Mutex::new(Progress::new(phases.len()));
        let bytes: u64 = uses.iter().map(|u| u.end - u.start).sum();
        let alone = bytes <= ALONE_BYTES && steps.iter().all(|s| s.work.groups() <= ALONE_GROUPS);
        Recording { steps, phases, progress, uses, scratch, alone, allocator: allocator.clone(), _buffers: buffers }
    }
}

/// Scratch memory of a device; grows to the size that the recorded lists require.
pub(crate) struct Scratch {
    shared: SharedScratch,
    /// Bytes of each worker's part, a multiple of the cache line's size.
    stride: usize,
    memory: Option<(HostMemory, HostMemory)>,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let none = RawSlice { data: std::ptr::dangling_mut::<u128>().cast(), bytes: 0 };
        Scratch { shared: SharedScratch(none.into()), stride: 0, memory: None }
    }

    /// Makes room for a list.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub(crate) fn reserve(
        &mut self,
        allocator: &Arc<Allocator>,
        (shared, own): (usize, usize),
        workers: usize,
    ) -> Result<()> {
        let has = self.shared.0.get_mut().bytes;
        if self.memory.is_some() && has >= shared && self.stride >= own {
            return Ok(());
        }
        let stride = own.max(self.stride).checked_next_multiple_of(128);
        let all = stride.and_then(|s| s.checked_mul(workers)).unwrap_or(usize::MAX);
        let shared = allocator.allocate(shared.max(has))?;
        let own = allocator.allocate(all)?;
        *self.shared.0.get_mut() = shared.raw();
        self.stride = all / workers;
        self.memory = Some((shared, own));
        Ok(())
    }

    /// The scratch memory of one worker.
    ///
    /// # Safety
    /// No two slices of one worker at the same time.
    #[expect(clippy::mut_from_ref, reason = "each worker has its own part")]
    unsafe fn of_worker(&self, index: usize) -> &mut [u8] {
        match &self.memory {
            Some((_, own)) => {
                // SAFETY: `reserve` allocated `stride` bytes per worker.
                let start = unsafe { own.raw().data.add(index * self.stride) };
                // SAFETY: they are initialised, and the caller promises exclusive use.
                unsafe { std::slice::from_raw_parts_mut(start, self.stride) }
            }
            None => &mut [],
        }
    }
}

/// Names of kernels, and the seconds of each.
type Times = Vec<(KernelName, f64)>;

/// The failure of the earliest step, and of the earliest piece of its work if that is known.
type FirstFailure = Mutex<Option<((usize, u64), BackendError)>>;

/// Runs all steps in order, each divided among the workers.
///
/// The first kernel that failed, and its error; later steps did not run.
/// The first kernel that failed, and its error; the steps after it did not run.
pub(crate) fn replay(workers: &mut Workers, scratch: &Scratch, list: &Recording) -> Outcome {
    let mut progress = list.progress.lock().unwrap_or_else(PoisonError::into_inner);
    progress.restart();
    walk(workers, scratch, list, &progress, &list.phases)
}

/// Runs the steps one by one. Returns the name and the seconds of each.
///
/// # Errors
/// As [`replay`].
pub(crate) fn profile(
    workers: &mut Workers,
    scratch: &Scratch,
    list: &Recording,
) -> std::result::Result<Times, (usize, BackendError)> {
    let mut step = |(i, step): (usize, &Step)| {
        let phases: Vec<_> = (0..step.work.phases()).map(|p| (i, p)).collect();
        let progress = Progress::new(phases.len());
        let start = Instant::now();
        walk(workers, scratch, list, &progress, &phases)?;
        Ok((step.name.clone(), start.elapsed().as_secs_f64()))
    };
    list.steps.iter().enumerate().map(&mut step).collect()
}

/// Runs phases of a list on all workers.
fn walk(
    workers: &mut Workers,
    scratch: &Scratch,
    list: &Recording,
    progress: &Progress,
    phases: &[(usize, usize)],
) -> Outcome {
    let count = workers.count();
    let first: FirstFailure = Mutex::new(None);
    let job = |index| {
        progress.take_part(|phase, counter| {
            // SAFETY: this worker's own part, borrowed once at a time.
            let own = unsafe { scratch.of_worker(index) };
            let mut worker = Worker { index, count, counter, shared: &scratch.shared, scratch: own };
            list.run_phase(phases[phase], &mut worker, &first)
        });
    };
    if list.alone {
        job(0);
    } else {
        workers.run(&job);
    }
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(((step, _), error)) => Err((step, error)),
        None => Ok(()),
    }
}

impl Recording {
    /// The number of launches.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Runs one worker's part of a phase. Returns whether it succeeded.
    fn run_phase(&self, (number, phase): (usize, usize), worker: &mut Worker<'_>, first: &FirstFailure) -> bool {
        let step = &self.steps[number];
        // A panic must reach the caller as the kernel's error: unwinding a worker would leave the others waiting for it
        // forever.
        let failure = match catch_unwind(AssertUnwindSafe(|| step.run(phase, worker))) {
            Ok(Ok(())) => return true,
            Ok(Err(failure)) => failure,
            Err(panic) => (0, kernel_error(step, format!("it panicked: {}", panic_text(&*panic)))),
        };
        let (piece, error) = failure;
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(order, _)| (number, piece) < *order) {
            *first = Some(((number, piece), error));
        }
        false
    }
}

impl Step {
    /// Runs one worker's part; a failure comes with the piece of work that failed.
    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> std::result::Result<(), (u64, BackendError)> {
        match &self.work {
            Work::Native(kernel) => {
                // SAFETY: range, alignment and overlaps were checked when the launch was recorded; the recording keeps
                // the buffers alive. The device's queue is held, so that only its workers, which run this step, access
                // the device's memory.
                let args = unsafe { Args::new(&self.slices) };
                kernel.run(phase, &args, worker).map_err(|reason| (0, kernel_error(self, reason)))
            }
            Work::Program { code, scalars, grid } => {
                let launch = Launch { code, slices: &self.slices, scalars, grid: *grid };
                run_program(&launch, worker).map_err(|(group, error)| (group, error.into()))
            }
        }
    }
}

/// Runs workgroups, a few at a time, until none is left. Workgroups are claimed in order and a worker finishes those
/// that it has claimed, so the first one that fails is always run, whatever the number of workers.
fn run_program(launch: &Launch<'_>, worker: &mut Worker<'_>) -> std::result::Result<(), (u64, IsaError)> {
    let groups = launch.grid.iter().map(|n| *n as u64).product::<u64>();
    let pieces = (worker.count * 16) as u64;
    let piece = groups.div_ceil(pieces.max(1)).max(1);
    let pieces = groups.div_ceil(piece) as usize;
    let mut machine = None;
    while let Some(index) = worker.next(pieces) {
        let machine = machine.get_or_insert_with(|| {
            // SAFETY: the scratch memory is this worker's own during the phase, which `machine` does not outlive.
            let arena = unsafe { std::slice::from_raw_parts_mut(worker.scratch.as_mut_ptr(), worker.scratch.len()) };
            Machine::new(launch, arena)
        });
        let first = index as u64 * piece;
        for group in first..(first + piece).min(groups) {
            machine.run_group(group).map_err(|error| (group, error))?;
        }
    }
    Ok(())
}

fn kernel_error(step: &Step, reason: String) -> BackendError {
    BackendError::Kernel { device: BackendType::Cpu.to_string(), kernel: step.name.to_string(), reason }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}
