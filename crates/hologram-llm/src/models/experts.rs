//! Mixtures of experts: how many there are and how each token chooses among them.

use crate::error::Result;
use crate::models::config::{Keys, MAX_LAYERS, MAX_SIZE};
use crate::models::scales::check_factor;

/// How an architecture chooses experts where its files do not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRule {
    /// Whether the weights of the chosen experts are divided by their sum, in GGUF files.
    pub normalized: bool,
    /// The same in folders.
    pub normalized_in_folders: bool,
    /// Whether a token's weights are sigmoids of its scores, each by itself, instead of their softmax.
    pub sigmoid: bool,
    /// Whether the network that all tokens use has a gate of its own.
    pub shared_gate: bool,
}

impl ExpertRule {
    /// The softmax of all scores; the weights of the chosen ones are not divided by their sum.
    pub(crate) const SOFTMAX: ExpertRule =
        ExpertRule { normalized: false, normalized_in_folders: false, sigmoid: false, shared_gate: false };
    /// The same, divided by their sum: the softmax of the chosen scores.
    pub(crate) const NORMALIZED: ExpertRule =
        ExpertRule { normalized: true, normalized_in_folders: true, ..ExpertRule::SOFTMAX };
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
    /// Whether that network has a gate of its own.
    pub shared_gate: bool,
    /// Whether a token's weights are sigmoids of its scores.
    pub sigmoid: bool,
    /// Groups of neighbouring experts, and how many of them a token chooses from: those whose best two are best.
    pub groups: (usize, usize),
    /// The first layer that has experts; those before it have one network.
    pub first: usize,
    /// Elements of the vector that experts take and give instead of those of the model's width.
    pub latent: Option<usize>,
}

/// The keys of a kind of file. Of several names the first that the file has counts.
pub(crate) struct ExpertKeys {
    pub count: &'static [&'static str],
    pub used: &'static [&'static str],
    pub ffn: &'static str,
    pub shared: &'static str,
    /// A number of shared experts, each as wide as another.
    pub shared_count: &'static str,
    pub groups: &'static str,
    pub groups_used: &'static str,
    pub first: &'static str,
    pub scale: &'static str,
    pub latent: &'static str,
}

impl Experts {
    /// Reads the experts; `None` for a model without. Files write a count of 0 or 1 for "none".
    pub(crate) fn read(
        keys: &dyn Keys,
        names: &ExpertKeys,
        ffn: usize,
        normalized: Option<bool>,
        (rule, default): (ExpertRule, bool),
    ) -> Result<Option<Experts>> {
        let Some((key, count)) = named_count(keys, names.count)? else { return Ok(None) };
        if count > MAX_SIZE as u64 {
            return Err(keys.bad(key, format!("is {count}, but must be at most {MAX_SIZE}")));
        }
        let count = count as usize;
        let ffn = keys.size_opt(names.ffn, MAX_SIZE)?.unwrap_or(ffn);
        let mut used = Ok(None);
        for key in names.used {
            if let Ok(None) = used {
                used = keys.size_opt(key, count);
            }
        }
        let used = used?.ok_or_else(|| keys.missing(names.used.first().copied().unwrap_or_default()))?;
        let shared = match keys.unsigned(names.shared)?.filter(|n| *n > 0) {
            Some(width) => Some(width),
            None => keys.unsigned(names.shared_count)?.filter(|n| *n > 0).map(|n| n.saturating_mul(ffn as u64)),
        };
        let groups = keys.unsigned(names.groups)?.filter(|n| *n > 1).unwrap_or(1);
        let groups_used = keys.unsigned(names.groups_used)?.filter(|n| *n > 0).unwrap_or(1);
        let whole = usize::try_from(groups).ok().filter(|n| count.is_multiple_of(*n) && count / n >= 2.min(count));
        let Some(groups) = whole else {
            return Err(keys.bad(names.groups, format!("is {groups}, but must divide the {count} experts in groups")));
        };
        let groups_used = groups_used.min(groups as u64) as usize;
        if groups_used * (count / groups) < used {
            let reason = format!("is {groups_used}, which leaves fewer experts than the {used} that a token uses");
            return Err(keys.bad(names.groups_used, reason));
        }
        let scale = keys.float(names.scale)?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
        check_factor(keys, names.scale, scale)?;
        Ok(Some(Experts {
            count,
            used,
            ffn,
            normalized: normalized.unwrap_or(default),
            scale: scale as f32,
            shared: shared.map(|n| n.min(MAX_SIZE as u64) as usize),
            shared_gate: rule.shared_gate,
            sigmoid: rule.sigmoid,
            groups: (groups, groups_used),
            first: keys.unsigned(names.first)?.unwrap_or(0).min(MAX_LAYERS as u64) as usize,
            latent: keys.size_opt(names.latent, MAX_SIZE)?,
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
