//! The trait that every device implements.

use hologram_isa::Program;

use crate::error::Result;
use crate::info::DeviceInfo;
use crate::kernels::Kernels;
use crate::launch::{Binding, CommandList, Event, Launch, LaunchConfig, Pipeline};
use crate::measure::Measure;
use crate::memory::{Buffer, ForeignMemory, Pool};
use crate::policy::Policy;

/// A device: memory and a queue of work, with its [kernels](Kernels), what [suits](Policy) it, and its [measurements](Measure).
///
/// Work submitted to a backend runs in order. The error of a kernel sticks to what it was to write, to what the launches behind it in its
/// list were to write, and to everything that later lists compute from that: such a list does not run (or, on a device that works beside
/// the host, its results do not count). [`copy_from_buffer`](Backend::copy_from_buffer) of those bytes gives the error each time,
/// [`wait`](Backend::wait) with the event of such a list too; [`synchronize`](Backend::synchronize) gives the first error that nobody has
/// been told of, once. Bytes are good again when the host or a list that does not depend on them writes them. Nothing else is concerned.
///
/// A wrapper implements this trait for itself and passes [`kernels`](Backend::kernels), [`policy`](Backend::policy) and
/// [`measure`](Backend::measure) of the device within on as they are: every provided method calls required ones only.
pub trait Backend: Send + Sync {
    /// The device's description.
    fn info(&self) -> &DeviceInfo;

    /// Whether the device still answers.
    fn is_available(&self) -> bool;

    /// Programs compiled and native kernels found.
    fn kernels(&self) -> &dyn Kernels;

    /// What suits the device.
    fn policy(&self) -> &Policy;

    /// What the device measures.
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

    /// Bytes of memory that new buffers may take now; `None` where the device does not tell.
    fn available_memory(&self) -> Option<u64>;

    /// A buffer over foreign host memory, which kernels may only read. Zero-copy where the device shares memory with the host, else
    /// a copy.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`](crate::BackendError::OutOfMemory).
    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer>;

    /// Copies host bytes into a buffer at a byte offset.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when the range is outside.
    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()>;

    /// Waits for the queue and copies bytes at an offset to the host.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when the range is outside; the error of the launch because of which the bytes have no content.
    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()>;

    /// Copies between buffers of this device, in queue order. The ranges may lie in one buffer but not overlap.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when a range is outside or they overlap.
    fn copy_buffer(&self, from: &Buffer, from_offset: usize, to: &Buffer, to_offset: usize, bytes: usize)
    -> Result<()>;

    /// Declares the content of bytes good that a failed launch was to write: whoever calls this knows which of them it has left alone, as
    /// a cache of which only a new part was being written.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) when the range is outside.
    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()>;

    /// Checks launches (arguments, alignment, ranges) and prepares them to be run repeatedly.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`](crate::BackendError::InvalidArgument) with the kernel and the argument.
    fn record(&self, launches: &[Launch]) -> Result<CommandList>;

    /// Enqueues a recording.
    ///
    /// # Errors
    /// Only what is known at once; errors of kernels come at the next wait.
    fn submit(&self, list: &CommandList) -> Result<Event>;

    /// Waits until the queue has passed the event.
    ///
    /// # Errors
    /// Why the list failed that the event is of, as often as it is asked; the last 1,024 such lists are remembered.
    fn wait(&self, event: Event) -> Result<()>;

    /// Waits for everything submitted.
    ///
    /// # Errors
    /// The first error that nobody has been told of, once.
    fn synchronize(&self) -> Result<()>;

    /// Gives memory back; dropping the last clone does the same.
    fn free_buffer(&self, buffer: Buffer) {
        drop(buffer);
    }

    /// Gives an arena back.
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
