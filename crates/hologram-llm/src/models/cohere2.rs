//! Command R7B and Command A (Cohere, 2025, arXiv:2504.00698): attention and feed-forward network side by side, after
//! one LayerNorm; windows with rotary embedding in three of four layers, no rotary embedding in the fourth.

use hologram_core::Graph;
use hologram_core::ops::RopeStyle;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, parallel, residual};
use super::{Architecture, FolderNames, NormKind, RotaryLayers, Scale, Windows};
use crate::error::Result;

/// Command R7B and models of the same architecture.
pub static COHERE2: Architecture = Architecture {
    names: &["cohere2"],
    folder: FolderNames {
        model_type: "cohere2",
        class: "Cohere2ForCausalLM",
        eps: "layer_norm_eps",
        rope: RopeStyle::Adjacent,
        ..FolderNames::PLAIN
    },
    rope: RopeStyle::Adjacent,
    layer,
    norm: NormKind::Layer,
    windows: Windows::AllExceptEach(4),
    rotary: RotaryLayers::Windowed,
    scales: &[Scale::Logits],
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = Attention::load(l, AttentionParts::default())?;
    let blocks = parallel(vec![attention, GatedFfn::load(l, Graph::swiglu, None)?]);
    Ok(residual(vec![l.norm("attn_norm")?, blocks]))
}
