//! The trait that every device implements.

use hologram_isa::Program;

use crate::error::{BackendError, Result};
use crate::info::DeviceInfo;
use crate::kernels::Kernels;
use crate::launch::{Binding, CommandList, Event, Launch, LaunchConfig, Pipeline};
use crate::measure::Measure;
use crate::memory::{Buffer, ForeignMemory, ForeignPointer, Pool};
use crate::policy::Policy;

/// A device: memory and a queue of work, with its [kernels](Kernels), its [policy](Policy) and its
/// [measurements](Measure).
///
/// Work submitted to a backend runs in order. The error of a kernel sticks to the bytes that it was to write, to those
/// that later launches of its list were to write, and to everything that later lists compute from them. Such a later
/// list does not run (or, on a device that works beside the host, its results do not count). Every
/// [`copy_from_buffer`](Backend::copy_from_buffer) of those bytes returns the error, and so does every
/// [`wait`](Backend::wait) for the event of such a list; [`synchronize`](Backend::synchronize) returns the first
/// unreported error and clears it. Bytes are good again when the host, or a list that does not depend on them, writes
/// them. Other memory is unaffected.
///
/// A wrapper implements this trait itself and passes on [`kernels`](Backend::kernels), [`policy`](Backend::policy),
/// [`measure`](Backend::measure) and [`streams`](Backend::streams) of the wrapped device.
pub trait Backend: Send + Sync {
    /// The device's description.
    fn info(&self) -> &DeviceInfo;

    /// Whether the device still answers.
    fn is_available(&self) -> bool;

    /// The device's compiler of programs and its native kernels.
    fn kernels(&self) -> &dyn Kernels;

    /// The device's preferences.
    fn policy(&self) -> &Policy;

    /// The device's measurements.
    fn measure(&self) -> &dyn Measure;

    /// Memory of this many bytes with undefined content, aligned to at least 64 bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`](crate::BackendError::OutOfMemory).
    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer>;

    /// A fixed-size arena.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`](crate::BackendError::OutOfMemory).
    fn allocate_pool(&self, bytes: usize) -> Result<Pool>;

    /// Whether a buffer is this device's own, so that its work may use it.
    fn owns(&self, buffer: &Buffer) -> bool;

    /// Bytes of memory available to new buffers now; `None` where the device does not report it.
    fn available_memory(&self) -> Option<u64>;

    /// A buffer over foreign host memory, which kernels may only read. Zero-copy where the device shares memory with
    /// the host, else a copy.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`](crate::BackendError::OutOfMemory).
    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer>;

    /// A buffer over memory of another library on this device, without a copy. The memory begins at the buffer's byte
    /// [`ForeignPointer::lead`].
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) on a device without such addresses (the
    /// default).
    fn wrap_pointer(&self, memory: ForeignPointer) -> Result<Buffer> {
        Err(BackendError::InvalidArgument {
            device: self.info().backend.to_string(),
            operation: "wrap_pointer".into(),
            reason: format!("the device cannot use the {} bytes where they are; copy them", memory.bytes()),
        })
    }

    /// The device's streams, if other libraries can put work into streams of the same device.
    fn streams(&self) -> Option<&dyn Streams>;

    /// Copies host bytes into a buffer at a byte offset.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when the range is out of bounds.
    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()>;

    /// Waits for the work that uses the buffer and copies bytes at an offset to the host. A device may wait for later
    /// work as well.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when the range is out of bounds; the
    /// error of the failed launch that left the bytes undefined.
    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()>;

    /// Copies between buffers of this device, in queue order. The ranges may lie in one buffer but must not overlap.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when a range is out of bounds or they
    /// overlap.
    fn copy_buffer(&self, from: &Buffer, from_offset: usize, to: &Buffer, to_offset: usize, bytes: usize)
    -> Result<()>;

    /// Declares bytes good that a failed launch was to write. The caller knows which of them the launch left alone, as
    /// in a cache of which only a new part was being written.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when the range is out of bounds.
    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()>;

    /// Checks launches (arguments, alignment, ranges) and prepares them for repeated runs.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) with the kernel and the argument.
    fn record(&self, launches: &[Launch]) -> Result<CommandList>;

    /// Enqueues a recording.
    ///
    /// # Errors
    /// Only those known at once; errors of kernels are reported at the next wait.
    fn submit(&self, list: &CommandList) -> Result<Event>;

    /// Waits until the queue has passed the event.
    ///
    /// # Errors
    /// The error of the event's list, at every call; the last 1,024 failed lists are remembered.
    fn wait(&self, event: Event) -> Result<()>;

    /// Whether more than this many submissions (up to 64) are unfinished, without a wait. Never where work is done when
    /// [`submit`](Backend::submit) returns (the default).
    ///
    /// # Errors
    /// A lost device.
    fn is_behind(&self, _submissions: u64) -> Result<bool> {
        Ok(false)
    }

    /// Waits for everything submitted.
    ///
    /// # Errors
    /// The first unreported error, which is then cleared.
    fn synchronize(&self) -> Result<()>;

    /// Frees memory; dropping the last clone does the same.
    fn free_buffer(&self, buffer: Buffer) {
        drop(buffer);
    }

    /// Frees an arena.
    fn free_pool(&self, pool: Pool) {
        self.free_buffer(pool.0);
    }

    /// Copies host bytes into an arena.
    ///
    /// # Errors
    /// As [`Backend::copy_to_buffer`].
    fn copy_to_pool(&self, pool: &Pool, offset: usize, data: &[u8]) -> Result<()> {
        self.copy_to_buffer(&pool.0, offset, data)
    }

    /// Copies bytes of an arena to the host.
    ///
    /// # Errors
    /// As [`Backend::copy_from_buffer`].
    fn copy_from_pool(&self, pool: &Pool, offset: usize, data: &mut [u8]) -> Result<()> {
        self.copy_from_buffer(&pool.0, offset, data)
    }

    /// As [`Kernels::compile`].
    ///
    /// # Errors
    /// As [`Kernels::compile`].
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.kernels().compile(program)
    }

    /// Compiles a program, runs it once and waits.
    ///
    /// # Errors
    /// Those of compiling, recording and running.
    fn execute_program(&self, program: &Program, bindings: &[Binding], config: &LaunchConfig) -> Result<()> {
        let pipeline = self.compile(program)?;
        let list = self.record(&[Launch { pipeline, bindings: bindings.to_vec(), config: *config }])?;
        let event = self.submit(&list)?;
        self.wait(event)
    }
}

/// A device's streams: how its work and that of other libraries in the same memory wait for one another. No method is
/// provided, so a wrapper cannot forget one.
pub trait Streams: Send + Sync {
    /// The stream, as a driver's handle, in which the device's work runs in order.
    fn stream(&self) -> u64;

    /// Lets work submitted from now on wait for the work that another library has put into a stream.
    ///
    /// # Safety
    /// `stream` is a stream of the device's primary context, or 1 or 2 for CUDA's default streams.
    ///
    /// # Errors
    /// Those of the device.
    unsafe fn wait_for_stream(&self, stream: u64) -> Result<()>;

    /// Lets work that another library puts into a stream from now on wait for the work submitted so far that writes a
    /// buffer.
    ///
    /// # Safety
    /// As [`wait_for_stream`](Streams::wait_for_stream).
    ///
    /// # Errors
    /// Those of the device.
    unsafe fn make_stream_wait(&self, buffer: &Buffer, stream: u64) -> Result<()>;

    /// Lets the buffer's memory serve later work only after all work that the process has put into any of the device's
    /// streams: another library that gives memory back need not have waited for its own.
    ///
    /// # Errors
    /// Those of the device; then other work may still use the memory.
    fn wait_for_all_streams(&self, buffer: &Buffer) -> Result<()>;
}
