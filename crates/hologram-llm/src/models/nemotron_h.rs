//! Nemotron-H (NVIDIA, 2025, arXiv:2504.03624) and Nemotron 3: layers of Mamba2, attention without rotary embedding, or
//! a network with squared ReLU, of experts in the newer ones.

use hologram_core::{Graph, NodeId};

use super::blocks::{Attention, AttentionParts, Block, Loader, Mamba, plain_feed_forward, residual};
use super::{Architecture, ExpertRule, FolderNames, RotaryLayers, StateRule};
use crate::error::Result;

/// Nemotron-H and Nemotron Nano 2 and 3.
pub static NEMOTRON_H: Architecture = Architecture {
    names: &["nemotron_h", "nemotron_h_moe"],
    folder: FolderNames {
        model_type: "nemotron_h",
        class: "NemotronHForCausalLM",
        gate: "relu2",
        eps: "layer_norm_epsilon",
        base: "backbone.",
        others: &[("token_embd.weight", "embeddings.weight"), ("output_norm.weight", "norm_f.weight")],
        tensors: &[
            ("attn_norm", "norm"),
            ("attn_q", "mixer.q_proj"),
            ("attn_k", "mixer.k_proj"),
            ("attn_v", "mixer.v_proj"),
            ("attn_output", "mixer.o_proj"),
            ("ffn_up", "mixer.up_proj"),
            ("ffn_down", "mixer.down_proj"),
            ("ffn_gate_inp", "mixer.gate"),
            ("exp_probs_b", "mixer.gate.e_score_correction_bias$"),
            ("ffn_gate_exps", "mixer.experts.*.gate_proj"),
            ("ffn_up_exps", "mixer.experts.*.up_proj"),
            ("ffn_down_exps", "mixer.experts.*.down_proj"),
            ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
            ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
            ("ffn_latent_down", "mixer.fc1_latent_proj"),
            ("ffn_latent_up", "mixer.fc2_latent_proj"),
            ("ssm_in", "mixer.in_proj"),
            ("ssm_conv1d", "mixer.conv1d"),
            ("ssm_dt", "mixer.dt_bias$"),
            ("ssm_a_log", "mixer.A_log$"),
            ("ssm_d", "mixer.D$"),
            ("ssm_norm", "mixer.norm"),
            ("ssm_out", "mixer.out_proj"),
        ],
        ..FolderNames::PLAIN
    },
    layer,
    rotary: RotaryLayers::NotEach(1),
    experts: Some(ExpertRule { sigmoid: true, ..ExpertRule::NORMALIZED }),
    state: Some(StateRule::MambaAlone),
    ..Architecture::PLAIN
};

fn layer(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let block = match (l.config.recurs[l.index], l.config.attends[l.index]) {
        (true, _) => Mamba::load(l)?,
        (false, true) => Attention::load(l, AttentionParts::default())?,
        (false, false) => plain_feed_forward(l, squared_relu)?,
    };
    Ok(residual(vec![l.norm("attn_norm")?, block]))
}

/// max(x, 0)².
fn squared_relu(g: &mut Graph, x: NodeId) -> hologram_core::Result<NodeId> {
    let positive = g.relu(x)?;
    g.mul(positive, positive)
}
