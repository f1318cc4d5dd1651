//! The queue: one stream of launches and copies in order, a second stream of uploads, and the failures in them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hologram_device::host::Failures;
use hologram_device::{BackendError, BackendType, Buffer, Result};

use super::context::{Context, CudaEvent, Pinned, Stream};
use super::memory::{CudaMemory, Usage};
use super::record::{LOST, Recording};

/// Events of the last submissions; a wait for an older submission uses the oldest of these.
const EVENTS: u64 = 256;
/// Events of the last uploads.
const UPLOAD_EVENTS: u64 = 64;
/// Submissions that may be unreported before a new one waits.
const MAX_RUNNING: usize = 4096;
/// Slots of the ring for small writes, and their bytes.
const SLOTS: usize = 32;
pub(super) const SLOT: usize = 128 << 10;

/// An operation whose outcome decides which bytes have failed, known once the device has passed it.
pub(super) enum Running {
    /// Consecutive submissions of a recording: the first and the last.
    Recording { first: u64, last: u64, recording: Arc<Recording> },
    /// The host wrote to bytes that an earlier recording writes.
    Written { number: u64, bytes: Range<u64> },
    /// A copy between buffers.
    Copied { number: u64, from: u64, to: u64, bytes: u64 },
}

impl Running {
    fn last(&self) -> u64 {
        match self {
            Running::Recording { last: number, .. }
            | Running::Written { number, .. }
            | Running::Copied { number, .. } => *number,
        }
    }

    fn recording(&self) -> Option<&Arc<Recording>> {
        match self {
            Running::Recording { recording, .. } => Some(recording),
            _ => None,
        }
    }
}

/// How far the device is.
pub(super) struct Progress {
    /// Of the last submissions, by number modulo their count.
    events: Arc<[CudaEvent]>,
    submitted: AtomicU64,
    /// The device has passed this submission.
    completed: AtomicU64,
}

impl Progress {
    /// Whether more than this many submissions, fewer than [`EVENTS`], are unfinished.
    ///
    /// # Errors
    /// A lost device.
    pub(super) fn is_behind(&self, submissions: u64) -> Result<bool> {
        let number = self.submitted.load(Ordering::Acquire).saturating_sub(submissions);
        if number <= self.completed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let event = &self.events[(number % EVENTS) as usize];
        event.context.enter()?;
        event.has_passed().map(|passed| !passed)
    }
}

/// The state of the queue; the backend holds it under a lock.
pub(super) struct Queue {
    context: Arc<Context>,
    pub(super) compute: Stream,
    progress: Arc<Progress>,
    uploads: u64,
    upload_events: Arc<[CudaEvent]>,
    /// The compute stream already waits for uploads up to this one.
    uploads_ordered: u64,
    failures: Arc<Failures>,
    /// Submitted work, in order, that nobody has waited for yet.
    running: VecDeque<Running>,
    ring: Pinned,
    /// The submission that last read each slot.
    slots: [u64; SLOTS],
    next_slot: usize,
}

// SAFETY: the pinned memory's address is used only under the backend's lock.
unsafe impl Send for Queue {}

fn events(context: &Arc<Context>, count: u64) -> Result<Arc<[CudaEvent]>> {
    (0..count).map(|_| CudaEvent::new(context, false)).collect()
}

impl Queue {
    pub(super) fn new(context: &Arc<Context>, failures: &Arc<Failures>) -> Result<Queue> {
        let (submitted, completed) = Default::default();
        let progress = Arc::new(Progress { events: events(context, EVENTS)?, submitted, completed });
        Ok(Queue {
            context: context.clone(),
            compute: Stream::new(context)?,
            progress,
            uploads: 0,
            upload_events: events(context, UPLOAD_EVENTS)?,
            uploads_ordered: 0,
            failures: failures.clone(),
            running: VecDeque::with_capacity(64),
            ring: Pinned::new(context, SLOTS * SLOT)?,
            slots: [0; SLOTS],
            next_slot: 0,
        })
    }

    /// Puts work into the compute stream, after the uploads to the memory that it uses; returns its number.
    ///
    /// # Errors
    /// Those that the driver reports at once; the work then has no number.
    pub(super) fn enqueue<'a>(
        &mut self,
        usages: impl Iterator<Item = &'a Arc<Usage>>,
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<u64> {
        let number = self.last() + 1;
        let upload = usages.map(|usage| usage.touch(number)).max().unwrap_or(0);
        if upload > self.uploads_ordered {
            self.compute.wait_for(&self.upload_events[(upload % UPLOAD_EVENTS) as usize])?;
            self.uploads_ordered = upload;
        }
        let done = work(&self.compute);
        let recorded = self.event(number).record(&self.compute);
        // The number is used up even after a failure: part of the work may be in the stream.
        self.progress.submitted.store(number, Ordering::Release);
        // The work's error is more specific than that of a stream which it made unusable.
        done.and(recorded).map(|()| number)
    }

    /// Takes out what nobody needs any more: recordings that the device has passed, and the buffers of the last one if
    /// only the queue keeps it. Their memory serves other buffers at once, because these are used in the same order.
    /// Memory of another library stays until the device has passed it. The caller drops all without the queue's lock.
    ///
    /// # Errors
    /// A lost device.
    pub(super) fn reclaim(&mut self) -> Result<(Vec<Running>, Vec<Buffer>)> {
        let own = |buffer: &Buffer| !buffer.downcast::<CudaMemory>().is_some_and(CudaMemory::is_foreign);
        let buffers = match self.running.back_mut() {
            Some(Running::Recording { recording, .. }) => {
                Arc::get_mut(recording).map(|recording| recording.buffers.extract_if(.., |b| own(b)).collect())
            }
            _ => None,
        };
        let (mut passed, mut completed) = (0, self.completed());
        for last in self.running.iter().map(Running::last) {
            // An event that serves a later submission by now is passed later.
            if last > completed {
                if !self.event(last).has_passed()? {
                    break;
                }
                completed = last;
            }
            passed += 1;
        }
        let faulty = |r: &Arc<Recording>| r.faults.as_ref().is_some_and(|f| f.any());
        if self.running.iter().take(passed).filter_map(Running::recording).any(faulty) {
            self.passed(completed)?;
            passed = 0;
        }
        self.complete(completed);
        Ok((self.running.drain(..passed).collect(), buffers.unwrap_or_default()))
    }

    /// Submits a recording. It does not run if it would compute from bytes known to have failed.
    pub(super) fn submit(&mut self, recording: &Arc<Recording>) -> Result<u64> {
        if let Some(number) = self.derive(recording)? {
            return Ok(number);
        }
        if self.running.len() >= MAX_RUNNING {
            self.compute.synchronize().map_err(|e| self.explain(e))?;
            self.passed(self.last())?;
        }
        self.run(recording, |stream| recording.run(stream))
    }

    /// The number of a submission that fails because it would compute from failed bytes.
    pub(super) fn derive(&mut self, recording: &Recording) -> Result<Option<u64>> {
        let number = self.last() + 1;
        match self.failures.derive(number..=number, &recording.uses) {
            true => self.enqueue(std::iter::empty(), |_| Ok(())).map(Some),
            false => Ok(None),
        }
    }

    /// Runs a recording's steps with the caller's function.
    pub(super) fn run(&mut self, recording: &Arc<Recording>, work: impl FnOnce(&Stream) -> Result<()>) -> Result<u64> {
        let number = self.enqueue(recording.usages.iter(), work)?;
        // Assume success until a failure is known.
        self.failures.succeed(&recording.uses);
        match self.running.back_mut() {
            Some(Running::Recording { last, recording: same, .. }) if Arc::ptr_eq(same, recording) => *last = number,
            _ => {
                let recording = recording.clone();
                self.running.push_back(Running::Recording { first: number, last: number, recording });
            }
        }
        Ok(number)
    }

    /// A small write: one copy in queue order.
    pub(super) fn write(&mut self, address: u64, usages: &[Arc<Usage>], data: &[u8]) -> Result<()> {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        if self.slots[slot] > self.completed() {
            self.event(self.slots[slot]).synchronize().map_err(|e| self.explain(e))?;
            self.complete(self.slots[slot]);
        }
        let place = self.ring.raw.cast::<u8>().wrapping_add(slot * SLOT);
        let bytes = data.len().min(SLOT);
        // SAFETY: the slot has SLOT bytes, and the device has passed the last copy from it.
        unsafe { place.copy_from_nonoverlapping(data.as_ptr(), bytes) };
        let context = self.context.clone();
        self.slots[slot] = self.enqueue(usages.iter(), |stream| {
            // SAFETY: the range was checked; the slot is not written before the event after this copy.
            let code = unsafe { (context.driver.cuMemcpyHtoDAsync_v2)(address, place.cast(), bytes, stream.raw) };
            context.check(code, || format!("copying {bytes} bytes to the device"))
        })?;
        Ok(())
    }

    /// Puts a copy to the host into another stream, after the last use of the memory, if work that was submitted later
    /// would hold it up in this one. Returns the number of that use. Work that is submitted from now on waits for the
    /// copy, of which `end` is the end.
    pub(super) fn read_beside(
        &mut self,
        usages: &[Arc<Usage>],
        (beside, end): (&Stream, &CudaEvent),
        copy: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<Option<u64>> {
        let last = usages.iter().map(|u| u.submission.load(Ordering::Relaxed)).max().unwrap_or(0);
        // An upload under way is known to the compute stream only once that waits for it.
        let uploaded = usages.iter().map(|u| u.upload.load(Ordering::Relaxed)).max().unwrap_or(0);
        if last == self.last() || last + EVENTS <= self.last() || uploaded > self.uploads_ordered {
            return Ok(None);
        }
        beside.wait_for(self.event(last))?;
        copy(beside)?;
        end.record(beside)?;
        self.compute.wait_for(end)?;
        Ok(Some(last))
    }

    /// Records that the host has written bytes.
    pub(super) fn written(&mut self, start: u64, bytes: usize) {
        let bytes = start..start + bytes as u64;
        self.failures.clear(bytes.clone());
        let written = |r: &Arc<Recording>| r.uses.iter().any(|u| u.write && u.start < bytes.end && bytes.start < u.end);
        if self.running.iter().filter_map(Running::recording).any(written) {
            self.running.push_back(Running::Written { number: self.last(), bytes });
        }
    }

    /// Records a copy between buffers.
    pub(super) fn copied(&mut self, from: u64, to: u64, bytes: usize) {
        let bytes = bytes as u64;
        self.failures.copy(from, to, bytes);
        if !self.running.is_empty() {
            self.running.push_back(Running::Copied { number: self.last(), from, to, bytes });
        }
    }

    /// The event that an upload to parts of a block must wait for, if any.
    pub(super) fn before_upload(&self, usages: &[Arc<Usage>]) -> Option<(Arc<[CudaEvent]>, usize)> {
        let last = usages.iter().map(|u| u.submission.load(Ordering::Relaxed)).max().unwrap_or(0);
        (last > self.completed()).then(|| (self.events(), (last % EVENTS) as usize))
    }

    /// Records an upload in the copy stream: later work on these parts waits for it.
    pub(super) fn after_upload(&mut self, usages: &[Arc<Usage>], copies: &Stream) -> Result<()> {
        self.uploads += 1;
        self.upload_events[(self.uploads % UPLOAD_EVENTS) as usize].record(copies)?;
        usages.iter().for_each(|u| u.upload.store(self.uploads, Ordering::Relaxed));
        Ok(())
    }

    /// The event to wait for; `None` when the device is known to have passed the submission.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] for a submission that was never made.
    pub(super) fn event_of(&self, number: u64) -> Result<Option<(Arc<[CudaEvent]>, usize)>> {
        if number > self.last() {
            return Err(BackendError::InvalidArgument {
                device: BackendType::Cuda.to_string(),
                operation: "wait".into(),
                reason: format!("event {number} was never submitted to this device"),
            });
        }
        Ok((number > self.completed()).then(|| (self.events(), (number % EVENTS) as usize)))
    }

    /// What other threads may ask while one holds the queue.
    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// The events of the submissions, by number modulo their count.
    pub(super) fn events(&self) -> Arc<[CudaEvent]> {
        self.progress.events.clone()
    }

    fn event(&self, number: u64) -> &CudaEvent {
        &self.progress.events[(number % EVENTS) as usize]
    }

    /// The number of the last submission.
    pub(super) fn last(&self) -> u64 {
        self.progress.submitted.load(Ordering::Relaxed)
    }

    /// The device has passed this submission.
    fn completed(&self) -> u64 {
        self.progress.completed.load(Ordering::Relaxed)
    }

    /// Records that the device has passed a submission.
    fn complete(&self, number: u64) {
        self.progress.completed.fetch_max(number, Ordering::Relaxed);
    }

    /// Records that the device has passed a submission, and collects the failures until then.
    ///
    /// # Errors
    /// A lost device.
    pub(super) fn passed(&mut self, number: u64) -> Result<()> {
        self.complete(number);
        let faulty = |r: &Arc<Recording>| r.faults.as_ref().is_some_and(|f| f.any());
        if self.running.iter().filter_map(Running::recording).any(faulty) {
            // A fault record is complete only when the kernel that writes it has ended.
            self.compute.synchronize().map_err(|e| self.explain(e))?;
            self.complete(self.last());
            self.settle();
        }
        while self.running.front().is_some_and(|r| r.last() <= self.completed()) {
            self.running.pop_front();
        }
        Ok(())
    }

    /// Determines which bytes have failed, for everything that ran. A fault record does not tell which run of its
    /// recording it belongs to, so all of them have failed.
    fn settle(&mut self) {
        let mut found: Vec<(*const Recording, (usize, BackendError))> = Vec::new();
        for recording in self.running.iter().filter_map(Running::recording) {
            if let Some(fault) = recording.faults.as_ref().and_then(|f| f.take()) {
                found.push((Arc::as_ptr(recording), fault));
            }
        }
        for one in &self.running {
            match one {
                Running::Recording { first, last, recording } => {
                    let uses = &recording.uses;
                    match found.iter().find(|(of, _)| *of == Arc::as_ptr(recording)) {
                        Some((_, (launch, error))) => self.failures.fail(*first..=*last, uses, *launch, error.clone()),
                        None if self.failures.derive(*first..=*last, uses) => {}
                        None => self.failures.succeed(uses),
                    }
                }
                Running::Written { bytes, .. } => self.failures.clear(bytes.clone()),
                Running::Copied { from, to, bytes, .. } => self.failures.copy(*from, *to, *bytes),
            }
        }
    }

    /// Adds the suspected kernel's name to an error of waiting; the device reports only that some kernel failed.
    pub(super) fn explain(&mut self, error: BackendError) -> BackendError {
        let BackendError::Device { device, reason, .. } = &error else { return error };
        if !self.context.is_lost() {
            return error;
        }
        let mut names: Vec<String> = self.running.iter().filter_map(Running::recording).map(|r| r.suspects()).collect();
        names.dedup();
        let kernel = match names.len() {
            0 => return error,
            1 => names.remove(0),
            _ => format!("in one of {} lists: {}", names.len(), names.join("; ")),
        };
        self.running.clear();
        let reason = format!("{reason}{LOST}");
        BackendError::Kernel { device: device.clone(), kernel, reason }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Running work uses memory that is about to be freed.
        if self.context.enter().is_ok() {
            let _ = self.compute.synchronize();
        }
    }
}
