//! Sizes of attention to latent vectors.

use crate::error::Result;
use crate::models::config::{Config, Keys, MAX_SIZE};

/// The sizes of attention to latent vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements of a latent vector.
    pub rank: usize,
    /// Elements of a query's head without rotary embedding, and with it.
    pub plain: usize,
    /// See `plain`.
    pub rotated: usize,
    /// Elements of a value.
    pub value: usize,
    /// Elements of the vector that queries are made of; `None`: the width of the model.
    pub q_rank: Option<usize>,
}

/// The keys of a kind of file.
pub(crate) struct LatentKeys {
    pub rank: &'static str,
    pub q_rank: &'static str,
    /// The elements without rotary embedding, or those of a whole head.
    pub plain: &'static str,
    pub head: &'static str,
    pub rotated: &'static str,
    pub value: &'static str,
}

impl Latent {
    /// Reads the sizes, and makes the heads of the cache those of latent vectors.
    pub(crate) fn read(keys: &dyn Keys, names: &LatentKeys, config: &mut Config) -> Result<Latent> {
        let rotated = keys.size(names.rotated, MAX_SIZE)?;
        let plain = match keys.size_opt(names.plain, MAX_SIZE)? {
            Some(plain) => plain,
            None => match keys.size(names.head, MAX_SIZE)?.checked_sub(rotated) {
                Some(plain @ 1..) => plain,
                _ => return Err(keys.bad(names.head, format!("must be greater than the {rotated} rotated elements"))),
            },
        };
        if !rotated.is_multiple_of(2) {
            return Err(keys.bad(names.rotated, format!("is {rotated}, but must be even")));
        }
        let rank = keys.size(names.rank, MAX_SIZE)?;
        let latent = Latent {
            rank,
            plain,
            rotated,
            value: keys.size(names.value, MAX_SIZE)?,
            q_rank: keys.size_opt(names.q_rank, MAX_SIZE)?,
        };
        (config.kv_heads, config.head_dim, config.rope_dim) = (1, rank + rotated, rotated);
        config.latent = Some(latent);
        Ok(latent)
    }

    /// YaRN's factor for the whole head in a factor of scores.
    pub(crate) fn growth(&self, scores: f32) -> f64 {
        (f64::from(scores) * ((self.plain + self.rotated) as f64).sqrt()).sqrt()
    }

    /// The factor of scores, with that of YaRN for the whole head.
    pub(crate) fn score_factor(&self, yarn: f64) -> f32 {
        (yarn * yarn / ((self.plain + self.rotated) as f64).sqrt()) as f32
    }
}
