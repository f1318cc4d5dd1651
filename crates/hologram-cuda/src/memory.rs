//! Device memory, and the order in which the streams may use it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUdeviceptr;
use hologram_device::host::{Allocated, CachingAllocator, Source, size_class};
use hologram_device::{BackendError, BackendType, Buffer, DeviceMemory, ForeignPointer, Result, check_range};

use super::context::{Context, CudaEvent, DeviceBlock};

/// Alignment of every buffer in bytes.
const ALIGN: usize = 512;

/// A GPU's memory as a source of blocks.
pub(super) struct DeviceSource {
    pub(super) context: Arc<Context>,
    /// The most bytes kept for reuse.
    pub(super) max_cached: u64,
}

/// Memory of one size class.
pub(super) struct Block {
    memory: DeviceBlock,
    usage: Arc<Usage>,
}

/// The last uses of a block. Uploads run in a stream of their own; this keeps them and launches in order. It stays with
/// the block when the block serves another buffer.
#[derive(Default)]
pub(super) struct Usage {
    /// The last submission to the queue that uses the block.
    pub(super) submission: AtomicU64,
    /// The last upload to the block.
    pub(super) upload: AtomicU64,
}

impl Source for DeviceSource {
    type Block = Block;

    fn class(&self, bytes: usize) -> Option<usize> {
        size_class(bytes, ALIGN)
    }

    fn allocate(&self, class: usize) -> Option<Block> {
        self.context.enter().ok()?;
        let mut raw = 0;
        // SAFETY: writes one address.
        let code = unsafe { (self.context.driver.cuMemAlloc_v2)(&mut raw, class) };
        self.context.check(code, || format!("allocating {class} bytes")).ok()?;
        Some(Block { memory: DeviceBlock { raw, context: self.context.clone() }, usage: Arc::default() })
    }

    fn start(&self, block: &Block) -> u64 {
        block.memory.raw
    }

    fn max_cached(&self) -> u64 {
        self.max_cached
    }

    fn free(&self) -> Option<u64> {
        self.context.memory().map(|(free, _)| free)
    }
}

/// The allocator of a GPU.
pub(super) type Allocator = CachingAllocator<DeviceSource>;

/// The memory of a buffer.
pub(super) struct CudaMemory {
    address: CUdeviceptr,
    bytes: usize,
    /// Whether kernels and copies may write to it.
    writable: bool,
    /// The last uses of each part: one part, except for pools.
    usages: Box<[Arc<Usage>]>,
    /// Bytes per part.
    part: usize,
    context: Arc<Context>,
    block: Option<Allocated<DeviceSource>>,
    foreign: Option<Foreign>,
}

/// Memory of another library in the device's primary context.
struct Foreign {
    /// The first byte that may be used.
    first: usize,
    /// The events of the queue's submissions, by number.
    events: Arc<[CudaEvent]>,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// The most parts of a pool that are ordered separately, and the multiple of bytes that a part's size is rounded up to.
const PARTS: usize = 64;
const PART_ALIGN: usize = 4 << 10;

impl CudaMemory {
    /// Memory of at least this many bytes; its content is undefined.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; a lost device.
    pub(super) fn new(
        context: &Arc<Context>,
        allocator: &Arc<Allocator>,
        bytes: usize,
        writable: bool,
    ) -> Result<CudaMemory> {
        context.enter()?;
        let block =
            if bytes == 0 { None } else { Some(allocator.take(bytes).or_else(|e| context.enter().and(Err(e)))?) };
        let inner = block.as_ref().and_then(Allocated::block);
        let address = inner.map_or(ALIGN as CUdeviceptr, |b| b.memory.raw);
        let usage = inner.map(|b| b.usage.clone()).unwrap_or_default();
        let (usages, part) = (Box::new([usage]), bytes.max(1));
        Ok(CudaMemory { address, bytes, writable, usages, part, context: context.clone(), block, foreign: None })
    }

    /// Memory of another library. `events` are those of the queue's submissions.
    pub(super) fn wrap(context: &Arc<Context>, memory: &ForeignPointer, events: Arc<[CudaEvent]>) -> CudaMemory {
        let first = memory.lead();
        let bytes = first + memory.bytes();
        CudaMemory {
            address: memory.address() - first as u64,
            bytes,
            writable: memory.writable(),
            usages: Box::new([Arc::default()]),
            part: bytes.max(1),
            context: context.clone(),
            block: None,
            foreign: Some(Foreign { first, events, _owner: memory.owner().clone() }),
        }
    }

    /// Memory of which one part may be written while the device uses another.
    ///
    /// # Errors
    /// As [`CudaMemory::new`].
    pub(super) fn pool(context: &Arc<Context>, allocator: &Arc<Allocator>, bytes: usize) -> Result<CudaMemory> {
        let mut memory = CudaMemory::new(context, allocator, bytes, true)?;
        memory.part = bytes.div_ceil(PARTS).next_multiple_of(PART_ALIGN).max(PART_ALIGN);
        memory.usages = (0..bytes.div_ceil(memory.part).max(1)).map(|_| Arc::new(memory.usages[0].copied())).collect();
        Ok(memory)
    }

    /// Whether the memory belongs to another library.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Whether the memory belongs to this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(super) fn usages(&self) -> &[Arc<Usage>] {
        &self.usages
    }
}

impl Drop for CudaMemory {
    /// The next buffer in the block must come after the uses of all of a pool's parts. Another library gets its memory
    /// back when the device has passed the last use.
    fn drop(&mut self) {
        if let Some(foreign) = &self.foreign {
            let last = self.usages.iter().map(|usage| usage.submission.load(Ordering::Relaxed)).max().unwrap_or(0);
            let event = foreign.events.get((last % foreign.events.len().max(1) as u64) as usize);
            // The event may be a later submission's by now; then this waits longer. A lost device uses nothing.
            if let Some(event) = event.filter(|_| last > 0 && self.context.enter().is_ok()) {
                let _ = event.synchronize();
            }
        }
        if let Some(block) = self.block.as_ref().and_then(Allocated::block) {
            for usage in &self.usages {
                block.usage.submission.fetch_max(usage.submission.load(Ordering::Relaxed), Ordering::Relaxed);
                block.usage.upload.fetch_max(usage.upload.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

impl DeviceMemory for CudaMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn backend(&self) -> BackendType {
        BackendType::Cuda
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn address(&self) -> Option<u64> {
        Some(self.address)
    }
}

impl Usage {
    fn copied(&self) -> Usage {
        let copy = |n: &AtomicU64| AtomicU64::new(n.load(Ordering::Relaxed));
        Usage { submission: copy(&self.submission), upload: copy(&self.upload) }
    }

    /// Records that submission `number` uses the block; returns the upload that the submission must wait for.
    pub(super) fn touch(&self, number: u64) -> u64 {
        self.submission.store(number, Ordering::Relaxed);
        self.upload.load(Ordering::Relaxed)
    }
}

/// A checked range of a buffer of this device.
#[derive(Clone, Copy)]
pub(super) struct Range<'a> {
    pub(super) address: CUdeviceptr,
    /// The last uses of the parts that it lies in.
    pub(super) usages: &'a [Arc<Usage>],
}

/// A checked range of a buffer of this device.
///
/// # Errors
/// [`BackendError::InvalidArgument`]: another device's buffer, a range out of bounds, or read-only memory that would be
/// written.
pub(super) fn range<'a>(
    context: &Arc<Context>,
    operation: &str,
    buffer: &'a Buffer,
    offset: usize,
    bytes: usize,
    write: bool,
) -> Result<Range<'a>> {
    let invalid = |reason: String| BackendError::InvalidArgument {
        device: BackendType::Cuda.to_string(),
        operation: operation.to_string(),
        reason,
    };
    let memory = match buffer.downcast::<CudaMemory>() {
        Some(memory) if Arc::ptr_eq(&memory.context, context) => memory,
        Some(memory) => return Err(invalid(format!("the buffer belongs to {}", memory.context.name))),
        None => return Err(invalid(format!("the buffer belongs to {}", buffer.backend()))),
    };
    check_range(BackendType::Cuda, operation, buffer, offset, bytes)?;
    if let Some(foreign) = memory.foreign.as_ref().filter(|foreign| offset < foreign.first && bytes > 0) {
        return Err(invalid(format!("bytes {offset}..+{bytes} begin before the foreign memory, at {}", foreign.first)));
    }
    if write && !memory.writable {
        return Err(invalid("the buffer wraps foreign memory, which is read-only; copy it into a buffer first".into()));
    }
    let last = (offset + bytes).div_ceil(memory.part).clamp(1, memory.usages.len());
    let usages = &memory.usages[(offset / memory.part).min(last - 1)..last];
    Ok(Range { address: memory.address + offset as u64, usages })
}
