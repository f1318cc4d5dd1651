//! Some tokens times rows that are read where they lie: neither transposed nor unpacked, which would take as long as
//! the products with a few tokens.
//!
//! Tokens are packed in tiles, so that a tile's vectors follow each other. A chunk of a tile stays in the nearest cache
//! while it is multiplied with a piece of the rows; the sums of all lanes are kept until the last chunk.

use super::super::{Operands, Pieces, Tiles, piece_rows};
use super::{Element, FloatMatmul, Words, element};
use crate::kernel::Worker;

/// Multiplies rows with a tile of tokens: (words, the rows' type, tokens, the memory).
pub type InPlace = unsafe fn(Words, Element, usize, &Product);

/// The kernels of an instruction set.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// The most tokens of a tile.
    pub tokens: usize,
    /// Bytes of a vector.
    pub vector: usize,
    pub multiply: InPlace,
    /// Adds up lanes: (sums, tokens, rows, output of the first, its stride).
    pub totals: unsafe fn(*const f32, usize, usize, *mut f32, usize),
}

/// Some vectors of some rows, times those of a tile.
pub struct Product {
    /// The first vector of the first row.
    pub first: *const u8,
    /// Bytes of a row.
    pub bytes: usize,
    /// Rows.
    pub count: usize,
    /// Distance in bytes of what is prefetched meanwhile, wrapping.
    pub ahead: usize,
    pub tile: *const u8,
    /// Vectors of activations.
    pub steps: usize,
    /// A vector of sums for each row and token, with room for some more rows: kernels may multiply the last one again.
    pub sums: *mut f32,
    /// Whether the sums begin here.
    pub fresh: bool,
}

/// Vectors of a chunk.
const STEPS: usize = 32;
/// Rows of a piece, a multiple of those that kernels multiply at once.
const ROWS: usize = 48;
/// Rows that a tile has sums for: kernels may multiply the last one some more times.
const SUMS: usize = ROWS + 5;
/// The most tokens: for more, panels take less time. `benches/history` compares both.
const MOST: usize = 32;

impl FloatMatmul {
    /// The kernels for a run of `n` tokens, if rows are then read in place.
    pub(super) fn in_place(&self, n: usize) -> Option<(Kernels, Element)> {
        let kernels = self.kernels?.in_place?;
        let same = self.words == Words::Bf16Pairs || self.problem.x.format == hologram_device::DType::F32;
        let whole = (self.problem.k * 4 / self.per_word()).is_multiple_of(kernels.vector);
        let served = n <= MOST && same && whole && !self.problem.is_independent();
        served.then_some((kernels, element(self.problem.w)?))
    }

    /// Bytes of a worker's sums.
    pub(super) fn sums_bytes(&self) -> usize {
        let n = self.problem.x.max_rows().min(MOST);
        self.in_place(n).map_or(0, |(kernels, _)| SUMS * n * kernels.vector)
    }

    /// Packs tokens by vectors.
    pub(super) fn pack_vectors(&self, kernels: &Kernels, o: &Operands<'_>, worker: &Worker<'_>) {
        let (bytes, len) = (self.x_row_bytes(), kernels.vector);
        let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
        while let Some(tile) = worker.next(tiles.count) {
            let tokens = tiles.tile(tile);
            for (i, token) in tokens.clone().enumerate() {
                for (v, vector) in o.x[token * bytes..(token + 1) * bytes].chunks_exact(len).enumerate() {
                    // SAFETY: the shared scratch holds every token's vectors; tiles are disjoint.
                    unsafe {
                        let to = packed.add(tokens.start * bytes + (v * tokens.len() + i) * len);
                        std::ptr::copy_nonoverlapping(vector.as_ptr(), to, len);
                    }
                }
            }
        }
    }

    pub(super) fn rows_in_place(
        &self,
        (kernels, element): (Kernels, Element),
        o: &Operands<'_>,
        worker: &mut Worker<'_>,
    ) {
        let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
        let scratch = std::mem::take(&mut worker.scratch);
        let sums = scratch.as_mut_ptr().cast::<f32>();
        let (bytes, lanes) = (self.x_row_bytes(), kernels.vector / 4);
        let vectors = bytes / kernels.vector;
        // Bytes of a row that a vector of activations belongs to.
        let row_vector = o.row_bytes / vectors;
        let rows = piece_rows(o.y.m, worker.count, 12, ROWS);
        for (rows, next) in Pieces::new(worker, o.y.m, rows) {
            let first = o.row(rows.start).as_ptr();
            for from in (0..vectors).step_by(STEPS) {
                let steps = STEPS.min(vectors - from);
                let ahead = if from + steps < vectors {
                    steps * row_vector
                } else {
                    (next.wrapping_sub(rows.start) * o.row_bytes).wrapping_sub(from * row_vector)
                };
                for tile in 0..tiles.count {
                    let tokens = tiles.tile(tile);
                    // SAFETY: the kernel is of this processor's instruction set; the rows and the packed tile exist;
                    // the scratch has room for the sums.
                    unsafe {
                        let tile = packed.add(tokens.start * bytes + from * tokens.len() * kernels.vector);
                        let product = Product {
                            first: first.add(from * row_vector),
                            bytes: o.row_bytes,
                            count: rows.len(),
                            ahead,
                            tile,
                            steps,
                            sums: sums.add(tokens.start * SUMS * lanes),
                            fresh: from == 0,
                        };
                        (kernels.multiply)(self.words, element, tokens.len(), &product);
                    }
                }
            }
            for tile in 0..tiles.count {
                let tokens = tiles.tile(tile);
                // SAFETY: as above; this worker has claimed the rows' columns of the output.
                unsafe {
                    let y = o.y.data.add(tokens.start * o.y.m + rows.start);
                    let sums = sums.add(tokens.start * SUMS * lanes);
                    (kernels.totals)(sums, tokens.len(), rows.len(), y, o.y.m);
                }
            }
        }
    }
}
