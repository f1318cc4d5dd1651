//! The queue: command buffers in the order of submission, committed work that is not known to have run, and its
//! failures.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use block2::RcBlock;
use hologram_device::host::{Failures, Use, one_by_one};
use hologram_device::{BackendError, BackendType, Buffer, Result};
use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLDevice,
    MTLDispatchType,
};

use super::device::Device;
use super::memory::{MetalBuffer, Slice, Usage};
use super::parts::VARIABLE;
use super::record::{Recording, Step};

/// The most command buffers that exist at a time: creating one more waits for the first.
const MAX_BUFFERS: usize = 256;
/// The most command buffers of a run that are encoded while its predecessor runs.
const MAX_AHEAD: usize = 8;
/// Slots of the ring for small writes, and their bytes.
const SLOTS: usize = 32;
pub(super) const SLOT: usize = 128 << 10;

/// A command buffer.
#[derive(Clone)]
pub(super) struct Commands(pub(super) Retained<ProtocolObject<dyn MTLCommandBuffer>>);

// SAFETY: a command buffer is encoded under the queue's lock; once committed, any thread may query its status and wait
// for it.
unsafe impl Send for Commands {}
// SAFETY: the methods called through shared references allow concurrent calls.
unsafe impl Sync for Commands {}

impl Commands {
    /// Waits until the device is done with it.
    pub(super) fn wait(&self) {
        autoreleasepool(|_| self.0.waitUntilCompleted());
    }

    /// The device's seconds for the command buffer, which must have ended.
    pub(super) fn seconds(&self) -> f64 {
        // SAFETY: the method takes no argument and returns a number (`CFTimeInterval`).
        let start: f64 = unsafe { msg_send![&*self.0, GPUStartTime] };
        // SAFETY: as above.
        let end: f64 = unsafe { msg_send![&*self.0, GPUEndTime] };
        end - start
    }
}

/// A submission that is not settled: whether it failed is not known.
enum Running {
    /// A run of a recording, with the submissions of its command buffers.
    Recording { numbers: RangeInclusive<u64>, recording: Arc<Recording> },
    /// The host wrote to bytes that an earlier recording writes; or the device copied the host's bytes, with this
    /// submission.
    Written { number: u64, bytes: Range<u64>, by_device: bool },
    /// A copy between buffers, which it keeps alive.
    Copied { number: u64, from: u64, to: u64, bytes: u64, _keep: [Buffer; 2] },
}

impl Running {
    fn number(&self) -> u64 {
        match self {
            Running::Recording { numbers, .. } => *numbers.end(),
            Running::Written { number, .. } | Running::Copied { number, .. } => *number,
        }
    }

    fn recording(&self) -> Option<&Arc<Recording>> {
        match self {
            Running::Recording { recording, .. } => Some(recording),
            _ => None,
        }
    }
}

/// The state of the queue; the backend holds it under a lock.
pub(super) struct Queue {
    device: Arc<Device>,
    raw: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    submitted: u64,
    /// The device has passed this submission and all before it.
    passed: u64,
    /// The last submission that a command buffer's handler, or a wait, has reported as finished.
    done: Arc<AtomicU64>,
    /// Command buffers that are not known to have ended, in order.
    flights: VecDeque<(u64, Commands)>,
    failures: Arc<Failures>,
    running: VecDeque<Running>,
    /// The errors of command buffers, by their submissions.
    errors: Vec<(u64, String)>,
    /// The last submitted recording.
    last: Weak<Recording>,
    /// Its next run, encoded while the device works. Like every command buffer here it keeps nothing alive.
    ready: Option<Vec<Commands>>,
    ring: Option<MetalBuffer>,
    /// The submission that last read each slot.
    slots: [u64; SLOTS],
    next_slot: usize,
}

impl Queue {
    pub(super) fn new(device: &Arc<Device>, failures: &Arc<Failures>) -> Result<Queue> {
        let raw = command_queue(device)?;
        Ok(Queue {
            device: device.clone(),
            raw,
            submitted: 0,
            passed: 0,
            done: Arc::default(),
            flights: VecDeque::with_capacity(MAX_BUFFERS),
            failures: failures.clone(),
            running: VecDeque::with_capacity(64),
            errors: Vec::new(),
            last: Weak::new(),
            ready: None,
            ring: None,
            slots: [0; SLOTS],
            next_slot: 0,
        })
    }

    /// A new command buffer. It keeps nothing alive: the submissions do.
    fn commands(&self) -> Result<Commands> {
        let commands = self.raw.commandBufferWithUnretainedReferences();
        commands.map(Commands).ok_or_else(|| self.device.error("making a command buffer", "Metal gave none"))
    }

    /// A command buffer with these steps.
    fn encoded(&self, steps: &[Step]) -> Result<Commands> {
        autoreleasepool(|_| {
            let commands = self.commands()?;
            if steps.is_empty() {
                return Ok(commands);
            }
            let encoder = commands.0.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
            let encoder =
                encoder.ok_or_else(|| self.device.error("encoding a list", "Metal gave no compute encoder"))?;
            let mut given = 0;
            steps.iter().for_each(|step| step.encode(&encoder, &mut given));
            encoder.endEncoding();
            Ok(commands)
        })
    }

    /// A command buffer with a copy.
    fn copying(
        &self,
        (from, at): (&MetalBuffer, usize),
        (to, to_at): (&MetalBuffer, usize),
        n: usize,
    ) -> Result<Commands> {
        autoreleasepool(|_| {
            let commands = self.commands()?;
            let encoder = commands.0.blitCommandEncoder();
            let encoder = encoder.ok_or_else(|| self.device.error("encoding a copy", "Metal gave no blit encoder"))?;
            // SAFETY: both ranges were checked.
            unsafe {
                encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(&from.0, at, &to.0, to_at, n)
            };
            encoder.endEncoding();
            Ok(commands)
        })
    }

    /// Commits a command buffer to the device.
    fn commit<'a>(&mut self, commands: Commands, usages: impl Iterator<Item = &'a Arc<Usage>>) -> u64 {
        self.submitted += 1;
        let number = self.submitted;
        usages.for_each(|usage| usage.touch(number));
        self.device.residency.begin();
        let done = self.done.clone();
        let handler = RcBlock::new(move |_: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            done.fetch_max(number, Ordering::Release);
        });
        autoreleasepool(|_| {
            // SAFETY: the handler may run on any thread, and its captured values may be used from any thread.
            unsafe { commands.0.addCompletedHandler(RcBlock::as_ptr(&handler)) };
            commands.0.commit();
        });
        self.flights.push_back((number, commands));
        number
    }

    /// Submits a recording. It does not run if it would compute from bytes known to have failed.
    pub(super) fn submit(&mut self, recording: &Arc<Recording>) -> Result<u64> {
        self.reap();
        if let Some(number) = self.derive(recording)? {
            return Ok(number);
        }
        if one_by_one() {
            return self.run_steps(recording).map(|(number, _)| number);
        }
        let again = self.last.as_ptr() == Arc::as_ptr(recording);
        let first = self.submitted + 1;
        let number = match self.ready.take().filter(|_| again) {
            Some(parts) => {
                let commit = |_, commands| self.commit(commands, recording.usages.iter());
                parts.into_iter().fold(first, commit)
            }
            None => {
                let mut number = first;
                for part in &recording.parts {
                    // Making a command buffer beyond the last waits, and the device begins with the first.
                    while self.flights.len() >= MAX_BUFFERS / 2 {
                        self.land();
                    }
                    let commands = self.encoded(&recording.steps[part.clone()])?;
                    number = self.commit(commands, recording.usages.iter());
                }
                number
            }
        };
        self.ran(first..=number, recording);
        if again && recording.parts.len() <= MAX_AHEAD {
            // A recording that ran twice will likely run again: the host encodes the next run while the device works.
            let parts = recording.parts.iter().map(|part| self.encoded(&recording.steps[part.clone()]));
            self.ready = Some(parts.collect::<Result<_>>()?);
        }
        self.last = Arc::downgrade(recording);
        Ok(number)
    }

    fn ran(&mut self, numbers: RangeInclusive<u64>, recording: &Arc<Recording>) {
        // Assume success until a failure is known.
        self.failures.succeed(&recording.uses);
        self.running.push_back(Running::Recording { numbers, recording: recording.clone() });
    }

    /// Runs the steps one by one, each in a command buffer of its own, and waits for each; returns the last one's
    /// number, and the seconds of each.
    pub(super) fn run_steps(&mut self, recording: &Arc<Recording>) -> Result<(u64, Vec<f64>)> {
        let mut seconds = Vec::with_capacity(recording.steps.len());
        let mut number = self.submit_nothing()?;
        for step in recording.steps.chunks(1) {
            let commands = self.encoded(step)?;
            number = self.commit(commands.clone(), recording.usages.iter());
            commands.wait();
            if let Some(reason) = error_of(&commands) {
                self.flights.pop_back();
                let launch = step.first().map_or(0, |s| s.launch);
                let kernel = recording.names.get(launch).map(ToString::to_string).unwrap_or_default();
                let error = BackendError::Kernel { device: self.device.name.clone(), kernel, reason };
                self.failures.fail(number..=number, &recording.uses, launch, error);
                return Ok((number, seconds));
            }
            seconds.push(commands.seconds());
        }
        self.ran(number..=number, recording);
        Ok((number, seconds))
    }

    fn submit_nothing(&mut self) -> Result<u64> {
        let nothing = self.encoded(&[])?;
        Ok(self.commit(nothing, std::iter::empty()))
    }

    /// The number of a submission that fails because it would compute from failed bytes.
    pub(super) fn derive(&mut self, recording: &Recording) -> Result<Option<u64>> {
        let number = self.submitted + 1;
        match self.failures.derive(number..=number, &recording.uses) {
            true => self.submit_nothing().map(Some),
            false => Ok(None),
        }
    }

    /// Copies host bytes to a range. If the device still uses the range, the device itself copies, in queue order.
    ///
    /// Returns false if the range is in use and the data is large; the caller then waits for the range's last use
    /// first.
    pub(super) fn write(&mut self, to: &Slice, data: &[u8]) -> Result<bool> {
        self.reap();
        let by_device = to.last_use() > self.passed;
        if !by_device {
            to.write(data);
        } else if data.len() <= SLOT {
            self.write_behind(to, data)?;
        } else {
            return Ok(false);
        }
        let bytes = to.addresses();
        self.failures.clear(bytes.clone());
        let written = |r: &Arc<Recording>| r.uses.iter().any(|u| u.write && u.start < bytes.end && bytes.start < u.end);
        if by_device || self.running.iter().filter_map(Running::recording).any(written) {
            self.running.push_back(Running::Written { number: self.submitted, bytes, by_device });
        }
        Ok(true)
    }

    fn write_behind(&mut self, to: &Slice, data: &[u8]) -> Result<()> {
        let Some((buffer, offset)) = &to.metal else { return Ok(()) };
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        if let Some(commands) = self.flight(self.slots[slot]) {
            commands.wait();
        }
        let ring = match &self.ring {
            Some(ring) => ring.clone(),
            None => {
                let ring = MetalBuffer::new(&self.device, SLOTS * SLOT);
                let ring = ring.ok_or_else(|| self.device.error("copying to the device", "there is no memory"))?;
                self.ring.insert(ring).clone()
            }
        };
        let place = ring.contents().wrapping_add(slot * SLOT);
        // SAFETY: the slot has SLOT bytes, the data no more, and the device has passed the last copy from it.
        unsafe { place.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        let commands = self.copying((&ring, slot * SLOT), (buffer, *offset), data.len())?;
        self.slots[slot] = self.commit(commands, to.usages.iter());
        Ok(())
    }

    /// Copies between ranges of the same length, in queue order; `None` for no bytes.
    pub(super) fn copy(&mut self, from: &Slice, to: &Slice, keep: [Buffer; 2]) -> Result<Option<Commands>> {
        let (Some((source, at)), Some((target, to_at))) = (&from.metal, &to.metal) else { return Ok(None) };
        let commands = self.copying((source, *at), (target, *to_at), from.bytes)?;
        let number = self.commit(commands.clone(), from.usages.iter().chain(&to.usages));
        let (from, to, bytes) = (from.addresses().start, to.addresses().start, from.bytes as u64);
        self.failures.copy(from, to, bytes);
        self.running.push_back(Running::Copied { number, from, to, bytes, _keep: keep });
        Ok(Some(commands))
    }

    /// Discards the encoded run that is not submitted.
    pub(super) fn forget_ready(&mut self) {
        self.ready = None;
    }

    /// The number of the last submission.
    pub(super) fn last(&self) -> u64 {
        self.submitted
    }

    /// The number of submissions that the device has not finished.
    pub(super) fn unfinished(&self) -> u64 {
        self.submitted.saturating_sub(self.done.load(Ordering::Acquire))
    }

    fn flight(&self, number: u64) -> Option<Commands> {
        self.flights.iter().find(|(n, _)| *n == number).map(|(_, commands)| commands.clone())
    }

    /// The command buffer to wait for; `None` when the device is known to have passed the submission.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] for a submission that was never made.
    pub(super) fn waits_for(&self, number: u64) -> Result<Option<Commands>> {
        if number > self.submitted {
            return Err(BackendError::InvalidArgument {
                device: BackendType::Metal.to_string(),
                operation: "wait".into(),
                reason: format!("event {number} was never submitted to this device"),
            });
        }
        Ok(self.flight(number))
    }

    /// Records that the device has passed a submission, and collects the failures until then.
    pub(super) fn passed(&mut self, number: u64) {
        self.done.fetch_max(number, Ordering::Release);
        self.reap();
    }

    /// Removes the first command buffer after waiting for its end.
    fn land(&mut self) {
        let Some((number, commands)) = self.flights.pop_front() else { return };
        commands.wait();
        self.passed = number;
        if let Some(reason) = error_of(&commands) {
            self.errors.push((number, reason));
        }
    }

    /// Settles the submissions that the device has passed.
    fn reap(&mut self) {
        let done = self.done.load(Ordering::Acquire);
        while self.flights.front().is_some_and(|(number, _)| *number <= done) {
            self.land();
        }
        let faulty = |r: &Arc<Recording>| r.faults.any();
        if !self.errors.is_empty() || self.running.iter().filter_map(Running::recording).any(faulty) {
            // A fault record is complete only when the kernel that writes it has ended.
            while !self.flights.is_empty() {
                self.land();
            }
            let broken = !self.errors.is_empty();
            self.settle();
            if broken {
                self.renew();
            }
        }
        while self.running.front().is_some_and(|r| r.number() <= self.passed) {
            self.running.pop_front();
        }
    }

    /// A new queue in place of one with an error, which may ignore all further submissions. Nothing is in flight.
    fn renew(&mut self) {
        self.ready = None;
        // Without another queue the same goes on.
        if let Ok(raw) = command_queue(&self.device) {
            self.raw = raw;
        }
    }

    /// Determines which bytes have failed, for everything that ran. A fault record does not tell which run of its
    /// recording it belongs to, so all of them have failed.
    fn settle(&mut self) {
        let mut found: Vec<(*const Recording, (usize, BackendError))> = Vec::new();
        for recording in self.running.iter().filter_map(Running::recording) {
            if let Some(fault) = recording.faults.take() {
                found.push((Arc::as_ptr(recording), fault));
            }
        }
        let errors = std::mem::take(&mut self.errors);
        let why_any = |numbers: &RangeInclusive<u64>| {
            errors.iter().find(|(of, _)| numbers.contains(of)).map(|(_, reason)| reason.clone())
        };
        let why = |number: &u64| why_any(&(*number..=*number));
        // Bytes that the device was to copy from the host or from another buffer.
        let copy_failed = |number: u64, to: Range<u64>, reason: String| {
            let (device, operation) = (self.device.name.clone(), "copying".into());
            let uses = [Use { launch: 0, start: to.start, end: to.end, read: false, write: true }];
            self.failures.fail(number..=number, &uses, 0, BackendError::Device { device, operation, reason });
        };
        for one in &self.running {
            match one {
                Running::Recording { numbers, recording } => {
                    let uses = &recording.uses;
                    let broken = why_any(numbers).map(|reason| {
                        let (device, kernel) = (self.device.name.clone(), recording.suspects());
                        (0, BackendError::Kernel { device, kernel, reason })
                    });
                    let fault =
                        found.iter().find(|(of, _)| *of == Arc::as_ptr(recording)).map(|(_, fault)| fault.clone());
                    match fault.or(broken) {
                        Some((launch, error)) => self.failures.fail(numbers.clone(), uses, launch, error),
                        None if self.failures.derive(numbers.clone(), uses) => {}
                        None => self.failures.succeed(uses),
                    }
                }
                Running::Written { number, bytes, by_device } => match why(number).filter(|_| *by_device) {
                    Some(reason) => copy_failed(*number, bytes.clone(), reason),
                    None => self.failures.clear(bytes.clone()),
                },
                Running::Copied { number, from, to, bytes, .. } => match why(number) {
                    Some(reason) => copy_failed(*number, *to..*to + *bytes, reason),
                    None => self.failures.copy(*from, *to, *bytes),
                },
            }
        }
    }
}

fn command_queue(device: &Device) -> Result<Retained<ProtocolObject<dyn MTLCommandQueue>>> {
    let raw = autoreleasepool(|_| device.raw.newCommandQueueWithMaxCommandBufferCount(MAX_BUFFERS))
        .ok_or_else(|| device.error("opening the device", "Metal gave no command queue"))?;
    device.residency.attach(&raw);
    Ok(raw)
}

/// Explains Metal's words for errors that are not the kernel's.
fn explained(reason: String) -> String {
    if reason.contains("ImpactingInteractivity") {
        let remedy = format!("a lower {VARIABLE} than 100 or a smaller --batch makes its work shorter");
        return format!("{reason}: macOS ended it because the display waited; {remedy}");
    }
    if reason.contains("SubmissionsIgnored") {
        return format!("{reason}: macOS ignores what follows an error; another run starts anew");
    }
    reason
}

/// The error of a command buffer that has ended, if any.
fn error_of(commands: &Commands) -> Option<String> {
    if commands.0.status() != MTLCommandBufferStatus::Error {
        return None;
    }
    let text = autoreleasepool(|_| commands.0.error().map(|e| e.localizedDescription().to_string()));
    Some(text.map(explained).unwrap_or_else(|| "the command buffer failed, and Metal does not say why".into()))
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Running work uses memory that is about to be freed.
        for (_, commands) in &self.flights {
            commands.wait();
        }
    }
}
