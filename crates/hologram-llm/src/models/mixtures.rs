//! Mixtures of experts whose layers are otherwise those of a family without: each token's feed-forward networks are a
//! few of many (Shazeer et al., 2017, arXiv:1701.06538).

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Attention, AttentionParts, Block, Loader, chain, feed_forward, residual};
use super::{Architecture, ExpertFiles, ExpertRule, FolderNames, Windows, granite, llama, qwen2, qwen3};
use crate::error::Result;

/// Qwen3 with experts, such as Qwen3-30B-A3B.
pub static QWEN3_MOE: Architecture = Architecture {
    names: &["qwen3moe"],
    folder: FolderNames {
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        tensors: &[
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("ffn_gate_inp", "mlp.gate"),
            ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
            ("ffn_up_exps", "mlp.experts.*.up_proj"),
            ("ffn_down_exps", "mlp.experts.*.down_proj"),
        ],
        ..FolderNames::PLAIN
    },
    layer: qwen3::layer,
    windows: Windows::Last,
    experts: Some(ExpertRule { normalized: true, ..ExpertRule::SOFTMAX }),
    ..Architecture::PLAIN
};

/// Qwen1.5 and Qwen2 with experts, one of which all tokens use.
pub static QWEN2_MOE: Architecture = Architecture {
    names: &["qwen2moe"],
    folder: FolderNames {
        model_type: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        tensors: &[
            ("ffn_gate_inp", "mlp.gate"),
            ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
            ("ffn_up_exps", "mlp.experts.*.up_proj"),
            ("ffn_down_exps", "mlp.experts.*.down_proj"),
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ],
        ..FolderNames::PLAIN
    },
    layer: qwen2::layer,
    windows: Windows::Last,
    experts: Some(ExpertRule { shared_gate: true, ..ExpertRule::SOFTMAX }),
    ..Architecture::PLAIN
};

/// Mixtral (Jiang et al., 2024, arXiv:2401.04088). Its GGUF files use the `llama` architecture.
pub static MIXTRAL: Architecture = Architecture {
    folder: FolderNames {
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        rope_base: 1000000.0,
        tensors: &[
            ("ffn_gate_inp", "block_sparse_moe.gate"),
            ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
        ],
        ..FolderNames::PLAIN
    },
    rope: RopeStyle::Adjacent,
    layer: llama::layer,
    windows: Windows::All,
    experts: Some(ExpertRule::NORMALIZED),
    ..Architecture::PLAIN
};

/// OLMoE (Muennighoff et al., 2024, arXiv:2409.02060): norms of all queries and all keys of a token.
pub static OLMOE: Architecture = Architecture {
    names: &["olmoe"],
    folder: FolderNames { model_type: "olmoe", class: "OlmoeForCausalLM", ..QWEN3_MOE.folder },
    layer: olmoe,
    experts: Some(ExpertRule::SOFTMAX),
    ..Architecture::PLAIN
};

fn olmoe(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { width_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}

/// gpt-oss (OpenAI, 2025, arXiv:2508.10925): windows in every second layer, sinks, biases everywhere, clamped gates.
pub static GPT_OSS: Architecture = Architecture {
    names: &["gpt-oss"],
    folder: FolderNames {
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        rope_base: 150000.0,
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_sinks", "self_attn.sinks$"),
            ("ffn_gate_inp", "mlp.router"),
            ("ffn_gate_exps", "mlp.experts.gate_up_proj"),
            ("ffn_up_exps", "mlp.experts.gate_up_proj"),
            ("ffn_down_exps", "mlp.experts.down_proj"),
        ],
        experts: ExpertFiles::Interleaved,
        ..FolderNames::PLAIN
    },
    layer: gpt_oss,
    windows: Windows::AllExceptEach(2),
    experts: Some(ExpertRule::NORMALIZED),
    yarn_truncates: false,
    ..Architecture::PLAIN
};

fn gpt_oss(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { sinks: Some("attn_sinks"), ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("post_attention_norm")?, feed_forward(l, Graph::clamped_swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}

/// GLM-4.5 and GLM-4.5-Air (GLM-4.5 team, 2025, arXiv:2508.06471): sigmoid scores with a bias that only chooses, as in
/// DeepSeek-V3 (arXiv:2412.19437), a shared expert, and first layers without experts.
pub static GLM4_MOE: Architecture = Architecture {
    names: &["glm4moe"],
    folder: FolderNames {
        model_type: "glm4_moe",
        class: "Glm4MoeForCausalLM",
        rotary_part: Some(0.5),
        output_bias: false,
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("ffn_gate_inp", "mlp.gate"),
            ("exp_probs_b", "mlp.gate.e_score_correction_bias$"),
            ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
            ("ffn_up_exps", "mlp.experts.*.up_proj"),
            ("ffn_down_exps", "mlp.experts.*.down_proj"),
            ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
            ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ],
        ..FolderNames::PLAIN
    },
    layer: glm4_moe,
    experts: Some(ExpertRule { sigmoid: true, ..ExpertRule::NORMALIZED }),
    ..Architecture::PLAIN
};

fn glm4_moe(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let normed = l.weights.shape(&l.name("attn_q_norm", "weight")).is_some();
    let head_norms = normed.then_some(["attn_q_norm", "attn_k_norm"]);
    let attention = Attention::load(l, AttentionParts { head_norms, ..AttentionParts::default() })?;
    let attention = residual(vec![l.norm("attn_norm")?, attention]);
    let ffn = residual(vec![l.norm("post_attention_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}

/// Granite 3 with experts (IBM, 2024).
pub static GRANITE_MOE: Architecture = Architecture {
    names: &["granitemoe"],
    folder: FolderNames {
        model_type: "granitemoe",
        class: "GraniteMoeForCausalLM",
        tensors: &[
            ("ffn_gate_inp", "block_sparse_moe.router.layer"),
            ("ffn_gate_exps", "block_sparse_moe.input_linear"),
            ("ffn_up_exps", "block_sparse_moe.input_linear"),
            ("ffn_down_exps", "block_sparse_moe.output_linear"),
        ],
        experts: ExpertFiles::Halves,
        ..FolderNames::PLAIN
    },
    experts: Some(ExpertRule::NORMALIZED),
    ..granite::GRANITE
};
