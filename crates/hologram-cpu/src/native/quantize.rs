//! `quantize` (group, floor): x f32 [.., k] → `I8Groups` of the same shape.
//!
//! For each group with a = max(max|x|, floor), the scale is a / 127 and a code is x·(127 / a), rounded half to even
//! and clamped.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation, TensorSpec};

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::only_slowest_varies;

struct Quantize {
    x: TensorSpec,
    dynamic: bool,
    group: usize,
    floor: f32,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has it"))]
    avx2: bool,
}

/// Elements of a piece of work, at least a group.
const PIECE: usize = 2048;

/// The native kernel for `quantize`; `None` for any other spec.
pub fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let Operation::Quantize { group, floor } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && x.format == DType::F32
        && spec.output.format == DType::I8Groups { group }
        && x.shape == spec.output.shape
        && only_slowest_varies(x)
        && group > 0
        && x.row_len().is_multiple_of(group as usize);
    let x = x.clone();
    let kernel =
        || Quantize { x, dynamic: spec.uses_step(), group: group as usize, floor: floor.get(), avx2: features.avx2 };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Quantize {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let count = self.x.rows(if self.dynamic { args.step() } else { &[] }) * self.x.row_len();
        let x: &[f32] = &args.read(0)[..count];
        let piece = (PIECE / self.group).max(1) * self.group;
        while let Some(index) = worker.next(count.div_ceil(piece)) {
            let range = index * piece..((index + 1) * piece).min(count);
            let groups = range.start / self.group..range.end / self.group;
            // SAFETY: this worker has claimed the piece, so these codes and scales are its own.
            let (codes, scales) =
                unsafe { (args.output::<i8>(1).part(range.clone()), args.output::<f32>(2).part(groups)) };
            self.quantize(&x[range], codes, scales);
        }
        Ok(())
    }
}

impl Quantize {
    fn quantize(&self, x: &[f32], codes: &mut [i8], scales: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn groups_avx2(group: usize, floor: f32, x: &[f32], codes: &mut [i8], scales: &mut [f32]) {
                groups(group, floor, x, codes, scales);
            }
            if self.avx2 {
                // SAFETY: the processor has AVX2.
                return unsafe { groups_avx2(self.group, self.floor, x, codes, scales) };
            }
        }
        groups(self.group, self.floor, x, codes, scales);
    }
}

#[inline(always)]
fn groups(group: usize, floor: f32, x: &[f32], codes: &mut [i8], scales: &mut [f32]) {
    for ((x, codes), scale) in x.chunks_exact(group).zip(codes.chunks_exact_mut(group)).zip(scales) {
        let a = greatest(x);
        let a = if a < floor { floor } else { a };
        *scale = a / 127.0;
        let factor = 127.0 / a;
        if a == 0.0 {
            codes.fill(0);
            continue;
        }
        for (code, x) in codes.iter_mut().zip(x) {
            let value = x * factor;
            // Zero times an infinite factor (a below the normal range) is NaN: its code is 0.
            let value = if value.is_nan() { 0.0 } else { value.clamp(-128.0, 127.0) };
            // Adding 1.5·2²³ leaves the integer nearest to the value, ties to even, in the low bits.
            *code = (value + 12_582_912.0).to_bits() as i8;
        }
    }
}

/// The greatest magnitude, compared as bits: a NaN is the greatest of all, so the scale of a group with a NaN is NaN.
#[inline(always)]
pub(super) fn greatest(x: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0u32; LANES];
    let whole = x.chunks_exact(LANES);
    let rest = whole.remainder().iter().fold(0, |a, x| a.max(x.abs().to_bits()));
    for x in whole {
        for i in 0..LANES {
            lanes[i] = lanes[i].max(x[i].abs().to_bits());
        }
    }
    f32::from_bits(lanes.into_iter().fold(rest, u32::max))
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::super::super::testing::{Memory, feature_sets, launch};
    use super::*;
    use hologram_device::Extent;

    /// The definition, element by element.
    fn expected(x: &[f32], floor: f32) -> (Vec<i8>, f32) {
        let a = x.iter().fold(floor, |a, x| a.max(x.abs()));
        let code = |x: &f32| if a == 0.0 { 0.0 } else { (x * (127.0 / a)).round_ties_even().clamp(-128.0, 127.0) };
        (x.iter().map(|x| code(x) as i8).collect(), if a == 0.0 { 0.0 } else { a / 127.0 })
    }

    pub(crate) fn matches_the_definition() {
        for (k, group, floor, n) in
            [(64, 32, 0.0, 3), (320, 320, 1e-5, 2), (4096, 32, 0.0, 5), (96, 96, 0.0, 1), (6, 3, 0.0, 4)]
        {
            let rows = Extent::step(0, n + 1);
            let shape = vec![rows, Extent::Fixed(k)];
            let format = DType::I8Groups { group: group as u32 };
            let spec = KernelSpec {
                op: Operation::Quantize { group: group as u32, floor: floor.into() },
                inputs: vec![TensorSpec { format: DType::F32, shape: shape.clone() }],
                output: TensorSpec { format, shape },
                in_place: None,
            };
            // Ties, a group of zeros, values of many magnitudes.
            let mut x: Vec<f32> = (0..(n + 1) * k).map(|i| ((i * 37 % 255) as f32 - 127.0) * 0.5).collect();
            x[..group].fill(0.0);
            x[group + 1] = -127.0;
            x.iter_mut().skip(2 * group).enumerate().for_each(|(i, x)| *x *= (1 + i % 7) as f32 * 0.013);
            for features in feature_sets() {
                let kernel = find(&spec, features).expect("served");
                let mut memory = vec![
                    Memory::of(&x),
                    Memory::filled((n + 1) * k, 0x55),
                    Memory::filled((n + 1) * k / group * 4, 0x55),
                    Memory::of(&[n as u32]),
                ];
                launch(&*kernel, &mut memory, 2).expect("runs");
                let (codes, scales): (&[i8], &[f32]) = (memory[1].elements(), memory[2].elements());
                for (i, x) in x[..n * k].chunks(group).enumerate() {
                    let wanted = expected(x, floor);
                    assert_eq!((&codes[i * group..][..group], scales[i]), (&wanted.0[..], wanted.1), "{k} {group} {i}");
                }
                assert!(codes[n * k..].iter().all(|c| *c == 0x55), "rows beyond the run's");
            }
        }
    }
}
