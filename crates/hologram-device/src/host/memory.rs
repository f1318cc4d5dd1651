//! Buffers in the host's memory and the caching allocator behind them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::sync::Arc;

use super::allocator::{Allocated, CachingAllocator, Source, size_class};
use crate::error::{BackendError, Result};
use crate::info::BackendType;
use crate::memory::{Buffer, DeviceMemory, ForeignMemory, ForeignPointer, check_range};

/// The memory of one argument: the bytes of one view, whose range and alignment were checked when the launch was
/// recorded.
#[derive(Clone, Copy, Debug)]
pub struct RawSlice {
    /// First byte.
    pub data: *mut u8,
    /// Length in bytes.
    pub bytes: usize,
}

// SAFETY: a RawSlice is only an address; Args decides how it is used, and the recording keeps the buffer alive.
unsafe impl Send for RawSlice {}
// SAFETY: a shared RawSlice gives nothing but the address.
unsafe impl Sync for RawSlice {}

/// Alignment of every buffer: a cache line, and the widest vector.
const ALIGN: usize = 64;
/// The address of empty memory.
const NOWHERE: *mut u8 = std::ptr::without_provenance_mut(ALIGN);
/// Blocks of at least this size are aligned to it, so that the system can use huge pages for them.
const HUGE: usize = 2 << 20;

/// Memory from the system: `data` is the aligned part of an allocation at `base`.
pub struct Block {
    base: *mut u8,
    layout: Layout,
    data: *mut u8,
}

// SAFETY: a block owns its memory; it moves between threads, but two never use it at once.
unsafe impl Send for Block {}
// SAFETY: a shared block only gives its address.
unsafe impl Sync for Block {}

impl Block {
    /// Zeroed memory of one size class; `None` when the system has none. It stays untouched zero pages, so memory that
    /// is never written costs nothing.
    fn allocate(class: usize) -> Option<Block> {
        let align = match class {
            HUGE.. => HUGE,
            65536.. => 4096,
            _ => ALIGN,
        };
        // With a large alignment the standard allocator would clear (and so touch) every page.
        let layout = Layout::from_size_align(class.checked_add(align)?, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return None;
        }
        // SAFETY: at most `align` bytes further, and the allocation is that much larger than the class.
        let data = unsafe { base.add(base.align_offset(align)) };
        if align == HUGE {
            advise_huge_pages(data, class);
        }
        Some(Block { base, layout, data })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: base and layout are those of the allocation, which nothing else frees.
        unsafe { dealloc(self.base, self.layout) }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge_pages(data: *mut u8, bytes: usize) {
    unsafe extern "C" {
        fn madvise(address: *mut std::ffi::c_void, bytes: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
    }
    const MADV_HUGEPAGE: std::ffi::c_int = 14;
    // SAFETY: the range is whole huge pages of our own allocation. It is advice: a failure affects only speed.
    unsafe {
        madvise(data.cast(), bytes & !(HUGE - 1), MADV_HUGEPAGE);
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
fn advise_huge_pages(_data: *mut u8, _bytes: usize) {}

/// The host's memory as a source of blocks.
pub struct System;

impl Source for System {
    type Block = Block;

    fn class(&self, bytes: usize) -> Option<usize> {
        size_class(bytes, ALIGN)
    }

    fn allocate(&self, class: usize) -> Option<Block> {
        Block::allocate(class)
    }

    fn start(&self, block: &Block) -> u64 {
        block.data.addr() as u64
    }

    fn max_cached(&self) -> u64 {
        1 << 30
    }

    fn free(&self) -> Option<u64> {
        None
    }
}

/// The allocator of devices that work in the host's memory.
pub type Allocator = CachingAllocator<System>;

impl Allocator {
    /// An allocator whose live and cached bytes together stay within `cap`.
    pub fn new(device: BackendType, cap: Option<u64>) -> Arc<Allocator> {
        CachingAllocator::with_source(System, device, cap)
    }

    /// Memory of at least 64-byte alignment; it contains zeros or what an earlier buffer left.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<HostMemory> {
        if bytes == 0 {
            return Ok(HostMemory {
                data: NOWHERE,
                bytes: 0,
                device: self.device(),
                owner: Owner::Nothing,
                first: 0,
                allocator: self.clone(),
            });
        }
        let block = self.take(bytes)?;
        let data = block.block().map_or(NOWHERE, |block| block.data);
        let (device, owner) = (self.device(), Owner::Allocator(block));
        Ok(HostMemory { data, bytes, device, owner, first: 0, allocator: self.clone() })
    }

    /// Foreign memory as a buffer that kernels may only read.
    pub fn wrap(self: &Arc<Self>, memory: &ForeignMemory) -> HostMemory {
        let bytes = memory.as_bytes();
        HostMemory {
            data: if bytes.is_empty() { NOWHERE } else { bytes.as_ptr().cast_mut() },
            bytes: bytes.len(),
            device: self.device(),
            owner: Owner::Foreign { writable: false, _owner: memory.owner().clone() },
            first: 0,
            allocator: self.clone(),
        }
    }

    /// Memory of another library as a buffer.
    pub fn wrap_pointer(self: &Arc<Self>, memory: &ForeignPointer) -> HostMemory {
        let first = memory.lead();
        let data = std::ptr::with_exposed_provenance_mut::<u8>(memory.address() as usize).wrapping_sub(first);
        HostMemory {
            data: if memory.bytes() == 0 { NOWHERE } else { data },
            bytes: first + memory.bytes(),
            device: self.device(),
            owner: Owner::Foreign { writable: memory.writable(), _owner: memory.owner().clone() },
            first,
            allocator: self.clone(),
        }
    }
}

/// The owner of the bytes.
enum Owner {
    /// There are no bytes.
    Nothing,
    Allocator(#[expect(dead_code, reason = "held for its drop")] Allocated<System>),
    Foreign {
        writable: bool,
        _owner: Arc<dyn Any + Send + Sync>,
    },
}

/// The memory of a buffer. Only backends access its bytes; they keep kernels and copies from running at the same time.
pub struct HostMemory {
    data: *mut u8,
    bytes: usize,
    device: BackendType,
    owner: Owner,
    /// The first byte that may be used: foreign memory begins where its library put it.
    first: usize,
    allocator: Arc<Allocator>,
}

// SAFETY: the address is exclusive to this buffer, or foreign and used as its owner permits; its owner is Send, and the
// queue of the one device that `host_memory` gives it to orders the accesses.
unsafe impl Send for HostMemory {}
// SAFETY: shared references give only the address; its users hold the device's queue.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Its bytes.
    pub fn raw(&self) -> RawSlice {
        RawSlice { data: self.data, bytes: self.bytes }
    }

    /// Whether it belongs to this allocator.
    pub fn is_of(&self, allocator: &Arc<Allocator>) -> bool {
        Arc::ptr_eq(&self.allocator, allocator)
    }
}

impl Drop for HostMemory {
    /// Failures stick to addresses, which the next memory there must not inherit; blocks lose theirs in the allocator.
    fn drop(&mut self) {
        if let Owner::Foreign { writable: true, .. } = self.owner {
            self.allocator.failures().clear(self.raw().addresses());
        }
    }
}

impl DeviceMemory for HostMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn backend(&self) -> BackendType {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn writable(&self) -> bool {
        !matches!(self.owner, Owner::Foreign { writable: false, .. })
    }

    fn host_address(&self) -> Option<u64> {
        Some(self.data.expose_provenance() as u64)
    }
}

impl RawSlice {
    /// The bytes' addresses.
    pub fn addresses(&self) -> std::ops::Range<u64> {
        let start = self.data.addr() as u64;
        start..start + self.bytes as u64
    }
}

/// A checked range of a buffer's bytes.
#[derive(Clone, Copy)]
pub struct HostRange(RawSlice);

impl HostRange {
    /// As an address with a length.
    pub fn raw(self) -> RawSlice {
        self.0
    }

    /// The bytes' addresses.
    pub fn addresses(&self) -> std::ops::Range<u64> {
        self.0.addresses()
    }

    /// Copies as many bytes from the host as the range has.
    ///
    /// # Safety
    /// The buffer is alive, the range was checked for writing, and the caller holds the device's queue: no kernel runs.
    pub unsafe fn write(self, data: &[u8]) {
        let n = data.len().min(self.0.bytes);
        // SAFETY: the caller promises that nobody else uses the range. It is not foreign, so `data` cannot lie in it:
        // only raw addresses lead to a device's own memory.
        unsafe { self.0.data.copy_from_nonoverlapping(data.as_ptr(), n) };
    }

    /// Copies as many bytes to the host as the range has.
    ///
    /// # Safety
    /// The buffer is alive, and the caller holds the device's queue: no kernel runs.
    pub unsafe fn read(self, data: &mut [u8]) {
        let n = data.len().min(self.0.bytes);
        // SAFETY: the caller promises that nobody writes the range. `data` is borrowed exclusively, so it lies neither
        // in the device's own memory nor in foreign memory, whose owner is shared.
        unsafe { self.0.data.copy_to_nonoverlapping(data.as_mut_ptr(), n) };
    }

    /// Copies to a range of the same length.
    ///
    /// # Safety
    /// As [`HostRange::read`] for this range and [`HostRange::write`] for the other.
    pub unsafe fn copy_to(self, to: HostRange) {
        // SAFETY: the caller promises that nobody else uses either range; `copy_to` allows overlap.
        unsafe { self.0.data.copy_to(to.0.data, self.0.bytes.min(to.0.bytes)) };
    }
}

/// A range of a buffer of an allocator's device. No other device may use it, not even one of the same kind: the
/// device's queue orders its accesses.
///
/// # Errors
/// [`BackendError::InvalidArgument`]: another device's buffer, a range out of bounds, or foreign memory that would be
/// written.
pub fn host_memory(
    allocator: &Arc<Allocator>,
    operation: &str,
    buffer: &Buffer,
    offset: usize,
    bytes: usize,
    write: bool,
) -> Result<HostRange> {
    let device = allocator.device();
    let invalid = |reason: String| BackendError::InvalidArgument {
        device: device.to_string(),
        operation: operation.to_string(),
        reason,
    };
    let memory = match buffer.downcast::<HostMemory>() {
        Some(memory) if memory.is_of(allocator) => memory,
        Some(_) if buffer.backend() == device => {
            let reason =
                format!("the buffer belongs to another {device} device; copy its bytes into a buffer of this one");
            return Err(invalid(reason));
        }
        _ => return Err(invalid(format!("the buffer belongs to {}", buffer.backend()))),
    };
    check_range(device, operation, buffer, offset, bytes)?;
    if offset < memory.first && bytes > 0 {
        return Err(invalid(format!("bytes {offset}..+{bytes} begin before the foreign memory, at {}", memory.first)));
    }
    if write && !memory.writable() {
        return Err(invalid("the buffer wraps foreign memory, which is read-only; copy it into a buffer first".into()));
    }
    // Foreign memory may begin in the buffer, so the buffer's first byte need not be in the memory.
    Ok(HostRange(RawSlice { data: memory.data.wrapping_add(offset), bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MemoryMetrics;

    #[test]
    fn classes_waste_at_most_an_eighth() {
        for bytes in [1, 63, 64, 65, 1000, 4097, 65537, 1 << 20, (1 << 20) + 1, 100 << 20, (3 << 30) + 5] {
            let class = size_class(bytes, ALIGN).unwrap();
            assert!(class >= bytes && class - bytes < (bytes / 8).max(64), "{bytes} -> {class}");
            assert_eq!(size_class(class, ALIGN), Some(class));
        }
        assert_eq!(size_class(usize::MAX, ALIGN), None);
    }

    #[test]
    fn blocks_are_reused_counted_and_capped() {
        let allocator = Allocator::new(BackendType::Cpu, Some(10_000));
        let a = allocator.allocate(1000).unwrap();
        let b = allocator.allocate(5000).unwrap();
        let live = size_class(1000, ALIGN).unwrap() + size_class(5000, ALIGN).unwrap();
        let expected = MemoryMetrics { live: live as u64, cached: 0, peak: live as u64, hits: 0, misses: 2 };
        assert_eq!(allocator.metrics(), expected);
        let error = allocator.allocate(6000).err().unwrap().to_string();
        assert!(error.contains("cannot allocate 6000 bytes") && error.contains("cap"), "{error}");
        let address = a.raw().data;
        drop(a);
        let c = allocator.allocate(990).unwrap();
        assert_eq!(c.raw().data, address);
        drop((b, c));
        // The cache is freed to stay within the cap.
        let d = allocator.allocate(6000).unwrap();
        let class = size_class(6000, ALIGN).unwrap() as u64;
        let expected = MemoryMetrics { live: class, cached: 0, peak: live as u64, hits: 1, misses: 3 };
        assert_eq!(allocator.metrics(), expected);
        drop(d);
        assert_eq!((allocator.metrics().live, allocator.metrics().cached), (0, class));
        assert!(matches!(allocator.allocate(usize::MAX), Err(BackendError::OutOfMemory { .. })));
        assert_eq!(allocator.allocate(0).unwrap().bytes(), 0);
    }

    #[test]
    fn every_size_is_aligned_and_starts_zeroed() {
        let allocator = Allocator::new(BackendType::Cpu, None);
        // The largest size would take minutes under Miri.
        let sizes = &[(1, 64), (100_000, 4096), (3 << 20, HUGE)][..if cfg!(miri) { 2 } else { 3 }];
        for &(bytes, align) in sizes {
            let memory = allocator.allocate(bytes).unwrap();
            assert_eq!(memory.raw().data.addr() % align, 0);
            // SAFETY: the buffer's own bytes, which start as zeros and which nothing else uses.
            assert!(unsafe { std::slice::from_raw_parts(memory.raw().data, bytes) }.iter().all(|b| *b == 0));
        }
    }
}
