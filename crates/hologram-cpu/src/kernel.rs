//! The inputs of a native CPU kernel: its arguments' memory and its place among the workers.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use hologram_device::host::RawSlice;

/// A native kernel for one [`KernelSpec`](hologram_device::KernelSpec). Workers of the device call
/// [`NativeKernel::run`] for phase 0, then for phase 1, and so on. Within a phase they claim pieces of the work by
/// [`Worker::next`] until none is left. The number of workers that take part is unknown: a late one finds the work done
/// and must then do nothing.
pub trait NativeKernel: Send + Sync {
    /// The number of phases, at least 1.
    fn phases(&self) -> usize {
        1
    }

    /// Bytes of scratch memory that all workers share, kept across this launch's phases.
    fn shared_scratch(&self) -> usize {
        0
    }

    /// Bytes of scratch memory per worker, kept within a phase.
    fn worker_scratch(&self) -> usize {
        0
    }

    /// Does this worker's part of a phase.
    ///
    /// # Errors
    /// Faults that the kernel found in its data, such as an index outside a table.
    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String>;
}

/// The arguments of a launch in the order of [`KernelSpec`](hologram_device::KernelSpec)'s bindings.
pub struct Args<'a> {
    slices: &'a [RawSlice],
}

/// Plain data: any bytes are a valid value.
///
/// # Safety
/// The type has no padding and every bit pattern is valid.
pub unsafe trait Pod: Copy + 'static {}
macro_rules! pod {
    ($($ty:ty),*) => {$(
        // SAFETY: an integer, a float, or a transparent wrapper of one, has neither padding nor invalid patterns.
        unsafe impl Pod for $ty {}
    )*};
}
pod!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, half::f16, half::bf16);

impl<'a> Args<'a> {
    /// Arguments over checked memory.
    ///
    /// # Safety
    /// While the arguments live, each slice is valid for reads, and for writes where the kernel's rules say that it
    /// writes. It is aligned to its elements, and only the kernel's workers access it. A slice that the kernel writes
    /// overlaps no other slice.
    pub unsafe fn new(slices: &'a [RawSlice]) -> Args<'a> {
        Args { slices }
    }

    /// Argument `index` for reading.
    ///
    /// # Panics
    /// When the spec does not have the requested argument: an error in the kernel.
    pub fn read<T: Pod>(&self, index: usize) -> &'a [T] {
        let s = self.slices[index];
        debug_assert!(s.data.align_offset(align_of::<T>()) == 0);
        // SAFETY: valid and aligned, as the caller of `new` has promised. A kernel does not read an element that
        // another worker writes in the same phase.
        unsafe { std::slice::from_raw_parts(s.data.cast::<T>(), s.bytes / size_of::<T>()) }
    }

    /// Argument `index` for writing, part by part.
    ///
    /// # Panics
    /// As [`Args::read`].
    pub fn output<T: Pod>(&self, index: usize) -> Output<'a, T> {
        let s = self.slices[index];
        debug_assert!(s.data.align_offset(align_of::<T>()) == 0);
        Output { data: s.data.cast(), len: s.bytes / size_of::<T>(), slices: PhantomData }
    }

    /// Argument `index` for writing, as a whole. For kernels whose workers write interleaved elements; others use
    /// [`Args::output`].
    ///
    /// # Safety
    /// Workers of a phase may hold such slices of one argument at the same time. Each must access only elements that no
    /// other worker accesses in that phase.
    ///
    /// # Panics
    /// As [`Args::read`].
    pub unsafe fn write<T: Pod>(&self, index: usize) -> &'a mut [T] {
        let s = self.slices[index];
        debug_assert!(s.data.align_offset(align_of::<T>()) == 0);
        // SAFETY: valid and aligned as in `read`; the caller promises that no two workers access the same element.
        unsafe { std::slice::from_raw_parts_mut(s.data.cast::<T>(), s.bytes / size_of::<T>()) }
    }

    /// Argument `index` as a raw range, for kernels whose workers write interleaved elements.
    ///
    /// # Panics
    /// As [`Args::read`].
    pub fn raw(&self, index: usize) -> RawSlice {
        self.slices[index]
    }

    /// The number of arguments.
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// The last argument as the step block, for kernels whose spec [uses one](hologram_device::KernelSpec::uses_step).
    pub fn step(&self) -> &'a [u32] {
        self.read(self.slices.len() - 1)
    }
}

/// An argument that workers write. Each writes the parts that it has claimed.
#[derive(Clone, Copy)]
pub struct Output<'a, T> {
    data: *mut T,
    len: usize,
    slices: PhantomData<&'a [RawSlice]>,
}

impl<'a, T: Pod> Output<'a, T> {
    /// Elements of a range.
    ///
    /// # Safety
    /// While the result lives, nobody else accesses these elements: no other worker in this phase, and no other slice
    /// of this worker.
    ///
    /// # Panics
    /// When they lie outside the argument.
    #[inline]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: the range lies in the argument.
        let start = unsafe { self.data.add(range.start) };
        // SAFETY: the argument is valid and aligned, as in `Args::read`; the caller promises exclusive use.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Stores an element.
    ///
    /// # Safety
    /// No other worker accesses it in this phase.
    ///
    /// # Panics
    /// When it lies outside the argument.
    #[inline]
    pub unsafe fn set(&self, at: usize, value: T) {
        assert!(at < self.len, "{at} of {} elements", self.len);
        // SAFETY: the element lies in the argument.
        let element = unsafe { self.data.add(at) };
        // SAFETY: the argument is valid and aligned, as in `Args::read`; the caller promises that no other thread
        // accesses it.
        unsafe { element.write(value) };
    }
}

/// A worker's place in a phase, and its scratch memory.
pub struct Worker<'a> {
    /// This worker's index, less than `count`.
    pub index: usize,
    /// Workers of the device.
    pub count: usize,
    /// The phase's shared counter; 0 at its start.
    pub(crate) counter: &'a AtomicUsize,
    /// Scratch memory shared by the workers, 64-byte aligned, of at least [`NativeKernel::shared_scratch`] bytes.
    pub(crate) shared: &'a SharedScratch,
    /// Scratch memory of this worker, 64-byte aligned, of at least [`NativeKernel::worker_scratch`] bytes.
    pub scratch: &'a mut [u8],
}

/// Memory that all workers of a launch write in turn.
#[derive(Debug)]
pub struct SharedScratch(pub(crate) UnsafeCell<RawSlice>);

// SAFETY: the cell holds an address that changes only while no list runs.
unsafe impl Sync for SharedScratch {}
// SAFETY: the address is valid in any thread.
unsafe impl Send for SharedScratch {}

impl Worker<'_> {
    /// Claims the next of `total` pieces of the phase's work; `None` when all are claimed.
    pub fn next(&self, total: usize) -> Option<usize> {
        if self.counter.load(Ordering::Relaxed) >= total {
            return None;
        }
        let piece = self.counter.fetch_add(1, Ordering::Relaxed);
        (piece < total).then_some(piece)
    }

    /// The shared scratch memory as a raw range.
    pub fn shared_scratch(&self) -> RawSlice {
        // SAFETY: the address changes only while no list runs.
        unsafe { *self.shared.0.get() }
    }
}
