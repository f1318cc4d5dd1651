//! Decoding packed rows to `f32`, for the table lookup and for matmuls with float activations.

use half::{bf16, f16};
use hologram_isa::Type;

use crate::Format;

/// Whether rows of this format can be decoded.
pub fn is_weight_format(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16 | Format::Q8_0 | Format::Q4_0 | Format::TQ2_0)
}

/// Decodes whole blocks: `out.len()` elements from the packed bytes that hold them.
pub fn decode(format: Format, packed: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { decode_avx2(format, packed, out) };
    }
    decode_plain(format, packed, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn decode_avx2(format: Format, packed: &[u8], out: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    if format != Format::F16 {
        return decode_plain(format, packed, out);
    }
    let whole = out.len() / 8 * 8;
    for (bytes, out) in packed.chunks_exact(16).zip(out.chunks_exact_mut(8)) {
        // SAFETY: both slices hold exactly what is read and written.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast()))) };
    }
    decode_plain(format, &packed[whole * 2..], &mut out[whole..]);
}

#[inline(always)]
fn decode_plain(format: Format, packed: &[u8], out: &mut [f32]) {
    let scale = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let blocks = packed.chunks_exact(format.block_bytes());
    match format {
        Format::Plain(Type::F16) => {
            out.iter_mut().zip(blocks).for_each(|(o, b)| *o = f16::from_le_bytes([b[0], b[1]]).to_f32());
        }
        Format::Plain(Type::BF16) => {
            out.iter_mut().zip(blocks).for_each(|(o, b)| *o = bf16::from_le_bytes([b[0], b[1]]).to_f32());
        }
        Format::Q8_0 => {
            for (out, block) in out.chunks_exact_mut(32).zip(blocks) {
                let d = scale(block, 0);
                out.iter_mut().zip(&block[2..]).for_each(|(o, q)| *o = d * f32::from(*q as i8));
            }
        }
        Format::Q4_0 => {
            for (out, block) in out.chunks_exact_mut(32).zip(blocks) {
                let d = scale(block, 0);
                let (low, high) = out.split_at_mut(16);
                for ((l, h), q) in low.iter_mut().zip(high).zip(&block[2..]) {
                    *l = d * f32::from((q & 15) as i8 - 8);
                    *h = d * f32::from((q >> 4) as i8 - 8);
                }
            }
        }
        Format::TQ2_0 => {
            for (out, block) in out.chunks_exact_mut(256).zip(blocks) {
                let d = scale(block, 64);
                for (half, bytes) in out.chunks_exact_mut(128).zip(block.chunks_exact(32)) {
                    for (shift, part) in half.chunks_exact_mut(32).enumerate() {
                        part.iter_mut()
                            .zip(bytes)
                            .for_each(|(o, q)| *o = d * f32::from((q >> (2 * shift) & 3) as i8 - 1));
                    }
                }
            }
        }
        _ => out.iter_mut().zip(blocks).for_each(|(o, b)| *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
    }
}
