//! Mixtures of experts: how many there are and how each token chooses among them.

use crate::error::Result;
use crate::models::config::{Keys, MAX_SIZE};

/// How an architecture chooses experts where its files do not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRule {
    /// Whether the weights of the chosen experts are divided by their sum, in GGUF files.
    pub normalized: bool,
    /// The same in folders.
    pub normalized_in_folders: bool,
}

/// The experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// Width of an expert's feed-forward network.
    pub ffn: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalized: bool,
    /// The factor of these weights.
    pub scale: f32,
    /// Width of the feed-forward network that all tokens use, if there is one.
    pub shared: Option<usize>,
}

/// The keys of a kind of file. Of several names the first that the file has counts.
pub(crate) struct ExpertKeys {
    pub count: &'static [&'static str],
    pub used: &'static str,
    pub ffn: &'static str,
    pub shared: &'static str,
    pub scale: &'static str,
}

impl Experts {
    /// Reads the experts; `None` for a model without. Files write a count of 0 or 1 for "none".
    pub(crate) fn read(
        keys: &dyn Keys,
        names: &ExpertKeys,
        ffn: usize,
        normalized: Option<bool>,
        default: bool,
    ) -> Result<Option<Experts>> {
        let Some((key, count)) = named_count(keys, names.count)? else { return Ok(None) };
        if count > MAX_SIZE as u64 {
            return Err(keys.bad(key, format!("is {count}, but must be at most {MAX_SIZE}")));
        }
        let count = count as usize;
        Ok(Some(Experts {
            count,
            used: keys.size(names.used, count)?,
            ffn: keys.size_opt(names.ffn, MAX_SIZE)?.unwrap_or(ffn),
            normalized: normalized.unwrap_or(default),
            scale: keys.float(names.scale)?.filter(|scale| *scale != 0.0).unwrap_or(1.0) as f32,
            shared: keys.unsigned(names.shared)?.filter(|n| *n > 0).map(|n| n.min(MAX_SIZE as u64) as usize),
        }))
    }
}

/// The first of these keys that gives more than one expert.
pub(crate) fn named_count<'a>(keys: &dyn Keys, names: &[&'a str]) -> Result<Option<(&'a str, u64)>> {
    for key in names {
        if let Some(n) = keys.unsigned(key)?.filter(|n| *n > 1) {
            return Ok(Some((key, n)));
        }
    }
    Ok(None)
}
