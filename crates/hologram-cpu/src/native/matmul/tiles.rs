//! Products of many tokens in `bf16` on AMX tiles: 16 × 32 times 32 × 16 elements per instruction.
//!
//! `f32` tokens times `f32`, `f16` or `bf16` weights are as exact as in `f32`, by products of their [`parts`], unless
//! numbers are below 2⁻¹¹⁰, whose last parts count as zero. A result that involves an infinity may be NaN; with `f32`
//! weights NaNs are computed again in `f32`. Five products per `f32` product are still several times as fast, and six
//! faster.
//!
//! Tokens are copied into tiles once. A piece of work is some panels of 16 weight rows. A chunk of their elements is
//! dequantized to `bf16` and interleaved, then multiplied with all tokens' tiles, two by two. The sums stay in the
//! worker's memory until the last chunk, which stores whole tiles to the output.

use std::arch::asm;
use std::ops::Range;
use std::sync::Arc;

use hologram_device::DType;

use super::decode::{Decode, decoder};
use super::plain::dot_f32;
use super::{NativeKernel, Operands, Problem, parts};
use crate::features::Features;
use crate::kernel::{Args, Worker};

/// The kernel for `bf16` tokens with `bf16` or quantised weights, and for `f32` tokens with weights of floats.
pub struct TileMatmul {
    problem: Problem,
    /// The dequantizer of each part of the weights; `None` if they are `bf16`.
    weights: Vec<Option<Decode>>,
    /// The pairs of parts, of tokens and of weights, that are multiplied; of `f32` weights the first, see [`six`].
    products: &'static [(usize, usize)],
}

/// Rows and columns of a tile.
const SIDE: usize = 16;
/// Elements of a tile's row.
const DEPTH: usize = 32;
/// Bytes of a tile.
const TILE: usize = 1024;
/// Elements of a row that are multiplied at a time, if it has more than [`WHOLE`].
const CHUNK: usize = 512;
/// The same if tokens have several parts.
const CHUNK_OF_PARTS: usize = 128;
/// Bytes of a panel's chunk of a part, and panels of a piece, of `f32` weights.
const SIX_PANEL: usize = CHUNK_OF_PARTS * SIDE * 2;
const SIX_PANELS: usize = 32;
/// The longest rows that are multiplied whole, so that sums need no memory.
const WHOLE: usize = 768;
/// Bytes of a piece's panels, at most.
const PANELS_BYTES: usize = 384 << 10;
/// The most pairs of parts.
const MOST_PRODUCTS: usize = 5;
/// Bytes of the sums of two tiles of tokens and two panels: 32 rows of 32 values.
const SUMS: usize = 4 * TILE;
/// Bytes of a row of these sums.
const SUM_ROW: usize = SUMS / (2 * SIDE);
/// The fewest tokens for which tiles pay.
pub const FEWEST: usize = 8;
/// The same with `f32` weights, and their shortest rows: a training step of a small GPT-2, whose rows of 128 and 512
/// were split into parts in each step, took 1.04 of the time so.
const FEWEST_F32: usize = 64;
const SHORTEST_F32: usize = 768;

impl TileMatmul {
    pub fn find(problem: &Problem, features: Features) -> Option<Arc<dyn NativeKernel>> {
        let (fewest, shortest) = if problem.w == DType::F32 { (FEWEST_F32, SHORTEST_F32) } else { (FEWEST, DEPTH) };
        let whole = problem.k.is_multiple_of(DEPTH) && problem.k >= shortest;
        let served = features.amx && whole && problem.x.max_rows() >= fewest;
        if !served {
            return None;
        }
        // Products of parts that are below the precision of `f32` are left out.
        let (weights, products): (_, &[_]) = match (problem.x.format, problem.w) {
            (DType::BF16, DType::BF16) => (vec![None], &[(0, 0)]),
            (DType::BF16, w) => (vec![Some(decoder(w, problem.k)?)], &[(0, 0)]),
            (DType::F32, DType::BF16) => (vec![None], &[(2, 0), (1, 0), (0, 0)]),
            (DType::F32, DType::F16) => {
                let parts: [Decode; 2] = [parts::of_f16::<0>, parts::of_f16::<1>];
                (parts.map(Some).to_vec(), &[(2, 0), (1, 1), (1, 0), (0, 1), (0, 0)])
            }
            (DType::F32, DType::F32) => {
                let parts: [Decode; 3] = [parts::of_row::<0>, parts::of_row::<1>, parts::of_row::<2>];
                (parts.map(Some).to_vec(), &[(0, 0)])
            }
            _ => return None,
        };
        Some(Arc::new(TileMatmul { problem: problem.clone(), weights, products }))
    }

    /// Parts of the tokens.
    fn token_parts(&self) -> usize {
        if self.problem.x.format == DType::F32 { 3 } else { 1 }
    }

    /// Bytes of a packed tile of tokens: for each step of depth a tile of each part.
    fn packed_bytes(&self) -> usize {
        self.token_parts() * SIDE * self.problem.k * 2
    }

    /// Tiles of tokens, an even number.
    fn token_tiles(n: usize) -> usize {
        n.div_ceil(2 * SIDE) * 2
    }

    /// Copies tokens into tiles. Each tile has 16 tokens and 32 elements, a row of 64 bytes per token;
    /// rows without a token are 0.
    fn pack(&self, o: &Operands<'_>, worker: &Worker<'_>) {
        let (k, to) = (self.problem.k, worker.shared_scratch().data);
        let (row, parts, tile_bytes) = (k * 2, self.token_parts(), self.packed_bytes());
        while let Some(tile) = worker.next(Self::token_tiles(o.n)) {
            if self.in_place() && (tile / 2 + 1) * 2 * SIDE <= o.n {
                continue;
            }
            if self.token_parts() == 1 && (tile + 1) * SIDE <= o.n {
                // SAFETY: all tokens of the tile exist, and it lies in the shared scratch; AMX comes with AVX-512.
                unsafe { pack_whole(o.x.as_ptr().add(tile * SIDE * row), row, to.add(tile * SIDE * row)) };
                continue;
            }
            for r in 0..SIDE {
                let token = tile * SIDE + r;
                for step in 0..k / DEPTH {
                    // SAFETY: the shared scratch holds the tiles of the maximum number of tokens; the token's elements
                    // exist; AMX comes with AVX-512.
                    unsafe {
                        let to = to.add(tile * tile_bytes + step * parts * TILE + r * 64);
                        if token >= o.n {
                            (0..parts).for_each(|part| to.add(part * TILE).write_bytes(0, 64));
                        } else if parts == 1 {
                            std::ptr::copy_nonoverlapping(o.x.as_ptr().add(token * row + step * 64), to, 64);
                        } else {
                            parts::of_f32(o.x.as_ptr().cast::<f32>().add(token * k + step * DEPTH), to, TILE);
                        }
                    }
                }
            }
        }
    }

    /// Dequantizes and interleaves a chunk of a part of a panel's rows, of which `count` exist.
    ///
    /// # Safety
    /// The processor has AVX-512 BF16; `buffer` holds 16 dequantized rows and `to` a panel's chunk.
    unsafe fn panel(
        &self,
        o: &Operands<'_>,
        part: usize,
        (first, count): (usize, usize),
        chunk: (usize, usize),
        buffer: *mut u8,
        to: *mut u8,
    ) {
        let (from, len) = chunk;
        // SAFETY: promised by the caller; the rows exist.
        unsafe {
            let (rows, bytes) = match self.weights[part] {
                Some(decode) => {
                    let bytes = decoded(self.chunk());
                    for r in 0..count {
                        decode(o.row(first + r).as_ptr(), from, len, buffer.add(r * bytes).cast());
                    }
                    (buffer.cast_const(), bytes)
                }
                None => (o.row(first).as_ptr().add(from * 2), o.row_bytes),
            };
            (super::avx512::FLOAT.transpose)(rows, bytes, count, len / 2, SIDE, to);
        }
    }

    /// Elements of a row that are multiplied at a time: two tiles of tokens stay in the nearest cache.
    fn chunk(&self) -> usize {
        let k = self.problem.k;
        match self.token_parts() {
            1 if k <= WHOLE => k,
            1 => CHUNK,
            _ => CHUNK_OF_PARTS,
        }
    }

    /// Panels of a piece, at most: their chunk stays in the second-level cache.
    fn most_panels(&self) -> usize {
        if self.problem.w == DType::F32 {
            return SIX_PANELS;
        }
        (PANELS_BYTES / (self.weights.len() * self.panel_bytes())).max(2) / 2 * 2
    }

    /// Bytes of a part of a panel's chunk.
    fn panel_bytes(&self) -> usize {
        self.chunk() * SIDE * 2
    }

    /// Whether full pairs of tiles of tokens are loaded from the operand itself, without a copy. Rows that are multiplied
    /// whole are dense, so that they spread evenly over the sets of the L1 cache.
    fn in_place(&self) -> bool {
        self.token_parts() == 1 && self.chunk() == self.problem.k
    }

    fn multiply(&self, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (k, m) = (self.problem.k, self.problem.m);
        let (tiles, packed) = (Self::token_tiles(o.n), worker.shared_scratch().data);
        let (chunk, panel_bytes, most) = (self.chunk(), self.panel_bytes(), self.most_panels());
        let scratch = worker.scratch.as_mut_ptr();
        // SAFETY: the scratch holds dequantized rows, panels, and a tile for each tile of tokens and panel.
        let (buffer, panels, sums) = unsafe {
            let panels = scratch.add(SIDE * decoded(chunk));
            (scratch, panels, panels.add(self.weights.len() * most * panel_bytes))
        };
        let count = (m.div_ceil(SIDE) / (worker.count * 2)).clamp(2, most) / 2 * 2;
        let mut configured = false;
        while let Some(piece) = worker.next(m.div_ceil(SIDE * count)) {
            if !configured {
                configure();
                configured = true;
            }
            let rows = piece * count * SIDE..((piece + 1) * count * SIDE).min(m);
            // An even number of panels; a panel without rows repeats the one before it.
            let panels_here = rows.len().div_ceil(SIDE).next_multiple_of(2);
            for from in (0..k).step_by(chunk) {
                let len = chunk.min(k - from);
                for (part, p) in (0..self.weights.len()).flat_map(|part| (0..panels_here).map(move |p| (part, p))) {
                    let first = (rows.start + p * SIDE).min((rows.end - 1) / SIDE * SIDE);
                    let existing = (rows.end - first).min(SIDE);
                    // SAFETY: the rows exist; the scratch has room for what is written; AMX comes with AVX-512.
                    unsafe {
                        let to = panels.add((part * most + p) * panel_bytes);
                        self.panel(o, part, (first, existing), (from, len), buffer, to);
                    }
                }
                let last_chunk = from + len == k;
                for pair in 0..tiles / 2 {
                    let token = pair * 2 * SIDE;
                    let whole_tokens = token + 2 * SIDE <= o.n;
                    for p in (0..panels_here).step_by(2) {
                        let first = rows.start + p * SIDE;
                        let whole = last_chunk && whole_tokens && first + 2 * SIDE <= rows.end;
                        // SAFETY: the tiles, panels and sums lie in the scratch memories, and tokens that are read in
                        // place exist; tiles are configured. If all tokens and rows of the sums exist, they lie in the
                        // output, and this worker has claimed the rows.
                        unsafe {
                            let (x, x_row, x_step) = if self.in_place() && whole_tokens {
                                (o.x.as_ptr().add(token * k * 2), k * 2, DEPTH * 2)
                            } else {
                                let (tile, step) = (token / SIDE, self.token_parts() * TILE);
                                let at = tile * self.packed_bytes() + from / DEPTH * step;
                                (packed.add(at).cast_const(), DEPTH * 2, step)
                            };
                            let sum = sums.add((pair * most + p) / 2 * SUMS);
                            let mut pairs = [(x, panels.cast_const()); MOST_PRODUCTS];
                            for (pair, (of_x, of_w)) in pairs.iter_mut().zip(self.products) {
                                let w = panels.add((of_w * most + p) * panel_bytes);
                                *pair = (x.add(of_x * TILE), w.cast_const());
                            }
                            let y = (o.y.data.add(token * m + first).cast(), m * 4);
                            let (to, to_row) = if whole { y } else { (sum, SUM_ROW) };
                            let operands = Four {
                                from: if from == 0 { std::ptr::null() } else { sum },
                                from_row: SUM_ROW,
                                to,
                                to_row,
                                steps: len / DEPTH,
                                pairs: pairs.as_ptr(),
                                end: pairs.as_ptr().add(self.products.len()),
                                x_apart: self.packed_bytes(),
                                w_apart: panel_bytes,
                                x_row,
                                x_step,
                            };
                            if self.problem.w == DType::F32 {
                                six(&operands)
                            } else {
                                four(&operands)
                            }
                            if self.problem.w == DType::F32 && whole {
                                nan_again(o, token..token + 2 * SIDE, first..first + 2 * SIDE);
                            }
                            if last_chunk && !whole {
                                for r in 0..(2 * SIDE).min(o.n.saturating_sub(token)) {
                                    let count = (rows.end - first).min(2 * SIDE);
                                    let from = sum.add(r * SUM_ROW).cast::<f32>();
                                    let to = o.y.data.add((token + r) * m + first);
                                    std::ptr::copy_nonoverlapping(from, to, count);
                                }
                                if self.problem.w == DType::F32 {
                                    let (tokens, end) = (o.n.min(token + 2 * SIDE), rows.end.min(first + 2 * SIDE));
                                    nan_again(o, token..tokens, first..end);
                                }
                            }
                        }
                    }
                }
            }
        }
        if configured {
            release();
        }
    }
}

/// Computes the NaNs among the results of these tokens and rows again, in `f32`.
///
/// # Safety
/// The tokens and rows exist, both are of `f32`, and no other worker touches the rows' columns. The processor has
/// AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn nan_again(o: &Operands<'_>, tokens: Range<usize>, rows: Range<usize>) {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    for token in tokens {
        // SAFETY: promised by the caller.
        let y = unsafe { std::slice::from_raw_parts_mut(o.y.data.add(token * o.y.m + rows.start), rows.len()) };
        if y.iter().fold(false, |any, y| any | y.is_nan()) {
            let x = floats(&o.x[token * o.row_bytes..(token + 1) * o.row_bytes]);
            for (row, y) in rows.clone().zip(y).filter(|(_, y)| y.is_nan()) {
                *y = dot_f32(&x, &floats(o.row(row)));
            }
        }
    }
}

/// Bytes from a dequantized row to the next: rows whose distance is a power of two would share few sets of a cache.
fn decoded(chunk: usize) -> usize {
    chunk * 2 + 64
}

impl NativeKernel for TileMatmul {
    fn phases(&self) -> usize {
        2
    }

    fn shared_scratch(&self) -> usize {
        Self::token_tiles(self.problem.x.max_rows()) * self.packed_bytes()
    }

    fn worker_scratch(&self) -> usize {
        let (panels, tiles) = (self.most_panels(), Self::token_tiles(self.problem.x.max_rows()));
        SIDE * decoded(self.chunk()) + self.weights.len() * panels * self.panel_bytes() + tiles * panels * TILE
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let o = self.problem.operands(args)?;
        if phase == 0 {
            self.pack(&o, worker);
        } else if o.n > 0 {
            self.multiply(&o, worker);
        }
        Ok(())
    }
}

/// Copies 16 tokens of `row` bytes each into tiles, one after the other.
///
/// # Safety
/// The processor has AVX-512; the tokens can be read, and as many bytes written.
#[target_feature(enable = "avx512f")]
unsafe fn pack_whole(from: *const u8, row: usize, to: *mut u8) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_storeu_si512};
    for step in 0..row / 64 {
        for r in 0..SIDE {
            // SAFETY: promised by the caller.
            unsafe {
                let elements = _mm512_loadu_si512(from.add(r * row + step * 64).cast());
                _mm512_storeu_si512(to.add(step * TILE + r * 64).cast(), elements);
            }
        }
    }
}

/// Configures all tiles as 16 rows of 64 bytes, until [`release`]. The configuration belongs to the thread; the
/// compiler neither uses nor changes it.
fn configure() {
    let mut config = [0u8; 64];
    config[0] = 1;
    for tile in 0..8 {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    // SAFETY: the kernel was chosen by `Features` with AMX, which the processor then has; the 64 bytes are a valid
    // configuration.
    unsafe {
        asm!(
            "ldtilecfg [{}]",
            in(reg) config.as_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Releases the tiles, so that the system need not save their content.
fn release() {
    // SAFETY: the processor has AMX, as in `configure`.
    unsafe {
        asm!(
            "tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem, preserves_flags)
        );
    }
}

/// The operands of [`four`] and [`six`]; the assembly knows the fields' order.
#[repr(C)]
struct Four {
    /// The sums to add to, 32 rows of 32 values; null: zeros.
    from: *const u8,
    /// Bytes from a row of sums to the next.
    from_row: usize,
    to: *mut u8,
    to_row: usize,
    /// Tiles of depth, at least 1.
    steps: usize,
    /// The first tile of tokens and the first panel, from here to `end`, at least one.
    pairs: *const (*const u8, *const u8),
    end: *const (*const u8, *const u8),
    /// Bytes from the first tile of tokens to the second.
    x_apart: usize,
    /// Bytes from the first panel to the second.
    w_apart: usize,
    /// Bytes from a token of a tile to the next.
    x_row: usize,
    /// Bytes from a tile to the next in depth.
    x_step: usize,
}

/// Defines a function that multiplies two tiles of tokens with two panels, adds to sums and stores them; `body` does so
/// with sums in tiles 0 to 3, where the first tile of tokens is at `pair`, and the first panel 8 bytes behind.
///
/// The tokens' tiles are to stay in the nearest cache while panels pass through it, which the hint of `tileloaddt1`
/// gives: without it, chunks that are longer than a third of that cache evict each other.
macro_rules! products {
    ($(#[$doc:meta])* $name:ident: $($body:literal),* ; $($operands:tt)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The processor has AMX and its tiles are configured; the named memory exists.
        unsafe fn $name(operands: &Four) {
            // SAFETY: promised by the caller. The tile registers are declared as overwritten, and hold nothing from one
            // block to the next.
            unsafe {
                asm!(
                    "mov {a}, [{o}]",
                    "test {a}, {a}",
                    "jnz 2f",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "jmp 3f",
                    "2:",
                    "mov {n}, [{o} + 8]",
                    "tileloadd tmm0, [{a} + {n}]",
                    "tileloadd tmm1, [{a} + {n} + 64]",
                    "mov {x}, {n}",
                    "shl {x}, 4",
                    "add {a}, {x}",
                    "tileloadd tmm2, [{a} + {n}]",
                    "tileloadd tmm3, [{a} + {n} + 64]",
                    "3:",
                    "mov {pair}, [{o} + 40]",
                    "mov {x_row}, [{o} + 72]",
                    "mov {x_step}, [{o} + 80]",
                    "4:",
                    "mov {x}, [{pair}]",
                    "mov {w}, [{pair} + 8]",
                    "mov {x_2}, [{o} + 56]",
                    "add {x_2}, {x}",
                    "mov {w_2}, [{o} + 64]",
                    "add {w_2}, {w}",
                    "mov {n}, [{o} + 32]",
                    $($body,)*
                    "mov {a}, [{o} + 16]",
                    "mov {n}, [{o} + 24]",
                    "tilestored [{a} + {n}], tmm0",
                    "tilestored [{a} + {n} + 64], tmm1",
                    "mov {x}, {n}",
                    "shl {x}, 4",
                    "add {a}, {x}",
                    "tilestored [{a} + {n}], tmm2",
                    "tilestored [{a} + {n} + 64], tmm3",
                    o = in(reg) operands, s = in(reg) 64usize,
                    a = out(reg) _, n = out(reg) _, pair = out(reg) _, x_row = out(reg) _, x_step = out(reg) _,
                    x = out(reg) _, x_2 = out(reg) _, w = out(reg) _, w_2 = out(reg) _,
                    $($operands)*
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}

products! {
    /// The products of each of the pairs.
    four:
    "5:",
    "tileloadd tmm4, [{x} + {x_row}]",
    "tileloaddt1 tmm6, [{w} + {s}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tileloaddt1 tmm7, [{w_2} + {s}]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{x_2} + {x_row}]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "add {x}, {x_step}",
    "add {x_2}, {x_step}",
    "add {w}, 1024",
    "add {w_2}, 1024",
    "dec {n}",
    "jnz 5b",
    "add {pair}, 16",
    "cmp {pair}, [{o} + 48]",
    "jne 4b";
}

products! {
    /// The six products of three parts of tokens, and three of weights. Tiles of weights come from the second-level
    /// cache once, and of 24 tiles that products read 16 are loaded.
    six:
    "5:",
    "tileloadd tmm4, [{x} + {s} + 2048]",
    "tileloaddt1 tmm6, [{w} + {s}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tileloaddt1 tmm7, [{w_2} + {s}]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{x_2} + {s} + 2048]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm4, [{x} + {s} + 1024]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{x_2} + {s} + 1024]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm4, [{x} + {s}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{x_2} + {s}]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloaddt1 tmm6, [{w} + {s} + {part}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tileloaddt1 tmm7, [{w_2} + {s} + {part}]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm4, [{x} + {s} + 1024]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{x_2} + {s} + 1024]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm4, [{x} + {s}]",
    "tileloaddt1 tmm6, [{w} + {s} + 2 * {part}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tileloaddt1 tmm7, [{w_2} + {s} + 2 * {part}]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{x_2} + {s}]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "add {x}, {x_step}",
    "add {x_2}, {x_step}",
    "add {w}, 1024",
    "add {w_2}, 1024",
    "dec {n}",
    "jnz 5b";
    part = const SIX_PANELS * SIX_PANEL,
}
