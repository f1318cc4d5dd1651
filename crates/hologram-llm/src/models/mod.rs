//! The model architectures: one file each, and one line each in [`ARCHITECTURES`].

mod bitnet;
mod blocks;
mod cohere2;
pub(crate) mod config;
mod config_gguf;
pub(crate) mod config_json;
pub(crate) mod config_unknown;
pub(crate) mod decoder;
mod deepseek;
mod encoders;
pub(crate) mod experts;
mod falcon_h1;
mod gemma;
mod gemma3n;
mod glm4;
#[cfg(test)]
mod golden;
mod granite;
pub(crate) mod head;
mod latent;
mod layers;
mod lfm2;
mod llama;
mod mistral;
mod mixtures;
mod nemotron_h;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_next;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod scales;
mod smollm3;
mod starcoder2;

use blocks::LayerFn;
pub(crate) use blocks::MAMBA_PARTS as MAMBA_MULTIPLIERS;
pub use experts::{ExpertRule, Experts};
use hologram_core::ops::RopeStyle;
pub use latent::Latent;
pub use layers::{HeadSizes, Rotary, RotaryLayers, Windows};
pub use recurrent::{Recurrent, RecurrentHeads, StateRule};
pub use scales::{Multiplier, Scale};

/// The supported architectures.
pub const ARCHITECTURES: &[&Architecture] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &mistral::MINISTRAL3,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &bitnet::BITNET,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma3n::GEMMA3N,
    &gemma::GEMMA4,
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
    &mixtures::GPT_OSS,
    &mixtures::GLM4_MOE,
    &mixtures::GRANITE_MOE,
    &lfm2::LFM2,
    &lfm2::LFM2_MOE,
    &qwen3_next::QWEN35,
    &qwen3_next::QWEN35_MOE,
    &qwen3_next::QWEN3_NEXT,
    &granite::GRANITE_HYBRID,
    &falcon_h1::FALCON_H1,
    &nemotron_h::NEMOTRON_H,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &deepseek::GLM4_MOE_LITE,
    &encoders::BERT,
    &encoders::XLM_ROBERTA,
    &encoders::MODERNBERT,
    &encoders::NOMIC_BERT,
];

/// The features of a transformer. Together with the metadata they determine its graph.
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
    /// The factor of attention scores if the file does not say it; `None`: 1 / √(head size).
    pub score_factor: Option<f32>,
    /// The cap of logits if a GGUF file does not say it.
    pub logit_cap: Option<f32>,
    /// In what layers may differ beside their windows.
    pub varied: Varied,
    /// Whether YaRN's bounds are whole pairs, if the file does not say it.
    pub yarn_truncates: bool,
    /// The name of the norm after the layers in GGUF files.
    pub output_norm: &'static str,
    /// Whether attention is to latent vectors.
    pub latent: bool,
    /// Its layers with a state beside the cache, if it has such.
    pub state: Option<StateRule>,
    /// What an encoder has around its layers; `None`: a decoder.
    pub encoder: Option<EncoderParts>,
}

/// In what layers may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varied {
    /// In nothing.
    Never,
    /// Layers may share keys and values, and tokens may have a further embedding in each.
    Sharing,
    /// As [`Varied::Sharing`], and layers with a window have heads and networks of other sizes than those without.
    Sizes,
}

/// What an encoder has around its layers. Its embeddings are normed, and it has no logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderParts {
    /// Whether a learned vector of each position is added to the embedding.
    pub positions: bool,
    /// Whether a learned vector of each segment is added to the embedding.
    pub segments: bool,
    /// Whether there is a norm after the last layer.
    pub output_norm: bool,
    /// The positions of a folder's table before the first one that a text uses.
    pub reserved_positions: usize,
    /// The activation between the two matrices of a head for sequences.
    pub head: Activation,
}

/// An activation of a small network on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// None.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// GELU.
    Gelu,
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
        score_factor: None,
        logit_cap: None,
        varied: Varied::Never,
        yarn_truncates: true,
        output_norm: "output_norm",
        latent: false,
        state: None,
        encoder: None,
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
    /// Other entries with the same layers: models without an output matrix, or with one for a task.
    pub also: &'static [&'static str],
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
    /// What names of tensors begin with, except those of heads; files of models without a head may leave it out.
    pub base: &'static str,
    /// What names of a layer's tensors begin with after that.
    pub layers: &'static str,
    /// Tensors outside of layers: the name in GGUF files, then in folders after `base`. The first is the embedding.
    pub others: &'static [(&'static str, &'static str)],
    /// Tensors of heads: the name in GGUF files, then in folders.
    pub heads: &'static [(&'static str, &'static str)],
    /// What names of tensors begin with that have no effect on results.
    pub unused: &'static [&'static str],
    /// Whether `attention_bias` is also about the output projection.
    pub output_bias: bool,
    /// Added to the factors of norms.
    pub norm_base: f32,
    /// Factors of products with matrices.
    pub multipliers: &'static [Multiplier],
    /// How matrices of experts are stored.
    pub experts: ExpertFiles,
    /// Tensors of a layer that other architectures lack or name differently: the name in GGUF files, then in folders,
    /// with `*` for the number of an expert, and `$` behind a name that is complete.
    pub tensors: &'static [(&'static str, &'static str)],
}

impl FolderNames {
    pub(crate) const PLAIN: FolderNames = FolderNames {
        model_type: "",
        class: "",
        also: &[],
        gate: "silu",
        rope_base: 10000.0,
        eps: "rms_norm_eps",
        rope: RopeStyle::HalfSplit,
        rotary_part: None,
        base: "model.",
        layers: "layers",
        others: &[
            ("token_embd.weight", "embed_tokens.weight"),
            ("output_norm.weight", "norm.weight"),
            ("output_norm.bias", "norm.bias"),
        ],
        heads: &[("output.weight", "lm_head.weight")],
        unused: &[],
        output_bias: true,
        norm_base: 0.0,
        multipliers: &[],
        experts: ExpertFiles::Separate,
        tensors: &[],
    };
}

/// How folders store the matrices of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFiles {
    /// A tensor for each expert and matrix.
    Separate,
    /// Those of all experts in one tensor `[experts, rows, row length]`, the rows of up behind those of gate.
    Halves,
    /// Those of all experts in one tensor `[experts, row length, rows]`, or in MXFP4 by rows; the rows of gate and up
    /// alternate. Biases are `[experts, rows]`.
    Interleaved,
}

impl FolderNames {
    /// Whether this is one of its entries of `architectures`.
    pub(crate) fn is_class(&self, class: &str) -> bool {
        self.class == class || self.also.contains(&class)
    }
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
    ARCHITECTURES.iter().copied().find(|a| a.folder.model_type == name || a.folder.is_class(name))
}

/// The `model_type` of all architectures, for messages.
pub(crate) fn supported_folders() -> String {
    ARCHITECTURES.iter().map(|a| a.folder.model_type).collect::<Vec<_>>().join(", ")
}
