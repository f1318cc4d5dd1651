//! Blocks of 256 ternary codes.

use super::runs::quarters;
use super::{Parts, number};

type Block = Parts<256, 1>;

#[inline(always)]
pub fn tq2_0(b: &[u8; 66], p: &mut Block) {
    p.scales[0] = number(b, 64);
    quarters(&b[..64], &mut p.codes);
    p.codes.iter_mut().for_each(|c| *c -= 1);
}

#[inline(always)]
pub fn tq1_0(b: &[u8; 54], p: &mut Block) {
    p.scales[0] = number(b, 52);
    let (first, rest) = p.codes.split_at_mut(160);
    let (second, last) = rest.split_at_mut(80);
    digits(&b[..32], first);
    digits(&b[32..48], second);
    digits(&b[48..52], last);
}

/// Digits of base 3 as -1, 0 and 1: the first of all bytes, then the second, as many as there is room for.
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

/// A block of `TQ1_0` as one of `TQ2_0`, with the same values.
pub fn tq1_0_to_tq2_0(b: &[u8; 54], out: &mut [u8; 66]) {
    let mut p = Parts { codes: [0; 256], scales: [0.0], minimums: [0.0] };
    tq1_0(b, &mut p);
    for (bytes, codes) in out.chunks_exact_mut(32).zip(p.codes.chunks_exact(128)) {
        for (m, byte) in bytes.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |byte, l| byte | ((codes[32 * l + m] + 1) as u8) << (2 * l));
        }
    }
    out[64..].copy_from_slice(&b[52..]);
}
