//! Reads hyperparameters from a folder's `config.json`.

use std::path::Path;

use hologram_core::ops::RopeStyle;
use serde_json::{Map, Value};

use crate::error::{LlmError, Result};
use crate::models::blocks::SWIGLU_LIMIT;
use crate::models::config::{Config, Keys, MAX_CONTEXT, MAX_LAYERS, MAX_SIZE, Names, sizes};
use crate::models::experts::{ExpertKeys, named_count};
use crate::models::latent::LatentKeys;
use crate::models::recurrent::{Mixer, StateKeys};
use crate::models::rope::{QueryGrowth, RopeScaling, yarn_attention, yarn_mscale};
use crate::models::scales::{Multipliers, ScaleKeys, Scales};
use crate::models::{
    self, Architecture, Experts, HeadSizes, Latent, Multiplier, Recurrent, Rotary, RotaryLayers, Scale, StateRule,
    TernaryActivations, Varied, Windows, config_unknown,
};

/// A JSON object, or a nested one whose keys are shown with a prefix.
pub(crate) struct JsonKeys<'a> {
    pub path: &'a Path,
    pub prefix: &'static str,
    pub object: &'a Map<String, Value>,
}

impl<'a> JsonKeys<'a> {
    /// A value; null counts as missing.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    fn wrong<T>(&self, key: &str, value: &Value, expected: &str) -> Result<T> {
        let kind = match value {
            Value::Number(number) => &number.to_string(),
            Value::Null => "null",
            Value::Bool(_) => "a bool",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        Err(self.bad(key, format!("is {kind}, but must be {expected}")))
    }

    /// A string; `None` where the key is missing.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// A bool; `None` where the key is missing.
    pub fn truth(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    /// The strings of a list; `None` where the key is missing.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                let strings: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
                strings.map(Some).ok_or_else(|| self.bad(key, "must be a list of strings".into()))
            }
            Some(other) => self.wrong(key, other, "a list"),
        }
    }

    /// The numbers of a list; `None` where the key is missing.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                let numbers: Option<Vec<f32>> = list.iter().map(|v| Some(v.as_f64()? as f32)).collect();
                numbers.map(Some).ok_or_else(|| self.bad(key, "must be a list of numbers".into()))
            }
            Some(other) => self.wrong(key, other, "a list"),
        }
    }

    /// An object; `None` where the key is missing.
    pub fn object(&self, key: &'static str) -> Result<Option<JsonKeys<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(JsonKeys { path: self.path, prefix: key, object })),
            Some(other) => self.wrong(key, other, "an object"),
        }
    }

    /// Token ids: a number or a list of numbers.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let id = |v: &Value| match v.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(id) => Ok(id),
            None => self.wrong(key, v, "a token id"),
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(one) => Ok(vec![id(one)?]),
        }
    }
}

impl Keys for JsonKeys<'_> {
    fn full(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.into() } else { format!("{}.{key}", self.prefix) }
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            // One number for each layer.
            Some(Value::Array(list)) if list.first().is_some_and(|first| list.iter().all(|n| n == first)) => {
                list[0].as_u64().map(Some).ok_or_else(|| self.bad(key, "must be a whole number, 0 or more".into()))
            }
            Some(value) => match value.as_u64() {
                Some(n) => Ok(Some(n)),
                // Some writers store all numbers as floats.
                None => match value.as_f64().filter(|f| (0.0..1e15).contains(f) && f.fract() == 0.0) {
                    Some(f) => Ok(Some(f as u64)),
                    None => self.wrong(key, value, "a whole number, 0 or more"),
                },
            },
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(f) => Ok(Some(f)),
                None => self.wrong(key, value, "a number"),
            },
        }
    }

    fn missing(&self, key: &str) -> LlmError {
        LlmError::MissingKey { path: self.path.into(), key: self.full(key) }
    }

    fn bad(&self, key: &str, reason: String) -> LlmError {
        LlmError::BadKey { path: self.path.into(), key: self.full(key), reason }
    }
}

/// The names of the sizes in `config.json`.
const FOLDER: Names = Names {
    layers: "num_hidden_layers",
    width: "hidden_size",
    ffn: "intermediate_size",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    context: "max_position_embeddings",
    eps: "rms_norm_eps",
};

/// Experts in `config.json`.
const FOLDER_EXPERTS: ExpertKeys = ExpertKeys {
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
fn experts(keys: &JsonKeys<'_>, architecture: &Architecture, ffn: usize) -> Result<Option<Experts>> {
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

/// Recurrent layers in `config.json`.
const FOLDER_STATE: StateKeys = StateKeys {
    short: "conv_L_cache",
    conv: "linear_conv_kernel_dim",
    groups: "linear_num_key_heads",
    key: "linear_key_head_dim",
    heads: "linear_num_value_heads",
    value: "linear_value_head_dim",
    inner: "",
};

/// Attention to latent vectors in `config.json`.
const FOLDER_LATENT: LatentKeys = LatentKeys {
    rank: "kv_lora_rank",
    q_rank: "q_lora_rank",
    plain: "qk_nope_head_dim",
    head: "",
    rotated: "qk_rope_head_dim",
    value: "v_head_dim",
};

/// As [`FOLDER_STATE`], for Mamba2.
const FOLDER_MAMBA: StateKeys = StateKeys {
    short: "",
    conv: "mamba_d_conv",
    groups: "mamba_n_groups",
    key: "mamba_d_state",
    heads: "mamba_n_heads",
    value: "mamba_d_head",
    inner: "",
};

const BLOCK_FFN: &str = "block_ff_dim";

/// The width of LFM2's feed-forward networks, which its files may give before its adjustment.
fn adjusted_ffn(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
    if keys.truth("block_auto_adjust_ff_dim")? != Some(true) {
        return Ok(());
    }
    let multiplier = keys.above("block_ffn_dim_multiplier", 0.0)?.unwrap_or(1.0);
    let multiple = keys.size_opt("block_multiple_of", MAX_SIZE)?.unwrap_or(256);
    let ffn = ((2 * config.ffn / 3) as f64 * multiplier) as usize;
    config.ffn = ffn.next_multiple_of(multiple).min(MAX_SIZE);
    Ok(())
}

/// As [`FOLDER_MAMBA`], for Nemotron-H.
const FOLDER_NEMOTRON: StateKeys = StateKeys {
    short: "",
    conv: "conv_kernel",
    groups: "n_groups",
    key: "ssm_state_size",
    heads: "mamba_num_heads",
    value: "mamba_head_dim",
    inner: "",
};

/// The types of layers with a state instead of attention.
const RECURRENT_TYPES: [&str; 3] = ["conv", "linear_attention", "mamba"];

/// The types of the layers that are one block, where a model has such.
pub(crate) fn single_blocks(keys: &JsonKeys<'_>) -> Result<Option<Vec<&'static str>>> {
    const PATTERN: &str = "hybrid_override_pattern";
    const LIST: &str = "layers_block_type";
    let kind = |name: &str| match name {
        "M" | "mamba" | "linear_attention" => Some("mamba"),
        "*" | "attention" | "full_attention" => Some("attention"),
        "-" | "mlp" => Some("mlp"),
        "E" | "moe" => Some("moe"),
        _ => None,
    };
    let (key, names) = match (keys.string(PATTERN)?, keys.strings(LIST)?) {
        (Some(pattern), _) => (PATTERN, pattern.chars().map(String::from).collect::<Vec<_>>()),
        (None, Some(list)) => (LIST, list.into_iter().map(String::from).collect()),
        (None, None) => return Ok(None),
    };
    let known = |name: &String| kind(name).ok_or_else(|| keys.bad(key, format!("has the unknown type {name}")));
    names.iter().map(known).collect::<Result<Vec<_>>>().map(Some)
}

/// What mixes the tokens of each layer.
fn mixers(keys: &JsonKeys<'_>, config: &mut Config, rule: StateRule) -> Result<()> {
    if rule == StateRule::MambaBeside {
        config.place_mixers(|_| Mixer::Both);
        return Ok(());
    }
    if rule == StateRule::MambaAlone {
        let blocks = single_blocks(keys)?.ok_or_else(|| keys.missing("layers_block_type"))?;
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

/// Factors and caps in `config.json`.
const FOLDER_SCALES: ScaleKeys = ScaleKeys {
    known: &[
        (Scale::Embedding, "embedding_multiplier"),
        (Scale::Residual, "residual_multiplier"),
        (Scale::Logits, "logit_scale"),
        (Scale::LogitsDivisor, "logits_scaling"),
        (Scale::Attention, "attention_multiplier"),
        (Scale::AttentionSize, "query_pre_attn_scalar"),
        (Scale::AttentionCap, "attn_logit_softcapping"),
        (Scale::LogitCap, "final_logit_softcapping"),
    ],
    unknown: &["lm_head_multiplier", "attention_in_multiplier"],
};

/// Keys of biases, which no factor of a product applies to.
const NOT_MULTIPLIED: [&str; 4] = ["attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"];

/// The factors of products with matrices.
fn multipliers(keys: &JsonKeys<'_>, architecture: &Architecture) -> Result<Multipliers> {
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
        match factor {
            Some(factor) if !(factor.is_finite() && factor > 0.0) => {
                return Err(keys.bad(key, format!("is {factor}, but must be greater than 0")));
            }
            Some(factor) => factors.extend(of.iter().map(|name| (*name, factor as f32))),
            None => {}
        }
    }
    Ok(Multipliers(factors))
}

/// Natively ternary weights, as described by `quantization_config`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ternary {
    /// Whether `weight_scale` holds the inverse of the scale.
    pub inverse: bool,
    /// Whether the file holds unrounded weights, which are quantized on load.
    pub online: bool,
    /// Modules that are not quantized.
    pub kept: Vec<String>,
}

impl Config {
    /// Reads the hyperparameters from a folder's `config.json`.
    pub(crate) fn from_json(path: &Path, name: String, object: &Map<String, Value>) -> Result<Config> {
        if let Some(Value::Object(text)) = object.get("text_config") {
            // The part of a model of text and images that is run.
            let mut whole = object.clone();
            whole.remove("text_config");
            whole.extend(text.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())));
            whole.insert("architectures".into(), object.get("architectures").cloned().unwrap_or(Value::Null));
            return Config::from_json(path, name, &whole);
        }
        let keys = JsonKeys { path, prefix: "", object };
        if let (None, Some(blocks)) = (keys.get(FOLDER.layers), single_blocks(&keys)?) {
            // Newer files have the list alone.
            let mut whole = object.clone();
            whole.insert(FOLDER.layers.into(), blocks.len().into());
            return Config::from_json(path, name, &whole);
        }
        let only = |what, supported| LlmError::Unsupported { path: path.into(), what, supported };
        let classes = keys.strings("architectures")?.unwrap_or_default();
        let named =
            keys.string("model_type")?.or(classes.first().copied()).ok_or_else(|| keys.missing("model_type"))?;
        if named.is_empty() {
            return Err(keys.bad("model_type", "must not be empty".into()));
        }
        let architecture = models::find_folder(named)
            .ok_or_else(|| only(format!("architecture {named}"), models::supported_folders()))?;
        // The class determines the output: a model without logits is not a language model.
        if let Some(class) = classes.first().filter(|class| !architecture.folder.is_class(class)) {
            let known: Vec<&str> =
                [architecture.folder.class].iter().chain(architecture.folder.also).copied().collect();
            return Err(only(format!("class {class}"), known.join(", ")));
        }
        let vocab = keys.size("vocab_size", MAX_SIZE)?;
        // Older files of LFM2 have another name; models of experts alone may have no other width.
        let ffn = [FOLDER.ffn, BLOCK_FFN, FOLDER_EXPERTS.ffn].into_iter().find(|key| keys.get(key).is_some());
        let ffn = ffn.unwrap_or(FOLDER.ffn);
        let older = "attention_head_dim";
        let head_dim = if keys.get(older).is_some() { older } else { FOLDER.head_dim };
        let names = Names { eps: architecture.folder.eps, ffn, head_dim, ..FOLDER };
        let mut config = sizes(&keys, &names, architecture, name, vocab)?;
        adjusted_ffn(&keys, &mut config)?;
        if architecture.latent {
            Latent::read(&keys, &FOLDER_LATENT, &mut config)?;
            let method = keys.string("topk_method")?.filter(|method| *method == "group_limited_greedy");
            if let (Some(method), Some(2..)) = (method, keys.unsigned("n_group")?) {
                return Err(only(format!("topk_method {method}"), "greedy, noaux_tc".into()));
            }
        }
        config.rope = match keys.truth("rope_interleave")? {
            Some(false) if architecture.latent => RopeStyle::HalfSplit,
            _ => architecture.folder.rope,
        };
        for key in ["hidden_act", "hidden_activation", "mlp_hidden_act"] {
            if let Some(gate) = keys.string(key)?.filter(|gate| *gate != architecture.folder.gate) {
                let (expected, of) = (architecture.folder.gate, architecture.folder.model_type);
                return Err(only(format!("activation {gate} in a model of type {of}"), expected.into()));
            }
        }
        if ternary(path, object)?.is_some() {
            config.ternary = TernaryActivations::PerToken;
        }
        config_unknown::reject(&keys)?;
        config.experts = experts(&keys, architecture, config.ffn)?;
        if let Some(rule) = architecture.state {
            config.recurrent = Some(Recurrent::read(
                &keys,
                match rule {
                    StateRule::Mamba | StateRule::MambaBeside => &FOLDER_MAMBA,
                    StateRule::MambaAlone => &FOLDER_NEMOTRON,
                    StateRule::ShortConv | StateRule::Heads { .. } => &FOLDER_STATE,
                },
                rule,
                config.width,
            )?);
            mixers(&keys, &mut config, rule)?;
        }
        config.multipliers = multipliers(&keys, architecture)?;
        let sizes = (config.width, config.head_dim);
        config.scales = Scales::read(&keys, &FOLDER_SCALES, architecture, sizes, only)?;
        if let Some(latent) = config.latent {
            config.scales.attention = Some(latent.score_factor(1.0));
        }
        config.scales.attention = config.scales.attention.or(architecture.score_factor);
        windows(&keys, &mut config)?;
        if architecture.varied == Varied::Sizes {
            varied_sizes(&keys, &mut config)?;
        }
        if architecture.varied != Varied::Never {
            config.place_sharing(&keys, "num_kv_shared_layers")?;
            let input = keys.unsigned("hidden_size_per_layer_input")?.unwrap_or(0);
            config.layer_input = usize::try_from(input).unwrap_or(MAX_SIZE).min(MAX_SIZE);
        }
        config.place_branches(&keys, ["altup_num_inputs", "altup_active_idx"])?;
        if architecture.varied == Varied::Sharing {
            config.cuts = cuts(&keys)?;
        }
        rope(&keys, &mut config)?;
        config.ahead = keys.unsigned("num_nextn_predict_layers")?.unwrap_or(0).min(MAX_LAYERS as u64) as usize;
        config.bidirectional |= match keys.get(BOTH_SIDES) {
            // Of images alone.
            Some(Value::String(kind)) if kind == "vision" => false,
            Some(Value::String(kind)) => return Err(only(format!("{BOTH_SIDES} {kind}"), "vision".into())),
            _ => keys.truth(BOTH_SIDES)? == Some(true),
        };
        if let Some(parts) = &architecture.encoder {
            config.segments = if parts.segments { keys.size_opt("type_vocab_size", MAX_SIZE)?.unwrap_or(2) } else { 0 };
            let reserved = parts.reserved_positions;
            config.context = match config.context.checked_sub(reserved) {
                Some(context @ 1..) => context,
                _ => return Err(keys.bad(FOLDER.context, format!("must be greater than {reserved}"))),
            };
        }
        Ok(config)
    }
}

const BOTH_SIDES: &str = "use_bidirectional_attention";

/// What differs between layers with a window and without.
fn varied_sizes(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
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
fn cuts(keys: &JsonKeys<'_>) -> Result<Vec<Option<f32>>> {
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

/// Reads `quantization_config`; `None` if the weights are not quantized.
pub(crate) fn ternary(path: &Path, object: &Map<String, Value>) -> Result<Option<Ternary>> {
    let only = |what: String, supported: &str| {
        Err(LlmError::Unsupported { path: path.into(), what, supported: supported.into() })
    };
    let keys = JsonKeys { path, prefix: "", object };
    let Some(quantization) = keys.object("quantization_config")? else { return Ok(None) };
    match quantization.string("quant_method")? {
        Some("bitnet") => {}
        // Their matrices are known by their tensors.
        Some("fp8" | "gptq" | "awq" | "bitsandbytes" | "compressed-tensors" | "mxfp4") => return Ok(None),
        method => {
            let method = method.unwrap_or("(unnamed)");
            return only(
                format!("quantization method {method}"),
                "awq, bitnet, bitsandbytes, compressed-tensors, fp8, gptq, mxfp4, or no quantization",
            );
        }
    }
    if quantization.truth("use_rms_norm")? == Some(true) {
        return only("a norm before every ternary layer (use_rms_norm)".into(), "");
    }
    let inverse = match quantization.string("linear_class")?.unwrap_or("bitlinear") {
        "bitlinear" => true,
        "autobitlinear" => false,
        other => return only(format!("linear class {other}"), "bitlinear, autobitlinear"),
    };
    let online = match quantization.string("quantization_mode")?.unwrap_or("offline") {
        "offline" => false,
        // Only autobitlinear has this mode.
        "online" => !inverse,
        other => return only(format!("quantization mode {other}"), "offline, online"),
    };
    let kept = quantization.strings("modules_to_not_convert")?.unwrap_or_default();
    Ok(Some(Ternary { inverse, online, kept: kept.into_iter().map(String::from).collect() }))
}

/// The rotary base and its scaling, from `rope_parameters` or, in older files, from the top level and `rope_scaling`.
fn rope(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
    let mut local_base = keys.above("rope_local_base_freq", 1.0)?.or(keys.above("local_rope_theta", 1.0)?);
    let mut new = keys.object("rope_parameters")?;
    // One object for each type of layer.
    if let Some(types) = new.as_ref().filter(|new| new.object.contains_key("full_attention")) {
        if let Some(local) = types.object("sliding_attention")? {
            if rope_type(&local)?.is_some_and(|kind| kind != "default") {
                return Err(local.bad("rope_type", "must be default for layers with a window".into()));
            }
            local_base = local.above("rope_theta", 1.0)?.or(local_base);
        }
        new = types.object("full_attention")?;
    }
    let scaling = match (new, keys.object("rope_scaling")?) {
        (Some(new), Some(old)) if rope_type(&new)? != rope_type(&old)? => {
            return Err(keys.bad("rope_scaling", "and rope_parameters specify different types of scaling".into()));
        }
        (new, old) => new.or(old),
    };
    let of_scaling = |key: &str| scaling.as_ref().map_or(Ok(None), |s| s.above(key, 1.0));
    let outside = keys.above("rope_theta", 1.0)?.or(keys.above("global_rope_theta", 1.0)?);
    let base = match (of_scaling("rope_theta")?, outside) {
        (Some(inside), Some(outside)) if inside != outside => {
            return Err(keys.bad("rope_theta", format!("is {outside}, but {inside} in the scaling's object")));
        }
        (inside, outside) => inside.or(outside),
    };
    if let Some(base) = base.filter(|base| !(*base as f32).is_finite()) {
        return Err(keys.bad("rope_theta", format!("is {base:e}, which does not fit in f32")));
    }
    config.rope_base = base.map_or(config.architecture.folder.rope_base, |base| base as f32);
    rotary_width(keys, scaling.as_ref(), config)?;
    if let Some(scaling) = scaling {
        config.rope_scaling = rope_scaling(keys, &scaling, config)?;
    }
    config.place_rotary(local_base);
    if config.architecture.rotary == RotaryLayers::AsFileSays && keys.string("position_embedding_type")? != Some("rope")
    {
        config.rotary.fill(Rotary::None);
    }
    if !matches!(config.architecture.rotary, RotaryLayers::All | RotaryLayers::AsFileSays)
        && let Some(rotated) = keys.floats("no_rope_layers")?
    {
        if rotated.len() != config.layers {
            let reason = format!("must have one entry for each of the {} layers", config.layers);
            return Err(keys.bad("no_rope_layers", reason));
        }
        for (rotary, rotated) in config.rotary.iter_mut().zip(rotated) {
            *rotary = if rotated == 0.0 { Rotary::None } else { Rotary::Scaled };
        }
    }
    Ok(())
}

const PARTIAL: &str = "partial_rotary_factor";

/// The leading elements of a head that are rotated.
fn rotary_width(keys: &JsonKeys<'_>, scaling: Option<&JsonKeys<'_>>, config: &mut Config) -> Result<()> {
    const KEY: &str = PARTIAL;
    if scaling.map_or(Ok(None), rope_type)? == Some("proportional") {
        return Ok(());
    }
    let inside = scaling.map_or(Ok(None), |s| s.above(KEY, 0.0))?;
    let own = inside.or(keys.above(KEY, 0.0)?).or(keys.above("rotary_pct", 0.0)?);
    if config.architecture.folder.rotary_part.is_none()
        && let Some(part) = own.filter(|part| *part != 1.0)
    {
        let what = format!("{KEY} {part}");
        return Err(LlmError::Unsupported { path: keys.path.into(), what, supported: String::new() });
    }
    let Some(part) = own.or(config.architecture.folder.rotary_part) else { return Ok(()) };
    let width = (config.head_dim as f64 * part) as usize;
    if width == 0 || width > config.head_dim || !width.is_multiple_of(2) {
        let reason =
            format!("is {part}, which gives {width} of {} elements, but must give an even part", config.head_dim);
        return Err(keys.bad(KEY, reason));
    }
    config.rope_dim = width;
    Ok(())
}

/// The scaling of rotary frequencies that an object describes.
fn rope_scaling(keys: &JsonKeys<'_>, scaling: &JsonKeys<'_>, config: &mut Config) -> Result<RopeScaling> {
    let only = |what: String, supported: String| Err(LlmError::Unsupported { path: keys.path.into(), what, supported });
    const ORIGINAL: &str = "original_max_position_embeddings";
    let inside = scaling.size_opt(ORIGINAL, MAX_CONTEXT)?;
    let original = inside.or(keys.size_opt(ORIGINAL, MAX_CONTEXT)?);
    if let Some(beta) = scaling.above("llama_4_scaling_beta", 0.0)? {
        config.query_growth = Some(QueryGrowth { beta, original: original.unwrap_or(config.context) });
    }
    Ok(match rope_type(scaling)? {
        None if scaling.float("factor")?.is_some_and(|factor| factor != 1.0) => {
            return Err(scaling.missing("rope_type"));
        }
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: scaling.positive("factor")? },
        Some("dynamic") => RopeScaling::Dynamic,
        Some("llama3") => {
            let (low, high) = (scaling.positive("low_freq_factor")?, scaling.positive("high_freq_factor")?);
            if low >= high {
                return Err(scaling.bad("high_freq_factor", format!("is {high}, but must be greater than {low}")));
            }
            let original = original.unwrap_or(config.context) as f64;
            RopeScaling::Llama3 { factor: scaling.positive("factor")?, low, high, original }
        }
        Some("yarn") => {
            let factor = scaling.positive("factor")?;
            let mscale = (scaling.float("mscale")?, scaling.float("mscale_all_dim")?);
            if let (Some(latent), Some(all)) = (config.latent, mscale.1.filter(|all| *all != 0.0)) {
                config.scales.attention = Some(latent.score_factor(yarn_mscale(factor, all)));
            }
            let attention = match (scaling.above("attention_factor", 0.0)?, mscale) {
                (Some(own), _) => own,
                (None, (Some(a), Some(b))) if a != 0.0 && b != 0.0 => yarn_mscale(factor, a) / yarn_mscale(factor, b),
                _ => yarn_attention(factor),
            };
            RopeScaling::Yarn {
                factor,
                original: original.unwrap_or(config.context) as f64,
                beta_fast: scaling.above("beta_fast", 0.0)?.unwrap_or(32.0),
                beta_slow: scaling.above("beta_slow", 0.0)?.unwrap_or(1.0),
                truncate: scaling.truth("truncate")?.unwrap_or(true),
                attention,
            }
        }
        Some("longrope" | "su") => {
            let pairs = config.rope_dim / 2;
            let factors = |key: &str| -> Result<Vec<f32>> {
                let factors = scaling.floats(key)?.ok_or_else(|| scaling.missing(key))?;
                if factors.len() != pairs || factors.iter().any(|f| !(f.is_finite() && *f > 0.0)) {
                    return Err(scaling.bad(key, format!("must be a list of {pairs} numbers above 0")));
                }
                Ok(factors)
            };
            config.rope_factors = Some([factors("short_factor")?, factors("long_factor")?]);
            config.long_rope(original, scaling.above("attention_factor", 0.0)?)
        }
        // The first pairs are rotated, with the frequencies that they have if all are.
        Some("proportional") => {
            let part = scaling.above(PARTIAL, 0.0)?.unwrap_or(1.0);
            let (pairs, rotated) = (config.rope_dim / 2, (part * config.rope_dim as f64 / 2.0) as usize);
            if rotated > pairs {
                return Err(scaling.bad(PARTIAL, format!("is {part}, but must be at most 1")));
            }
            // GGUF files have this divisor for the others.
            let factors: Vec<f32> = (0..pairs).map(|i| if i < rotated { 1.0 } else { 1e30 }).collect();
            config.rope_factors = Some([factors.clone(), factors]);
            match scaling.above("factor", 0.0)? {
                None | Some(1.0) => RopeScaling::None,
                Some(factor) => RopeScaling::Linear { factor },
            }
        }
        Some(other) => {
            let known = "default, linear, dynamic, llama3, yarn, longrope, proportional";
            return only(format!("rope scaling {other}"), known.into());
        }
    })
}

/// The type of scaling, under its new or old name.
fn rope_type<'a>(scaling: &JsonKeys<'a>) -> Result<Option<&'a str>> {
    match (scaling.string("rope_type")?, scaling.string("type")?) {
        (Some(new), Some(old)) if new != old => Err(scaling.bad("type", format!("is {old}, but rope_type is {new}"))),
        (new, old) => Ok(new.or(old)),
    }
}

/// The sliding window of each layer.
fn windows(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
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
    let kind = match (kind, keys.size_opt("sliding_window_pattern", MAX_LAYERS)?) {
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
