//! Persistent worker threads, and the phases that they pass through together.
//!
//! The submitting thread is worker 0. A job is one closure that the workers run from start to end, so a recorded list
//! costs one wake-up; within it they pass through phases together ([`Progress`]). Idle workers spin for a moment,
//! because the next submission of a decoding loop comes soon, and then sleep.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::openmp::OpenMp;

/// The time that an idle worker spins for the next job before it sleeps.
const IDLE_SPIN: Duration = Duration::from_micros(80);
/// Spins at the end of a phase before the thread yields its core to others.
const BARRIER_SPINS: u32 = 4000;

/// The closure of a job: called once on each worker that takes part, with its index.
pub(crate) type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// Keeps a value on its own cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Lines<T>(T);

/// The parts of the gate: the number of workers inside the current job, whether it still accepts workers, and the
/// number of jobs so far.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const JOB: u64 = 1 << 17;

struct Shared {
    /// The number of jobs so far, whether the current one is open, and how many spawned workers are inside it. The
    /// number of jobs changes under the lock of `sleepers`, so that no wake-up is lost.
    gate: Lines<AtomicU64>,
    /// The current job; written while the gate is closed and nobody is inside.
    job: UnsafeCell<Option<*const Job<'static>>>,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `job` is written by the submitting thread while the gate is closed and empty, and read by workers that
// entered through the open gate. The closure behind it is Sync and outlives the job, because `Workers::run` closes the
// gate and waits until it is empty.
unsafe impl Sync for Shared {}
// SAFETY: the closure is Sync, so that it may be called from the thread that the state is sent to.
unsafe impl Send for Shared {}

impl Shared {
    fn sleepers(&self) -> MutexGuard<'_, usize> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Increments the number of jobs, and opens the gate or leaves it closed.
    fn announce(&self, open: u64) {
        let sleepers = self.sleepers();
        let jobs = self.gate.0.load(Ordering::Relaxed) / JOB;
        self.gate.0.store(((jobs + 1) * JOB) | open, Ordering::Release);
        if *sleepers > 0 {
            self.wake.notify_all();
        }
    }

    /// Waits for a job other than `seen` and returns its number.
    fn next_job(&self, seen: u64) -> u64 {
        let job = || self.gate.0.load(Ordering::Acquire) / JOB;
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                if job() != seen {
                    return job();
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > IDLE_SPIN {
                break;
            }
        }
        let mut sleepers = self.sleepers();
        *sleepers += 1;
        while job() == seen {
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
        *sleepers -= 1;
        job()
    }

    /// Enters a job through the gate; `false` if it is closed already.
    fn enter(&self, job: u64) -> bool {
        let mut gate = self.gate.0.load(Ordering::Acquire);
        while gate / JOB == job && gate & OPEN != 0 {
            match self.gate.0.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_job(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if !self.enter(seen) {
                continue;
            }
            // SAFETY: the job was written before the gate was opened and stays until nobody is inside.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: the closure outlives the job. It does not unwind: kernels run under `catch_unwind`.
                unsafe { (*job)(index) };
            }
            self.gate.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// The threads that run a device's work.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Workers {
    /// `count` workers: `count - 1` new threads and the thread that submits.
    ///
    /// # Errors
    /// The system's, when a thread cannot be started.
    pub(crate) fn new(count: usize) -> std::io::Result<Workers> {
        let shared = Arc::new(Shared {
            gate: Lines::default(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
        });
        let mut workers = Workers { shared, handles: Vec::new() };
        for index in 1..count {
            let shared = workers.shared.clone();
            let thread = std::thread::Builder::new().name(format!("hologram-cpu-{index}"));
            workers.handles.push(thread.spawn(move || shared.work(index))?);
        }
        Ok(workers)
    }

    /// The number of workers, including the submitting thread.
    pub(crate) fn count(&self) -> usize {
        self.handles.len() + 1
    }

    /// Runs `job` here and on every worker that comes in time, or on threads that are lent to this one ([`OpenMp`]);
    /// returns when nobody runs it any more. So the job must be complete when it returns on this thread, whichever
    /// workers take part, and must not unwind on another.
    pub(crate) fn run(&mut self, job: &Job<'_>) {
        if self.handles.is_empty() {
            return job(0);
        }
        if let Some(openmp) = OpenMp::current() {
            return openmp.run(self.count(), job);
        }
        /// Waits for the workers even when the job unwinds on this thread, because they hold a reference to it.
        struct Finish<'a>(&'a Shared);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                self.0.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
                let mut spins = 0;
                while self.0.gate.0.load(Ordering::Acquire) & INSIDE != 0 {
                    relax(&mut spins);
                }
            }
        }
        // SAFETY: only the lifetime changes; `Finish` waits until no worker uses the job any more.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: the gate is closed and nobody is inside (`&mut self`; the previous job has ended).
        unsafe { *self.shared.job.get() = Some(erased) };
        self.shared.announce(OPEN);
        let _finish = Finish(&self.shared);
        job(0);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.announce(0);
        for handle in self.handles.drain(..) {
            // A worker that panicked has already printed the reason.
            let _ = handle.join();
        }
    }
}

/// Waits a moment: spins at first, later yields the core to other threads.
fn relax(spins: &mut u32) {
    if *spins < BARRIER_SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// The progress of the workers of one job. A job is a sequence of phases, each divided into pieces that workers claim.
/// A phase is over when no piece is left and nobody is inside it. So a worker that comes late, or that the system
/// suspends, delays nobody unless it is inside: the others do its work.
pub(crate) struct Progress {
    /// The current phase, and how many workers are inside it (the low 16 bits).
    state: Lines<AtomicU64>,
    /// For each phase, the pieces claimed.
    counters: Box<[AtomicUsize]>,
    failed: AtomicBool,
}

impl Progress {
    pub(crate) fn new(phases: usize) -> Progress {
        let counters = (0..phases).map(|_| AtomicUsize::new(0)).collect();
        Progress { state: Lines::default(), counters, failed: AtomicBool::new(false) }
    }

    /// Resets all phases.
    pub(crate) fn restart(&mut self) {
        *self.state.0.get_mut() = 0;
        *self.failed.get_mut() = false;
        self.counters.iter_mut().for_each(|c| *c.get_mut() = 0);
    }

    /// Takes part in all phases from the current one on, until the last is over or one has failed. Calls `run` once per
    /// phase with the phase and its counter; `run` claims pieces until none is left, and returns whether all succeeded.
    pub(crate) fn take_part(&self, mut run: impl FnMut(usize, &AtomicUsize) -> bool) {
        let phases = self.counters.len() as u64;
        let mut spins = 0;
        let mut done = None;
        loop {
            let state = self.state.0.load(Ordering::Acquire);
            let phase = state >> 16;
            let Some(counter) = self.counters.get(phase as usize) else { return };
            if done == Some(phase) {
                relax(&mut spins);
                continue;
            }
            if self.state.0.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            if !run(phase as usize, counter) {
                self.failed.store(true, Ordering::Relaxed);
            }
            (done, spins) = (Some(phase), 0);
            let left = self.state.0.fetch_sub(1, Ordering::AcqRel) - 1;
            if left & 0xffff == 0 {
                let next = if self.failed.load(Ordering::Relaxed) { phases } else { phase + 1 };
                // If this fails, another worker has entered meanwhile and will end the phase.
                let _ = self.state.0.compare_exchange(left, next << 16, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn every_phase_sees_all_of_the_phases_before() {
        const PHASES: usize = 40;
        const PIECES: usize = 7;
        // Miri is some thousand times slower.
        const JOBS: usize = if cfg!(miri) { 3 } else { 200 };
        for count in [1, 2, 3, 8] {
            let mut workers = Workers::new(count).unwrap();
            let mut progress = Progress::new(PHASES);
            for _ in 0..JOBS {
                progress.restart();
                let finished: Vec<AtomicUsize> = (0..PHASES).map(|_| AtomicUsize::new(0)).collect();
                let wrong = AtomicUsize::new(0);
                let job = |_: usize| {
                    progress.take_part(|phase, counter| {
                        while counter.fetch_add(1, Ordering::Relaxed) < PIECES {
                            if phase > 0 && finished[phase - 1].load(Ordering::Relaxed) != PIECES {
                                wrong.fetch_add(1, Ordering::Relaxed);
                            }
                            finished[phase].fetch_add(1, Ordering::Relaxed);
                        }
                        true
                    });
                };
                workers.run(&job);
                assert!(finished.iter().all(|f| f.load(Ordering::Relaxed) == PIECES), "{count} workers");
                assert_eq!(wrong.into_inner(), 0, "{count} workers");
            }
        }
    }

    pub(crate) fn a_failure_ends_the_job_after_its_phase() {
        for count in [1, 2, 3] {
            let mut workers = Workers::new(count).unwrap();
            let progress = Progress::new(10);
            let last = AtomicUsize::new(0);
            workers.run(&|_| {
                progress.take_part(|phase, counter| {
                    last.fetch_max(phase, Ordering::Relaxed);
                    phase != 3 || counter.fetch_add(1, Ordering::Relaxed) > 0
                });
            });
            assert_eq!(last.into_inner(), 3);
        }
    }
}
