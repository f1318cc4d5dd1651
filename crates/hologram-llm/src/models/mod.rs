//! The model architectures: one file each, and one line each in [`ARCHITECTURES`].

mod bitnet;
pub(crate) mod config;
pub(crate) mod decoder;
mod llama;

use hologram_core::ops::RopeStyle;

/// The architectures that can be run.
pub const ARCHITECTURES: &[&Architecture] = &[&llama::LLAMA, &bitnet::BITNET];

/// What distinguishes a decoder-only transformer: its graph follows from this and from the sizes in the metadata.
#[derive(Debug)]
pub struct Architecture {
    /// The values of `general.architecture` that it serves.
    pub names: &'static [&'static str],
    /// Which elements of a head rotary embedding pairs.
    pub rope: RopeStyle,
    /// The gate of the feed-forward network.
    pub gate: Gate,
    /// Whether the inputs of the attention's and the feed-forward network's last projections are normalised.
    pub sub_norms: bool,
    /// How activations are quantised for ternary weights.
    pub ternary: TernaryActivations,
}

/// How the two halves of a gated feed-forward network combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// silu(gate) · up.
    Swiglu,
    /// max(gate, 0)² · up.
    Relu2,
}

/// How activations are quantised before a product with ternary weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TernaryActivations {
    /// One scale for a whole token, as BitNet b1.58 models are trained.
    PerToken,
    /// One scale for each block of 256.
    PerBlock,
}

/// The architecture of this name.
pub fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().copied().find(|a| a.names.contains(&name))
}

/// The names of all architectures, for messages.
pub fn supported() -> String {
    ARCHITECTURES.iter().flat_map(|a| a.names).copied().collect::<Vec<_>>().join(", ")
}
