//! BitNet b1.58 (Ma et al., 2024, arXiv:2402.17764) as Microsoft published it with BitNet b1.58 2B4T (arXiv:2504.12285): ternary
//! linear layers, activations in 8 bits per token, squared ReLU, sub-norms, tied output.

use hologram_core::ops::RopeStyle;

use super::{Architecture, FolderNames, Gate, TernaryActivations, Windows};

/// BitNet b1.58 2B4T and models of its topology.
pub static BITNET: Architecture = Architecture {
    names: &["bitnet-b1.58", "bitnet-25"],
    folder: FolderNames {
        model_type: "bitnet",
        class: "BitNetForCausalLM",
        gate: "relu2",
        rope_base: 500000.0,
        windows: Windows::Never,
    },
    rope: RopeStyle::HalfSplit,
    gate: Gate::Relu2,
    qkv_biases: false,
    qk_norms: false,
    sub_norms: true,
    ternary: TernaryActivations::PerToken,
};
