//! Qwen3-Next and Qwen3.5 (Qwen team, 2025 and 2026): three layers of gated DeltaNet for each one with attention, whose
//! result has a gate; with experts or without.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, DeltaNet, Loader, chain, feed_forward, residual};
use super::{Architecture, ExpertFiles, ExpertRule, FolderNames, StateRule};
use crate::error::Result;

/// What `config.json` and GGUF files of all have in common.
const BASE: Architecture = Architecture {
    folder: FolderNames { rotary_part: Some(0.25), norm_base: 1.0, ..FolderNames::PLAIN },
    layer,
    experts: Some(ExpertRule { shared_gate: true, ..ExpertRule::NORMALIZED }),
    state: Some(StateRule::Heads { interval: Some(4), tiled: true }),
    ..Architecture::PLAIN
};

/// Qwen3.5 without experts, also 3.6 and 3.8. Its GGUF files have the heads of values of one key head apart.
pub static QWEN35: Architecture = Architecture {
    names: &["qwen35"],
    folder: FolderNames {
        model_type: "qwen3_5_text",
        class: "Qwen3_5ForCausalLM",
        also: &["Qwen3_5ForConditionalGeneration"],
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_beta", "linear_attn.in_proj_b"),
            ("ssm_alpha", "linear_attn.in_proj_a"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_dt", "linear_attn.dt_bias$"),
            ("ssm_a_log", "linear_attn.A_log$"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
        ],
        ..BASE.folder
    },
    ..BASE
};

/// Qwen3.5 with experts, such as Qwen3.6-35B-A3B.
pub static QWEN35_MOE: Architecture = Architecture {
    names: &["qwen35moe"],
    folder: FolderNames {
        model_type: "qwen3_5_moe_text",
        class: "Qwen3_5MoeForCausalLM",
        also: &["Qwen3_5MoeForConditionalGeneration"],
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_beta", "linear_attn.in_proj_b"),
            ("ssm_alpha", "linear_attn.in_proj_a"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_dt", "linear_attn.dt_bias$"),
            ("ssm_a_log", "linear_attn.A_log$"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
            ("ffn_gate_inp", "mlp.gate"),
            ("ffn_gate_exps", "mlp.experts.gate_up_proj$"),
            ("ffn_up_exps", "mlp.experts.gate_up_proj$"),
            ("ffn_down_exps", "mlp.experts.down_proj$"),
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ],
        experts: ExpertFiles::Halves,
        ..BASE.folder
    },
    ..BASE
};

/// Qwen3-Next, such as Qwen3-Next-80B-A3B and Qwen3-Coder-Next. Its projections are by key heads.
pub static QWEN3_NEXT: Architecture = Architecture {
    names: &["qwen3next"],
    folder: FolderNames {
        model_type: "qwen3_next",
        class: "Qwen3NextForCausalLM",
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("ssm_in", "linear_attn.in_proj_qkvz"),
            ("ssm_ba", "linear_attn.in_proj_ba"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_dt", "linear_attn.dt_bias$"),
            ("ssm_a_log", "linear_attn.A_log$"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
            ("ffn_gate_inp", "mlp.gate"),
            ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
            ("ffn_up_exps", "mlp.experts.*.up_proj"),
            ("ffn_down_exps", "mlp.experts.*.down_proj"),
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ],
        ..BASE.folder
    },
    state: Some(StateRule::Heads { interval: Some(4), tiled: false }),
    ..BASE
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let head_norms = Some(["attn_q_norm", "attn_k_norm"]);
    let mixer = match l.config.attends[l.index] {
        true => Attention::load(l, AttentionParts { head_norms, gated: true, ..AttentionParts::default() })?,
        false => DeltaNet::load(l)?,
    };
    let mixer = residual(vec![l.norm("attn_norm")?, mixer]);
    let ffn = residual(vec![l.norm("post_attention_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![mixer, ffn]))
}
