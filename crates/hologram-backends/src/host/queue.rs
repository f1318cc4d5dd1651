//! The state of a queue that runs work at once: its sticky error, its events, and the device's counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{BackendType, Event};
use crate::error::{BackendError, Result};
use crate::metrics::{MemoryMetrics, Metrics};

/// The queue's error, if a kernel failed and nobody has been told, and the number of submissions.
#[derive(Debug, Default)]
pub(crate) struct Sticky {
    error: Option<BackendError>,
    submitted: u64,
}

impl Sticky {
    /// Runs work unless an error is waiting to be reported; its failure becomes the sticky error.
    pub(crate) fn run(&mut self, work: impl FnOnce() -> Result<()>) -> Event {
        self.submitted += 1;
        if self.error.is_none() {
            self.error = work().err();
        }
        Event(self.submitted)
    }

    /// Reports the sticky error, once.
    pub(crate) fn take(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Waits for an event: work is done when submitted, so this only reports the error.
    pub(crate) fn wait(&mut self, device: BackendType, event: Event) -> Result<()> {
        if event.0 > self.submitted {
            return Err(BackendError::InvalidArgument {
                device: device.to_string(),
                operation: "wait".into(),
                reason: format!("event {} was never submitted to this device", event.0),
            });
        }
        self.take()
    }
}

/// What a device counts, apart from its allocator.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) launches: AtomicU64,
    pub(crate) to_device: AtomicU64,
    pub(crate) from_device: AtomicU64,
    pub(crate) compiled: AtomicU64,
    pub(crate) hits: AtomicU64,
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
            memory,
        }
    }
}
