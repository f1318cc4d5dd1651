//! Falcon-H1 (TII, 2025, arXiv:2507.22448): attention and Mamba2 beside each other in every layer, with factors of
//! products.

use hologram_core::Graph;

use super::blocks::{
    Attention, AttentionParts, Block, GatedFfn, Loader, MAMBA_PARTS, Mamba, chain, parallel, residual,
};
use super::{Architecture, FolderNames, Multiplier, StateRule};
use crate::error::Result;

const fn factor(key: &'static str, at: Option<usize>, of: &'static [&'static str]) -> Multiplier {
    Multiplier { key, at, of }
}

/// Falcon-H1.
pub static FALCON_H1: Architecture = Architecture {
    names: &["falcon-h1"],
    folder: FolderNames {
        model_type: "falcon_h1",
        class: "FalconH1ForCausalLM",
        others: &[("token_embd.weight", "embed_tokens.weight"), ("output_norm.weight", "final_layernorm.weight")],
        multipliers: &[
            factor("embedding_multiplier", None, &["token_embd"]),
            factor("lm_head_multiplier", None, &["output"]),
            factor("attention_in_multiplier", None, &["attn_q", "attn_k", "attn_v"]),
            factor("key_multiplier", None, &["attn_k"]),
            factor("attention_out_multiplier", None, &["attn_output"]),
            factor("ssm_in_multiplier", None, &MAMBA_PARTS),
            factor("ssm_multipliers", Some(0), &[MAMBA_PARTS[0]]),
            factor("ssm_multipliers", Some(1), &[MAMBA_PARTS[1]]),
            factor("ssm_multipliers", Some(2), &[MAMBA_PARTS[2]]),
            factor("ssm_multipliers", Some(3), &[MAMBA_PARTS[3]]),
            factor("ssm_multipliers", Some(4), &[MAMBA_PARTS[4]]),
            factor("ssm_out_multiplier", None, &["ssm_out"]),
            factor("mlp_multipliers", Some(0), &["ffn_gate"]),
            factor("mlp_multipliers", Some(1), &["ffn_down"]),
        ],
        tensors: &[
            ("ffn_norm", "pre_ff_layernorm"),
            ("ffn_gate", "feed_forward.gate_proj"),
            ("ffn_up", "feed_forward.up_proj"),
            ("ffn_down", "feed_forward.down_proj"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_dt", "mamba.dt_bias$"),
            ("ssm_a_log", "mamba.A_log$"),
            ("ssm_d", "mamba.D$"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
        ],
        ..FolderNames::PLAIN
    },
    layer,
    state: Some(StateRule::MambaBeside),
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let mixers = vec![Mamba::load(l)?, Attention::load(l, AttentionParts::default())?];
    let mixers = residual(vec![l.norm("attn_norm")?, parallel(mixers)]);
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load(l, Graph::swiglu, None)?]);
    Ok(chain(vec![mixers, ffn]))
}
