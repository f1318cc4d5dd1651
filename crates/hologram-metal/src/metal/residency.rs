//! Memory that stays wired between command buffers, on macOS 15 and later.
//!
//! The system unwires memory that no command buffer has used for about a second, and the next one pays for wiring it
//! again: in a chat, after each pause. A residency set names the device's memory, and a thread requests its residency
//! while the device is in use and for some minutes after.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_metal::{MTLAllocation, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor};

use super::memory::MetalBuffer;

/// How long memory stays wired after its last use.
const KEPT: Duration = Duration::from_secs(180);
/// The time between two requests, which must come before the system would unwire.
const BETWEEN: Duration = Duration::from_millis(500);

/// The residency set of a device, where the system has them.
pub(super) struct Residency(Option<(Arc<Shared>, Option<JoinHandle<()>>)>);

/// What the device and the thread share.
struct Shared {
    state: Mutex<State>,
    /// The device is in use again, or closes.
    changed: Condvar,
}

struct State {
    set: Retained<ProtocolObject<dyn MTLResidencySet>>,
    /// The addresses of the buffers in the set.
    members: HashSet<usize>,
    /// Whether buffers were added or removed since the last commit.
    uncommitted: bool,
    last_use: Option<Instant>,
    closing: bool,
}

// SAFETY: the set is used under the lock alone, and its references are counted atomically.
unsafe impl Send for State {}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests residency while the device is in use, until it closes.
    fn keep(&self) {
        let mut state = self.state();
        while !state.closing {
            let wait = match state.last_use {
                Some(last) if last.elapsed() < KEPT => {
                    autoreleasepool(|_| state.set.requestResidency());
                    BETWEEN
                }
                _ => Duration::MAX,
            };
            state = match wait {
                Duration::MAX => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                wait => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

impl Residency {
    /// An empty set; none on systems without residency sets.
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>) -> Residency {
        if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
            return Residency(None);
        }
        let set = autoreleasepool(|_| device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()));
        // Without a set everything runs, after a pause more slowly.
        let Ok(set) = set else { return Residency(None) };
        let state = State { set, members: HashSet::new(), uncommitted: false, last_use: None, closing: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let keeper = shared.clone();
        let thread = std::thread::Builder::new().name("hologram-residency".into()).spawn(move || keeper.keep());
        Residency(Some((shared, thread.ok())))
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.0.as_ref().map(|(shared, _)| shared.state())
    }

    /// Has the command buffers of a queue find the set's memory resident.
    pub(super) fn attach(&self, queue: &ProtocolObject<dyn MTLCommandQueue>) {
        if let Some(state) = self.state() {
            autoreleasepool(|_| queue.addResidencySet(&state.set));
        }
    }

    /// Before a command buffer is committed: memory that is new or freed counts from now on.
    pub(super) fn begin(&self) {
        let (Some(mut state), Some((shared, _))) = (self.state(), &self.0) else { return };
        if std::mem::take(&mut state.uncommitted) {
            autoreleasepool(|_| state.set.commit());
        }
        let idle = state.last_use.is_none_or(|last| last.elapsed() >= KEPT);
        state.last_use = Some(Instant::now());
        if idle {
            shared.changed.notify_one();
        }
    }

    fn add(&self, buffer: &MetalBuffer) {
        if let Some(mut state) = self.state()
            && state.members.insert(address(buffer))
        {
            autoreleasepool(|_| state.set.addAllocation(allocation(buffer)));
            state.uncommitted = true;
        }
    }

    fn remove(&self, buffer: &MetalBuffer) {
        if let Some(mut state) = self.state()
            && state.members.remove(&address(buffer))
        {
            autoreleasepool(|_| state.set.removeAllocation(allocation(buffer)));
            // The set holds what it has until a commit: memory that is freed must not wait for the next command buffer.
            autoreleasepool(|_| state.set.commit());
            state.uncommitted = false;
        }
    }
}

fn address(buffer: &MetalBuffer) -> usize {
    Retained::as_ptr(&buffer.0).addr()
}

fn allocation(buffer: &MetalBuffer) -> &ProtocolObject<dyn MTLAllocation> {
    ProtocolObject::from_ref(&*buffer.0)
}

impl Drop for Residency {
    fn drop(&mut self) {
        let Some((shared, thread)) = self.0.take() else { return };
        shared.state().closing = true;
        shared.changed.notify_one();
        if let Some(thread) = thread {
            // It does not panic, and nothing could be done if it had.
            let _ = thread.join();
        }
    }
}

/// A buffer in the residency set of its device.
pub(super) struct Resident {
    pub(super) buffer: MetalBuffer,
    residency: Arc<Residency>,
}

impl Resident {
    /// Adds a buffer to the set until the value is dropped.
    pub(super) fn new(residency: &Arc<Residency>, buffer: MetalBuffer) -> Resident {
        residency.add(&buffer);
        Resident { buffer, residency: residency.clone() }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.residency.remove(&self.buffer);
    }
}
