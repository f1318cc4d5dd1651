//! A device's counters.

use std::time::Duration;

/// Counters of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Kernels run.
    pub launches: u64,
    /// Command lists given to the queue.
    pub submissions: u64,
    /// Host time spent giving lists to the queue; on the CPU this is the time in which the kernels run.
    pub time_submitting: Duration,
    /// Host time spent waiting for the device to end its work. Times of single kernels come from
    /// [`Measure::profile`](crate::Measure::profile).
    pub time_waiting: Duration,
    /// Bytes copied from the host into buffers.
    pub bytes_to_device: u64,
    /// Host time of these copies.
    pub time_to_device: Duration,
    /// Bytes copied from buffers to the host.
    pub bytes_from_device: u64,
    /// Host time of these copies, with the wait for the work before them.
    pub time_from_device: Duration,
    /// Programs compiled.
    pub pipelines_compiled: u64,
    /// Compilations saved by the pipeline cache.
    pub pipeline_hits: u64,
    /// Compiled programs that the pipeline cache evicted.
    pub pipelines_evicted: u64,
    /// The allocator's figures.
    pub memory: MemoryMetrics,
}

/// Figures of a caching allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryMetrics {
    /// Bytes in buffers that are alive.
    pub live: u64,
    /// Bytes kept for reuse.
    pub cached: u64,
    /// The most bytes live at once.
    pub peak: u64,
    /// Allocations served from the cache.
    pub hits: u64,
    /// Allocations served by the system.
    pub misses: u64,
}
