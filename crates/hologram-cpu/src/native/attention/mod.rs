//! `attention` over a paged cache of keys and values.
//!
//! The query rows (a token and a head) that read the same keys are computed together. A *tile* is some consecutive
//! tokens of one sequence and the query heads of one key/value head. A tile walks its sequence's positions in steps of
//! [`STEP`] through the block table with a running maximum and sum, so keys and values are read once per tile. A tile
//! of many rows keeps a row in each vector lane ([`prefill`]); one of few rows spreads the head's elements over the
//! lanes ([`decode`]). When there are fewer tiles than the workers need, each tile's positions are split, and phase 1
//! combines the parts.

mod cache;
mod decode;
mod online_softmax;
mod prefill;
mod product;
#[cfg(feature = "testing")]
pub(crate) mod tests;

use std::ops::Range;
use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation};
use hologram_isa::Type;

use self::cache::Cache;
use crate::features::{Features, InstructionSet};
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::simd::{Isa, Simd, simd_entry};
use crate::native::{input, room};

/// Most query rows of a tile. A multiple of every vector length and of three vectors, the width of the product's
/// register tile.
const TILE_ROWS: usize = 48;
/// Positions between two updates of the running maximum and sum; a multiple of 16.
const STEP: usize = 128;
/// Most query rows of a tile that [`decode`] computes, if a vector has as many lanes. With more, a row in each lane
/// fills most lanes.
const MOST_DECODE_ROWS: usize = 8;
/// Bound on tokens × parts when positions are split.
const MAX_PARTS: usize = 64;
/// As [`MAX_PARTS`], for tokens whose results depend on no other token.
const MAX_INDEPENDENT_PARTS: usize = 256;
/// Least positions of a part.
const MIN_PART: usize = 128;
/// The exponent at which exponentials end: a score so far below its row's maximum counts as 0. Smaller exponentials add
/// nothing to a sum. But they, their products with values, and sums rescaled by them would be subnormal numbers, each
/// of which costs a processor more than a hundred cycles.
const LEAST_POWER: f32 = -48.0;
/// The running maximum before the first score: finite, so that differences with it are never NaN.
const LOWEST: f32 = f32::MIN / 2.0;

// Arguments in the order of the spec's bindings: q, the views of keys, the views of values, positions, sequences, block
// table and output. Caches in 8 and 4 bits have two views each for keys and values.
const Q: usize = 0;
const K: usize = 1;

/// Codes of a cache in 8 or 4 bits that share a scale.
const BLOCK: usize = DType::Q8Planes.block_len();

/// The native kernel for `attention`. Caches of F32, F16 and F8 need a head size that is a multiple of 16, those in 8
/// and 4 bits one that is a multiple of 32. The block size must be a multiple of 16.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [q, k, v, positions, sequences, table, more @ ..] = spec.inputs.as_slice() else { return None };
    let stored = match k.format {
        DType::Plain(Type::F32) => Stored::F32,
        DType::Plain(Type::F16) => Stored::F16,
        DType::F8 => Stored::F8,
        DType::Q8Planes => Stored::Q8,
        DType::Q4Planes => Stored::Q4,
        _ => return None,
    };
    let formats_fit = v.format == k.format
        && [q, &spec.output].iter().all(|t| t.format == DType::F32)
        && [positions, sequences, table].iter().all(|t| t.format == DType::U32);
    let ([tokens, heads, d], [blocks, kv_heads, block_size, kd]) = (q.shape.as_slice(), k.shape.as_slice()) else {
        return None;
    };
    let ([table_rows, max_blocks], [p_len], [s_len]) =
        (table.shape.as_slice(), positions.shape.as_slice(), sequences.shape.as_slice())
    else {
        return None;
    };
    let fixed = |e: &Extent| match e {
        Extent::Fixed(n) if *n > 0 => Some(*n),
        _ => None,
    };
    let (heads, d, kv_heads, block_size, kd) =
        (fixed(heads)?, fixed(d)?, fixed(kv_heads)?, fixed(block_size)?, fixed(kd)?);
    let Operation::Attention { scale, window, cap, .. } = spec.op else { return None };
    let (has_firsts, has_sinks) = match more {
        [] => (false, false),
        [one] if one.format == DType::U32 => (true, false),
        [one] if one.format == DType::F32 => (false, true),
        [firsts, sinks] if firsts.format == DType::U32 && sinks.format == DType::F32 => (true, true),
        _ => return None,
    };
    let shapes_fit = spec.in_place.is_none()
        && k.shape == v.shape
        && q.shape == spec.output.shape
        && p_len == tokens
        && s_len == tokens
        && d == kd
        && heads % kv_heads == 0
        && d % if stored.has_scales() { BLOCK } else { 16 } == 0
        && block_size % 16 == 0;
    if !(formats_fit && shapes_fit) {
        return None;
    }
    Some(Arc::new(Attention {
        isa: Isa::widest(features),
        isa_of_eight: Isa::widest(if features.half_vectors { features.up_to(InstructionSet::Avx2) } else { features }),
        stored,
        window: window.map_or(usize::MAX, |n| (n as usize).max(1)),
        // The softmax is computed with powers of two.
        scale: scale.get() * std::f32::consts::LOG2_E,
        cap: cap.map(|cap| cap.get() * std::f32::consts::LOG2_E),
        has_firsts,
        has_sinks,
        tokens: *tokens,
        table_rows: *table_rows,
        max_blocks: fixed(max_blocks)?,
        blocks: fixed(blocks)?,
        heads,
        kv_heads,
        d,
        block_size,
        uses_step: spec.uses_step(),
    }))
}

#[derive(Debug)]
struct Attention {
    isa: Isa,
    /// For [`decode`] tiles whose rows round up to eight. Where 512-bit instructions run as two 256-bit steps, wide
    /// vectors cost more sums across lanes there and gain nothing.
    isa_of_eight: Isa,
    stored: Stored,
    /// The most positions that a token attends to, its own included.
    window: usize,
    scale: f32,
    /// The cap of scores, in powers of two as they are.
    cap: Option<f32>,
    /// Whether an input gives each token's first position, and whether one gives each head's sink.
    has_firsts: bool,
    has_sinks: bool,
    tokens: Extent,
    table_rows: Extent,
    max_blocks: usize,
    blocks: usize,
    heads: usize,
    kv_heads: usize,
    d: usize,
    block_size: usize,
    uses_step: bool,
}

/// The element type of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    F32,
    F16,
    /// Floats of a byte.
    F8,
    /// Codes and scales in two planes.
    Q8,
    /// Likewise, two codes in a byte.
    Q4,
}

impl Stored {
    fn has_scales(self) -> bool {
        matches!(self, Stored::Q8 | Stored::Q4)
    }
}

/// The division of a run. Pieces are numbered by head group, then tile (the last, which reads most, first), then part.
struct Plan {
    /// Number of tiles.
    tiles: usize,
    /// Head groups: each key/value head's query heads, at most [`TILE_ROWS`] at a time.
    groups: usize,
    /// Parts that each tile's positions are split into.
    parts: usize,
    /// Positions of a part.
    part_len: usize,
}

/// A piece of the work: a tile and a part of its positions.
struct Piece<'a> {
    tokens: Range<usize>,
    /// Query heads.
    heads: Range<usize>,
    kv_head: usize,
    sequence: u32,
    /// The sequence's row of the block table.
    table: &'a [u32],
    /// Positions; empty when the part begins behind the tile's last position.
    span: Range<usize>,
    part: usize,
}

impl Piece<'_> {
    fn rows(&self) -> usize {
        self.tokens.len() * self.heads.len()
    }

    /// The token and the head of a row. Padding rows, which are never written out, use those of the first row.
    fn token_head(&self, row: usize) -> (usize, usize) {
        let row = if row < self.rows() { row } else { 0 };
        (self.tokens.start + row / self.heads.len(), self.heads.start + row % self.heads.len())
    }
}

/// A run's arguments.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    q: &'a [f32],
    k: Cache<'a>,
    v: Cache<'a>,
    positions: &'a [u32],
    sequences: &'a [u32],
    /// Whole rows of `max_blocks` blocks.
    table: &'a [u32],
    /// Per token the first position that it attends to; empty if the window says it.
    firsts: &'a [u32],
    /// Per head a score that takes part in the softmax without a value; may be empty.
    sinks: &'a [f32],
}

/// Arguments of [`attend`].
#[derive(Clone, Copy)]
struct Work<'a> {
    kernel: &'a Attention,
    inputs: Inputs<'a>,
    piece: &'a Piece<'a>,
    plan: &'a Plan,
}

/// A worker's scratch memory.
struct Workspace<'a> {
    /// Scaled queries.
    q: &'a mut [f32],
    /// Scores of a step and then their exponentials.
    scores: &'a mut [f32],
    /// Sums of values, not yet divided by the sum of exponentials.
    acc: &'a mut [f32],
    /// Running maximum of each row.
    peak: &'a mut [f32],
    /// Running sum of each row, in one or more lanes.
    total: &'a mut [f32],
    /// Decoded keys or values of one block.
    decoded: &'a mut [f32],
}

impl Attention {
    /// Lengths of [`Workspace`]'s parts, multiples of 16.
    fn workspace_lens(&self) -> [usize; 6] {
        let rows = TILE_ROWS * self.d;
        let decoded = if self.stored != Stored::F32 { self.block_size.min(STEP) * self.d } else { 0 };
        [rows, TILE_ROWS * STEP, rows, TILE_ROWS, TILE_ROWS * 16, decoded]
    }

    /// Words for the first token of each tile and the number of tokens; a multiple of 16.
    fn starts_len(&self) -> usize {
        (self.tokens.max() + 1).next_multiple_of(16)
    }

    /// Elements of a partial result: the sums of values, the maximum and the sum; padded.
    fn partial_len(&self) -> usize {
        self.d + 16
    }

    fn isa_for(&self, rows: usize) -> Isa {
        if rows.next_power_of_two() == MOST_DECODE_ROWS { self.isa_of_eight } else { self.isa }
    }

    fn tile_tokens(&self) -> usize {
        if self.tokens.is_independent() {
            return 1;
        }
        (TILE_ROWS / (self.heads / self.kv_heads)).max(1)
    }

    /// Positions of a sequence.
    fn capacity(&self) -> usize {
        self.max_blocks * self.block_size
    }

    /// Most parts of a token in a step of independent tokens.
    fn max_parts(&self) -> usize {
        (MAX_INDEPENDENT_PARTS / self.tokens.max().max(1)).max(1)
    }

    /// Head groups per key/value head.
    fn groups_of_kv_head(&self) -> usize {
        (self.heads / self.kv_heads).div_ceil(TILE_ROWS)
    }

    /// Finds the tiles: runs of tokens of the same sequence, cut to the tile's size. Writes each tile's first token,
    /// then the number of tokens.
    fn find_tiles(&self, sequences: &[u32], starts: &mut [u32]) -> usize {
        let (mut tiles, mut start) = (0, 0);
        for t in 0..sequences.len() {
            if t == start || (sequences[t] == sequences[start] && t - start < self.tile_tokens()) {
                continue;
            }
            starts[tiles] = start as u32;
            (tiles, start) = (tiles + 1, t);
        }
        if !sequences.is_empty() {
            starts[tiles] = start as u32;
            tiles += 1;
        }
        starts[tiles] = sequences.len() as u32;
        tiles
    }

    /// The first position that a token attends to.
    fn first_seen(&self, inputs: &Inputs<'_>, token: usize) -> usize {
        match inputs.firsts.get(token) {
            Some(first) => *first as usize,
            None => (inputs.positions[token] as usize + 1).saturating_sub(self.window),
        }
    }

    /// The positions that tokens attend to, starting at a multiple of 16.
    fn span_of(&self, inputs: &Inputs<'_>, tokens: Range<usize>) -> Range<usize> {
        let capacity = self.capacity();
        let first = tokens.clone().map(|t| self.first_seen(inputs, t)).min().unwrap_or(0) / 16 * 16;
        let positions = &inputs.positions[tokens];
        let end = positions.iter().map(|p| (*p as usize).saturating_add(1)).max().unwrap_or(0).min(capacity);
        first.min(end)..end
    }

    fn plan(&self, tiles: usize, starts: &[u32], inputs: &Inputs<'_>, workers: usize) -> Plan {
        let positions = inputs.positions;
        let groups = self.kv_heads * self.groups_of_kv_head();
        let of_tile = |t: &[u32]| self.span_of(inputs, t[0] as usize..t[1] as usize).len();
        let longest = starts[..tiles + 1].windows(2).map(of_tile).max().unwrap_or(0);
        if self.tokens.is_independent() {
            // The parts of a token are the same beside all others; those behind its last position add nothing.
            let part_len = self.capacity().div_ceil(self.max_parts()).max(MIN_PART).next_multiple_of(16);
            return Plan { tiles, groups, parts: longest.div_ceil(part_len).max(1), part_len };
        }
        let pieces = tiles * groups;
        let wanted = if pieces.is_multiple_of(workers) || pieces > 4 * workers {
            1
        } else {
            (4 * workers).div_ceil(pieces.max(1))
        };
        let parts = wanted.min(MAX_PARTS / positions.len().max(1)).min(longest / MIN_PART).max(1);
        Plan { tiles, groups, parts, part_len: longest.div_ceil(parts).next_multiple_of(16) }
    }

    /// The piece of this number. Checks its tokens' sequences and positions.
    fn piece<'a>(&self, plan: &Plan, index: usize, starts: &[u32], inputs: &Inputs<'a>) -> Result<Piece<'a>, String> {
        let (rest, part) = (index / plan.parts, index % plan.parts);
        let (group, tile) = (rest / plan.tiles, plan.tiles - 1 - rest % plan.tiles);
        let tokens = starts[tile] as usize..starts[tile + 1] as usize;
        let (kv_head, part_of_group) = (group / self.groups_of_kv_head(), group % self.groups_of_kv_head());
        let of_kv_head = self.heads / self.kv_heads;
        let first = part_of_group * TILE_ROWS;
        let heads = kv_head * of_kv_head + first..kv_head * of_kv_head + (first + TILE_ROWS).min(of_kv_head);

        let sequence = inputs.sequences[tokens.start];
        let table_rows = inputs.table.len() / self.max_blocks;
        if sequence as usize >= table_rows {
            let token = tokens.start;
            return Err(format!(
                "token {token}: sequence {sequence} is outside a block table of {table_rows} sequences"
            ));
        }
        let capacity = self.capacity();
        for token in tokens.clone() {
            let position = inputs.positions[token] as usize;
            if position >= capacity {
                return Err(format!(
                    "token {token}: position {position} is outside a block table of {} blocks of {} positions",
                    self.max_blocks, self.block_size
                ));
            }
        }
        let row = sequence as usize * self.max_blocks;
        let seen = self.span_of(inputs, tokens.clone());
        let at = |part: usize| (seen.start + part * plan.part_len).min(seen.end);
        let span = at(part)..at(part + 1);
        Ok(Piece { tokens, heads, kv_head, sequence, table: &inputs.table[row..row + self.max_blocks], span, part })
    }

    /// The start of a row's result in the target, and the factor for its sums of values: the output's row and 1 /
    /// `total`. When positions are split: a partial result for phase 1 and 1; writes the partial result's maximum and
    /// sum.
    #[inline(always)]
    fn place(
        &self,
        piece: &Piece<'_>,
        row: usize,
        (peak, total): (f32, f32),
        plan: &Plan,
        target: &mut [f32],
    ) -> (usize, f32) {
        let (token, head) = piece.token_head(row);
        let index = token * self.heads + head;
        if plan.parts == 1 {
            return (index * self.d, 1.0 / total);
        }
        let first = (index * plan.parts + piece.part) * self.partial_len();
        (target[first + self.d], target[first + self.d + 1]) = (peak, total);
        (first, 1.0)
    }

    /// The indices of values, positions, sequences, block table and output among the arguments.
    fn places(&self) -> [usize; 5] {
        let views = if self.stored.has_scales() { 2 } else { 1 };
        let table = K + 2 * views + 2;
        let more = usize::from(self.has_firsts) + usize::from(self.has_sinks);
        [K + views, K + 2 * views, K + 2 * views + 1, table, table + more + 1]
    }

    /// Caps scores, a whole number of vectors.
    #[inline(always)]
    fn cap_scores<S: Simd>(&self, s: S, scores: &mut [f32]) {
        let Some(cap) = self.cap else { return };
        let slope = s.splat(2.0 * std::f32::consts::LOG2_E / cap);
        for scores in scores.chunks_exact_mut(S::LANES) {
            // SAFETY: the chunk is a vector.
            unsafe { s.store(scores.as_mut_ptr(), s.exp2(s.mul(s.load(scores.as_ptr()), slope))) };
        }
        // tanh(x) = 1 - 2 / (exp(2x) + 1).
        for score in scores {
            *score = cap - 2.0 * cap / (*score + 1.0);
        }
    }

    /// The state of a row's softmax before its first position: its maximum and sum.
    #[inline(always)]
    fn begin(&self, work: Work<'_>, row: usize) -> (f32, f32) {
        match work.inputs.sinks.get(work.piece.token_head(row).1) {
            Some(sink) if work.piece.part == 0 => ((sink * std::f32::consts::LOG2_E).max(LOWEST), 1.0),
            _ => (LOWEST, 0.0),
        }
    }

    /// Phase 1: combines the parts into output rows.
    fn combine(&self, args: &Args<'_>, plan: &Plan, rows: usize, worker: &Worker<'_>) {
        let shared = worker.shared_scratch();
        // SAFETY: shared scratch memory has room for `rows` × `parts` partial results (`shared_scratch`), and no
        // worker writes it in this phase.
        let partials = unsafe { std::slice::from_raw_parts(shared.data.cast::<f32>(), shared.bytes / 4) };
        let output = args.output::<f32>(self.places()[4]);
        while let Some(row) = worker.next(rows) {
            let of_row = &partials[row * plan.parts * self.partial_len()..][..plan.parts * self.partial_len()];
            let parts = || of_row.chunks_exact(self.partial_len());
            let peak = parts().map(|p| p[self.d]).fold(LOWEST, f32::max);
            let weight = |p: &[f32]| (p[self.d] - peak).exp2();
            let total: f32 = parts().map(|p| p[self.d + 1] * weight(p)).sum();
            // SAFETY: each row is claimed by one worker.
            let output = unsafe { output.part(row * self.d..(row + 1) * self.d) };
            output.fill(0.0);
            for part in parts() {
                let weight = weight(part) / total;
                for (y, x) in output.iter_mut().zip(part) {
                    *y += x * weight;
                }
            }
        }
    }
}

impl NativeKernel for Attention {
    fn phases(&self) -> usize {
        2
    }

    fn shared_scratch(&self) -> usize {
        let parts = match self.tokens.is_independent() {
            true => self.tokens.max() * self.max_parts(),
            false => MAX_PARTS,
        };
        parts * self.heads * self.partial_len() * 4
    }

    fn worker_scratch(&self) -> usize {
        (self.starts_len() + self.workspace_lens().iter().sum::<usize>()) * 4
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let step = if self.uses_step { args.step() } else { &[] };
        let (tokens, table_rows) = (self.tokens.value(step), self.table_rows.value(step));
        let cache_len = self.blocks * self.kv_heads * self.block_size * self.d;
        let cache = |index| -> Result<Cache<'_>, String> {
            Ok(match self.stored {
                Stored::F32 => Cache::F32(input(args, index, cache_len)?),
                Stored::F16 => Cache::F16(input(args, index, cache_len)?),
                Stored::F8 => Cache::F8(input(args, index, cache_len)?),
                Stored::Q8 => Cache::Q8(input(args, index, cache_len)?, input(args, index + 1, cache_len / BLOCK)?),
                Stored::Q4 => Cache::Q4(input(args, index, cache_len / 2)?, input(args, index + 1, cache_len / BLOCK)?),
            })
        };
        let [values, positions, sequences, table, output] = self.places();
        let rows = tokens * self.heads;
        room::<f32>(args, output, rows * self.d)?;
        let inputs = Inputs {
            q: input(args, Q, rows * self.d)?,
            k: cache(K)?,
            v: cache(values)?,
            positions: input(args, positions, tokens)?,
            sequences: input(args, sequences, tokens)?,
            table: input(args, table, table_rows * self.max_blocks)?,
            firsts: if self.has_firsts { input(args, table + 1, tokens)? } else { &[] },
            sinks: if self.has_sinks { input(args, output - 1, self.heads)? } else { &[] },
        };
        let scratch = std::mem::take(&mut worker.scratch);
        let (starts, floats) = scratch.split_at_mut(self.starts_len() * 4);
        // SAFETY: any bytes are a word or a float; the memory is aligned to 64 bytes, and the first part is a multiple
        // of that.
        let ((_, starts, _), (_, floats, _)) = unsafe { (starts.align_to_mut::<u32>(), floats.align_to_mut::<f32>()) };
        let mut rest = floats;
        let [q, scores, acc, peak, total, decoded] = self.workspace_lens().map(|len| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            part
        });
        let mut ws = Workspace { q, scores, acc, peak, total, decoded };

        let tiles = self.find_tiles(inputs.sequences, starts);
        let plan = self.plan(tiles, starts, &inputs, worker.count);
        if phase == 1 {
            if plan.parts > 1 {
                self.combine(args, &plan, rows, worker);
            }
            return Ok(());
        }
        let target = if plan.parts == 1 {
            // SAFETY: a piece writes only the output rows of its tokens and heads, and is claimed by one worker.
            unsafe { args.write::<f32>(output) }
        } else {
            let shared = worker.shared_scratch();
            // SAFETY: a piece writes only the partial results of its rows and part, and is claimed by one worker.
            unsafe { std::slice::from_raw_parts_mut(shared.data.cast::<f32>(), shared.bytes / 4) }
        };
        while let Some(index) = worker.next(plan.groups * plan.tiles * plan.parts) {
            let piece = self.piece(&plan, index, starts, &inputs)?;
            let work = Work { kernel: self, inputs, piece: &piece, plan: &plan };
            attend(self.isa_for(piece.rows()), work, &mut ws, target)?;
        }
        Ok(())
    }
}

/// 2^`x` − 2^[`LEAST_POWER`] for `x` ≤ 0, and exactly 0 for `x` ≤ [`LEAST_POWER`]; NaN for NaN.
#[inline(always)]
fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // `max` returns the second operand if one is NaN.
    let x = s.max(s.splat(LEAST_POWER), x);
    s.sub(s.exp2(x), s.splat(LEAST_POWER.exp2()))
}

simd_entry! {
    /// One piece of the work.
    fn attend(work: Work<'_>, ws: &mut Workspace<'_>, target: &mut [f32]) -> Result<(), String> = attend_with
}

#[inline(always)]
fn attend_with<S: Simd>(s: S, work: Work<'_>, ws: &mut Workspace<'_>, target: &mut [f32]) -> Result<(), String> {
    if work.piece.rows() <= MOST_DECODE_ROWS.min(S::LANES) {
        decode::attend(s, work, ws, target)
    } else {
        prefill::attend(s, work, ws, target)
    }
}
