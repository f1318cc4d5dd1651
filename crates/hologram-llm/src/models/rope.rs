//! Rotary frequencies and their scaling for contexts beyond the trained length.

use std::f64::consts::TAU;

use hologram_core::ops::RopeStyle;

/// How rotary frequencies are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Every frequency is divided by a factor (Chen et al., 2023, arXiv:2306.15595).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Dynamic NTK: the base grows with the sequence beyond the trained context. That would rotate cached keys again
    /// with each token, so only the trained context is allowed, where nothing is scaled.
    Dynamic,
    /// Llama 3.1: frequencies with long wavelengths are divided, short ones are not, with a smooth transition between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original` / `low` positions are long.
        low: f64,
        /// Wavelengths below `original` / `high` positions are short.
        high: f64,
        /// The trained context length.
        original: f64,
    },
    /// YaRN (Peng et al., 2023, arXiv:2309.00071).
    Yarn {
        /// The divisor of low-frequency pairs.
        factor: f64,
        /// The trained context length.
        original: f64,
        /// Pairs with at least this many rotations over the trained context keep their frequency.
        beta_fast: f64,
        /// Pairs with at most this many rotations over the trained context are divided.
        beta_slow: f64,
        /// Whether the bounds of the transition are rounded to whole pairs.
        truncate: bool,
        /// The factor of queries and of keys.
        attention: f64,
    },
    /// LongRoPE (Ding et al., 2024, arXiv:2402.13753): frequencies are divided by factors of the file, of which there
    /// are two lists.
    Long {
        /// The trained context length. Sessions of longer contexts use the second list.
        original: usize,
        /// The factor of queries and of keys.
        attention: f64,
    },
}

/// Queries are multiplied by 1 + `beta`·ln(1 + ⌊position / `original`⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// The growth.
    pub beta: f64,
    /// The trained context length.
    pub original: usize,
}

/// LongRoPE's default factor of queries and keys for a context that is `growth` times the trained one.
pub(crate) fn long_attention(growth: f64, original: usize) -> f64 {
    if growth <= 1.0 || original <= 1 { 1.0 } else { (1.0 + growth.ln() / (original as f64).ln()).sqrt() }
}

/// YaRN's factor with a multiplier: 0.1·`m`·ln(factor) + 1.
pub(crate) fn yarn_mscale(factor: f64, m: f64) -> f64 {
    m * (yarn_attention(factor) - 1.0) + 1.0
}

/// YaRN's default factor of queries and keys: 0.1·ln(factor) + 1.
pub(crate) fn yarn_attention(factor: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
}

impl RopeScaling {
    /// The resulting factor of attention scores.
    pub(crate) fn score_factor(&self) -> f64 {
        match self {
            RopeScaling::Yarn { attention, .. } | RopeScaling::Long { attention, .. } => attention * attention,
            _ => 1.0,
        }
    }

    /// The frequencies of `dim / 2` pairs in radians per position: `base^(-2i/dim)`, scaled, and divided by the file's
    /// `factors` if any.
    pub(crate) fn frequencies(&self, dim: usize, base: f32, factors: Option<&[f32]>) -> Vec<f32> {
        let base = f64::from(base);
        // The pairs between which YaRN blends both frequencies.
        let turning = |turns: f64, original: f64| dim as f64 * (original / (turns * TAU)).ln() / (2.0 * base.ln());
        let frequency = |i: usize| {
            let f = base.powf(-2.0 * i as f64 / dim as f64);
            let scaled = match *self {
                RopeScaling::None | RopeScaling::Dynamic | RopeScaling::Long { .. } => f,
                RopeScaling::Linear { factor } => f / factor,
                RopeScaling::Llama3 { factor, low, high, original } => {
                    let wave = TAU / f;
                    if wave < original / high {
                        f
                    } else if wave > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wave - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                }
                RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                    let (mut first, mut last) = (turning(beta_fast, original), turning(beta_slow, original));
                    if truncate {
                        (first, last) = (first.floor(), last.ceil());
                    }
                    (first, last) = (first.max(0.0), last.min(dim as f64 - 1.0));
                    let span = if first == last { 0.001 } else { last - first };
                    let slow = ((i as f64 - first) / span).clamp(0.0, 1.0);
                    f / factor * slow + f * (1.0 - slow)
                }
            };
            (scaled / factors.and_then(|t| t.get(i)).map_or(1.0, |t| f64::from(*t))) as f32
        };
        (0..dim / 2).map(frequency).collect()
    }
}

/// Where row `row` of query or key weights stands in weights for the other style, when `to` is the style wanted: files
/// pair elements of a head that are neighbours, or half a head apart. Rows are those of all heads.
pub(crate) fn source_row(row: usize, head_dim: usize, to: RopeStyle) -> usize {
    let (head, i, half) = (row / head_dim.max(1), row % head_dim.max(1), (head_dim / 2).max(1));
    head * head_dim
        + match to {
            RopeStyle::Adjacent => i % 2 * half + i / 2,
            RopeStyle::HalfSplit => i % half * 2 + i / half,
        }
}
