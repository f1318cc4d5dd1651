//! Gemma 3 (Gemma team, 2025, arXiv:2503.19786): windows in five of six layers, norms before and after each block,
//! GELU gates, a scaled embedding.

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, chain, geglu, residual};
use super::{Architecture, FolderNames, RotaryLayers, Scale, Windows};
use crate::error::Result;

/// Gemma 3 without its vision tower.
pub static GEMMA3: Architecture = Architecture {
    names: &["gemma3"],
    folder: FolderNames {
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        gate: "gelu_pytorch_tanh",
        rope_base: 1000000.0,
        norm_base: 1.0,
        tensors: &[
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        ..FolderNames::PLAIN
    },
    layer,
    windows: Windows::AllExceptEach(6),
    rotary: RotaryLayers::LocalBase(Some(10000.0)),
    scales: &[Scale::AttentionSize, Scale::Attention, Scale::LogitCap],
    embedding_by_width: true,
    // 27B.
    scores_by_width: Some(62),
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { head_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?, l.norm("post_attention_norm")?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load(l, geglu, None)?, l.norm("post_ffw_norm")?]);
    Ok(chain(vec![attention, ffn]))
}
