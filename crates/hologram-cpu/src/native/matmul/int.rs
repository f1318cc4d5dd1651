//! Quantised activations times quantised weights: exact integer dot products of spans, scaled and summed in `f32`.

use std::sync::Arc;

use hologram_device::DType;
use hologram_device::decode::each_block;

use super::blocks::is_listed;
use super::plain::dot_codes;
use super::rows::{self, Prepared, RowKernels, TOGETHER};
use super::{NativeKernel, Operands, PackedRows, Pieces, Problem, Tiles, piece_rows, prefetch_lines, rows_of};
use crate::features::Features;
use crate::kernel::{Args, Worker};

/// A span: the consecutive elements of a row that share both the activation's and the weight's scale. Summed in
/// integers.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub weights: DType,
    pub k: usize,
    /// Elements of an activation group.
    pub group: usize,
    /// Elements of a span: a multiple of 16 that divides the group and the run of weights that share a scale.
    pub span: usize,
    /// Whether each scale comes with a minimum.
    pub minimums: bool,
    /// The offset that makes signed weight codes unsigned.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
    pub offset: i32,
}

/// Whether weights of this format are multiplied with 8-bit activations.
pub fn serves(weights: DType) -> bool {
    DType::BLOCKS.contains(&weights) && weights != DType::TQ1_0 && !weights.has_float_codes()
        || DType::GRIDS.contains(&weights)
}

impl Layout {
    fn new(weights: DType, k: usize, group: usize) -> Layout {
        // Codes that are signed bytes, as those of grids, are made unsigned by 128.
        let offset = weights.row().map_or(128, |row| row.values.offset().into());
        Layout { weights, k, group, span: gcd(group, weights.scale_len()), minimums: weights.has_minimum(), offset }
    }

    /// Spans of a row.
    pub fn spans(&self) -> usize {
        self.k / self.span
    }

    /// Bytes of one token in a tile. For each span: the start of its sum (−offset·Σ codes as `i32`; with minimums
    /// Σ codes as `f32`), its scale (`f32`) and its codes.
    pub fn token_bytes(&self) -> usize {
        self.spans() * (8 + self.span)
    }

    /// Bytes of a panel of `rows` unpacked rows. For each span: unsigned codes, four of a row per 32-bit lane, rows in
    /// lanes; then the rows' `f32` scales; then, with minimums, the addend per unit of Σ codes.
    pub fn panel_bytes(&self, rows: usize) -> usize {
        self.spans() * (self.span + if self.minimums { 8 } else { 4 }) * rows
    }

    /// The block and the group of span `s`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
    pub fn block_and_group(&self, s: usize) -> (usize, usize) {
        (s * self.span / self.weights.block_len(), s * self.span / self.group)
    }
}

/// Whether panels and direct products of these weights have hand-written kernels.
fn by_hand(weights: DType) -> bool {
    matches!(weights, DType::Q8_0 | DType::Q4_0 | DType::TQ2_0)
}

/// Whether blocks are taken apart row by row, for row kernels and for panels.
fn is_split(weights: DType) -> bool {
    DType::GRIDS.contains(&weights) || weights == DType::NVFP4
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
/// The functions are unsafe because they use pointers, and instructions that the processor must have.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Weight rows of a panel.
    pub rows: usize,
    /// Whether panels exist for every format, not only for `Q8_0`, `Q4_0` and `TQ2_0`.
    pub all_formats: bool,
    /// The most tokens, at most [`TOGETHER`], that row kernels multiply with weights of a format: for more, panels take
    /// less time. `benches/RESULTS.md` compares both.
    pub most_by_row: fn(DType) -> usize,
    /// The most panels that are multiplied together, so that a tile's words are loaded once for all.
    pub panels_at_once: usize,
    /// The most tokens of a tile.
    pub tokens: usize,
    /// Packs a tile: (layout, activations, tokens, the destination).
    pub pack: unsafe fn(&Layout, &Activations<'_>, std::ops::Range<usize>, *mut u8),
    /// Multiplies packed rows with the only tile: (layout, tokens, memory). If `None`, rows are unpacked first.
    pub direct: Option<unsafe fn(&Layout, usize, &Direct)>,
    /// Unpacks a panel: (layout, the first row, bytes of a row, rows that exist, the destination).
    pub unpack: unsafe fn(&Layout, *const u8, usize, usize, *mut u8),
    /// Multiplies panels with a tile: (tokens, layout, the first panel, bytes from one panel to the next, tile, output
    /// at the first token and row, its stride, rows).
    pub multiply: unsafe fn(usize, &Layout, *const u8, usize, *const u8, *mut f32, usize, usize),
}

/// Memory of a direct product.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the x86-64 kernels"))]
pub struct Direct {
    /// As many packed rows as a panel has.
    pub rows: *const u8,
    pub row_bytes: usize,
    /// The next rows, to be prefetched meanwhile; may lie outside the weights.
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
    /// Elements of an activation group.
    group: usize,
    /// Kernels for a few tokens, row by row.
    rows: Option<RowKernels>,
    /// Kernels over panels of unpacked rows.
    panels: Option<(Layout, Kernels)>,
}

/// Panel memory of a piece of work, limited so that it stays in a level-2 cache.
const PIECE_BYTES: usize = 384 << 10;
/// Bytes of a worker's first panel of packed rows that are prefetched before it begins; the hardware prefetches longer
/// rows.
const FIRST_BYTES: usize = 40 << 10;
/// Bytes of a piece of rows for a few tokens. `LONG_PIECE`: read in one stream, for a single token; a stream should
/// seldom end. `SHORT_PIECE`: read in several streams, which should not lie 64 KiB apart. `benches/history` compares
/// sizes on Zen 4.
const LONG_PIECE: usize = 256 << 10;
const SHORT_PIECE: usize = 64 << 10;
/// Rows of a piece on the portable path: they share each token's activations.
const PLAIN_ROWS: usize = 8;

impl IntMatmul {
    pub fn find(problem: Problem, group: usize, features: Features) -> Option<Arc<dyn NativeKernel>> {
        let (w, k) = (problem.w, problem.k);
        if !serves(w)
            || group == 0
            || !group.is_multiple_of(32)
            || !k.is_multiple_of(group)
            || !k.is_multiple_of(w.block_len())
        {
            return None;
        }
        let rows = rows::find(w, k, group, features).map(|kernels| RowKernels {
            in_one_stream: kernels.in_one_stream.filter(|_| features.one_stream && !problem.is_independent()),
            ..kernels
        });
        let panels = kernels(features)
            .filter(|kernels| by_hand(w) || kernels.all_formats && is_listed(w) || features.gfni && is_split(w));
        let panels = panels.map(|kernels| (Layout::new(w, k, group), kernels));
        Some(Arc::new(IntMatmul { problem, group, rows, panels }))
    }

    fn max_rows(&self) -> usize {
        self.problem.x.max_rows()
    }

    /// The row kernels, if they compute a run of `n` tokens.
    fn row_kernels(&self, n: usize) -> Option<&RowKernels> {
        let most = self.panels.as_ref().map_or(usize::MAX, |(_, kernels)| (kernels.most_by_row)(self.problem.w));
        self.rows.as_ref().filter(|_| n <= most || self.problem.is_independent())
    }

    /// The most panels of a piece.
    fn panels(layout: &Layout, kernels: &Kernels) -> usize {
        (PIECE_BYTES / layout.panel_bytes(kernels.rows)).clamp(1, 8)
    }

    /// Scratch memory of the portable path: the number of codes, and the number of scales and of minimums.
    fn plain_lens(&self) -> [usize; 2] {
        [PLAIN_ROWS * self.problem.k, PLAIN_ROWS * (self.problem.k / self.problem.w.scale_len())]
    }

    fn plain(&self, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (format, k, group) = (self.problem.w, self.problem.k, self.group);
        let (run, groups) = (format.scale_len(), k / group);
        let (span, runs) = (gcd(run, group), k / run);
        let scratch = std::mem::take(&mut worker.scratch);
        let [codes_len, scales_len] = self.plain_lens();
        let (codes, floats) = scratch.split_at_mut(codes_len);
        // SAFETY: any bytes are i8 codes and floats; the scratch is aligned to 64 bytes and `k` is a multiple of 32.
        let (codes, floats) = unsafe { (codes.align_to_mut::<i8>().1, floats.align_to_mut::<f32>().1) };
        let (scales, minimums) = floats.split_at_mut(scales_len);
        while let Some(piece) = worker.next(self.problem.m.div_ceil(PLAIN_ROWS)) {
            let rows = rows_of(piece, PLAIN_ROWS, self.problem.m);
            for (i, row) in rows.clone().enumerate() {
                let (mut code, mut at) = (i * k, i * runs);
                each_block(format, o.row(row), |block, of_block, minimums_of_block| {
                    codes[code..code + block.len()].copy_from_slice(block);
                    scales[at..at + of_block.len()].copy_from_slice(of_block);
                    minimums[at..at + of_block.len()].copy_from_slice(minimums_of_block);
                    (code, at) = (code + block.len(), at + of_block.len());
                });
            }
            for t in 0..o.n {
                let x = &o.x[t * k..(t + 1) * k];
                // SAFETY: any byte is an i8.
                let x = unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<i8>(), k) };
                let x_scales = &o.scales[t * groups..(t + 1) * groups];
                for (i, row) in rows.clone().enumerate() {
                    let w = &codes[i * k..(i + 1) * k];
                    let spans = x.chunks_exact(span).zip(w.chunks_exact(span)).enumerate();
                    let sum: f32 = spans
                        .map(|(s, (x, w))| {
                            let (of_run, of_group) = (i * runs + s * span / run, s * span / group);
                            let minimum = match minimums[of_run] {
                                0.0 => 0.0,
                                minimum => minimum * x.iter().map(|x| i32::from(*x)).sum::<i32>() as f32,
                            };
                            (dot_codes(x, w) as f32 * scales[of_run] - minimum) * x_scales[of_group]
                        })
                        .sum();
                    // SAFETY: token and row are in range, and this worker has claimed the row.
                    unsafe { o.y.set(t, row, sum) };
                }
            }
        }
    }

    /// Prepares a token for the row kernels.
    fn prepare(&self, kernels: &RowKernels, o: &Operands<'_>, token: usize, to: *mut u8) {
        let (k, groups) = (self.problem.k, self.problem.k / self.group);
        let codes = &o.x[token * k..(token + 1) * k];
        // SAFETY: any byte is an i8; the kernels are of this processor's instruction set; `to` has room for a token.
        unsafe {
            let codes = std::slice::from_raw_parts(codes.as_ptr().cast::<i8>(), k);
            (kernels.prepare)(codes, &o.scales[token * groups..(token + 1) * groups], self.group, to);
        }
    }

    fn by_row(&self, kernels: &RowKernels, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (k, m) = (self.problem.k, self.problem.m);
        let extra_bytes = (kernels.prepared)(k);
        let scratch = std::mem::take(&mut worker.scratch);
        let in_one_stream = kernels.in_one_stream.filter(|_| o.n == 1);
        // With many tokens, each group of tokens is multiplied while the rows are in the first-level cache.
        let most = if o.n > TOGETHER {
            16 << 10
        } else if in_one_stream.is_some() {
            LONG_PIECE
        } else {
            SHORT_PIECE
        };
        let rows = (m / (worker.count * 12)).clamp(4, (most / o.row_bytes).max(4));
        let pieces = Pieces::new(worker, m, rows);
        if pieces.claimed.is_none() {
            return;
        }
        let extra: *const u8 = if o.n > TOGETHER {
            worker.shared_scratch().data
        } else {
            let extra = scratch.as_mut_ptr();
            for token in 0..o.n {
                // SAFETY: the scratch holds this many tokens.
                self.prepare(kernels, o, token, unsafe { extra.add(token * extra_bytes) });
            }
            extra
        };
        for (rows, next) in pieces {
            let (first, next) = (o.row(rows.start).as_ptr(), o.row(next).as_ptr());
            for token in (0..o.n).step_by(TOGETHER) {
                let tokens = (o.n - token).min(TOGETHER);
                // SAFETY: the rows and tokens exist; this worker has claimed the rows' columns of the output; the
                // kernels are of this processor's instruction set.
                unsafe {
                    let y = o.y.data.add(token * m + rows.start);
                    let w = PackedRows { first, bytes: o.row_bytes, count: rows.len(), k, y, stride: m, next };
                    let (codes, extra) = (o.x.as_ptr().add(token * k), extra.add(token * extra_bytes));
                    let multiply = in_one_stream.unwrap_or(kernels.multiply[tokens - 1]);
                    multiply(&w, &Prepared { codes, extra, extra_bytes });
                }
            }
        }
    }

    /// The kernel that multiplies a run directly from packed weights, if the tokens fit one tile.
    fn direct_kernel(&self, n: usize) -> Option<unsafe fn(&Layout, usize, &Direct)> {
        let (layout, kernels) = self.panels?;
        let whole_blocks = layout.span == layout.weights.block_len() && by_hand(layout.weights);
        let few = n <= kernels.tokens && !self.problem.is_independent();
        kernels.direct.filter(|_| few && self.problem.m >= kernels.rows && whole_blocks)
    }

    /// Packs a tile of tokens.
    ///
    /// # Safety
    /// The kernels are of this processor's instruction set; `to` has room for the tokens.
    unsafe fn pack(
        (layout, kernels): &(Layout, Kernels),
        o: &Operands<'_>,
        tokens: std::ops::Range<usize>,
        to: *mut u8,
    ) {
        // SAFETY: promised by the caller; the operands are checked.
        unsafe { (kernels.pack)(layout, &Activations { codes: o.x, scales: o.scales }, tokens, to) };
    }

    fn direct(
        &self,
        panels_of: &(Layout, Kernels),
        multiply: unsafe fn(&Layout, usize, &Direct),
        o: &Operands<'_>,
        worker: &mut Worker<'_>,
    ) {
        let (layout, kernels) = panels_of;
        let (m, rows) = (o.y.m, kernels.rows);
        let panels = m.div_ceil(rows);
        // The last panel may begin earlier and store fewer rows.
        let first = |panel: usize| (panel * rows).min(m - rows);
        let mut claimed = worker.next(panels);
        if let Some(panel) = claimed.filter(|_| rows * o.row_bytes <= FIRST_BYTES) {
            prefetch_lines(o.row(first(panel)).as_ptr(), rows * o.row_bytes);
        }
        let tile: *const u8 = if self.phases() == 2 {
            worker.shared_scratch().data
        } else {
            let tile = worker.scratch.as_mut_ptr();
            // SAFETY: the scratch holds a token.
            unsafe { Self::pack(panels_of, o, 0..o.n, tile) };
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
            // SAFETY: the kernels are of this processor's instruction set; the rows exist; the tile is packed; this
            // worker has claimed the panel's columns of the output.
            unsafe { multiply(layout, o.n, &d) };
        }
    }

    fn by_panel((layout, kernels): &(Layout, Kernels), o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
        let panel_bytes = layout.panel_bytes(kernels.rows);
        let panels = worker.scratch.as_mut_ptr();
        // With one tile a panel is used once, best while it is in the nearest cache.
        let most = if tiles.count == 1 { 1 } else { Self::panels(layout, kernels) };
        let rows = piece_rows(o.y.m, worker.count, kernels.rows, kernels.rows * most);
        while let Some(piece) = worker.next(o.y.m.div_ceil(rows)) {
            let rows = rows_of(piece, rows, o.y.m);
            for (p, first) in rows.clone().step_by(kernels.rows).enumerate() {
                let count = (rows.end - first).min(kernels.rows);
                // SAFETY: the kernels are of this processor's instruction set; `count` rows exist from `first`; the
                // scratch holds the panels of a piece.
                unsafe {
                    (kernels.unpack)(layout, o.row(first).as_ptr(), o.row_bytes, count, panels.add(p * panel_bytes));
                }
            }
            for tile in 0..tiles.count {
                let tokens = tiles.tile(tile);
                let panels_of = rows.clone().step_by(kernels.rows).enumerate();
                for (p, first) in panels_of.step_by(kernels.panels_at_once) {
                    let count = (rows.end - first).min(kernels.rows * kernels.panels_at_once);
                    // SAFETY: the kernel is of this processor's instruction set; the panels are unpacked, the tile was
                    // packed in phase 0; this worker has claimed the rows' columns of the output.
                    unsafe {
                        let tile = packed.add(tokens.start * layout.token_bytes());
                        let (panel, y) = (panels.add(p * panel_bytes), o.y.data.add(tokens.start * o.y.m + first));
                        (kernels.multiply)(tokens.len(), layout, panel, panel_bytes, tile, y, o.y.m, count);
                    }
                }
            }
        }
    }
}

impl NativeKernel for IntMatmul {
    fn phases(&self) -> usize {
        // With a few tokens each worker prepares them for itself: that is cheaper than another barrier.
        let few = self.max_rows() <= TOGETHER && self.row_kernels(self.max_rows()).is_some()
            || self.max_rows() == 1 && self.direct_kernel(1).is_some();
        if !few && (self.rows.is_some() || self.panels.is_some()) { 2 } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        if self.phases() == 1 {
            return 0;
        }
        let by_panel = self.panels.as_ref().map_or(0, |(layout, _)| layout.token_bytes());
        let by_row = self.row_kernels(self.max_rows()).map_or(0, |kernels| (kernels.prepared)(self.problem.k));
        self.max_rows() * by_panel.max(by_row)
    }

    fn worker_scratch(&self) -> usize {
        let rows = self.rows.map_or(0, |kernels| TOGETHER * (kernels.prepared)(self.problem.k));
        let panels = match &self.panels {
            Some((layout, _)) if self.phases() == 1 => layout.token_bytes(),
            Some((layout, kernels)) => Self::panels(layout, kernels) * layout.panel_bytes(kernels.rows),
            None => 0,
        };
        let [codes, scales] = self.plain_lens();
        let plain = if self.rows.is_none() && self.panels.is_none() { codes + 8 * scales } else { 0 };
        rows.max(panels).max(plain)
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let o = self.problem.operands(args)?;
        if o.n == 0 {
            return Ok(());
        }
        let last = phase + 1 == self.phases();
        if let Some(kernels) = self.row_kernels(o.n) {
            if last {
                self.by_row(kernels, &o, worker);
            } else if o.n > TOGETHER {
                let (prepared, bytes) = (worker.shared_scratch().data, (kernels.prepared)(self.problem.k));
                while let Some(token) = worker.next(o.n) {
                    // SAFETY: the shared scratch holds the greatest number of tokens.
                    self.prepare(kernels, &o, token, unsafe { prepared.add(token * bytes) });
                }
            }
            return Ok(());
        }
        let Some(panels) = &self.panels else {
            self.plain(&o, worker);
            return Ok(());
        };
        if !last {
            let (tiles, packed) = (Tiles::new(o.n, panels.1.tokens), worker.shared_scratch().data);
            while let Some(tile) = worker.next(tiles.count) {
                let tokens = tiles.tile(tile);
                // SAFETY: the shared scratch holds the greatest number of tokens; tiles are disjoint.
                unsafe { Self::pack(panels, &o, tokens.clone(), packed.add(tokens.start * panels.0.token_bytes())) };
            }
        } else if let Some(multiply) = self.direct_kernel(o.n) {
            self.direct(panels, multiply, &o, worker);
        } else {
            Self::by_panel(panels, &o, worker);
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
