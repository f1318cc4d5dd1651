//! `scatter` and `scatter_add`: x, indices u32, their order, updates → x, in which updates replace, or are added to,
//! the elements that the indices name along a dimension. `scatter` takes any plain type; `scatter_add` takes `f32` and
//! narrow floats, which are added in `f32` and rounded once.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation};

use super::lines::Lines;
use super::narrow::{Element, convert, is_in_f32};
use super::reduce::add_row_with;
use super::simd::{Isa, simd_entry};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

struct Scatter {
    isa: Isa,
    x: Lines,
    updates: Lines,
    format: DType,
    add: bool,
    /// Whether there is an index per slice, not per element.
    slices: bool,
    uses_step: bool,
}

/// Elements side by side in a worker's piece of work, and elements of a piece of the copy.
const WIDTH: usize = 512;
const PIECE: usize = 32 << 10;

/// The native kernel for these operations. `None` for any other spec, for sums of types that are not computed in `f32`,
/// and for sums of narrow floats with an index per element.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, indices, order, updates] = spec.inputs.as_slice() else { return None };
    let Operation::Scatter { add, axis } = spec.op else { return None };
    let slices = indices.shape.len() == 1;
    let served = spec.in_place.is_none()
        && matches!(x.format, DType::Plain(_))
        && (!add || x.format == DType::F32 || slices && is_in_f32(x.format))
        && *x == spec.output
        && updates.format == x.format
        && indices.format == DType::U32
        && indices == order
        && super::is_dense(indices);
    if !served {
        return None;
    }
    let (of_x, of_updates) = (Lines::new(x, axis)?, Lines::new(updates, axis)?);
    let (format, uses_step) = (x.format, spec.uses_step());
    let same = of_x.inner == of_updates.inner;
    let kernel = Scatter { isa: Isa::widest(features), x: of_x, updates: of_updates, format, add, slices, uses_step };
    same.then(|| Arc::new(kernel) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Scatter {
    fn phases(&self) -> usize {
        2
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let step = if self.uses_step { args.step() } else { &[] };
        let (x, updates) = (self.x.sizes(step), self.updates.sizes(step));
        let (size, inner, m) = (self.format.block_bytes(), x.inner, updates.n);
        let wanted = if self.slices { m } else { updates.elements() };
        let (indices, order) = (args.read::<u32>(1), args.read::<u32>(2));
        if args.raw(0).bytes < x.elements() * size
            || args.raw(4).bytes < x.elements() * size
            || args.raw(3).bytes < updates.elements() * size
            || indices.len() < wanted
            || order.len() < wanted
            || x.outer != updates.outer
        {
            return Err(format!("a buffer is too small for {x:?} and {updates:?}"));
        }
        if phase == 0 {
            let (bytes, piece_bytes) = (x.elements() * size, PIECE * size);
            let from = args.read::<u8>(0);
            let out = args.output::<u8>(4);
            while let Some(piece) = worker.next(bytes.div_ceil(piece_bytes)) {
                let range = piece * piece_bytes..((piece + 1) * piece_bytes).min(bytes);
                // SAFETY: each piece is claimed by one worker.
                unsafe { out.part(range.clone()) }.copy_from_slice(&from[range]);
            }
            return Ok(());
        }
        let outside = |index: usize| format!("index {index} is outside a dimension of {}", x.n);
        let strips = inner.div_ceil(WIDTH);
        while let Some(piece) = worker.next(x.outer * strips) {
            let (matrix, first) = (piece / strips, piece % strips * WIDTH);
            let columns = first..(first + WIDTH).min(inner);
            let place = |n: usize, i: usize| (matrix * n + i) * inner;
            if !self.slices {
                for j in 0..m {
                    for column in columns.clone() {
                        let from = place(m, j) + column;
                        let index = indices[from] as usize;
                        if index >= x.n {
                            return Err(outside(index));
                        }
                        self.one(args, from, place(x.n, index) + column, size);
                    }
                }
                continue;
            }
            // Updates of one index are consecutive in the order.
            let mut at = 0;
            while at < m {
                let of = |j: usize| order.get(j).and_then(|update| indices.get(*update as usize)).map(|i| *i as usize);
                let Some(index) = of(at).filter(|index| *index < x.n) else {
                    return Err(outside(of(at).unwrap_or(usize::MAX)));
                };
                let end = (at..m).find(|j| of(*j) != Some(index)).unwrap_or(m);
                let to = place(x.n, index) + first;
                let mut starts = order[at..end].iter().map(|update| place(m, *update as usize) + first);
                match self.format {
                    DType::F32 if self.add => self.sum::<f32>(args, starts, to, columns.len()),
                    DType::F16 if self.add => self.sum::<half::f16>(args, starts, to, columns.len()),
                    DType::BF16 if self.add => self.sum::<half::bf16>(args, starts, to, columns.len()),
                    _ => {
                        let (bytes, from) = (columns.len() * size, starts.next_back().unwrap_or(0) * size);
                        // SAFETY: the strip of each index is this worker's.
                        let out = unsafe { args.output::<u8>(4).part(to * size..to * size + bytes) };
                        out.copy_from_slice(&args.read::<u8>(3)[from..from + bytes]);
                    }
                }
                at = end;
            }
        }
        Ok(())
    }
}

impl Scatter {
    /// Sets an element to an update, or adds it; sums are in `f32`.
    fn one(&self, args: &Args<'_>, from: usize, to: usize, size: usize) {
        // SAFETY: the lines of a strip are this worker's.
        unsafe {
            if self.add {
                args.output::<f32>(4).part(to..to + 1)[0] += args.read::<f32>(3)[from];
            } else {
                let update = &args.read::<u8>(3)[from * size..(from + 1) * size];
                args.output::<u8>(4).part(to * size..(to + 1) * size).copy_from_slice(update);
            }
        }
    }

    /// Adds the updates that begin at `starts` to `len` elements.
    fn sum<E: Element>(&self, args: &Args<'_>, starts: impl Iterator<Item = usize>, to: usize, len: usize) {
        let updates = args.read::<E>(3);
        // SAFETY: the strip of each index is this worker's.
        let out = unsafe { args.output::<E>(4).part(to..to + len) };
        let mut sums = [0f32; WIDTH];
        let sums = &mut sums[..len];
        convert(self.isa, out, sums, false);
        starts.for_each(|from| add(self.isa, &updates[from..from + len], sums));
        convert(self.isa, sums, out, false);
    }
}

simd_entry! {
    fn add<E: Element>(x: &[E], to: &mut [f32]) = add_row_with
}
