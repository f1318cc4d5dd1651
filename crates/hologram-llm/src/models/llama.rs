//! Llama (Touvron et al., 2023, arXiv:2302.13971) and models of the same architecture.

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Attention, AttentionParts, Block, Loader, chain, feed_forward, residual};
use super::{Architecture, ExpertRule, FolderNames};
use crate::error::Result;

/// Llama 1 to 3.x. In GGUF files the rows of Q and K are permuted so that rotary embedding pairs adjacent elements.
pub static LLAMA: Architecture = Architecture {
    names: &["llama"],
    folder: FolderNames { model_type: "llama", class: "LlamaForCausalLM", ..FolderNames::PLAIN },
    rope: RopeStyle::Adjacent,
    layer,
    // GGUF files of Mixtral.
    experts: Some(ExpertRule::NORMALIZED),
    ..Architecture::PLAIN
};

/// A pre-norm layer: attention, then a gated feed-forward network, each with a norm before it and a residual
/// connection.
pub(super) fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts::default();
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}
