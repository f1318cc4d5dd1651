//! Rejects keys of `config.json` that change a model's results in a way that no graph supports, or that contradict the
//! folder's tensors or other keys.

use std::fmt::Display;

use crate::error::{LlmError, Result};
use crate::models::config::{Config, Keys, MAX_SIZE};
use crate::models::config_json::JsonKeys;
use crate::safetensors::FolderTensor;

/// Features that are off unless true.
const SWITCHES: [&str; 4] = ["is_encoder_decoder", "add_cross_attention", "alibi", "parallel_attn"];

/// The only value of a key that is supported.
enum Only {
    Text(&'static str),
    Truth(bool),
    Number(f64),
}

/// Keys with one supported value, of models whose `model_type` begins with a text.
const FIXED: [(&str, &str, Only); 13] = [
    ("nemotron_h", "mamba_hidden_act", Only::Text("silu")),
    ("granitemoehybrid", "mamba_hidden_act", Only::Text("silu")),
    ("falcon_h1", "mamba_hidden_act", Only::Text("silu")),
    ("qwen3", "attn_output_gate", Only::Truth(true)),
    ("gpt_oss", "swiglu_alpha", Only::Number(1.702)),
    ("deepseek", "moe_layer_freq", Only::Number(1.0)),
    ("cohere2", "use_parallel_block", Only::Truth(true)),
    ("cohere2", "use_gated_activation", Only::Truth(true)),
    ("bert", "is_decoder", Only::Truth(false)),
    ("bert", "position_embedding_type", Only::Text("absolute")),
    ("xlm-roberta", "is_decoder", Only::Truth(false)),
    ("xlm-roberta", "position_embedding_type", Only::Text("absolute")),
    ("modernbert", "classifier_activation", Only::Text("gelu")),
];

/// Rejects a model if one of these keys changes its architecture.
pub(crate) fn reject(keys: &JsonKeys<'_>, model_type: &str) -> Result<()> {
    let unsupported = |what: String, supported: String| -> Result<()> {
        Err(LlmError::Unsupported { path: keys.path.into(), what, supported })
    };
    if let Some(limit) = keys.float("clip_qkv")? {
        return unsupported(format!("clip_qkv {limit}"), String::new());
    }
    for key in SWITCHES {
        if keys.truth(key)? == Some(true) {
            return unsupported(format!("{key} true"), String::new());
        }
    }
    for (_, key, only) in FIXED.iter().filter(|(start, ..)| model_type.starts_with(start)) {
        let other = match only {
            Only::Text(text) => keys.string(key)?.filter(|own| own != text).map(|own| (own.into(), text.to_string())),
            Only::Truth(on) => keys.truth(key)?.filter(|own| own != on).map(|own| (own.to_string(), on.to_string())),
            Only::Number(n) => keys.float(key)?.filter(|own| own != n).map(|own| (format!("{own:?}"), n.to_string())),
        };
        if let Some((value, supported)) = other {
            return unsupported(format!("{key} {value}"), supported);
        }
    }
    // Without it a layer's tensor of factors would have no effect.
    if keys.truth("altup_correct_scale")? == Some(false) {
        return unsupported("altup_correct_scale false".into(), String::new());
    }
    // Selects the output weights; must be a bool.
    keys.truth("tie_word_embeddings").map(|_| ())
}

/// Rejects sizes that other keys contradict.
pub(crate) fn reject_sizes(keys: &JsonKeys<'_>, config: &Config) -> Result<()> {
    let equal = |key: &str, wanted: usize, by: &str| match keys.size_opt(key, MAX_SIZE)? {
        Some(n) if n != wanted => Err(keys.bad(key, format!("is {n}, but {by} give {wanted}"))),
        _ => Ok(()),
    };
    if let Some(latent) = config.latent {
        equal("qk_head_dim", latent.plain + latent.rotated, "qk_nope_head_dim and qk_rope_head_dim")?;
    }
    if let Some(heads) = config.recurrent.and_then(|r| r.heads) {
        equal("mamba_d_ssm", heads.widths()[1], "mamba_n_heads and mamba_d_head")?;
    }
    const LAYERS: &str = "mlp_layer_types";
    if let (Some(types), Some(experts)) = (keys.strings(LAYERS)?, &config.experts) {
        let wanted = |layer: usize| if layer < experts.first { "dense" } else { "sparse" };
        if types.len() != config.layers {
            return Err(keys.bad(LAYERS, format!("must have one entry for each of the {} layers", config.layers)));
        }
        if let Some(layer) = (0..types.len()).find(|layer| types[*layer] != wanted(*layer)) {
            let (own, wanted) = (types[layer], wanted(layer));
            return Err(keys.bad(LAYERS, format!("has {own} for layer {layer}, but the other keys give {wanted}")));
        }
    }
    Ok(())
}

/// Keys that say whether there are tensors: `model_type`, the key, and a part of the tensors' names.
const PRESENT: [(&str, &str, &str); 16] = [
    ("falcon_h1", "mamba_rms_norm", ".mamba.norm.weight"),
    ("falcon_h1", "mamba_conv_bias", ".mamba.conv1d.bias"),
    ("granitemoehybrid", "mamba_conv_bias", ".mamba.conv1d.bias"),
    ("granitemoehybrid", "mamba_proj_bias", ".mamba.in_proj.bias"),
    ("nemotron_h", "use_conv_bias", ".mixer.conv1d.bias"),
    ("nemotron_h", "use_bias", ".mixer.in_proj.bias"),
    ("starcoder2", "use_bias", ".self_attn.q_proj.bias"),
    ("starcoder2", "use_bias", ".mlp.c_fc.bias"),
    ("qwen2_moe", "qkv_bias", ".self_attn.q_proj.bias"),
    ("lfm2", "conv_bias", ".conv.conv.bias"),
    ("lfm2_moe", "conv_bias", ".conv.conv.bias"),
    ("lfm2_moe", "use_expert_bias", ".feed_forward.expert_bias"),
    ("glm4_moe", "use_qk_norm", ".self_attn.q_norm.weight"),
    ("cohere2", "use_qk_norm", ".self_attn.q_norm.weight"),
    ("modernbert", "norm_bias", ".mlp_norm.bias"),
    ("gemma4_text", "enable_moe_block", ".experts."),
];

/// Keys with a size of tensors: `model_type`, the key, the end of the tensors' names, and the dimension.
const SIZES: [(&str, &str, &str, usize); 3] = [
    ("gemma3n_text", "laurel_rank", ".laurel.linear_left.weight", 0),
    ("gemma3n_text", "vocab_size_per_layer_input", "embed_tokens_per_layer.weight", 0),
    ("gemma4_text", "vocab_size_per_layer_input", "embed_tokens_per_layer.weight", 0),
];

/// Rejects keys that contradict tensors.
pub(crate) fn reject_tensors(keys: &JsonKeys<'_>, config: &Config, tensors: &[FolderTensor<'_>]) -> Result<()> {
    let model_type = config.architecture.folder.model_type;
    for (_, key, part) in PRESENT.iter().filter(|(own, ..)| *own == model_type) {
        let Some(wanted) = keys.truth(key)? else { continue };
        match tensors.iter().find(|tensor| tensor.name.contains(part)) {
            None if wanted => return Err(keys.bad(key, format!("is true, but no tensor's name has {part}"))),
            Some(tensor) if !wanted => {
                return Err(keys.bad(key, format!("is false, but tensor {} exists", tensor.name)));
            }
            _ => {}
        }
    }
    for (_, key, end, dim) in SIZES.iter().filter(|(own, ..)| *own == model_type) {
        let Some(size) = keys.size_opt(key, MAX_SIZE)? else { continue };
        check_size(keys, key, &size, tensors, (end, *dim, size))?;
    }
    const WIDE: &str = "use_double_wide_mlp";
    if let Some(wide) = keys.truth(WIDE)?.filter(|_| config.sharing > 0) {
        let end = format!("layers.{}.mlp.up_proj.weight", config.layers - 1);
        let wanted = if wide { 2 * config.ffn } else { config.ffn };
        check_size(keys, WIDE, &wide, tensors, (&end, 0, wanted))?;
    }
    Ok(())
}

/// Checks that tensors with this end of their names have a size in a dimension.
fn check_size(
    keys: &JsonKeys<'_>,
    key: &str,
    value: &dyn Display,
    tensors: &[FolderTensor<'_>],
    (end, dim, size): (&str, usize, usize),
) -> Result<()> {
    match tensors.iter().find(|tensor| tensor.name.ends_with(end) && tensor.shape.get(dim) != Some(&size)) {
        None => Ok(()),
        Some(FolderTensor { name, shape, .. }) => {
            Err(keys.bad(key, format!("is {value}, but tensor {name} has shape {shape:?}")))
        }
    }
}
