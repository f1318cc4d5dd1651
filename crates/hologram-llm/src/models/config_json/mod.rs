//! Reads hyperparameters from a folder's `config.json`.

mod keys;
mod layers;
mod rope;

use std::path::Path;

use hologram_core::ops::RopeStyle;
use serde_json::{Map, Value};

use crate::error::{LlmError, Result};
use crate::models::config::{Config, Keys, MAX_LAYERS, MAX_SIZE, Names, sizes};
use crate::models::latent::LatentKeys;
use crate::models::recurrent::StateKeys;
use crate::models::scales::{ScaleKeys, Scales};
use crate::models::{self, Latent, Recurrent, Scale, StateRule, TernaryActivations, Varied, config_unknown};
pub(crate) use keys::JsonKeys;
use layers::{
    BLOCK_FFN, FOLDER_EXPERTS, LAYER_TYPES, adjusted_ffn, cuts, experts, mixers, multipliers, single_blocks,
    varied_sizes, windows,
};
use rope::rope;

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
        if let Some(whole) = text_part(object) {
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
        if architecture.state == Some(StateRule::MambaAlone) && single_blocks(&keys)?.is_none() {
            return Err(keys.missing(LAYER_TYPES));
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
        config_unknown::reject(&keys, architecture.folder.model_type)?;
        config.experts = experts(&keys, architecture, config.ffn)?;
        // Without a plain network its width means nothing.
        if let (Some(blocks), Some(experts)) = (single_blocks(&keys)?, &config.experts)
            && !blocks.contains(&"mlp")
        {
            config.ffn = experts.ffn;
        }
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
        config_unknown::reject_sizes(&keys, &config)?;
        Ok(config)
    }
}

/// The part of a model of text and images that is run, with the keys of the whole; `None` if it has no parts.
pub(crate) fn text_part(object: &Map<String, Value>) -> Option<Map<String, Value>> {
    let Some(Value::Object(text)) = object.get("text_config") else { return None };
    let mut whole = object.clone();
    whole.remove("text_config");
    whole.extend(text.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())));
    whole.insert("architectures".into(), object.get("architectures").cloned().unwrap_or(Value::Null));
    Some(whole)
}

const BOTH_SIDES: &str = "use_bidirectional_attention";

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
