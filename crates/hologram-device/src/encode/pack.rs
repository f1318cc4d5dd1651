//! Rounds scales to a format's integers, and writes scales and codes into blocks.

use half::f16;

use super::fit::Fit;
use crate::format::{Bits, BlockFormat, Codes, Scales};

/// The weighted squared error of a run with a scale and a minimum.
type RunError<'a> = &'a dyn Fn(usize, (f32, f32)) -> f32;

/// Writes the scales of a block's runs, and returns them as they are read: scale and minimum. Of the integers next to a
/// run's scale, those with the least error are chosen.
pub fn scales(row: &BlockFormat, runs: &[Fit], error: RunError<'_>, out: &mut [u8]) -> Vec<(f32, f32)> {
    let mut number = |which: usize, value: f32| {
        let value = f16::from_f32(value);
        out[row.numbers[which]..][..2].copy_from_slice(&value.to_le_bytes());
        value.to_f32()
    };
    let largest = |of: fn(&Fit) -> f32| runs.iter().map(of).fold(0.0f32, f32::max);
    // The integer nearest to value / unit.
    let integer = |value: f32, unit: f32, least: f32, most: f32| {
        let inverse = if unit == 0.0 { 0.0 } else { 1.0 / unit };
        (value * inverse).round_ties_even().clamp(least, most)
    };
    match row.scales {
        Scales::One => {
            let d = number(0, runs[0].scale);
            let m = if row.has_minimum() { -number(1, -runs[0].minimum) } else { 0.0 };
            vec![(d, m)]
        }
        Scales::E8M0 { at } => {
            out[at] = (runs[0].scale.log2() + 128.0).clamp(0.0, 254.0) as u8;
            vec![(Scales::e8m0(out[at]), 0.0)]
        }
        Scales::F32 { at } => {
            out[at..at + 4].copy_from_slice(&runs[0].scale.to_le_bytes());
            vec![(runs[0].scale, 0.0)]
        }
        Scales::Nibbles { .. } | Scales::SixBitPairs { .. } => {
            let most = if matches!(row.scales, Scales::Nibbles { .. }) { 15.0 } else { 63.0 };
            let units = [largest(|run| run.scale) / most, largest(|run| run.minimum) / most];
            let (d, m) = (number(0, units[0]), number(1, units[1]));
            let around = |value: f32, unit: f32| {
                let middle = integer(value, unit, 0.0, most);
                [middle, (middle - 1.0).max(0.0), (middle + 1.0).min(most)]
            };
            let mut factors = Vec::with_capacity(runs.len());
            for (i, run) in runs.iter().enumerate() {
                let (scales, minimums) = (around(run.scale, units[0]), around(run.minimum, units[1]));
                let pairs = scales.into_iter().flat_map(|s| minimums.map(|t| [s, t]));
                factors.push(least(pairs, |[s, t]| error(i, (d * s, m * t))).unwrap_or_default().map(|n| n as u8));
            }
            write_pairs(row.scales, &factors, out);
            factors.iter().map(|[s, t]| (d * f32::from(*s), m * f32::from(*t))).collect()
        }
        Scales::SixBits { .. } | Scales::Signed { .. } | Scales::Fractions { .. } | Scales::UE4M3 { .. } => {
            let scales: Vec<f32> = runs.iter().map(|run| run.scale).collect();
            let (lowest, most) =
                if matches!(row.scales, Scales::SixBits { .. }) { (-32.0, 31.0) } else { (-128.0, 127.0) };
            // The run with the largest magnitude gets the factor with the largest.
            let unit = super::extreme(&scales) / lowest;
            let d = number(0, unit);
            let around = |(i, scale): (usize, &f32)| {
                let middle = integer(*scale, unit, lowest, most);
                let near = [middle, (middle - 1.0).max(lowest), (middle + 1.0).min(most)];
                least(near.into_iter(), |factor| error(i, (d * factor, 0.0))).unwrap_or_default()
            };
            let factors: Vec<f32> = scales.iter().enumerate().map(around).collect();
            for (run, factor) in factors.iter().enumerate() {
                match row.scales {
                    Scales::SixBits { low, high, .. } => {
                        let bits = (factor + 32.0) as u8;
                        write_bits(low, run, bits, out);
                        write_bits(high, run, bits, out);
                    }
                    Scales::Signed { at } => out[at + run] = *factor as i8 as u8,
                    _ => {}
                }
            }
            factors.iter().map(|factor| (d * factor, 0.0)).collect()
        }
    }
}

/// The candidate with the least error; the first of equals.
fn least<T: Copy>(candidates: impl Iterator<Item = T>, error: impl Fn(T) -> f32) -> Option<T> {
    candidates.map(|c| (error(c), c)).reduce(|best, next| if next.0 < best.0 { next } else { best }).map(|(_, c)| c)
}

/// Writes pairs of factors: [`Scales::Nibbles`] or [`Scales::SixBitPairs`].
fn write_pairs(scales: Scales, factors: &[[u8; 2]], out: &mut [u8]) {
    match scales {
        Scales::Nibbles { at } => {
            out[at..].iter_mut().zip(factors).for_each(|(byte, [s, t])| *byte = s | t << 4);
        }
        Scales::SixBitPairs { at } => {
            for j in 0..4 {
                let ([s, t], [s_late, t_late]) = (factors[j], factors[4 + j]);
                out[at + j] = s | s_late >> 4 << 6;
                out[at + 4 + j] = t | t_late >> 4 << 6;
                out[at + 8 + j] = s_late & 15 | t_late << 4;
            }
        }
        _ => {}
    }
}

/// Writes the bits of number `i` that these places hold.
fn write_bits(bits: Bits, i: usize, number: u8, out: &mut [u8]) {
    let (at, shift) = bits.place(i);
    out[at] |= (number >> bits.to & ((1u32 << bits.bits) - 1) as u8) << shift;
}

/// Writes the codes of a block.
pub fn codes(row: &BlockFormat, codes: &[u8], out: &mut [u8]) {
    match row.codes {
        Codes::Bits(low, high) => {
            for (i, code) in codes.iter().enumerate() {
                write_bits(low, i, *code, out);
                if let Some(high) = high {
                    write_bits(high, i, *code, out);
                }
            }
        }
        Codes::Trits(parts) => {
            let (mut byte, mut first) = (0, 0);
            for bytes in parts {
                let digits = 5.min((codes.len() - first) / bytes);
                for i in 0..bytes {
                    // A byte is the number of five digits as a fraction of 3⁵, rounded up.
                    let digit = |n: usize| if n < digits { u32::from(codes[first + n * bytes + i]) } else { 0 };
                    let number = (0..5).fold(0, |number, n| 3 * number + digit(n));
                    out[byte + i] = (number * 256).div_ceil(243) as u8;
                }
                (byte, first) = (byte + bytes, first + digits * bytes);
            }
        }
    }
}

impl BlockFormat {
    /// Bits of a code.
    pub(super) const fn code_bits(&self) -> u32 {
        match self.codes {
            Codes::Bits(low, Some(high)) => low.bits + high.bits,
            Codes::Bits(low, None) => low.bits,
            Codes::Trits(_) => 2,
        }
    }
}
