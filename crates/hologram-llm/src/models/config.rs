//! A model's hyperparameters, from the metadata of a GGUF file or a folder's `config.json`.

use hologram_core::ops::RopeStyle;

use crate::error::{LlmError, Result};
use crate::gguf::{GgufFile, Value};
use crate::models::rope::{RopeScaling, yarn_attention};
use crate::models::{self, Architecture, TernaryActivations};

/// The hyperparameters of a decoder-only transformer.
#[derive(Clone, Debug)]
pub struct Config {
    /// The architecture.
    pub architecture: &'static Architecture,
    /// The name in the metadata.
    pub name: String,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward network.
    pub ffn: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Trained context length.
    pub context: usize,
    /// Added to the mean square in RMSNorm.
    pub eps: f32,
    /// Leading elements of a head that rotary embedding rotates.
    pub rope_dim: usize,
    /// Which elements of a head rotary embedding pairs.
    pub rope: RopeStyle,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// How the rotary frequencies are scaled.
    pub rope_scaling: RopeScaling,
    /// Per layer the sliding window in positions, including the token's own. `None`: all positions.
    pub windows: Vec<Option<u32>>,
    /// How activations are quantised for ternary weights.
    pub ternary: TernaryActivations,
}

/// Maximum sizes accepted, far above any model.
pub(crate) const MAX_SIZE: usize = 1 << 20;
pub(crate) const MAX_LAYERS: usize = 4096;
pub(crate) const MAX_CONTEXT: usize = 1 << 28;

/// Typed access to a file's settings.
pub(crate) trait Keys {
    /// A whole number; `None` where the key is missing.
    fn unsigned(&self, key: &str) -> Result<Option<u64>>;

    /// A number.
    fn float(&self, key: &str) -> Result<Option<f64>>;

    /// The error that a key is missing.
    fn missing(&self, key: &str) -> LlmError;

    /// The error for an invalid value. The reason reads "is 0, but must be …".
    fn bad(&self, key: &str, reason: String) -> LlmError;

    /// A size from 1 to `max`; `None` where the key is missing.
    fn size_opt(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let Some(n) = self.unsigned(key)? else { return Ok(None) };
        match usize::try_from(n) {
            Ok(n) if (1..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.bad(key, format!("is {n}, but must be from 1 to {max}"))),
        }
    }

    /// A required size.
    fn size(&self, key: &str, max: usize) -> Result<usize> {
        self.size_opt(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number above a limit; `None` where the key is missing.
    fn above(&self, key: &str, limit: f64) -> Result<Option<f64>> {
        match self.float(key)? {
            Some(v) if !(v.is_finite() && v > limit) => {
                Err(self.bad(key, format!("is {v}, but must be greater than {limit}")))
            }
            value => Ok(value),
        }
    }

    /// As [`Keys::above`] 0, but required.
    fn positive(&self, key: &str) -> Result<f64> {
        self.above(key, 0.0)?.ok_or_else(|| self.missing(key))
    }
}

/// The names of the sizes in a kind of file.
pub(crate) struct Names {
    pub layers: &'static str,
    pub width: &'static str,
    pub ffn: &'static str,
    pub heads: &'static str,
    pub kv_heads: &'static str,
    pub head_dim: &'static str,
    pub context: &'static str,
    pub eps: &'static str,
}

/// Reads the settings that all kinds of file share; the rest keep their defaults.
pub(crate) fn sizes(
    keys: &dyn Keys,
    names: &Names,
    architecture: &'static Architecture,
    name: String,
    vocab: usize,
) -> Result<Config> {
    let width = keys.size(names.width, MAX_SIZE)?;
    let heads = keys.size(names.heads, MAX_SIZE)?;
    let kv_heads = keys.size_opt(names.kv_heads, MAX_SIZE)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(keys.bad(names.kv_heads, format!("is {kv_heads}, but must divide the number of heads, {heads}")));
    }
    let head_dim = keys.size_opt(names.head_dim, MAX_SIZE)?.unwrap_or(width / heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(keys.bad(names.heads, format!("gives a head size of {head_dim}, which must be even and not 0")));
    }
    let eps = keys.float(names.eps)?.ok_or_else(|| keys.missing(names.eps))? as f32;
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(keys.bad(names.eps, format!("is {eps}, but must be 0 or more")));
    }
    let layers = keys.size(names.layers, MAX_LAYERS)?;
    Ok(Config {
        architecture,
        name,
        layers,
        width,
        ffn: keys.size(names.ffn, MAX_SIZE)?,
        heads,
        kv_heads,
        head_dim,
        vocab,
        context: keys.size(names.context, MAX_CONTEXT)?,
        eps,
        rope_dim: head_dim,
        rope: architecture.rope,
        rope_base: 10000.0,
        rope_scaling: RopeScaling::None,
        windows: vec![None; layers],
        ternary: architecture.ternary,
    })
}

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

/// The keys of a GGUF file that begin with its architecture's name.
struct GgufKeys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
}

impl GgufKeys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }
}

impl Keys for GgufKeys<'_> {
    fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        self.file.get_opt(&self.full(key))
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
        let keys = GgufKeys { file, architecture: name };
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
        let mut config = sizes(&keys, &GGUF, architecture, own_name, vocab)?;

        let head_dim = config.head_dim;
        let value_dim = keys.size_opt("attention.value_length", MAX_SIZE)?.unwrap_or(head_dim);
        if value_dim != head_dim {
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
                    truncate: true,
                    attention: own * yarn_attention(factor),
                }
            }
            Some(other) => return Err(only(format!("rope scaling {other}"), "none, linear, yarn".into())),
        };
        if let Some(n) = keys.unsigned("expert_count")?.filter(|n| *n > 1) {
            return Err(unsupported(format!("a mixture of {n} experts")));
        }
        // Unsupported scales and caps, each with the value that has no effect. Files write 0 for "unset".
        let usual = (head_dim as f64).sqrt().recip();
        for (key, neutral) in [
            ("logit_scale", 1.0),
            ("embedding_scale", 1.0),
            ("residual_scale", 1.0),
            ("attention.scale", usual),
            ("attn_logit_softcapping", 0.0),
            ("final_logit_softcapping", 0.0),
        ] {
            if let Some(v) = keys.float(key)?.filter(|v| *v != 0.0 && (v / neutral - 1.0).abs() >= 1e-6) {
                return Err(unsupported(format!("{} {v}", keys.full(key))));
            }
        }
        if file.value(&keys.full("attention.sliding_window_pattern")).is_some() {
            return Err(unsupported("a sliding window in only some layers".into()));
        }
        // 0 means none.
        let window = keys.unsigned("attention.sliding_window")?.filter(|n| *n > 0);
        config.windows.fill(window.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
        config.validated(unsupported)
    }

    /// Rejects combinations that no graph supports.
    pub(crate) fn validated(self, unsupported: impl Fn(String) -> LlmError) -> Result<Config> {
        // The score factor replaces a factor on every element of queries and keys.
        if self.rope_scaling.score_factor() != 1.0 && self.rope_dim != self.head_dim {
            return Err(unsupported("rope scaling yarn on only part of each head".into()));
        }
        Ok(self)
    }

    /// The maximum context length of a session, if limited.
    pub(crate) fn context_limit(&self) -> Option<usize> {
        (self.rope_scaling == RopeScaling::Dynamic).then_some(self.context)
    }

    /// Bytes of keys and values per position, for elements of this size.
    pub fn kv_bytes_per_position(&self, element_bytes: usize) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * element_bytes
    }

    /// The rotary frequencies, divided by the file's `factors` if any.
    pub(crate) fn rope_frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        self.rope_scaling.frequencies(self.rope_dim, self.rope_base, factors)
    }

    /// The factor of attention scores.
    pub(crate) fn attention_scale(&self) -> f32 {
        (self.rope_scaling.score_factor() / (self.head_dim as f64).sqrt()) as f32
    }
}

pub(crate) fn malformed(file: &GgufFile, reason: String) -> LlmError {
    LlmError::Malformed { path: file.path().into(), reason }
}
