//! The elementwise operations that feed-forward networks run on whole activations: `swiglu`, `relu2_mul` and `add` of tensors of the
//! same shape. They compute what the operations' programs do, to the bit; other operations and shapes are left to the programs.

use std::sync::Arc;

use hologram_isa::decompose::{Scalar, exp};

use crate::cpu::features::Features;
use crate::cpu::kernel::{Args, NativeKernel, Worker};
use crate::cpu::native::simd::{Isa, Simd, simd_entry};
use crate::cpu::native::{input, only_slowest_varies};
use crate::{Format, KernelSpec, TensorSpec};

/// A loop over two slices of the length of a third.
type Apply = fn(Isa, &[f32], &[f32], &mut [f32]);

/// The operations.
const OPERATIONS: &[(&str, Apply)] = &[("swiglu", swiglu), ("relu2_mul", relu2_mul), ("add", add)];

/// Elements of a piece of work: three slices of this length fit the first-level cache.
const PIECE: usize = 2048;

struct Elementwise {
    isa: Isa,
    apply: Apply,
    shape: TensorSpec,
    uses_step: bool,
}

/// The native kernel for an operation of the table; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let (_, apply) = OPERATIONS.iter().find(|(name, _)| *name == spec.op)?;
    let served = spec.in_place.is_none()
        && spec.inputs.len() == 2
        && spec.inputs.iter().all(|t| *t == spec.output)
        && spec.output.format == Format::F32
        && only_slowest_varies(&spec.output);
    let kernel = || Elementwise {
        isa: Isa::widest(features),
        apply: *apply,
        shape: spec.output.clone(),
        uses_step: spec.uses_step(),
    };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Elementwise {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let len = self.shape.rows(if self.uses_step { args.step() } else { &[] }) * self.shape.row_len();
        let (a, b) = (input::<f32>(args, 0, len)?, input::<f32>(args, 1, len)?);
        input::<f32>(args, 2, len)?;
        // SAFETY: each piece is claimed by one worker.
        let out = unsafe { args.write::<f32>(2) };
        while let Some(index) = worker.next(len.div_ceil(PIECE)) {
            let piece = index * PIECE..((index + 1) * PIECE).min(len);
            (self.apply)(self.isa, &a[piece.clone()], &b[piece.clone()], &mut out[piece]);
        }
        Ok(())
    }
}

/// Defines operations by scalar expressions, compiled to vector loops for each instruction set.
macro_rules! operations {
    ($($name:ident, $with:ident: |$a:ident, $b:ident| $expression:expr;)*) => {$(
        simd_entry! {
            fn $name(a: &[f32], b: &[f32], out: &mut [f32]) = $with
        }

        #[inline(always)]
        fn $with<S: Simd>(_: S, a: &[f32], b: &[f32], out: &mut [f32]) {
            for ((y, $a), $b) in out.iter_mut().zip(a).zip(b) {
                let ($a, $b) = (*$a, *$b);
                *y = $expression;
            }
        }
    )*};
}

operations! {
    swiglu, swiglu_with: |gate, up| gate * (1.0 / (exp(&Scalar, -gate) + 1.0)) * up;
    relu2_mul, relu2_mul_with: |gate, up| {
        // As Atlas's max: NaN loses, the sign of zero is cleared.
        let r = if gate > 0.0 { gate } else { 0.0 };
        r * r * up
    };
    add, add_with: |a, b| a + b;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extent;
    use crate::cpu::testing::{Memory, Random, feature_sets, launch};

    #[test]
    fn agrees_with_the_definition() {
        type Definition = fn(f64, f64) -> f64;
        let definitions: [(&str, Definition, f64); 3] = [
            ("swiglu", |g, u| g / (1.0 + (-g).exp()) * u, 8.0),
            ("relu2_mul", |g, u| g.max(0.0).powi(2) * u, 1.5),
            ("add", |a, b| a + b, 0.5),
        ];
        for (op, definition, ulp) in definitions {
            for (rows, d) in [(1u32, 5), (3, 4097), (0, 16), (4, 1000)] {
                let shape = vec![Extent::Step { slot: 0, max: 4 }, Extent::Fixed(d)];
                let x = TensorSpec { format: Format::F32, shape };
                let spec = KernelSpec { op, inputs: vec![x.clone(); 2], output: x, in_place: None, attrs: vec![] };
                let scaled =
                    |seed, scale: f32| Random(seed).floats(4 * d).iter().map(|x| x * scale).collect::<Vec<_>>();
                let (mut a, b) = (scaled(3, 12.0), scaled(4, 2.0));
                a[..5].copy_from_slice(&[0.0, -0.0, 88.0, -88.0, -104.0]);
                for features in feature_sets() {
                    let out = Memory::filled(a.len() * 4, 0xff);
                    let mut memory = [Memory::of(&a), Memory::of(&b), out, Memory::of(&[rows])];
                    launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
                    let (out, rest) = memory[2].elements::<f32>().split_at(rows as usize * d);
                    for ((y, a), b) in out.iter().zip(&a).zip(&b) {
                        let want = definition(f64::from(*a), f64::from(*b));
                        let bound = want.abs() * ulp * f64::from(f32::EPSILON) + f64::from(f32::MIN_POSITIVE);
                        assert!(
                            (f64::from(*y) - want).abs() <= bound,
                            "{op} {features:?}: {a}, {b} gives {y}, not {want}"
                        );
                    }
                    assert!(rest.iter().all(|y| y.is_nan()), "wrote behind the run's rows");
                }
            }
        }
    }
}
