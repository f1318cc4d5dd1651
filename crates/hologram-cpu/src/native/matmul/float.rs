//! Float activations: weights dequantized to `f32`, or `bf16` times `bf16`.

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "so far only x86-64 has such kernels"))]
pub mod in_place;

use std::ops::Range;
use std::sync::Arc;

use hologram_device::DType;

use super::plain::dot_f32;
use super::{NativeKernel, Operands, PackedRows, Pieces, Problem, Tiles, piece_rows, rows_of};
use crate::features::Features;
use crate::kernel::{Args, Worker};
use crate::native::decode::{decode, is_weight_format};

/// Contents of the words of panels and tiles. Sums are of the words' size: `f32` or `i32` for pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// One element.
    F32,
    /// Two consecutive elements.
    Bf16Pairs,
    /// One element; products and sums wrap.
    I32,
    /// Two consecutive elements of 8 bits, widened; sums wrap.
    I16Pairs,
    /// One element.
    F64,
    /// One element; products and sums wrap.
    I64,
}

impl Words {
    /// Bytes of a word, and of a sum.
    pub fn bytes(self) -> usize {
        if matches!(self, Words::F64 | Words::I64) { 8 } else { 4 }
    }

    /// Elements of a word.
    pub fn elements(self) -> usize {
        if matches!(self, Words::Bf16Pairs | Words::I16Pairs) { 2 } else { 1 }
    }
}

/// A type of weight that the row kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F32,
    F16,
    Bf16,
}

/// Multiplies panels with a tile: (words, tokens, steps, the first panel, bytes from one panel to the next, tile,
/// output at the first token and row, its stride in sums, rows, whether these are the first words of the rows).
pub type Multiply = unsafe fn(Words, usize, usize, *const u8, usize, *const u8, *mut u8, usize, usize, bool);

/// As [`Multiply`] for `f32`, with lines in place of a tile: (the first word, whether a line's words are neighbours
/// rather than those of a depth, words from one line, or depth, to the next), lines, steps, then as there.
pub type MultiplyLines =
    unsafe fn((*const f32, bool, usize), usize, usize, *const u8, usize, *mut u8, usize, usize, bool);

/// Interleaves rows of `f16` or `bf16` by elements, which become `f32`: (the rows' type, the first row, bytes of a row,
/// rows that exist, elements, rows written, the destination).
pub type Widen = unsafe fn(Element, *const u8, usize, usize, usize, usize, *mut u8);

/// The kernels of one instruction set.
///
/// The functions are unsafe because they use pointers, and instructions that the processor must have.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Weight rows of a panel, for words of 32 bits; half of them for words of 64.
    pub rows: usize,
    /// The most panels that are multiplied together, so that a tile's words are loaded once for all.
    pub panels_at_once: usize,
    /// The most tokens of a tile.
    pub tokens: usize,
    /// The most tokens that are multiplied row by row, at most 4.
    pub few: usize,
    /// Multiplies rows with tokens: (words, the weights' type, weights, activations, tokens).
    pub by_row: unsafe fn(Words, Element, &PackedRows, *const u8, usize),
    /// Interleaves rows by 32-bit words: (the first row, bytes of a row, rows that exist, words, rows written, the
    /// destination).
    pub transpose: unsafe fn(*const u8, usize, usize, usize, usize, *mut u8),
    /// If `None`, rows of `f16` and `bf16` are dequantized before they are interleaved.
    pub widen: Option<Widen>,
    pub multiply: Multiply,
    /// If `None`, lines are interleaved first.
    pub multiply_lines: Option<MultiplyLines>,
    /// Kernels for some tokens and rows that are read in place.
    pub in_place: Option<in_place::Kernels>,
}

/// The kernel for `f32` and `bf16` activations.
pub struct FloatMatmul {
    problem: Problem,
    words: Words,
    kernels: Option<Kernels>,
}

/// Words of a row that are multiplied at a time, so that a panel and a tile stay in the nearest cache.
const STEPS: usize = 512;
/// The most panels of a piece of work.
const PANELS: usize = 4;
/// The most rows of a panel or a tile that pass through the row buffer.
const BUFFER_ROWS: usize = 16;
/// Rows of a piece on the portable path: they share each token's activations.
const PLAIN_ROWS: usize = 8;

impl FloatMatmul {
    pub(super) fn find(problem: Problem, features: Features) -> Option<Arc<dyn NativeKernel>> {
        let both_bf16 = problem.x.format == DType::BF16 && problem.w == DType::BF16;
        if !(both_bf16 || problem.x.format == DType::F32 && is_weight_format(problem.w)) {
            return None;
        }
        let kernels = kernels(features);
        let words = if both_bf16 && features.bf16 && features.avx512 { Words::Bf16Pairs } else { Words::F32 };
        Some(Arc::new(FloatMatmul { problem, words, kernels }))
    }

    /// Elements of a word.
    fn per_word(&self) -> usize {
        if self.words == Words::F32 { 1 } else { 2 }
    }

    /// The most tokens that are multiplied row by row: for more, panels take less time. `benches/RESULTS.md` compares
    /// both.
    fn few(&self, kernels: &Kernels) -> usize {
        if self.problem.is_independent() {
            return self.problem.x.max_rows();
        }
        let most = match (self.words, self.problem.w) {
            (Words::Bf16Pairs, _) | (Words::F32, DType::F32) => 2,
            (_, DType::F16) => 3,
            _ => kernels.few,
        };
        kernels.few.min(most)
    }

    /// Words of a row, padded to whole transposition steps.
    fn row_words(&self) -> usize {
        self.problem.k.div_ceil(self.per_word()).next_multiple_of(4)
    }

    /// The chunks that are multiplied at a time: the first element and the number of elements.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (k, len) = (self.problem.k, STEPS * self.per_word());
        (0..k).step_by(len).map(move |from| (from, len.min(k - from)))
    }

    /// Interleaves elements `from..from + len` of rows of `format` by words. Rows whose bytes are not yet words are
    /// first dequantized into `buffer`. Returns the number of steps.
    ///
    /// # Safety
    /// The processor has the kernels' instructions; `to` has room for the words of `lanes` rows.
    #[allow(clippy::too_many_arguments)]
    unsafe fn interleave(
        &self,
        kernels: &Kernels,
        format: DType,
        rows: &[u8],
        row_bytes: usize,
        (from, len): (usize, usize),
        lanes: usize,
        buffer: &mut [f32],
        to: *mut u8,
    ) -> usize {
        let per_word = self.per_word();
        let (words, count) = (len.div_ceil(per_word).next_multiple_of(4), rows.len() / row_bytes);
        let packed =
            from / format.block_len() * format.block_bytes()..(from + len) / format.block_len() * format.block_bytes();
        let element = element(format).filter(|element| *element != Element::F32 && self.words == Words::F32);
        if let (Some(element), Some(widen)) = (element, kernels.widen.filter(|_| len == words)) {
            // SAFETY: `count` rows of `len` elements exist; the caller promises the rest.
            unsafe { widen(element, rows[packed.start..].as_ptr(), row_bytes, count, words, lanes, to) };
            return words;
        }
        let in_place = len == words * per_word && (self.words == Words::Bf16Pairs || format == DType::F32);
        let (source, source_bytes) = if in_place {
            (rows[packed.start..].as_ptr(), row_bytes)
        } else {
            for (row, buffer) in rows.chunks_exact(row_bytes).zip(buffer.chunks_exact_mut(STEPS)) {
                let row = &row[packed.clone()];
                buffer[..words].fill(0.0);
                if self.words == Words::F32 {
                    decode(format, row, &mut buffer[..len]);
                } else {
                    for (to, pair) in buffer.iter_mut().zip(row.chunks(4)) {
                        let pair: [u8; 4] = std::array::from_fn(|i| pair.get(i).copied().unwrap_or(0));
                        *to = f32::from_ne_bytes(pair);
                    }
                }
            }
            (buffer.as_ptr().cast(), STEPS * 4)
        };
        // SAFETY: `count` rows of `words` words exist at the source; the caller promises the rest.
        unsafe { (kernels.transpose)(source, source_bytes, count, words, lanes, to) };
        words
    }

    fn x_row_bytes(&self) -> usize {
        self.problem.k * self.problem.x.format.block_bytes()
    }

    fn pack(&self, kernels: &Kernels, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are floats; the scratch is aligned.
        let buffer = unsafe { scratch.align_to_mut::<f32>().1 };
        let row_bytes = self.x_row_bytes();
        while let Some(tile) = worker.next(tiles.count) {
            let tokens = tiles.tile(tile);
            let rows = &o.x[tokens.start * row_bytes..tokens.end * row_bytes];
            let mut at = tokens.start * self.row_words() * 4;
            for chunk in self.chunks() {
                // SAFETY: the kernels are of this processor's instruction set; the shared scratch holds every token's
                // words.
                unsafe {
                    let to = packed.add(at);
                    let format = self.problem.x.format;
                    let steps = self.interleave(kernels, format, rows, row_bytes, chunk, tokens.len(), buffer, to);
                    at += steps * tokens.len() * 4;
                }
            }
        }
    }

    fn by_panel(&self, kernels: &Kernels, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let (tiles, packed) = (Tiles::new(o.n, kernels.tokens), worker.shared_scratch().data);
        let scratch = std::mem::take(&mut worker.scratch);
        let (buffer, panels) = scratch.split_at_mut(BUFFER_ROWS * STEPS * 4);
        let panels = panels.as_mut_ptr();
        // SAFETY: any bytes are floats; the scratch is aligned.
        let buffer = unsafe { buffer.align_to_mut::<f32>().1 };
        let panel_bytes = STEPS * kernels.rows * 4;
        let rows = piece_rows(o.y.m, worker.count, kernels.rows, kernels.rows * PANELS);
        while let Some(piece) = worker.next(o.y.m.div_ceil(rows)) {
            let rows = rows_of(piece, rows, o.y.m);
            let panels_of = || rows.clone().step_by(kernels.rows).enumerate();
            let mut at = 0;
            for chunk in self.chunks() {
                let mut steps = 0;
                for (p, first) in panels_of() {
                    let end = rows.end.min(first + kernels.rows);
                    let w = &o.w[first * o.row_bytes..end * o.row_bytes];
                    // SAFETY: the kernels are of this processor's instruction set; the scratch holds the panels of a
                    // piece.
                    unsafe {
                        let to = panels.add(p * panel_bytes);
                        steps =
                            self.interleave(kernels, self.problem.w, w, o.row_bytes, chunk, kernels.rows, buffer, to);
                    }
                }
                for tile in 0..tiles.count {
                    let tokens = tiles.tile(tile);
                    let tile = (tokens.start * self.row_words() + at * tokens.len()) * 4;
                    for (p, first) in panels_of().step_by(kernels.panels_at_once) {
                        let count = (rows.end - first).min(kernels.rows * kernels.panels_at_once);
                        // SAFETY: the kernel is of this processor's instruction set; the panels are packed here, the
                        // tile was packed in phase 0; this worker has claimed the rows' columns.
                        unsafe {
                            let y = o.y.data.add(tokens.start * o.y.m + first).cast();
                            let (panel, tile, words) = (panels.add(p * panel_bytes), packed.add(tile), self.words);
                            let (n, start) = (tokens.len(), at == 0);
                            (kernels.multiply)(words, n, steps, panel, panel_bytes, tile, y, o.y.m, count, start);
                        }
                    }
                }
                at += steps;
            }
        }
    }

    /// Activations as the row kernels read them: in place, or `bf16` converted into `buffer`.
    fn row_activations<'a>(&self, o: &Operands<'a>, buffer: &'a mut [f32]) -> &'a [u8] {
        if self.words == Words::Bf16Pairs || self.problem.x.format == DType::F32 {
            return o.x;
        }
        let buffer = &mut buffer[..o.n * self.problem.k];
        decode(DType::BF16, o.x, buffer);
        // SAFETY: floats are bytes.
        unsafe { buffer.align_to::<u8>().1 }
    }

    fn by_row(&self, kernels: &Kernels, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let k = self.problem.k;
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are floats; the scratch is aligned.
        let (row, converted) = unsafe { scratch.align_to_mut::<f32>().1 }.split_at_mut(k);
        let x = self.row_activations(o, converted);
        let x_bytes = k * 4 / self.per_word();
        let rows = piece_rows(o.y.m, worker.count * 2, 8, 64);
        for (rows, next) in Pieces::new(worker, o.y.m, rows) {
            let multiply = |element, first: *const u8, next: *const u8, rows: Range<usize>| {
                for token in (0..o.n).step_by(kernels.few) {
                    // SAFETY: the kernels are of this processor's instruction set; the rows exist and have `k`
                    // elements, as have the tokens; this worker has claimed the rows' columns of the output.
                    unsafe {
                        let y = o.y.data.add(token * o.y.m + rows.start);
                        let (count, stride) = (rows.len(), o.y.m);
                        let w = PackedRows { first, bytes: o.row_bytes, count, k, y, stride, next };
                        let x = x.as_ptr().add(token * x_bytes);
                        (kernels.by_row)(self.words, element, &w, x, (o.n - token).min(kernels.few));
                    }
                }
            };
            if let Some(element) = element(self.problem.w) {
                multiply(element, o.row(rows.start).as_ptr(), o.row(next).as_ptr(), rows);
                continue;
            }
            for m in rows {
                decode(self.problem.w, o.row(m), row);
                multiply(Element::F32, row.as_ptr().cast(), row.as_ptr().cast(), m..m + 1);
            }
        }
    }

    fn plain(&self, o: &Operands<'_>, worker: &mut Worker<'_>) {
        let k = self.problem.k;
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are floats; the scratch is aligned.
        let (decoded, x_row) = unsafe { scratch.align_to_mut::<f32>().1 }.split_at_mut(PLAIN_ROWS * k);
        while let Some(piece) = worker.next(o.y.m.div_ceil(PLAIN_ROWS)) {
            let rows = rows_of(piece, PLAIN_ROWS, o.y.m);
            for (row, to) in rows.clone().zip(decoded.chunks_exact_mut(k)) {
                decode(self.problem.w, o.row(row), to);
            }
            for t in 0..o.n {
                let bytes = &o.x[t * self.x_row_bytes()..(t + 1) * self.x_row_bytes()];
                decode(self.problem.x.format, bytes, &mut x_row[..k]);
                for (row, w) in rows.clone().zip(decoded.chunks_exact(k)) {
                    // SAFETY: token and row are in range, and this worker has claimed the row.
                    unsafe { o.y.set(t, row, dot_f32(w, &x_row[..k])) };
                }
            }
        }
    }
}

impl NativeKernel for FloatMatmul {
    fn phases(&self) -> usize {
        if self.kernels.is_some_and(|kernels| self.problem.x.max_rows() > self.few(&kernels)) { 2 } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        if self.phases() == 2 { self.problem.x.max_rows() * self.row_words() * 4 } else { 0 }
    }

    fn worker_scratch(&self) -> usize {
        match &self.kernels {
            None => (PLAIN_ROWS + 1) * self.problem.k * 4,
            Some(kernels) => {
                let by_panel = (BUFFER_ROWS + PANELS * kernels.rows) * STEPS * 4;
                by_panel.max((1 + self.few(kernels)) * self.problem.k * 4).max(self.sums_bytes())
            }
        }
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let o = self.problem.operands(args)?;
        if o.n == 0 {
            return Ok(());
        }
        let Some(kernels) = &self.kernels else {
            self.plain(&o, worker);
            return Ok(());
        };
        let last = phase + 1 == self.phases();
        match (o.n <= self.few(kernels), self.in_place(o.n)) {
            (true, _) if last => self.by_row(kernels, &o, worker),
            (true, _) => (),
            (false, Some(in_place)) if last => self.rows_in_place(in_place, &o, worker),
            (false, Some((in_place, _))) => self.pack_vectors(&in_place, &o, worker),
            (false, None) if last => self.by_panel(kernels, &o, worker),
            (false, None) => self.pack(kernels, &o, worker),
        }
        Ok(())
    }
}

/// The type of plain elements that kernels read in place.
pub fn element(format: DType) -> Option<Element> {
    match format {
        DType::F32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

/// The kernels for a processor; `None` for the portable path.
pub fn kernels(features: Features) -> Option<Kernels> {
    #[cfg(target_arch = "x86_64")]
    if features.avx512 {
        return Some(super::avx512::FLOAT);
    }
    #[cfg(target_arch = "x86_64")]
    if features.avx2 {
        return Some(super::avx2::FLOAT);
    }
    let _ = features;
    None
}
