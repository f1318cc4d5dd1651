//! Preferences of GPUs.

use hologram_device::{DType, Policy, Preference};

use super::{FEW_TOKENS, FEW_TOKENS_AS_CODES, Target, Vendor};

/// The preferences of a GPU.
pub fn policy(target: Target) -> Policy {
    let any: fn(DType) -> bool = |_| true;
    let codes: fn(DType) -> bool = |weights| matches!(weights, DType::Planes(_)) && !weights.is_ternary();
    // With few tokens codes are multiplied. With more, tensor cores multiply dequantized weights faster than integer
    // kernels multiply codes; on Apple GPUs packed weights have kernels for f32 activations only.
    let (few, many) = match target.vendor {
        Vendor::Nvidia { .. } => (FEW_TOKENS_AS_CODES, DType::BF16),
        Vendor::Apple => (FEW_TOKENS, DType::F32),
    };
    let attention = Preference { format: DType::BF16, weights: any, tokens: FEW_TOKENS + 1..=usize::MAX };
    Policy {
        shares_host_memory: target.is_apple(),
        // Memory moves vectors of four f32 the fastest.
        elements_per_thread: 4,
        // Grids are tables that only the host reads.
        weight_layout: |format| format.recoded().in_planes(),
        activations: vec![
            Preference { format: DType::I8Groups { group: 32 }, weights: codes, tokens: 0..=few },
            Preference { format: many, weights: codes, tokens: few + 1..=usize::MAX },
        ],
        attention: if target.is_apple() { Vec::new() } else { vec![attention] },
        // Decoding reads the whole cache for every token.
        cache: Some(DType::F16),
    }
}
