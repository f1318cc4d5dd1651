//! Reads hyperparameters from the metadata of a GGUF file.

use crate::error::{LlmError, Result};
use crate::gguf::{GgufFile, Value};
use crate::models::config::{Config, Keys, MAX_CONTEXT, MAX_LAYERS, MAX_SIZE, Names, malformed, sizes};
use crate::models::experts::{ExpertKeys, named_count};
use crate::models::latent::LatentKeys;
use crate::models::recurrent::{Mixer, StateKeys};
use crate::models::rope::{QueryGrowth, RopeScaling, yarn_attention, yarn_mscale};
use crate::models::scales::{ScaleKeys, Scales};
use crate::models::{
    self, Experts, HeadSizes, Latent, NormKind, Recurrent, Rotary, RotaryLayers, Scale, StateRule, Varied, Windows,
};

/// The names in GGUF files, after the architecture's name and a dot.
const GGUF: Names = Names {
    layers: "block_count",
    width: "embedding_length",
    ffn: "feed_forward_length",
    heads: "attention.head_count",
    kv_heads: "attention.head_count_kv",
    head_dim: "attention.key_length",
    context: "context_length",
    eps: "attention.layer_norm_rms_epsilon",
};

const LAYER_NORM_EPS: &str = "attention.layer_norm_epsilon";

/// Experts in GGUF files.
const GGUF_EXPERTS: ExpertKeys = ExpertKeys {
    count: &["expert_count"],
    used: &["expert_used_count"],
    ffn: "expert_feed_forward_length",
    shared: "expert_shared_feed_forward_length",
    shared_count: "expert_shared_count",
    groups: "expert_group_count",
    groups_used: "expert_group_used_count",
    first: "leading_dense_block_count",
    scale: "expert_weights_scale",
    latent: "moe_latent_size",
};

/// Attention to latent vectors in GGUF files.
const GGUF_LATENT: LatentKeys = LatentKeys {
    rank: "attention.kv_lora_rank",
    q_rank: "attention.q_lora_rank",
    plain: "",
    head: "attention.key_length_mla",
    rotated: "rope.dimension_count",
    value: "attention.value_length_mla",
};

/// Recurrent layers in GGUF files.
const GGUF_STATE: StateKeys = StateKeys {
    short: "shortconv.l_cache",
    conv: "ssm.conv_kernel",
    groups: "ssm.group_count",
    key: "ssm.state_size",
    heads: "ssm.time_step_rank",
    value: "",
    inner: "ssm.inner_size",
};

/// Factors and caps in GGUF files.
const GGUF_SCALES: ScaleKeys = ScaleKeys {
    known: &[
        (Scale::Embedding, "embedding_scale"),
        (Scale::Residual, "residual_scale"),
        (Scale::Logits, "logit_scale"),
        (Scale::LogitsDivisor, "logit_scale"),
        (Scale::Attention, "attention.scale"),
        (Scale::AttentionCap, "attn_logit_softcapping"),
        (Scale::LogitCap, "final_logit_softcapping"),
    ],
    unknown: &[],
};

/// The keys of a GGUF file that begin with its architecture's name.
struct GgufKeys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
    /// Whether numbers may differ between layers.
    varied: bool,
}

impl Keys for GgufKeys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Of a list with an entry for each layer the only number above 0, or the first if they may differ.
    fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        let Some(Value::Numbers(_)) = self.file.value(&self.full(key)) else {
            return self.file.get_opt(&self.full(key));
        };
        let numbers: Vec<u64> = self.file.get_opt(&self.full(key))?.unwrap_or_default();
        let first = numbers.iter().copied().find(|n| *n > 0).unwrap_or(0);
        match numbers.iter().find(|n| **n != 0 && **n != first && !self.varied) {
            None => Ok(Some(first)),
            Some(other) => {
                Err(self.bad(key, format!("differs between layers ({first}, {other}), which is not supported")))
            }
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        Ok(self.file.get_opt::<f32>(&self.full(key))?.map(f64::from))
    }

    fn missing(&self, key: &str) -> LlmError {
        LlmError::MissingKey { path: self.file.path().into(), key: self.full(key) }
    }

    fn bad(&self, key: &str, reason: String) -> LlmError {
        LlmError::BadKey { path: self.file.path().into(), key: self.full(key), reason }
    }
}

impl Config {
    /// Reads the hyperparameters from a file's metadata.
    ///
    /// # Errors
    /// When the architecture is unknown, a key is missing, or sizes contradict each other.
    pub fn from_gguf(file: &GgufFile) -> Result<Config> {
        let name = file.architecture()?;
        let only = |what, supported| LlmError::Unsupported { path: file.path().into(), what, supported };
        let unsupported = |what: String| only(what, String::new());
        let architecture =
            models::find(name).ok_or_else(|| only(format!("architecture {name}"), models::supported()))?;
        let keys = GgufKeys { file, architecture: name, varied: architecture.varied == Varied::Sizes };
        let embedding = file.tensor("token_embd.weight")?;
        let &[vocab, _] = embedding.shape() else {
            return Err(malformed(file, format!("token_embd.weight has shape {:?}", embedding.shape())));
        };
        if let Some(Value::Strings(tokens)) = file.value("tokenizer.ggml.tokens")
            && tokens.len() > vocab
        {
            let reason =
                format!("the tokenizer has {} tokens, but token_embd.weight has only {vocab} rows", tokens.len());
            return Err(malformed(file, reason));
        }
        let own_name = file.get_opt::<&str>("general.name")?.unwrap_or("unnamed").into();
        let eps = if architecture.norm == NormKind::Layer { LAYER_NORM_EPS } else { GGUF.eps };
        // Models of experts alone may have no other width.
        let has_ffn = file.value(&keys.full(GGUF.ffn)).is_some();
        let ffn = if has_ffn { GGUF.ffn } else { GGUF_EXPERTS.ffn };
        let mut config = sizes(&keys, &Names { eps, ffn, ..GGUF }, architecture, own_name, vocab)?;
        // Layers that predict further tokens come last and are not used.
        let ahead = keys.unsigned("nextn_predict_layers")?.unwrap_or(0);
        config.layers = match usize::try_from(ahead).ok().and_then(|ahead| config.layers.checked_sub(ahead)) {
            Some(layers @ 1..) => {
                config.ahead = config.layers - layers;
                layers
            }
            _ => return Err(keys.bad("nextn_predict_layers", format!("is {ahead} of {} layers", config.layers))),
        };
        config.windows.truncate(config.layers);
        config.rotary.truncate(config.layers);

        let latent = match architecture.latent {
            true => Some(Latent::read(&keys, &GGUF_LATENT, &mut config)?),
            false => None,
        };
        let head_dim = config.head_dim;
        let value_dim = keys.size_opt("attention.value_length", MAX_SIZE)?.unwrap_or(head_dim);
        if value_dim != head_dim && latent.is_none() {
            let reason = format!("is {value_dim}, but must equal the key length {head_dim}");
            return Err(keys.bad("attention.value_length", reason));
        }
        let rope_dim = keys.size_opt("rope.dimension_count", MAX_SIZE)?.unwrap_or(head_dim);
        if rope_dim > head_dim || !rope_dim.is_multiple_of(2) {
            let reason = format!("is {rope_dim}, but must be even and at most {head_dim}");
            return Err(keys.bad("rope.dimension_count", reason));
        }
        config.rope_dim = rope_dim;
        config.rope_base = keys.above("rope.freq_base", 1.0)?.unwrap_or(10000.0) as f32;
        let factor = || -> Result<f64> { Ok(keys.above("rope.scaling.factor", 0.0)?.unwrap_or(1.0)) };
        config.rope_scaling = match file.get_opt::<&str>(&keys.full("rope.scaling.type"))? {
            None => match keys.above("rope.scale_linear", 0.0)? {
                Some(factor) => RopeScaling::Linear { factor },
                None => RopeScaling::None,
            },
            Some("none") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: factor()? },
            Some("yarn") => {
                let factor = factor()?;
                let original = keys.size_opt("rope.scaling.original_context_length", MAX_CONTEXT)?;
                let own = keys.above("rope.scaling.attn_factor", 0.0)?.unwrap_or(1.0);
                RopeScaling::Yarn {
                    factor,
                    original: original.unwrap_or(config.context) as f64,
                    beta_fast: keys.above("rope.scaling.yarn_beta_fast", 0.0)?.unwrap_or(32.0),
                    beta_slow: keys.above("rope.scaling.yarn_beta_slow", 0.0)?.unwrap_or(1.0),
                    truncate: architecture.yarn_truncates,
                    attention: match keys.above("rope.scaling.yarn_log_multiplier", 0.0)? {
                        Some(_) if latent.is_some() => own,
                        Some(all) => own * yarn_attention(factor) / yarn_mscale(factor, all),
                        None => own * yarn_attention(factor),
                    },
                }
            }
            Some("longrope") => config.long_rope(
                keys.size_opt("rope.scaling.original_context_length", MAX_CONTEXT)?,
                keys.above("rope.scaling.attn_factor", 0.0)?,
            ),
            Some(other) => return Err(only(format!("rope scaling {other}"), "none, linear, yarn, longrope".into())),
        };
        match architecture.experts {
            Some(rule) => {
                let normalized = file.get_opt(&keys.full("expert_weights_norm"))?;
                config.experts = Experts::read(&keys, &GGUF_EXPERTS, config.ffn, normalized, (rule, rule.normalized))?;
                if let (Some(kind), Some(experts)) = (keys.unsigned("expert_gating_func")?, &mut config.experts) {
                    match kind {
                        0 => {}
                        1 => experts.sigmoid = false,
                        2 => experts.sigmoid = true,
                        // The softmax of the chosen scores.
                        3 => (experts.sigmoid, experts.normalized) = (false, true),
                        _ => return Err(unsupported(format!("{} {kind}", keys.full("expert_gating_func")))),
                    }
                }
            }
            None => {
                if let Some((_, n)) = named_count(&keys, GGUF_EXPERTS.count)? {
                    return Err(unsupported(format!("a mixture of {n} experts")));
                }
            }
        }
        if let Some(rule) = architecture.state {
            let tiled = matches!(rule, StateRule::Heads { tiled: true, .. });
            let sizes = Recurrent::read(&keys, &GGUF_STATE, rule, config.width)?;
            config.recurrent = Some(Recurrent { tiled, ..sizes });
            let every = keys.size_opt("full_attention_interval", MAX_LAYERS)?;
            let every = every.or(rule.interval());
            let list = |key: &str| -> Result<Option<Vec<u64>>> {
                match file.value(&keys.full(key)) {
                    Some(Value::Numbers(_)) => file.get_opt(&keys.full(key)),
                    _ => Ok(None),
                }
            };
            let (kv_heads, networks) = (list(GGUF.kv_heads)?, list(ffn)?);
            let recurs = |layer: usize| match (&kv_heads, every) {
                (Some(heads), _) => heads.get(layer) == Some(&0),
                (None, Some(n)) => !(layer + 1).is_multiple_of(n),
                (None, None) => false,
            };
            let is_network = |layer| networks.as_ref().and_then(|n| n.get(layer)).is_some_and(|n| *n > 0);
            config.place_mixers(|layer| match rule {
                StateRule::MambaBeside => Mixer::Both,
                StateRule::MambaAlone if is_network(layer) => Mixer::Neither,
                _ if recurs(layer) => Mixer::State,
                _ => Mixer::Attention,
            });
        }
        let sizes = (config.width, head_dim);
        config.scales = Scales::read(&keys, &GGUF_SCALES, architecture, sizes, only)?;
        config.scales.attention = config.scales.attention.or(architecture.score_factor);
        config.scales.logit_cap = config.scales.logit_cap.or(architecture.logit_cap);
        if architecture.scores_by_width == Some(config.layers) && config.scales.attention.is_none() {
            config.scales.attention = Some((config.width as f32 / config.heads as f32).sqrt().recip());
        }
        if let Some(latent) = latent {
            // A tenth of the multiplier for all elements.
            let all = keys.above("rope.scaling.yarn_log_multiplier", 0.0)?.unwrap_or(0.0);
            let growth = match config.rope_scaling {
                RopeScaling::Yarn { factor, .. } if factor > 1.0 => 1.0 + all * factor.ln(),
                _ => 1.0,
            };
            config.scales.attention = Some(latent.score_factor(growth));
        }
        // 0 means none.
        let window = keys.unsigned("attention.sliding_window")?.filter(|n| *n > 0);
        let window = window.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let slides = gguf_windows(file, &keys, &config)?;
        for (own, slides) in config.windows.iter_mut().zip(slides) {
            *own = window.filter(|_| slides);
        }
        if architecture.varied == Varied::Sizes {
            gguf_sizes(file, &keys, &mut config)?;
        }
        if architecture.varied != Varied::Never {
            config.place_sharing(&keys, "attention.shared_kv_layers")?;
            let input = keys.unsigned("embedding_length_per_layer_input")?.unwrap_or(0);
            config.layer_input = usize::try_from(input).unwrap_or(MAX_SIZE).min(MAX_SIZE);
        }
        config.place_branches(&keys, ["altup.num_inputs", "altup.active_idx"])?;
        if architecture.varied == Varied::Sharing {
            const CUTS: &str = "activation_sparsity_scale";
            let cuts: Option<Vec<f32>> = file.get_opt(&keys.full(CUTS))?;
            // Files write negative infinity where all gates count.
            let finite = |cut: f32| Some(cut).filter(|cut| cut.is_finite());
            config.cuts = cuts.ok_or_else(|| keys.missing(CUTS))?.into_iter().map(finite).collect();
        }
        if let Some(beta) = keys.above("attention.temperature_scale", 0.0)? {
            let original = keys.size_opt("rope.scaling.original_context_length", MAX_CONTEXT)?;
            config.query_growth = Some(QueryGrowth { beta, original: original.unwrap_or(config.context) });
        }
        config.place_rotary(keys.above("rope.freq_base_swa", 1.0)?);
        if architecture.rotary == RotaryLayers::AsFileSays
            && file.get_opt(&keys.full("rope.scaling.finetuned"))? != Some(true)
        {
            config.rotary.fill(Rotary::None);
        }
        let causal: Option<bool> = file.get_opt(&keys.full("attention.causal"))?;
        config.bidirectional |= causal == Some(false) || name == "gemma-embedding";
        config.segments = file.tensor_opt("token_types.weight").map_or(0, |types| types.rows());
        Ok(config)
    }
}

/// What differs between layers with a window and without.
fn gguf_sizes(file: &GgufFile, keys: &GgufKeys<'_>, config: &mut Config) -> Result<()> {
    const LENGTH: &str = "attention.key_length_swa";
    let own = keys.size_opt(LENGTH, MAX_SIZE)?.unwrap_or(config.head_dim);
    let of_all = [("attention.value_length_swa", own), ("rope.dimension_count_swa", own)];
    for (key, want) in of_all.into_iter().chain([("rope.dimension_count", config.head_dim)]) {
        if let Some(n) = keys.size_opt(key, MAX_SIZE)?.filter(|n| *n != want) {
            return Err(keys.bad(key, format!("is {n}, but must equal the key length {want}")));
        }
    }
    let counts: Vec<u64> = match file.value(&keys.full(GGUF.kv_heads)) {
        Some(Value::Numbers(_)) => file.get_opt(&keys.full(GGUF.kv_heads))?.unwrap_or_default(),
        _ => vec![config.kv_heads as u64; config.layers],
    };
    if counts.len() < config.layers {
        let reason = format!("has {} entries, but there are {} layers", counts.len(), config.layers);
        return Err(keys.bad(GGUF.kv_heads, reason));
    }
    let length = |window: &Option<u32>| if window.is_some() { own } else { config.head_dim };
    let of_layer = |(n, window): (&u64, &Option<u32>)| HeadSizes {
        kv_heads: usize::try_from(*n).unwrap_or(0),
        head_dim: length(window),
    };
    let sizes: Vec<HeadSizes> = counts.iter().zip(&config.windows).map(of_layer).collect();
    config.place_heads(keys, GGUF.kv_heads, &sizes)
}

/// Which layers of a GGUF file have its sliding window.
fn gguf_windows(file: &GgufFile, keys: &GgufKeys<'_>, config: &Config) -> Result<Vec<bool>> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let kind = match (file.value(&keys.full(PATTERN)), config.architecture.windows) {
        (None, kind @ (Windows::AllExceptEach(_) | Windows::ExceptEach(_))) => kind,
        // Only files of models with a window in every layer have one.
        (None, _) => Windows::All,
        (Some(Value::Numbers(_)), _) => {
            let slides: Vec<bool> = file.get_opt(&keys.full(PATTERN))?.unwrap_or_default();
            if slides.len() < config.layers {
                let reason = format!("has {} entries, but there are {} layers", slides.len(), config.layers);
                return Err(keys.bad(PATTERN, reason));
            }
            return Ok(slides);
        }
        (Some(_), _) => match keys.unsigned(PATTERN)?.map(usize::try_from) {
            Some(Ok(n)) if n > 0 => match config.architecture.windows {
                Windows::ExceptEach(_) => Windows::ExceptEach(n),
                _ => Windows::AllExceptEach(n),
            },
            _ => return Err(keys.bad(PATTERN, "must be a list, or a number above 0".into())),
        },
    };
    Ok((0..config.layers).map(|layer| kind.slides(layer)).collect())
}
