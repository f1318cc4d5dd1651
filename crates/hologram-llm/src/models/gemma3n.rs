//! Gemma 3n (Google, 2025): a residual stream of four branches, low-rank products beside attention, shared keys and
//! values, embeddings of layers, and gates of which only the greatest count.

use hologram_core::{Graph, NodeId};

use super::blocks::{
    AltUp, Attention, AttentionParts, Block, GatedFfn, LayerInput, Loader, PlainFfn, chain, geglu, parallel, residual,
    scaled,
};
use super::gemma::GEMMA3;
use super::{Architecture, FolderNames, Scale, Varied, Windows};
use crate::error::Result;

/// Gemma 3n without images and sound.
pub static GEMMA3N: Architecture = Architecture {
    names: &["gemma3n"],
    folder: FolderNames {
        model_type: "gemma3n_text",
        class: "Gemma3nForCausalLM",
        also: &["Gemma3nForConditionalGeneration"],
        norm_base: 0.0,
        others: &[
            ("token_embd.weight", "embed_tokens.weight"),
            ("output_norm.weight", "norm.weight"),
            ("per_layer_token_embd.weight", "embed_tokens_per_layer.weight"),
            ("per_layer_model_proj.weight", "per_layer_model_projection.weight"),
            ("per_layer_proj_norm.weight", "per_layer_projection_norm.weight"),
            ("altup_proj.weight", "altup_projections.*.weight"),
            ("altup_unembd_proj.weight", "altup_unembed_projections.*.weight"),
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
            ("laurel_l", "laurel.linear_left"),
            ("laurel_r", "laurel.linear_right"),
            ("laurel_post_norm", "laurel.post_laurel_norm"),
            ("altup_router", "altup.modality_router"),
            ("altup_router_norm", "altup.router_norm"),
            ("altup_predict_coef", "altup.prediction_coefs"),
            ("altup_correct_coef", "altup.correction_coefs"),
            ("altup_correct_scale", "altup.correct_output_scale$"),
        ],
        ..GEMMA3.folder
    },
    layer,
    windows: Windows::AllExceptEach(5),
    scales: &[Scale::LogitCap],
    score_factor: Some(1.0),
    // Older GGUF files do not say it.
    logit_cap: Some(30.0),
    varied: Varied::Sharing,
    scores_by_width: None,
    ..GEMMA3
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts {
        head_norms: Some(["attn_q_norm", "attn_k_norm"]),
        value_norm: true,
        ..AttentionParts::default()
    };
    let attention = chain(vec![Attention::load(l, parts)?, l.norm("post_attention_norm")?]);
    let rows = |l: &Loader<'_>, name: &str| l.weights.shape(&l.name(name, "weight")).and_then(|s| s.first().copied());
    let rank = rows(l, "laurel_l").unwrap_or(1);
    let low = PlainFfn::load_named(l, ["laurel_l", "laurel_r"], rank, as_it_is)?;
    let low = residual(vec![low, l.norm("laurel_post_norm")?]);
    let mixers = residual(vec![l.norm("attn_norm")?, parallel(vec![attention, low])]);
    let ffn = rows(l, "ffn_up").unwrap_or(l.config.ffn);
    let cut = l.config.cuts.get(l.index).copied().flatten();
    let ffn = GatedFfn::load_cut(l, ffn, geglu, cut)?;
    let ffn = residual(vec![l.norm("ffn_norm")?, ffn, l.norm("post_ffw_norm")?]);
    let inner = chain(vec![mixers, scaled(0.5f32.sqrt()), ffn]);
    let input = chain(vec![LayerInput::load(l)?, l.norm("post_norm")?]);
    AltUp::load(l, inner, input)
}

fn as_it_is(_: &mut Graph, x: NodeId) -> hologram_core::Result<NodeId> {
    Ok(x)
}
