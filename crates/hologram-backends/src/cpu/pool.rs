//! Persistent worker threads, and the barrier at which they meet.
//!
//! The submitting thread is worker 0. A job is one closure that every worker runs from start to end, so a recorded list costs one
//! wake-up; within it the workers meet at a [`Team`]'s barrier. Idle workers spin for a moment, because the next submission of a
//! decoding loop comes soon, and then sleep.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker watches for the next job before it sleeps.
const IDLE_SPIN: Duration = Duration::from_micros(80);
/// Rounds of spinning at a barrier before the thread offers its core to others.
const BARRIER_SPINS: u32 = 4000;

/// What a job runs: called once on each worker with its index.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// Keeps a value on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Lines<T>(T);

struct Shared {
    /// Counts jobs; a worker starts when it changes. Stored under the lock of `sleepers`, so that no wake-up is lost.
    epoch: Lines<AtomicU64>,
    /// Spawned workers that have not finished the current job.
    running: Lines<AtomicUsize>,
    /// The current job; written while no worker runs.
    job: UnsafeCell<Option<*const Job<'static>>>,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `job` is written by the submitting thread while no worker runs (`running` is 0) and read after `epoch` was seen to
// change; the closure behind it is Sync and outlives the job, because `Workers::run` waits for `running` to become 0.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn sleepers(&self) -> MutexGuard<'_, usize> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        let sleepers = self.sleepers();
        self.epoch.0.fetch_add(1, Ordering::Release);
        if *sleepers > 0 {
            self.wake.notify_all();
        }
    }

    /// Waits until the epoch is not `seen` and returns it.
    fn next_epoch(&self, seen: u64) -> u64 {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let epoch = self.epoch.0.load(Ordering::Acquire);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > IDLE_SPIN {
                break;
            }
        }
        let mut sleepers = self.sleepers();
        *sleepers += 1;
        let mut epoch = self.epoch.0.load(Ordering::Acquire);
        while epoch == seen {
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
            epoch = self.epoch.0.load(Ordering::Acquire);
        }
        *sleepers -= 1;
        epoch
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the job was written before the epoch changed and stays until `running` is 0.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: the closure outlives the job. It does not unwind: kernels run under `catch_unwind`.
                unsafe { (*job)(index) };
            }
            self.running.0.fetch_sub(1, Ordering::Release);
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
            epoch: Lines::default(),
            running: Lines::default(),
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

    /// The number of workers, the submitting thread included.
    pub(crate) fn count(&self) -> usize {
        self.handles.len() + 1
    }

    /// Runs `job` once on every worker and waits for all. The job must not unwind on a spawned worker.
    pub(crate) fn run(&mut self, job: &Job<'_>) {
        if self.handles.is_empty() {
            return job(0);
        }
        /// Waits for the workers even when the job unwinds on this thread, because they hold a reference to it.
        struct Finish<'a>(&'a Shared);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                let mut spins = 0;
                while self.0.running.0.load(Ordering::Acquire) != 0 {
                    relax(&mut spins);
                }
            }
        }
        // SAFETY: only the lifetime changes; `Finish` waits until no worker uses the job any more.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no worker runs (`&mut self`, and the job before was waited for).
        unsafe { *self.shared.job.get() = Some(erased) };
        self.shared.running.0.store(self.handles.len(), Ordering::Relaxed);
        self.shared.announce();
        let _finish = Finish(&self.shared);
        job(0);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.announce();
        for handle in self.handles.drain(..) {
            // A worker that panicked has already printed why.
            let _ = handle.join();
        }
    }
}

/// Waits a moment: by spinning, and after a while by offering the core to other threads.
fn relax(spins: &mut u32) {
    if *spins < BARRIER_SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// The meeting point of the workers in one job: a barrier by generations, and the counter by which they divide a phase's work.
#[derive(Default)]
pub(crate) struct Team {
    count: usize,
    arrived: Lines<AtomicUsize>,
    generation: Lines<AtomicUsize>,
    counter: Lines<AtomicUsize>,
    /// A worker has failed.
    failed: AtomicBool,
    /// What `failed` was when the last worker arrived: the same answer for all.
    stopped: AtomicBool,
}

impl Team {
    pub(crate) fn new(count: usize) -> Team {
        Team { count, ..Team::default() }
    }

    /// The number of workers.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The current phase's counter.
    pub(crate) fn counter(&self) -> &AtomicUsize {
        &self.counter.0
    }

    /// Makes the next [`Team::meet`] answer `false` on every worker.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Waits for all workers, then starts a phase with the counter at 0. Whether to go on: `false` when any worker has failed.
    pub(crate) fn meet(&self) -> bool {
        if self.count == 1 {
            self.counter.0.store(0, Ordering::Relaxed);
            return !self.failed.load(Ordering::Relaxed);
        }
        // Read before arriving: the generation cannot change until this worker arrives.
        let generation = self.generation.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.counter.0.store(0, Ordering::Relaxed);
            self.stopped.store(self.failed.load(Ordering::Relaxed), Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
        } else {
            let mut spins = 0;
            while self.generation.0.load(Ordering::Acquire) == generation {
                relax(&mut spins);
            }
        }
        !self.stopped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_sees_what_the_others_did_before_the_barrier() {
        for count in [1, 2, 3] {
            let mut workers = Workers::new(count).unwrap();
            for _ in 0..50 {
                let team = Team::new(count);
                let cells: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                let claimed = AtomicUsize::new(0);
                let wrong = AtomicUsize::new(0);
                workers.run(&|index| {
                    for phase in 1..=20 {
                        cells[index].store(phase, Ordering::Relaxed);
                        while team.counter().fetch_add(1, Ordering::Relaxed) < 5 {
                            claimed.fetch_add(1, Ordering::Relaxed);
                        }
                        team.meet();
                        if cells.iter().any(|c| c.load(Ordering::Relaxed) != phase) {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        team.meet();
                    }
                });
                assert_eq!((wrong.into_inner(), claimed.into_inner()), (0, 100), "{count} workers");
            }
        }
    }

    #[test]
    fn a_failure_stops_every_worker_at_the_same_barrier() {
        for count in [1, 2, 3] {
            let mut workers = Workers::new(count).unwrap();
            let team = Team::new(count);
            let met = AtomicUsize::new(0);
            workers.run(&|index| {
                for phase in 0..10 {
                    if phase == 3 && index == count - 1 {
                        team.fail();
                    }
                    met.fetch_add(1, Ordering::Relaxed);
                    if !team.meet() {
                        return;
                    }
                }
            });
            assert_eq!(met.into_inner(), 4 * count);
        }
    }
}
