//! Gemma 2 and 3 (Gemma team, 2025, arXiv:2503.19786): windows in some layers, norms before and after each block, GELU
//! gates, a scaled embedding. Gemma 4 (Google, 2026) has larger heads in layers without a window.

use super::blocks::{
    Attention, AttentionParts, Block, GatedFfn, LayerInput, Loader, chain, experts_beside, geglu, parallel, residual,
    scaled,
};
use super::{Architecture, ExpertFiles, ExpertRule, FolderNames, RotaryLayers, Scale, Varied, Windows};
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

/// Gemma 4 without images and sound. Experts stand beside the network of all tokens. The small ones have a further
/// embedding of each token in each layer, and the last layers share keys and values; the large ones have keys that are
/// values too.
pub static GEMMA4: Architecture = Architecture {
    names: &["gemma4"],
    folder: FolderNames {
        model_type: "gemma4_text",
        class: "Gemma4ForCausalLM",
        also: &["Gemma4ForConditionalGeneration"],
        norm_base: 0.0,
        others: &[
            ("token_embd.weight", "embed_tokens.weight"),
            ("output_norm.weight", "norm.weight"),
            ("per_layer_token_embd.weight", "embed_tokens_per_layer.weight"),
            ("per_layer_model_proj.weight", "per_layer_model_projection.weight"),
            ("per_layer_proj_norm.weight", "per_layer_projection_norm.weight"),
        ],
        tensors: &[
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("layer_output_scale", "layer_scalar$"),
            ("ffn_gate_inp", "router.proj"),
            ("ffn_gate_inp.scale", "router.scale$"),
            ("ffn_gate_exps", "experts.gate_up_proj$"),
            ("ffn_gate_up_exps", "experts.gate_up_proj$"),
            ("ffn_up_exps", "experts.gate_up_proj$"),
            ("ffn_down_exps", "experts.down_proj$"),
            ("ffn_down_exps.scale", "router.per_expert_scale$"),
            ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
            ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
            ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ],
        experts: ExpertFiles::Halves,
        ..GEMMA3.folder
    },
    layer: gemma4,
    experts: Some(ExpertRule::NORMALIZED),
    scales: &[Scale::LogitCap],
    score_factor: Some(1.0),
    varied: Varied::Sizes,
    scores_by_width: None,
    ..GEMMA3
};

fn gemma4(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts {
        head_norms: Some(["attn_q_norm", "attn_k_norm"]),
        value_norm: true,
        keys_as_values: true,
        ..AttentionParts::default()
    };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?, l.norm("post_attention_norm")?]);
    // Layers that share keys and values may have a wider network.
    let shape = l.weights.shape(&l.name("ffn_up", "weight"));
    let ffn = shape.and_then(|shape| shape.first().copied()).unwrap_or(l.config.ffn);
    let mut ffn = vec![l.norm("ffn_norm")?, GatedFfn::load_named(l, ["ffn_gate", "ffn_up", "ffn_down"], ffn, geglu)?];
    if let Some(experts) = &l.config.experts {
        ffn.push(l.norm("post_ffw_norm_1")?);
        let experts = vec![experts_beside(l, experts, geglu, "pre_ffw_norm_2")?, l.norm("post_ffw_norm_2")?];
        ffn = vec![parallel(vec![chain(ffn), chain(experts)])];
    }
    ffn.push(l.norm("post_ffw_norm")?);
    let mut blocks = vec![attention, residual(ffn)];
    if l.config.layer_input > 0 {
        blocks.push(residual(vec![LayerInput::load(l)?, l.norm("post_norm")?]));
    }
    if let Some(&[factor]) = l.weights.optional_values(&l.name("layer_output_scale", "weight"), 1)?.as_deref() {
        blocks.push(scaled(factor));
    }
    Ok(chain(blocks))
}

fn blocks(l: &mut Loader<'_>, parts: AttentionParts) -> Result<Box<dyn Block>> {
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?, l.norm("post_attention_norm")?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load(l, geglu, None)?, l.norm("post_ffw_norm")?]);
    Ok(chain(vec![attention, ffn]))
}
