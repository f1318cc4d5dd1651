//! Llama (Touvron et al., 2023, arXiv:2302.13971) and models of its topology.

use hologram_core::ops::RopeStyle;

use super::{Architecture, Gate, TernaryActivations};

/// Llama 1 to 3.x; in GGUF files the rows of Q and K are permuted so that rotary embedding pairs adjacent elements.
pub static LLAMA: Architecture = Architecture {
    names: &["llama"],
    rope: RopeStyle::Adjacent,
    gate: Gate::Swiglu,
    sub_norms: false,
    ternary: TernaryActivations::PerBlock,
};
