//! Llama (Touvron et al., 2023, arXiv:2302.13971) and models of its topology.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, Gate, TernaryActivations, Windows};

/// Llama 1 to 3.x; in GGUF files the rows of Q and K are permuted so that rotary embedding pairs adjacent elements.
pub static LLAMA: Architecture = Architecture {
    names: &["llama"],
    folder: FolderNames {
        model_type: "llama",
        class: "LlamaForCausalLM",
        gate: "silu",
        rope_base: 10000.0,
        windows: Windows::Never,
    },
    rope: RopeStyle::Adjacent,
    gate: Gate::Swiglu,
    qkv_biases: false,
    qk_norms: false,
    sub_norms: false,
    ternary: TernaryActivations::PerBlock,
};
