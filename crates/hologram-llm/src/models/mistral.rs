//! Mistral (Jiang et al., 2023, arXiv:2310.06825): Llama with sliding-window attention.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, TernaryActivations, Windows, llama};

/// Mistral 7B and models of the same architecture. Their GGUF files use the `llama` architecture with
/// `llama.attention.sliding_window`.
pub static MISTRAL: Architecture = Architecture {
    names: &[],
    folder: FolderNames {
        model_type: "mistral",
        class: "MistralForCausalLM",
        gate: "silu",
        rope_base: 10000.0,
        windows: Windows::All,
        tensors: &[],
    },
    rope: RopeStyle::Adjacent,
    layer: llama::layer,
    ternary: TernaryActivations::PerBlock,
};
