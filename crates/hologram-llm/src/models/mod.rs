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

/// The architectures that can be run.
pub const ARCHITECTURES: &[&Architecture] =
    &[&llama::LLAMA, &mistral::MISTRAL, &qwen2::QWEN2, &qwen3::QWEN3, &bitnet::BITNET];

/// What distinguishes a decoder-only transformer: its graph follows from this and from the sizes in the metadata.
#[derive(Debug)]
pub struct Architecture {
    /// The values of `general.architecture` that it serves.
    pub names: &'static [&'static str],
    /// What it is called in a folder's `config.json`.
    pub folder: FolderNames,
    /// Which elements of a head rotary embedding pairs in GGUF files. In folders it is always the halves.
    pub rope: RopeStyle,
    /// Loads and composes a layer.
    pub(crate) layer: LayerFn,
    /// How activations are quantised for ternary weights.
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
    /// The base of rotary frequencies where the file gives none.
    pub rope_base: f32,
    /// Which blocks have a sliding window.
    pub windows: Windows,
    /// Tensors of a layer that other architectures lack or name differently: the name in GGUF files, then the one in
    /// folders.
    pub tensors: &'static [(&'static str, &'static str)],
}

/// Which blocks have a sliding window, where `config.json` gives no list of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None.
    Never,
    /// All, where there is a `sliding_window`.
    All,
    /// Where `use_sliding_window` is set, those from `max_window_layers` on.
    Last,
}

/// How activations are quantised before a product with ternary weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TernaryActivations {
    /// One scale for a whole token, as BitNet b1.58 models are trained.
    PerToken,
    /// One scale for each block of 256.
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
