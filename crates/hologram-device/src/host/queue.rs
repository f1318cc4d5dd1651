//! A device's counters, and a debugging switch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::metrics::{MemoryMetrics, Metrics};

/// If set to 1, a GPU runs a list's launches one by one and waits for each. This identifies the launch that loses the
/// device.
pub const ONE_BY_ONE: &str = "HOLOGRAM_ONE_BY_ONE";

/// Whether [`ONE_BY_ONE`] is set to 1.
pub fn one_by_one() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| std::env::var(ONE_BY_ONE).is_ok_and(|value| value == "1"))
}

/// A device's counters, apart from its allocator's.
#[derive(Debug, Default)]
pub struct Counters {
    /// Launches.
    pub launches: AtomicU64,
    /// Command lists.
    pub submissions: AtomicU64,
    /// Nanoseconds of submissions.
    pub submitting: AtomicU64,
    /// Nanoseconds of waits.
    pub waiting: AtomicU64,
    /// Nanoseconds of copies from the host.
    pub writing: AtomicU64,
    /// Nanoseconds of copies to the host.
    pub reading: AtomicU64,
    /// Bytes copied from the host.
    pub to_device: AtomicU64,
    /// Bytes copied to the host.
    pub from_device: AtomicU64,
    /// Pipelines compiled.
    pub compiled: AtomicU64,
    /// Pipelines found compiled.
    pub hits: AtomicU64,
    /// Pipelines dropped for others.
    pub evicted: AtomicU64,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Adds the host's time in `work` to a counter of nanoseconds.
    pub fn timed<T>(nanoseconds: &AtomicU64, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Counts a submission and its time.
    pub fn submitted<T>(&self, work: impl FnOnce() -> T) -> T {
        Counters::add(&self.submissions, 1);
        Counters::timed(&self.submitting, work)
    }

    /// All counts, with the allocator's.
    pub fn metrics(&self, memory: MemoryMetrics) -> Metrics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |nanoseconds: &AtomicU64| Duration::from_nanos(get(nanoseconds));
        Metrics {
            launches: get(&self.launches),
            submissions: get(&self.submissions),
            time_submitting: time(&self.submitting),
            time_waiting: time(&self.waiting),
            time_to_device: time(&self.writing),
            time_from_device: time(&self.reading),
            bytes_to_device: get(&self.to_device),
            bytes_from_device: get(&self.from_device),
            pipelines_compiled: get(&self.compiled),
            pipeline_hits: get(&self.hits),
            pipelines_evicted: get(&self.evicted),
            memory,
        }
    }
}
