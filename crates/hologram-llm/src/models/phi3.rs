//! Phi-3 (Abdin et al., 2024, arXiv:2404.14219) and Phi-4 (arXiv:2412.08905): queries, keys and values in one matrix,
//! gate and up in another, LongRoPE.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, chain, residual};
use super::{Architecture, FolderNames, Windows};
use crate::error::Result;

/// Phi-3, Phi-3.5, Phi-4 and Phi-4 mini.
pub static PHI3: Architecture = Architecture {
    names: &["phi3"],
    folder: FolderNames {
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        rotary_part: Some(1.0),
        tensors: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        ..FolderNames::PLAIN
    },
    layer,
    windows: Windows::All,
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { fused: true, ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load_fused(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}
