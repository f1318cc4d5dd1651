//! Qwen2 and Qwen2.5 (Yang et al., 2024, arXiv:2407.10671): biases of queries, keys and values.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, Loader, chain, feed_forward, residual};
use super::{Architecture, FolderNames, Windows};
use crate::error::Result;

/// Qwen2 and Qwen2.5 without experts.
pub static QWEN2: Architecture = Architecture {
    names: &["qwen2"],
    folder: FolderNames { model_type: "qwen2", class: "Qwen2ForCausalLM", ..FolderNames::PLAIN },
    layer,
    windows: Windows::Last,
    ..Architecture::PLAIN
};

pub(super) fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { biased: true, ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}
