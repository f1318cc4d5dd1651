//! Qwen2 and Qwen2.5 (Yang et al., 2024, arXiv:2407.10671): biases of queries, keys and values.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, Gate, TernaryActivations, Windows};

/// Qwen2 and Qwen2.5 without experts.
pub static QWEN2: Architecture = Architecture {
    names: &["qwen2"],
    folder: FolderNames {
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        gate: "silu",
        rope_base: 10000.0,
        windows: Windows::Last,
    },
    rope: RopeStyle::HalfSplit,
    gate: Gate::Swiglu,
    qkv_biases: true,
    qk_norms: false,
    sub_norms: false,
    ternary: TernaryActivations::PerBlock,
};
