//! Products of many tokens in `bf16` on AMX tiles: 16 × 32 times 32 × 16 elements per instruction.
//!
//! `f32` tokens times `f16` or `bf16` weights are as exact as in `f32`, by products of their [`parts`]. A result that
//! involves an infinity may be NaN. Even with five products per `f32` product this is several times as fast.
//!
//! Tokens are copied into tiles once. A piece of work is some panels of 16 weight rows. A chunk of their elements is
//! dequantized to `bf16` and interleaved, then multiplied with all tokens' tiles, two by two. The sums stay in the
//! worker's memory until the last chunk, which stores whole tiles to the output.

use std::arch::asm;
use std::sync::Arc;

use hologram_device::DType;

use super::decode::{Decode, decoder};
use super::{NativeKernel, Operands, Problem, parts, prefetch_lines};
use crate::features::Features;
use crate::kernel::{Args, Worker};

/// The kernel for `bf16` tokens with `bf16` or quantised weights, and for `f32` tokens with `f16` or `bf16` weights.
pub struct TileMatmul {
    problem: Problem,
    /// The dequantizer of each part of the weights; `None` if they are `bf16`.
    weights: Vec<Option<Decode>>,
    /// The pairs of parts, of tokens and of weights, that are multiplied.
    products: &'static [(usize, usize)],
}

/// Rows and columns of a tile.
const SIDE: usize = 16;
/// Elements of a tile's row.
const DEPTH: usize = 32;
/// Bytes of a tile.
const TILE: usize = 1024;
/// Elements of a row that are multiplied at a time.
const CHUNK: usize = 256;
/// Panels of a piece.
const PANELS: usize = 8;
/// Bytes of the sums of two tiles of tokens and two panels: 32 rows of 32 values.
const SUMS: usize = 4 * TILE;
/// Bytes of a row of these sums.
const SUM_ROW: usize = SUMS / (2 * SIDE);
/// Bytes of a panel's chunk.
const PANEL: usize = CHUNK * SIDE * 2;
/// Bytes from a dequantized row to the next: rows whose distance is a power of two would share few sets of a cache.
const DECODED: usize = CHUNK * 2 + 64;
/// The fewest tokens for which tiles pay.
pub const FEWEST: usize = 8;

impl TileMatmul {
    pub fn find(problem: &Problem, features: Features) -> Option<Arc<dyn NativeKernel>> {
        let served = features.amx && problem.k.is_multiple_of(DEPTH) && problem.x.max_rows() >= FEWEST;
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
            _ => return None,
        };
        Some(Arc::new(TileMatmul { problem: problem.clone(), weights, products }))
    }

    /// Parts of the tokens.
    fn token_parts(&self) -> usize {
        if self.problem.x.format == DType::F32 { 3 } else { 1 }
    }

    /// Bytes of a piece's panels.
    fn panel_bytes(&self) -> usize {
        self.weights.len() * PANELS * PANEL
    }

    /// Bytes of a part of all packed tokens.
    fn part_bytes(&self, n: usize) -> usize {
        Self::token_tiles(n) * SIDE * self.problem.k * 2
    }

    /// Tiles of tokens, an even number.
    fn token_tiles(n: usize) -> usize {
        n.div_ceil(2 * SIDE) * 2
    }

    /// Copies tokens into tiles, part by part. Each tile has 16 tokens and 32 elements, a row of 64 bytes per token;
    /// rows without a token are 0.
    fn pack(&self, o: &Operands<'_>, worker: &Worker<'_>) {
        let (k, to) = (self.problem.k, worker.shared_scratch().data);
        let (row, part) = (k * 2, self.part_bytes(o.n));
        while let Some(tile) = worker.next(Self::token_tiles(o.n)) {
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
                        let to = to.add(tile * SIDE * row + step * TILE + r * 64);
                        if token >= o.n {
                            (0..self.token_parts()).for_each(|p| to.add(p * part).write_bytes(0, 64));
                        } else if self.token_parts() == 1 {
                            std::ptr::copy_nonoverlapping(o.x.as_ptr().add(token * row + step * 64), to, 64);
                        } else {
                            parts::of_f32(o.x.as_ptr().cast::<f32>().add(token * k + step * DEPTH), to, part);
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
                    for r in 0..count {
                        decode(o.row(first + r).as_ptr(), from, len, buffer.add(r * DECODED).cast());
                    }
                    (buffer.cast_const(), DECODED)
                }
                None => (o.row(first).as_ptr().add(from * 2), o.row_bytes),
            };
            (super::avx512::FLOAT.transpose)(rows, bytes, count, len / 2, SIDE, to);
        }
    }

    fn multiply(&self, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (k, m) = (self.problem.k, self.problem.m);
        let (tiles, packed) = (Self::token_tiles(o.n), worker.shared_scratch().data);
        let scratch = worker.scratch.as_mut_ptr();
        // SAFETY: the scratch holds dequantized rows, panels, and a tile for each tile of tokens and panel.
        let (buffer, panels, sums) =
            unsafe { (scratch, scratch.add(SIDE * DECODED), scratch.add(SIDE * DECODED + self.panel_bytes())) };
        let part_bytes = self.part_bytes(o.n);
        let count = (m.div_ceil(SIDE) / (worker.count * 3)).clamp(2, PANELS) / 2 * 2;
        let mut configured = false;
        while let Some(piece) = worker.next(m.div_ceil(SIDE * count)) {
            if !configured {
                configure();
                configured = true;
            }
            let rows = piece * count * SIDE..((piece + 1) * count * SIDE).min(m);
            // An even number of panels; a panel without rows repeats the one before it.
            let panels_here = rows.len().div_ceil(SIDE).next_multiple_of(2);
            for from in (0..k).step_by(CHUNK) {
                let len = CHUNK.min(k - from);
                for (part, p) in (0..self.weights.len()).flat_map(|part| (0..panels_here).map(move |p| (part, p))) {
                    let first = (rows.start + p * SIDE).min((rows.end - 1) / SIDE * SIDE);
                    let existing = (rows.end - first).min(SIDE);
                    // SAFETY: the rows exist; the scratch has room for what is written; AMX comes with AVX-512.
                    unsafe {
                        let to = panels.add((part * PANELS + p) * PANEL);
                        self.panel(o, part, (first, existing), (from, len), buffer, to);
                    }
                }
                let last_chunk = from + len == k;
                for pair in 0..tiles / 2 {
                    let token = pair * 2 * SIDE;
                    for p in (0..panels_here).step_by(2) {
                        let first = rows.start + p * SIDE;
                        let whole = last_chunk && token + 2 * SIDE <= o.n && first + 2 * SIDE <= rows.end;
                        // SAFETY: the tiles, panels and sums lie in the scratch memories; tiles are configured. If all
                        // tokens and rows of the sums exist, they lie in the output, and this worker has claimed the
                        // rows.
                        unsafe {
                            let x = packed.add(token * k * 2 + from / DEPTH * TILE);
                            let w = panels.add(p * PANEL);
                            let sum = sums.add((pair * PANELS + p) / 2 * SUMS);
                            // A share of the next tokens' chunk.
                            let next = x.wrapping_add(2 * SIDE * k * 2);
                            let share = len / DEPTH * TILE / (panels_here / 2);
                            for tile in 0..2 {
                                prefetch_lines(next.wrapping_add(tile * SIDE * k * 2 + p / 2 * share), share);
                            }
                            for (i, (of_x, of_w)) in self.products.iter().enumerate() {
                                let (x, w) = (x.add(of_x * part_bytes), w.add(of_w * PANELS * PANEL));
                                let is_last = whole && i + 1 == self.products.len();
                                let y = (o.y.data.add(token * m + first).cast(), m * 4);
                                let to = if is_last { y } else { (sum, SUM_ROW) };
                                let sum = (sum.cast_const(), SUM_ROW);
                                four(x, SIDE * k * 2, w, PANEL, sum, to, len / DEPTH, from == 0 && i == 0);
                            }
                            if last_chunk && !whole {
                                for r in 0..(2 * SIDE).min(o.n.saturating_sub(token)) {
                                    let count = (rows.end - first).min(2 * SIDE);
                                    let from = sum.add(r * SUM_ROW).cast::<f32>();
                                    let to = o.y.data.add((token + r) * m + first);
                                    std::ptr::copy_nonoverlapping(from, to, count);
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

impl NativeKernel for TileMatmul {
    fn phases(&self) -> usize {
        2
    }

    fn shared_scratch(&self) -> usize {
        self.token_parts() * self.part_bytes(self.problem.x.max_rows())
    }

    fn worker_scratch(&self) -> usize {
        SIDE * DECODED + self.panel_bytes() + Self::token_tiles(self.problem.x.max_rows()) * PANELS * TILE
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

/// Two tiles of tokens, `x_apart` bytes from each other, times two panels, `w_apart` bytes from each other, over
/// `steps` tiles of depth; adds to the sums at `from` unless these are the first steps. Sums have 32 rows of 32 values;
/// places come with the bytes from a row to the next.
///
/// # Safety
/// The processor has AMX and its tiles are configured; the named memory exists; `steps` is at least 1.
#[allow(clippy::too_many_arguments, reason = "the operands of one block of assembly")]
unsafe fn four(
    x: *const u8,
    x_apart: usize,
    w: *const u8,
    w_apart: usize,
    from: (*const u8, usize),
    to: (*mut u8, usize),
    steps: usize,
    first: bool,
) {
    // SAFETY: promised by the caller. The tile registers are declared as overwritten, and hold nothing from one block
    // to the next.
    unsafe {
        asm!(
            "test {first}, {first}",
            "jz 2f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 3f",
            "2:",
            "tileloadd tmm0, [{from} + {from_row}]",
            "tileloadd tmm1, [{from} + {from_row} + 64]",
            "mov {first}, {from_row}",
            "shl {first}, 4",
            "add {from}, {first}",
            "tileloadd tmm2, [{from} + {from_row}]",
            "tileloadd tmm3, [{from} + {from_row} + 64]",
            "3:",
            "tileloadd tmm4, [{x} + {s}]",
            "tileloadd tmm6, [{w} + {s}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{w_2} + {s}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{x_2} + {s}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {x}, 1024",
            "add {x_2}, 1024",
            "add {w}, 1024",
            "add {w_2}, 1024",
            "dec {n}",
            "jnz 3b",
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + 64], tmm1",
            "mov {n}, {to_row}",
            "shl {n}, 4",
            "add {to}, {n}",
            "tilestored [{to} + {to_row}], tmm2",
            "tilestored [{to} + {to_row} + 64], tmm3",
            x = inout(reg) x => _, x_2 = inout(reg) x.add(x_apart) => _,
            w = inout(reg) w => _, w_2 = inout(reg) w.add(w_apart) => _,
            n = inout(reg) steps => _, s = in(reg) 64usize, first = inout(reg) usize::from(first) => _,
            from = inout(reg) from.0 => _, from_row = in(reg) from.1,
            to = inout(reg) to.0 => _, to_row = in(reg) to.1,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}
