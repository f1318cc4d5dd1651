//! Qwen3 (Yang et al., 2025, arXiv:2505.09388): heads of queries and keys are normalised, and have a size of their own.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, Gate, TernaryActivations, Windows};

/// Qwen3 without experts.
pub static QWEN3: Architecture = Architecture {
    names: &["qwen3"],
    folder: FolderNames {
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        gate: "silu",
        rope_base: 10000.0,
        windows: Windows::Last,
    },
    rope: RopeStyle::HalfSplit,
    gate: Gate::Swiglu,
    qkv_biases: false,
    qk_norms: true,
    sub_norms: false,
    ternary: TernaryActivations::PerBlock,
};
