//! `cumsum` along any dimension, of `f32` and narrow floats; and `chunk_sums`, the sums of the chunks. Inputs: x and,
//! for lines of several chunks, the sums before each chunk in f32.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation};

use super::lines::{Lines, Sizes};
use super::narrow::{Element, is_in_f32, with_element};
use super::simd::{Isa, Simd, prefetch_near, simd_entry};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

/// Elements of a chunk of a line, as the operations define it.
const CHUNK: usize = 2048;
/// Lines side by side in a piece of work.
const WIDTH: usize = 512;
/// Elements whose sums do not wait for earlier sums.
const BLOCK: usize = 16;
/// Prefetch distance in elements of a line.
const AHEAD: usize = 4;

struct CumSum {
    isa: Isa,
    lines: Lines,
    format: DType,
    /// Whether only the chunks' sums are required.
    total: bool,
    /// Whether the sums before each chunk are an input.
    carried: bool,
    /// Chunks of a line at its maximum length.
    chunks: usize,
    uses_step: bool,
}

/// The native kernel for these operations; `None` for any other spec, and for types that are not summed in `f32`.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let (x, carries) = spec.inputs.split_first()?;
    let (total, axis) = match spec.op {
        Operation::ChunkSums { axis } => (true, axis),
        Operation::CumSum { axis } => (false, axis),
        _ => return None,
    };
    if spec.in_place.is_some() || !is_in_f32(x.format) {
        return None;
    }
    let (lines, n) = (Lines::new(x, axis)?, x.shape.get(axis as usize)?.max());
    let of_chunks = if total { &spec.output } else { carries.first().unwrap_or(x) };
    let chunks = n.div_ceil(CHUNK).max(1);
    let served = carries.len() <= usize::from(!total)
        && (total || *x == spec.output)
        // Without sums before the chunks, a line is one chunk.
        && (!total && carries.is_empty() && chunks == 1
            || of_chunks.format == DType::F32
                && super::is_dense(of_chunks)
                && of_chunks.shape.get(axis as usize).map(|e| e.max()) == Some(chunks));
    let carried = !carries.is_empty();
    let (format, uses_step) = (x.format, spec.uses_step());
    let kernel = CumSum { isa: Isa::widest(features), lines, format, total, carried, chunks, uses_step };
    served.then(|| Arc::new(kernel) as Arc<dyn NativeKernel>)
}

impl NativeKernel for CumSum {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let sizes = self.lines.sizes(if self.uses_step { args.step() } else { &[] });
        let Sizes { outer, n, inner } = sizes;
        let (bytes, result) = (sizes.elements() * self.format.block_bytes(), if self.carried { 2 } else { 1 });
        let of_chunks = sizes.lines() * self.chunks * 4;
        let wanted = if self.total { of_chunks } else { bytes };
        if args.raw(0).bytes < bytes || args.raw(result).bytes < wanted || self.carried && args.raw(1).bytes < of_chunks
        {
            return Err(format!("a buffer is too small for {sizes:?}"));
        }
        let strips = inner.div_ceil(WIDTH);
        let mut sums = [0f32; WIDTH];
        with_element!(self.format, E => {
            let x = args.read::<E>(0);
            while let Some(piece) = worker.next(outer * strips * self.chunks) {
                let (matrix, strip, chunk) = (piece / (strips * self.chunks), piece / self.chunks % strips, piece % self.chunks);
                let columns = strip * WIDTH..((strip + 1) * WIDTH).min(inner);
                let sums = &mut sums[..columns.len()];
                let of_chunk = |chunk: usize| (matrix * self.chunks + chunk) * inner;
                sums.fill(0.0);
                if self.carried && chunk > 0 {
                    let first = of_chunk(chunk - 1);
                    sums.copy_from_slice(&args.read::<f32>(1)[first + columns.start..first + columns.end]);
                }
                let depth = (chunk * CHUNK).min(n)..((chunk + 1) * CHUNK).min(n);
                let from = (matrix * n + depth.start) * inner;
                let x = &x[from..from + depth.len() * inner];
                if self.total {
                    add(self.isa, x, inner, columns.start, sums);
                    let first = of_chunk(chunk);
                    // SAFETY: each strip of a chunk is claimed by one worker; the buffer's size was checked.
                    unsafe { args.output::<f32>(result).part(first + columns.start..first + columns.end) }.copy_from_slice(sums);
                    continue;
                }
                // SAFETY: each strip of a chunk is claimed by one worker, which writes no other.
                let out = unsafe { &mut args.write::<E>(result)[from..from + x.len()] };
                if inner == 1 {
                    along(self.isa, x, sums[0], out);
                } else {
                    across(self.isa, x, inner, columns.start, sums, out);
                }
            }
        });
        Ok(())
    }
}

simd_entry! {
    /// Adds all elements of lines side by side, starting at line `first`.
    fn add<E: Element>(x: &[E], inner: usize, first: usize, sums: &mut [f32]) = add_with
}

#[inline(always)]
fn add_with<S: Simd, E: Element>(s: S, x: &[E], inner: usize, first: usize, sums: &mut [f32]) {
    if inner == 1 {
        let (mut parts, step) = ([s.splat(0.0); 4], 4 * S::LANES);
        let whole = x.len() / step * step;
        for at in (0..whole).step_by(step) {
            for (i, part) in parts.iter_mut().enumerate() {
                // SAFETY: the vector lies in the line.
                *part = s.add(*part, unsafe { E::load(s, x.as_ptr().add(at + i * S::LANES)) });
            }
        }
        let rest: f32 = x[whole..].iter().map(|x| x.wide()).sum();
        sums[0] += s.sum(s.add(s.add(parts[0], parts[1]), s.add(parts[2], parts[3]))) + rest;
        return;
    }
    for row in x.chunks_exact(inner) {
        let row = &row[first..first + sums.len()];
        prefetch_row(row, inner);
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.wide());
    }
}

simd_entry! {
    /// The cumulative sums of a line, starting from `sum`.
    fn along<E: Element>(x: &[E], sum: f32, out: &mut [E]) = along_with
}

#[inline(always)]
fn along_with<S: Simd, E: Element>(s: S, x: &[E], mut sum: f32, out: &mut [E]) {
    let (mut to, mut from) = (out.chunks_exact_mut(BLOCK), x.chunks_exact(BLOCK));
    for (to, from) in to.by_ref().zip(from.by_ref()) {
        let mut block = [0f32; BLOCK];
        for at in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: the vector lies in both.
            unsafe { s.store(block.as_mut_ptr().add(at), E::load(s, from.as_ptr().add(at))) };
        }
        // Each step adds the sum that lies `distance` before (Hillis and Steele, 1986).
        for distance in [1, 2, 4, 8] {
            let before = block;
            for i in distance..BLOCK {
                block[i] = before[i] + before[i - distance];
            }
        }
        let before = s.splat(sum);
        for at in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: the vector lies in both.
            unsafe {
                let sums = s.add(s.load(block.as_ptr().add(at)), before);
                E::store(s, to.as_mut_ptr().add(at), sums, false);
            }
        }
        sum += block[BLOCK - 1];
    }
    for (to, x) in to.into_remainder().iter_mut().zip(from.remainder()) {
        sum += x.wide();
        *to = E::nearest(sum);
    }
}

simd_entry! {
    /// The cumulative sums of lines side by side, starting at line `first` and from `sums`.
    fn across<E: Element>(x: &[E], inner: usize, first: usize, sums: &mut [f32], out: &mut [E]) = across_with
}

#[inline(always)]
fn across_with<S: Simd, E: Element>(s: S, x: &[E], inner: usize, first: usize, sums: &mut [f32], out: &mut [E]) {
    let whole = sums.len() / S::LANES * S::LANES;
    for (row, out) in x.chunks_exact(inner).zip(out.chunks_exact_mut(inner)) {
        let (row, out) = (&row[first..first + sums.len()], &mut out[first..first + sums.len()]);
        prefetch_row(row, inner);
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: the vector lies in all three.
            unsafe {
                let sum = s.add(s.load(sums.as_ptr().add(at)), E::load(s, row.as_ptr().add(at)));
                s.store(sums.as_mut_ptr().add(at), sum);
                E::store(s, out.as_mut_ptr().add(at), sum, false);
            }
        }
        for i in whole..sums.len() {
            sums[i] += row[i].wide();
            out[i] = E::nearest(sums[i]);
        }
    }
}

/// Prefetches the part of a row that lies [`AHEAD`] rows further on: the hardware does not prefetch into another page.
#[inline(always)]
fn prefetch_row<E>(row: &[E], inner: usize) {
    let ahead = row.as_ptr().wrapping_add(AHEAD * inner).cast::<u8>();
    (0..size_of_val(row)).step_by(64).for_each(|at| prefetch_near(ahead.wrapping_add(at)));
}
