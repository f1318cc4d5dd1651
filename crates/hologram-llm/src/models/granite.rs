//! Granite 3 (IBM, 2024): Llama with factors of embeddings, blocks, attention scores and logits.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, Scale};

/// Granite 3 without experts. In GGUF files the rows of Q and K are permuted as those of Llama.
pub static GRANITE: Architecture = Architecture {
    names: &["granite"],
    folder: FolderNames { model_type: "granite", class: "GraniteForCausalLM", ..FolderNames::PLAIN },
    rope: RopeStyle::Adjacent,
    scales: &[Scale::Embedding, Scale::Residual, Scale::Attention, Scale::LogitsDivisor],
    ..Architecture::PLAIN
};
