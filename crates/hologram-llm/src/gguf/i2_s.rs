//! `I2_S` of bitnet.cpp: ternary codes without blocks, and one `f32` scale for the whole tensor.
//!
//! 32 bytes hold the codes of 128 elements: bits 7 and 6 of byte `p` that of element `p`, bits 5 and 4 that of `32 + p`, then `64 + p` and
//! `96 + p`; the value is scale·(code - 1), and no weight has code 3. The scale is the first number of the 32 bytes after the codes.

use half::f16;

/// Bytes of the codes that make a block of [`Format::TQ2_0`](hologram_backends::Format::TQ2_0), of 256 elements.
pub const BLOCK_BYTES: usize = 64;
/// Bytes after the codes.
pub const TAIL: usize = 32;

/// The codes and the scale of a tensor's bytes; `None` when they are too few.
pub fn parts(bytes: &[u8]) -> Option<(&[u8], f32)> {
    let (codes, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
    Some((codes, f32::from_le_bytes(*tail.first_chunk()?)))
}

/// Converts codes to blocks of `TQ2_0`, both ternary with the same codes: the pairs of bits of a byte in the opposite order.
///
/// # Errors
/// A code 3.
pub fn to_tq2_0(codes: &[u8], scale: f16, out: &mut [u8]) -> Result<(), String> {
    let mut both = 0;
    for (from, to) in codes.as_chunks::<BLOCK_BYTES>().0.iter().zip(out.as_chunks_mut::<66>().0) {
        for (from, to) in from.iter().zip(to.iter_mut()) {
            *to = (from & 3) << 6 | (from & 12) << 2 | (from >> 2) & 12 | from >> 6;
            both |= from & (from >> 1) & 0x55;
        }
        to[BLOCK_BYTES..].copy_from_slice(&scale.to_le_bytes());
    }
    if both == 0 { Ok(()) } else { Err("holds the code 3, which no ternary weight has".into()) }
}

/// Decodes codes: as many elements as both slices hold.
pub fn decode(codes: &[u8], scale: f32, out: &mut [f32]) {
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
    fn a_code_of_no_weight_is_refused() {
        let mut codes = vec![0b10_01_00_10u8; 2 * BLOCK_BYTES];
        assert_eq!(to_tq2_0(&codes, f16::ONE, &mut [0; 132]), Ok(()));
        codes[BLOCK_BYTES + 9] |= 0b11_00;
        assert!(to_tq2_0(&codes, f16::ONE, &mut [0; 132]).is_err_and(|e| e.contains("code 3")));
    }
}
