//! Runs a native kernel without a device, for the unit tests of kernels.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicUsize;

use super::features::{Features, InstructionSet};
use super::kernel::{Args, NativeKernel, Pod, RawSlice, SharedScratch, Worker};

/// The memory of one argument, 64-byte aligned.
pub(crate) struct Memory {
    lines: Vec<Line>,
    bytes: usize,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "only its memory is used")] [u8; 64]);

impl Memory {
    /// Memory with every byte set to `fill`.
    pub(crate) fn filled(bytes: usize, fill: u8) -> Memory {
        Memory { lines: vec![Line([fill; 64]); bytes.div_ceil(64)], bytes }
    }

    /// Memory with these elements.
    pub(crate) fn of<T: Pod>(elements: &[T]) -> Memory {
        let mut memory = Memory::filled(size_of_val(elements), 0);
        memory.elements_mut().copy_from_slice(elements);
        memory
    }

    /// The elements.
    pub(crate) fn elements<T: Pod>(&self) -> &[T] {
        // SAFETY: the lines hold at least `bytes` initialised bytes, aligned to 64, and any bytes are a `T`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// The elements, for writing.
    pub(crate) fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        // SAFETY: as in `elements`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.bytes / size_of::<T>()) }
    }

    fn raw(&mut self) -> RawSlice {
        RawSlice { data: self.lines.as_mut_ptr().cast(), bytes: self.bytes }
    }
}

/// Runs all phases of a kernel on `workers` threads. `memory` holds the arguments in the order of the spec's bindings.
/// Scratch memory starts as NaNs. Returns the first worker's error.
pub(crate) fn launch(kernel: &dyn NativeKernel, memory: &mut [Memory], workers: usize) -> Result<(), String> {
    let slices: Vec<RawSlice> = memory.iter_mut().map(Memory::raw).collect();
    let mut shared = Memory::filled(kernel.shared_scratch(), 0xff);
    let shared = SharedScratch(UnsafeCell::new(shared.raw()));
    let mut scratch: Vec<Memory> = (0..workers).map(|_| Memory::filled(kernel.worker_scratch(), 0xff)).collect();
    for phase in 0..kernel.phases() {
        let counter = AtomicUsize::new(0);
        // SAFETY: each slice is its own memory, borrowed here exclusively and aligned to 64; the workers have ended
        // before it is used again.
        let args = unsafe { Args::new(&slices) };
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = scratch
                .iter_mut()
                .enumerate()
                .map(|(index, scratch)| {
                    let (counter, args, shared) = (&counter, &args, &shared);
                    scope.spawn(move || {
                        let scratch = scratch.elements_mut();
                        let mut worker = Worker { index, count: workers, counter, shared, scratch };
                        kernel.run(phase, args, &mut worker)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a worker panicked".into()))).collect()
        });
        results.into_iter().collect::<Result<(), String>>()?;
    }
    Ok(())
}

/// The sets of features whose kernels this processor can run: plain first, the fullest last.
pub(crate) fn feature_sets() -> Vec<Features> {
    let all = Features::detect();
    let (avx2, avx512) = (all.up_to(InstructionSet::Avx2), all.up_to(InstructionSet::Avx512));
    let mut sets = vec![Features::PLAIN, avx2, avx512, all.with_other_streams(), all];
    sets.dedup();
    sets
}

/// Reproducible numbers from a linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// 31 random bits.
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// A number in -1..=1.
    pub(crate) fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    /// Numbers in -1..=1.
    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}
