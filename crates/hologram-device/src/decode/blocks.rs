//! Dequantizes blocks as their rows describe them.

use std::hint::black_box;

use super::{number, single};
use crate::format::{Bits, Codes, Row, Scales, Values, rows};

/// Dequantizes blocks of `BYTES` bytes: as many as both slices hold. The loop over elements is in no closure: one that
/// is not inlined would be compiled without the caller's instruction set, and for runs of any length.
#[inline(always)]
pub fn decode<R: Row, const BYTES: usize, const LEN: usize, const RUNS: usize>(bytes: &[u8], out: &mut [f32]) {
    let (mut codes, mut scales, mut minimums) = ([0; LEN], [0.0; RUNS], [0.0; RUNS]);
    for (block, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        take_codes::<R>(block, &mut codes);
        take_scales::<R>(block, &mut scales, &mut minimums);
        let runs = out.chunks_exact_mut(LEN / RUNS).zip(codes.chunks_exact(LEN / RUNS));
        for ((out, codes), (scale, minimum)) in runs.zip(scales.iter().zip(&minimums)) {
            // Without `black_box` the loop over runs is vectorised with strided elements, which takes twice the time.
            let (scale, minimum) = (black_box(*scale), *minimum);
            // Rounds once, as the product is exact: scale and code have at most 23 significant bits together (Q6_K 18
            // and 5, IQ4_XS 16 and 7).
            if matches!(R::ROW.values, Values::E4M3) {
                out.iter_mut().zip(codes).for_each(|(y, c)| *y = scale * Values::e4m3(*c as u8));
                continue;
            }
            out.iter_mut().zip(codes).for_each(|(y, c)| *y = scale * f32::from(*c) - minimum);
        }
    }
}

/// Splits blocks of `BYTES` bytes: calls `visit` for each with its `LEN` codes, and a scale and a minimum for each of
/// its `RUNS` runs.
#[inline(always)]
pub fn each<R: Row, const BYTES: usize, const LEN: usize, const RUNS: usize>(
    bytes: &[u8],
    mut visit: impl FnMut(&[i8], &[f32], &[f32]),
) {
    let (mut codes, mut scales, mut minimums) = ([0; LEN], [0.0; RUNS], [0.0; RUNS]);
    for block in bytes.as_chunks::<BYTES>().0 {
        take_codes::<R>(block, &mut codes);
        take_scales::<R>(block, &mut scales, &mut minimums);
        visit(&codes, &scales, &minimums);
    }
}

/// The codes of a block, as they are multiplied.
#[inline(always)]
fn take_codes<R: Row>(block: &[u8], codes: &mut [i8]) {
    match R::ROW.codes {
        Codes::Bits(low, high) => {
            each_bits(block, low, codes, |code, bits| {
                *code = match R::ROW.values {
                    Values::Offset(offset) => bits as i8 - offset as i8,
                    Values::Ternary => bits as i8 - 1,
                    Values::Signed | Values::E4M3 => bits as i8,
                    Values::Table(table) => table[usize::from(bits)],
                };
            });
            if let Some(high) = high {
                each_bits(block, high, codes, |code, bits| *code += (bits << high.to) as i8);
            }
        }
        Codes::Trits(parts) => {
            let (mut at, mut codes) = (0, codes);
            for bytes in parts {
                let (part, rest) = codes.split_at_mut(codes.len().min(5 * bytes));
                digits(&block[at..at + bytes], part);
                (at, codes) = (at + bytes, rest);
            }
        }
    }
}

/// Visits numbers with their bits.
#[inline(always)]
fn each_bits(block: &[u8], bits: Bits, numbers: &mut [i8], visit: impl Fn(&mut i8, u8)) {
    let mask = ((1u32 << bits.bits) - 1) as u8;
    let runs = block[bits.at..].chunks_exact(bits.run);
    for (numbers, bytes) in numbers.chunks_exact_mut(bits.run * bits.per_byte()).zip(runs) {
        for (l, numbers) in numbers.chunks_exact_mut(bits.run).enumerate() {
            let shift = l as u32 * bits.bits;
            numbers.iter_mut().zip(bytes).for_each(|(number, byte)| visit(number, byte >> shift & mask));
        }
    }
}

/// Digits of base 3 as -1, 0 and 1: the first digit of all bytes, then the second, until `codes` is full.
#[inline(always)]
fn digits(bytes: &[u8], codes: &mut [i8]) {
    let mut power = 1u8;
    for codes in codes.chunks_exact_mut(bytes.len()) {
        for (c, b) in codes.iter_mut().zip(bytes) {
            *c = ((u16::from(b.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}

/// The scale and the minimum of each run. Formats without minimums leave `minimums` unchanged.
#[inline(always)]
fn take_scales<R: Row>(block: &[u8], scales: &mut [f32], minimums: &mut [f32]) {
    let d = if R::ROW.numbers.is_empty() { 1.0 } else { number(block, R::ROW.numbers[0]) };
    let m = if R::ROW.has_minimum() { number(block, R::ROW.numbers[1]) } else { 0.0 };
    match R::ROW.scales {
        Scales::One => {
            scales[0] = d;
            if R::ROW.has_minimum() {
                minimums[0] = -m;
            }
        }
        Scales::Nibbles { at } => {
            for ((scale, minimum), byte) in scales.iter_mut().zip(minimums).zip(&block[at..]) {
                *scale = d * f32::from(byte & 15);
                *minimum = m * f32::from(byte >> 4);
            }
        }
        Scales::SixBitPairs { at } => {
            let bytes = &block[at..at + 12];
            for j in 0..4 {
                let (s, t, both) = (bytes[j], bytes[4 + j], bytes[8 + j]);
                scales[j] = d * f32::from(s & 63);
                minimums[j] = m * f32::from(t & 63);
                scales[4 + j] = d * f32::from(both & 15 | s >> 6 << 4);
                minimums[4 + j] = m * f32::from(both >> 4 | t >> 6 << 4);
            }
        }
        Scales::SixBits { low, high, .. } => {
            for (j, scale) in scales.iter_mut().enumerate() {
                *scale = d * (f32::from(low.read(block, j) | high.read(block, j)) - 32.0);
            }
        }
        Scales::Signed { at } => {
            scales.iter_mut().zip(&block[at..]).for_each(|(scale, byte)| *scale = d * f32::from(*byte as i8));
        }
        Scales::Fractions { at, of, .. } => {
            let d = d / of as f32;
            scales.iter_mut().zip(&block[at..]).for_each(|(scale, byte)| *scale = d * f32::from(*byte as i8));
        }
        Scales::E8M0 { at } => scales[0] = Scales::e8m0(block[at]),
        Scales::F32 { at } => scales[0] = single(block, at),
        Scales::UE4M3 { at } => {
            scales.iter_mut().zip(&block[at..]).for_each(|(scale, byte)| *scale = Scales::ue4m3(*byte));
        }
    }
}

/// Converts a block of `TQ1_0` to one of `TQ2_0` with the same values.
pub fn tq1_0_to_tq2_0(block: &[u8], out: &mut [u8]) {
    const BITS: Bits = rows::TQ2_0::ROW.bits().0;
    const D: [usize; 2] = [rows::TQ1_0::ROW.numbers[0], rows::TQ2_0::ROW.numbers[0]];
    let mut codes = [0; rows::TQ1_0::ROW.len];
    take_codes::<rows::TQ1_0>(block, &mut codes);
    out.fill(0);
    for (i, code) in codes.iter().enumerate() {
        let (at, shift) = BITS.place(i);
        out[at] |= ((code + 1) as u8) << shift;
    }
    out[D[1]..D[1] + 2].copy_from_slice(&block[D[0]..D[0] + 2]);
}
