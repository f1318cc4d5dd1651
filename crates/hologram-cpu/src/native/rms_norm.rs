//! `rms_norm`: x [.., d] of f32 or a narrow float, w [d] in f32 or x's type → x's type and shape.
//! Per row `x / √(mean(x²) + ε) · w`.

use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation};

use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::input;
use crate::native::narrow::{Element, widen, with_element};
use crate::native::rows::{Mapped, Rows, prefetch_row};
use crate::native::simd::{Isa, Simd, fence, simd_entry};

struct RmsNorm {
    isa: Isa,
    rows: Rows,
    eps: f32,
    /// Format of the weights.
    weights: DType,
}

/// Dependency chains of additions that run side by side.
const CHAINS: usize = 4;

/// The native kernel for `rms_norm`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, w] = spec.inputs.as_slice() else { return None };
    let Operation::RmsNorm { eps } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && (w.format == DType::F32 || w.format == x.format)
        && w.shape.as_slice() == [Extent::Fixed(x.row_len())];
    let (eps, rows) = (eps.get(), Rows::mapped(spec)?);
    let weights = w.format;
    served.then(|| Arc::new(RmsNorm { isa: Isa::widest(features), rows, eps, weights }) as Arc<dyn NativeKernel>)
}

impl NativeKernel for RmsNorm {
    fn worker_scratch(&self) -> usize {
        if self.weights == DType::F32 { 0 } else { self.rows.d * 4 }
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let (d, scratch) = (self.rows.d, std::mem::take(&mut worker.scratch));
        let w = if self.weights == DType::F32 {
            input::<f32>(args, 1, d)?
        } else {
            // SAFETY: any bytes are floats; the scratch is aligned.
            let wide = &mut unsafe { scratch.align_to_mut::<f32>().1 }[..d];
            widen(self.isa, self.weights, input::<u16>(args, 1, d)?, wide);
            wide
        };
        with_element!(self.rows.format(), E => self.rows::<E>(args, worker, w))
    }
}

/// A row whose scale is known but whose result is not stored yet.
struct Unscaled<'a, E> {
    x: &'a [E],
    scale: f32,
    out: &'a mut [E],
}

/// Rows that are stored together with non-temporal stores, so that a vector of weights is read once for all of them.
const TOGETHER: usize = 4;
/// Bytes of the longest such rows: they fit the second-level cache beside the same number of rows that are being read.
const LONGEST: usize = 64 << 10;

impl RmsNorm {
    fn rows<E: Element>(&self, args: &Args<'_>, worker: &Worker<'_>, w: &[f32]) -> Result<(), String> {
        // Rows with non-temporal stores are stored while the next ones are read, so that memory always has work.
        let fits = size_of::<E>() * self.rows.d <= LONGEST;
        let (mut earlier, mut here) = ([const { None::<Unscaled<'_, E>> }; TOGETHER], [const { None }; TOGETHER]);
        let mut count = 0;
        self.rows.map::<E>(args, 2, worker, |Mapped { row, out, non_temporal }| {
            let x = row.x;
            let part = Part::of(&mut earlier, count, w);
            let scale = 1.0 / (square_and_scale(self.isa, x, row.next, part) / x.len() as f32 + self.eps).sqrt();
            let row = Unscaled { x, scale, out };
            if !(non_temporal && fits) {
                return scale_row(self.isa, row, w, non_temporal);
            }
            here[count] = Some(row);
            count += 1;
            if count == TOGETHER {
                std::mem::swap(&mut earlier, &mut here);
                count = 0;
            }
        })?;
        // The rest of the earlier rows, and the last rows.
        for part in count..TOGETHER {
            scale_part(self.isa, Part::of(&mut earlier, part, w));
        }
        for row in here.into_iter().take(count).flatten() {
            scale_row(self.isa, row, w, true);
        }
        fence();
        Ok(())
    }
}

/// One of [`TOGETHER`] column ranges of [`TOGETHER`] rows, of whole vectors of 16; or empty.
struct Part<'a, E> {
    x: [&'a [E]; TOGETHER],
    scales: [f32; TOGETHER],
    out: [&'a mut [E]; TOGETHER],
    w: &'a [f32],
    /// Elements of each row that are stored already.
    stored: usize,
}

impl<'a, E: Element> Part<'a, E> {
    fn of(rows: &'a mut [Option<Unscaled<'_, E>>; TOGETHER], part: usize, w: &'a [f32]) -> Part<'a, E> {
        let vectors = w.len() / 16;
        let columns = vectors * part / TOGETHER * 16..vectors * (part + 1) / TOGETHER * 16;
        let mut of = Part {
            x: [&[]; TOGETHER],
            scales: [0.0; TOGETHER],
            out: std::array::from_fn(|_| &mut [][..]),
            w: &w[columns.clone()],
            stored: 0,
        };
        for (i, row) in rows.iter_mut().enumerate() {
            // Unless all rows are there, nothing is stored.
            let Some(row) = row else {
                of.w = &[];
                break;
            };
            (of.x[i], of.scales[i], of.out[i]) = (&row.x[columns.clone()], row.scale, &mut row.out[columns.clone()]);
        }
        of
    }

    /// Stores the next vector of each row with non-temporal stores. Returns whether there was one.
    #[inline(always)]
    fn store_next<S: Simd>(&mut self, s: S) -> bool {
        let at = self.stored;
        if at + S::LANES > self.w.len() {
            return false;
        }
        self.stored += S::LANES;
        // SAFETY: all slices are as long as the weights' (`of`), and begin at a multiple of 16 elements of rows with
        // non-temporal stores.
        unsafe {
            let w = s.load(self.w.as_ptr().add(at));
            for i in 0..TOGETHER {
                let x = E::load(s, self.x[i].as_ptr().add(at));
                E::store(s, self.out[i].as_mut_ptr().add(at), s.mul(s.mul(x, s.splat(self.scales[i])), w), true);
            }
        }
        true
    }
}

simd_entry! {
    /// The sum of the squares of a row. Meanwhile prefetches the row at `next`, and stores a part of earlier rows with
    /// non-temporal stores.
    fn square_and_scale<E: Element>(x: &[E], next: *const E, part: Part<'_, E>) -> f32
        = square_and_scale_with
}

#[inline(always)]
fn square_and_scale_with<S: Simd, E: Element>(s: S, x: &[E], next: *const E, mut part: Part<'_, E>) -> f32 {
    let (mut sums, step) = ([s.splat(0.0); CHAINS], CHAINS * S::LANES);
    let whole = x.len() / step * step;
    for at in (0..whole).step_by(step) {
        prefetch_row(next, at, step);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the vector lies in the row.
            let v = unsafe { E::load(s, x.as_ptr().add(at + i * S::LANES)) };
            *sum = s.fma(v, v, *sum);
            // As many vectors are stored as are read.
            if i % TOGETHER == 0 {
                part.store_next(s);
            }
        }
    }
    while part.store_next(s) {}
    let rest: f32 = x[whole..].iter().map(|v| v.wide() * v.wide()).sum();
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) + rest
}

simd_entry! {
    /// Stores a part of rows with non-temporal stores.
    fn scale_part<E: Element>(part: Part<'_, E>) = scale_part_with
}

#[inline(always)]
fn scale_part_with<S: Simd, E: Element>(s: S, mut part: Part<'_, E>) {
    while part.store_next(s) {}
}

simd_entry! {
    /// Stores a row. Uses non-temporal stores when `non_temporal`, which requires whole vectors.
    fn scale_row<E: Element>(row: Unscaled<'_, E>, w: &[f32], non_temporal: bool) = scale_row_with
}

#[inline(always)]
fn scale_row_with<S: Simd, E: Element>(s: S, row: Unscaled<'_, E>, w: &[f32], non_temporal: bool) {
    let (scales, d) = (s.splat(row.scale), row.x.len().min(w.len()).min(row.out.len()));
    let (from, to) = (row.x.as_ptr(), row.out.as_mut_ptr());
    let whole = d / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: the vector lies in all three.
        unsafe { scale_vector(s, from.add(at), scales, w.as_ptr().add(at), to.add(at), non_temporal) };
    }
    for ((y, x), w) in row.out.iter_mut().zip(row.x).zip(w).skip(whole) {
        *y = E::nearest(x.wide() * row.scale * w);
    }
}

/// # Safety
/// Vectors at `x` and `w` can be read, and one at `out` written, which is aligned for a non-temporal store.
#[inline(always)]
unsafe fn scale_vector<S: Simd, E: Element>(
    s: S,
    x: *const E,
    scales: S::V,
    w: *const f32,
    out: *mut E,
    non_temporal: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { E::store(s, out, s.mul(s.mul(E::load(s, x), scales), s.load(w)), non_temporal) };
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};
    use hologram_device::TensorSpec;

    pub(crate) fn agrees_with_the_definition() {
        // Rows in the run, heads (0: none), row length, workers.
        for (rows, heads, d, workers) in
            [(1, 0, 2048, 2), (3, 0, 257, 2), (5, 4, 64, 3), (0, 0, 32, 1), (2, 3, 80, 2), (7, 0, 1, 1), (1, 0, 63, 1)]
        {
            let heads = (heads > 0).then_some(Extent::Fixed(heads));
            let shape: Vec<_> =
                [Some(Extent::step(0, 8)), heads, Some(Extent::Fixed(d))].into_iter().flatten().collect();
            let x = TensorSpec { format: DType::F32, shape };
            let w = TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(d)] };
            let spec = KernelSpec {
                op: Operation::RmsNorm { eps: 1e-5.into() },
                inputs: vec![x.clone(), w],
                output: x.clone(),
                in_place: None,
            };
            let mut random = Random(d as u64);
            let values = random.floats(x.max_rows() * d);
            let weights = random.floats(d);
            let used = x.rows(&[rows]) * d;
            for features in feature_sets() {
                let kernel = find(&spec, features).expect("served");
                let out = Memory::filled(values.len() * 4, 0xff);
                let mut memory = [Memory::of(&values), Memory::of(&weights), out, Memory::of(&[rows])];
                launch(&*kernel, &mut memory, workers).expect("runs");
                let out = memory[2].elements::<f32>();
                for (x, y) in values[..used].chunks(d).zip(out.chunks(d)) {
                    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / d as f64;
                    for ((x, w), y) in x.iter().zip(&weights).zip(y) {
                        let want = f64::from(*x) * f64::from(*w) / (mean + f64::from(1e-5f32)).sqrt();
                        assert!((f64::from(*y) - want).abs() <= 1e-6 * want.abs(), "{features:?} d {d}: {y} {want}");
                    }
                }
                assert!(out[used..].iter().all(|y| y.is_nan()), "wrote behind the run's rows");
            }
        }
    }

    pub(crate) fn earlier_rows_are_stored_meanwhile() {
        let d = CHAINS * 16 * 3 + 48;
        let (rows, last, w) = (Random(5).floats(TOGETHER * d), Random(6).floats(d), Random(7).floats(d));
        let scales = [0.3, -2.0, 0.7, 1.5];
        for features in feature_sets() {
            let isa = Isa::widest(features);
            let mut none = [const { None::<Unscaled<'_, f32>> }; TOGETHER];
            let alone = square_and_scale(isa, &last, rows.as_ptr(), Part::of(&mut none, 0, &w));
            let mut out = Memory::filled(TOGETHER * d * 4, 2);
            let earlier = rows.chunks(d).zip(out.elements_mut::<f32>().chunks_mut(d)).zip(scales);
            let mut earlier: Vec<_> = earlier.map(|((x, out), scale)| Some(Unscaled { x, scale, out })).collect();
            let earlier: &mut [_; TOGETHER] = earlier.as_mut_slice().try_into().expect("as many rows");
            for part in 0..TOGETHER {
                let sum = square_and_scale(isa, &last, rows.as_ptr(), Part::of(earlier, part, &w));
                assert_eq!(sum, alone, "{features:?}");
            }
            for ((x, scale), got) in rows.chunks(d).zip(scales).zip(out.elements::<f32>().chunks(d)) {
                let mut want = vec![0.0; d];
                scale_row(isa, Unscaled { x, scale, out: &mut want }, &w, false);
                assert_eq!(want, got, "{features:?}");
            }
        }
    }
}
