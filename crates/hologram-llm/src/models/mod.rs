//! The model architectures: one file each, and one line each in [`ARCHITECTURES`].

mod bitnet;
mod blocks;
mod cohere2;
pub(crate) mod config;
pub(crate) mod config_json;
mod config_unknown;
pub(crate) mod decoder;
pub(crate) mod experts;
mod gemma;
mod glm4;
#[cfg(test)]
mod golden;
mod granite;
mod layers;
mod llama;
mod mistral;
mod mixtures;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
pub(crate) mod rope;
pub(crate) mod scales;
mod smollm3;
mod starcoder2;

use blocks::LayerFn;
pub use experts::{ExpertRule, Experts};
use hologram_core::ops::RopeStyle;
pub use layers::{Rotary, RotaryLayers, Windows};
pub use scales::Scale;

/// The supported architectures.
pub const ARCHITECTURES: &[&Architecture] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &mistral::MINISTRAL3,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &bitnet::BITNET,
    &gemma::GEMMA3,
    &phi3::PHI3,
    &smollm3::SMOLLM3,
    &olmo2::OLMO2,
    &olmo2::OLMO3,
    &granite::GRANITE,
    &cohere2::COHERE2,
    &starcoder2::STARCODER2,
    &glm4::GLM4,
    &mixtures::QWEN3_MOE,
    &mixtures::QWEN2_MOE,
    &mixtures::MIXTRAL,
    &mixtures::OLMOE,
];

/// The features of a decoder-only transformer. Together with the metadata they determine its graph.
#[derive(Debug)]
pub struct Architecture {
    /// Its values of `general.architecture`.
    pub names: &'static [&'static str],
    /// Its names in a folder's `config.json`.
    pub folder: FolderNames,
    /// Which elements of a head rotary embedding pairs in GGUF files.
    pub rope: RopeStyle,
    /// Loads and composes a layer.
    pub(crate) layer: LayerFn,
    /// How activations are quantized for ternary weights.
    pub ternary: TernaryActivations,
    /// The norm of the residual stream.
    pub norm: NormKind,
    /// Which layers have a sliding window.
    pub windows: Windows,
    /// Which layers have a rotary embedding, and which one.
    pub rotary: RotaryLayers,
    /// The factors and caps that its files may set. Any other is rejected.
    pub scales: &'static [Scale],
    /// Whether the embedding is multiplied by the square root of the width.
    pub embedding_by_width: bool,
    /// How experts are chosen, for architectures that may have them.
    pub experts: Option<ExpertRule>,
    /// The layers of the model whose attention scores have the factor 1 / √(width / heads), which its GGUF files do not
    /// say.
    pub scores_by_width: Option<usize>,
}

impl Architecture {
    /// A Llama without names, from which others differ.
    const PLAIN: Architecture = Architecture {
        names: &[],
        folder: FolderNames::PLAIN,
        rope: RopeStyle::HalfSplit,
        layer: llama::layer,
        ternary: TernaryActivations::PerBlock,
        norm: NormKind::Rms,
        windows: Windows::Never,
        rotary: RotaryLayers::All,
        scales: &[],
        embedding_by_width: false,
        experts: None,
        scores_by_width: None,
    };
}

/// A norm of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Divides by the root mean square.
    Rms,
    /// Normalizes to mean 0 and variance 1.
    Layer,
}

/// An architecture in the `config.json` of a folder.
#[derive(Debug)]
pub struct FolderNames {
    /// `model_type`.
    pub model_type: &'static str,
    /// The entry of `architectures`.
    pub class: &'static str,
    /// `hidden_act`.
    pub gate: &'static str,
    /// The rotary base if the file has none.
    pub rope_base: f32,
    /// The key of the norms' epsilon.
    pub eps: &'static str,
    /// Which elements of a head rotary embedding pairs.
    pub rope: RopeStyle,
    /// The rotated part of a head if the file does not say it; `None`: always all.
    pub rotary_part: Option<f64>,
    /// Whether `attention_bias` is also about the output projection.
    pub output_bias: bool,
    /// Added to the factors of norms.
    pub norm_base: f32,
    /// Tensors of a layer that other architectures lack or name differently: the name in GGUF files, then in folders,
    /// with `*` for the number of an expert.
    pub tensors: &'static [(&'static str, &'static str)],
}

impl FolderNames {
    const PLAIN: FolderNames = FolderNames {
        model_type: "",
        class: "",
        gate: "silu",
        rope_base: 10000.0,
        eps: "rms_norm_eps",
        rope: RopeStyle::HalfSplit,
        rotary_part: None,
        output_bias: true,
        norm_base: 0.0,
        tensors: &[],
    };
}

/// How activations are quantized before a product with ternary weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TernaryActivations {
    /// One scale per token, as BitNet b1.58 models are trained.
    PerToken,
    /// One scale per block of 256 elements.
    PerBlock,
}

/// The architecture of this name in GGUF files.
pub fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().copied().find(|a| a.names.contains(&name))
}

/// The names of all architectures in GGUF files, for messages.
pub fn supported() -> String {
    ARCHITECTURES.iter().flat_map(|a| a.names).copied().collect::<Vec<_>>().join(", ")
}

/// The architecture of this `model_type` or class in folders.
pub(crate) fn find_folder(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().copied().find(|a| a.folder.model_type == name || a.folder.class == name)
}

/// The `model_type` of all architectures, for messages.
pub(crate) fn supported_folders() -> String {
    ARCHITECTURES.iter().map(|a| a.folder.model_type).collect::<Vec<_>>().join(", ")
}
