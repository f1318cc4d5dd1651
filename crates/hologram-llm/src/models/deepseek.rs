//! DeepSeek V2 (2024, arXiv:2405.04434) and V3 (arXiv:2412.19437), and GLM-4.7-Flash: attention to latent vectors, and
//! experts beside a shared one after the first layers.

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Block, LatentAttention, Loader, chain, feed_forward, residual};
use super::{Architecture, ExpertRule, FolderNames};
use crate::error::Result;

/// The tensors of a layer in folders.
const TENSORS: &[(&str, &str)] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.gate.e_score_correction_bias$"),
    ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
    ("ffn_up_exps", "mlp.experts.*.up_proj"),
    ("ffn_down_exps", "mlp.experts.*.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// DeepSeek V2. GGUF files of all these families have this architecture and say how experts are chosen.
pub static DEEPSEEK_V2: Architecture = Architecture {
    names: &["deepseek2"],
    folder: FolderNames {
        model_type: "deepseek_v2",
        class: "DeepseekV2ForCausalLM",
        rope: RopeStyle::Adjacent,
        tensors: TENSORS,
        ..FolderNames::PLAIN
    },
    rope: RopeStyle::Adjacent,
    layer,
    latent: true,
    experts: Some(ExpertRule::SOFTMAX),
    ..Architecture::PLAIN
};

/// DeepSeek V3 and R1.
pub static DEEPSEEK_V3: Architecture = Architecture {
    names: &[],
    folder: FolderNames { model_type: "deepseek_v3", class: "DeepseekV3ForCausalLM", ..DEEPSEEK_V2.folder },
    experts: Some(ExpertRule { sigmoid: true, ..ExpertRule::NORMALIZED }),
    ..DEEPSEEK_V2
};

/// GLM-4.7-Flash.
pub static GLM4_MOE_LITE: Architecture = Architecture {
    folder: FolderNames { model_type: "glm4_moe_lite", class: "Glm4MoeLiteForCausalLM", ..DEEPSEEK_V2.folder },
    ..DEEPSEEK_V3
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = residual(vec![l.norm("attn_norm")?, LatentAttention::load(l)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}
