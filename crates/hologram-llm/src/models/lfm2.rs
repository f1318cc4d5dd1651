//! LFM2 (Liquid AI, 2025, arXiv:2511.23404): short convolutions with gates, and attention in some layers; with experts
//! after the first layers in the larger ones.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, Loader, ShortConv, chain, feed_forward, residual};
use super::{Architecture, ExpertRule, FolderNames, StateRule};
use crate::error::Result;

/// The tensors of a layer in folders.
const TENSORS: [(&str, &str); 11] = [
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
];

/// As [`TENSORS`], with those of experts.
const WITH_EXPERTS: [(&str, &str); 16] = {
    let mut all = [("", ""); 16];
    let mut i = 0;
    while i < TENSORS.len() {
        all[i] = TENSORS[i];
        i += 1;
    }
    all[11] = ("ffn_gate_inp", "feed_forward.gate");
    all[12] = ("exp_probs_b", "feed_forward.expert_bias$");
    all[13] = ("ffn_gate_exps", "feed_forward.experts.*.w1");
    all[14] = ("ffn_up_exps", "feed_forward.experts.*.w3");
    all[15] = ("ffn_down_exps", "feed_forward.experts.*.w2");
    all
};

/// LFM2 without experts. Its GGUF files call the norm after the layers `token_embd_norm`.
pub static LFM2: Architecture = Architecture {
    names: &["lfm2"],
    folder: FolderNames {
        model_type: "lfm2",
        class: "Lfm2ForCausalLM",
        eps: "norm_eps",
        rope_base: 1_000_000.0,
        others: &[("token_embd.weight", "embed_tokens.weight"), ("token_embd_norm.weight", "embedding_norm.weight")],
        tensors: &TENSORS,
        ..FolderNames::PLAIN
    },
    layer,
    output_norm: "token_embd_norm",
    state: Some(StateRule::ShortConv),
    ..Architecture::PLAIN
};

/// LFM2 with experts, such as LFM2-8B-A1B.
pub static LFM2_MOE: Architecture = Architecture {
    names: &["lfm2moe"],
    folder: FolderNames { model_type: "lfm2_moe", class: "Lfm2MoeForCausalLM", tensors: &WITH_EXPERTS, ..LFM2.folder },
    experts: Some(ExpertRule { sigmoid: true, ..ExpertRule::NORMALIZED }),
    ..LFM2
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { head_norms: Some(["attn_q_norm", "attn_k_norm"]), ..AttentionParts::default() };
    let mixer = if l.config.attends[l.index] { Attention::load(l, parts)? } else { ShortConv::load(l)? };
    let mixer = residual(vec![l.norm("attn_norm")?, mixer]);
    let ffn = residual(vec![l.norm("ffn_norm")?, feed_forward(l, Graph::swiglu)?]);
    Ok(chain(vec![mixer, ffn]))
}
