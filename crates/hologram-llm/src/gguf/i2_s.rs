//! `I2_S` of bitnet.cpp: ternary codes without blocks and one `f32` scale per tensor.
//!
//! 32 bytes hold the codes of 128 elements. Byte `p` holds four of them: bits 7–6 that of element `p`, bits 5–4
//! that of `32 + p`, bits 3–2 that of `64 + p`, bits 1–0 that of `96 + p`. An element is scale·(code - 1); code 3
//! is invalid. The codes are followed by 32 bytes, which begin with the scale.

use half::f16;

/// Bytes of codes in a block of [`DType::TQ2_0`](hologram_backends::DType::TQ2_0), 256 elements.
pub const BLOCK_BYTES: usize = 64;
/// Bytes after the codes.
pub const TAIL: usize = 32;

/// Splits a tensor's bytes into codes and scale. `None` if there are too few bytes.
pub fn parts(bytes: &[u8]) -> Option<(&[u8], f32)> {
    let (codes, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
    Some((codes, f32::from_le_bytes(*tail.first_chunk()?)))
}

/// Converts codes to blocks of `TQ2_0`, which has the same codes with the bit pairs of each byte in reverse order.
///
/// # Errors
/// When a code is 3.
pub fn to_tq2_0(codes: &[u8], scale: f16, out: &mut [u8]) -> Result<(), String> {
    let mut both = 0;
    for (from, to) in codes.as_chunks::<BLOCK_BYTES>().0.iter().zip(out.as_chunks_mut::<66>().0) {
        for (from, to) in from.iter().zip(to.iter_mut()) {
            *to = (from & 3) << 6 | (from & 12) << 2 | (from >> 2) & 12 | from >> 6;
            both |= from & (from >> 1) & 0x55;
        }
        to[BLOCK_BYTES..].copy_from_slice(&scale.to_le_bytes());
    }
    if both == 0 { Ok(()) } else { Err("has the invalid code 3".into()) }
}

/// Dequantizes as many elements as both slices hold.
pub fn dequantize(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (codes, out) in codes.chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
            for (y, byte) in out.iter_mut().zip(codes) {
                *y = scale * (f32::from(byte >> (6 - 2 * quarter) & 3) - 1.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invalid_code_is_rejected() {
        let mut codes = vec![0b10_01_00_10u8; 2 * BLOCK_BYTES];
        assert_eq!(to_tq2_0(&codes, f16::ONE, &mut [0; 132]), Ok(()));
        codes[BLOCK_BYTES + 9] |= 0b11_00;
        assert!(to_tq2_0(&codes, f16::ONE, &mut [0; 132]).is_err_and(|e| e.contains("code 3")));
    }
}
