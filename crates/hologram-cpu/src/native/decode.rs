//! Dequantizes packed rows to `f32`, for the table lookup and for matmuls with float activations.

use hologram_device::DType;
use hologram_device::decode::decode as blocks;
use hologram_isa::Type;

/// Whether rows of this format can be dequantized.
pub fn is_weight_format(format: DType) -> bool {
    matches!(format, DType::Plain(Type::F32 | Type::F16 | Type::BF16) | DType::Block(_) | DType::Grid(_))
}

/// Dequantizes whole blocks: `out.len()` elements from the packed bytes that hold them.
pub fn decode(format: DType, packed: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has the instructions that the function is compiled for.
        return unsafe { decode_avx2(format, packed, out) };
    }
    blocks(format, packed, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn decode_avx2(format: DType, packed: &[u8], out: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    if format != DType::F16 {
        return blocks(format, packed, out);
    }
    let whole = out.len() / 8 * 8;
    for (bytes, out) in packed.chunks_exact(16).zip(out.chunks_exact_mut(8)) {
        // SAFETY: both slices have exactly the length that is read and written.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast()))) };
    }
    blocks(format, &packed[whole * 2..], &mut out[whole..]);
}
