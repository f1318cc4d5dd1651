//! `layer_norm`: x [.., d], w [d], bias [d], all of f32 or one narrow float → x's type and shape, `(x − mean(x)) /
//! √(var(x) + ε) · w + bias` per row.

use std::sync::Arc;

use hologram_device::{Extent, KernelSpec, Operation};

use super::input;
use super::narrow::{Element, with_element};
use super::rows::{Mapped, Rows, prefetch_row};
use super::simd::{Isa, Simd, simd_entry};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

struct LayerNorm {
    isa: Isa,
    rows: Rows,
    eps: f32,
}

/// The native kernel for `layer_norm`; `None` for any other spec, and for `f64`.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, w, bias] = spec.inputs.as_slice() else { return None };
    let Operation::LayerNorm { eps } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && [w, bias].iter().all(|t| t.format == x.format && t.shape.as_slice() == [Extent::Fixed(x.row_len())]);
    let (eps, rows) = (eps.get(), Rows::mapped(spec)?);
    served.then(|| Arc::new(LayerNorm { isa: Isa::widest(features), rows, eps }) as Arc<dyn NativeKernel>)
}

impl NativeKernel for LayerNorm {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        with_element!(self.rows.format(), E => {
            let (w, bias) = (input::<E>(args, 1, self.rows.d)?, input::<E>(args, 2, self.rows.d)?);
            self.rows.map::<E>(args, 3, worker, |Mapped { row, out, non_temporal }| {
                normalise(self.isa, row.x, row.next, [w, bias], out, self.eps, non_temporal);
            })
        })
    }
}

simd_entry! {
    /// Normalises a row as long as the weights. Meanwhile prefetches the row at `next`.
    fn normalise<E: Element>(
        x: &[E],
        next: *const E,
        weights: [&[E]; 2],
        out: &mut [E],
        eps: f32,
        non_temporal: bool,
    ) = normalise_with
}

#[inline(always)]
fn normalise_with<S: Simd, E: Element>(
    s: S,
    x: &[E],
    next: *const E,
    [w, bias]: [&[E]; 2],
    out: &mut [E],
    eps: f32,
    non_temporal: bool,
) {
    let d = x.len().min(out.len()).min(w.len()).min(bias.len());
    // The first two passes prefetch half of the next row each.
    let half = d / 2;
    let mean = sums(s, x, next, None) / x.len() as f32;
    let means = s.splat(mean);
    let squares = sums(s, x, next.wrapping_add(half), Some(mean));
    let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    let (scales, whole) = (s.splat(scale), d / S::LANES * S::LANES);
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: the vector lies in all four.
        unsafe {
            let v = s.mul(s.sub(E::load(s, x.as_ptr().add(at)), means), scales);
            let y = s.fma(v, E::load(s, w.as_ptr().add(at)), E::load(s, bias.as_ptr().add(at)));
            E::store(s, out.as_mut_ptr().add(at), y, non_temporal);
        }
    }
    for i in whole..d {
        out[i] = E::nearest((x[i].wide() - mean) * scale * w[i].wide() + bias[i].wide());
    }
}

/// The sum of a row or, with a mean, of its squared distances from the mean. Prefetches half a row from `next` on.
#[inline(always)]
fn sums<S: Simd, E: Element>(s: S, x: &[E], next: *const E, mean: Option<f32>) -> f32 {
    let (mut sums, step) = ([s.splat(0.0); 4], 4 * S::LANES);
    let (whole, means) = (x.len() / step * step, s.splat(mean.unwrap_or(0.0)));
    for at in (0..whole).step_by(step) {
        prefetch_row(next, at / 2, step / 2);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the vector lies in the row.
            let v = unsafe { E::load(s, x.as_ptr().add(at + i * S::LANES)) };
            *sum = if mean.is_some() {
                let v = s.sub(v, means);
                s.fma(v, v, *sum)
            } else {
                s.add(*sum, v)
            };
        }
    }
    let rest: f32 = x[whole..].iter().map(|x| mean.map_or(x.wide(), |mean| (x.wide() - mean).powi(2))).sum();
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) + rest
}
