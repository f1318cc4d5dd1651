//! Blocks of 256 whose runs of 16 or 32 have scales of their own: the K types and `IQ4_XS`.

use super::halves::halves;
use super::{Parts, number};
use crate::IQ4_VALUES;

#[inline(always)]
pub fn q2_k(b: &[u8; 84], p: &mut Parts<256, 16>) {
    let (d, dmin) = (number(b, 80), number(b, 82));
    for ((s, m), b) in p.scales.iter_mut().zip(&mut p.minimums).zip(b) {
        *s = d * f32::from(b & 15);
        *m = dmin * f32::from(b >> 4);
    }
    quarters(&b[16..80], &mut p.codes);
}

#[inline(always)]
pub fn q3_k(b: &[u8; 110], p: &mut Parts<256, 16>) {
    let d = number(b, 108);
    for j in 0..16 {
        let low = b[96 + j % 8] >> (4 * (j / 8)) & 15;
        let high = b[104 + j % 4] >> (2 * (j / 4)) & 3;
        p.scales[j] = d * (f32::from(low | high << 4) - 32.0);
    }
    quarters(&b[32..96], &mut p.codes);
    for (l, codes) in p.codes.chunks_exact_mut(32).enumerate() {
        codes.iter_mut().zip(b).for_each(|(c, bits)| *c += ((bits >> l & 1) << 2) as i8 - 4);
    }
}

#[inline(always)]
pub fn q4_k(b: &[u8; 144], p: &mut Parts<256, 8>) {
    six_bits(number(b, 0), number(b, 2), &b[4..16], p);
    for (codes, bytes) in p.codes.chunks_exact_mut(64).zip(b[16..].chunks_exact(32)) {
        halves(bytes, codes, |code| code as i8);
    }
}

#[inline(always)]
pub fn q5_k(b: &[u8; 176], p: &mut Parts<256, 8>) {
    six_bits(number(b, 0), number(b, 2), &b[4..16], p);
    for (codes, bytes) in p.codes.chunks_exact_mut(64).zip(b[48..].chunks_exact(32)) {
        halves(bytes, codes, |code| code as i8);
    }
    for (l, codes) in p.codes.chunks_exact_mut(32).enumerate() {
        codes.iter_mut().zip(&b[16..48]).for_each(|(c, bits)| *c += ((bits >> l & 1) << 4) as i8);
    }
}

#[inline(always)]
pub fn q6_k(b: &[u8; 210], p: &mut Parts<256, 16>) {
    let d = number(b, 208);
    p.scales.iter_mut().zip(&b[192..208]).for_each(|(s, b)| *s = d * f32::from(*b as i8));
    for (h, codes) in p.codes.chunks_exact_mut(128).enumerate() {
        halves(&b[64 * h..64 * h + 64], codes, |code| code as i8 - 32);
        for (l, codes) in codes.chunks_exact_mut(32).enumerate() {
            let high = &b[128 + 32 * h..160 + 32 * h];
            codes.iter_mut().zip(high).for_each(|(c, bits)| *c += ((bits >> (2 * l) & 3) << 4) as i8);
        }
    }
}

#[inline(always)]
pub fn iq4_xs(b: &[u8; 136], p: &mut Parts<256, 8>) {
    let d = number(b, 0);
    for j in 0..8 {
        let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
        let high = b[2 + j / 4] >> (2 * (j % 4)) & 3;
        p.scales[j] = d * (f32::from(low | high << 4) - 32.0);
    }
    for (codes, bytes) in p.codes.chunks_exact_mut(32).zip(b[8..].chunks_exact(16)) {
        halves(bytes, codes, |code| IQ4_VALUES[usize::from(code)]);
    }
}

/// Scales and minimums of 6 bits each: the low bits of the first four in bytes 0 to 3 and 4 to 7; of the last four, low halves in bytes
/// 8 to 11 and high bits above those of the first.
#[inline(always)]
fn six_bits(d: f32, dmin: f32, bytes: &[u8], p: &mut Parts<256, 8>) {
    for j in 0..4 {
        let (s, m, both) = (bytes[j], bytes[4 + j], bytes[8 + j]);
        p.scales[j] = d * f32::from(s & 63);
        p.minimums[j] = dmin * f32::from(m & 63);
        p.scales[4 + j] = d * f32::from(both & 15 | s >> 6 << 4);
        p.minimums[4 + j] = dmin * f32::from(both >> 4 | m >> 6 << 4);
    }
}

/// Codes of 2 bits: for each 32 bytes the lowest bits of all, then the next.
#[inline(always)]
pub fn quarters(bytes: &[u8], codes: &mut [i8; 256]) {
    for (codes, bytes) in codes.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (l, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(c, b)| *c = (b >> (2 * l) & 3) as i8);
        }
    }
}
