//! The device's counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{MemoryMetrics, Metrics};

/// What a device counts, apart from its allocator.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) launches: AtomicU64,
    pub(crate) to_device: AtomicU64,
    pub(crate) from_device: AtomicU64,
    pub(crate) compiled: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn metrics(&self, memory: MemoryMetrics) -> Metrics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Metrics {
            launches: get(&self.launches),
            bytes_to_device: get(&self.to_device),
            bytes_from_device: get(&self.from_device),
            pipelines_compiled: get(&self.compiled),
            pipeline_hits: get(&self.hits),
            pipelines_evicted: get(&self.evicted),
            memory,
        }
    }
}
