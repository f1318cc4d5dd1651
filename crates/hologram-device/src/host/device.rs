//! The common part of devices that work in the host's memory and have finished when a submission returns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Allocator, HostMemory, HostRange, host_memory};
use super::pipelines::Pipelines;
use super::queue::Counters;
use crate::error::{BackendError, Result};
use crate::info::DeviceInfo;
use crate::memory::{Buffer, ForeignMemory, ForeignPointer, Pool, check_apart};
use crate::policy::Policy;

/// Memory, pipelines, counters and queue of a device.
pub struct HostDevice<Q> {
    /// The device's description.
    pub info: DeviceInfo,
    /// Its preferences.
    policy: Policy,
    /// Its memory.
    pub allocator: Arc<Allocator>,
    /// Its counters.
    pub counters: Counters,
    /// Its compiled programs.
    pub pipelines: Pipelines,
    /// Locked while work or a copy runs.
    queue: Mutex<Q>,
}

impl<Q> HostDevice<Q> {
    /// A device of this description whose live and cached bytes together stay within `cap`.
    pub fn new(info: DeviceInfo, policy: Policy, cap: Option<u64>, queue: Q) -> HostDevice<Q> {
        HostDevice {
            allocator: Allocator::new(info.backend, cap),
            info,
            policy: Policy { shares_host_memory: true, ..policy },
            counters: Counters::default(),
            pipelines: Pipelines::default(),
            queue: Mutex::new(queue),
        }
    }

    /// As [`Backend::info`](crate::Backend::info).
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// As [`Backend::is_available`](crate::Backend::is_available): the host always answers.
    pub fn is_available(&self) -> bool {
        true
    }

    /// As [`Backend::policy`](crate::Backend::policy).
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Locks the queue.
    pub fn queue(&self) -> MutexGuard<'_, Q> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error about an invalid argument.
    pub fn invalid(&self, operation: &str, reason: &str) -> BackendError {
        let device = self.info.backend.to_string();
        BackendError::InvalidArgument { device, operation: operation.into(), reason: reason.into() }
    }

    fn range(&self, operation: &str, buffer: &Buffer, offset: usize, bytes: usize, write: bool) -> Result<HostRange> {
        host_memory(&self.allocator, operation, buffer, offset, bytes, write)
    }

    /// As [`Backend::allocate_buffer`](crate::Backend::allocate_buffer).
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.allocator.allocate(bytes).map(Buffer::new)
    }

    /// As [`Backend::allocate_pool`](crate::Backend::allocate_pool).
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        self.allocate_buffer(bytes).map(Pool)
    }

    /// As [`Backend::owns`](crate::Backend::owns).
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.downcast::<HostMemory>().is_some_and(|memory| memory.is_of(&self.allocator))
    }

    /// As [`Backend::wrap`](crate::Backend::wrap).
    ///
    /// # Errors
    /// None: the signature is the trait's.
    pub fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        Ok(Buffer::new(self.allocator.wrap(&memory)))
    }

    /// As [`Backend::wrap_pointer`](crate::Backend::wrap_pointer).
    ///
    /// # Errors
    /// None: the signature is the trait's.
    pub fn wrap_pointer(&self, memory: ForeignPointer) -> Result<Buffer> {
        Ok(Buffer::new(self.allocator.wrap_pointer(&memory)))
    }

    /// As [`Backend::copy_to_buffer`](crate::Backend::copy_to_buffer).
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`].
    pub fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        let _queue = self.queue();
        let to = self.range("copy_to_buffer", buffer, offset, data.len(), true)?;
        // SAFETY: the range was checked for writing, the buffer is borrowed, and the queue is held.
        Counters::timed(&self.counters.writing, || unsafe { to.write(data) });
        self.allocator.failures().clear(to.addresses());
        Counters::add(&self.counters.to_device, data.len());
        Ok(())
    }

    /// As [`Backend::copy_from_buffer`](crate::Backend::copy_from_buffer).
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`]; the error of the failed launch that left the bytes undefined.
    pub fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        let _queue = self.queue();
        let from = self.range("copy_from_buffer", buffer, offset, data.len(), false)?;
        self.allocator.failures().check(from.addresses())?;
        // SAFETY: the range was checked, the buffer is borrowed, and the queue is held.
        Counters::timed(&self.counters.reading, || unsafe { from.read(data) });
        Counters::add(&self.counters.from_device, data.len());
        Ok(())
    }

    /// As [`Backend::copy_buffer`](crate::Backend::copy_buffer).
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`].
    pub fn copy_buffer(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let source = self.range("copy_buffer", from, from_offset, bytes, false)?;
        let target = self.range("copy_buffer", to, to_offset, bytes, true)?;
        check_apart(self.info.backend, (from, from_offset), (to, to_offset), bytes)?;
        let _queue = self.queue();
        // SAFETY: both ranges were checked, the second for writing, the buffers are borrowed, and the queue is held.
        unsafe { source.copy_to(target) };
        self.allocator.failures().copy(source.addresses().start, target.addresses().start, bytes as u64);
        Ok(())
    }

    /// As [`Backend::clear_error`](crate::Backend::clear_error).
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`].
    pub fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
        let _queue = self.queue();
        let range = self.range("clear_error", buffer, offset, bytes, false)?;
        self.allocator.failures().clear(range.addresses());
        Ok(())
    }

    /// As [`Backend::synchronize`](crate::Backend::synchronize).
    ///
    /// # Errors
    /// The first unreported error.
    pub fn synchronize(&self) -> Result<()> {
        let _queue = self.queue();
        self.allocator.failures().synchronize()
    }
}
