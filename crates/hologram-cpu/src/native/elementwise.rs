//! Elementwise operations on whole tensors of the same shape: the memory-bound arithmetic, and the gates of
//! feed-forward networks; sums, differences, products and quotients of `f32` also with an operand that repeats along
//! the rows or within them. They equal the operations' programs to the bit. Other operations are left to the programs.

use std::sync::Arc;

use hologram_device::{DType, ElementLoss, Extent, KernelSpec, Operation, TensorSpec};
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

/// How an operand of rows repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// Not at all.
    Never,
    /// It is a row, which all rows have.
    Rows,
    /// It has an element per row.
    Columns,
}

/// An operation of two tensors of `f32`, of which one at least repeats.
struct Repeated {
    isa: Isa,
    apply: fn(Isa, &[f32], &[f32], &mut [f32], bool),
    repeats: [Repeat; 2],
    columns: usize,
    output: TensorSpec,
    uses_step: bool,
}

/// The native kernel for an operation of the table; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let apply = apply(&spec.op)?;
    let operands = match apply {
        Apply::One(_) => 1,
        Apply::Two(_) => 2,
    };
    if let Some(repeated) = repeated(spec, apply, features) {
        return Some(Arc::new(repeated));
    }
    let served = spec.in_place.is_none()
        && spec.inputs.len() == operands
        && spec.inputs.iter().all(|t| *t == spec.output)
        && is_in_f32(spec.output.format)
        && is_dense(&spec.output);
    let kernel =
        || Elementwise { isa: Isa::widest(features), apply, shape: spec.output.clone(), uses_step: spec.uses_step() };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

/// The kernel for operands that repeat, if they do so along whole rows of one length.
fn repeated(spec: &KernelSpec, apply: Apply, features: Features) -> Option<Repeated> {
    use hologram_device::Elementwise as E;
    let (Apply::Two(apply), [a, b]) = (apply, spec.inputs.as_slice()) else { return None };
    let arithmetic = matches!(spec.op, Operation::Elementwise(E::Add | E::Sub | E::Mul | E::Div));
    let all = [a, b, &spec.output];
    let served = arithmetic && spec.in_place.is_none() && all.iter().all(|t| t.format == DType::F32);
    // Only the slowest dimension may vary; operands that have it vary alike.
    let fixed = |t: &TensorSpec| t.shape.iter().all(|e| matches!(e, Extent::Fixed(_)));
    let varies = !fixed(&spec.output);
    let alike = !varies || (is_dense(&spec.output) && [a, b].iter().all(|t| **t == spec.output || fixed(t)));
    if !served || !alike || (spec.uses_step() && !varies) || (*a == spec.output && *b == spec.output) {
        return None;
    }
    let sizes = |t: &TensorSpec| t.shape.iter().map(|e| e.max()).collect::<Vec<_>>();
    let out = sizes(&spec.output);
    // Rows are the last dimensions of the output, as many as make every operand whole, a row, or an element per row.
    (usize::from(varies)..out.len()).find_map(|d| {
        let (rows, columns): (usize, usize) = (out[..d].iter().product(), out[d..].iter().product());
        let repeat = |t: &TensorSpec| {
            let own = sizes(t);
            let missing = out.len() - own.len();
            let size = |i: usize| if i < missing { 1 } else { own[i - missing] };
            let fits = |dims: std::ops::Range<usize>, whole: bool| {
                dims.into_iter().all(|i| size(i) == if whole { out[i] } else { 1 })
            };
            match (fits(0..d, true), fits(d..out.len(), true)) {
                (true, true) => Some(Repeat::Never),
                (true, false) => fits(d..out.len(), false).then_some(Repeat::Columns),
                (false, true) => fits(0..d, false).then_some(Repeat::Rows),
                _ => None,
            }
        };
        let repeats = [repeat(a)?, repeat(b)?];
        let enough = columns >= LEAST_COLUMNS && rows > 0;
        let (isa, output) = (Isa::widest(features), spec.output.clone());
        enough.then_some(Repeated { isa, apply, repeats, columns, output, uses_step: varies })
    })
}

/// The fewest columns of rows for which a call each pays.
const LEAST_COLUMNS: usize = 16;

impl NativeKernel for Repeated {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        /// An operand's element per row, as a part of the row.
        #[repr(align(64))]
        struct Part([f32; PIECE]);
        let len = elements(&self.output, if self.uses_step { args.step() } else { &[] });
        let columns = self.columns;
        let rows = len / columns;
        let elements = self.repeats.map(|repeat| match repeat {
            Repeat::Never => len,
            Repeat::Rows => columns,
            Repeat::Columns => rows,
        });
        let operands = [input::<f32>(args, 0, elements[0])?, input::<f32>(args, 1, elements[1])?];
        room::<f32>(args, 2, len)?;
        let out = args.output::<f32>(2);
        let non_temporal = is_non_temporal(args.raw(2), len * 4) && columns.is_multiple_of(16);
        let mut part = Part([0.0; PIECE]);
        // A piece of work is some rows, or a part of a long one.
        let width = columns.min(PIECE * 4);
        let (across, down) = (columns.div_ceil(width), (PIECE * 4) / width);
        while let Some(index) = worker.next(rows.div_ceil(down) * across) {
            let (first, start) = (index / across * down, index % across * width);
            for row in first..(first + down).min(rows) {
                // At most one operand has an element per row, or rows were of one element.
                if let Some(side) = self.repeats.iter().position(|repeat| *repeat == Repeat::Columns) {
                    part.0[..width.min(PIECE)].fill(operands[side][row]);
                }
                let end = (start + width).min(columns);
                for from in (start..end).step_by(PIECE) {
                    let to = (from + PIECE).min(end);
                    let own = |side: usize| match self.repeats[side] {
                        Repeat::Never => &operands[side][row * columns + from..row * columns + to],
                        Repeat::Rows => &operands[side][from..to],
                        Repeat::Columns => &part.0[..to - from],
                    };
                    // SAFETY: each part of a row is claimed by one worker.
                    let out = unsafe { out.part(row * columns + from..row * columns + to) };
                    (self.apply)(self.isa, own(0), own(1), out, non_temporal);
                }
            }
        }
        fence();
        Ok(())
    }
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

    pub(crate) fn operands_repeat() {
        let f32s = |shape: &[usize]| TensorSpec {
            format: DType::F32,
            shape: shape.iter().map(|n| Extent::Fixed(*n)).collect(),
        };
        let cases: [(&[usize], &[usize], &[usize]); 10] = [
            (&[6, 70], &[70], &[6, 70]),
            (&[6, 1], &[6, 70], &[6, 70]),
            (&[6, 1], &[70], &[6, 70]),
            (&[3, 2, 5000], &[1, 1, 5000], &[3, 2, 5000]),
            (&[3, 2, 1], &[3, 2, 5000], &[3, 2, 5000]),
            (&[20_001], &[1], &[20_001]),
            (&[2, 3, 4, 16], &[4, 16], &[2, 3, 4, 16]),
            (&[2, 3, 4, 16], &[2, 3, 1, 1], &[2, 3, 4, 16]),
            (&[40], &[1], &[40]),
            (&[], &[3, 40], &[3, 40]),
        ];
        for (a, b, shape) in cases {
            for op in [E::Add, E::Sub, E::Mul, E::Div] {
                let spec =
                    KernelSpec { op: op.into(), inputs: vec![f32s(a), f32s(b)], output: f32s(shape), in_place: None };
                let values = |shape: &[usize], seed| Random(seed).floats(shape.iter().product::<usize>().max(1));
                let (x, y, n) = (values(a, 1), values(b, 2), shape.iter().product::<usize>());
                // The element of an operand for an element of the result.
                let at = |own: &[usize], i: usize| {
                    let (mut rest, mut at, mut stride) = (i, 0, 1);
                    for (d, size) in shape.iter().enumerate().rev() {
                        let place = rest % size;
                        rest /= size;
                        if let Some(n) = (d + own.len()).checked_sub(shape.len()).map(|d| own[d]) {
                            at += if n == 1 { 0 } else { place * stride };
                            stride *= n;
                        }
                    }
                    at
                };
                for features in feature_sets() {
                    let mut memory = vec![Memory::of(&x), Memory::of(&y), Memory::filled(n * 4, 0xff)];
                    launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
                    for (i, result) in memory[2].elements::<f32>().iter().enumerate() {
                        let (x, y) = (x[at(a, i)], y[at(b, i)]);
                        let want = match op {
                            E::Add => x + y,
                            E::Sub => x - y,
                            E::Mul => x * y,
                            _ => x / y,
                        };
                        assert_eq!(result.to_bits(), want.to_bits(), "{op:?} of {a:?} and {b:?}: {i}");
                    }
                }
            }
        }
        // The run has fewer rows than the most.
        let rows = TensorSpec { format: DType::F32, shape: vec![Extent::step(0, 9), Extent::Fixed(70)] };
        let (x, y) = (Random(1).floats(9 * 70), Random(2).floats(70));
        for features in feature_sets() {
            let inputs = vec![rows.clone(), f32s(&[70])];
            let spec = KernelSpec { op: E::Add.into(), inputs, output: rows.clone(), in_place: None };
            let out = Memory::filled(9 * 70 * 4, 0xff);
            let mut memory = vec![Memory::of(&x), Memory::of(&y), out, Memory::of(&[5u32])];
            launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
            for (i, sum) in memory[2].elements::<f32>().iter().enumerate() {
                assert!(if i < 5 * 70 { *sum == x[i] + y[i % 70] } else { sum.is_nan() }, "{features:?}: {i}");
            }
        }
        // Neither a row nor an element per row, and rows that are too short.
        for (a, b, shape) in [(&[4, 1, 20], &[4, 5, 20], [4, 5, 20]), (&[9, 9, 1], &[9, 9, 4], [9, 9, 4])] {
            let spec =
                KernelSpec { op: E::Add.into(), inputs: vec![f32s(a), f32s(b)], output: f32s(&shape), in_place: None };
            assert!(feature_sets().into_iter().all(|features| find(&spec, features).is_none()), "{a:?}");
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
