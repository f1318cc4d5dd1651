//! Recorded lists: launches with every argument fixed, encoded again for each run.

use std::ffi::c_void;
use std::ops::Range;
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

/// A launch's threadgroup memory is a multiple of this many bytes.
pub(super) const SHARED_ALIGN: usize = 16;

/// The contents of a [`CommandList`](hologram_device::CommandList) for an Apple GPU.
pub(super) struct Recording {
    pub(super) device: Arc<Device>,
    /// The launches' names, in order.
    pub(super) names: Vec<KernelName>,
    pub(super) steps: Vec<Step>,
    /// The steps of each command buffer of a run.
    pub(super) parts: Vec<Range<usize>>,
    /// Everything that the steps use.
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
    /// Bytes of threadgroup memory of the launch.
    pub(super) shared: usize,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Whether it reads or overwrites memory of earlier steps, and so needs a barrier.
    pub(super) barrier: bool,
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

impl Step {
    /// Encodes the step. `given`: the bytes of threadgroup memory that the encoder's launches currently get.
    pub(super) fn encode(&self, encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, given: &mut usize) {
        if self.barrier {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
        encoder.setComputePipelineState(&self.kernel.pipeline);
        for (index, buffer, offset) in &self.buffers {
            // SAFETY: the recording keeps the buffer alive, the offset lies in it, and the kernel declares the index.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&*buffer.0), *offset, *index) };
        }
        for (index, bytes) in &self.constants {
            let data = NonNull::from(&**bytes).cast::<c_void>();
            // SAFETY: `data` has this many bytes, which the call copies.
            unsafe { encoder.setBytes_length_atIndex(data, bytes.len(), *index) };
        }
        let shared = self.shared.max(SHARED_ALIGN);
        if *given != shared && (self.shared > 0 || *given > 0) {
            // SAFETY: kernels that use threadgroup memory declare it at index 0.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(shared, 0) };
            *given = shared;
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(self.grid), size(self.block));
    }
}

impl Recording {
    /// The name of the failed kernel, if only the recording is known.
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
    /// Each with the index of its launch.
    programs: Vec<(usize, Faulty)>,
    _memory: MetalMemory,
}

// SAFETY: the memory is the recording's own; the queue decides when it may be read.
unsafe impl Send for Faults {}
// SAFETY: shared references read the records only when the queue allows it.
unsafe impl Sync for Faults {}

impl Faults {
    /// Records in zeroed memory, one per program.
    pub(super) fn new(memory: MetalMemory, programs: Vec<(usize, Faulty)>) -> Faults {
        Faults { records: memory.all().data, programs, _memory: memory }
    }

    fn record(&self, index: usize) -> *mut [u32; FAULT_WORDS] {
        self.records.wrapping_add(index * FAULT_BYTES).cast()
    }

    /// Whether a program has failed.
    pub(super) fn any(&self) -> bool {
        let first = |i| self.record(i).cast::<u32>();
        // SAFETY: there is a record per program. The device may write at the same time, so each flag is read once.
        (0..self.programs.len()).any(|i| unsafe { first(i).read_volatile() } != 0)
    }

    /// The first launch that failed, with its error; clears all records. The queue must have passed every run of the
    /// recording.
    pub(super) fn take(&self) -> Option<(usize, BackendError)> {
        let mut first = None;
        for (index, (launch, faulty)) in self.programs.iter().enumerate() {
            // SAFETY: the device no longer writes to the records.
            let words = unsafe { self.record(index).read_volatile() };
            if words[0] != 0 {
                first = first.or_else(|| Some((*launch, faulty.error(BackendType::Metal, words))));
                // SAFETY: the device no longer writes to the records.
                unsafe { self.record(index).write([0; FAULT_WORDS]) };
            }
        }
        first
    }
}
