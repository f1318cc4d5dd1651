//! Preferences of GPUs.

use hologram_device::{DType, Policy, Preference};

use super::{FEW_TOKENS, FEW_TOKENS_AS_CODES, FEW_TOKENS_AS_F32, FEW_TOKENS_AS_PACKED_CODES, Target, Vendor};

/// The preferences of a GPU.
pub fn policy(target: Target) -> Policy {
    let any: fn(DType) -> bool = |_| true;
    let codes: fn(DType) -> bool = |weights| matches!(weights, DType::Planes(_)) && !weights.is_ternary();
    let packed: fn(DType) -> bool = |weights| weights.packed().is_some();
    let f16: fn(DType) -> bool = |weights| weights == DType::F16;
    let prefer = |format, weights, tokens| Preference { format, weights, tokens };
    let as_codes = DType::I8Groups { group: 32 };
    // With few tokens codes are multiplied, with more of them where tensor cores do it. Then tensor cores multiply
    // dequantized weights faster; on Apple GPUs packed weights have kernels for f32 activations only.
    let (few, few_packed) = match target.is(90) {
        true => (FEW_TOKENS, FEW_TOKENS),
        false => (FEW_TOKENS_AS_CODES, FEW_TOKENS_AS_PACKED_CODES),
    };
    let activations = match target.vendor {
        Vendor::Nvidia { .. } => vec![
            prefer(as_codes, packed, 0..=few_packed),
            prefer(DType::BF16, packed, few_packed + 1..=usize::MAX),
            prefer(as_codes, codes, 0..=few),
            prefer(DType::BF16, codes, few + 1..=usize::MAX),
            prefer(DType::F32, f16, 0..=FEW_TOKENS_AS_F32),
            prefer(DType::BF16, f16, FEW_TOKENS_AS_F32 + 1..=usize::MAX),
        ],
        Vendor::Apple => {
            vec![prefer(as_codes, codes, 0..=FEW_TOKENS), prefer(DType::F32, codes, FEW_TOKENS + 1..=usize::MAX)]
        }
    };
    let attention = Preference { format: DType::BF16, weights: any, tokens: FEW_TOKENS + 1..=usize::MAX };
    Policy {
        shares_host_memory: target.is_apple(),
        // Memory moves vectors of four f32 the fastest.
        elements_per_thread: 4,
        // Grids are tables that only the host reads.
        weight_layout: |format| format.recoded().in_planes(),
        activations,
        attention: if target.is_apple() { Vec::new() } else { vec![attention] },
        // Decoding reads the whole cache for every token.
        cache: Some(DType::F16),
    }
}
