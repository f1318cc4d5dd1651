//! `rms_norm`: x [.., d] of f32 or a narrow float, w [d] in f32 or x's type → of x's type and shape, `x / √(mean(x²) + ε) · w` for each row.

use std::sync::Arc;

use crate::cpu::features::Features;
use crate::cpu::kernel::{Args, NativeKernel, Worker};
use crate::cpu::native::input;
use crate::cpu::native::narrow::{Element, widen, with_element};
use crate::cpu::native::rows::{Mapped, Rows};
use crate::cpu::native::simd::{Isa, Simd, prefetch, simd_entry};
use crate::{Extent, Format, KernelSpec};

struct RmsNorm {
    isa: Isa,
    rows: Rows,
    eps: f32,
    /// Format of the weights.
    weights: Format,
}

/// The native kernel for `rms_norm`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, w] = spec.inputs.as_slice() else { return None };
    let served = spec.op == "rms_norm"
        && spec.in_place.is_none()
        && (w.format == Format::F32 || w.format == x.format)
        && w.shape.as_slice() == [Extent::Fixed(x.row_len())];
    let (eps, rows) = (spec.attr_f32("eps")?, Rows::mapped(spec)?);
    let weights = w.format;
    served.then(|| Arc::new(RmsNorm { isa: Isa::widest(features), rows, eps, weights }) as Arc<dyn NativeKernel>)
}

impl NativeKernel for RmsNorm {
    fn worker_scratch(&self) -> usize {
        if self.weights == Format::F32 { 0 } else { self.rows.d * 4 }
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let (d, scratch) = (self.rows.d, std::mem::take(&mut worker.scratch));
        let w = if self.weights == Format::F32 {
            input::<f32>(args, 1, d)?
        } else {
            // SAFETY: any bytes are floats; the scratch is aligned.
            let wide = &mut unsafe { scratch.align_to_mut::<f32>().1 }[..d];
            widen(self.isa, self.weights, input::<u16>(args, 1, d)?, wide);
            wide
        };
        with_element!(self.rows.format(), E => self.rows.map::<E>(args, 2, worker, |Mapped { row, out, past }| {
            normalise(self.isa, row.x, row.next, w, out, self.eps, past);
        }))
    }
}

simd_entry! {
    /// Normalises a row as long as `w`. Meanwhile memory from `next` on, a row of it, is asked for.
    fn normalise<E: Element>(x: &[E], next: *const E, w: &[f32], out: &mut [E], eps: f32, past: bool) = normalise_with
}

#[inline(always)]
fn normalise_with<S: Simd, E: Element>(s: S, x: &[E], next: *const E, w: &[f32], out: &mut [E], eps: f32, past: bool) {
    let mean = sum_of_squares(s, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    let (scales, d) = (s.splat(scale), x.len().min(w.len()).min(out.len()));
    let whole = d / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        if at % (64 / size_of::<E>()) == 0 {
            prefetch(next.wrapping_add(at).cast());
        }
        // SAFETY: the vector lies in all three; `out` is aligned when it goes past the caches.
        unsafe {
            let y = s.mul(s.mul(E::load(s, x.as_ptr().add(at)), scales), s.load(w.as_ptr().add(at)));
            E::store(s, out.as_mut_ptr().add(at), y, past);
        }
    }
    for ((y, x), w) in out.iter_mut().zip(x).zip(w).skip(whole) {
        *y = E::nearest(x.wide() * scale * w);
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd, E: Element>(s: S, x: &[E]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let blocks = x.chunks_exact(4 * S::LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for (sum, v) in sums.iter_mut().zip(block.chunks_exact(S::LANES)) {
            // SAFETY: `v` has LANES elements.
            let v = unsafe { E::load(s, v.as_ptr()) };
            *sum = s.fma(v, v, *sum);
        }
    }
    let rest: f32 = rest.iter().map(|v| v.wide() * v.wide()).sum();
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{Memory, Random, feature_sets, launch};
    use crate::{Attr, TensorSpec};

    #[test]
    fn agrees_with_the_definition() {
        // Rows in the run, heads (0: none), row length, workers.
        for (rows, heads, d, workers) in
            [(1, 0, 2048, 2), (3, 0, 257, 2), (5, 4, 64, 3), (0, 0, 32, 1), (2, 3, 80, 2), (7, 0, 1, 1), (1, 0, 63, 1)]
        {
            let heads = (heads > 0).then_some(Extent::Fixed(heads));
            let shape: Vec<_> =
                [Some(Extent::Step { slot: 0, max: 8 }), heads, Some(Extent::Fixed(d))].into_iter().flatten().collect();
            let x = TensorSpec { format: Format::F32, shape };
            let w = TensorSpec { format: Format::F32, shape: vec![Extent::Fixed(d)] };
            let spec = KernelSpec {
                op: "rms_norm",
                inputs: vec![x.clone(), w],
                output: x.clone(),
                in_place: None,
                attrs: vec![("eps", Attr::F32(1e-5))],
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
}
