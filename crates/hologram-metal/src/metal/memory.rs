//! Device memory: Metal buffers in memory shared with the host.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hologram_device::host::{Allocated, CachingAllocator, Source, size_class};
use hologram_device::{BackendError, BackendType, Buffer, DeviceMemory, ForeignMemory, Result, check_range};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};

use super::device::Device;
use super::residency::Resident;

/// Alignment of every buffer in bytes.
pub(super) const ALIGN: usize = 256;

unsafe extern "C" {
    /// Bytes of a page of memory: 16 KiB on Apple's processors.
    safe fn getpagesize() -> std::ffi::c_int;
}

/// A Metal buffer.
#[derive(Clone)]
pub(super) struct MetalBuffer(pub(super) Retained<ProtocolObject<dyn MTLBuffer>>);

// SAFETY: Metal's objects are reference-counted atomically, and a buffer's methods may be called from any thread; the
// queue orders accesses to the bytes.
unsafe impl Send for MetalBuffer {}
// SAFETY: a buffer's methods may be called by several threads at a time.
unsafe impl Sync for MetalBuffer {}

impl MetalBuffer {
    /// Memory of this many bytes.
    pub(super) fn new(device: &Device, bytes: usize) -> Option<MetalBuffer> {
        if bytes > device.max_buffer {
            return None;
        }
        autoreleasepool(|_| {
            device.raw.newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared).map(MetalBuffer)
        })
    }

    /// A buffer over the host pages that contain these bytes, and the offset of the first byte; `None` if Metal does
    /// not accept them.
    fn over(device: &Device, data: *const u8, bytes: usize) -> Option<(MetalBuffer, usize)> {
        let page = usize::try_from(getpagesize()).ok().filter(|p| p.is_power_of_two())?;
        let offset = data.addr() & (page - 1);
        let length = bytes.checked_add(offset)?.checked_next_multiple_of(page)?;
        let start = NonNull::new(data.cast_mut().wrapping_sub(offset).cast::<c_void>())?;
        if length > device.max_buffer {
            return None;
        }
        // SAFETY: the pages are whole, and the owner of the bytes keeps the used ones mapped for the buffer's life.
        // Kernels only read, and only the owner's bytes.
        let buffer = autoreleasepool(|_| unsafe {
            device.raw.newBufferWithBytesNoCopy_length_options_deallocator(
                start,
                length,
                MTLResourceOptions::StorageModeShared,
                None,
            )
        });
        buffer.map(|b| (MetalBuffer(b), offset))
    }

    /// The address of the first byte.
    pub(super) fn contents(&self) -> *mut u8 {
        self.0.contents().as_ptr().cast()
    }
}

/// A GPU's memory as a source of blocks.
pub(super) struct DeviceSource {
    pub(super) device: Arc<Device>,
}

/// Memory of one size class.
pub(super) struct Block {
    resident: Resident,
    usage: Arc<Usage>,
}

/// The last submission that uses a block. It stays with the block when the block serves another buffer.
#[derive(Default)]
pub(super) struct Usage(AtomicU64);

impl Usage {
    pub(super) fn touch(&self, number: u64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }

    pub(super) fn last(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Source for DeviceSource {
    type Block = Block;

    fn class(&self, bytes: usize) -> Option<usize> {
        size_class(bytes, ALIGN)
    }

    fn allocate(&self, class: usize) -> Option<Block> {
        let buffer = MetalBuffer::new(&self.device, class)?;
        Some(Block { resident: Resident::new(&self.device.residency, buffer), usage: Arc::default() })
    }

    fn start(&self, block: &Block) -> u64 {
        block.resident.buffer.contents().addr() as u64
    }

    fn max_cached(&self) -> u64 {
        self.device.working_set / 4
    }

    fn free(&self) -> Option<u64> {
        Some(self.device.available())
    }
}

/// The allocator of a GPU.
pub(super) type Allocator = CachingAllocator<DeviceSource>;

/// The most parts of a pool that are ordered separately, and the multiple of bytes that a part's size is rounded up to.
const PARTS: usize = 64;
const PART_ALIGN: usize = 4 << 10;

/// The memory of a buffer.
pub(super) struct MetalMemory {
    data: *mut u8,
    bytes: usize,
    /// The last uses of each part: one part, except for pools.
    usages: Box<[Arc<Usage>]>,
    /// Bytes per part.
    part: usize,
    /// Whether kernels and copies may write to it.
    writable: bool,
    allocator: Arc<Allocator>,
    place: Place,
}

/// The place of the bytes.
enum Place {
    /// There are no bytes.
    Nothing,
    /// In a block of the allocator.
    Block(Allocated<DeviceSource>),
    /// In pages of the host, which kernels may only read.
    Foreign(Foreign),
}

/// Ranges of foreign memory of fewer bytes are copied.
const COPIED_BELOW: usize = 1 << 20;

/// Memory with an owner outside the device, such as a mapped file.
///
/// A range that kernels use has a buffer of its own over its pages, or a copy if it is small: Metal wires all pages of
/// a buffer that a command buffer uses, and most of a file may be in the device's memory already, in another layout.
struct Foreign {
    device: Arc<Device>,
    /// Buffers by the range's start and end, each with the offset of its first byte.
    parts: Mutex<BTreeMap<(usize, usize), (Resident, usize)>>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are this buffer's (or foreign and only read), and the queue orders the accesses.
unsafe impl Send for MetalMemory {}
// SAFETY: shared references give only the address; its users hold the queue.
unsafe impl Sync for MetalMemory {}

impl MetalMemory {
    /// Memory of at least this many bytes; its content is undefined.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub(super) fn new(allocator: &Arc<Allocator>, bytes: usize) -> Result<MetalMemory> {
        let block = if bytes == 0 { None } else { Some(allocator.take(bytes)?) };
        let inner = block.as_ref().and_then(Allocated::block);
        let data = inner.map_or(ALIGN as *mut u8, |b| b.resident.buffer.contents());
        let usages = Box::new([inner.map(|b| b.usage.clone()).unwrap_or_default()]);
        let place = block.map_or(Place::Nothing, Place::Block);
        let (allocator, part) = (allocator.clone(), bytes.max(1));
        Ok(MetalMemory { data, bytes, usages, part, writable: true, allocator, place })
    }

    /// Memory of which one part may be written while the device uses another.
    ///
    /// # Errors
    /// As [`MetalMemory::new`].
    pub(super) fn pool(allocator: &Arc<Allocator>, bytes: usize) -> Result<MetalMemory> {
        let mut memory = MetalMemory::new(allocator, bytes)?;
        let last = memory.usages[0].last();
        memory.part = bytes.div_ceil(PARTS).next_multiple_of(PART_ALIGN).max(PART_ALIGN);
        let part = |_| Arc::new(Usage(AtomicU64::new(last)));
        memory.usages = (0..bytes.div_ceil(memory.part).max(1)).map(part).collect();
        Ok(memory)
    }

    /// Foreign memory in place; `None` if Metal does not accept its pages, of which the first is tried.
    pub(super) fn wrap(
        device: &Arc<Device>,
        allocator: &Arc<Allocator>,
        memory: &ForeignMemory,
    ) -> Option<MetalMemory> {
        let (data, bytes) = (memory.as_bytes().as_ptr(), memory.as_bytes().len());
        MetalBuffer::over(device, data, bytes.min(1))?;
        let foreign = Foreign { device: device.clone(), parts: Mutex::default(), _owner: memory.owner().clone() };
        let usages: Box<[Arc<Usage>]> = Box::new([Arc::default()]);
        let (data, allocator) = (data.cast_mut(), allocator.clone());
        let (part, place) = (bytes.max(1), Place::Foreign(foreign));
        Some(MetalMemory { data, bytes, usages, part, writable: false, allocator, place })
    }

    /// Whether the memory belongs to this allocator's device.
    pub(super) fn is_of(&self, allocator: &Arc<Allocator>) -> bool {
        Arc::ptr_eq(&self.allocator, allocator)
    }

    /// Makes the memory read-only.
    pub(super) fn read_only(mut self) -> MetalMemory {
        self.writable = false;
        self
    }

    /// All of it.
    pub(super) fn all(&self) -> Slice {
        let metal = if self.bytes == 0 { None } else { self.metal(0, self.bytes) };
        Slice { data: self.data, bytes: self.bytes, metal, usages: self.usages.to_vec() }
    }

    /// The Metal buffer that contains a range, and the offset in it; `None` for no bytes, and if Metal does not accept
    /// the pages.
    fn metal(&self, offset: usize, bytes: usize) -> Option<(MetalBuffer, usize)> {
        match &self.place {
            Place::Nothing => None,
            Place::Block(block) => block.block().map(|b| (b.resident.buffer.clone(), offset)),
            Place::Foreign(foreign) => foreign.metal(self.data.wrapping_add(offset), offset, bytes),
        }
    }
}

impl Foreign {
    /// The buffer of a range that begins at `data`, and the offset in it.
    fn metal(&self, data: *const u8, offset: usize, bytes: usize) -> Option<(MetalBuffer, usize)> {
        let end = offset.checked_add(bytes)?;
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        // A tensor's views begin with or after the tensor.
        let around = parts.range(..=(offset, usize::MAX)).next_back().filter(|((_, last), _)| *last >= end);
        if let Some(((first, _), (part, start))) = around {
            return Some((part.buffer.clone(), start + offset - first));
        }
        let (buffer, start) = if bytes < COPIED_BELOW {
            let copy = MetalBuffer::new(&self.device, bytes)?;
            // SAFETY: the owner keeps the bytes mapped and unchanged; the new buffer has as many.
            unsafe { copy.contents().copy_from_nonoverlapping(data, bytes) };
            (copy, 0)
        } else {
            MetalBuffer::over(&self.device, data, bytes)?
        };
        parts.insert((offset, end), (Resident::new(&self.device.residency, buffer.clone()), start));
        Some((buffer, start))
    }
}

impl Drop for MetalMemory {
    /// The next buffer in the block must come after the uses of all of a pool's parts.
    fn drop(&mut self) {
        if let Place::Block(block) = &self.place
            && let Some(block) = block.block()
        {
            self.usages.iter().for_each(|usage| block.usage.touch(usage.last()));
        }
    }
}

impl DeviceMemory for MetalMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn backend(&self) -> BackendType {
        BackendType::Metal
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn host_address(&self) -> Option<u64> {
        Some(self.data.expose_provenance() as u64)
    }

    /// Other libraries know Metal's memory by its objects.
    fn address(&self) -> Option<u64> {
        None
    }
}

/// Who accesses a range, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The host reads it: foreign memory stays the host's alone.
    Host,
    /// The device reads it.
    Read,
    /// The host or the device writes it.
    Write,
}

/// A checked range of a buffer of this device.
#[derive(Clone)]
pub(super) struct Slice {
    /// The first byte's host address, which also stands for the device's address in lists of uses.
    pub(super) data: *mut u8,
    pub(super) bytes: usize,
    /// Metal's buffer and the offset in it; `None` for no bytes, and for the host alone.
    pub(super) metal: Option<(MetalBuffer, usize)>,
    /// The last uses of the parts that it lies in.
    pub(super) usages: Vec<Arc<Usage>>,
}

// SAFETY: a recording or a call keeps the memory alive, and the queue orders the accesses.
unsafe impl Send for Slice {}
// SAFETY: shared references give only the address; its users hold the queue.
unsafe impl Sync for Slice {}

impl Slice {
    /// The bytes' addresses.
    pub(super) fn addresses(&self) -> Range<u64> {
        let start = self.data.addr() as u64;
        start..start + self.bytes as u64
    }

    /// The last submission that uses the bytes.
    pub(super) fn last_use(&self) -> u64 {
        self.usages.iter().map(|u| u.last()).max().unwrap_or(0)
    }

    /// Copies bytes from the host, whose number must match; nothing on the device may use the range.
    pub(super) fn write(&self, data: &[u8]) {
        // SAFETY: the range was checked and is this device's own; nobody else accesses it now, as the caller holds the
        // queue.
        unsafe { self.data.copy_from_nonoverlapping(data.as_ptr(), data.len().min(self.bytes)) };
    }

    /// Copies bytes to the host, whose number must match; the device must have passed the writes to the range.
    pub(super) fn read(&self, data: &mut [u8]) {
        // SAFETY: the range was checked, and nobody writes it now, as the device has passed its writers.
        unsafe { self.data.copy_to_nonoverlapping(data.as_mut_ptr(), data.len().min(self.bytes)) };
    }
}

/// A checked range of a buffer of this device.
///
/// # Errors
/// [`BackendError::InvalidArgument`]: another device's buffer, a range out of bounds, or foreign memory that would be
/// written.
pub(super) fn slice(
    allocator: &Arc<Allocator>,
    operation: &str,
    buffer: &Buffer,
    offset: usize,
    bytes: usize,
    access: Access,
) -> Result<Slice> {
    let invalid = |reason: String| BackendError::InvalidArgument {
        device: BackendType::Metal.to_string(),
        operation: operation.to_string(),
        reason,
    };
    let memory = match buffer.downcast::<MetalMemory>() {
        Some(memory) if memory.is_of(allocator) => memory,
        Some(_) => return Err(invalid("the buffer belongs to a device that was opened apart".into())),
        None => return Err(invalid(format!("the buffer belongs to {}", buffer.backend()))),
    };
    check_range(BackendType::Metal, operation, buffer, offset, bytes)?;
    if access == Access::Write && !memory.writable {
        return Err(invalid("the buffer wraps foreign memory, which is read-only; copy it into a buffer first".into()));
    }
    let on_device = bytes > 0 && access != Access::Host;
    let metal = if on_device { memory.metal(offset, bytes) } else { None };
    if on_device && metal.is_none() {
        return Err(invalid(format!("Metal does not take the pages of bytes {offset}..+{bytes}")));
    }
    let last = (offset + bytes).div_ceil(memory.part).clamp(1, memory.usages.len());
    let usages = memory.usages[(offset / memory.part).min(last - 1)..last].to_vec();
    Ok(Slice { data: memory.data.wrapping_add(offset), bytes, metal, usages })
}
