//! The rates of the processor's multiplications, measured with the device's own workers: the ceilings of matrix
//! products.

use std::sync::Arc;

use hologram_device::{
    Backend, Binding, Ceiling, CeilingKind, DType, Extent, KernelSpec, Launch, LaunchConfig, Operation, Result,
    TensorSpec,
};

use super::super::backend::native_pipeline;
use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::simd::{Isa, Simd, simd_entry};

/// Pieces of work that workers claim, and rounds per piece: some milliseconds in total.
const PIECES: usize = 256;
const ROUNDS: usize = 1 << 13;
/// Accumulator registers: enough to hide the latency of an instruction.
const SUMS: usize = 16;
/// Slots for the workers' results; more than there are workers.
const RESULTS: usize = 1024;

/// Rounds of one instruction on every sum: (rounds, operands) → a value that depends on all.
type Run = fn(Isa, usize, f32) -> f32;

/// A launch that only multiplies and adds, as [`CeilingKind::F32`], [`CeilingKind::Bf16`] or [`CeilingKind::I8`]
/// requires; `None` if the processor has no such instruction.
///
/// # Errors
/// When the results' memory cannot be allocated.
pub(crate) fn arithmetic(backend: &dyn Backend, features: Features, kind: CeilingKind) -> Result<Option<Ceiling>> {
    let isa = Isa::widest(features);
    // Multiplications and additions per instruction.
    let (run, operations): (Run, usize) = match kind {
        CeilingKind::F32 => (multiply_f32, 2 * lanes(isa)),
        #[cfg(target_arch = "x86_64")]
        CeilingKind::Bf16 if features.bf16 => (x86::dot_bf16, 64),
        #[cfg(target_arch = "x86_64")]
        CeilingKind::I8 if features.vnni => (x86::dot_i8, 128),
        _ => return Ok(None),
    };
    let output = TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(RESULTS)] };
    let spec = KernelSpec { op: Operation::Probe("multiplications"), inputs: vec![], output, in_place: None };
    let bindings = vec![Binding::whole(&backend.allocate_buffer(RESULTS * 4)?)];
    let pipeline = native_pipeline(Arc::new(Arithmetic { isa, run }), &spec);
    let launch = Launch { pipeline, bindings, config: LaunchConfig { grid: [1; 3] } };
    Ok(Some(Ceiling { launch, amount: (PIECES * ROUNDS * SUMS * operations) as f64 }))
}

struct Arithmetic {
    isa: Isa,
    run: Run,
}

impl NativeKernel for Arithmetic {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> std::result::Result<(), String> {
        let mut total = 0.0;
        while let Some(piece) = worker.next(PIECES) {
            total += (self.run)(self.isa, ROUNDS, std::hint::black_box(piece as f32));
        }
        // SAFETY: an element of this worker.
        unsafe { args.output::<f32>(0).set(worker.index % RESULTS, total) };
        Ok(())
    }
}

simd_entry! {
    fn lanes() -> usize = lanes_with
}

#[inline(always)]
fn lanes_with<S: Simd>(_: S) -> usize {
    S::LANES
}

simd_entry! {
    fn multiply_f32(rounds: usize, x: f32) -> f32 = multiply_f32_with
}

#[inline(always)]
fn multiply_f32_with<S: Simd>(s: S, rounds: usize, x: f32) -> f32 {
    let (mut sums, x) = ([s.splat(0.0); SUMS], s.splat(x));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = s.fma(x, x, *sum);
        }
    }
    sums.into_iter().map(|v| s.sum(v)).sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Isa, SUMS};

    /// Only for a processor with AVX-512 BF16.
    pub(super) fn dot_bf16(_: Isa, rounds: usize, x: f32) -> f32 {
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn run(rounds: usize, x: f32) -> f32 {
            let x = _mm512_set1_ps(x);
            let x = _mm512_cvtne2ps_pbh(x, x);
            let mut sums = [_mm512_setzero_ps(); SUMS];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, x, x);
                }
            }
            sums.into_iter().map(|v| _mm512_reduce_add_ps(v)).sum()
        }
        // SAFETY: the caller has checked the processor's features.
        unsafe { run(rounds, x) }
    }

    /// Only for a processor with AVX-512 VNNI.
    pub(super) fn dot_i8(_: Isa, rounds: usize, x: f32) -> f32 {
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn run(rounds: usize, x: f32) -> f32 {
            let x = _mm512_set1_epi8(x as i8);
            let mut sums = [_mm512_setzero_si512(); SUMS];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, x, x);
                }
            }
            sums.into_iter().map(|v| _mm512_reduce_add_epi32(v)).fold(0, i32::wrapping_add) as f32
        }
        // SAFETY: the caller has checked the processor's features.
        unsafe { run(rounds, x) }
    }
}
