//! GLM-4 (GLM team, 2024, arXiv:2406.12793) as of April 2025: norms before and after each block, gate and up in one
//! matrix, half of each head rotated.

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, chain, residual};
use super::{Architecture, FolderNames};
use crate::error::Result;

/// GLM-4-0414 and GLM-Z1.
pub static GLM4: Architecture = Architecture {
    names: &["glm4"],
    folder: FolderNames {
        model_type: "glm4",
        class: "Glm4ForCausalLM",
        rope: RopeStyle::Adjacent,
        rotary_part: Some(0.5),
        output_bias: false,
        tensors: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
            ("post_ffw_norm", "post_mlp_layernorm"),
        ],
        ..FolderNames::PLAIN
    },
    rope: RopeStyle::Adjacent,
    layer,
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = Attention::load(l, AttentionParts::default())?;
    let attention = residual(vec![l.norm("attn_norm")?, attention, l.norm("post_attention_norm")?]);
    let ffn = GatedFfn::load_fused(l, Graph::swiglu)?;
    let ffn = residual(vec![l.norm("ffn_norm")?, ffn, l.norm("post_ffw_norm")?]);
    Ok(chain(vec![attention, ffn]))
}
