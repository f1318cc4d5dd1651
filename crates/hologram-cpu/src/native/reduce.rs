//! `reduce_sum`, `reduce_mean`, `reduce_prod`, `reduce_max`, `reduce_min`, `arg_max` and `arg_min` along any dimension,
//! of `f32` and narrow floats, and the partial sums of `cumsum`. Rows are reduced by vectors along them, other lines
//! side by side.

use std::ops::Range;
use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation};

use super::lines::{Lines, Sizes};
use super::narrow::{Element, is_in_f32, with_element};
use super::simd::{Isa, Simd, prefetch_near, simd_entry};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

/// Elements of a part of a line: in rows, and in lines side by side.
const PART: usize = 64 << 10;
const DEEP: usize = 512;
/// Lines side by side that are reduced together.
const WIDTH: usize = 512;
/// Elements of a piece of work, in whole rows.
const PIECE: usize = 16 << 10;
/// The fewest pieces for which lines side by side are not split.
const ENOUGH: usize = 16;
/// `BLOCK`: elements of a row that are searched for their greatest before its place. `TOGETHER`: elements of each line
/// side by side that are summed before they are added to the line's sum.
const BLOCK: usize = 512;
const TOGETHER: usize = 128;
/// Prefetch distance in bytes.
const AHEAD: usize = 2048;
/// The index of no element.
const NONE: u32 = u32::MAX;

/// The result of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
    ArgMax,
    ArgMin,
}

struct Reduce {
    isa: Isa,
    lines: Lines,
    format: DType,
    output: DType,
    reduction: Reduction,
    /// Parts of a line that are reduced separately, whichever worker has them.
    parts: usize,
    uses_step: bool,
}

/// The native kernel for a reduction; `None` for any other spec, and for types that are not computed in `f32`.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let (reduction, axis) = match spec.op {
        Operation::Reduce { reduction, axis } => {
            let reduction = match reduction {
                hologram_device::Reduction::Sum => Reduction::Sum,
                hologram_device::Reduction::Mean => Reduction::Mean,
                hologram_device::Reduction::Max => Reduction::Max,
                hologram_device::Reduction::Min => Reduction::Min,
                hologram_device::Reduction::Prod => Reduction::Prod,
            };
            (reduction, axis)
        }
        Operation::ArgReduce { least: false, axis } => (Reduction::ArgMax, axis),
        Operation::ArgReduce { least: true, axis } => (Reduction::ArgMin, axis),
        _ => return None,
    };
    let of_index = matches!(reduction, Reduction::ArgMax | Reduction::ArgMin);
    let others = x.shape.iter().enumerate().filter(|(i, _)| *i != axis as usize).map(|(_, e)| e);
    let served = spec.in_place.is_none()
        && is_in_f32(x.format)
        && spec.output.format == if of_index { DType::U32 } else { x.format }
        && others.eq(&spec.output.shape);
    let lines = Lines::new(x, axis)?;
    let kernel = Reduce {
        isa: Isa::widest(features),
        parts: parts(lines.max()),
        lines,
        format: x.format,
        output: spec.output.format,
        reduction,
        uses_step: spec.uses_step(),
    };
    served.then(|| Arc::new(kernel) as Arc<dyn NativeKernel>)
}

/// The best element of a line so far, or its sum or product.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Part {
    value: f32,
    /// The best element's index; [`NONE`] if there is none, and for sums and products.
    index: u32,
}

/// Whether the later of two values is a NaN and the earlier is not: a line's first NaN is its greatest and its least.
#[inline(always)]
fn nan_wins(earlier: f32, later: f32) -> bool {
    later.is_nan() & !earlier.is_nan()
}

/// The number of parts per line: long rows, and deep matrices of few lines side by side, are split.
fn parts(Sizes { outer, n, inner }: Sizes) -> usize {
    if inner == 1 {
        n.div_ceil(PART).max(1)
    } else if outer * inner.div_ceil(WIDTH) >= ENOUGH {
        1
    } else {
        n.div_ceil(DEEP).clamp(1, ENOUGH)
    }
}

impl Reduce {
    /// The sign of the values of a part: for the least element, negated values are compared.
    fn sign(&self) -> f32 {
        if matches!(self.reduction, Reduction::Min | Reduction::ArgMin) { -1.0 } else { 1.0 }
    }

    /// The function that joins elements, if they are not compared.
    fn fold(&self) -> Option<Fold> {
        match self.reduction {
            Reduction::Sum | Reduction::Mean => Some(Fold::Sum),
            Reduction::Prod => Some(Fold::Product),
            _ => None,
        }
    }

    /// Joins a later part to an earlier one.
    fn join(&self, to: &mut Part, part: Part) {
        if let Some(fold) = self.fold() {
            to.value = fold.join(to.value, part.value);
        } else if part.index != NONE && (to.index == NONE || nan_wins(to.value, part.value) || part.value > to.value) {
            *to = part;
        }
    }

    fn nothing(&self) -> Part {
        Part { value: self.fold().map_or(f32::NAN, Fold::of_none), index: NONE }
    }

    /// Stores a line's result.
    fn put<E: Element>(&self, args: &Args<'_>, line: usize, n: usize, part: Part) {
        // SAFETY: the line's result is this worker's; the buffer's size was checked.
        unsafe {
            match self.reduction {
                Reduction::ArgMax | Reduction::ArgMin => args.output(1).set(line, part.index),
                Reduction::Mean => args.output(1).set(line, E::nearest(part.value / n as f32)),
                _ => args.output(1).set(line, E::nearest(part.value * self.sign())),
            }
        }
    }

    /// Reduces a part of a row.
    fn row<E: Element>(&self, x: &[E], first: usize) -> Part {
        if let Some(by) = self.fold() {
            return Part { value: fold(self.isa, x, by), index: NONE };
        }
        let (value, block, finite) = greatest(self.isa, x, self.sign());
        // Few rows have a NaN, so each element is compared only if one of them is no finite number.
        let searched = if finite { &[] } else { x };
        if let Some(at) = searched.iter().position(|x| x.wide().is_nan()) {
            return Part { value: f32::NAN, index: (first + at) as u32 };
        }
        if x.is_empty() {
            return self.nothing();
        }
        if matches!(self.reduction, Reduction::Max | Reduction::Min) {
            return Part { value, index: first as u32 };
        }
        let signed = |x: &E| x.wide() * self.sign();
        // If nothing is above −∞, all are −∞, and no block was better than the start.
        let range = if value == f32::NEG_INFINITY { 0..x.len() } else { block..(block + BLOCK).min(x.len()) };
        match x[range.clone()].iter().position(|x| signed(x) == value) {
            Some(at) => Part { value, index: (first + range.start + at) as u32 },
            None => Part { value: f32::NAN, index: first as u32 },
        }
    }

    fn run_rows<E: Element>(&self, sizes: Sizes, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) {
        let Sizes { outer: rows, n, .. } = sizes;
        let parts = self.parts;
        let x = args.read::<E>(0);
        let partial = worker.shared_scratch().data.cast::<Part>();
        if parts == 1 && phase == 0 {
            let per_piece = (PIECE / n.max(1)).max(1);
            while let Some(piece) = worker.next(rows.div_ceil(per_piece)) {
                for row in piece * per_piece..((piece + 1) * per_piece).min(rows) {
                    self.put::<E>(args, row, n, self.row(&x[row * n..(row + 1) * n], 0));
                }
            }
        } else if phase == 0 {
            while let Some(index) = worker.next(rows * parts) {
                let (row, part) = (index / parts, index % parts);
                let range = (part * PART).min(n)..((part + 1) * PART).min(n);
                let found = self.row(&x[row * n + range.start..row * n + range.end], range.start);
                // SAFETY: the scratch has room for each part of each row, and this worker has claimed this one.
                unsafe { partial.add(index).write(found) };
            }
        } else if parts > 1 {
            while let Some(row) = worker.next(rows) {
                let mut whole = self.nothing();
                for part in 0..parts {
                    // SAFETY: the parts were stored in the phase before.
                    self.join(&mut whole, unsafe { partial.add(row * parts + part).read() });
                }
                self.put::<E>(args, row, n, whole);
            }
        }
    }

    fn run_columns<E: Element>(&self, sizes: Sizes, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) {
        let Sizes { outer, n, inner } = sizes;
        let (strips, parts) = (inner.div_ceil(WIDTH), self.parts);
        let x = args.read::<E>(0);
        let partial = worker.shared_scratch().data.cast::<Part>();
        let (mut values, mut indices) = ([0f32; WIDTH], [NONE; WIDTH]);
        if phase == 0 {
            // Small matrices are reduced together.
            let per_piece = (PIECE / (n * inner).max(1)).max(1);
            let pieces = outer.div_ceil(per_piece);
            while let Some(index) = worker.next(pieces * strips * parts) {
                let (piece, strip, part) = (index / (strips * parts), index / parts % strips, index % parts);
                let columns = strip * WIDTH..((strip + 1) * WIDTH).min(inner);
                let depth = n * part / parts..n * (part + 1) / parts;
                for matrix in piece * per_piece..((piece + 1) * per_piece).min(outer) {
                    let x = &x[matrix * n * inner..(matrix + 1) * n * inner];
                    let (values, indices) = (&mut values[..columns.len()], &mut indices[..columns.len()]);
                    self.columns(x, inner, columns.clone(), depth.clone(), values, indices);
                    for (i, column) in columns.clone().enumerate() {
                        let (line, found) = (matrix * inner + column, Part { value: values[i], index: indices[i] });
                        if parts == 1 {
                            self.put::<E>(args, line, n, found);
                        } else {
                            // SAFETY: the scratch has room for each part of each line, and this worker has claimed
                            // these.
                            unsafe { partial.add(line * parts + part).write(found) };
                        }
                    }
                }
            }
        } else if parts > 1 {
            while let Some(piece) = worker.next(sizes.lines().div_ceil(WIDTH)) {
                for line in piece * WIDTH..((piece + 1) * WIDTH).min(sizes.lines()) {
                    let mut whole = self.nothing();
                    for part in 0..parts {
                        // SAFETY: the parts were stored in the phase before.
                        self.join(&mut whole, unsafe { partial.add(line * parts + part).read() });
                    }
                    self.put::<E>(args, line, n, whole);
                }
            }
        }
    }

    /// Reduces a range of each of some neighbouring lines of a matrix.
    fn columns<E: Element>(
        &self,
        x: &[E],
        inner: usize,
        columns: Range<usize>,
        depth: Range<usize>,
        values: &mut [f32],
        indices: &mut [u32],
    ) {
        let of_index = matches!(self.reduction, Reduction::ArgMax | Reduction::ArgMin);
        let by = self.fold();
        let compares = by.is_none() && !of_index && !depth.is_empty();
        values.fill(if compares { f32::NEG_INFINITY } else { self.nothing().value });
        indices.fill(NONE);
        let mut few = [0f32; WIDTH];
        let few = &mut few[..values.len()];
        for start in depth.clone().step_by(TOGETHER) {
            // Sums a few elements first, to keep rounding errors small.
            few.fill(by.map_or(0.0, Fold::of_none));
            for i in start..(start + TOGETHER).min(depth.end) {
                let x = &x[i * inner + columns.start..i * inner + columns.end];
                // Prefetches two rows ahead: the hardware does not prefetch into another page.
                let ahead = x.as_ptr().wrapping_add(2 * inner).cast::<u8>();
                (0..size_of_val(x)).step_by(64).for_each(|at| prefetch_near(ahead.wrapping_add(at)));
                if let Some(by) = by {
                    fold_row(self.isa, x, few, by);
                } else if of_index {
                    best_row(self.isa, x, self.sign(), i as u32, values, indices);
                } else {
                    greatest_row(self.isa, x, self.sign(), values);
                }
            }
            if let Some(by) = by {
                fold_row(self.isa, few, values, by);
            } else if !of_index {
                indices.fill(0);
            }
        }
    }
}

impl NativeKernel for Reduce {
    fn phases(&self) -> usize {
        if self.parts > 1 { 2 } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        if self.parts > 1 { self.lines.max().lines() * self.parts * size_of::<Part>() } else { 0 }
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let sizes = self.lines.sizes(if self.uses_step { args.step() } else { &[] });
        let enough = args.raw(0).bytes >= sizes.elements() * self.format.block_bytes()
            && args.raw(1).bytes >= sizes.lines() * self.output.block_bytes();
        if !enough {
            return Err(format!("a buffer is too small for {sizes:?}"));
        }
        with_element!(self.format, E => if sizes.inner == 1 {
            self.run_rows::<E>(sizes, phase, args, worker);
        } else {
            self.run_columns::<E>(sizes, phase, args, worker);
        });
        Ok(())
    }
}

/// How elements are joined that are not compared.
#[derive(Clone, Copy, Debug)]
enum Fold {
    Sum,
    Product,
}

impl Fold {
    /// The result for no element.
    fn of_none(self) -> f32 {
        if matches!(self, Fold::Sum) { 0.0 } else { 1.0 }
    }

    #[inline(always)]
    fn join(self, a: f32, b: f32) -> f32 {
        if matches!(self, Fold::Sum) { a + b } else { a * b }
    }
}

simd_entry! {
    /// The sum, or the product, of the elements.
    fn fold<E: Element>(x: &[E], by: Fold) -> f32 = fold_with
}

/// Dependency chains that run side by side.
const CHAINS: usize = 8;

#[inline(always)]
fn fold_with<S: Simd, E: Element>(s: S, x: &[E], by: Fold) -> f32 {
    match by {
        Fold::Sum => chains(s, x, by, |a, b| s.add(a, b), |v| s.sum(v)),
        Fold::Product => chains(
            s,
            x,
            by,
            |a, b| s.mul(a, b),
            |v| {
                let mut lanes = [1f32; 16];
                // SAFETY: there is room for all lanes.
                unsafe { s.store(lanes.as_mut_ptr(), v) };
                lanes.iter().product()
            },
        ),
    }
}

/// `join` for vectors, and `whole` for the lanes of one.
#[inline(always)]
fn chains<S: Simd, E: Element>(
    s: S,
    x: &[E],
    by: Fold,
    join: impl Fn(S::V, S::V) -> S::V,
    whole: impl Fn(S::V) -> f32,
) -> f32 {
    let (mut parts, step) = ([s.splat(by.of_none()); CHAINS], CHAINS * S::LANES);
    let rest = x.len() / step * step;
    for at in (0..rest).step_by(step) {
        ask_ahead(x, at, step);
        for (i, part) in parts.iter_mut().enumerate() {
            // SAFETY: the vector lies in the slice.
            *part = join(*part, unsafe { E::load(s, x.as_ptr().add(at + i * S::LANES)) });
        }
    }
    let [a, b, c, d, e, f, g, h] = parts;
    let (low, high) = (join(join(a, b), join(c, d)), join(join(e, f), join(g, h)));
    let last = x[rest..].iter().fold(by.of_none(), |last, x| by.join(last, x.wide()));
    by.join(whole(join(low, high)), last)
}

/// Prefetches the memory [`AHEAD`] bytes behind the block of `len` elements at `at`.
#[inline(always)]
fn ask_ahead<E>(x: &[E], at: usize, len: usize) {
    let ahead = x.as_ptr().wrapping_add(at).cast::<u8>().wrapping_add(AHEAD);
    (0..len * size_of::<E>()).step_by(64).for_each(|at| prefetch_near(ahead.wrapping_add(at)));
}

simd_entry! {
    /// The greatest element, each times `sign`, and the start of the first block that has it; −∞ if all are NaN. And
    /// whether no element is NaN or infinite.
    fn greatest<E: Element>(x: &[E], sign: f32) -> (f32, usize, bool) = greatest_with
}

#[inline(always)]
fn greatest_with<S: Simd, E: Element>(s: S, x: &[E], sign: f32) -> (f32, usize, bool) {
    let (mut best, mut place, signs, zero) = (f32::NEG_INFINITY, 0, s.splat(sign), s.splat(0.0));
    // Any number times 0 is 0, except NaN and infinity.
    let (mut sums, mut rest) = ([zero; 4], 0.0f32);
    for (index, block) in x.chunks(BLOCK).enumerate() {
        let (mut peaks, step) = ([s.splat(f32::NEG_INFINITY); 4], 4 * S::LANES);
        let whole = block.len() / step * step;
        for at in (0..whole).step_by(step) {
            ask_ahead(block, at, step);
            for (i, (peak, sum)) in peaks.iter_mut().zip(&mut sums).enumerate() {
                // SAFETY: the vector lies in the block.
                let v = unsafe { E::load(s, block.as_ptr().add(at + i * S::LANES)) };
                // `max` returns the second operand if one is NaN.
                *peak = s.max(s.mul(v, signs), *peak);
                *sum = s.fma(v, zero, *sum);
            }
        }
        let [a, b, c, d] = peaks;
        let peak = s.peak(s.max(s.max(a, b), s.max(c, d)));
        let peak = block[whole..].iter().fold(peak, |peak, x| peak.max(x.wide() * sign));
        rest += block[whole..].iter().map(|x| x.wide() * 0.0).sum::<f32>();
        if peak > best {
            (best, place) = (peak, index * BLOCK);
        }
    }
    let [a, b, c, d] = sums;
    (best, place, s.sum(s.add(s.add(a, b), s.add(c, d))) + rest == 0.0)
}

simd_entry! {
    /// Adds a row, or multiplies with it.
    fn fold_row<E: Element>(x: &[E], to: &mut [f32], by: Fold) = fold_row_with
}

#[inline(always)]
fn fold_row_with<S: Simd, E: Element>(s: S, x: &[E], to: &mut [f32], by: Fold) {
    match by {
        Fold::Sum => add_row_with(s, x, to),
        Fold::Product => to.iter_mut().zip(x).for_each(|(to, x)| *to *= x.wide()),
    }
}

#[inline(always)]
pub(super) fn add_row_with<S: Simd, E: Element>(s: S, x: &[E], to: &mut [f32]) {
    let whole = x.len().min(to.len()) / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: the vector lies in both.
        unsafe {
            let sum = s.add(s.load(to.as_ptr().add(at)), E::load(s, x.as_ptr().add(at)));
            s.store(to.as_mut_ptr().add(at), sum);
        }
    }
    to.iter_mut().zip(x).skip(whole).for_each(|(to, x)| *to += x.wide());
}

simd_entry! {
    /// Keeps the greater of each element, times `sign`, and the value in `to`, or a NaN.
    fn greatest_row<E: Element>(x: &[E], sign: f32, to: &mut [f32]) = greatest_row_with
}

#[inline(always)]
fn greatest_row_with<S: Simd, E: Element>(_: S, x: &[E], sign: f32, to: &mut [f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        let x = x.wide() * sign;
        *to = if (x > *to) | x.is_nan() { x } else { *to };
    }
}

simd_entry! {
    /// As [`greatest_row`], with the indices of the best elements, the lowest of equal ones.
    fn best_row<E: Element>(x: &[E], sign: f32, index: u32, to: &mut [f32], indices: &mut [u32]) = best_row_with
}

#[inline(always)]
fn best_row_with<S: Simd, E: Element>(_: S, x: &[E], sign: f32, index: u32, to: &mut [f32], indices: &mut [u32]) {
    for ((to, at), x) in to.iter_mut().zip(indices).zip(x) {
        let x = x.wide() * sign;
        let better = x > *to || (*at == NONE) | nan_wins(*to, x);
        *to = if better { x } else { *to };
        *at = if better { index } else { *at };
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};
    use hologram_device::{Extent, TensorSpec};

    pub(crate) fn a_nan_is_the_greatest_and_the_least() {
        use hologram_device::Reduction as R;
        // Shape [outer, n, inner], and the place of a NaN.
        for (shape, at) in
            [([3, 700, 1], 700 + 699), ([2, 3 * PART, 1], 2 * PART + 5), ([2, 900, 3], 2700 + 3), ([40, 3, 9], 13)]
        {
            let [outer, n, inner] = shape;
            let mut values = Random(7).floats(outer * n * inner);
            values[at] = f32::NAN;
            let line = at / (n * inner) * inner + at % inner;
            let x = TensorSpec { format: DType::F32, shape: shape.map(Extent::Fixed).to_vec() };
            let output = TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(outer), Extent::Fixed(inner)] };
            for (reduction, features) in
                [R::Max, R::Min].into_iter().flat_map(|r| feature_sets().into_iter().map(move |f| (r, f)))
            {
                let op = Operation::Reduce { reduction, axis: 1 };
                let spec = KernelSpec { op, inputs: vec![x.clone()], output: output.clone(), in_place: None };
                let mut memory = [Memory::of(&values), Memory::filled(outer * inner * 4, 0)];
                launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
                for (i, y) in memory[1].elements::<f32>().iter().enumerate() {
                    assert_eq!(y.is_nan(), i == line, "{reduction:?} {features:?} of {shape:?}, line {i}: {y}");
                }
            }
        }
    }

    pub(crate) fn the_first_nan_is_the_greatest_and_the_least() {
        for (n, odd, want) in [
            (100, &[(7, f32::NAN), (9, f32::NAN), (3, f32::INFINITY)][..], 7),
            (5000, &[(4999, f32::NAN)], 4999),
            (5000, &[(4098, -f32::NAN), (12, f32::NEG_INFINITY)], 4098),
            (5000, &[(40, f32::INFINITY), (4000, f32::INFINITY)], 40),
            (3, &[(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)], 0),
            (3 * PART, &[(2 * PART + 1, f32::NAN)], 2 * PART + 1),
        ] {
            let mut values = Random(n as u64).floats(n);
            odd.iter().for_each(|(at, x)| values[*at] = *x);
            let x = TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(1), Extent::Fixed(n)] };
            let output = TensorSpec { format: DType::U32, shape: vec![Extent::Fixed(1)] };
            for least in [false, true] {
                let op = Operation::ArgReduce { least, axis: 1 };
                let spec = KernelSpec { op, inputs: vec![x.clone()], output: output.clone(), in_place: None };
                // The least has the same places with the signs turned.
                let signed: Vec<f32> = values.iter().map(|x| if least { -x } else { *x }).collect();
                for features in feature_sets() {
                    let mut memory = [Memory::of(&signed), Memory::filled(4, 0xff)];
                    launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
                    assert_eq!(memory[1].elements::<u32>()[0] as usize, want, "{features:?}, {n}, least {least}");
                }
            }
        }
    }

    pub(crate) fn lines_are_reduced() {
        // Outer, n, inner, workers: short and long rows, lines side by side, whole and divided.
        for (outer, n, inner, workers) in [
            (0usize, 5usize, 1usize, 1),
            (7, 100, 1, 2),
            (2, 3 * PART + 17, 1, 2),
            (3, 70, 40, 2),
            (1, 5000, 3, 3),
            (40, 3, WIDTH + 5, 2),
        ] {
            let shape = [outer, n, inner].map(Extent::Fixed);
            let x = TensorSpec { format: DType::F32, shape: shape.to_vec() };
            let values = Random((n * inner) as u64).floats(outer * n * inner);
            let ops = ["reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min", "arg_max", "arg_min"];
            let operation = |op| match op {
                "reduce_sum" => Operation::Reduce { reduction: hologram_device::Reduction::Sum, axis: 1 },
                "reduce_mean" => Operation::Reduce { reduction: hologram_device::Reduction::Mean, axis: 1 },
                "reduce_prod" => Operation::Reduce { reduction: hologram_device::Reduction::Prod, axis: 1 },
                "reduce_max" => Operation::Reduce { reduction: hologram_device::Reduction::Max, axis: 1 },
                "reduce_min" => Operation::Reduce { reduction: hologram_device::Reduction::Min, axis: 1 },
                op => Operation::ArgReduce { least: op == "arg_min", axis: 1 },
            };
            for (features, op) in feature_sets().into_iter().flat_map(|f| ops.map(|op| (f, op))) {
                let format = if op.starts_with("arg") { DType::U32 } else { DType::F32 };
                let output = TensorSpec { format, shape: vec![shape[0], shape[2]] };
                let spec = KernelSpec { op: operation(op), inputs: vec![x.clone()], output, in_place: None };
                // Near 1, so that products stay normal numbers.
                let near = |x: &f32| 1.0 + x / n as f32;
                let values = if op == "reduce_prod" { values.iter().map(near).collect() } else { values.clone() };
                let mut memory = [Memory::of(&values), Memory::filled(outer * inner * 4, 0xff)];
                launch(&*find(&spec, features).expect("served"), &mut memory, workers).expect("runs");
                for line in 0..outer * inner {
                    let first = line / inner * n * inner + line % inner;
                    let of = || (0..n).map(|i| values[first + i * inner]);
                    let best = |least: bool| {
                        let better = |x: f32, y: f32| if least { x < y } else { x > y };
                        of().enumerate().fold((0, None), |(at, best): (usize, Option<f32>), (i, x)| {
                            if best.is_none_or(|best| better(x, best)) { (i, Some(x)) } else { (at, best) }
                        })
                    };
                    let (sum, size) = of().fold((0.0, 0.0), |(s, a), x| (s + f64::from(x), a + f64::from(x.abs())));
                    let got = f64::from(memory[1].elements::<f32>()[line]);
                    let index = memory[1].elements::<u32>()[line] as usize;
                    let right = match op {
                        "reduce_sum" => (got - sum).abs() <= size * 1e-6,
                        "reduce_mean" => (got - sum / n as f64).abs() <= size / n as f64 * 1e-6,
                        "reduce_prod" => {
                            let product: f64 = of().map(f64::from).product();
                            // Half a unit in the last place for each factor: roundings near 1 lean to one side.
                            (got - product).abs() <= product.abs() * n as f64 * 6e-8
                        }
                        "arg_max" | "arg_min" => index == best(op == "arg_min").0,
                        _ => best(op == "reduce_min").1.map(f64::from) == Some(got),
                    };
                    assert!(right, "{features:?} {op} of {outer} × {n} × {inner}, line {line}: {got} {index}");
                }
            }
        }
    }
}
