//! Mixtures of experts whose layers are otherwise those of a family without: each token's feed-forward networks are a
//! few of many (Shazeer et al., 2017, arXiv:1701.06538).

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Attention, AttentionParts, Block, Loader, chain, feed_forward, residual};
use super::{Architecture, ExpertRule, FolderNames, Windows, llama, qwen2, qwen3};
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
    experts: Some(ExpertRule { normalized: true, normalized_in_folders: false }),
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
    experts: Some(ExpertRule { normalized: false, normalized_in_folders: false }),
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
    experts: Some(ExpertRule { normalized: true, normalized_in_folders: true }),
    ..Architecture::PLAIN
};

/// OLMoE (Muennighoff et al., 2024, arXiv:2409.02060): norms of all queries and all keys of a token.
pub static OLMOE: Architecture = Architecture {
    names: &["olmoe"],
    folder: FolderNames { model_type: "olmoe", class: "OlmoeForCausalLM", ..QWEN3_MOE.folder },
    layer: olmoe,
    experts: Some(ExpertRule { normalized: false, normalized_in_folders: false }),
    ..Architecture::PLAIN
};

fn olmoe(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { width_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![attention, ffn]))
}
