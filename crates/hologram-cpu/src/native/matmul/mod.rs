//! `matmul`: x [n, k], w [m, k] → y [n, m] = x·wᵀ.
//!
//! Weights are used in place, in the file's layout. A few tokens are multiplied row by row directly from the packed
//! weights, which is bound by memory. For more tokens the activations are first interleaved into tiles; then each
//! worker unpacks a panel of weight rows once and runs a register-blocked kernel over all tiles. In between, rows of
//! floats are multiplied with some tokens where they lie. The instruction set is chosen when the kernel is found.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_macros, reason = "so far only x86-64 has vectors of bytes")
)]
mod blocks;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_macros, reason = "so far only x86-64 has vectors of bytes")
)]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod decode;
pub(super) mod experts;
pub(super) mod float;
mod int;
#[cfg(target_arch = "x86_64")]
mod parts;
mod plain;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_macros, reason = "so far only x86-64 has vectors of bytes")
)]
mod rows;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(feature = "testing")]
pub(crate) mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::only_slowest_varies;

/// The native kernel for a matmul; `None` for other operations and for unsupported combinations.
pub fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let problem = Problem::new(spec)?;
    #[cfg(target_arch = "x86_64")]
    if !problem.is_independent()
        && let Some(kernel) = tiles::TileMatmul::find(&problem, features)
    {
        return Some(kernel);
    }
    match problem.x.format {
        DType::I8Groups { group } => int::IntMatmul::find(problem, group as usize, features),
        _ => float::FloatMatmul::find(problem, features),
    }
}

/// Whether there is a kernel that multiplies 8-bit activations with weights of this format.
pub fn multiplies_codes(weights: DType) -> bool {
    int::serves(weights)
}

/// Whether tiles multiply `bf16` activations with weights of this format, where the processor has tiles.
pub fn has_tiles(weights: DType) -> bool {
    #[cfg(target_arch = "x86_64")]
    let decoded = decode::decodes(weights);
    #[cfg(not(target_arch = "x86_64"))]
    let decoded = false;
    !weights.is_quantized_weight() || decoded
}

/// The checked sizes and formats of a matmul.
#[derive(Clone, Debug)]
struct Problem {
    x: TensorSpec,
    w: DType,
    m: usize,
    k: usize,
    dynamic: bool,
}

impl Problem {
    fn new(spec: &KernelSpec) -> Option<Problem> {
        let [x, w] = spec.inputs.as_slice() else { return None };
        let (y, [Extent::Fixed(m), Extent::Fixed(k)]) = (&spec.output, w.shape.as_slice()) else { return None };
        let same_rows = x.shape.split_last()?.1 == y.shape.split_last()?.1;
        let served = spec.op == Operation::Matmul
            && spec.in_place.is_none()
            && y.format == DType::F32
            && same_rows
            && only_slowest_varies(x)
            && only_slowest_varies(y)
            && (x.row_len(), y.row_len()) == (*k, *m)
            && *k > 0
            && w.format.bytes(*m, *k).is_some()
            && x.format.bytes(x.max_rows(), *k).is_some();
        served.then(|| Problem { x: x.clone(), w: w.format, m: *m, k: *k, dynamic: spec.uses_step() })
    }

    /// Whether a token's results must not depend on the other tokens: all numbers of tokens are then multiplied row by
    /// row.
    fn is_independent(&self) -> bool {
        self.x.shape.iter().any(|n| n.is_independent())
    }

    /// The arguments of a launch.
    ///
    /// # Errors
    /// When a buffer is smaller than its tensor.
    fn operands<'a>(&self, args: &Args<'a>) -> Result<Operands<'a>, String> {
        let x_views = if matches!(self.x.format, DType::I8Groups { .. }) { 2 } else { 1 };
        let w_views = self.w.views(1, self.k).len();
        let expected = x_views + w_views + 1 + usize::from(self.dynamic);
        if args.len() != expected {
            return Err(format!("matmul takes {expected} buffers, got {}", args.len()));
        }
        let n = self.x.rows(if self.dynamic { args.step() } else { &[] });
        let (k, m) = (self.k, self.m);
        let x: &[u8] = args.read(0);
        let (x_bytes, scales): (usize, &[f32]) = match self.x.format {
            DType::I8Groups { group } => {
                let scales: &[f32] = args.read(1);
                let count = n * (k / group as usize);
                (n * k, scales.get(..count).ok_or("the scales' buffer is too small")?)
            }
            format => (n * k * format.block_bytes(), &[]),
        };
        let w: &[u8] = args.read(x_views);
        let y = args.raw(x_views + w_views);
        if x.len() < x_bytes || w.len() < self.w.bytes(m, k).unwrap_or(usize::MAX) || y.bytes < n * m * 4 {
            return Err(format!("a buffer is too small for {n} x {k} times {m} x {k}"));
        }
        let row_bytes = self.w.bytes(1, k).unwrap_or(0);
        Ok(Operands { n, x, scales, w, row_bytes, y: Output { data: y.data.cast(), m } })
    }
}

/// A launch's memory, checked for size.
struct Operands<'a> {
    /// Tokens of this run.
    n: usize,
    /// Activations, or their codes.
    x: &'a [u8],
    /// Scales of the activations' groups.
    scales: &'a [f32],
    /// Packed weights.
    w: &'a [u8],
    /// Bytes of a weight row.
    row_bytes: usize,
    y: Output,
}

impl<'a> Operands<'a> {
    /// The packed weights of a row.
    fn row(&self, row: usize) -> &'a [u8] {
        &self.w[row * self.row_bytes..(row + 1) * self.row_bytes]
    }
}

/// Consecutive packed rows, to be multiplied with a few tokens.
pub(super) struct PackedRows {
    pub first: *const u8,
    pub bytes: usize,
    pub count: usize,
    /// Elements of a row.
    pub k: usize,
    /// Output of the first row and token.
    pub y: *mut f32,
    /// Elements from a token's output to the next.
    pub stride: usize,
    /// The rows, as many, that this worker multiplies next.
    pub next: *const u8,
}

impl PackedRows {
    /// The memory to prefetch while these rows, one per stream, are multiplied: the rows that follow some distance
    /// later or, at the end of this piece, the first rows of the next one.
    #[inline(always)]
    fn ahead<const R: usize>(&self, rows: [usize; R]) -> [*const u8; R] {
        let (row_distance, distance) = (self.row_distance::<R>(), AHEAD.div_ceil(self.bytes));
        let to = rows[0] + distance;
        std::array::from_fn(|j| {
            let (from, to) = if to < row_distance { (self.first, to) } else { (self.next, to - row_distance) };
            from.wrapping_add((to + j * row_distance) * self.bytes)
        })
    }

    /// Rows per stream, which is also the distance of streams.
    fn row_distance<const R: usize>(&self) -> usize {
        self.count.div_ceil(R)
    }

    /// The rows in `R` streams, row by row. If they do not divide evenly, the last row replaces missing ones.
    ///
    /// Rows that are far from each other are read together, which is faster than one after the other, except for Q8_0
    /// on AMD's processors: `benches/history` compares numbers of streams.
    #[inline(always)]
    fn streams<const R: usize>(&self) -> impl Iterator<Item = [usize; R]> + use<R> {
        let (row_distance, last) = (self.row_distance::<R>(), self.count.saturating_sub(1));
        (0..row_distance).map(move |row| std::array::from_fn(|j| (row + j * row_distance).min(last)))
    }
}

/// The output [n, m]; workers write disjoint columns.
#[derive(Clone, Copy)]
struct Output {
    data: *mut f32,
    m: usize,
}

impl Output {
    /// # Safety
    /// The token and the row are in range, and no other worker touches the row's column.
    #[inline]
    unsafe fn set(self, token: usize, row: usize, value: f32) {
        // SAFETY: promised by the caller.
        unsafe { *self.data.add(token * self.m + row) = value }
    }
}

/// Rows of a contiguous piece of work, in multiples of `unit`: few enough that the workers finish together, and at most
/// `most`.
fn piece_rows(m: usize, workers: usize, unit: usize, most: usize) -> usize {
    (m / (workers * 6)).clamp(unit, most.max(unit)) / unit * unit
}

/// Cuts `n` tokens into tiles of at most `most` that differ by at most one.
#[derive(Clone, Copy)]
struct Tiles {
    n: usize,
    count: usize,
}

impl Tiles {
    fn new(n: usize, most: usize) -> Tiles {
        Tiles { n, count: n.div_ceil(most) }
    }

    /// The tokens of a tile.
    fn tile(self, index: usize) -> std::ops::Range<usize> {
        self.n * index / self.count..self.n * (index + 1) / self.count
    }
}

/// The rows of a piece when `m` rows are cut into pieces of `rows`.
fn rows_of(piece: usize, rows: usize, m: usize) -> std::ops::Range<usize> {
    piece * rows..((piece + 1) * rows).min(m)
}

/// The pieces of `rows` of `m` rows that a worker claims, each with the first row of the worker's next piece, or its
/// own if there is none. The next piece is claimed before the current one is computed, so that its memory can be
/// prefetched.
struct Pieces<'a, 'b> {
    worker: &'a Worker<'b>,
    m: usize,
    rows: usize,
    claimed: Option<usize>,
}

impl<'a, 'b> Pieces<'a, 'b> {
    fn new(worker: &'a Worker<'b>, m: usize, rows: usize) -> Pieces<'a, 'b> {
        Pieces { worker, m, rows, claimed: worker.next(m.div_ceil(rows)) }
    }
}

impl Iterator for Pieces<'_, '_> {
    type Item = (std::ops::Range<usize>, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.claimed?;
        self.claimed = self.worker.next(self.m.div_ceil(self.rows));
        Some((rows_of(piece, self.rows, self.m), self.claimed.unwrap_or(piece) * self.rows))
    }
}

/// Consecutive packed rows; rows after the last repeat it, so that a kernel may read as many as it has lanes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Rows {
    first: *const u8,
    bytes: usize,
    last: usize,
}

#[cfg(target_arch = "x86_64")]
impl Rows {
    fn new(first: *const u8, bytes: usize, count: usize) -> Rows {
        Rows { first, bytes, last: count - 1 }
    }

    /// Whether this many rows exist.
    fn whole(self, rows: usize) -> bool {
        self.last + 1 >= rows
    }

    /// Byte `at` of a row; with `WHOLE` the row must exist.
    #[inline(always)]
    fn at<const WHOLE: bool>(self, row: usize, at: usize) -> *const u8 {
        let row = if WHOLE { row } else { row.min(self.last) };
        self.first.wrapping_add(row * self.bytes + at)
    }
}

/// Rows of blocks that are multiplied at once, unless read in one stream.
const STREAMS: usize = 2;
/// Least prefetch distance in bytes of a row when several are read: `benches/history` compares distances on Zen 4.
const AHEAD: usize = 5120;
/// Bytes of a page. A single stream is faster if the first two lines of the next page are prefetched:
/// `benches/history`.
const PAGE: usize = 4096;

/// For a single stream of which `bytes` bytes from `of` are read: prefetches the beginning of the page after. For the
/// rest Zen 4's hardware prefetch alone is better.
#[inline(always)]
fn prefetch_page_after(of: *const u8, bytes: usize) {
    let page = of.addr().wrapping_add(bytes) & !(PAGE - 1);
    if of.addr() < page {
        prefetch_lines(std::ptr::without_provenance::<u8>(page.wrapping_add(PAGE)), 128);
    }
}

/// Prefetches memory into the second-level cache; it need not exist. Packed rows are read side by side, in runs too
/// short for the hardware prefetch. With prefetches into the first level, Zen 4 reads at half the speed.
#[inline(always)]
fn prefetch_lines(from: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        super::simd::prefetch(from.wrapping_add(64 * line));
    }
}
