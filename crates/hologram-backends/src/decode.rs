//! The reference decoders of the weight formats: what a tensor's bytes mean as `f32`.
//!
//! They define the meaning of a format for every test and every f64 reference, and agree bit for bit with the decoders of the
//! `gguf` Python package. Kernels do not use them: a kernel reads the blocks itself.

use crate::{BackendError, Format, Result};
use half::f16;
use hologram_isa::Type;

impl Format {
    /// Decodes whole blocks: `out.len()` elements from exactly as many bytes as they take. A tensor is decoded row by row, or all
    /// at once when its rows are whole blocks; one in two planes all at once.
    ///
    /// # Errors
    /// A length that is not a whole number of blocks, bytes that do not belong to that length, or a format that does not hold
    /// floating-point weights.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        let fail = |reason: String| BackendError::InvalidArgument {
            device: "host".into(),
            operation: format!("decode {}", self.name()),
            reason,
        };
        let Some(expected) = self.bytes(1, out.len()) else {
            return Err(fail(format!("{} elements are not whole blocks of {}", out.len(), self.block_len())));
        };
        if bytes.len() != expected {
            return Err(fail(format!("{} elements take {expected} bytes, but {} were given", out.len(), bytes.len())));
        }
        match self {
            Format::Plain(Type::F32) => plain(bytes, out, f32::from_le_bytes),
            Format::Plain(Type::F16) => plain(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Format::Plain(Type::BF16) => plain(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            Format::Q8_0 => blocks::<34, 32>(bytes, out, q8_0),
            Format::Q4_0 => blocks::<18, 32>(bytes, out, q4_0),
            Format::TQ2_0 => blocks::<66, 256>(bytes, out, tq2_0),
            Format::Q8Planes => planes::<32, 32>(bytes, out, |c, d, y| {
                let mut b = [0; 34];
                b[..2].copy_from_slice(d);
                b[2..].copy_from_slice(c);
                q8_0(&b, y);
            }),
            Format::Q4Planes => planes::<16, 32>(bytes, out, |c, d, y| {
                let mut b = [0; 18];
                b[..2].copy_from_slice(d);
                b[2..].copy_from_slice(c);
                q4_0(&b, y);
            }),
            Format::T2Planes => planes::<64, 256>(bytes, out, |c, d, y| {
                let mut b = [0; 66];
                b[..64].copy_from_slice(c);
                b[64..].copy_from_slice(d);
                tq2_0(&b, y);
            }),
            Format::Plain(_) | Format::I8Groups { .. } => {
                return Err(fail("it is not a format of floating-point weights".into()));
            }
        }
        Ok(())
    }
}

fn plain<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (b, y) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *y = decode(*b);
    }
}

fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (b, y) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        decode(b, y);
    }
}

/// Codes of all blocks, then at the next multiple of [`PLANE_ALIGN`](crate::PLANE_ALIGN) their scales.
fn planes<const CODES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; CODES], &[u8; 2], &mut [f32; LEN]),
) {
    let blocks = out.len() / LEN;
    let scales = &bytes[(blocks * CODES).next_multiple_of(crate::PLANE_ALIGN)..];
    let both = bytes.as_chunks::<CODES>().0.iter().zip(scales.as_chunks::<2>().0);
    for ((codes, scale), y) in both.zip(out.as_chunks_mut::<LEN>().0) {
        decode(codes, scale, y);
    }
}

fn scale(lo: u8, hi: u8) -> f32 {
    f16::from_le_bytes([lo, hi]).to_f32()
}

fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = scale(b[0], b[1]);
    for (j, y) in y.iter_mut().enumerate() {
        *y = d * f32::from(b[2 + j] as i8);
    }
}

fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = scale(b[0], b[1]);
    for j in 0..16 {
        y[j] = d * (f32::from(b[2 + j] & 15) - 8.0);
        y[j + 16] = d * (f32::from(b[2 + j] >> 4) - 8.0);
    }
}

fn tq2_0(b: &[u8; 66], y: &mut [f32; 256]) {
    let d = scale(b[64], b[65]);
    for (i, y) in y.iter_mut().enumerate() {
        let (h, l, m) = (i / 128, i / 32 % 4, i % 32);
        *y = d * (f32::from((b[32 * h + m] >> (2 * l)) & 3) - 1.0);
    }
}
