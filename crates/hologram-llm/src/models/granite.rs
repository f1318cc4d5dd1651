//! Granite (IBM, 2024): Llama with factors of embeddings, blocks, attention scores and logits; Granite 4 (2025) has
//! Mamba2 in most layers.

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, Mamba, chain, feed_forward, residual};
use super::{Architecture, ExpertFiles, ExpertRule, FolderNames, RotaryLayers, Scale, StateRule};
use crate::error::Result;

/// Granite 3 without experts. In GGUF files the rows of Q and K are permuted as those of Llama.
pub static GRANITE: Architecture = Architecture {
    names: &["granite"],
    folder: FolderNames { model_type: "granite", class: "GraniteForCausalLM", ..FolderNames::PLAIN },
    rope: RopeStyle::Adjacent,
    scales: &[Scale::Embedding, Scale::Residual, Scale::Attention, Scale::LogitsDivisor],
    ..Architecture::PLAIN
};

/// Granite 4 with Mamba2, with experts or without.
pub static GRANITE_HYBRID: Architecture = Architecture {
    names: &["granitehybrid"],
    folder: FolderNames {
        model_type: "granitemoehybrid",
        class: "GraniteMoeHybridForCausalLM",
        tensors: &[
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_dt", "mamba.dt_bias$"),
            ("ssm_a_log", "mamba.A_log$"),
            ("ssm_d", "mamba.D$"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
            ("ffn_up", "shared_mlp.input_linear"),
            ("ffn_down", "shared_mlp.output_linear"),
            ("ffn_up_shexp", "shared_mlp.input_linear"),
            ("ffn_down_shexp", "shared_mlp.output_linear"),
            ("ffn_gate_inp", "block_sparse_moe.router.layer"),
            ("ffn_gate_exps", "block_sparse_moe.input_linear"),
            ("ffn_up_exps", "block_sparse_moe.input_linear"),
            ("ffn_down_exps", "block_sparse_moe.output_linear"),
        ],
        experts: ExpertFiles::Halves,
        ..FolderNames::PLAIN
    },
    layer: hybrid,
    rotary: RotaryLayers::AsFileSays,
    experts: Some(ExpertRule::NORMALIZED),
    state: Some(StateRule::Mamba),
    ..GRANITE
};

fn hybrid(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let mixer = match l.config.attends[l.index] {
        true => Attention::load(l, AttentionParts::default())?,
        false => Mamba::load(l)?,
    };
    let mixer = residual(vec![l.norm("attn_norm")?, mixer]);
    let ffn = match (&l.config.experts, l.weights.shape(&l.name("ffn_down", "weight")).as_deref()) {
        // The width of models without experts is that of the tensor.
        (None, Some(&[_, ffn])) => GatedFfn::load_named(l, ["ffn_gate", "ffn_up", "ffn_down"], ffn, Graph::swiglu)?,
        _ => feed_forward(l, Graph::swiglu)?,
    };
    let ffn = residual(vec![l.norm("ffn_norm")?, ffn]);
    Ok(chain(vec![mixer, ffn]))
}
