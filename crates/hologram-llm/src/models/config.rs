//! A model's hyperparameters, from the metadata of a GGUF file or a folder's `config.json`.

use hologram_core::ops::RopeStyle;

use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;
use crate::models::rope::{QueryGrowth, RopeScaling, long_attention};
use crate::models::scales::{Multipliers, Scales};
use crate::models::{Architecture, Experts, HeadSizes, Latent, Recurrent, Rotary, RotaryLayers, TernaryActivations};

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
    /// The heads of keys and values of layers with a window, if they differ from the others'.
    pub windowed: Option<HeadSizes>,
    /// Layers at the end that read the keys and values of the last layer of their kind before them.
    pub sharing: usize,
    /// Elements of a further embedding that each token has in each layer; 0: there is none.
    pub layer_input: usize,
    /// Vectors of a token in the residual stream.
    pub branches: usize,
    /// Per layer how many deviations above their mean the gates of its network count from; `None`, or no entry: all
    /// count.
    pub cuts: Vec<Option<f32>>,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Trained context length.
    pub context: usize,
    /// Added to the mean square in RMSNorm, or to the variance in LayerNorm.
    pub eps: f32,
    /// Leading elements of a head that rotary embedding rotates.
    pub rope_dim: usize,
    /// Which elements of a head rotary embedding pairs.
    pub rope: RopeStyle,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// How the rotary frequencies are scaled.
    pub rope_scaling: RopeScaling,
    /// The base of layers with [`Rotary::Local`].
    pub local_rope_base: f32,
    /// Divisors of the rotary frequencies for contexts up to the trained one and for longer ones, if the metadata have
    /// them.
    pub rope_factors: Option<[Vec<f32>; 2]>,
    /// Per layer its rotary embedding.
    pub rotary: Vec<Rotary>,
    /// How queries grow with their position.
    pub query_growth: Option<QueryGrowth>,
    /// Factors and caps.
    pub scales: Scales,
    /// Factors of products with matrices that the matrices of a folder do not include.
    pub multipliers: Multipliers,
    /// The experts; `None`: each layer has one feed-forward network.
    pub experts: Option<Experts>,
    /// Per layer the sliding window in positions, including the token's own. `None`: all positions.
    pub windows: Vec<Option<u32>>,
    /// The sizes of attention to latent vectors, whose cache has one head.
    pub latent: Option<Latent>,
    /// The sizes of recurrent layers, if there are such.
    pub recurrent: Option<Recurrent>,
    /// Per layer whether it has a state beside the cache.
    pub recurs: Vec<bool>,
    /// Per layer whether it has attention, and so keys and values in the cache.
    pub attends: Vec<bool>,
    /// How activations are quantised for ternary weights.
    pub ternary: TernaryActivations,
    /// Whether tokens see all of their text. Windows then reach half of their length to both sides.
    pub bidirectional: bool,
    /// Layers behind the last that predict further tokens and are not run.
    pub ahead: usize,
    /// Segments that a text may have, for encoders that mark them.
    pub segments: usize,
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

    /// A key as messages name it.
    fn full(&self, key: &str) -> String;

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
                Err(self.bad(key, format!("is {}, but must be greater than {limit}", shown(v))))
            }
            value => Ok(value),
        }
    }

    /// As [`Keys::above`] 0, but required.
    fn positive(&self, key: &str) -> Result<f64> {
        self.above(key, 0.0)?.ok_or_else(|| self.missing(key))
    }
}

/// A number for a message: in full unless it is very large or very small.
pub(crate) fn shown(number: f64) -> String {
    match number.abs() {
        0.0 | 1e-6..1e15 => number.to_string(),
        _ => format!("{number:e}"),
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
        windowed: None,
        sharing: 0,
        layer_input: 0,
        branches: 1,
        cuts: Vec::new(),
        vocab,
        context: keys.size(names.context, MAX_CONTEXT)?,
        eps,
        rope_dim: head_dim,
        rope: architecture.rope,
        rope_base: 10000.0,
        rope_scaling: RopeScaling::None,
        local_rope_base: 10000.0,
        rope_factors: None,
        rotary: vec![Rotary::Scaled; layers],
        query_growth: None,
        scales: Scales::default(),
        multipliers: Multipliers::default(),
        experts: None,
        windows: vec![None; layers],
        latent: None,
        recurrent: None,
        recurs: vec![false; layers],
        attends: vec![true; layers],
        ternary: architecture.ternary,
        bidirectional: architecture.encoder.is_some(),
        ahead: 0,
        segments: 0,
    })
}

impl Config {
    /// LongRoPE for a model of this trained context, with the file's factor of queries and keys if it has one.
    pub(crate) fn long_rope(&self, original: Option<usize>, attention: Option<f64>) -> RopeScaling {
        let original = original.unwrap_or(self.context);
        let growth = self.context as f64 / original as f64;
        RopeScaling::Long { original, attention: attention.unwrap_or_else(|| long_attention(growth, original)) }
    }

    /// Sets the rotary embedding of each layer by the windows, and the base of those of their own.
    pub(crate) fn place_rotary(&mut self, local_base: Option<f64>) {
        let layers = self.architecture.rotary;
        for (i, (rotary, window)) in self.rotary.iter_mut().zip(&self.windows).enumerate() {
            *rotary = layers.of(i, window.is_some());
        }
        let own = if let RotaryLayers::LocalBase(base) = layers { base } else { None };
        self.local_rope_base = local_base.map(|base| base as f32).or(own).unwrap_or(self.rope_base);
    }

    /// The maximum context length of a session, if limited.
    pub(crate) fn context_limit(&self) -> Option<usize> {
        (self.rope_scaling == RopeScaling::Dynamic).then_some(self.context)
    }

    /// Whether sessions of this context use the rotary factors for long ones.
    pub(crate) fn is_long(&self, context: usize) -> bool {
        matches!(self.rope_scaling, RopeScaling::Long { original, .. } if context > original)
    }

    /// Whether a layer has a cache of its own. If tokens see all of their text, it is done in one step, and all layers
    /// can share one.
    pub(crate) fn has_cache(&self, layer: usize) -> bool {
        if self.bidirectional {
            return layer == 0;
        }
        self.attends.get(layer) == Some(&true) && self.cache_layer(layer) == layer
    }

    /// The tensors of a layer's cache: keys and values, or latent vectors.
    pub(crate) fn cache_tensors(&self) -> usize {
        if self.latent.is_some() { 1 } else { 2 }
    }

    /// The elements of all layers' caches per position.
    pub(crate) fn cache_elements(&self) -> usize {
        let own = (0..self.layers).filter(|layer| self.has_cache(*layer)).map(|layer| self.heads_of(layer));
        self.cache_tensors() * own.map(|own| own.kv_heads * own.head_dim).sum::<usize>()
    }

    /// Bytes of keys and values per position, for elements of this size.
    pub fn kv_bytes_per_position(&self, element_bytes: usize) -> usize {
        self.cache_elements() * element_bytes
    }

    /// The rotary frequencies, divided by the file's `factors` if any.
    pub(crate) fn rope_frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        self.rope_scaling.frequencies(self.rope_dim, self.rope_base, factors)
    }

    /// The rotary frequencies of layers with [`Rotary::Local`].
    pub(crate) fn local_rope_frequencies(&self) -> Vec<f32> {
        let dim = self.windowed.map_or(self.rope_dim, |own| own.head_dim);
        RopeScaling::None.frequencies(dim, self.local_rope_base, None)
    }

    /// The factor of a layer's attention scores, and the factor of the rotated elements of queries. The second is 1
    /// if all elements are rotated: then it is part of the first.
    pub(crate) fn attention_scales(&self, layer: usize) -> (f32, f32) {
        let scaled = self.rotary.get(layer) == Some(&Rotary::Scaled);
        let of_rope = if scaled { self.rope_scaling.score_factor() } else { 1.0 };
        let own = self.scales.attention.map_or_else(|| (self.head_dim as f64).sqrt().recip(), f64::from);
        if self.rope_dim == self.head_dim { ((own * of_rope) as f32, 1.0) } else { (own as f32, of_rope as f32) }
    }
}

pub(crate) fn malformed(file: &GgufFile, reason: String) -> LlmError {
    LlmError::Malformed { path: file.path().into(), reason }
}
