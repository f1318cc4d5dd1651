//! The caching allocator of every device: freed blocks are kept by size class and serve later buffers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::failures::Failures;
use crate::error::{BackendError, Result};
use crate::info::BackendType;
use crate::metrics::MemoryMetrics;

/// Where an allocator's blocks come from.
pub trait Source: Send + Sync + 'static {
    /// Memory of one size class; dropping it gives it back to the system.
    type Block: Send + Sync;

    /// The size that an allocation of this many bytes (at least 1) is rounded to; `None` when it overflows.
    fn class(&self, bytes: usize) -> Option<usize>;

    /// A block of this size class; `None` when the system has none.
    fn allocate(&self, class: usize) -> Option<Self::Block>;

    /// The address of a block's first byte.
    fn start(&self, block: &Self::Block) -> u64;

    /// The most bytes kept for reuse; beyond it, freed blocks go back to the system.
    fn max_cached(&self) -> u64;

    /// Bytes that the system has free, if it reports them.
    fn free(&self) -> Option<u64>;
}

/// Rounds up to steps of an eighth, at least `least` and at most 2 MiB.
pub fn size_class(bytes: usize, least: usize) -> Option<usize> {
    let step = (bytes.checked_next_power_of_two()? / 16).clamp(least, 2 << 20);
    bytes.checked_next_multiple_of(step)
}

/// A caching allocator by size class.
pub struct CachingAllocator<S: Source> {
    source: S,
    device: BackendType,
    cap: Option<u64>,
    failures: Arc<Failures>,
    state: Mutex<State<S::Block>>,
}

struct State<B> {
    free: BTreeMap<usize, Vec<B>>,
    metrics: MemoryMetrics,
}

impl<S: Source> CachingAllocator<S> {
    /// An allocator whose live and cached bytes together stay within `cap`.
    pub fn with_source(source: S, device: BackendType, cap: Option<u64>) -> Arc<CachingAllocator<S>> {
        let state = State { free: BTreeMap::new(), metrics: MemoryMetrics::default() };
        Arc::new(CachingAllocator { source, device, cap, failures: Arc::default(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State<S::Block>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind of device.
    pub fn device(&self) -> BackendType {
        self.device
    }

    /// Which of the device's bytes have failed.
    pub fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    /// Bytes in use and kept.
    pub fn metrics(&self) -> MemoryMetrics {
        self.state().metrics
    }

    /// A block of at least this many bytes, which must not be 0.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]: the cap is reached, or the system failed even after the cache was freed.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Allocated<S>> {
        let mut state = self.state();
        let state = &mut *state;
        let class = self.source.class(bytes).ok_or_else(|| self.refuse(bytes, &state.metrics, "the size overflows"))?;
        let cached = state.free.get_mut(&class).and_then(Vec::pop);
        let block = match cached {
            Some(block) => {
                state.metrics.hits += 1;
                state.metrics.cached -= class as u64;
                block
            }
            None => {
                let room = |m: &MemoryMetrics| {
                    let used = m.live.saturating_add(m.cached).saturating_add(class as u64);
                    self.cap.is_none_or(|cap| used <= cap)
                };
                if !room(&state.metrics) {
                    state.drop_cache();
                }
                if !room(&state.metrics) {
                    return Err(self.refuse(bytes, &state.metrics, "the memory cap is reached"));
                }
                let block = self.source.allocate(class).or_else(|| {
                    state.drop_cache();
                    self.source.allocate(class)
                });
                state.metrics.misses += 1;
                block.ok_or_else(|| self.refuse(bytes, &state.metrics, "the system refused"))?
            }
        };
        state.metrics.live += class as u64;
        state.metrics.peak = state.metrics.peak.max(state.metrics.live);
        Ok(Allocated { class, block: Some(block), allocator: self.clone() })
    }

    fn release(&self, class: usize, block: S::Block) {
        let start = self.source.start(&block);
        self.failures.clear(start..start + class as u64);
        let mut state = self.state();
        state.metrics.live -= class as u64;
        if state.metrics.cached + class as u64 <= self.source.max_cached() {
            state.metrics.cached += class as u64;
            state.free.entry(class).or_default().push(block);
        }
    }

    fn refuse(&self, bytes: usize, metrics: &MemoryMetrics, why: &str) -> BackendError {
        let free = self.source.free().map(|free| format!(", {free} free")).unwrap_or_default();
        let cap = self.cap.map(|cap| format!(", the cap is {cap}")).unwrap_or_default();
        BackendError::OutOfMemory {
            device: self.device.to_string(),
            bytes,
            reason: format!("{why}; {} bytes are live, {} cached{free}{cap}", metrics.live, metrics.cached),
        }
    }
}

impl<B> State<B> {
    fn drop_cache(&mut self) {
        self.free.clear();
        self.metrics.cached = 0;
    }
}

/// A block in use; dropping it gives it back to its allocator.
pub struct Allocated<S: Source> {
    class: usize,
    block: Option<S::Block>,
    allocator: Arc<CachingAllocator<S>>,
}

impl<S: Source> Allocated<S> {
    /// The block; it is there until the drop.
    pub fn block(&self) -> Option<&S::Block> {
        self.block.as_ref()
    }
}

impl<S: Source> Drop for Allocated<S> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.allocator.release(self.class, block);
        }
    }
}
