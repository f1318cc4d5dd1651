//! Qwen3 (Yang et al., 2025, arXiv:2505.09388): query and key heads are normalised; the head size is explicit.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, Loader, chain, feed_forward, residual};
use super::{Architecture, FolderNames, Windows};
use crate::error::Result;

/// Qwen3 without experts.
pub static QWEN3: Architecture = Architecture {
    names: &["qwen3"],
    folder: FolderNames {
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        also: &["Qwen3Model"],
        tensors: &[("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")],
        ..FolderNames::PLAIN
    },
    layer,
    windows: Windows::Last,
    ..Architecture::PLAIN
};

pub(super) fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { head_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}
