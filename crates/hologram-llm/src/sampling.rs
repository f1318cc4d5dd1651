//! Sampling: chooses the next token from logits.
//!
//! The steps follow llama.cpp's default chain:
//!
//! 1. Penalties change the logits of recent tokens.
//! 2. Top-k keeps the `top_k` highest logits.
//! 3. Typical sampling (Meister et al., 2022) keeps the smallest set of tokens whose probabilities sum to `typical_p`,
//!    those first whose information -ln p is closest to the entropy.
//! 4. Top-p keeps the smallest set of the most probable tokens whose probabilities (at temperature 1) sum to `top_p`.
//! 5. Min-p keeps tokens that are at least `min_p` times as probable as the best that is left.
//! 6. The token is drawn from `softmax(logit / temperature)`.
//!
//! Temperature 0 takes the highest logit. Of equal logits the lowest token id ranks first.
//!
//! The random number depends only on the seed and the position, so runs are reproducible without a generator's state.
//! The core operation `sample` makes the same choice on a device in `f32`, without `typical_p` and penalties, which the
//! engine lets the device apply before.

pub use hologram_core::ops::philox4x32_10;

use crate::error::{LlmError, Result};

/// Sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 always takes the most probable token.
    pub temperature: f32,
    /// Number of most probable tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Probability to keep of the tokens with the most typical information, above 0; 1 keeps all.
    pub typical_p: f32,
    /// Cumulative probability to keep, above 0; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability relative to the most probable token; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 has no effect.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens, once per occurrence.
    pub frequency_penalty: f32,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The number of recent tokens, of prompt and text, that penalties apply to.
pub const RECENT: usize = 64;

impl Default for SamplerConfig {
    /// Temperature 0.8, top-k 40, top-p 0.95, no penalties, seed 0.
    fn default() -> Self {
        SamplerConfig { temperature: 0.8, top_k: 40, top_p: 0.95, ..SamplerConfig::GREEDY }
    }
}

impl SamplerConfig {
    /// Always takes the most probable token.
    pub const GREEDY: SamplerConfig = SamplerConfig {
        temperature: 0.0,
        top_k: 0,
        typical_p: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// Checks the parameters.
    ///
    /// # Errors
    /// Names the option that is out of range.
    pub fn validate(&self) -> Result<()> {
        let fail = |option, reason| Err(LlmError::Option { option, reason });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return fail("temperature", format!("is {}, but must be a finite number, 0 or more", self.temperature));
        }
        for (option, p) in [("top-p", self.top_p), ("typical-p", self.typical_p)] {
            if !(p > 0.0 && p <= 1.0) {
                return fail(option, format!("is {p}, but must be above 0 and at most 1"));
            }
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return fail("min-p", format!("is {}, but must be from 0 to 1", self.min_p));
        }
        if !(self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0) {
            return fail("repeat-penalty", format!("is {}, but must be a finite number above 0", self.repeat_penalty));
        }
        let penalties = [("presence-penalty", self.presence_penalty), ("frequency-penalty", self.frequency_penalty)];
        for (option, penalty) in penalties {
            if !penalty.is_finite() {
                return fail(option, format!("is {penalty}, but must be a finite number"));
            }
        }
        Ok(())
    }

    /// Whether the best token is taken, whatever the other parameters.
    pub(crate) fn takes_best(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Whether any penalty has an effect.
    pub fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the operation `sample` supports these parameters.
    pub fn fits_device(&self) -> bool {
        self.typical_p == 1.0 && !self.penalises()
    }

    /// The parameters of the operation `sample` for a token at this position: a row of its `f32` and of its `u32`
    /// input.
    pub fn row(&self, position: u64) -> ([f32; 3], [u32; 4]) {
        let top_k = u32::try_from(self.top_k).unwrap_or(u32::MAX);
        (
            [self.temperature, self.top_p, self.min_p.ln()],
            [top_k, self.seed as u32, (self.seed >> 32) as u32, position as u32],
        )
    }
}

/// Samples tokens. Its only state is buffers that are reused between calls.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    /// Token ids with their logits as sort keys; see [`key`].
    keys: Vec<u64>,
    weights: Vec<f64>,
    /// The logits with penalties.
    penalised: Vec<f32>,
}

impl Sampler {
    /// A sampler with these parameters.
    ///
    /// # Errors
    /// When a parameter is out of range.
    pub fn new(config: SamplerConfig) -> Result<Sampler> {
        config.validate()?;
        Ok(Sampler { config, keys: Vec::new(), weights: Vec::new(), penalised: Vec::new() })
    }

    /// The parameters.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Samples with other parameters, which must be valid, from now on.
    pub(crate) fn set_config(&mut self, config: SamplerConfig) {
        self.config = config;
    }

    /// Samples the token at `position` from the logits of the whole vocabulary. The same logits, seed and position give
    /// the same token.
    ///
    /// # Errors
    /// When there are no logits, one is NaN or positive infinity, or none is above negative infinity.
    pub fn sample(&mut self, logits: &[f32], position: u64) -> Result<u32> {
        self.sample_after(logits, &[], position)
    }

    /// As [`Sampler::sample`]. Penalties apply to the last [`RECENT`] tokens of `text`, the tokens before it.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_after(&mut self, logits: &[f32], text: &[u32], position: u64) -> Result<u32> {
        if !self.config.penalises() {
            return self.choose(logits, position);
        }
        let mut penalised = std::mem::take(&mut self.penalised);
        penalised.clear();
        penalised.extend_from_slice(logits);
        let mut recent = text[text.len().saturating_sub(RECENT)..].to_vec();
        recent.sort_unstable();
        for same in recent.chunk_by(|a, b| a == b) {
            let Some(logit) = penalised.get_mut(same[0] as usize) else { continue };
            let repeat = self.config.repeat_penalty;
            *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
            *logit -= self.config.presence_penalty + same.len() as f32 * self.config.frequency_penalty;
        }
        let chosen = self.choose(&penalised, position);
        self.penalised = penalised;
        chosen
    }

    fn choose(&mut self, logits: &[f32], position: u64) -> Result<u32> {
        let fail = |reason: String| LlmError::Logits { position, reason };
        if u32::try_from(logits.len()).is_err() {
            return Err(fail(format!("there are {} logits, more than possible token ids", logits.len())));
        }
        let best = argmax(logits).map_err(fail)?;
        if self.config.takes_best() {
            self.keys.clear();
            self.keys.push(key(0.0, best));
            self.weights.clear();
            self.weights.push(1.0);
            return Ok(best);
        }
        let max = logits.get(best as usize).copied().map(f64::from).unwrap_or_default();
        self.keep_top_k(logits);
        self.keep_typical(max);
        let max = self.keys.first().filter(|_| self.config.typical_p < 1.0).map_or(max, |&best| logit(best));
        self.keep_top_p(logits, max);
        if self.config.min_p > 0.0 {
            // In f32, as on a device.
            let least = f64::from(max as f32 + self.config.min_p.ln());
            self.keys.retain(|&k| logit(k) >= least);
        }
        // The running sum follows the order of token ids, which needs no full sort on a device.
        if self.keys.len() < logits.len() || self.config.top_p < 1.0 || self.config.typical_p < 1.0 {
            self.keys.sort_unstable_by_key(|&k| id(k));
        }
        let temperature = f64::from(self.config.temperature);
        self.weights.clear();
        self.weights.extend(self.keys.iter().map(|&k| ((logit(k) - max) / temperature).exp()));
        let total: f64 = self.weights.iter().sum();
        let mut left = uniform(self.config.seed, position) * total;
        for (&k, &w) in self.keys.iter().zip(&self.weights) {
            if w > left {
                return Ok(id(k));
            }
            left -= w;
        }
        // Rounding may leave a remainder after the last token; it goes to the last token with a nonzero weight.
        let last = self.keys.iter().zip(&self.weights).rev().find(|(_, w)| **w > 0.0);
        Ok(last.map_or(best, |(&k, _)| id(k)))
    }

    /// The tokens that the last one was drawn from, with their probabilities.
    pub(crate) fn distribution(&self) -> Vec<(u32, f64)> {
        let total: f64 = self.weights.iter().sum();
        self.keys.iter().zip(&self.weights).map(|(&k, &w)| (id(k), w / total)).collect()
    }

    /// Keeps the `top_k` best in `keys`, best first, or all in the order of their ids.
    fn keep_top_k(&mut self, logits: &[f32]) {
        self.keys.clear();
        self.keys.extend(logits.iter().zip(0..).map(|(&l, i)| key(l, i)));
        let k = self.config.top_k;
        if k > 0 && k < self.keys.len() {
            self.keys.select_nth_unstable(k - 1);
            self.keys.truncate(k);
            self.keys.sort_unstable();
        }
    }

    /// Keeps in `keys` the most typical tokens whose probabilities reach `typical_p`, best first.
    fn keep_typical(&mut self, max: f64) {
        let p = f64::from(self.config.typical_p);
        if p >= 1.0 {
            return;
        }
        let total: f64 = self.keys.iter().map(|&k| (logit(k) - max).exp()).sum();
        let information = |k: u64| total.ln() - (logit(k) - max);
        let entropy: f64 = self
            .keys
            .iter()
            .map(|&k| (information(k), (-information(k)).exp()))
            .filter(|(_, p)| *p > 0.0)
            .map(|(i, p)| i * p)
            .sum();
        let distance = |k: u64| (information(k) - entropy).abs();
        self.keys.sort_unstable_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)));
        let mut sum = 0.0;
        let kept = self.keys.iter().position(|&k| {
            sum += (-information(k)).exp();
            sum >= p
        });
        self.keys.truncate(kept.map_or(self.keys.len(), |at| at + 1));
        self.keys.sort_unstable();
    }

    /// Keeps in `keys` the smallest set of best tokens whose probabilities reach `top_p`.
    fn keep_top_p(&mut self, logits: &[f32], max: f64) {
        let p = f64::from(self.config.top_p);
        if p >= 1.0 {
            return;
        }
        let sorted = self.keys.len() < logits.len();
        let total: f64 = self.keys.iter().map(|&k| (logit(k) - max).exp()).sum();
        // A few tokens usually hold most of the probability, so sort only the best, four times as many in each round.
        let (mut done, mut sum) = (0, 0.0);
        let mut chunk = if sorted { self.keys.len() } else { 256 };
        while done < self.keys.len() {
            let rest = &mut self.keys[done..];
            let n = chunk.min(rest.len());
            if !sorted {
                if n < rest.len() {
                    rest.select_nth_unstable(n - 1);
                }
                rest[..n].sort_unstable();
            }
            for &k in &rest[..n] {
                done += 1;
                sum += (logit(k) - max).exp();
                if sum >= p * total {
                    self.keys.truncate(done);
                    return;
                }
            }
            chunk *= 4;
        }
    }
}

/// The token with the highest logit; of equals the lowest id.
fn argmax(logits: &[f32]) -> std::result::Result<u32, String> {
    let mut best = (f32::NEG_INFINITY, None);
    for (&l, i) in logits.iter().zip(0u32..) {
        if l.is_nan() || l == f32::INFINITY {
            return Err(format!("the logit of token {i} is {l}"));
        }
        if l > best.0 {
            best = (l, Some(i));
        }
    }
    best.1.ok_or_else(|| format!("none of the {} logits is above negative infinity", logits.len()))
}

/// A key that sorts by falling logit, then by rising token id.
fn key(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits(); // -0 becomes 0
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!rising) << 32 | u64::from(id)
}

fn id(key: u64) -> u32 {
    key as u32
}

fn logit(key: u64) -> f64 {
    let rising = !((key >> 32) as u32);
    f64::from(f32::from_bits(if rising >> 31 == 1 { rising & !(1 << 31) } else { !rising }))
}

/// A number in [0, 1) with 53 random bits.
fn uniform(seed: u64, position: u64) -> f64 {
    let [a, b, ..] =
        philox4x32_10([position as u32, (position >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(a) | u64::from(b) << 32;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
