//! Products of matrices of any strides, in batches: shared by `batch_matmul` and `conv2d`.
//!
//! The left side is interleaved into tiles of a few lines. The right side is interleaved panel by panel by the worker
//! that multiplies it, with the register-blocked kernels of `matmul`. With many small matrices a worker computes a
//! whole batch. Otherwise the left side is packed for all workers first, and they share columns and blocks of lines.
//! With few columns a left side of `f32` is read where it lies: packing it would take longer than it saves.

mod pack;
mod plain;

use std::ops::Range;

use hologram_device::DType;
use hologram_isa::Type;

pub(super) use self::pack::Side;
use super::matmul::float::{Kernels, MultiplyLines, Words, kernels};
use super::narrow::narrow;
use super::simd::{Isa, Simd, simd_entry};
use crate::features::Features;
use crate::kernel::{RawSlice, Worker};

/// Words of a line that are multiplied at a time, so that a panel and a tile stay in the nearest cache.
pub(super) const STEPS: usize = 512;
/// The most panels of a piece of work.
const PANELS: usize = 4;
/// Lines of a block, whose tiles are of about the same size, and the most in a piece of work with a buffer for
/// products.
const BLOCK: usize = 504;
/// The fewest tiles of the left side in a piece of work, if it has to be divided. Several, because each piece packs the
/// panels anew.
const LEAST_TILES: usize = 8;
/// The largest packed left side, in bytes, that each worker packs for itself, and the fewest batches for which it does.
const OWN: usize = 1 << 20;
const BATCHES: usize = 4;
/// The most columns for which a left side of `f32` is not packed: if its lines are consecutive, and if its depths are.
/// These are also of at most [`OWN`] bytes: each step along a line is far from the one before, and larger sides leave
/// the second-level cache.
const COLUMNS_OF_LINES: usize = 1024;
const COLUMNS_OF_DEPTHS: usize = 256;
/// The most lines that pass through the buffer together.
const BUFFER_LINES: usize = 16;

/// A range of the depth: the first element, and how many there are.
pub(super) type Chunk = (usize, usize);

/// The source of the operands, and the use of the products.
pub(super) trait Operands {
    /// The matrix that is the left side of a batch.
    fn left_of(&self, batch: usize) -> usize;

    /// A left matrix as it lies in memory, if the products are to read it there ([`Gemm::reads_lines`]).
    fn lines(&self, _matrix: usize) -> Option<LinesInMemory> {
        None
    }

    /// Interleaves lines of a left matrix.
    ///
    /// # Safety
    /// The processor has the packer's instructions; `to` has room for the words of the chunk for each line.
    unsafe fn pack_left(&self, packer: &mut Packer<'_>, matrix: usize, lines: Range<usize>, chunk: Chunk, to: *mut u8);

    /// Interleaves columns of a batch's right matrix as a panel with room for `packer.rows()` columns.
    ///
    /// # Safety
    /// As [`Operands::pack_left`], with room for a panel.
    unsafe fn pack_right(
        &self,
        packer: &mut Packer<'_>,
        batch: usize,
        columns: Range<usize>,
        chunk: Chunk,
        to: *mut u8,
    );

    /// What is added to the products of every line, before anything else: an `f32` for each of these columns.
    fn bias(&self, _columns: Range<usize>) -> Option<&[f32]> {
        None
    }

    /// Whether products need [`Operands::finish`].
    fn finishes(&self) -> bool;

    /// Turns some products of a line into results, before conversion to the result's format.
    fn finish(&self, isa: Isa, batch: usize, line: usize, columns: Range<usize>, products: Products<'_>);
}

/// A left matrix of `f32` in memory.
#[derive(Clone, Copy)]
pub(super) struct LinesInMemory {
    pub first: *const f32,
    /// As those of [`Side`].
    pub along: bool,
    pub stride: usize,
}

/// The left side of a piece of work.
#[derive(Clone, Copy)]
enum Left {
    Packed(*const u8),
    InMemory(LinesInMemory, MultiplyLines),
}

/// Products of a line, in the type that they are summed in.
pub(super) enum Products<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub batches: usize,
    /// Different left matrices.
    pub lefts: usize,
    /// Lines of the left side and of the result.
    pub n: usize,
    /// Columns of the right side and of the result.
    pub m: usize,
    /// Depth.
    pub k: usize,
}

/// The kernel, for operands of one format.
pub(super) struct Gemm {
    kernels: Kernels,
    words: Words,
    isa: Isa,
    /// Of the result: that of sums, or a narrow float.
    format: DType,
    max: Sizes,
    /// Multiplies a left side where it lies.
    multiply_lines: Option<MultiplyLines>,
}

/// The state of packing: kernels, instruction set and buffer.
pub(super) struct Packer<'a> {
    kernels: Kernels,
    words: Words,
    isa: Isa,
    buffer: &'a mut [f32],
}

impl Packer<'_> {
    /// Columns of a panel.
    pub(super) fn rows(&self) -> usize {
        self.kernels.rows
    }

    /// Whether words are pairs of `bf16`.
    pub(super) fn pairs(&self) -> bool {
        self.words == Words::Bf16Pairs
    }

    /// Words of a line's chunk of this many elements, in whole transposition steps.
    pub(super) fn words_of(&self, len: usize) -> usize {
        len.div_ceil(self.words.elements()).next_multiple_of(4)
    }
}

impl Gemm {
    /// For operands of `format`, of at most these sizes; results are of the same format, or of `i32` for `i8`. `None`
    /// for formats of which it has no products.
    pub(super) fn new(format: DType, max: Sizes, features: Features) -> Option<Gemm> {
        let DType::Plain(ty) = format else { return None };
        let words = match ty {
            Type::BF16 if features.bf16 && features.avx512 => Words::Bf16Pairs,
            Type::F32 | Type::F16 | Type::BF16 => Words::F32,
            Type::I8 => Words::I16Pairs,
            Type::I32 => Words::I32,
            Type::F64 => Words::F64,
            Type::I64 => Words::I64,
            _ => return None,
        };
        let mut kernels = kernels(features).unwrap_or(plain::FLOAT);
        if words.bytes() == 8 {
            (kernels.rows, kernels.transpose) = (kernels.rows / 2, plain::transpose::<u64>);
        }
        let format = if ty == Type::I8 { DType::I32 } else { format };
        Some(Gemm { kernels, words, isa: Isa::widest(features), format, max, multiply_lines: None })
    }

    /// Has the left side read where it lies, if that pays; `along`: whether elements of a line are neighbours.
    pub(super) fn reading_lines(mut self, along: bool) -> Gemm {
        let pays = match along {
            true => self.max.m <= COLUMNS_OF_LINES,
            false => self.max.m <= COLUMNS_OF_DEPTHS && self.left_bytes() <= OWN,
        };
        let f32s = self.words == Words::F32 && self.format == DType::F32;
        self.multiply_lines = self.kernels.multiply_lines.filter(|_| f32s && pays);
        self
    }

    /// Whether [`Operands::lines`] gives the left side.
    pub(super) fn reads_lines(&self) -> bool {
        self.multiply_lines.is_some()
    }

    /// A left matrix where it lies, or what was, or will be, packed at `packed`.
    fn left<O: Operands>(&self, o: &O, matrix: usize, packed: *const u8) -> Left {
        match (o.lines(matrix), self.multiply_lines) {
            (Some(lines), Some(multiply)) => Left::InMemory(lines, multiply),
            _ => Left::Packed(packed),
        }
    }

    /// The format of results.
    pub(super) fn result(&self) -> DType {
        self.format
    }

    /// Whether sums are results.
    fn direct(&self) -> bool {
        self.format.block_bytes() == self.words.bytes()
    }

    /// Words of a line, in whole transposition steps.
    fn words_of(&self, k: usize) -> usize {
        k.div_ceil(self.words.elements()).next_multiple_of(4)
    }

    /// Bytes of a packed left matrix at the maximum sizes.
    fn left_bytes(&self) -> usize {
        self.max.n * self.words_of(self.max.k) * self.words.bytes()
    }

    /// Whether a worker packs the left sides of its batches itself.
    fn own(&self) -> bool {
        self.max.batches >= BATCHES && self.left_bytes() <= OWN
    }

    pub(super) fn phases(&self) -> usize {
        if self.own() || self.reads_lines() { 1 } else { 2 }
    }

    pub(super) fn shared_scratch(&self) -> usize {
        if self.own() || self.reads_lines() { 0 } else { self.max.lefts * self.left_bytes() }
    }

    /// Bytes of the buffer, the panels, and the products of a piece that must be converted before they are stored.
    fn parts(&self) -> [usize; 3] {
        let (columns, word) = (PANELS * self.kernels.rows, self.words.bytes());
        let products = if self.direct() { 0 } else { BLOCK.min(self.max.n) * columns * word };
        [BUFFER_LINES * STEPS * word, columns * STEPS * word, products.next_multiple_of(64)]
    }

    pub(super) fn worker_scratch(&self) -> usize {
        let packed = self.own() && !self.reads_lines();
        self.parts().iter().sum::<usize>() + if packed { self.left_bytes() } else { 0 }
    }

    /// The chunks of a depth. A depth of 0 has one empty chunk, so that products are 0.
    fn chunks(&self, k: usize) -> impl Iterator<Item = Chunk> + use<> {
        let len = STEPS * self.words.elements();
        (0..k.div_ceil(len).max(1)).map(move |i| (i * len, len.min(k - i * len)))
    }

    /// Packs one tile of the left side. `to` is the start of the packed matrix.
    fn pack_tile<O: Operands>(
        &self,
        o: &O,
        packer: &mut Packer<'_>,
        (matrix, lines): (usize, Range<usize>),
        k: usize,
        to: *mut u8,
    ) {
        let mut at = lines.start * self.words_of(k) * self.words.bytes();
        for chunk in self.chunks(k) {
            // SAFETY: the packer is of this processor's instruction set; the matrix has room for all words of each
            // line.
            unsafe { o.pack_left(packer, matrix, lines.clone(), chunk, to.add(at)) };
            at += self.words_of(chunk.1) * lines.len() * self.words.bytes();
        }
    }

    /// This worker's part of a phase; the result, of `format`, is `[batches, n, m]` at `out`.
    ///
    /// # Errors
    /// When `out` is too small.
    pub(super) fn run<O: Operands>(
        &self,
        phase: usize,
        o: &O,
        sizes: Sizes,
        out: RawSlice,
        worker: &mut Worker<'_>,
    ) -> Result<(), String> {
        let Sizes { batches, lefts, n, m, k } = sizes;
        if out.bytes < batches * n * m * self.format.block_bytes() {
            return Err(format!("the result's buffer is too small for {batches} × {n} × {m}"));
        }
        if batches == 0 || n == 0 || m == 0 {
            return Ok(());
        }
        let scratch = std::mem::take(&mut worker.scratch);
        let [buffer, panels, products] = self.parts();
        let (buffer, rest) = scratch.split_at_mut(buffer);
        let (panels, rest) = rest.split_at_mut(panels);
        let (products, own) = rest.split_at_mut(products);
        // SAFETY: any bytes are floats; the scratch is aligned.
        let buffer = unsafe { buffer.align_to_mut::<f32>().1 };
        let mut packer = Packer { kernels: self.kernels, words: self.words, isa: self.isa, buffer };
        let tiles = Tiles { n, most: self.kernels.tokens };
        let (panels, products) = (panels.as_mut_ptr(), products.as_mut_ptr());
        let left_bytes = n * self.words_of(k) * self.words.bytes();
        if self.own() {
            let own = own.as_mut_ptr();
            while let Some(batch) = worker.next(batches) {
                let matrix = o.left_of(batch);
                let left = self.left(o, matrix, own);
                if let Left::Packed(_) = left {
                    for tile in 0..tiles.count() {
                        self.pack_tile(o, &mut packer, (matrix, tiles.tile(tile)), k, own);
                    }
                }
                let per_piece = if self.direct() { tiles.count() } else { BLOCK / tiles.most };
                for first in (0..tiles.count()).step_by(per_piece) {
                    let tiles = first..(first + per_piece).min(tiles.count());
                    for columns in pieces(m, PANELS * self.kernels.rows) {
                        let piece = Piece { batch, tiles: tiles.clone(), columns };
                        self.multiply(o, &mut packer, sizes, &piece, left, panels, products, out);
                    }
                }
            }
            return Ok(());
        }
        let shared = worker.shared_scratch().data;
        if phase == 0 && !self.reads_lines() {
            while let Some(index) = worker.next(lefts * tiles.count()) {
                let (matrix, tile) = (index / tiles.count(), index % tiles.count());
                // SAFETY: the scratch has room for each matrix.
                let to = unsafe { shared.add(matrix * left_bytes) };
                self.pack_tile(o, &mut packer, (matrix, tiles.tile(tile)), k, to);
            }
            return Ok(());
        }
        // As many columns as are multiplied together, or more, and all lines, if those are enough pieces.
        let (least, wanted) = (self.kernels.rows * self.kernels.panels_at_once, worker.count * 4);
        let width = (m * batches / wanted).clamp(least, PANELS * self.kernels.rows) / least * least;
        let across = m.div_ceil(width);
        let down = wanted.div_ceil(across * batches).min(tiles.count() / LEAST_TILES).max(1);
        let most = if self.direct() { usize::MAX } else { BLOCK / tiles.most };
        let per_piece = tiles.count().div_ceil(down).min(most);
        let down = tiles.count().div_ceil(per_piece);
        while let Some(index) = worker.next(batches * down * across) {
            let (line, column) = (index / across, index % across);
            let (batch, first) = (line / down, line % down * per_piece);
            let columns = column * width..((column + 1) * width).min(m);
            let piece = Piece { batch, tiles: first..(first + per_piece).min(tiles.count()), columns };
            let matrix = o.left_of(batch);
            let left = self.left(o, matrix, shared.wrapping_add(matrix * left_bytes));
            self.multiply(o, &mut packer, sizes, &piece, left, panels, products, out);
        }
        Ok(())
    }

    /// Computes a piece of the result.
    #[allow(clippy::too_many_arguments)]
    fn multiply<O: Operands>(
        &self,
        o: &O,
        packer: &mut Packer<'_>,
        Sizes { n, m, k, .. }: Sizes,
        piece: &Piece,
        left: Left,
        panels: *mut u8,
        products: *mut u8,
        out: RawSlice,
    ) {
        let Piece { batch, tiles: of_piece, columns } = piece;
        let (rows, tiles) = (self.kernels.rows, Tiles { n, most: self.kernels.tokens });
        let lines = tiles.tile(of_piece.start).start..tiles.tile(of_piece.end - 1).end;
        let word = self.words.bytes();
        let panel_bytes = STEPS * rows * word;
        let panels_of = || columns.clone().step_by(rows).enumerate();
        let direct = self.direct();
        // The address of line `lines.start` and the first column, and the distance of lines.
        let (to, stride) = if direct {
            (out.data.wrapping_add(((batch * n + lines.start) * m + columns.start) * word), m)
        } else {
            (products, columns.len())
        };
        let mut at = 0;
        for chunk in self.chunks(k) {
            let steps = self.words_of(chunk.1);
            for (p, first) in panels_of() {
                let columns = first..columns.end.min(first + rows);
                // SAFETY: the packer is of this processor's instruction set; the scratch holds the panels of a piece.
                unsafe { o.pack_right(packer, *batch, columns, chunk, panels.add(p * panel_bytes)) };
            }
            let (start, last) = (at == 0, chunk.0 + chunk.1 >= k);
            for index in of_piece.clone() {
                let tile = tiles.tile(index);
                let packed = (tile.start * self.words_of(k) + at * tile.len()) * word;
                let y = to.wrapping_add((tile.start - lines.start) * stride * word);
                for (p, first) in panels_of().step_by(self.kernels.panels_at_once) {
                    let count = (columns.end - first).min(rows * self.kernels.panels_at_once);
                    // SAFETY: the kernel is of this processor's instruction set; the panels were packed before, and so
                    // was the tile, or it lies in the matrix; this worker has claimed the piece.
                    unsafe {
                        let (panel, n) = (panels.add(p * panel_bytes), tile.len());
                        let y = y.add(p * rows * word);
                        match left {
                            Left::InMemory(LinesInMemory { first, along, stride: x_stride }, multiply) => {
                                let (line, depth) = (tile.start, chunk.0);
                                let place = if along { line * x_stride + depth } else { depth * x_stride + line };
                                let x = (first.add(place), along, x_stride);
                                multiply(x, n, chunk.1, panel, panel_bytes, y, stride, count, start);
                            }
                            Left::Packed(left) => {
                                let (words, tile) = (self.words, left.add(packed));
                                let multiply = self.kernels.multiply;
                                multiply(words, n, steps, panel, panel_bytes, tile, y, stride, count, start);
                            }
                        }
                    }
                }
                if let Some(bias) = o.bias(columns.clone()).filter(|_| last) {
                    // SAFETY: the tile's products were stored above, as `f32` where there is such a bias; this worker
                    // has claimed them.
                    let lines = unsafe { Lines::new(y.cast(), stride, tile.len(), bias.len()) };
                    add_to_lines(self.isa, bias, lines);
                }
                if last && (o.finishes() || !direct) {
                    for line in tile.clone() {
                        let y = to.wrapping_add((line - lines.start) * stride * word);
                        if o.finishes() {
                            // SAFETY: the line's products were stored above.
                            let products = unsafe { self.products(y, columns.len()) };
                            o.finish(self.isa, *batch, line, columns.clone(), products);
                        }
                        if !direct {
                            let to = out.data.cast::<u16>().wrapping_add((batch * n + line) * m + columns.start);
                            // SAFETY: the line's products were stored above; narrow floats are summed in `f32`.
                            let y = unsafe { std::slice::from_raw_parts(y.cast::<f32>(), columns.len()) };
                            // SAFETY: the elements lie in the result, and this worker has claimed them.
                            narrow(self.isa, self.format, y, unsafe {
                                std::slice::from_raw_parts_mut(to, columns.len())
                            });
                        }
                    }
                }
            }
            at += steps;
        }
    }

    /// Products that lie at `y`.
    ///
    /// # Safety
    /// `count` sums lie there, which nobody else accesses while the result lives.
    unsafe fn products<'a>(&self, y: *mut u8, count: usize) -> Products<'a> {
        // SAFETY: promised by the caller.
        unsafe {
            match self.words {
                Words::F32 | Words::Bf16Pairs => Products::F32(std::slice::from_raw_parts_mut(y.cast(), count)),
                Words::I32 | Words::I16Pairs => Products::I32(std::slice::from_raw_parts_mut(y.cast(), count)),
                Words::F64 => Products::F64(std::slice::from_raw_parts_mut(y.cast(), count)),
                Words::I64 => Products::I64(std::slice::from_raw_parts_mut(y.cast(), count)),
            }
        }
    }
}

/// Some columns of lines, which are the owner's alone; what lies between them may be others'.
struct Lines {
    first: *mut f32,
    stride: usize,
    count: usize,
    columns: usize,
}

impl Lines {
    /// # Safety
    /// The columns of the lines, of which one begins `stride` after the other, exist and nobody else accesses them.
    unsafe fn new(first: *mut f32, stride: usize, count: usize, columns: usize) -> Lines {
        Lines { first, stride, count, columns }
    }
}

simd_entry! {
    /// Adds a row to lines.
    fn add_to_lines(row: &[f32], to: Lines) = add_to_lines_with
}

#[inline(always)]
fn add_to_lines_with<S: Simd>(_: S, row: &[f32], to: Lines) {
    for i in 0..to.count {
        let first = to.first.wrapping_add(i * to.stride);
        // SAFETY: promised to `Lines::new`.
        let line = unsafe { std::slice::from_raw_parts_mut(first, to.columns) };
        line.iter_mut().zip(row).for_each(|(y, x)| *y += *x);
    }
}

/// Lines in tiles of at most `most`, which divides [`BLOCK`]; the sizes of a block's tiles differ by at most one.
#[derive(Clone, Copy)]
struct Tiles {
    n: usize,
    most: usize,
}

impl Tiles {
    /// The number of tiles.
    fn count(self) -> usize {
        self.of(self.n) + (self.n % BLOCK).div_ceil(self.most)
    }

    /// The first tile of the block that begins, or would begin, with a line.
    fn of(self, line: usize) -> usize {
        line / BLOCK * (BLOCK / self.most)
    }

    /// The lines of a tile.
    fn tile(self, index: usize) -> Range<usize> {
        let (block, index) = (index / (BLOCK / self.most), index % (BLOCK / self.most));
        let len = BLOCK.min(self.n - block * BLOCK);
        let (count, first) = (len.div_ceil(self.most), block * BLOCK);
        first + len * index / count..first + len * (index + 1) / count
    }
}

/// A part of the result: the lines of some tiles, at least one, and some columns.
struct Piece {
    batch: usize,
    tiles: Range<usize>,
    columns: Range<usize>,
}

fn pieces(m: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..m).step_by(width).map(move |first| first..(first + width).min(m))
}
