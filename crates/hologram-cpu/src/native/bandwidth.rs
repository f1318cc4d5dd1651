//! The bandwidth of memory for reads, copies and the triad, measured with the device's own workers. These are the
//! ceilings of every memory-bound kernel.

use std::sync::Arc;
use std::time::Instant;

use hologram_device::{
    Backend, Binding, Buffer, Ceiling, CeilingKind, DType, Extent, KernelSpec, Launch, LaunchConfig, Operation, Result,
    TensorSpec,
};

use super::super::backend::native_pipeline;
use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::simd::{Isa, Simd, fence, simd_entry};
use super::stream::{map_with, sum_with};

/// Bytes of each region: more than the caches of most processors hold.
const REGION: usize = 256 << 20;
/// Bytes of a region that a worker claims at a time.
const PIECE: usize = 256 << 10;
/// Runs of a measurement.
const RUNS: usize = 10;
/// Slots for the workers' sums, which keep the reads from being optimised away; more than there are workers.
const SUMS: usize = 1024;

/// Sustained read bandwidth of memory in bytes per second: the best of several runs, because other load on the machine
/// can only slow a run down.
///
/// # Errors
/// When the region cannot be allocated.
pub fn measure_read_bandwidth(backend: &dyn Backend, features: Features) -> Result<f64> {
    measure(backend, features, CeilingKind::Read).map(|rates| rates[RUNS - 1])
}

/// Sustained bandwidth of copies within memory in bytes per second, read plus written: the median of several runs.
///
/// # Errors
/// When the regions cannot be allocated.
pub fn measure_copy_bandwidth(backend: &dyn Backend, features: Features) -> Result<f64> {
    measure(backend, features, CeilingKind::Copy).map(|rates| rates[RUNS / 2])
}

/// Bytes per second of each run, in ascending order.
fn measure(backend: &dyn Backend, features: Features, kind: CeilingKind) -> Result<[f64; RUNS]> {
    let ceiling = traffic(backend, features, kind)?;
    let list = backend.record(&[ceiling.launch])?;
    let mut rates = [0.0; RUNS];
    for rate in &mut rates {
        let start = Instant::now();
        backend.wait(backend.submit(&list)?)?;
        *rate = ceiling.amount / start.elapsed().as_secs_f64();
    }
    rates.sort_unstable_by(f64::total_cmp);
    Ok(rates)
}

/// A launch that moves as many bytes as memory allows, over its own regions, as [`CeilingKind::Read`],
/// [`CeilingKind::Copy`] or [`CeilingKind::Triad`] requires.
///
/// # Errors
/// When the regions cannot be allocated.
pub(crate) fn traffic(backend: &dyn Backend, features: Features, kind: CeilingKind) -> Result<Ceiling> {
    let (name, reads) = match kind {
        CeilingKind::Copy => ("copy_bandwidth", 1),
        CeilingKind::Triad => ("triad_bandwidth", 2),
        _ => ("read_bandwidth", 1),
    };
    let vector = |len| TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(len)] };
    let writes = usize::from(kind != CeilingKind::Read);
    let output = vector(if writes > 0 { REGION / 4 } else { SUMS });
    let spec =
        KernelSpec { op: Operation::Probe(name), inputs: vec![vector(REGION / 4); reads], output, in_place: None };
    let buffers: Vec<Buffer> = (0..reads + writes).map(|_| region(backend)).collect::<Result<_>>()?;
    let mut bindings: Vec<Binding> = buffers.iter().map(Binding::whole).collect();
    if writes == 0 {
        bindings.push(Binding::whole(&backend.allocate_buffer(SUMS * 4)?));
    }
    let pipeline = native_pipeline(Arc::new(Traffic { isa: Isa::widest(features), kind }), &spec);
    let launch = Launch { pipeline, bindings, config: LaunchConfig { grid: [1; 3] } };
    Ok(Ceiling { launch, amount: ((reads + writes) * REGION) as f64 })
}

/// A region of ones: untouched pages may all map to one cached page of zeros.
fn region(backend: &dyn Backend) -> Result<Buffer> {
    let (region, ones) = (backend.allocate_buffer(REGION)?, 1f32.to_ne_bytes().repeat(PIECE / 4));
    for at in (0..REGION).step_by(PIECE) {
        backend.copy_to_buffer(&region, at, &ones)?;
    }
    Ok(region)
}

struct Traffic {
    isa: Isa,
    kind: CeilingKind,
}

impl NativeKernel for Traffic {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> std::result::Result<(), String> {
        let x: &[f32] = args.read(0);
        let mut total = 0.0;
        while let Some(piece) = worker.next(REGION / PIECE) {
            let range = piece * PIECE / 4..(piece + 1) * PIECE / 4;
            let x = &x[range.clone()];
            // SAFETY: the piece belongs to this worker alone.
            let to = |argument| unsafe { args.output::<f32>(argument).part(range.clone()) };
            match self.kind {
                CeilingKind::Copy => copy(self.isa, x, to(1)),
                CeilingKind::Triad => triad(self.isa, x, &args.read(1)[range.clone()], to(2)),
                _ => total += sum(self.isa, x),
            }
        }
        if self.kind == CeilingKind::Read {
            // SAFETY: an element of this worker.
            unsafe { args.output::<f32>(1).set(worker.index % SUMS, total) };
        }
        Ok(())
    }
}

simd_entry! {
    fn sum(x: &[f32]) -> f32 = sum_with
}

simd_entry! {
    fn copy(x: &[f32], to: &mut [f32]) = copy_with
}

#[inline(always)]
fn copy_with<S: Simd>(s: S, x: &[f32], to: &mut [f32]) {
    map_with(s, [x], to, true, |[x]| x);
    fence();
}

simd_entry! {
    /// `x + ¼·y`.
    fn triad(x: &[f32], y: &[f32], to: &mut [f32]) = triad_with
}

#[inline(always)]
fn triad_with<S: Simd>(s: S, x: &[f32], y: &[f32], to: &mut [f32]) {
    map_with(s, [x, y], to, true, |[x, y]| 0.25 * y + x);
    fence();
}
