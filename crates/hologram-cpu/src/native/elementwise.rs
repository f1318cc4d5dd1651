//! Elementwise operations on whole tensors of the same shape: the memory-bound arithmetic, and the gates of
//! feed-forward networks. They equal the operations' programs to the bit. Other operations, and broadcast operands, are
//! left to the programs.

use std::sync::Arc;

use hologram_device::{DType, ElementLoss, KernelSpec, Operation, TensorSpec};
use hologram_isa::decompose::{Scalar, exp};

use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::narrow::{convert, is_in_f32, with_element};
use crate::native::simd::{Isa, Simd, fence, simd_entry};
use crate::native::stream::{is_non_temporal, map_with};
use crate::native::{elements, input, is_dense, room};

/// Loops over slices of one length; the last argument selects non-temporal stores.
#[derive(Clone, Copy)]
enum Apply {
    One(fn(Isa, &[f32], &mut [f32], bool)),
    Two(fn(Isa, &[f32], &[f32], &mut [f32], bool)),
}

/// The loop of an operation, if it has one.
fn apply(op: &Operation) -> Option<Apply> {
    use hologram_device::Elementwise as E;
    Some(match op {
        Operation::Loss(ElementLoss::Squared) => Apply::Two(squared_error),
        Operation::Elementwise(op) => match op {
            E::Relu => Apply::One(relu),
            E::Neg => Apply::One(neg),
            E::Abs => Apply::One(abs),
            E::Add => Apply::Two(add),
            E::Sub => Apply::Two(sub),
            E::Mul => Apply::Two(mul),
            E::Div => Apply::Two(div),
            E::Swiglu => Apply::Two(swiglu),
            E::Relu2Mul => Apply::Two(relu2_mul),
            E::ClampedSwiglu => Apply::Two(clamped_swiglu),
            _ => return None,
        },
        _ => return None,
    })
}

/// Elements of a piece of work: three slices of this length fit the first-level cache.
const PIECE: usize = 2048;
/// As [`PIECE`], for results with non-temporal stores.
const PIECE_NON_TEMPORAL: usize = 64 << 10;

struct Elementwise {
    isa: Isa,
    apply: Apply,
    shape: TensorSpec,
    uses_step: bool,
}

/// The native kernel for an operation of the table; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let apply = apply(&spec.op)?;
    let operands = match apply {
        Apply::One(_) => 1,
        Apply::Two(_) => 2,
    };
    let served = spec.in_place.is_none()
        && spec.inputs.len() == operands
        && spec.inputs.iter().all(|t| *t == spec.output)
        && is_in_f32(spec.output.format)
        && is_dense(&spec.output);
    let kernel =
        || Elementwise { isa: Isa::widest(features), apply, shape: spec.output.clone(), uses_step: spec.uses_step() };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Elementwise {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let len = elements(&self.shape, if self.uses_step { args.step() } else { &[] });
        if self.shape.format != DType::F32 {
            return self.narrow(len, args, worker);
        }
        let result = if matches!(self.apply, Apply::One(_)) { 1 } else { 2 };
        let a = input::<f32>(args, 0, len)?;
        let b = if result == 2 { input::<f32>(args, 1, len)? } else { a };
        room::<f32>(args, result, len)?;
        let out = args.output::<f32>(result);
        let non_temporal = is_non_temporal(args.raw(result), len * 4);
        let size = if non_temporal { PIECE_NON_TEMPORAL } else { PIECE };
        while let Some(index) = worker.next(len.div_ceil(size)) {
            let piece = index * size..((index + 1) * size).min(len);
            // SAFETY: each piece is claimed by one worker.
            let (a, b, out) = (&a[piece.clone()], &b[piece.clone()], unsafe { out.part(piece) });
            match self.apply {
                Apply::One(apply) => apply(self.isa, a, out, non_temporal),
                Apply::Two(apply) => apply(self.isa, a, b, out, non_temporal),
            }
        }
        fence();
        Ok(())
    }
}

/// Elements of a narrow type that are computed at a time.
const BLOCK: usize = 512;

impl Elementwise {
    /// For narrow floats: computes in `f32` and rounds once.
    fn narrow(&self, len: usize, args: &Args<'_>, worker: &Worker<'_>) -> Result<(), String> {
        /// Memory for a block, aligned to a cache line.
        #[repr(align(64))]
        struct Block([f32; BLOCK]);
        let (mut wide, mut y) = ([Block([0.0; BLOCK]), Block([0.0; BLOCK])], Block([0.0; BLOCK]));
        let result = if matches!(self.apply, Apply::One(_)) { 1 } else { 2 };
        with_element!(self.shape.format, E => {
            let a = input::<E>(args, 0, len)?;
            let b = if result == 2 { input::<E>(args, 1, len)? } else { a };
            room::<E>(args, result, len)?;
            let out = args.output::<E>(result);
            let non_temporal = is_non_temporal(args.raw(result), size_of_val(&a[..len]));
            let size = if non_temporal { PIECE_NON_TEMPORAL } else { PIECE };
            while let Some(index) = worker.next(len.div_ceil(size)) {
                let piece = index * size..((index + 1) * size).min(len);
                for at in piece.clone().step_by(BLOCK) {
                    let block = at..(at + BLOCK).min(piece.end);
                    let [first, second] = &mut wide;
                    let (first, y) = (&mut first.0[..block.len()], &mut y.0[..block.len()]);
                    convert(self.isa, &a[block.clone()], first, false);
                    match self.apply {
                        Apply::One(apply) => apply(self.isa, first, y, false),
                        Apply::Two(apply) => {
                            let second = &mut second.0[..block.len()];
                            convert(self.isa, &b[block.clone()], second, false);
                            apply(self.isa, first, second, y, false);
                        }
                    }
                    // SAFETY: each piece is claimed by one worker.
                    convert(self.isa, y, unsafe { out.part(block) }, non_temporal);
                }
            }
        });
        fence();
        Ok(())
    }
}

/// Defines operations by scalar expressions, compiled to vector loops for each instruction set.
macro_rules! operations {
    ($($name:ident, $with:ident: |$($a:ident),*| $expression:expr;)*) => {$(
        simd_entry! {
            fn $name($($a: &[f32],)* out: &mut [f32], non_temporal: bool) = $with
        }

        #[inline(always)]
        fn $with<S: Simd>(s: S, $($a: &[f32],)* out: &mut [f32], non_temporal: bool) {
            map_with(s, [$($a),*], out, non_temporal, |[$($a),*]| $expression);
        }
    )*};
}

operations! {
    // Keeps NaN and clears the sign of zero.
    relu, relu_with: |x| if x <= 0.0 { 0.0 } else { x };
    neg, neg_with: |x| -x;
    abs, abs_with: |x| x.abs();
    add, add_with: |a, b| a + b;
    sub, sub_with: |a, b| a - b;
    mul, mul_with: |a, b| a * b;
    div, div_with: |a, b| a / b;
    squared_error, squared_error_with: |a, b| (a - b) * (a - b);
    swiglu, swiglu_with: |gate, up| gate * (1.0 / (exp(&Scalar, -gate) + 1.0)) * up;
    clamped_swiglu, clamped_swiglu_with: |gate, up| {
        // Keep NaN.
        let gate = if gate > 7.0 { 7.0 } else { gate };
        let up = if up < -7.0 { -7.0 } else { up };
        let up = if up > 7.0 { 7.0 } else { up };
        gate * (1.0 / (exp(&Scalar, -(gate * 1.702)) + 1.0)) * (up + 1.0)
    };
    relu2_mul, relu2_mul_with: |gate, up| {
        // Keeps NaN.
        let r = if gate <= 0.0 { 0.0 } else { gate };
        r * r * up
    };
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};
    use hologram_device::Elementwise as E;
    use hologram_device::Extent;

    pub(crate) fn agrees_with_the_definition() {
        type Definition = fn(f64, f64) -> f64;
        fn clamped(gate: f64, up: f64) -> f64 {
            let gate = gate.min(7.0);
            gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
        }
        let definitions: [(Operation, Definition, f64); 10] = [
            (E::Relu.into(), |a, _| a.max(0.0), 0.0),
            (E::Neg.into(), |a, _| -a, 0.0),
            (E::Abs.into(), |a, _| a.abs(), 0.0),
            (E::Add.into(), |a, b| a + b, 0.5),
            (E::Sub.into(), |a, b| a - b, 0.5),
            (E::Mul.into(), |a, b| a * b, 0.5),
            (E::Div.into(), |a, b| a / b, 0.5),
            (E::Swiglu.into(), |g, u| g / (1.0 + (-g).exp()) * u, 8.0),
            (E::ClampedSwiglu.into(), clamped, 12.0),
            (E::Relu2Mul.into(), |g, u| g.max(0.0).powi(2) * u, 1.5),
        ];
        for (op, definition, ulp) in definitions {
            for (rows, d) in [(1u32, 5), (3, 4097), (0, 16), (4, 1000)] {
                let shape = vec![Extent::step(0, 4), Extent::Fixed(d)];
                let x = TensorSpec { format: DType::F32, shape };
                let operands = if matches!(apply(&op), Some(Apply::One(_))) { 1 } else { 2 };
                let inputs = vec![x.clone(); operands];
                let spec = KernelSpec { op: op.clone(), inputs, output: x, in_place: None };
                let scaled =
                    |seed, scale: f32| Random(seed).floats(4 * d).iter().map(|x| x * scale).collect::<Vec<_>>();
                let (mut a, b) = (scaled(3, 12.0), scaled(4, 2.0));
                a[..5].copy_from_slice(&[0.0, -0.0, 88.0, -88.0, -104.0]);
                for features in feature_sets() {
                    let out = Memory::filled(a.len() * 4, 0xff);
                    let mut memory = vec![Memory::of(&a), Memory::of(&b), out, Memory::of(&[rows])];
                    memory.drain(operands..2);
                    launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
                    let (out, rest) = memory[operands].elements::<f32>().split_at(rows as usize * d);
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

    pub(crate) fn non_temporal_stores_give_the_same() {
        let n = 5 * 128 + 3;
        let (a, b) = (Random(1).floats(n), Random(2).floats(n));
        let (mut near, mut far) = (Memory::filled(n * 4, 1), Memory::filled(n * 4, 2));
        let operations = E::ALL.iter().map(|op| (*op).into()).chain([Operation::Loss(ElementLoss::Squared)]);
        for (op, apply) in operations.filter_map(|op| Some((op.clone(), apply(&op)?))) {
            for features in feature_sets() {
                for (non_temporal, out) in [(false, &mut near), (true, &mut far)] {
                    let (isa, out) = (Isa::widest(features), out.elements_mut());
                    match apply {
                        Apply::One(apply) => apply(isa, &a, out, non_temporal),
                        Apply::Two(apply) => apply(isa, &a, &b, out, non_temporal),
                    }
                }
                assert!(near.elements::<u32>() == far.elements::<u32>(), "{op} {features:?}");
            }
        }
    }
}
