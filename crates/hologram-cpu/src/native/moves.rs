//! Operations that only move elements, of any plain type: `concat`, `take`, and `copy_view`, which copies a tensor
//! whose elements lie in another order.

use std::ops::Range;
use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

use super::copy::copy_bytes;
use super::lines::Lines;
use super::simd::{Isa, fence};
use super::stream::is_non_temporal;
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Output, Pod, Worker};

/// Runs an expression with `$W` as an unsigned integer of `$size` bytes.
macro_rules! with_word {
    ($size:expr, $W:ident => $run:expr) => {
        match $size {
            1 => {
                type $W = u8;
                $run
            }
            2 => {
                type $W = u16;
                $run
            }
            4 => {
                type $W = u32;
                $run
            }
            _ => {
                type $W = u64;
                $run
            }
        }
    };
}

/// Bytes of a piece of work.
const PIECE: usize = 128 << 10;

/// The native kernel for one of these; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let isa = Isa::widest(features);
    let plain = matches!(spec.output.format, DType::Plain(_)) && spec.in_place.is_none();
    match &spec.op {
        Operation::Concat { axis } if plain => concat(spec, *axis as usize, isa),
        Operation::Take { axis } if plain => take(spec, *axis, isa),
        Operation::CopyView { offset, strides } if plain => copy_view(spec, *offset as usize, strides),
        _ => None,
    }
}

struct Concat {
    isa: Isa,
    output: TensorSpec,
    /// Bytes of each input's part of a run of the result.
    runs: Vec<usize>,
    uses_step: bool,
}

fn concat(spec: &KernelSpec, axis: usize, isa: Isa) -> Option<Arc<dyn NativeKernel>> {
    let size = spec.output.format.block_bytes();
    let run = |t: &TensorSpec| Some(t.shape.get(axis..)?.iter().map(|e| e.max()).product::<usize>() * size);
    let runs = spec.inputs.iter().map(run).collect::<Option<Vec<_>>>()?;
    let served = spec.inputs.iter().chain([&spec.output]).all(|t| t.format == spec.output.format && super::is_dense(t))
        && runs.iter().sum::<usize>() == run(&spec.output)?
        // Only dimensions before the joined one may vary.
        && spec.output.shape[axis..].iter().all(|e| matches!(e, Extent::Fixed(_)));
    let kernel = || Concat { isa, output: spec.output.clone(), runs: runs.clone(), uses_step: spec.uses_step() };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Concat {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let elements = super::elements(&self.output, if self.uses_step { args.step() } else { &[] });
        let (bytes, whole) = (elements * self.output.format.block_bytes(), self.runs.iter().sum::<usize>());
        if bytes == 0 {
            return Ok(());
        }
        let rows = bytes / whole;
        let result = self.runs.len();
        if args.raw(result).bytes < bytes || self.runs.iter().enumerate().any(|(i, run)| args.raw(i).bytes < run * rows)
        {
            return Err(format!("a buffer is too small for {rows} parts of {whole} bytes"));
        }
        let non_temporal = is_non_temporal(args.raw(result), bytes);
        let out = args.output::<u8>(result);
        while let Some(piece) = worker.next(bytes.div_ceil(PIECE)) {
            let (mut at, end) = (piece * PIECE, ((piece + 1) * PIECE).min(bytes));
            while at < end {
                let (row, mut column, mut input) = (at / whole, at % whole, 0);
                while column >= self.runs[input] {
                    column -= self.runs[input];
                    input += 1;
                }
                let len = (self.runs[input] - column).min(end - at);
                let from = row * self.runs[input] + column;
                // SAFETY: each piece is claimed by one worker.
                let to = unsafe { out.part(at..at + len) };
                copy_bytes(self.isa, &args.read::<u8>(input)[from..from + len], to, non_temporal);
                at += len;
            }
        }
        fence();
        Ok(())
    }
}

struct Take {
    isa: Isa,
    x: Lines,
    output: Lines,
    size: usize,
    /// Whether there is an index per slice, not per element.
    slices: bool,
    uses_step: bool,
}

fn take(spec: &KernelSpec, axis: u32, isa: Isa) -> Option<Arc<dyn NativeKernel>> {
    let [x, indices] = spec.inputs.as_slice() else { return None };
    let served = x.format == spec.output.format && indices.format == DType::U32 && super::is_dense(indices);
    let (of_x, output) = (Lines::new(x, axis)?, Lines::new(&spec.output, axis)?);
    let (size, slices) = (x.format.block_bytes(), indices.shape.len() == 1);
    let kernel = || Take { isa, x: of_x.clone(), output: output.clone(), size, slices, uses_step: spec.uses_step() };
    (served && of_x.inner == output.inner).then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Take {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let step = if self.uses_step { args.step() } else { &[] };
        let (x, output) = (self.x.sizes(step), self.output.sizes(step));
        let (m, inner) = (output.n, output.inner);
        let indices = args.read::<u32>(1);
        let wanted = if self.slices { m } else { output.elements() };
        if args.raw(0).bytes < x.elements() * self.size
            || args.raw(2).bytes < output.elements() * self.size
            || indices.len() < wanted
            || x.outer < output.outer
        {
            return Err(format!("a buffer is too small for {output:?}"));
        }
        let missing = |index: usize| format!("index {index} outside a dimension of {}", x.n);
        let non_temporal = is_non_temporal(args.raw(2), output.elements() * self.size);
        if self.slices {
            let (from, bytes) = (args.read::<u8>(0), inner * self.size);
            let out = args.output::<u8>(2);
            let (slices, per_piece) = (output.outer * m, (PIECE / bytes.max(1)).max(1));
            while let Some(piece) = worker.next(slices.div_ceil(per_piece)) {
                for slice in piece * per_piece..((piece + 1) * per_piece).min(slices) {
                    let (matrix, index) = (slice / m, indices[slice % m] as usize);
                    if index >= x.n {
                        return Err(missing(index));
                    }
                    let at = (matrix * x.n + index) * bytes;
                    // SAFETY: each slice is claimed by one worker.
                    let to = unsafe { out.part(slice * bytes..(slice + 1) * bytes) };
                    copy_bytes(self.isa, &from[at..at + bytes], to, non_temporal);
                }
            }
            fence();
            return Ok(());
        }
        with_word!(self.size, W => {
            let from = args.read::<W>(0);
            let out = args.output::<W>(2);
            let (rows, per_piece) = (output.outer * m, (PIECE / 8 / inner.max(1)).max(1));
            while let Some(piece) = worker.next(rows.div_ceil(per_piece)) {
                for row in piece * per_piece..((piece + 1) * per_piece).min(rows) {
                    let matrix = row / m * x.n;
                    // SAFETY: each row is claimed by one worker.
                    let (out, indices) = (unsafe { out.part(row * inner..(row + 1) * inner) }, &indices[row * inner..(row + 1) * inner]);
                    for (column, (to, index)) in out.iter_mut().zip(indices).enumerate() {
                        let index = *index as usize;
                        if index >= x.n {
                            return Err(missing(index));
                        }
                        *to = from[(matrix + index) * inner + column];
                    }
                }
            }
        });
        Ok(())
    }
}

/// A dimension of a copy: its size, and the distance of its elements in the source.
type Dimension = (usize, usize);

struct CopyView {
    /// The slowest dimension; only it may vary.
    first: Extent,
    first_stride: usize,
    /// The other dimensions, at least one. Dimensions that are contiguous in the source are merged.
    rest: Vec<Dimension>,
    offset: usize,
    size: usize,
    uses_step: bool,
}

/// Side in elements of a square that is transposed at once: a cache line of 32-bit elements.
const SQUARE: usize = 16;

fn copy_view(spec: &KernelSpec, offset: usize, strides: &[u32]) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let distances = strides.iter().map(|stride| *stride as usize);
    let mut sizes: Vec<Dimension> = spec.output.shape.iter().map(|e| e.max()).zip(distances).collect();
    if strides.len() != spec.output.shape.len() || x.format != spec.output.format || !super::is_dense(&spec.output) {
        return None;
    }
    // A first dimension that varies is iterated; any other is one of the rest.
    let varies = spec.output.shape.first().is_some_and(|e| matches!(e, Extent::Step { .. }));
    let (first, first_stride) = if varies { (spec.output.shape[0], sizes.remove(0).1) } else { (Extent::Fixed(1), 0) };
    let mut rest: Vec<Dimension> = Vec::new();
    for (size, stride) in sizes.into_iter().filter(|(n, _)| *n != 1) {
        match rest.last_mut() {
            Some((n, step)) if *step == stride * size => (*n, *step) = (*n * size, stride),
            _ => rest.push((size, stride)),
        }
    }
    if rest.is_empty() {
        rest.push((1, 1));
    }
    let (size, uses_step) = (x.format.block_bytes(), spec.uses_step());
    Some(Arc::new(CopyView { first, first_stride, rest, offset, size, uses_step }))
}

impl NativeKernel for CopyView {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let n = self.first.value(if self.uses_step { args.step() } else { &[] });
        let inner: usize = self.rest.iter().map(|(n, _)| n).product();
        if n * inner == 0 {
            return Ok(());
        }
        let span = self.offset
            + (n - 1) * self.first_stride
            + self.rest.iter().map(|(n, stride)| (n - 1) * stride).sum::<usize>()
            + 1;
        if args.raw(0).bytes < span * self.size || args.raw(1).bytes < n * inner * self.size {
            return Err(format!("a buffer is too small for {n} × {inner} elements"));
        }
        with_word!(self.size, W => {
            self.lines::<W>(&args.read::<W>(0)[self.offset..], args.output(1), n, worker);
        });
        Ok(())
    }
}

impl CopyView {
    /// Copies lines along the last dimension; the other dimensions are iterated. Copies blocks of lines if another
    /// dimension is contiguous in the source.
    fn lines<W: Pod + Default>(&self, x: &[W], out: Output<'_, W>, n: usize, worker: &Worker<'_>) {
        let (last, stride) = self.rest.last().copied().unwrap_or((1, 1));
        let outer = &self.rest[..self.rest.len() - 1];
        // All dimensions but the last, slowest first: the distances in the source and in lines of the result.
        let count = outer.len() + 1;
        let dimension = |k: usize| if k == 0 { (n, self.first_stride) } else { outer[k - 1] };
        let lines: usize = (0..count).map(|k| dimension(k).0).product();
        let source = |line: usize, skip: Option<usize>| {
            let (mut rest, mut at) = (line, 0);
            for k in (0..count).rev().filter(|k| Some(*k) != skip) {
                let (size, stride) = dimension(k);
                at += rest % size * stride;
                rest /= size;
            }
            at
        };
        let per_piece = (PIECE / size_of::<W>() / last.max(1)).max(1);
        let turned =
            (stride != 1).then(|| (0..count).rev().find(|k| dimension(*k).1 == 1 && dimension(*k).0 > 1)).flatten();
        let Some(fast) = turned else {
            while let Some(piece) = worker.next(lines.div_ceil(per_piece)) {
                for line in piece * per_piece..((piece + 1) * per_piece).min(lines) {
                    // SAFETY: each line of the result is claimed by one worker.
                    let (from, to) = (&x[source(line, None)..], unsafe { out.part(line * last..(line + 1) * last) });
                    if stride == 1 {
                        to.copy_from_slice(&from[..last]);
                    } else {
                        to.iter_mut().enumerate().for_each(|(i, to)| *to = from[i * stride]);
                    }
                }
            }
            return;
        };
        // Squares of the last dimension and the one that is contiguous in the source, for each position in the others.
        let dense = dimension(fast).0;
        let after: usize = (fast + 1..count).map(|k| dimension(k).0).product();
        let (others, strips) = (lines / dense, dense.div_ceil(SQUARE));
        while let Some(piece) = worker.next(others * strips) {
            let (other, strip) = (piece / strips, piece % strips);
            let columns = strip * SQUARE..((strip + 1) * SQUARE).min(dense);
            let from = &x[source(other, Some(fast)) + columns.start..];
            // The strip's first line in the result, and the distance of its lines.
            let first = (other / after * dense + columns.start) * after + other % after;
            // SAFETY: the lines of a strip are claimed by one worker.
            unsafe { turn(from, stride, last, columns, (out, first * last), after * last) };
        }
    }
}

/// Writes elements `i + stride · j` of `x` to `first + out_stride · i + j` of `out`, for the i of `columns`, counted
/// from its start, and j below `count`.
///
/// # Safety
/// Nobody else accesses these elements of `out`.
unsafe fn turn<W: Pod + Default>(
    x: &[W],
    stride: usize,
    count: usize,
    columns: Range<usize>,
    (out, first): (Output<'_, W>, usize),
    out_stride: usize,
) {
    let width = columns.len();
    for start in (0..count).step_by(SQUARE) {
        let height = SQUARE.min(count - start);
        let mut square = [[W::default(); SQUARE]; SQUARE];
        if width == SQUARE && height == SQUARE {
            for (j, row) in square.iter_mut().enumerate() {
                let from = (start + j) * stride;
                row.copy_from_slice(&x[from..from + SQUARE]);
                super::simd::prefetch_near(x.as_ptr().wrapping_add(from + 2 * SQUARE * stride).cast());
            }
            for (i, at) in (0..SQUARE).map(|i| (i, first + out_stride * i + start)) {
                let line: [W; SQUARE] = std::array::from_fn(|j| square[j][i]);
                // SAFETY: promised by the caller.
                unsafe { out.part(at..at + SQUARE) }.copy_from_slice(&line);
            }
            continue;
        }
        for j in start..start + height {
            for i in 0..width {
                // SAFETY: promised by the caller.
                unsafe { out.set(first + out_stride * i + j, x[i + stride * j]) };
            }
        }
    }
}
