//! A device's counters.

/// Counters of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Kernels run.
    pub launches: u64,
    /// Bytes copied from the host into buffers.
    pub bytes_to_device: u64,
    /// Bytes copied from buffers to the host.
    pub bytes_from_device: u64,
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
