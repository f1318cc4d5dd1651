//! BitNet b1.58 (Ma et al., 2024, arXiv:2402.17764) as Microsoft published it with BitNet b1.58 2B4T
//! (arXiv:2504.12285): ternary linear layers, activations in 8 bits per token, squared ReLU, sub-norms, tied output.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, chain, residual};
use super::{Architecture, FolderNames, TernaryActivations};
use crate::error::Result;

/// BitNet b1.58 2B4T and models of the same architecture.
pub static BITNET: Architecture = Architecture {
    names: &["bitnet-b1.58", "bitnet-25"],
    folder: FolderNames {
        model_type: "bitnet",
        class: "BitNetForCausalLM",
        gate: "relu2",
        rope_base: 500000.0,
        tensors: &[("attn_sub_norm", "self_attn.attn_sub_norm"), ("ffn_sub_norm", "mlp.ffn_sub_norm")],
        ..FolderNames::PLAIN
    },
    layer,
    ternary: TernaryActivations::PerToken,
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let parts = AttentionParts { sub_norm: Some("attn_sub_norm"), ..AttentionParts::default() };
    let attention = residual(vec![l.norm("attn_norm")?, Attention::load(l, parts)?]);
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load(l, Graph::relu2_mul, Some("ffn_sub_norm"))?]);
    Ok(chain(vec![attention, ffn]))
}
