//! StarCoder2 (Lozhkov et al., 2024, arXiv:2402.19173): LayerNorm, biases everywhere, a feed-forward network without
//! a gate.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, Loader, PlainFfn, chain, residual};
use super::{Architecture, FolderNames, NormKind, Windows};
use crate::error::Result;

/// StarCoder2.
pub static STARCODER2: Architecture = Architecture {
    names: &["starcoder2"],
    folder: FolderNames {
        model_type: "starcoder2",
        class: "Starcoder2ForCausalLM",
        gate: "gelu_pytorch_tanh",
        eps: "norm_epsilon",
        tensors: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        ..FolderNames::PLAIN
    },
    layer,
    norm: NormKind::Layer,
    windows: Windows::All,
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, AttentionParts::default())?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, PlainFfn::load(l, Graph::gelu_tanh)?]);
    Ok(chain(vec![attention, ffn]))
}
