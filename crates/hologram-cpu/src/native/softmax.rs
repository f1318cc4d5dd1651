//! `softmax`, `log_softmax` and `cross_entropy` of rows x [.., d] of `f32` or a narrow float. Per row, with m its
//! greatest element: `exp(x − m) / Σ exp(x − m)`, `x − m − log Σ exp(x − m)`, and `log Σ exp(x − m) + m
//! − x[class]` (f32).
//!
//! A row is read once. Its exponentials are of `x − m` with m the greatest element so far, and each block of them is
//! kept with its m. So memory always has work, even more so because a row with non-temporal stores is stored while the
//! next one is computed.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation};

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::narrow::{Element, with_element};
use super::rows::{Mapped, Rows, prefetch_row};
use super::simd::{Isa, Simd, fence, simd_entry};
use super::{input, room};

/// The result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Softmax,
    Log,
    CrossEntropy,
}

struct Softmax {
    isa: Isa,
    rows: Rows,
    result: Kind,
}

/// The longest supported rows: each worker keeps a row of exponentials.
const LONGEST: usize = 1 << 20;
/// Elements of the largest block, and of the smallest.
const BLOCK: usize = 64;
const LEAST_BLOCK: usize = 16;
/// Dependency chains that run side by side; a block has as many vectors.
const CHAINS: usize = 4;

/// The native kernel for these operations; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let result = match (&spec.op, spec.inputs.as_slice()) {
        (Operation::Softmax { log, axis }, [x]) if *axis as usize + 1 == x.shape.len() => {
            if *log {
                Kind::Log
            } else {
                Kind::Softmax
            }
        }
        (Operation::CrossEntropy, [x, classes])
            if classes.format == DType::U32
                && spec.output.format == DType::F32
                && x.shape.split_last().is_some_and(|(_, rows)| rows == classes.shape && rows == spec.output.shape) =>
        {
            Kind::CrossEntropy
        }
        _ => return None,
    };
    let rows = if result == Kind::CrossEntropy { Rows::new(spec)? } else { Rows::mapped(spec)? };
    let served = spec.in_place.is_none() && rows.d <= LONGEST;
    served.then(|| Arc::new(Softmax { isa: Isa::widest(features), rows, result }) as Arc<dyn NativeKernel>)
}

/// Memory for a row's exponentials, and for the factor of each block of them.
struct Exponentials<'a> {
    exponentials: &'a mut [f32],
    factors: &'a mut [f32],
}

impl Exponentials<'_> {
    /// Floats that a row of `d` elements requires.
    fn floats(d: usize) -> usize {
        let d = d.next_multiple_of(BLOCK);
        d + (d / LEAST_BLOCK).next_multiple_of(16)
    }

    fn new(floats: &mut [f32], d: usize) -> Exponentials<'_> {
        let (exponentials, factors) = floats.split_at_mut(d.next_multiple_of(BLOCK));
        Exponentials { exponentials, factors }
    }
}

impl Softmax {
    fn rows<E: Element>(&self, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are floats; the scratch is aligned.
        let floats = unsafe { scratch.align_to_mut::<f32>().1 };
        let mut exponentials = Exponentials::new(&mut floats[..Exponentials::floats(self.rows.d)], self.rows.d);
        // A row with non-temporal stores is stored while the next one is computed.
        let mut unscaled: Option<&mut [E]> = None;
        self.rows.map::<E>(args, 1, worker, |Mapped { row, out, non_temporal }| {
            if short_row(self.isa, row.x, out, non_temporal) {
                return;
            }
            exp_row(self.isa, row.x, row.next, &mut exponentials, unscaled.take());
            if non_temporal {
                unscaled = Some(out);
            } else {
                scale(self.isa, &exponentials, out, false);
            }
        })?;
        if let Some(out) = unscaled {
            scale(self.isa, &exponentials, out, true);
            fence();
        }
        Ok(())
    }

    fn logarithms<E: Element>(&self, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        self.rows.map::<E>(args, 1, worker, |Mapped { row, out, non_temporal }| {
            let (peak, sum) = exponents(self.isa, row.x, row.next);
            subtract(self.isa, row.x, [peak, sum.ln()], out, non_temporal);
        })
    }

    fn losses<E: Element>(&self, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let (d, rows) = (self.rows.d, self.rows.count(args));
        let classes = input::<u32>(args, 1, rows)?;
        room::<f32>(args, 2, rows)?;
        self.rows.each::<E>(args, worker, |row| {
            let class = classes[row.index] as usize;
            let Some(x) = row.x.get(class) else {
                return Err(format!("class {class} of row {} is outside the {d} classes", row.index));
            };
            let (peak, sum) = exponents(self.isa, row.x, row.next);
            // SAFETY: each row is claimed once, by one worker.
            unsafe { args.output::<f32>(2).set(row.index, sum.ln() + (peak - x.wide())) };
            Ok(())
        })
    }
}

impl NativeKernel for Softmax {
    fn worker_scratch(&self) -> usize {
        if self.result == Kind::Softmax { Exponentials::floats(self.rows.d) * 4 } else { 0 }
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        with_element!(self.rows.format(), E => match self.result {
            Kind::Softmax => self.rows::<E>(args, worker),
            Kind::Log => self.logarithms::<E>(args, worker),
            Kind::CrossEntropy => self.losses::<E>(args, worker),
        })
    }
}

/// The greatest element so far, and the sum of the exponentials relative to it.
struct Sum<S: Simd> {
    peak: f32,
    peaks: S::V,
    sums: [S::V; CHAINS],
}

impl<S: Simd> Sum<S> {
    #[inline(always)]
    fn new(s: S) -> Sum<S> {
        // Finite, because −∞ − −∞ is NaN.
        Sum { peak: f32::MIN, peaks: s.splat(f32::MIN), sums: [s.splat(0.0); CHAINS] }
    }

    /// Adds a block, and returns its exponentials.
    #[inline(always)]
    fn add(&mut self, s: S, x: [S::V; CHAINS]) -> [S::V; CHAINS] {
        let top = s.max(s.max(x[0], x[1]), s.max(x[2], x[3]));
        if s.any_greater(top, self.peaks) {
            // A NaN among the lanes may be missed: the sum will be NaN all the same.
            let peak = s.peak(s.max(top, self.peaks));
            let peaks = s.splat(peak);
            let factor = s.exp(s.sub(self.peaks, peaks));
            self.sums = [0, 1, 2, 3].map(|i| s.mul(self.sums[i], factor));
            (self.peak, self.peaks) = (peak, peaks);
        }
        let mut exps = x;
        for i in 0..CHAINS {
            exps[i] = s.exp(s.sub(x[i], self.peaks));
            self.sums[i] = s.add(self.sums[i], exps[i]);
        }
        exps
    }

    #[inline(always)]
    fn total(&self, s: S) -> f32 {
        let [a, b, c, d] = self.sums;
        s.sum(s.add(s.add(a, b), s.add(c, d)))
    }
}

/// The block at `at` of a row, padded with −∞.
#[inline(always)]
fn block<S: Simd, E: Element>(s: S, x: &[E], at: usize) -> [S::V; CHAINS] {
    let mut block = [s.splat(f32::NEG_INFINITY); CHAINS];
    if at + CHAINS * S::LANES <= x.len() {
        for (i, v) in block.iter_mut().enumerate() {
            // SAFETY: the block lies in the row.
            *v = unsafe { E::load(s, x.as_ptr().add(at + i * S::LANES)) };
        }
    } else {
        let mut rest = [f32::NEG_INFINITY; BLOCK];
        rest.iter_mut().zip(&x[at..]).for_each(|(to, x)| *to = x.wide());
        for (i, v) in block.iter_mut().enumerate() {
            // SAFETY: a block has at most BLOCK elements.
            *v = unsafe { s.load(rest.as_ptr().add(i * S::LANES)) };
        }
    }
    block
}

simd_entry! {
    /// The result of a row of at most one block, which stays in registers; `false` for longer rows.
    fn short_row<E: Element>(x: &[E], out: &mut [E], non_temporal: bool) -> bool = short_row_with
}

#[inline(always)]
fn short_row_with<S: Simd, E: Element>(s: S, x: &[E], out: &mut [E], non_temporal: bool) -> bool {
    let step = CHAINS * S::LANES;
    if x.len() > step || x.len() != out.len() {
        return false;
    }
    let mut sum = Sum::new(s);
    let exps = sum.add(s, block(s, x, 0));
    let total = s.splat(1.0 / sum.total(s));
    if x.len() == step {
        for (i, exp) in exps.into_iter().enumerate() {
            // SAFETY: the vector lies in the row.
            unsafe { E::store(s, out.as_mut_ptr().add(i * S::LANES), s.mul(exp, total), non_temporal) };
        }
        return true;
    }
    let mut row = [0.0; BLOCK];
    for (i, exp) in exps.into_iter().enumerate() {
        // SAFETY: a block has at most BLOCK elements.
        unsafe { s.store(row.as_mut_ptr().add(i * S::LANES), s.mul(exp, total)) };
    }
    out.iter_mut().zip(row).for_each(|(y, exp)| *y = E::nearest(exp));
    true
}

simd_entry! {
    /// Sets the exponentials and the factors of a row. Meanwhile prefetches the row at `next`, and stores the row that
    /// `to` held before, which is as long and of whole vectors, with non-temporal stores.
    fn exp_row<E: Element>(x: &[E], next: *const E, to: &mut Exponentials<'_>, earlier: Option<&mut [E]>) = exp_row_with
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers are indexed in several arrays at once")]
fn exp_row_with<S: Simd, E: Element>(
    s: S,
    x: &[E],
    next: *const E,
    to: &mut Exponentials<'_>,
    earlier: Option<&mut [E]>,
) {
    let (d, step) = (x.len(), CHAINS * S::LANES);
    let blocks = d.div_ceil(step);
    let (exponentials, factors) =
        (&mut to.exponentials[..blocks * step], &mut to.factors[..blocks.next_multiple_of(S::LANES)]);
    let out = earlier.unwrap_or(&mut []);
    let stores = out.len() == d;
    let mut sum = Sum::new(s);
    for (index, at) in (0..d).step_by(step).enumerate() {
        prefetch_row(next, at, step);
        let exps = sum.add(s, block(s, x, at));
        let factor = s.splat(std::mem::replace(&mut factors[index], sum.peak));
        for i in 0..CHAINS {
            let at = at + i * S::LANES;
            // SAFETY: the memory for exponentials is of whole blocks; the earlier row is of whole vectors and as long
            // as this one.
            unsafe {
                let exp = exponentials.as_mut_ptr().add(at);
                if stores && at < d {
                    E::store(s, out.as_mut_ptr().add(at), s.mul(s.load(exp), factor), true);
                }
                s.store(exp, exps[i]);
            }
        }
    }
    // For each block the distance of its own greatest element so far from the greatest of all.
    let (peaks, total) = (s.splat(sum.peak), s.splat(1.0 / sum.total(s)));
    for factors in factors.chunks_exact_mut(S::LANES) {
        // SAFETY: these are LANES floats; floats behind the last block are never used.
        unsafe {
            let factor = s.exp(s.sub(s.load(factors.as_ptr()), peaks));
            s.store(factors.as_mut_ptr(), s.mul(factor, total));
        }
    }
}

simd_entry! {
    /// Stores a row's result. Uses non-temporal stores when `non_temporal`, which requires whole vectors.
    fn scale<E: Element>(row: &Exponentials<'_>, out: &mut [E], non_temporal: bool) = scale_with
}

#[inline(always)]
fn scale_with<S: Simd, E: Element>(s: S, row: &Exponentials<'_>, out: &mut [E], non_temporal: bool) {
    let step = CHAINS * S::LANES;
    for ((to, from), factor) in out.chunks_mut(step).zip(row.exponentials.chunks(step)).zip(row.factors.iter()) {
        let (factors, whole) = (s.splat(*factor), to.len() / S::LANES * S::LANES);
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: the vector lies in both.
            unsafe {
                E::store(s, to.as_mut_ptr().add(at), s.mul(s.load(from.as_ptr().add(at)), factors), non_temporal)
            };
        }
        to[whole..].iter_mut().zip(&from[whole..]).for_each(|(to, exp)| *to = E::nearest(exp * factor));
    }
}

simd_entry! {
    /// The greatest element of a row, and the sum of the exponentials. Meanwhile prefetches the row at `next`.
    fn exponents<E: Element>(x: &[E], next: *const E) -> (f32, f32) = exponents_with
}

#[inline(always)]
fn exponents_with<S: Simd, E: Element>(s: S, x: &[E], next: *const E) -> (f32, f32) {
    let (mut sum, step) = (Sum::new(s), CHAINS * S::LANES);
    for at in (0..x.len()).step_by(step) {
        prefetch_row(next, at, step);
        sum.add(s, block(s, x, at));
    }
    (sum.peak, sum.total(s))
}

simd_entry! {
    /// Sets each element to `x − a − b`. Uses non-temporal stores when `non_temporal`, which requires whole
    /// vectors.
    fn subtract<E: Element>(x: &[E], by: [f32; 2], out: &mut [E], non_temporal: bool) = subtract_with
}

#[inline(always)]
fn subtract_with<S: Simd, E: Element>(s: S, x: &[E], [a, b]: [f32; 2], out: &mut [E], non_temporal: bool) {
    let (first, second, whole) = (s.splat(a), s.splat(b), x.len().min(out.len()) / S::LANES * S::LANES);
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: the vector lies in both.
        unsafe {
            let y = s.sub(s.sub(E::load(s, x.as_ptr().add(at)), first), second);
            E::store(s, out.as_mut_ptr().add(at), y, non_temporal);
        }
    }
    out.iter_mut().zip(x).skip(whole).for_each(|(y, x)| *y = E::nearest(x.wide() - a - b));
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};
    use hologram_device::{Extent, TensorSpec};

    pub(crate) fn agrees_with_the_definition() {
        for (rows, d, workers) in
            [(1u32, 1, 1), (3, 8192, 2), (0, 7, 1), (5, 257, 3), (6, 64, 2), (6, 50, 1), (2, 20_000, 2)]
        {
            let x = TensorSpec { format: DType::F32, shape: vec![Extent::step(0, 6), Extent::Fixed(d)] };
            let op = Operation::Softmax { log: false, axis: 1 };
            let spec = KernelSpec { op, inputs: vec![x.clone()], output: x.clone(), in_place: None };
            let values: Vec<f32> = Random(d as u64).floats(x.max_rows() * d).iter().map(|v| v * 50.0).collect();
            for features in feature_sets() {
                let kernel = find(&spec, features).expect("served");
                let out = Memory::filled(values.len() * 4, 0xff);
                let mut memory = [Memory::of(&values), out, Memory::of(&[rows])];
                launch(&*kernel, &mut memory, workers).expect("runs");
                let (out, rest) = memory[1].elements::<f32>().split_at(rows as usize * d);
                for (x, y) in values.chunks(d).zip(out.chunks(d)) {
                    let m = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
                    let sum: f64 = x.iter().map(|v| (f64::from(*v) - m).exp()).sum();
                    for (x, y) in x.iter().zip(y) {
                        let want = (f64::from(*x) - m).exp() / sum;
                        let bound = 6e-6 * want + f64::from(f32::MIN_POSITIVE);
                        assert!((f64::from(*y) - want).abs() <= bound, "{features:?} d {d}: {y} {want}");
                    }
                }
                assert!(rest.iter().all(|y| y.is_nan()), "wrote behind the run's rows");
            }
        }
    }

    pub(crate) fn an_earlier_row_is_stored_meanwhile() {
        let d = CHAINS * 16 * 3 + 48;
        let floats = Exponentials::floats(d);
        let (first, second) = (Random(5).floats(d), Memory::of(&Random(6).floats(d)));
        for features in feature_sets() {
            let isa = Isa::widest(features);
            let (mut exponentials, mut alone) = (vec![0.0; floats], vec![0.0; floats]);
            let (mut want, mut out) = (vec![0.0f32; d], Memory::filled(d * 4, 2));
            let mut kept = Exponentials::new(&mut exponentials, d);
            exp_row(isa, &first, first.as_ptr(), &mut kept, None);
            scale(isa, &kept, &mut want, false);
            let x = second.elements::<f32>();
            exp_row(isa, x, x.as_ptr(), &mut Exponentials::new(&mut alone, d), None);
            exp_row(isa, x, x.as_ptr(), &mut kept, Some(out.elements_mut()));
            assert_eq!(want, out.elements(), "{features:?}");
            assert_eq!(alone[..d], exponentials[..d], "{features:?}");
        }
    }
}
