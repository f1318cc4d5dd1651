//! OLMo 2 (OLMo team, 2025, arXiv:2501.00656) and OLMo 3: norms after each block instead of before, and of all queries
//! and all keys of a token.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, chain, residual};
use super::{Architecture, FolderNames, RotaryLayers, Windows};
use crate::error::Result;

const NAMES: &[(&str, &str)] = &[
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// OLMo 2, and GGUF files of OLMo 3, which have windows: those layers' rotary embedding is not scaled.
pub static OLMO2: Architecture = Architecture {
    names: &["olmo2"],
    folder: FolderNames { model_type: "olmo2", class: "Olmo2ForCausalLM", tensors: NAMES, ..FolderNames::PLAIN },
    layer,
    windows: Windows::AllExceptEach(4),
    rotary: RotaryLayers::LocalBase(None),
    ..Architecture::PLAIN
};

/// OLMo 3 as a folder.
pub static OLMO3: Architecture = Architecture {
    names: &[],
    folder: FolderNames {
        model_type: "olmo3",
        class: "Olmo3ForCausalLM",
        rope_base: 500000.0,
        tensors: NAMES,
        ..FolderNames::PLAIN
    },
    ..OLMO2
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { width_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() };
    let attention = residual(vec![Attention::load(l, parts)?, l.norm("post_attention_norm")?]);
    let ffn = residual(vec![GatedFfn::load(l, Graph::swiglu, None)?, l.norm("post_ffw_norm")?]);
    Ok(chain(vec![attention, ffn]))
}
