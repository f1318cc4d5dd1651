//! `softmax`: x f32 [.., d] → f32 of the same shape, `exp(x − m) / Σ exp(x − m)` for each row with m its greatest element.

use std::sync::Arc;

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::rows::Rows;
use super::simd::{Isa, Simd, fence, prefetch, simd_entry};
use super::stream::map_with;
use crate::{Format, KernelSpec};

struct Softmax {
    isa: Isa,
    rows: Rows,
}

/// The longest rows that are served: their powers stay in a second-level cache.
const LONGEST: usize = 128 << 10;

/// The native kernel for `softmax`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let served = spec.op == "softmax"
        && spec.in_place.is_none()
        && spec.attr_u32("axis").is_some_and(|axis| axis as usize + 1 == x.shape.len())
        && *x == spec.output
        && x.format == Format::F32
        && (1..=LONGEST).contains(&x.row_len());
    let kernel = || Some(Softmax { isa: Isa::widest(features), rows: Rows::new(spec)? });
    if served { kernel().map(|kernel| Arc::new(kernel) as Arc<dyn NativeKernel>) } else { None }
}

/// A row whose powers are there but not yet its result.
struct Unscaled<'a> {
    powers: &'a [f32],
    factor: f32,
    out: &'a mut [f32],
}

impl NativeKernel for Softmax {
    fn worker_scratch(&self) -> usize {
        2 * self.rows.d * 4
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are floats; the scratch is aligned.
        let (mut powers, other) = unsafe { scratch.align_to_mut::<f32>().1 }.split_at_mut(self.rows.d);
        let mut free = &mut other[..self.rows.d];
        // A row that goes past the caches is stored while the next one is computed: so memory has work all the time.
        let mut unscaled: Option<(f32, &mut [f32])> = None;
        self.rows.each(args, 1, worker, |row| {
            let earlier = unscaled.take().map(|(factor, out)| Unscaled { powers: free, factor, out });
            let sum = raise(self.isa, row.x, row.next, powers, earlier);
            if row.past {
                unscaled = Some((1.0 / sum, row.out));
                std::mem::swap(&mut powers, &mut free);
            } else {
                scale(self.isa, Unscaled { powers, factor: 1.0 / sum, out: row.out }, false);
            }
        })?;
        if let Some((factor, out)) = unscaled {
            scale(self.isa, Unscaled { powers: free, factor, out }, true);
            fence();
        }
        Ok(())
    }
}

simd_entry! {
    /// Sets `powers` to `exp(x − m)` with m the greatest of `x`, and returns their sum. Meanwhile memory from `next` on, a row of it, is
    /// asked for, and an earlier row of the same length, a multiple of 16, is stored past the caches.
    fn raise(x: &[f32], next: *const f32, powers: &mut [f32], earlier: Option<Unscaled<'_>>) -> f32 = raise_with
}

/// Chains of dependent operations that run side by side.
const CHAINS: usize = 4;

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers are indexed")]
fn raise_with<S: Simd>(s: S, x: &[f32], next: *const f32, powers: &mut [f32], earlier: Option<Unscaled<'_>>) -> f32 {
    let (d, step) = (x.len().min(powers.len()), CHAINS * S::LANES);
    let (whole, x, powers) = (d / step * step, x.as_ptr(), powers.as_mut_ptr());
    let mut peaks = [s.splat(f32::NEG_INFINITY); CHAINS];
    for at in (0..whole).step_by(step) {
        for i in 0..CHAINS {
            // SAFETY: the vector lies in `x`.
            peaks[i] = s.max(peaks[i], unsafe { s.load(x.add(at + i * S::LANES)) });
        }
    }
    let [a, b, c, e] = peaks;
    let mut peak = s.peak(s.max(s.max(a, b), s.max(c, e)));
    for i in whole..d {
        // SAFETY: the element lies in `x`.
        peak = peak.max(unsafe { x.add(i).read() });
    }
    let (peaks, mut sums) = (s.splat(peak), [s.splat(0.0); CHAINS]);
    let (from, to, factor): (&[f32], &mut [f32], f32) = match earlier {
        Some(earlier) => (earlier.powers, earlier.out, earlier.factor),
        None => (&[], &mut [], 0.0),
    };
    let stores = from.len() == d && to.len() == d;
    let factors = s.splat(factor);
    for at in (0..whole).step_by(step) {
        for line in (0..step).step_by(16) {
            prefetch(next.wrapping_add(at + line).cast());
        }
        for i in 0..CHAINS {
            let at = at + i * S::LANES;
            // SAFETY: the vector lies in `x`, in `powers` and in an earlier row of this length, whose result is aligned.
            unsafe {
                let power = s.exp(s.sub(s.load(x.add(at)), peaks));
                sums[i] = s.add(sums[i], power);
                s.store(powers.add(at), power);
                if stores {
                    s.stream(to.as_mut_ptr().add(at), s.mul(s.load(from.as_ptr().add(at)), factors));
                }
            }
        }
    }
    for (y, power) in to.iter_mut().zip(from).skip(whole) {
        *y = power * factor;
    }
    let [a, b, c, e] = sums;
    let mut sum = s.sum(s.add(s.add(a, b), s.add(c, e)));
    for i in whole..d {
        // The first lane of a vector of its own, which has at most 16.
        let mut lanes = [f32::NEG_INFINITY; 16];
        // SAFETY: the element lies in both slices, and the vector in `lanes`.
        unsafe {
            lanes[0] = x.add(i).read() - peak;
            s.store(lanes.as_mut_ptr(), s.exp(s.load(lanes.as_ptr())));
            powers.add(i).write(lanes[0]);
        }
        sum += lanes[0];
    }
    sum
}

simd_entry! {
    /// Stores a row's result, past the caches when `past`, which needs it at a multiple of 64 bytes.
    fn scale(row: Unscaled<'_>, past: bool) = scale_with
}

#[inline(always)]
fn scale_with<S: Simd>(s: S, row: Unscaled<'_>, past: bool) {
    map_with(s, [row.powers], row.out, past, |[power]| power * row.factor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{Memory, Random, feature_sets, launch};
    use crate::{Attr, Extent, TensorSpec};

    #[test]
    fn agrees_with_the_definition() {
        for (rows, d, workers) in [(1u32, 1, 1), (3, 8192, 2), (0, 7, 1), (5, 257, 3), (2, 20_000, 2)] {
            let x = TensorSpec { format: Format::F32, shape: vec![Extent::Step { slot: 0, max: 6 }, Extent::Fixed(d)] };
            let (inputs, attrs) = (vec![x.clone()], vec![("axis", Attr::U32(1))]);
            let spec = KernelSpec { op: "softmax", inputs, output: x.clone(), in_place: None, attrs };
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

    #[test]
    fn an_earlier_row_is_stored_meanwhile() {
        let (d, factor) = (CHAINS * 16 * 3 + 48, 0.3);
        let (x, earlier) = (Memory::of(&Random(5).floats(d)), Memory::of(&Random(6).floats(d)));
        let (mut powers, mut out) = (Memory::filled(d * 4, 1), Memory::filled(d * 4, 2));
        for features in feature_sets() {
            let isa = Isa::widest(features);
            let mut alone = vec![0.0; d];
            let sum = raise(isa, x.elements(), x.elements().as_ptr(), &mut alone, None);
            let unscaled = Unscaled { powers: earlier.elements(), factor, out: out.elements_mut() };
            let both = raise(isa, x.elements(), x.elements().as_ptr(), powers.elements_mut(), Some(unscaled));
            assert_eq!((sum, alone.as_slice()), (both, powers.elements()), "{features:?}");
            let want: Vec<f32> = earlier.elements::<f32>().iter().map(|power| power * factor).collect();
            assert_eq!(want, out.elements(), "{features:?}");
            out.elements_mut().fill(0u8);
        }
    }
}
