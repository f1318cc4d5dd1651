//! The model architectures: one file each, and one line each in [`ARCHITECTURES`].

mod bitnet;
mod blocks;
pub(crate) mod config;
pub(crate) mod config_json;
mod config_unknown;
pub(crate) mod decoder;
#[cfg(test)]
mod golden;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
pub(crate) mod rope;

use blocks::LayerFn;
use hologram_core::ops::RopeStyle;

/// The supported architectures.
pub const ARCHITECTURES: &[&Architecture] =
    &[&llama::LLAMA, &mistral::MISTRAL, &qwen2::QWEN2, &qwen3::QWEN3, &bitnet::BITNET];

/// The features of a decoder-only transformer. Together with the metadata they determine its graph.
#[derive(Debug)]
pub struct Architecture {
    /// Its values of `general.architecture`.
    pub names: &'static [&'static str],
    /// Its names in a folder's `config.json`.
    pub folder: FolderNames,
    /// Which elements of a head rotary embedding pairs in GGUF files. In folders it always pairs the two halves.
    pub rope: RopeStyle,
    /// Loads and composes a layer.
    pub(crate) layer: LayerFn,
    /// How activations are quantized for ternary weights.
    pub ternary: TernaryActivations,
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
    /// Which layers have a sliding window.
    pub windows: Windows,
    /// Tensors of a layer that other architectures lack or name differently: the name in GGUF files, then in folders.
    pub tensors: &'static [(&'static str, &'static str)],
}

/// Which layers have a sliding window if `config.json` does not list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None.
    Never,
    /// All, if there is a `sliding_window`.
    All,
    /// Layers from `max_window_layers` on, if `use_sliding_window` is set.
    Last,
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
