//! What layers consist of, in `config.json`: experts, states, windows, heads, factors.

use serde_json::Value;

use super::{FOLDER, JsonKeys};
use crate::error::{LlmError, Result};
use crate::models::blocks::SWIGLU_LIMIT;
use crate::models::config::{Config, Keys, MAX_LAYERS, MAX_SIZE};
use crate::models::experts::{ExpertKeys, named_count};
use crate::models::recurrent::Mixer;
use crate::models::scales::{Multipliers, check_factor};
use crate::models::{Architecture, Experts, HeadSizes, Multiplier, StateRule, Windows};

/// Experts in `config.json`.
pub(super) const FOLDER_EXPERTS: ExpertKeys = ExpertKeys {
    count: &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"],
    used: &["num_experts_per_tok", "top_k_experts"],
    ffn: "moe_intermediate_size",
    shared: "shared_expert_intermediate_size",
    shared_count: "n_shared_experts",
    groups: "n_group",
    groups_used: "topk_group",
    first: "first_k_dense_replace",
    scale: "routed_scaling_factor",
    latent: "moe_latent_size",
};

/// The experts, in all layers or in none.
pub(super) fn experts(keys: &JsonKeys<'_>, architecture: &Architecture, ffn: usize) -> Result<Option<Experts>> {
    let only = |what: String| LlmError::Unsupported { path: keys.path.into(), what, supported: String::new() };
    let Some((key, n)) = named_count(keys, FOLDER_EXPERTS.count)? else { return Ok(None) };
    // Models without layers of experts may give a number of them.
    if single_blocks(keys)?.is_some_and(|blocks| !blocks.contains(&"moe")) {
        return Ok(None);
    }
    let rule =
        architecture.experts.filter(|_| architecture.folder.tensors.iter().any(|(ours, _)| *ours == "ffn_gate_exps"));
    let Some(rule) = rule else { return Err(only(format!("a mixture of {n} experts ({key})"))) };
    let plain = keys.floats("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty());
    if plain || keys.unsigned("decoder_sparse_step")?.is_some_and(|step| step != 1) {
        return Err(only("experts in only some layers".into()));
    }
    let normalized = keys.truth("norm_topk_prob")?;
    if let Some(limit) = keys.float("swiglu_limit")?.filter(|limit| *limit != f64::from(SWIGLU_LIMIT)) {
        return Err(only(format!("swiglu_limit {limit}")));
    }
    let mut experts = Experts::read(keys, &FOLDER_EXPERTS, ffn, normalized, (rule, rule.normalized_in_folders))?;
    if let (Some(experts), Some(shared)) = (&mut experts, keys.size_opt("shared_intermediate_size", MAX_SIZE)?) {
        experts.shared = experts.shared.or(Some(shared));
    }
    if let (Some(experts), Some(shared)) =
        (&mut experts, keys.size_opt("moe_shared_expert_intermediate_size", MAX_SIZE)?)
    {
        experts.shared = Some(shared);
    }
    if let (Some(experts), Some(dense)) = (&mut experts, keys.unsigned("num_dense_layers")?) {
        experts.first = dense.min(MAX_LAYERS as u64) as usize;
    }
    Ok(experts)
}

pub(super) const BLOCK_FFN: &str = "block_ff_dim";

/// The width of LFM2's feed-forward networks, which its files may give before its adjustment.
pub(super) fn adjusted_ffn(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
    if keys.truth("block_auto_adjust_ff_dim")? != Some(true) {
        return Ok(());
    }
    let multiplier = keys.above("block_ffn_dim_multiplier", 0.0)?.unwrap_or(1.0);
    let multiple = keys.size_opt("block_multiple_of", MAX_SIZE)?.unwrap_or(256);
    let ffn = ((2 * config.ffn / 3) as f64 * multiplier) as usize;
    config.ffn = ffn.next_multiple_of(multiple).min(MAX_SIZE);
    Ok(())
}

/// The types of layers with a state instead of attention.
const RECURRENT_TYPES: [&str; 3] = ["conv", "linear_attention", "mamba"];

/// The key of those types.
pub(super) const LAYER_TYPES: &str = "layers_block_type";

/// The types of the layers that are one block, where a model has such.
pub(super) fn single_blocks(keys: &JsonKeys<'_>) -> Result<Option<Vec<&'static str>>> {
    const PATTERN: &str = "hybrid_override_pattern";
    let kind = |name: &str| match name {
        "M" | "mamba" | "linear_attention" => Some("mamba"),
        "*" | "attention" | "full_attention" => Some("attention"),
        "-" | "mlp" => Some("mlp"),
        "E" | "moe" => Some("moe"),
        _ => None,
    };
    let (key, names) = match (keys.string(PATTERN)?, keys.strings(LAYER_TYPES)?) {
        (Some(pattern), _) => (PATTERN, pattern.chars().map(String::from).collect::<Vec<_>>()),
        (None, Some(list)) => (LAYER_TYPES, list.into_iter().map(String::from).collect()),
        (None, None) => return Ok(None),
    };
    let known = |name: &String| kind(name).ok_or_else(|| keys.bad(key, format!("has the unknown type {name}")));
    names.iter().map(known).collect::<Result<Vec<_>>>().map(Some)
}

/// What mixes the tokens of each layer.
pub(super) fn mixers(keys: &JsonKeys<'_>, config: &mut Config, rule: StateRule) -> Result<()> {
    if rule == StateRule::MambaBeside {
        config.place_mixers(|_| Mixer::Both);
        return Ok(());
    }
    if rule == StateRule::MambaAlone {
        let blocks = single_blocks(keys)?.ok_or_else(|| keys.missing(LAYER_TYPES))?;
        if blocks.len() != config.layers {
            return Err(keys.bad(FOLDER.layers, format!("is {}, but the list has {}", config.layers, blocks.len())));
        }
        config.place_mixers(|layer| match blocks[layer] {
            "mamba" => Mixer::State,
            "attention" => Mixer::Attention,
            _ => Mixer::Neither,
        });
        return Ok(());
    }
    let of = |recurs: bool| if recurs { Mixer::State } else { Mixer::Attention };
    if let Some(types) = keys.strings("layer_types")? {
        config.place_mixers(|layer| of(types.get(layer).is_some_and(|own| RECURRENT_TYPES.contains(own))));
        return Ok(());
    }
    let every = keys.size_opt("full_attention_interval", MAX_LAYERS)?;
    let every = every.or(rule.interval());
    // Older files of LFM2 list the layers that have attention.
    let attends = keys.floats("full_attn_idxs")?;
    config.place_mixers(|layer| match (&attends, every) {
        (Some(attends), _) => of(!attends.contains(&(layer as f32))),
        (None, Some(n)) => of(!(layer + 1).is_multiple_of(n)),
        (None, None) => Mixer::Attention,
    });
    Ok(())
}

/// Keys of biases, which no factor of a product applies to.
const NOT_MULTIPLIED: [&str; 4] = ["attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"];

/// The factors of products with matrices.
pub(super) fn multipliers(keys: &JsonKeys<'_>, architecture: &Architecture) -> Result<Multipliers> {
    let known = architecture.folder.multipliers;
    let only = |what: String| LlmError::Unsupported { path: keys.path.into(), what, supported: String::new() };
    for key in NOT_MULTIPLIED.iter().filter(|_| !known.is_empty()) {
        if keys.truth(key)? == Some(true) {
            return Err(only(format!("{key} true")));
        }
    }
    // The least and the greatest time step.
    if let Some(Value::Array(limits)) = keys.get("time_step_limit")
        && (limits.first().and_then(Value::as_f64) != Some(0.0) || limits.get(1).is_some_and(Value::is_number))
    {
        return Err(only(format!("time_step_limit {}", Value::from(limits.clone()))));
    }
    if architecture.state == Some(StateRule::MambaBeside)
        && keys.truth("mamba_rms_norm")? == Some(true)
        && keys.truth("mamba_norm_before_gate")? != Some(false)
    {
        return Err(only("mamba_norm_before_gate true".into()));
    }
    let mut factors = Vec::new();
    for Multiplier { key, at, of } in known {
        let factor = match at {
            None => keys.float(key)?,
            Some(at) => match keys.floats(key)? {
                None => None,
                Some(list) => match list.get(*at) {
                    Some(factor) => Some(f64::from(*factor)),
                    None => return Err(keys.bad(key, format!("has {} numbers, but must have more", list.len()))),
                },
            },
        };
        if let Some(factor) = factor {
            check_factor(keys, key, factor)?;
            factors.extend(of.iter().map(|name| (*name, factor as f32)));
        }
    }
    Ok(Multipliers(factors))
}

/// What differs between layers with a window and without.
pub(super) fn varied_sizes(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
    const LAYERS: &str = "per_layer_config";
    let usual = HeadSizes { kv_heads: config.kv_heads, head_dim: config.head_dim };
    let layers = keys.object(LAYERS)?;
    // Published files have keys for all layers without a window, newer ones an object for each layer that differs.
    let full = HeadSizes {
        head_dim: keys.size_opt("global_head_dim", MAX_SIZE)?.unwrap_or(512),
        kv_heads: match keys.truth("attention_k_eq_v")? {
            Some(true) => keys.size_opt("num_global_key_value_heads", MAX_SIZE)?.unwrap_or(usual.kv_heads),
            _ => usual.kv_heads,
        },
    };
    let of_layer = |layer: usize| -> Result<HeadSizes> {
        let Some(layers) = &layers else {
            return Ok(if config.windows.get(layer).is_some_and(Option::is_some) { usual } else { full });
        };
        let Some(Value::Object(object)) = layers.object.get(&layer.to_string()) else { return Ok(usual) };
        let own = JsonKeys { path: keys.path, prefix: LAYERS, object };
        Ok(HeadSizes {
            kv_heads: own.size_opt(FOLDER.kv_heads, MAX_SIZE)?.unwrap_or(usual.kv_heads),
            head_dim: own.size_opt(FOLDER.head_dim, MAX_SIZE)?.unwrap_or(usual.head_dim),
        })
    };
    let sizes = (0..config.layers).map(of_layer).collect::<Result<Vec<_>>>()?;
    config.place_heads(keys, if layers.is_some() { LAYERS } else { FOLDER.kv_heads }, &sizes)
}

/// How many deviations above their mean the gates of each layer's network count from, so that a given part of normally
/// distributed ones does not.
pub(super) fn cuts(keys: &JsonKeys<'_>) -> Result<Vec<Option<f32>>> {
    const KEY: &str = "activation_sparsity_pattern";
    let parts = keys.floats(KEY)?.ok_or_else(|| keys.missing(KEY))?;
    let cut = |part: f32| match part {
        0.0 => Ok(None),
        part if part > 0.0 && part < 1.0 => Ok(Some(normal_quantile(part.into()) as f32)),
        other => Err(keys.bad(KEY, format!("has {other}, but must have numbers from 0 to below 1"))),
    };
    parts.into_iter().map(cut).collect()
}

/// The number below which a standard normal variable is with probability `p`, by halving an interval.
fn normal_quantile(p: f64) -> f64 {
    // Φ(x) = 1/2 + φ(x)·(x + x³/3 + x⁵/15 + …)
    let below = |x: f64| {
        let (mut term, mut sum) = (x, x);
        for i in 1..200 {
            term *= x * x / (2 * i + 1) as f64;
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if below(middle) < p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The sliding window of each layer.
pub(super) fn windows(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
    let kind = config.architecture.windows;
    // Some models have a window in their files but do not use it.
    let unused = match keys.truth("use_sliding_window")? {
        None => matches!(kind, Windows::Never | Windows::Last),
        Some(used) => !used || kind == Windows::Never,
    };
    // Models that do not use theirs may write 0.
    let window = match unused {
        true => keys.unsigned("sliding_window")?.and(None),
        false => match keys.size_opt("sliding_window", u32::MAX as usize)? {
            Some(n) => Some(n as u32),
            None => keys.size_opt("local_attention", u32::MAX as usize)?.map(|n| n as u32),
        },
    };
    const PATTERN: [&str; 2] = ["sliding_window_pattern", "_sliding_window_pattern"];
    let pattern = match keys.size_opt(PATTERN[0], MAX_LAYERS)? {
        None => keys.size_opt(PATTERN[1], MAX_LAYERS)?,
        pattern => pattern,
    };
    let kind = match (kind, pattern) {
        (Windows::AllExceptEach(_), Some(n)) => Windows::AllExceptEach(n),
        (Windows::ExceptEach(n), None) => {
            Windows::ExceptEach(keys.size_opt("global_attn_every_n_layers", MAX_LAYERS)?.unwrap_or(n))
        }
        _ => kind,
    };
    let from = match kind {
        Windows::Last => keys.unsigned("max_window_layers")?.unwrap_or(28).min(MAX_LAYERS as u64) as usize,
        _ => 0,
    };
    let types = keys.strings("layer_types")?;
    if types.as_ref().is_some_and(|types| types.len() != config.layers) {
        return Err(keys.bad("layer_types", format!("must have one entry for each of the {} layers", config.layers)));
    }
    for (i, own) in config.windows.iter_mut().enumerate() {
        let slides = match types.as_ref().map(|types| types[i]) {
            None => i >= from && kind.slides(i),
            Some("sliding_attention") if window.is_none() => {
                return Err(
                    keys.bad("layer_types", "has sliding_attention, but the model uses no sliding window".into())
                );
            }
            Some("sliding_attention") => true,
            Some("full_attention" | "attention") => false,
            Some(own) if RECURRENT_TYPES.contains(&own) && config.recurrent.is_some() => false,
            Some(other) => {
                return Err(keys.bad("layer_types", format!("has {other}, which is not supported")));
            }
        };
        *own = window.filter(|_| slides);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (p, want) in
            [(0.5, 0.0), (0.95, 1.6448536269514722), (0.975, 1.959963984540054), (0.01, -2.3263478740408408)]
        {
            assert!((super::normal_quantile(p) - want).abs() < 1e-12, "{p}");
        }
    }
}
