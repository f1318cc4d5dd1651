//! Waiting that Ctrl-C ends: Python delivers signals only to code that asks for them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use hologram_backends::BackendType;
use hologram_core::Executor;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::Result;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a wait ignores signals.
const TICK: Duration = Duration::from_millis(40);

/// The number of works that run on after Ctrl-C ended the wait for them. A device finishes them before it takes others.
static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// Who came first: the end of the work or of the wait for it.
#[derive(Default)]
struct Ended(AtomicBool);

impl Ended {
    /// Notes one of the ends, and returns whether it is the second.
    fn second(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }
}

/// The result of work on another thread. After Ctrl-C the work runs on, and its result is dropped.
pub fn interruptible<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let result = Arc::new(Mutex::new(None));
    let of_work = result.clone();
    on_thread(py, Box::new(move || *lock(&of_work) = Some(work())))?;
    let result = lock(&result).take();
    result.ok_or_else(|| PyRuntimeError::new_err("a thread of hologram ended without a result").into())
}

/// Waits for work on another thread, or for Ctrl-C. Compiled once, not for each kind of work.
fn on_thread(py: Python<'_>, work: Box<dyn FnOnce() + Send>) -> Result<()> {
    let (sender, receiver) = sync_channel(1);
    let ended = Arc::new(Ended::default());
    let of_work = ended.clone();
    let thread = std::thread::Builder::new().name("hologram-work".into());
    thread
        .spawn(move || {
            work();
            let _ = sender.send(());
            if of_work.second() {
                ABANDONED.fetch_sub(1, Ordering::Relaxed);
            }
        })
        .map_err(|e| PyRuntimeError::new_err(format!("no thread can be started: {e}")))?;
    let receiver = Mutex::new(receiver);
    loop {
        match py.detach(|| lock(&receiver).recv_timeout(TICK)) {
            // Work that panicked leaves no result.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = py.check_signals() {
                    ABANDONED.fetch_add(1, Ordering::Relaxed);
                    if ended.second() {
                        ABANDONED.fetch_sub(1, Ordering::Relaxed);
                    }
                    return Err(interrupt.into());
                }
            }
        }
    }
}

/// Steps of work, such as additions, up to which a thread does not start another for it: some milliseconds.
const SHORT: usize = 1 << 24;

/// Submissions that a GPU may be behind while a call submits more on its own thread. So many keep the GPU busy until
/// another thread has started, on a busy machine a millisecond or two, and leave room in the queue and for uploads.
const AHEAD: u64 = 32;

/// Whether the host computes.
fn is_host(executor: &Executor) -> bool {
    matches!(executor.info().backend, BackendType::Cpu | BackendType::Reference)
}

/// Whether work of so many steps is worth a thread, so that Ctrl-C ends the wait for it: it is long work of the host,
/// or waits for abandoned work or for a GPU that is behind, for room in its queue, for memory, or to load a kernel.
pub fn is_long(executor: &Executor, steps: usize) -> bool {
    if ABANDONED.load(Ordering::Relaxed) > 0 {
        return true;
    }
    match is_host(executor) {
        true => steps > SHORT,
        false => is_behind(executor, AHEAD),
    }
}

/// Whether a GPU has more unfinished submissions than these. A lost one has none: the next call says so.
pub fn is_behind(executor: &Executor, submissions: u64) -> bool {
    executor.backend().is_behind(submissions).unwrap_or(false)
}

/// Forgets abandoned work, whose threads stayed with the parent of a fork.
pub fn forked() {
    ABANDONED.store(0, Ordering::Relaxed);
}

/// The result of work of so many steps. Ctrl-C ends the wait for long work of the host and for a GPU that is behind.
pub fn worked<T: Send + 'static>(
    py: Python<'_>,
    executor: &Executor,
    steps: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if is_long(executor, steps) { interruptible(py, work) } else { Ok(py.detach(work)) }
}

/// How long a thread asks a device whether it is idle before another thread waits for it: less than starting one takes.
const SOON: Duration = Duration::from_micros(50);

/// Whether the device finishes its work at once.
fn is_soon_idle(executor: &Executor) -> bool {
    let until = Instant::now() + SOON;
    while is_behind(executor, 0) {
        if Instant::now() > until {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// The result of work of so many steps that waits for the device. Ctrl-C ends the wait for it.
pub fn awaited<T: Send + 'static>(
    py: Python<'_>,
    executor: &Executor,
    steps: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let is_short = || steps <= SHORT && py.detach(|| is_soon_idle(executor));
    if is_long(executor, steps) || !(is_host(executor) || is_short()) {
        return interruptible(py, work);
    }
    Ok(py.detach(work))
}

/// Looks for Ctrl-C now and then in a loop over Python's objects.
#[derive(Default)]
pub struct Ticks(u32);

impl Ticks {
    /// Counts an object.
    pub fn tick(&mut self, py: Python<'_>) -> PyResult<()> {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(1 << 16) { py.check_signals() } else { Ok(()) }
    }
}

/// Steps of sorting so many elements.
pub fn of_sorting(elements: usize) -> usize {
    elements.saturating_mul(elements.max(2).ilog2() as usize)
}

/// Wakes one waiting thread.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    condition: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *lock(&self.rung) = true;
        self.condition.notify_all();
    }
}

impl Bell {
    /// As a waker for a future or a stream.
    pub fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Waits for the bell or a tick.
    pub fn wait(&self) {
        let rung = lock(&self.rung);
        let (mut rung, _) =
            self.condition.wait_timeout_while(rung, TICK, |rung| !*rung).unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}
