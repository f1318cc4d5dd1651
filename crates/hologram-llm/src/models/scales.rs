//! Factors and caps that some architectures apply to embeddings, blocks, attention scores and logits.

use crate::error::{LlmError, Result};
use crate::models::Architecture;
use crate::models::config::{Keys, shown};

/// A factor or cap that a file may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The factor of embeddings.
    Embedding,
    /// The factor of a block's result before it is added to the residual stream.
    Residual,
    /// The factor of logits.
    Logits,
    /// The divisor of logits.
    LogitsDivisor,
    /// The factor of attention scores.
    Attention,
    /// The number whose inverse square root is the factor of attention scores.
    AttentionSize,
    /// Attention scores s become `cap`·tanh(s / `cap`).
    AttentionCap,
    /// Logits x become `cap`·tanh(x / `cap`).
    LogitCap,
}

/// The factors and caps of a model; neutral by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// The factor of embeddings.
    pub embedding: f32,
    /// The factor of a block's result before it is added to the residual stream.
    pub residual: f32,
    /// The factor of logits.
    pub logits: f32,
    /// The factor of attention scores before rotary scaling; `None`: 1 / √(head size).
    pub attention: Option<f32>,
    /// The cap of attention scores.
    pub attention_cap: Option<f32>,
    /// The cap of logits.
    pub logit_cap: Option<f32>,
}

/// A factor that a key of `config.json` gives to products with matrices. The matrices of GGUF files include it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplier {
    /// The key.
    pub key: &'static str,
    /// Its place, if the key has a list.
    pub at: Option<usize>,
    /// The matrices by their names in GGUF files without layer, or parts of their rows.
    pub of: &'static [&'static str],
}

/// The factors of products with matrices, by the matrices' names as in [`Multiplier`]; 1 by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Multipliers(pub(crate) Vec<(&'static str, f32)>);

impl Multipliers {
    /// The factor of products with a matrix.
    pub fn of(&self, name: &str) -> f32 {
        self.0.iter().filter(|(own, _)| *own == name).map(|(_, factor)| factor).product()
    }

    /// Whether all factors are 1.
    pub fn is_neutral(&self) -> bool {
        self.0.iter().all(|(_, factor)| *factor == 1.0)
    }

    /// A scale with the factor of a matrix.
    pub(crate) fn times(&self, scale: Option<f32>, name: &str) -> Option<f32> {
        match self.of(name) {
            1.0 => scale,
            factor => Some(scale.unwrap_or(1.0) * factor),
        }
    }
}

impl Default for Scales {
    fn default() -> Scales {
        Scales { embedding: 1.0, residual: 1.0, logits: 1.0, attention: None, attention_cap: None, logit_cap: None }
    }
}

/// The greatest factor accepted, far above that of any model.
const MAX_FACTOR: f64 = 1e9;

/// Rejects a factor that makes all numbers 0 or infinite.
pub(crate) fn check_factor(keys: &dyn Keys, key: &str, factor: f64) -> Result<()> {
    let bound = match factor {
        f if f > MAX_FACTOR => format!("at most {MAX_FACTOR:e}"),
        f if f >= MAX_FACTOR.recip() => return Ok(()),
        f if f > 0.0 => format!("at least {:e}", MAX_FACTOR.recip()),
        _ => "greater than 0".into(),
    };
    Err(keys.bad(key, format!("is {}, but must be {bound}", shown(factor))))
}

/// The keys of a kind of file that change a model's numbers.
pub(crate) struct ScaleKeys {
    /// Scales by key. A key may mean another scale in another architecture.
    pub known: &'static [(Scale, &'static str)],
    /// Factors that no architecture has; 1 has no effect.
    pub unknown: &'static [&'static str],
}

impl Scales {
    /// Reads the scales that the architecture has; rejects the others unless they have no effect. Files write 0 for
    /// "unset".
    pub(crate) fn read(
        keys: &dyn Keys,
        names: &ScaleKeys,
        architecture: &Architecture,
        (width, head_dim): (usize, usize),
        only: impl Fn(String, String) -> LlmError,
    ) -> Result<Scales> {
        let mut scales = Scales::default();
        if architecture.embedding_by_width {
            scales.embedding = (width as f32).sqrt();
        }
        let usual = (head_dim as f64).sqrt().recip();
        let near = |value: f64, neutral: f64| (value / neutral - 1.0).abs() < 1e-6;
        let mut seen = Vec::new();
        for (scale, key) in names.known.iter().filter(|(scale, _)| architecture.scales.contains(scale)) {
            seen.push(*key);
            let Some(value) = keys.float(key)?.filter(|v| *v != 0.0) else { continue };
            check_factor(keys, key, value)?;
            match scale {
                Scale::Embedding => scales.embedding = value as f32,
                Scale::Residual => scales.residual = value as f32,
                Scale::Logits => scales.logits = value as f32,
                Scale::LogitsDivisor => scales.logits = value.recip() as f32,
                Scale::Attention => scales.attention = Some(value as f32),
                Scale::AttentionSize => scales.attention = Some(value.sqrt().recip() as f32),
                Scale::AttentionCap => scales.attention_cap = Some(value as f32),
                Scale::LogitCap => scales.logit_cap = Some(value as f32),
            }
        }
        seen.extend(architecture.folder.multipliers.iter().map(|multiplier| multiplier.key));
        for (scale, key) in names.known.iter().filter(|(_, key)| !seen.contains(key)) {
            let Some(value) = keys.float(key)? else { continue };
            let (neutral, supported) = match scale {
                Scale::Attention => (near(value, usual), format!("{usual}, for heads of {head_dim} elements")),
                Scale::AttentionSize => (near(value, head_dim as f64), head_dim.to_string()),
                Scale::AttentionCap | Scale::LogitCap => (false, String::new()),
                _ => (near(value, 1.0), String::new()),
            };
            if value != 0.0 && !neutral {
                return Err(only(format!("{} {}", keys.full(key), shown(value)), supported));
            }
        }
        for key in names.unknown.iter().filter(|key| !seen.contains(key)) {
            if let Some(factor) = keys.float(key)?.filter(|factor| *factor != 1.0) {
                return Err(only(format!("{} {}", keys.full(key), shown(factor)), String::new()));
            }
        }
        Ok(scales)
    }
}
