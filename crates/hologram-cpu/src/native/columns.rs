//! `softmax` and `log_softmax` along a dimension other than the last, of `f32` and narrow floats. Neighbouring lines
//! lie side by side; each lane keeps the greatest element of its line so far and the sum of exponentials relative to
//! it.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation};

use super::lines::{Lines, Sizes};
use super::narrow::{Element, is_in_f32, with_element};
use super::simd::{Isa, Simd, prefetch_near, simd_entry};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

struct Columns {
    isa: Isa,
    lines: Lines,
    format: DType,
    log: bool,
    uses_step: bool,
}

/// Vectors side by side, and the most lines that they hold.
const VECTORS: usize = 4;
const WIDTH: usize = 64;
/// Prefetch distance in elements of a line.
const AHEAD: usize = 8;

/// The native kernel for these; `None` for any other spec, and for rows.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let Operation::Softmax { log, axis } = spec.op else { return None };
    let served = spec.in_place.is_none() && is_in_f32(x.format) && *x == spec.output;
    if !served {
        return None;
    }
    let lines = Lines::new(x, axis)?;
    let (format, uses_step) = (x.format, spec.uses_step());
    let kernel = || Columns { isa: Isa::widest(features), lines: lines.clone(), format, log, uses_step };
    (lines.inner > 1).then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Columns {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let sizes = self.lines.sizes(if self.uses_step { args.step() } else { &[] });
        let bytes = sizes.elements() * self.format.block_bytes();
        if args.raw(0).bytes < bytes || args.raw(1).bytes < bytes {
            return Err(format!("a buffer is too small for {sizes:?}"));
        }
        with_element!(self.format, E => {
            let (x, Sizes { outer, n, inner }) = (args.read::<E>(0), sizes);
            // SAFETY: each strip is claimed by one worker.
            let out = unsafe { args.write::<E>(1) };
            let strips = inner.div_ceil(WIDTH);
            while let Some(piece) = worker.next(outer * strips) {
                let (matrix, first) = (piece / strips, piece % strips * WIDTH);
                let range = matrix * n * inner..(matrix + 1) * n * inner;
                let count = WIDTH.min(inner - first);
                strip(self.isa, &x[range.clone()], &mut out[range], inner, [first, count], self.log);
            }
        });
        Ok(())
    }
}

simd_entry! {
    /// The softmax or log-softmax of `count` lines of a matrix from line `first`, at most [`WIDTH`]; lines lie side by
    /// side.
    fn strip<E: Element>(x: &[E], out: &mut [E], inner: usize, lines: [usize; 2], log: bool) = strip_with
}

#[inline(always)]
fn strip_with<S: Simd, E: Element>(s: S, x: &[E], out: &mut [E], inner: usize, [first, count]: [usize; 2], log: bool) {
    let step = VECTORS * S::LANES;
    for first in (first..first + count).step_by(step).map(|at| (at, step.min(first + count - at))) {
        lanes(s, x, out, inner, first, log);
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers are indexed in several arrays at once")]
fn lanes<S: Simd, E: Element>(s: S, x: &[E], out: &mut [E], inner: usize, (first, count): (usize, usize), log: bool) {
    // Finite, because −∞ − −∞ is NaN.
    let (mut peaks, mut sums) = ([s.splat(f32::MIN); VECTORS], [s.splat(0.0); VECTORS]);
    for row in x.chunks_exact(inner) {
        let row = &row[first..first + count];
        prefetch_row(row, inner);
        let block = load(s, row);
        for i in 0..VECTORS {
            if s.any_greater(block[i], peaks[i]) {
                // `max` returns the second operand if one is NaN.
                let peak = s.max(block[i], peaks[i]);
                sums[i] = s.mul(sums[i], s.exp(s.sub(peaks[i], peak)));
                peaks[i] = peak;
            }
            sums[i] = s.add(sums[i], s.exp(s.sub(block[i], peaks[i])));
        }
    }
    let mut factors = [0f32; WIDTH];
    for i in 0..VECTORS {
        // SAFETY: there is room for all lanes.
        unsafe { s.store(factors.as_mut_ptr().add(i * S::LANES), sums[i]) };
    }
    factors.iter_mut().for_each(|sum| *sum = if log { sum.ln() } else { 1.0 / *sum });
    let mut by = sums;
    for (i, by) in by.iter_mut().enumerate() {
        // SAFETY: the lanes were stored there.
        *by = unsafe { s.load(factors.as_ptr().add(i * S::LANES)) };
    }
    for (row, out) in x.chunks_exact(inner).zip(out.chunks_exact_mut(inner)) {
        let (row, out) = (&row[first..first + count], &mut out[first..first + count]);
        prefetch_row(row, inner);
        let mut block = load(s, row);
        for i in 0..VECTORS {
            let below = s.sub(block[i], peaks[i]);
            block[i] = if log { s.sub(below, by[i]) } else { s.mul(s.exp(below), by[i]) };
        }
        if count == VECTORS * S::LANES {
            for (i, v) in block.into_iter().enumerate() {
                // SAFETY: the row has all lanes.
                unsafe { E::store(s, out.as_mut_ptr().add(i * S::LANES), v, false) };
            }
        } else {
            for (i, v) in block.into_iter().enumerate() {
                // SAFETY: there is room for all lanes.
                unsafe { s.store(factors.as_mut_ptr().add(i * S::LANES), v) };
            }
            out.iter_mut().zip(factors).for_each(|(to, x)| *to = E::nearest(x));
        }
    }
}

/// Prefetches the part of a row that lies [`AHEAD`] rows further on: the hardware does not prefetch into another page.
#[inline(always)]
fn prefetch_row<E>(row: &[E], inner: usize) {
    let ahead = row.as_ptr().wrapping_add(AHEAD * inner).cast::<u8>();
    (0..size_of_val(row)).step_by(64).for_each(|at| prefetch_near(ahead.wrapping_add(at)));
}

/// The elements of a row, padded with −∞.
#[inline(always)]
fn load<S: Simd, E: Element>(s: S, row: &[E]) -> [S::V; VECTORS] {
    let mut block = [s.splat(f32::NEG_INFINITY); VECTORS];
    if row.len() == VECTORS * S::LANES {
        for (i, v) in block.iter_mut().enumerate() {
            // SAFETY: the row has all lanes.
            *v = unsafe { E::load(s, row.as_ptr().add(i * S::LANES)) };
        }
    } else {
        let mut rest = [f32::NEG_INFINITY; WIDTH];
        rest.iter_mut().zip(row).for_each(|(to, x)| *to = x.wide());
        for (i, v) in block.iter_mut().enumerate() {
            // SAFETY: there is room for all lanes.
            *v = unsafe { s.load(rest.as_ptr().add(i * S::LANES)) };
        }
    }
    block
}
