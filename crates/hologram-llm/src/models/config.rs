//! The sizes of a model, from its metadata.

use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;
use crate::models::{self, Architecture};

/// The sizes and constants of a decoder-only transformer.
#[derive(Clone, Debug)]
pub struct Config {
    /// The architecture.
    pub architecture: &'static Architecture,
    /// The model's own name.
    pub name: String,
    /// Blocks.
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
    /// The longest sequence that the model was trained for.
    pub context: usize,
    /// Added to the mean square in RMSNorm.
    pub eps: f32,
    /// Elements of a head that rotary embedding turns, from the first on.
    pub rope_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Divides every rotary frequency (`rope.scaling.type = linear`); 1 for none.
    pub rope_factor: f32,
}

/// The largest sizes believed; far above any model.
const MAX_SIZE: usize = 1 << 20;
const MAX_LAYERS: usize = 4096;
const MAX_CONTEXT: usize = 1 << 28;

impl Config {
    /// Reads the sizes from a file's metadata.
    ///
    /// # Errors
    /// An unknown architecture, a missing key, or sizes that contradict each other.
    pub fn from_gguf(file: &GgufFile) -> Result<Config> {
        let arch = file.architecture()?;
        let unsupported = |what: String| LlmError::Unsupported { path: file.path().into(), what };
        let architecture = models::find(arch)
            .ok_or_else(|| unsupported(format!("architecture {arch} (supported: {})", models::supported())))?;
        let key = |name: &str| format!("{arch}.{name}");
        let bad = |name: &str, reason: String| LlmError::BadKey { path: file.path().into(), key: key(name), reason };
        let size = |name: &str, max: usize| -> Result<usize> {
            let n: u64 = file.get(&key(name))?;
            match usize::try_from(n) {
                Ok(n) if (1..=max).contains(&n) => Ok(n),
                _ => Err(bad(name, format!("is {n}, but must be from 1 to {max}"))),
            }
        };
        let optional = |name: &str, max: usize, default: usize| -> Result<usize> {
            if file.value(&key(name)).is_some() { size(name, max) } else { Ok(default) }
        };

        let width = size("embedding_length", MAX_SIZE)?;
        let heads = size("attention.head_count", MAX_SIZE)?;
        let kv_heads = optional("attention.head_count_kv", MAX_SIZE, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(bad("attention.head_count_kv", format!("is {kv_heads}, which does not divide {heads} heads")));
        }
        let head_dim = optional("attention.key_length", MAX_SIZE, width / heads)?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(bad("attention.head_count", format!("gives heads of {head_dim} elements, not an even number")));
        }
        let value_dim = optional("attention.value_length", MAX_SIZE, head_dim)?;
        if value_dim != head_dim {
            return Err(bad(
                "attention.value_length",
                format!("is {value_dim}, but must be the key length {head_dim}"),
            ));
        }
        let rope_dim = optional("rope.dimension_count", MAX_SIZE, head_dim)?;
        if rope_dim > head_dim || !rope_dim.is_multiple_of(2) {
            return Err(bad("rope.dimension_count", format!("is {rope_dim}, but must be even and at most {head_dim}")));
        }
        let rope_base = file.get_opt::<f32>(&key("rope.freq_base"))?.unwrap_or(10000.0);
        if !(rope_base.is_finite() && rope_base > 1.0) {
            return Err(bad("rope.freq_base", format!("is {rope_base}, but must be greater than 1")));
        }
        let eps: f32 = file.get(&key("attention.layer_norm_rms_epsilon"))?;
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(bad("attention.layer_norm_rms_epsilon", format!("is {eps}, but must be 0 or more")));
        }
        let rope_factor = match file.get_opt::<&str>(&key("rope.scaling.type"))? {
            None | Some("none") => 1.0,
            Some("linear") => file.get_opt::<f32>(&key("rope.scaling.factor"))?.unwrap_or(1.0),
            Some(other) => return Err(unsupported(format!("rope scaling {other} (supported: none, linear)"))),
        };
        if !(rope_factor.is_finite() && rope_factor > 0.0) {
            return Err(bad("rope.scaling.factor", format!("is {rope_factor}, but must be greater than 0")));
        }
        if optional("expert_count", MAX_SIZE, 1).is_ok_and(|n| n > 1) {
            return Err(unsupported("a mixture of experts".into()));
        }
        let embedding = file.tensor("token_embd.weight")?;
        let &[vocab, _] = embedding.shape() else {
            return Err(malformed(file, format!("token_embd.weight has shape {:?}", embedding.shape())));
        };
        Ok(Config {
            architecture,
            name: file.get_opt::<&str>("general.name")?.unwrap_or("unnamed").into(),
            layers: size("block_count", MAX_LAYERS)?,
            width,
            ffn: size("feed_forward_length", MAX_SIZE)?,
            heads,
            kv_heads,
            head_dim,
            vocab,
            context: size("context_length", MAX_CONTEXT)?,
            eps,
            rope_dim,
            rope_base,
            rope_factor,
        })
    }

    /// Bytes of keys and values for each position, in a cache of elements of this size.
    pub fn kv_bytes_per_position(&self, element_bytes: usize) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * element_bytes
    }

    /// The rotary frequencies `base^(-2i/d)`, divided by the linear factor and, where the file has them, by `factors`.
    pub(crate) fn rope_frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let frequency = |i: usize| {
            let exponent = -2.0 * i as f64 / self.rope_dim as f64;
            let f = f64::from(self.rope_base).powf(exponent) / f64::from(self.rope_factor);
            (f / factors.and_then(|t| t.get(i)).map_or(1.0, |t| f64::from(*t))) as f32
        };
        (0..self.rope_dim / 2).map(frequency).collect()
    }
}

pub(crate) fn malformed(file: &GgufFile, reason: String) -> LlmError {
    LlmError::Malformed { path: file.path().into(), reason }
}
