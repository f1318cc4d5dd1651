//! Recorded lists: launches with every argument fixed, encoded anew for each run.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use hologram_device::host::{FAULT_WORDS, Faulty, ONE_BY_ONE, Use};
use hologram_device::{BackendError, BackendType, Buffer, KernelName};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBarrierScope, MTLComputeCommandEncoder, MTLSize};

use super::device::Device;
use super::library::Kernel;
use super::memory::{MetalBuffer, MetalMemory, Usage};

/// Bytes of a fault record.
pub(super) const FAULT_BYTES: usize = FAULT_WORDS * 4;

/// Threadgroup memory of a launch comes in multiples of this many bytes.
pub(super) const SHARED_ALIGN: usize = 16;

/// What [`CommandList`](hologram_device::CommandList) holds for an Apple GPU.
pub(super) struct Recording {
    pub(super) device: Arc<Device>,
    /// The launches' names, in order.
    pub(super) names: Vec<KernelName>,
    pub(super) steps: Vec<Step>,
    /// Everything that the steps touch.
    pub(super) usages: Vec<Arc<Usage>>,
    /// The memory of the launches' arguments, in their order.
    pub(super) uses: Vec<Use>,
    pub(super) faults: Faults,
    /// Keeps the memory of the steps alive.
    pub(super) _buffers: Vec<Buffer>,
    pub(super) _scratch: Option<Arc<MetalMemory>>,
}

/// One kernel with its arguments.
pub(super) struct Step {
    /// The launch that it is part of.
    pub(super) launch: usize,
    pub(super) kernel: Kernel,
    /// Buffers by their index, each with an offset.
    pub(super) buffers: Vec<(usize, MetalBuffer, usize)>,
    /// Constants by their index.
    pub(super) constants: Vec<(usize, Box<[u8]>)>,
    /// Bytes of threadgroup memory that the launch gives.
    pub(super) shared: usize,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Whether it must see what the steps before it wrote.
    pub(super) barrier: bool,
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

impl Step {
    /// Puts it into an encoder, whose launches get `given` bytes of threadgroup memory until told otherwise.
    pub(super) fn encode(&self, encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, given: &mut usize) {
        if self.barrier {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
        encoder.setComputePipelineState(&self.kernel.pipeline);
        for (index, buffer, offset) in &self.buffers {
            // SAFETY: the recording keeps the buffer, the offset lies in it, and the index is one that the kernel declares.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&*buffer.0), *offset, *index) };
        }
        for (index, bytes) in &self.constants {
            let data = NonNull::from(&**bytes).cast::<c_void>();
            // SAFETY: as many bytes, which are copied.
            unsafe { encoder.setBytes_length_atIndex(data, bytes.len(), *index) };
        }
        let shared = self.shared.max(SHARED_ALIGN);
        if *given != shared && (self.shared > 0 || *given > 0) {
            // SAFETY: the kernels that take such memory declare it at index 0.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(shared, 0) };
            *given = shared;
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(self.grid), size(self.block));
    }
}

impl Recording {
    /// The name of what failed, where only the recording is known.
    pub(super) fn suspects(&self) -> String {
        match self.names.as_slice() {
            [] => "of an empty list".into(),
            [one] => one.to_string(),
            [first, .., last] => {
                format!("one of the {} from {first} to {last} ({ONE_BY_ONE}=1 tells which)", self.names.len())
            }
        }
    }
}

/// The fault records of a recording's programs, and of its native kernels that have one.
pub(super) struct Faults {
    records: *mut u8,
    /// Each with the launch that it is of.
    programs: Vec<(usize, Faulty)>,
    _memory: MetalMemory,
}

// SAFETY: the memory is the recording's own; the queue says when it may be read.
unsafe impl Send for Faults {}
// SAFETY: shared references read the records only when the queue says that they may be read.
unsafe impl Sync for Faults {}

impl Faults {
    /// Records in zeroed memory, as many as programs.
    pub(super) fn new(memory: MetalMemory, programs: Vec<(usize, Faulty)>) -> Faults {
        Faults { records: memory.all().data, programs, _memory: memory }
    }

    fn record(&self, index: usize) -> *mut [u32; FAULT_WORDS] {
        self.records.wrapping_add(index * FAULT_BYTES).cast()
    }

    /// Whether a program has failed.
    pub(super) fn any(&self) -> bool {
        let first = |i| self.record(i).cast::<u32>();
        // SAFETY: the records are as many as the programs; the device may write at the same time, so each flag is read once.
        (0..self.programs.len()).any(|i| unsafe { first(i).read_volatile() } != 0)
    }

    /// The first launch that failed and its error; all records are cleared. The queue must have passed every run of the recording.
    pub(super) fn take(&self) -> Option<(usize, BackendError)> {
        let mut first = None;
        for (index, (launch, faulty)) in self.programs.iter().enumerate() {
            // SAFETY: the device is done with the records.
            let words = unsafe { self.record(index).read_volatile() };
            if words[0] != 0 {
                first = first.or_else(|| Some((*launch, faulty.error(BackendType::Metal, words))));
                // SAFETY: the device is done with the records.
                unsafe { self.record(index).write([0; FAULT_WORDS]) };
            }
        }
        first
    }
}
