//! Quantised activations times quantised weights: exact integer dot products of spans, scaled and summed in `f32`.

use std::sync::Arc;

use super::plain::{dot_codes, unpack_row};
use super::{NativeKernel, Operands, Problem, Tiles, fetch, for_pieces, piece_rows};
use crate::Format;
use crate::cpu::features::Features;
use crate::cpu::kernel::{Args, Worker};

/// A span: the consecutive elements of a row that share both the activation's and the weight's scale, summed in integers.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub weights: Format,
    pub k: usize,
    /// Elements of an activation group.
    pub group: usize,
    /// Elements of a span: a multiple of 32 that divides the group and the weight block.
    pub span: usize,
}

/// Whether weights of this format have a layout.
pub fn serves(weights: Format) -> bool {
    matches!(weights, Format::Q8_0 | Format::Q4_0 | Format::TQ2_0)
}

impl Layout {
    fn new(weights: Format, k: usize, group: usize) -> Option<Layout> {
        let block = match weights {
            Format::Q8_0 | Format::Q4_0 => 32,
            Format::TQ2_0 => 256,
            _ => return None,
        };
        let fits = group > 0 && group.is_multiple_of(32) && k.is_multiple_of(group) && k.is_multiple_of(block);
        fits.then(|| Layout { weights, k, group, span: gcd(group, block) })
    }

    /// Spans of a row.
    pub fn spans(&self) -> usize {
        self.k / self.span
    }

    /// What is added to a signed weight code to make it unsigned.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
    pub fn offset(&self) -> i32 {
        match self.weights {
            Format::Q8_0 => 128,
            Format::Q4_0 => 8,
            _ => 1,
        }
    }

    /// Bytes of one token in a tile: for each span the start of its sum (−offset·Σ codes, `i32`), its scale (`f32`) and its codes.
    pub fn token_bytes(&self) -> usize {
        self.spans() * (8 + self.span)
    }

    /// Bytes of a panel of `rows` unpacked rows: for each span unsigned codes, four of a row in a 32-bit lane, rows in lanes, then
    /// the rows' `f32` scales.
    pub fn panel_bytes(&self, rows: usize) -> usize {
        self.spans() * (self.span + 4) * rows
    }

    /// The first element of span `s` in block terms: the block and the group that it lies in.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
    pub fn block_and_group(&self, s: usize) -> (usize, usize) {
        (s * self.span / self.weights.block_len(), s * self.span / self.group)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Activations of a run as the tile packer reads them.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
pub struct Activations<'a> {
    pub codes: &'a [u8],
    pub scales: &'a [f32],
}

/// The kernels of one instruction set.
///
/// The functions are unsafe because they use instructions that the processor must have, and pointers.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Weight rows of a panel.
    pub rows: usize,
    /// The most panels that are multiplied together, so that a tile's words are loaded once for all.
    pub together: usize,
    /// The most tokens of a tile.
    pub tokens: usize,
    /// Packs a tile: (layout, activations, tokens, where to).
    pub pack: unsafe fn(&Layout, &Activations<'_>, std::ops::Range<usize>, *mut u8),
    /// Multiplies packed rows with the only tile: (layout, tokens, where). Without it they are unpacked first.
    pub direct: Option<unsafe fn(&Layout, usize, &Direct)>,
    /// Unpacks a panel: (layout, the first row, bytes of a row, rows that exist, where to).
    pub unpack: unsafe fn(&Layout, *const u8, usize, usize, *mut u8),
    /// Multiplies panels with a tile: (tokens, layout, the first panel, bytes from one to the next, tile, output at the first token and
    /// row, its stride, rows).
    pub multiply: unsafe fn(usize, &Layout, *const u8, usize, *const u8, *mut f32, usize, usize),
}

/// Where a direct product reads and writes.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
pub struct Direct {
    /// As many packed rows as a panel has.
    pub rows: *const u8,
    pub row_bytes: usize,
    /// The rows that come next, to be fetched from memory meanwhile; may lie outside the weights.
    pub next: *const u8,
    pub tile: *const u8,
    /// Output at the first token and row.
    pub y: *mut f32,
    pub stride: usize,
    /// The rows that are stored.
    pub mask: u16,
}

/// The kernel for `I8Groups` activations.
pub struct IntMatmul {
    problem: Problem,
    layout: Layout,
    kernels: Option<Kernels>,
}

/// Panel memory that a piece of work may take, so that it stays in a level-2 cache.
const PIECE_BYTES: usize = 384 << 10;
/// Bytes of a worker's first panel of packed rows that are fetched before it begins; longer rows the hardware foresees.
const FIRST_BYTES: usize = 40 << 10;
/// Rows of a piece on the portable path: they share each token's activations.
const PLAIN_ROWS: usize = 8;

impl IntMatmul {
    pub fn find(problem: Problem, group: usize, features: Features) -> Option<Arc<dyn NativeKernel>> {
        let layout = Layout::new(problem.w, problem.k, group)?;
        Some(Arc::new(IntMatmul { problem, layout, kernels: kernels(features) }))
    }

    fn max_rows(&self) -> usize {
        self.problem.x.max_rows()
    }

    /// The most panels of a piece.
    fn panels(&self, kernels: &Kernels) -> usize {
        (PIECE_BYTES / self.layout.panel_bytes(kernels.rows)).clamp(1, 8)
    }

    fn plain(&self, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let Layout { weights, k, group, span } = self.layout;
        let (blocks, groups, block) = (k / weights.block_len(), k / group, weights.block_len());
        let scratch = std::mem::take(&mut worker.scratch);
        let (codes, scales) = scratch.split_at_mut(PLAIN_ROWS * k);
        // SAFETY: any bytes are i8 codes; the scratch is aligned to 64 bytes and `k` is a multiple of 32, so the rest is aligned.
        let (codes, scales) = unsafe { (codes.align_to_mut::<i8>().1, scales.align_to_mut::<f32>().1) };
        while let Some(piece) = worker.next(self.problem.m.div_ceil(PLAIN_ROWS)) {
            let rows = piece * PLAIN_ROWS..((piece + 1) * PLAIN_ROWS).min(self.problem.m);
            for (i, row) in rows.clone().enumerate() {
                unpack_row(
                    weights,
                    o.row(row),
                    &mut codes[i * k..(i + 1) * k],
                    &mut scales[i * blocks..(i + 1) * blocks],
                );
            }
            for t in 0..o.n {
                let x = &o.x[t * k..(t + 1) * k];
                // SAFETY: any byte is an i8.
                let x = unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<i8>(), k) };
                let x_scales = &o.scales[t * groups..(t + 1) * groups];
                for (i, row) in rows.clone().enumerate() {
                    let (w, w_scales) = (&codes[i * k..(i + 1) * k], &scales[i * blocks..(i + 1) * blocks]);
                    let spans = x.chunks_exact(span).zip(w.chunks_exact(span)).enumerate();
                    let sum: f32 = spans
                        .map(|(s, (x, w))| {
                            dot_codes(x, w) as f32 * (w_scales[s * span / block] * x_scales[s * span / group])
                        })
                        .sum();
                    // SAFETY: token and row are in range, and this worker has claimed the row.
                    unsafe { o.y.set(t, row, sum) };
                }
            }
        }
    }

    /// The kernel by which a run is multiplied straight from packed weights, when the tokens fit one tile.
    fn direct_kernel(&self, n: usize) -> Option<unsafe fn(&Layout, usize, &Direct)> {
        let kernels = self.kernels?;
        let whole_blocks = self.layout.span == self.layout.weights.block_len();
        kernels.direct.filter(|_| n <= kernels.tokens && self.problem.m >= kernels.rows && whole_blocks)
    }

    /// Packs a tile of tokens.
    ///
    /// # Safety
    /// The kernels are of this processor's instruction set; `to` can take the tokens.
    unsafe fn pack(&self, kernels: &Kernels, o: &Operands<'_>, tokens: std::ops::Range<usize>, to: *mut u8) {
        // SAFETY: promised by the caller; the operands are checked.
        unsafe { (kernels.pack)(&self.layout, &Activations { codes: o.x, scales: o.scales }, tokens, to) };
    }

    fn direct(
        &self,
        kernels: &Kernels,
        multiply: unsafe fn(&Layout, usize, &Direct),
        o: &Operands<'_>,
        worker: &mut Worker<'_>,
    ) {
        let (m, rows) = (o.y.m, kernels.rows);
        let panels = m.div_ceil(rows);
        // The last panel may begin earlier and store fewer rows.
        let first = |panel: usize| (panel * rows).min(m - rows);
        let mut claimed = worker.next(panels);
        if let Some(panel) = claimed.filter(|_| rows * o.row_bytes <= FIRST_BYTES) {
            fetch(o.row(first(panel)).as_ptr(), rows * o.row_bytes);
        }
        let tile: *const u8 = if self.phases() == 2 {
            worker.shared_scratch().data
        } else {
            let tile = worker.scratch.as_mut_ptr();
            // SAFETY: the scratch holds a token.
            unsafe { self.pack(kernels, o, 0..o.n, tile) };
            tile
        };
        while let Some(panel) = claimed {
            claimed = worker.next(panels);
            let (at, skip) = (first(panel), panel * rows - first(panel));
            let d = Direct {
                rows: o.row(at).as_ptr(),
                row_bytes: o.row_bytes,
                next: o.row(first(claimed.unwrap_or(panel))).as_ptr(),
                tile,
                // SAFETY: a row of the output.
                y: unsafe { o.y.data.add(at) },
                stride: m,
                mask: u16::MAX << skip,
            };
            // SAFETY: the kernels are of this processor's instruction set; the rows exist; the tile is packed; this worker has
            // claimed the panel's columns of the output.
            unsafe { multiply(&self.layout, o.n, &d) };
        }
    }

    fn by_panel(&self, kernels: &Kernels, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let layout = &self.layout;
        let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
        let panel_bytes = layout.panel_bytes(kernels.rows);
        let panels = worker.scratch.as_mut_ptr();
        // With one tile a panel is used once, so it is best still in the nearest cache.
        let most = if tiles.count == 1 { 1 } else { self.panels(kernels) };
        let rows = piece_rows(o.y.m, worker.count, kernels.rows, kernels.rows * most);
        for_pieces(worker, o.y.m, rows, |rows| {
            for (p, first) in rows.clone().step_by(kernels.rows).enumerate() {
                let count = (rows.end - first).min(kernels.rows);
                // SAFETY: the kernels are of this processor's instruction set; `count` rows exist from `first`; the scratch holds
                // the panels of a piece.
                unsafe {
                    (kernels.unpack)(layout, o.row(first).as_ptr(), o.row_bytes, count, panels.add(p * panel_bytes));
                }
            }
            for tile in 0..tiles.count {
                let tokens = tiles.tile(tile);
                let panels_of = rows.clone().step_by(kernels.rows).enumerate();
                for (p, first) in panels_of.step_by(kernels.together) {
                    let count = (rows.end - first).min(kernels.rows * kernels.together);
                    // SAFETY: as above; the tile was packed in phase 0; this worker has claimed the rows' columns of the output.
                    unsafe {
                        let tile = packed.add(tokens.start * layout.token_bytes());
                        let (panel, y) = (panels.add(p * panel_bytes), o.y.data.add(tokens.start * o.y.m + first));
                        (kernels.multiply)(tokens.len(), layout, panel, panel_bytes, tile, y, o.y.m, count);
                    }
                }
            }
        });
    }
}

impl NativeKernel for IntMatmul {
    fn phases(&self) -> usize {
        // A single token is packed by each worker for itself: that is cheaper than another barrier.
        let one = self.max_rows() == 1 && self.direct_kernel(1).is_some();
        if self.kernels.is_some() && !one { 2 } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        if self.phases() == 2 { self.max_rows() * self.layout.token_bytes() } else { 0 }
    }

    fn worker_scratch(&self) -> usize {
        match &self.kernels {
            None => PLAIN_ROWS * (self.layout.k + self.layout.k / self.layout.weights.block_len() * 4),
            Some(_) if self.phases() == 1 => self.layout.token_bytes(),
            Some(kernels) => self.panels(kernels) * self.layout.panel_bytes(kernels.rows),
        }
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let o = self.problem.operands(args)?;
        let Some(kernels) = &self.kernels else {
            self.plain(&o, worker);
            return Ok(());
        };
        if o.n == 0 {
            return Ok(());
        }
        if phase + 1 < self.phases() {
            let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
            while let Some(tile) = worker.next(tiles.count) {
                let tokens = tiles.tile(tile);
                // SAFETY: the shared scratch holds the greatest number of tokens; tiles are disjoint.
                unsafe {
                    let to = packed.add(tokens.start * self.layout.token_bytes());
                    self.pack(kernels, &o, tokens, to);
                }
            }
        } else if let Some(multiply) = self.direct_kernel(o.n) {
            self.direct(kernels, multiply, &o, worker);
        } else {
            self.by_panel(kernels, &o, worker);
        }
        Ok(())
    }
}

/// The kernels for a processor; `None` for the portable path.
fn kernels(features: Features) -> Option<Kernels> {
    #[cfg(target_arch = "x86_64")]
    if features.avx512 && features.vnni {
        return Some(super::avx512::INT);
    }
    #[cfg(target_arch = "x86_64")]
    if features.avx2 {
        return Some(super::avx2::INT);
    }
    let _ = features;
    None
}
