//! Gemma 2 and 3 (Gemma team, 2025, arXiv:2503.19786): windows in some layers, norms before and after each block, GELU
//! gates, a scaled embedding.

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, chain, geglu, residual};
use super::{Architecture, FolderNames, RotaryLayers, Scale, Windows};
use crate::error::Result;

/// Gemma 2 (Gemma team, 2024, arXiv:2408.00118): capped scores and logits, windows in every second layer.
pub static GEMMA2: Architecture = Architecture {
    names: &["gemma2"],
    folder: FolderNames {
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        also: &[],
        rope_base: 10000.0,
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        ..GEMMA3.folder
    },
    layer: gemma2,
    windows: Windows::AllExceptEach(2),
    scales: &[Scale::AttentionSize, Scale::Attention, Scale::AttentionCap, Scale::LogitCap],
    embedding_by_width: true,
    // 27B.
    scores_by_width: Some(46),
    ..Architecture::PLAIN
};

fn gemma2(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    blocks(l, AttentionParts::default())
}

/// Gemma 3 without its vision tower, and EmbeddingGemma (Vera et al., 2025, arXiv:2509.20354), whose tokens see all
/// of their text.
pub static GEMMA3: Architecture = Architecture {
    names: &["gemma3", "gemma-embedding"],
    folder: FolderNames {
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        also: &["Gemma3TextModel"],
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
    blocks(l, AttentionParts { head_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() })
}

fn blocks(l: &mut Loader<'_>, parts: AttentionParts) -> Result<Box<dyn Block>> {
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?, l.norm("post_attention_norm")?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load(l, geglu, None)?, l.norm("post_ffw_norm")?]);
    Ok(chain(vec![attention, ffn]))
}
