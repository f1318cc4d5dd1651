//! The reference decoders of the weight formats: what a tensor's bytes mean as `f32`.
//!
//! They define the meaning of a format for every test and every f64 reference, and agree bit for bit with the decoders of the
//! `gguf` Python package. Tuned kernels do not use them: a kernel reads the blocks itself.

mod halves;
mod packed;
mod runs;
mod ternary;

use crate::{BackendError, Format, PLANE_ALIGN, Result};
use half::{bf16, f16};
use hologram_isa::Type;

impl Format {
    /// Converts blocks to those of [`Format::at_load`], without loss: as many as both slices hold. Blocks that stay as they are, are copied.
    pub fn recode(self, bytes: &[u8], out: &mut [u8]) {
        if self == Format::TQ1_0 {
            for (b, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                ternary::tq1_0_to_tq2_0(b, out);
            }
            return;
        }
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// Decodes whole blocks: `out.len()` elements from exactly as many bytes as they take. A tensor is decoded row by row, or all
    /// at once when its rows are whole blocks; one in planes all at once.
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
            Format::Plain(Type::F32 | Type::F16 | Type::BF16) => decode(self, bytes, out),
            Format::Plain(_) | Format::I8Groups { .. } => {
                return Err(fail("it is not a format of floating-point weights".into()));
            }
            Format::Q8Planes => planes::<32, 32>(bytes, out, |c, d, y| {
                let mut b = [0; 34];
                b[..2].copy_from_slice(d);
                b[2..].copy_from_slice(c);
                decode(Format::Q8_0, &b, y);
            }),
            Format::Q4Planes => planes::<16, 32>(bytes, out, |c, d, y| {
                let mut b = [0; 18];
                b[..2].copy_from_slice(d);
                b[2..].copy_from_slice(c);
                decode(Format::Q4_0, &b, y);
            }),
            Format::T2Planes => planes::<64, 256>(bytes, out, |c, d, y| {
                let mut b = [0; 66];
                b[..64].copy_from_slice(c);
                b[64..].copy_from_slice(d);
                decode(Format::TQ2_0, &b, y);
            }),
            Format::Planes(of) => packed::decode(of, bytes, out),
            _ => decode(self, bytes, out),
        }
        Ok(())
    }
}

/// Decodes rows in plain `f32`, `f16` or `bf16` or in a block format of GGUF: as many elements as both slices hold.
#[inline(always)]
pub(crate) fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::Plain(Type::F16) => plain(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Format::Plain(Type::BF16) => plain(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        Format::Plain(_) => plain(bytes, out, f32::from_le_bytes),
        _ => {
            let mut out = out.chunks_exact_mut(format.block_len());
            each_block(format, bytes, |codes, scales, minimums| {
                let Some(out) = out.next() else { return };
                let len = codes.len() / scales.len();
                let runs = out.chunks_exact_mut(len).zip(codes.chunks_exact(len)).zip(scales.iter().zip(minimums));
                for ((out, codes), (scale, minimum)) in runs {
                    // The product is exact (scales have 19 significant bits at most, codes 5, or 12 and 8), so that this rounds once.
                    out.iter_mut().zip(codes).for_each(|(y, c)| *y = scale * f32::from(*c) - minimum);
                }
            });
        }
    }
}

/// Takes apart the blocks of a GGUF format: calls `visit` for each with its codes, and a scale and a minimum for each
/// [`Format::scale_len`] of them; an element is scale·code - minimum. Other formats have no blocks.
#[inline(always)]
pub(crate) fn each_block(format: Format, bytes: &[u8], visit: impl FnMut(&[i8], &[f32], &[f32])) {
    match format {
        Format::Q8_0 => blocks::<34, 32, 1>(bytes, visit, halves::q8_0),
        Format::Q4_0 => blocks::<18, 32, 1>(bytes, visit, halves::q4_0),
        Format::Q4_1 => blocks::<20, 32, 1>(bytes, visit, halves::q4_1),
        Format::Q5_0 => blocks::<22, 32, 1>(bytes, visit, halves::q5_0),
        Format::Q5_1 => blocks::<24, 32, 1>(bytes, visit, halves::q5_1),
        Format::IQ4_NL => blocks::<18, 32, 1>(bytes, visit, halves::iq4_nl),
        Format::Q2_K => blocks::<84, 256, 16>(bytes, visit, runs::q2_k),
        Format::Q3_K => blocks::<110, 256, 16>(bytes, visit, runs::q3_k),
        Format::Q4_K => blocks::<144, 256, 8>(bytes, visit, runs::q4_k),
        Format::Q5_K => blocks::<176, 256, 8>(bytes, visit, runs::q5_k),
        Format::Q6_K => blocks::<210, 256, 16>(bytes, visit, runs::q6_k),
        Format::IQ4_XS => blocks::<136, 256, 8>(bytes, visit, runs::iq4_xs),
        Format::TQ1_0 => blocks::<54, 256, 1>(bytes, visit, ternary::tq1_0),
        Format::TQ2_0 => blocks::<66, 256, 1>(bytes, visit, ternary::tq2_0),
        Format::Q8Planes | Format::Q4Planes | Format::T2Planes | Format::Planes(_) => {}
        Format::Plain(_) | Format::I8Groups { .. } => {}
    }
}

/// A block taken apart: codes, and a scale and a minimum for each run of them.
struct Parts<const LEN: usize, const RUNS: usize> {
    codes: [i8; LEN],
    scales: [f32; RUNS],
    minimums: [f32; RUNS],
}

#[inline(always)]
fn blocks<const BYTES: usize, const LEN: usize, const RUNS: usize>(
    bytes: &[u8],
    mut visit: impl FnMut(&[i8], &[f32], &[f32]),
    unpack: impl Fn(&[u8; BYTES], &mut Parts<LEN, RUNS>),
) {
    let mut parts = Parts { codes: [0; LEN], scales: [0.0; RUNS], minimums: [0.0; RUNS] };
    for b in bytes.as_chunks::<BYTES>().0 {
        unpack(b, &mut parts);
        visit(&parts.codes, &parts.scales, &parts.minimums);
    }
}

#[inline(always)]
fn plain<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (b, y) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *y = decode(*b);
    }
}

/// Codes of all blocks, then at the next multiple of [`PLANE_ALIGN`] their scales.
fn planes<const CODES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; CODES], &[u8; 2], &mut [f32; LEN]),
) {
    let blocks = out.len() / LEN;
    let scales = &bytes[(blocks * CODES).next_multiple_of(PLANE_ALIGN)..];
    let both = bytes.as_chunks::<CODES>().0.iter().zip(scales.as_chunks::<2>().0);
    for ((codes, scale), y) in both.zip(out.as_chunks_mut::<LEN>().0) {
        decode(codes, scale, y);
    }
}

/// The `f16` number at a place of a block.
#[inline(always)]
fn number(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}
