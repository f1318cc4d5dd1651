//! The bandwidth of memory, read alone and copied, measured with the device's own workers: the ceiling of every kernel that is bound by
//! memory.

use std::sync::Arc;
use std::time::Instant;

use hologram_isa::Type;

use super::super::backend::native_pipeline;
use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use crate::backend::{Backend, Binding, Launch, LaunchConfig};
use crate::{Extent, Format, KernelSpec, Result, TensorSpec};

/// Bytes that are read: more than the caches of most processors hold.
const REGION: usize = 256 << 20;
/// Bytes that a worker claims at a time.
const PIECE: usize = 1 << 20;
/// Runs, of which the best counts: what else the machine does can only slow a run down.
const RUNS: usize = 10;
/// Sums that workers leave, so that the reading cannot be optimised away; more than there are workers.
const SUMS: usize = 1024;

/// How far ahead memory is fetched.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 2 << 10;

/// Sustained read bandwidth of memory in bytes per second: the best of several runs in which the backend's workers read a region of
/// 256 MiB.
///
/// # Errors
/// When the region cannot be allocated.
pub fn measure_read_bandwidth(backend: &dyn Backend, features: Features) -> Result<f64> {
    let vector = |ty, len| TensorSpec { format: Format::Plain(ty), shape: vec![Extent::Fixed(len)] };
    let spec = KernelSpec {
        op: "read_bandwidth",
        inputs: vec![vector(Type::U8, REGION)],
        output: vector(Type::U32, SUMS),
        in_place: None,
        attrs: vec![],
    };
    let (region, sums) = (backend.allocate_buffer(REGION)?, backend.allocate_buffer(SUMS * 4)?);
    // Untouched pages may all be one page of zeros in the cache.
    let ones = vec![1u8; PIECE];
    for at in (0..REGION).step_by(PIECE) {
        backend.copy_to_buffer(&region, at, &ones)?;
    }
    let pipeline = native_pipeline(Arc::new(ReadAll { avx2: features.avx2 }), &spec);
    let bindings = vec![Binding::whole(&region), Binding::whole(&sums)];
    let list = backend.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid: [1; 3] } }])?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        backend.wait(backend.submit(&list)?)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(REGION as f64 / best)
}

/// Sustained bandwidth of copies within memory in bytes per second, read and written: the median of several runs in which the backend's
/// workers copy a region of 256 MiB past the caches.
///
/// # Errors
/// When the regions cannot be allocated.
pub fn measure_copy_bandwidth(backend: &dyn Backend, features: Features) -> Result<f64> {
    let region = || TensorSpec { format: Format::Plain(Type::U8), shape: vec![Extent::Fixed(REGION)] };
    let spec =
        KernelSpec { op: "copy_bandwidth", inputs: vec![region()], output: region(), in_place: None, attrs: vec![] };
    let (from, to) = (backend.allocate_buffer(REGION)?, backend.allocate_buffer(REGION)?);
    let ones = vec![1u8; PIECE];
    for at in (0..REGION).step_by(PIECE) {
        backend.copy_to_buffer(&from, at, &ones)?;
        backend.copy_to_buffer(&to, at, &ones)?;
    }
    let pipeline = native_pipeline(Arc::new(CopyAll { avx2: features.avx2 }), &spec);
    let bindings = vec![Binding::whole(&from), Binding::whole(&to)];
    let list = backend.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid: [1; 3] } }])?;
    let mut times = [0.0; RUNS];
    for time in &mut times {
        let start = Instant::now();
        backend.wait(backend.submit(&list)?)?;
        *time = start.elapsed().as_secs_f64();
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(2.0 * REGION as f64 / times[RUNS / 2])
}

struct CopyAll {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has it"))]
    avx2: bool,
}

impl NativeKernel for CopyAll {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> std::result::Result<(), String> {
        let from: &[u64] = args.read(0);
        while let Some(piece) = worker.next(REGION / PIECE) {
            let range = piece * PIECE / 8..(piece + 1) * PIECE / 8;
            // SAFETY: the piece belongs to this worker alone.
            let to = unsafe { &mut args.write::<u64>(1)[range.clone()] };
            self.copy(&from[range], to);
        }
        Ok(())
    }
}

impl CopyAll {
    fn copy(&self, from: &[u64], to: &mut [u64]) {
        #[cfg(target_arch = "x86_64")]
        if self.avx2 {
            // SAFETY: the processor has AVX2, and pieces of a buffer begin at multiples of 64 bytes.
            return unsafe { stream(from, to) };
        }
        to.copy_from_slice(from);
    }
}

/// Copies with stores that go past the caches, which then need not read the memory that is overwritten. `to` begins at a multiple of 32
/// bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn stream(from: &[u64], to: &mut [u64]) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    for (from, to) in from.chunks_exact(32).zip(to.chunks_exact_mut(32)) {
        prefetch(from);
        for i in (0..32).step_by(4) {
            // SAFETY: four words of both slices; the target is aligned as the caller says.
            unsafe {
                let words = _mm256_loadu_si256(from.as_ptr().add(i).cast());
                _mm256_stream_si256(to.as_mut_ptr().add(i).cast(), words);
            }
        }
    }
    // The stores come before what follows.
    _mm_sfence();
}

struct ReadAll {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has it"))]
    avx2: bool,
}

impl NativeKernel for ReadAll {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> std::result::Result<(), String> {
        let region: &[u64] = args.read(0);
        let mut total = 0u64;
        while let Some(piece) = worker.next(REGION / PIECE) {
            total = total.wrapping_add(self.sum(&region[piece * PIECE / 8..(piece + 1) * PIECE / 8]));
        }
        // SAFETY: an element of this worker.
        unsafe { args.write::<u32>(1)[worker.index % SUMS] = total as u32 };
        Ok(())
    }
}

impl ReadAll {
    fn sum(&self, words: &[u64]) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn sum_avx2(words: &[u64]) -> u64 {
                sum(words)
            }
            if self.avx2 {
                // SAFETY: the processor has AVX2.
                return unsafe { sum_avx2(words) };
            }
        }
        sum(words)
    }
}

#[inline(always)]
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for words in words.chunks_exact(32) {
        prefetch(words);
        for i in 0..32 {
            sums[i] = sums[i].wrapping_add(words[i]);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// Fetches memory that lies further on: hardware alone does not look beyond a page.
#[inline(always)]
fn prefetch(words: &[u64]) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..4 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(words.as_ptr().cast::<i8>().wrapping_add(AHEAD + 64 * line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = words;
}
