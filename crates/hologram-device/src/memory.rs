//! Memory: device buffers, and borrowed host memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::error::{BackendError, Result};
use crate::info::BackendType;

/// A range of device memory. Clones share it; the last one dropped frees it.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<dyn DeviceMemory>,
}

/// The memory that a backend keeps behind a [`Buffer`]; freed on drop.
pub trait DeviceMemory: Any + Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> usize;
    /// The kind of backend that owns it.
    fn backend(&self) -> BackendType;
    /// For the backend's downcast.
    fn as_any(&self) -> &dyn Any;

    /// Whether the device may write to it.
    fn writable(&self) -> bool {
        true
    }

    /// The host's address of the first byte, if the host can access the memory.
    fn host_address(&self) -> Option<u64> {
        None
    }

    /// The device's address of the first byte, if it has one that other libraries understand.
    fn address(&self) -> Option<u64> {
        self.host_address()
    }
}

impl Buffer {
    /// Wraps a backend's memory.
    pub fn new(memory: impl DeviceMemory) -> Buffer {
        Buffer { inner: Arc::new(memory) }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    /// The kind of backend that owns it.
    pub fn backend(&self) -> BackendType {
        self.inner.backend()
    }

    /// The device's address of the first byte, as other libraries on the device know it: the host's on a CPU, a
    /// `CUdeviceptr` on an NVIDIA GPU. `None` if the device has no such addresses. It is valid as long as a clone of
    /// the buffer lives; whoever uses it must order that use with the device's work.
    pub fn address(&self) -> Option<u64> {
        self.inner.address()
    }

    /// Whether the device may write to it: not to memory of another library that is only read.
    pub fn writable(&self) -> bool {
        self.inner.writable()
    }

    /// The host's address of the first byte; `None` if the host cannot access the memory.
    pub fn host_address(&self) -> Option<u64> {
        self.inner.host_address()
    }

    /// The backend's own type, for the backend.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.inner.as_any().downcast_ref()
    }

    /// Whether both are the same memory.
    pub fn same_memory(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {} bytes)", self.backend(), self.bytes())
    }
}

/// A fixed-size arena addressed by offset, for streaming data larger than the device.
#[derive(Clone, Debug)]
pub struct Pool(pub Buffer);

/// Host memory that a buffer may wrap without a copy: the owner is kept alive as long as the buffer.
///
/// Its address comes from [`ForeignMemory::new`], which is unsafe, or from the owner in [`ForeignMemory::from_owner`]:
///
/// ```compile_fail,E0451
/// # use hologram_device::ForeignMemory;
/// let memory = ForeignMemory { owner: std::sync::Arc::new(()), data: 8 as *const u8, bytes: 64 };
/// ```
pub struct ForeignMemory {
    /// Keeps the bytes alive, unmoved and unchanged (a mapped file, an array of another library).
    owner: Arc<dyn Any + Send + Sync>,
    data: *const u8,
    bytes: usize,
}

// SAFETY: the bytes are only read, and `owner`, which is Send and Sync, keeps them unchanged: see `ForeignMemory::new`.
unsafe impl Send for ForeignMemory {}
// SAFETY: shared references give only the address and shared slices of bytes that stay unchanged.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Wraps the bytes of an owner, which are requested once.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hologram_device::{Backend, ForeignMemory, ReferenceBackend};
    /// let device = ReferenceBackend::new();
    /// let buffer = device.wrap(ForeignMemory::from_owner(Arc::new(vec![1, 2, 3])))?;
    /// let mut bytes = [0; 2];
    /// device.copy_from_buffer(&buffer, 1, &mut bytes)?;
    /// assert_eq!(bytes, [2, 3]);
    /// # Ok::<(), hologram_device::BackendError>(())
    /// ```
    ///
    /// Every thread may read the bytes as long as a buffer lives, so the owner must be `Send`, `Sync` and without
    /// borrows:
    ///
    /// ```compile_fail,E0597
    /// # use std::sync::Arc;
    /// # use hologram_device::ForeignMemory;
    /// let bytes = vec![1, 2, 3];
    /// let memory = ForeignMemory::from_owner(Arc::new(bytes.as_slice()));
    /// ```
    pub fn from_owner<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> ForeignMemory {
        let bytes: &[u8] = (*owner).as_ref();
        let (data, bytes) = (bytes.as_ptr(), bytes.len());
        // SAFETY: `bytes` borrows from the owner for as long as the memory keeps its clone of the `Arc`: until then the
        // owner neither moves nor dies, and nobody gets a `&mut` to it. An owner's changes through shared references
        // (by interior mutability) must respect the borrow, as for any caller of `as_ref` that keeps the slice.
        unsafe { ForeignMemory::new(owner, data, bytes) }
    }

    /// Wraps bytes at an address.
    ///
    /// # Safety
    /// As long as `owner` lives, `data` is valid for reads of `bytes` bytes, which nobody writes. It may be null if
    /// `bytes` is 0.
    pub unsafe fn new(owner: Arc<dyn Any + Send + Sync>, data: *const u8, bytes: usize) -> ForeignMemory {
        ForeignMemory { owner, data, bytes }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the caller of `new` promised that the bytes are readable and constant while the owner lives; the
        // borrow keeps the owner.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }

    /// The owner of the bytes.
    pub fn owner(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.owner
    }
}

/// Memory at an address of a device, which belongs to another library: its owner is kept alive as long as a buffer over
/// it, and until the device has passed the last work that uses it.
pub struct ForeignPointer {
    owner: Arc<dyn Any + Send + Sync>,
    address: u64,
    bytes: usize,
    writable: bool,
}

impl ForeignPointer {
    /// Memory at an address: the host's for a device that works in the host's memory, a `CUdeviceptr` of the device's
    /// primary context for an NVIDIA GPU.
    ///
    /// # Safety
    /// As long as `owner` lives, the device may read `bytes` bytes at the address, and write them if `writable` is set.
    /// The owner may be dropped on any thread. While work of the device uses the bytes, nobody else writes them, and
    /// nobody else reads bytes that it writes; work on other streams of a GPU is ordered by
    /// [`Streams::wait_for_stream`](crate::Streams::wait_for_stream) and
    /// [`Streams::make_stream_wait`](crate::Streams::make_stream_wait).
    pub unsafe fn new(owner: Arc<dyn Any + Send + Sync>, address: u64, bytes: usize, writable: bool) -> ForeignPointer {
        ForeignPointer { owner, address, bytes, writable }
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the device may write to it.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Keeps the memory alive.
    pub fn owner(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.owner
    }

    /// The bytes between the last multiple of [`POINTER_ALIGN`] and the address: where the memory begins in its buffer.
    pub fn lead(&self) -> usize {
        (self.address % POINTER_ALIGN as u64) as usize
    }
}

/// A buffer over a [`ForeignPointer`] begins at a multiple of this many bytes, at or before the pointer, so that
/// offsets in it are aligned like addresses. The bytes before the pointer cannot be used.
pub const POINTER_ALIGN: usize = 64;

/// Checks that `offset..offset + bytes` lies in a buffer.
///
/// # Errors
/// [`BackendError::InvalidArgument`].
pub fn check_range(device: BackendType, operation: &str, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= buffer.bytes() => Ok(()),
        _ => Err(BackendError::InvalidArgument {
            device: device.to_string(),
            operation: operation.to_string(),
            reason: format!("bytes {offset}..+{bytes} lie outside a buffer of {} bytes", buffer.bytes()),
        }),
    }
}

/// Checks that the two ranges of a copy do not overlap.
///
/// # Errors
/// [`BackendError::InvalidArgument`].
pub fn check_apart(
    device: BackendType,
    (from, from_offset): (&Buffer, usize),
    (to, to_offset): (&Buffer, usize),
    bytes: usize,
) -> Result<()> {
    if !from.same_memory(to) || from_offset.abs_diff(to_offset) >= bytes {
        return Ok(());
    }
    Err(BackendError::InvalidArgument {
        device: device.to_string(),
        operation: "copy_buffer".into(),
        reason: format!("{bytes} bytes at {from_offset} and at {to_offset} of one buffer overlap"),
    })
}
