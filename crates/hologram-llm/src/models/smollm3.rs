//! SmolLM3 (Hugging Face, 2025): Llama without rotary embedding in each fourth layer.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, RotaryLayers, Windows};

/// SmolLM3. In GGUF files the rows of Q and K are permuted as those of Llama.
pub static SMOLLM3: Architecture = Architecture {
    names: &["smollm3"],
    folder: FolderNames {
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        rope_base: 2000000.0,
        ..FolderNames::PLAIN
    },
    rope: RopeStyle::Adjacent,
    windows: Windows::Last,
    rotary: RotaryLayers::NotEach(4),
    ..Architecture::PLAIN
};
