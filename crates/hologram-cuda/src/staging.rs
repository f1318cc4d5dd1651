//! Large copies between pageable host memory and the device, through two pinned halves: while the device copies one,
//! the host fills or empties the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_device::Result;

use super::context::{Context, CudaEvent, Pinned, Stream};
use super::memory::Usage;
use super::queue::Queue;

/// Bytes per half.
const CHUNK: usize = 16 << 20;
/// Host threads that fill a half together, and the size from which they do: one thread is slower than the bus.
const THREADS: usize = 4;
const SHARED_FROM: usize = 2 << 20;

/// A stream of its own with its pinned halves, made at the first use.
pub(super) struct Staging {
    context: Arc<Context>,
    lane: Mutex<Option<Lane>>,
}

struct Lane {
    stream: Stream,
    halves: [Pinned; 2],
    free: [CudaEvent; 2],
}

impl Staging {
    pub(super) fn new(context: &Arc<Context>) -> Staging {
        Staging { context: context.clone(), lane: Mutex::new(None) }
    }

    fn lane(&self) -> Result<MutexGuard<'_, Option<Lane>>> {
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if lane.is_none() {
            let half = || Pinned::new(&self.context, CHUNK);
            let free = || CudaEvent::new(&self.context, false);
            *lane = Some(Lane {
                stream: Stream::new(&self.context)?,
                halves: [half()?, half()?],
                free: [free()?, free()?],
            });
        }
        Ok(lane)
    }

    /// Copies host bytes to the device concurrently with the queue, ordered after earlier uses of the block and before
    /// later ones.
    pub(super) fn upload(&self, queue: &Mutex<Queue>, address: u64, usages: &[Arc<Usage>], data: &[u8]) -> Result<()> {
        let lane = self.lane()?;
        let Some(lane) = &*lane else { return Ok(()) };
        let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = lock().before_upload(usages);
        if let Some((events, index)) = before {
            lane.stream.wait_for(&events[index])?;
        }
        let driver = self.context.driver;
        for (i, chunk) in data.chunks(CHUNK).enumerate() {
            let (half, free) = (&lane.halves[i % 2], &lane.free[i % 2]);
            free.synchronize()?;
            // SAFETY: the half is CHUNK bytes and the device has passed the last copy from it.
            let place = unsafe { std::slice::from_raw_parts_mut(half.raw.cast::<u8>(), chunk.len()) };
            fill(place, chunk);
            let to = address + (i * CHUNK) as u64;
            // SAFETY: the range was checked; the half is not written before the event after this copy.
            let code = unsafe { (driver.cuMemcpyHtoDAsync_v2)(to, half.raw, chunk.len(), lane.stream.raw) };
            self.context.check(code, || format!("copying {} bytes to the device", chunk.len()))?;
            free.record(&lane.stream)?;
        }
        lock().after_upload(usages, &lane.stream)
    }

    /// Copies device bytes to the host, after everything in the queue.
    pub(super) fn download(
        &self,
        queue: &Mutex<Queue>,
        address: u64,
        usages: &[Arc<Usage>],
        data: &mut [u8],
    ) -> Result<()> {
        let lane = self.lane()?;
        let Some(lane) = &*lane else { return Ok(()) };
        let driver = self.context.driver;
        let mut waiting: Option<(usize, &mut [u8])> = None;
        let finish = |(half, to): (usize, &mut [u8])| -> Result<()> {
            lane.free[half].synchronize()?;
            // SAFETY: the half is CHUNK bytes, which the device has written.
            fill(to, unsafe { std::slice::from_raw_parts(lane.halves[half].raw.cast::<u8>(), to.len()) });
            Ok(())
        };
        for (i, chunk) in data.chunks_mut(CHUNK).enumerate() {
            let half = i % 2;
            lane.free[half].synchronize()?;
            let from = address + (i * CHUNK) as u64;
            queue.lock().unwrap_or_else(PoisonError::into_inner).enqueue(usages.iter(), |stream| {
                // SAFETY: the range was checked; the half is read after the event behind this copy.
                let code =
                    unsafe { (driver.cuMemcpyDtoHAsync_v2)(lane.halves[half].raw, from, chunk.len(), stream.raw) };
                self.context.check(code, || format!("copying {} bytes from the device", chunk.len()))?;
                lane.free[half].record(stream)
            })?;
            if let Some(last) = waiting.replace((half, chunk)) {
                finish(last)?;
            }
        }
        waiting.map_or(Ok(()), finish)
    }
}

/// Copies bytes; large copies use several threads.
fn fill(to: &mut [u8], from: &[u8]) {
    if from.len() < SHARED_FROM {
        return to.copy_from_slice(from);
    }
    let part = from.len().div_ceil(THREADS);
    let whole = std::thread::scope(|scope| {
        let copy = |(to, from): (&mut [u8], &[u8])| to.copy_from_slice(from);
        let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || copy(part)).is_ok();
        to.chunks_mut(part).zip(from.chunks(part)).all(start)
    });
    if !whole {
        // The system provided no thread.
        to.copy_from_slice(from);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The device may still read the halves.
        let _ = self.stream.synchronize();
    }
}
