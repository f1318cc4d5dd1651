//! `cast`: x f32 → `bf16` or `f16` of the same shape, rounded to nearest, ties to even.

use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use hologram_device::{DType, KernelSpec, Operation, TensorSpec};

#[cfg(target_arch = "x86_64")]
use super::super::exec::words;
use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::only_slowest_varies;

struct Cast {
    x: TensorSpec,
    dynamic: bool,
    to: DType,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernel"))]
    features: Features,
}

/// Elements of a piece of work.
const PIECE: usize = 4096;

/// The native kernel for `cast`; `None` for any other spec.
pub fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let served = spec.op == Operation::Cast
        && spec.in_place.is_none()
        && x.format == DType::F32
        && matches!(spec.output.format, DType::BF16 | DType::F16)
        && x.shape == spec.output.shape
        && only_slowest_varies(x);
    let kernel = || Cast { x: x.clone(), dynamic: spec.uses_step(), to: spec.output.format, features };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Cast {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let count = self.x.rows(if self.dynamic { args.step() } else { &[] }) * self.x.row_len();
        let x: &[f32] = &args.read(0)[..count];
        while let Some(index) = worker.next(count.div_ceil(PIECE)) {
            let range = index * PIECE..((index + 1) * PIECE).min(count);
            // SAFETY: this worker has claimed the piece, so these elements are its own; features are of this processor.
            unsafe {
                match self.to {
                    DType::F16 => args.output::<f16>(1).part(range.clone()).convert_from_f32_slice(&x[range]),
                    #[cfg(target_arch = "x86_64")]
                    _ if self.features.avx512 => to_bf16(&x[range.clone()], args.output::<bf16>(1).part(range)),
                    _ => args.output::<bf16>(1).part(range.clone()).convert_from_f32_slice(&x[range]),
                }
            }
        }
        Ok(())
    }
}

/// As [`HalfFloatSliceExt::convert_from_f32_slice`], compiled for wide vectors. The instruction of AVX-512 BF16 would
/// take subnormal numbers for 0.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn to_bf16(x: &[f32], to: &mut [bf16]) {
    for (x, to) in x.iter().zip(to) {
        *to = bf16::from_bits(words::to_bf16(*x) as u16);
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::super::super::testing::{Memory, launch};
    use super::*;
    use hologram_device::Extent;

    pub(crate) fn rounds_to_nearest_even() {
        // Ties both ways, values beyond the greatest, subnormal results, infinities.
        let x =
            [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65520.0, 65519.0, 6e-8, -0.0, f32::INFINITY, 1.0 + 1.0 / 256.0];
        let as_f16 = [0x3c00u16, 0x3c02, 0x7c00, 0x7bff, 0x0001, 0x8000, 0x7c00, 0x3c04];
        let as_bf16 = [0x3f80u16, 0x3f80, 0x4780, 0x4780, 0x3381, 0x8000, 0x7f80, 0x3f80];
        for (format, expected) in [(DType::F16, as_f16), (DType::BF16, as_bf16)] {
            let shape = vec![Extent::Fixed(2), Extent::Fixed(4)];
            let spec = KernelSpec {
                op: Operation::Cast,
                inputs: vec![TensorSpec { format: DType::F32, shape: shape.clone() }],
                output: TensorSpec { format, shape },
                in_place: None,
            };
            let mut memory = vec![Memory::of(&x), Memory::filled(16, 0)];
            launch(&*find(&spec, Features::detect()).expect("served"), &mut memory, 2).expect("runs");
            assert_eq!(memory[1].elements::<u16>(), expected, "{format:?}");
        }
    }

    /// Every upper half with lower halves about a tie, at every level.
    pub(crate) fn rounds_as_one_number_does() {
        let x: Vec<f32> = (0..=u16::MAX)
            .flat_map(|high| {
                [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(u32::from(high) << 16 | low))
            })
            .collect();
        let expected: Vec<u16> = x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
        let shape = vec![Extent::Fixed(2), Extent::Fixed(x.len() / 2)];
        let spec = KernelSpec {
            op: Operation::Cast,
            inputs: vec![TensorSpec { format: DType::F32, shape: shape.clone() }],
            output: TensorSpec { format: DType::BF16, shape },
            in_place: None,
        };
        for features in [Features::PLAIN, Features::detect()] {
            let mut memory = vec![Memory::of(&x), Memory::filled(2 * x.len(), 0)];
            launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
            for ((x, y), expected) in x.iter().zip(memory[1].elements::<u16>()).zip(&expected) {
                assert_eq!(y, expected, "{:08x}", x.to_bits());
            }
        }
    }
}
