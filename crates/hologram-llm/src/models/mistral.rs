//! Mistral (Jiang et al., 2023, arXiv:2310.06825): Llama with sliding-window attention.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, Windows, llama};

/// Mistral 7B and models of the same architecture. Their GGUF files use the `llama` architecture with
/// `llama.attention.sliding_window`.
pub static MISTRAL: Architecture = Architecture {
    folder: FolderNames { model_type: "mistral", class: "MistralForCausalLM", ..FolderNames::PLAIN },
    rope: RopeStyle::Adjacent,
    layer: llama::layer,
    windows: Windows::All,
    ..Architecture::PLAIN
};

/// Ministral 3 and Mistral 3: queries grow with their position (Llama 4's temperature). In GGUF files the rows of Q and
/// K are permuted as those of Llama.
pub static MINISTRAL3: Architecture = Architecture {
    names: &["mistral3"],
    folder: FolderNames {
        model_type: "ministral3",
        class: "Ministral3ForCausalLM",
        rope_base: 1000000.0,
        ..FolderNames::PLAIN
    },
    ..MISTRAL
};
