//! Blocks of 32 with one scale: `Q8_0`, and those whose codes lie in halves of bytes.

use super::{Parts, number};
use crate::IQ4_VALUES;

type Block = Parts<32, 1>;

#[inline(always)]
pub fn q8_0(b: &[u8; 34], p: &mut Block) {
    p.scales[0] = number(b, 0);
    p.codes.iter_mut().zip(&b[2..]).for_each(|(c, b)| *c = *b as i8);
}

#[inline(always)]
pub fn q4_0(b: &[u8; 18], p: &mut Block) {
    p.scales[0] = number(b, 0);
    halves(&b[2..], &mut p.codes, |code| code as i8 - 8);
}

#[inline(always)]
pub fn q4_1(b: &[u8; 20], p: &mut Block) {
    p.scales[0] = number(b, 0);
    p.minimums[0] = -number(b, 2);
    halves(&b[4..], &mut p.codes, |code| code as i8);
}

#[inline(always)]
pub fn q5_0(b: &[u8; 22], p: &mut Block) {
    p.scales[0] = number(b, 0);
    halves(&b[6..], &mut p.codes, |code| code as i8 - 16);
    fifth_bits([b[2], b[3], b[4], b[5]], &mut p.codes);
}

#[inline(always)]
pub fn q5_1(b: &[u8; 24], p: &mut Block) {
    p.scales[0] = number(b, 0);
    p.minimums[0] = -number(b, 2);
    halves(&b[8..], &mut p.codes, |code| code as i8);
    fifth_bits([b[4], b[5], b[6], b[7]], &mut p.codes);
}

#[inline(always)]
pub fn iq4_nl(b: &[u8; 18], p: &mut Block) {
    p.scales[0] = number(b, 0);
    halves(&b[2..], &mut p.codes, |code| IQ4_VALUES[usize::from(code)]);
}

/// The low halves of the bytes, then the high ones.
#[inline(always)]
pub fn halves(bytes: &[u8], codes: &mut [i8], value: impl Fn(u8) -> i8) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((low, high), b) in low.iter_mut().zip(high).zip(bytes) {
        *low = value(b & 15);
        *high = value(b >> 4);
    }
}

#[inline(always)]
fn fifth_bits(bits: [u8; 4], codes: &mut [i8; 32]) {
    let bits = u32::from_le_bytes(bits);
    codes.iter_mut().enumerate().for_each(|(i, c)| *c += ((bits >> i & 1) << 4) as i8);
}
