//! Products of packed rows with a few tokens, row by row as the weights lie in memory: bound by memory, not by
//! instructions.
//!
//! Codes stay unsigned and are multiplied with the activations' signed bytes. The offset that makes codes unsigned, and
//! minimums, are corrected with sums of the activations, which are computed once.
//!
//! Several rows are multiplied at once (see [`PackedRows::streams`]) and share the loads of the activations.

#![allow(clippy::needless_range_loop, reason = "registers are indexed by token in several arrays at once")]

use hologram_device::DType;

#[cfg(target_arch = "x86_64")]
mod nibbles;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod split_avx2;
#[cfg(target_arch = "x86_64")]
mod ternary;

use super::blocks::{Block32, SuperBlock, for_format};
use super::bytes::Bytes;
use super::{PackedRows, STREAMS, prefetch_lines, prefetch_page_after};
use crate::features::Features;

/// The most tokens that are multiplied with a row at a time.
pub const TOGETHER: usize = 4;
/// The kernels of a format on an instruction set.
#[derive(Clone, Copy)]
pub struct RowKernels {
    /// Bytes prepared per token, from its number of elements.
    pub prepared: fn(usize) -> usize,
    /// Prepares a token: (codes, scales, elements of a group, the destination).
    pub prepare: unsafe fn(&[i8], &[f32], usize, *mut u8),
    /// Multiplies rows with tokens, one kernel per number of tokens: (rows, tokens).
    pub multiply: [unsafe fn(&PackedRows, &Prepared); TOGETHER],
    /// Multiplies rows with one token in a single stream; `None` if the products cost time beside the reading.
    pub in_one_stream: Option<unsafe fn(&PackedRows, &Prepared)>,
}

/// Prepared tokens.
pub struct Prepared {
    /// Codes, `k` bytes per token.
    pub codes: *const u8,
    /// The output of [`RowKernels::prepare`].
    pub extra: *const u8,
    /// Bytes of `extra` per token.
    pub extra_bytes: usize,
}

/// The kernels for a weight format with activations in groups of `group`.
pub fn find(format: DType, k: usize, group: usize, features: Features) -> Option<RowKernels> {
    if !k.is_multiple_of(format.block_len()) || group == 0 || !k.is_multiple_of(group) || !group.is_multiple_of(32) {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    {
        use x86::*;
        let vnni = features.avx512 && features.vnni;
        if vnni && format == DType::TQ2_0 {
            return group.is_multiple_of(256).then_some(ternary::TQ2_0);
        }
        if vnni && k.is_multiple_of(64) {
            if let Some(kernels) = split::find(format, group).filter(|_| features.gfni) {
                return Some(kernels);
            }
            if let Some(found) = for_format!(format, super vnni_super, block vnni_block, nibbles of_nibbles)
                && (features.gfni || !found.gfni)
            {
                return found.filter(group);
            }
        }
        if features.avx2 {
            if let Some(kernels) = split_avx2::find(format) {
                return Some(kernels);
            }
            return for_format!(format, super avx2_super, block avx2_block, nibbles avx2_block)?.filter(group);
        }
    }
    let _ = features;
    None
}

/// The kernels of a format.
struct Found {
    kernels: RowKernels,
    /// Groups must be a multiple of this many elements.
    group: usize,
    /// Whether they need [`Features::gfni`].
    gfni: bool,
}

impl Found {
    fn filter(self, group: usize) -> Option<RowKernels> {
        group.is_multiple_of(self.group).then_some(self.kernels)
    }
}

/// Bytes prepared for super-blocks, in this order: per block the sums of 16 runs of codes, stored by
/// [`Bytes::store_sums`] (for runs of 32: 8 zeros and the sums of 8 runs); the scale of each block; the codes in
/// [`SuperBlock::ORDER`]; their offset corrections [`Bytes::offset_correction`]. Blocks with an offset have the
/// corrections, those with minimums the sums.
fn prepared_super(k: usize) -> usize {
    k / 256 * 36 + 2 * k
}

#[inline(always)]
unsafe fn prepare_super<S: Bytes, B: SuperBlock>(s: S, codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    let blocks = codes.len() / 256;
    // SAFETY: the caller has room for `prepared_super` bytes, aligned to 4.
    let (factors, ordered) = unsafe {
        (
            std::slice::from_raw_parts_mut(to.add(blocks * 32).cast::<f32>(), blocks),
            std::slice::from_raw_parts_mut(to.add(blocks * 36).cast::<i8>(), codes.len()),
        )
    };
    for (block, ordered) in codes.chunks_exact(256).zip(ordered.chunks_exact_mut(256)) {
        for (unit, to) in B::ORDER.iter().zip(ordered.chunks_exact_mut(32)) {
            to.copy_from_slice(&block[32 * unit..32 * unit + 32]);
        }
    }
    if let Some(offset) = B::OFFSET {
        for v in 0..codes.len() / S::LEN {
            let left = B::LEFT[B::ORDER[v * S::UNITS % 8]];
            // SAFETY: the codes are followed by as many bytes.
            unsafe {
                let from = to.add(blocks * 36 + v * S::LEN);
                s.store(from.add(codes.len()), s.offset_correction(offset << left, s.load(from)));
            }
        }
    }
    for (b, codes) in codes.chunks_exact(256).enumerate() {
        // For minimums.
        if B::OFFSET.is_none() {
            let mut sums = [0; 16];
            for (codes, sum) in codes.chunks_exact(B::RUN).zip(&mut sums[16 - 256 / B::RUN..]) {
                *sum = codes.iter().map(|c| i16::from(*c)).sum();
            }
            // SAFETY: there is room for 32 bytes per block.
            unsafe { s.store_sums(to.add(32 * b), &sums) };
        }
        factors[b] = scales[b * 256 / group] / most_left::<B>();
    }
}

/// 2 to the largest shift of [`SuperBlock::LEFT`]: sums of products are too large by this factor.
const fn most_left<B: SuperBlock>() -> f32 {
    let (mut most, mut unit) = (0, 0);
    while unit < 8 {
        most = if B::LEFT[unit] > most { B::LEFT[unit] } else { most };
        unit += 1;
    }
    (1u32 << most) as f32
}

/// Factor for the scale of each run that makes up for other runs' larger shifts.
const fn lift<B: SuperBlock>() -> [i16; 16] {
    let (mut by, mut run) = ([1; 16], 0);
    while run < 256 / B::RUN {
        by[run] = most_left::<B>() as i16 >> B::LEFT[run * B::RUN / 32];
        run += 1;
    }
    by
}

/// # Safety
/// The rows and `T` prepared tokens exist; the output can be written; the processor has the instructions.
#[inline(always)]
unsafe fn multiply_super<S: Bytes, B: SuperBlock, const T: usize, const R: usize>(s: S, w: &PackedRows, x: &Prepared) {
    const { assert!(R == 2, "two rows are multiplied at once") };
    let blocks = w.k / 256;
    let mut totals = Totals::<S, T, 2>::new(s);
    for rows in w.streams::<2>() {
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes));
        let ahead = w.ahead::<2>(rows);
        let (mut acc, mut low) = ([s.no_totals(); T], [s.no_lows(); T]);
        for b in 0..blocks {
            let at = firsts.map(|first| first.wrapping_add(b * B::BYTES));
            for ahead in ahead {
                prefetch_lines(ahead.wrapping_add(b * B::BYTES), B::BYTES);
            }
            // SAFETY: the block lies in the rows; tokens have as many elements as rows.
            unsafe {
                let of_blocks = B::scales(s, at);
                let lift = if most_left::<B>() > 1.0 { Some(const { &lift::<B>() }) } else { None };
                let scales = s.scales(of_blocks.of_runs, lift);
                let mut sums = [s.no_sums(); T];
                // A macro, so that fields are constants.
                macro_rules! vectors {
                    ($($v:literal)*) => {$(
                        let units = units_of::<S, B>($v);
                        let codes = [codes_super::<S, B>(s, at[0], units, B::LEFT), codes_super::<S, B>(s, at[1], units, B::LEFT)];
                        for t in 0..T {
                            let from = x.extra.add(t * x.extra_bytes + blocks * 36 + b * 256 + $v * S::LEN);
                            let on = if B::OFFSET.is_some() { s.load(from.add(w.k)) } else { s.zero() };
                            sums[t] = s.add_runs::<B>(sums[t], $v, on, codes, s.load(from), scales);
                        }
                    )*};
                }
                vectors!(0 1 2 3);
                if S::UNITS == 1 {
                    vectors!(4 5 6 7);
                }
                for t in 0..T {
                    let extra = x.extra.add(t * x.extra_bytes);
                    let factors = s.factors(of_blocks.halves, extra.add(blocks * 32).cast::<f32>().add(b).read());
                    acc[t] = s.add_sums(acc[t], sums[t], factors);
                    if B::OFFSET.is_none() {
                        let minimums = of_blocks.minimums.unwrap_or(of_blocks.of_runs);
                        low[t] = s.add_minimums(low[t], minimums, extra.add(b * 32), factors);
                    }
                }
            }
        }
        let mut sums = [[s.zero_f(); 2]; T];
        for t in 0..T {
            sums[t] = s.rows(acc[t], low[t], -most_left::<B>());
        }
        // SAFETY: promised by the caller.
        unsafe { totals.add(s, w, sums) };
    }
    // SAFETY: promised by the caller.
    unsafe { totals.store(s, w) };
}

/// The sums of as many rows as a vector has lanes, each spread over the lanes of a vector. The lanes of all are added
/// up together, so nothing waits at the end of a row.
struct Totals<S: Bytes, const T: usize, const R: usize> {
    sums: [[[S::F; 16]; R]; T],
    /// The first row of each stream's sums, and the number of rows.
    first: usize,
    count: usize,
}

impl<S: Bytes, const T: usize, const R: usize> Totals<S, T, R> {
    #[inline(always)]
    fn new(s: S) -> Totals<S, T, R> {
        Totals { sums: [[[s.zero_f(); 16]; R]; T], first: 0, count: 0 }
    }

    /// Adds the sums of each stream's next row.
    ///
    /// # Safety
    /// The rows' output can be written; the processor has the instructions.
    #[inline(always)]
    unsafe fn add(&mut self, s: S, w: &PackedRows, sums: [[S::F; R]; T]) {
        for t in 0..T {
            for j in 0..R {
                self.sums[t][j][self.count] = sums[t][j];
            }
        }
        self.count += 1;
        if self.count == S::LANES {
            // SAFETY: promised by the caller.
            unsafe { self.store(s, w) };
        }
    }

    /// Stores the sums added since the last call.
    ///
    /// # Safety
    /// As [`Totals::add`].
    #[inline(always)]
    unsafe fn store(&mut self, s: S, w: &PackedRows) {
        for j in 0..R {
            let first = self.first + j * w.row_distance::<R>();
            let count = self.count.min(w.count.saturating_sub(first));
            for t in 0..T {
                // SAFETY: promised by the caller.
                unsafe { s.store_totals(&self.sums[t][j], w.y.wrapping_add(t * w.stride + first), count) };
            }
        }
        self.first += self.count;
        self.count = 0;
    }
}

/// The units of a vector of a block's codes; the same unit twice if a vector has one.
#[inline(always)]
fn units_of<S: Bytes, B: SuperBlock>(vector: usize) -> [usize; 2] {
    [B::ORDER[vector * S::UNITS], B::ORDER[vector * S::UNITS + S::UNITS - 1]]
}

/// The codes of a vector of these units of a block, each shifted left by `left`. Only the first unit's if a vector has
/// one.
///
/// # Safety
/// The block can be read.
#[inline(always)]
pub unsafe fn codes_super<S: Bytes, B: SuperBlock>(s: S, block: *const u8, units: [usize; 2], left: [u32; 8]) -> S::V {
    let [mut low, mut high] = B::fields(units[0]);
    let [mut low_2, mut high_2] = B::fields(units[1]);
    for (field, unit) in [(&mut low, units[0]), (&mut high, units[0]), (&mut low_2, units[1]), (&mut high_2, units[1])]
    {
        field.to += left[unit];
    }
    // SAFETY: promised by the caller.
    unsafe {
        let codes = s.field(block, [low, low_2]);
        if high.bits > 0 { s.or(codes, s.field(block, [high, high_2])) } else { codes }
    }
}

/// Bytes prepared for units of 32: a scale per unit, then the sum of its codes times the scale; both numbers are
/// rounded up to a multiple of 16. Then, if the weights' codes take less than a byte, the codes, with each two vectors
/// split.
fn prepared_block(k: usize) -> usize {
    (k / 32).next_multiple_of(16) * 8 + k
}

#[inline(always)]
unsafe fn prepare_block<S: Bytes, B: Block32>(s: S, codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    let units = (codes.len() / 32).next_multiple_of(16);
    for at in (0..codes.len() / (2 * S::LEN) * (2 * S::LEN)).step_by(2 * S::LEN).filter(|_| !B::WHOLE_BYTES) {
        // SAFETY: both vectors lie in the codes, and the caller has room for as many bytes after the numbers.
        unsafe {
            let from = codes.as_ptr().cast::<u8>().add(at);
            let [first, last] = s.split_units([s.load(from), s.load(from.add(S::LEN))]);
            s.store(to.add(units * 8 + at), first);
            s.store(to.add(units * 8 + at + S::LEN), last);
        }
    }
    // SAFETY: the caller has room for `prepared_block` bytes, aligned to 4.
    let (factors, sums) = unsafe { std::slice::from_raw_parts_mut(to.cast::<f32>(), 2 * units) }.split_at_mut(units);
    factors.fill(0.0);
    sums.fill(0.0);
    for (u, codes) in codes.chunks_exact(32).enumerate() {
        factors[u] = scales[u * 32 / group];
        sums[u] = f32::from(codes.iter().map(|c| i16::from(*c)).sum::<i16>()) * factors[u];
    }
}

/// # Safety
/// As [`multiply_super`].
#[inline(always)]
unsafe fn multiply_block<S: Bytes, B: Block32, const T: usize, const R: usize>(s: S, w: &PackedRows, x: &Prepared) {
    let units = w.k / 32;
    let padded = units.next_multiple_of(16);
    let mut totals = Totals::<S, T, R>::new(s);
    for rows in w.streams::<R>() {
        let firsts = rows.map(|row| w.first.wrapping_add(row * w.bytes));
        let ahead = w.ahead::<R>(rows);
        let (mut acc, mut low) = ([[s.zero_f(); R]; T], [[s.zero_f(); R]; T]);
        // Macros: a closure that is not inlined would be compiled without the instruction set.
        macro_rules! vector {
            ($from:expr, $factors:expr, $v:expr) => {
                let unit = $from + $v * S::UNITS;
                let mut x_of = [s.zero(); T];
                for t in 0..T {
                    x_of[t] = s.load(x.codes.add(t * w.k + unit * 32));
                }
                for j in 0..R {
                    let codes = B::codes(s, firsts[j], [unit, unit + S::UNITS - 1]);
                    for t in 0..T {
                        let x = x_of[t];
                        let sums = if B::WIDE { s.dots::<true>(codes, x) } else { s.dots::<false>(codes, x) };
                        acc[t][j] = s.add_products(acc[t][j], sums, s.pick($factors[t][j], $v));
                    }
                }
            };
        }
        macro_rules! halves {
            ($from:expr, $factors:expr, $v:expr) => {
                let unit = $from + $v * 2 * S::UNITS;
                let mut x_of = [[s.zero(); 2]; T];
                for t in 0..T {
                    let split = x.extra.add(t * x.extra_bytes + padded * 8 + unit * 32);
                    x_of[t] = [s.load(split), s.load(split.add(S::LEN))];
                }
                for j in 0..R {
                    let codes = B::halves(s, firsts[j], unit);
                    for t in 0..T {
                        let sums = match B::WIDE {
                            true => s.dots_of_halves::<true>(codes, x_of[t]),
                            false => s.dots_of_halves::<false>(codes, x_of[t]),
                        };
                        acc[t][j] = s.add_products(acc[t][j], sums, s.pick_of_halves($factors[t][j], $v));
                    }
                }
            };
        }
        // Unrolled, so that places are constants.
        macro_rules! each {
            ($do:ident, $from:expr, $factors:expr, $($v:literal)*) => { $($do!($from, $factors, $v);)* };
        }
        let whole = units / S::LANES * S::LANES;
        // SAFETY: the units lie in the rows; tokens have as many elements as rows, and scales for whole vectors.
        unsafe {
            for from in (0..whole).step_by(S::LANES) {
                let factors = factors::<S, B, T, R>(s, firsts, ahead, x, [from, S::LANES, padded], &mut low);
                if !B::WHOLE_BYTES {
                    each!(halves, from, factors, 0 1 2 3);
                } else {
                    each!(vector, from, factors, 0 1 2 3 4 5 6 7);
                }
            }
            if whole < units {
                let factors = factors::<S, B, T, R>(s, firsts, ahead, x, [whole, units - whole, padded], &mut low);
                for v in 0..(units - whole) / S::UNITS {
                    vector!(whole, factors, v);
                }
            }
        }
        let offset = s.by_eights([if B::OFFSET == 0 { 1.0 } else { -B::OFFSET as f32 }; 2]);
        for t in 0..T {
            for j in 0..R {
                acc[t][j] = s.fma(low[t][j], offset, acc[t][j]);
            }
        }
        // SAFETY: promised by the caller.
        unsafe { totals.add(s, w, acc) };
    }
    // SAFETY: promised by the caller.
    unsafe { totals.store(s, w) };
}

/// The factors of `count` units starting at `from`. Adds the offset corrections or the minimums to `low`. Each token
/// has `padded` scales, and as many sums.
///
/// # Safety
/// As [`multiply_super`].
#[inline(always)]
unsafe fn factors<S: Bytes, B: Block32, const T: usize, const R: usize>(
    s: S,
    firsts: [*const u8; R],
    ahead: [*const u8; R],
    x: &Prepared,
    [from, count, padded]: [usize; 3],
    low: &mut [[S::F; R]; T],
) -> [[S::F; R]; T] {
    let mut factors = [[s.zero_f(); R]; T];
    for j in 0..R {
        let (at, bytes) = (from / B::UNITS * B::BYTES, S::LANES / B::UNITS * B::BYTES);
        if R == 1 {
            prefetch_page_after(firsts[j].wrapping_add(at), bytes);
        } else {
            prefetch_lines(ahead[j].wrapping_add(at), bytes);
        }
        // SAFETY: promised by the caller.
        unsafe {
            let (scales, minimums) = B::scales(s, firsts[j], from, count);
            for t in 0..T {
                let extra = x.extra.add(t * x.extra_bytes).cast::<f32>().add(from);
                factors[t][j] = s.mul(scales, s.load_f(extra));
                let with = if B::OFFSET == 0 { minimums } else { scales };
                low[t][j] = s.fma(with, s.load_f(extra.add(padded)), low[t][j]);
            }
        }
    }
    factors
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::bytes::{Avx2, Vnni};
    pub use super::nibbles::of_nibbles;
    use super::*;

    // The last argument is `RowKernels::in_one_stream`.
    macro_rules! kernels {
        ($name:ident, $isa:ident, $features:literal, $bound:ident, $multiply:ident, $prepare:ident, $prepared:ident, $group:literal, $one:expr) => {
            pub fn $name<B: $bound>() -> Found {
                #[target_feature(enable = $features)]
                unsafe fn multiply<B: $bound, const T: usize, const R: usize>(w: &PackedRows, x: &Prepared) {
                    // SAFETY: the processor has the features; the rest is promised by the caller.
                    unsafe { $multiply::<$isa, B, T, R>($isa::assume(), w, x) }
                }
                #[target_feature(enable = $features)]
                unsafe fn prepare<B: $bound>(codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
                    // SAFETY: the processor has the features; the rest is promised by the caller.
                    unsafe { $prepare::<$isa, B>($isa::assume(), codes, scales, group, to) }
                }
                let multiply: [unsafe fn(&PackedRows, &Prepared); TOGETHER] = [
                    multiply::<B, 1, STREAMS>,
                    multiply::<B, 2, STREAMS>,
                    multiply::<B, 3, STREAMS>,
                    multiply::<B, 4, STREAMS>,
                ];
                let kernels = RowKernels { prepared: $prepared, prepare: prepare::<B>, multiply, in_one_stream: $one };
                Found { kernels, group: $group, gfni: false }
            }
        };
    }
    /// Both kinds of kernels on an instruction set.
    macro_rules! isa {
        ($isa:ident, $features:literal, $super:ident, $block:ident) => {
            kernels!($super, $isa, $features, SuperBlock, multiply_super, prepare_super, prepared_super, 256, None);
            kernels!(
                $block,
                $isa,
                $features,
                Block32,
                multiply_block,
                prepare_block,
                prepared_block,
                32,
                <B as Block32>::WHOLE_BYTES.then_some(multiply::<B, 1, 1> as unsafe fn(&PackedRows, &Prepared))
            );
        };
    }
    isa!(Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c", vnni_super, vnni_block);
    isa!(Avx2, "avx2,fma,f16c", avx2_super, avx2_block);
}
