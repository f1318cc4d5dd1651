//! Keys of `config.json` that change what a model computes in ways that no graph here has: refused by name, and not passed over.

use crate::error::{LlmError, Result};
use crate::models::config::{Config, Keys};
use crate::models::config_json::JsonKeys;

/// Factors, with the names that model types give them; 1 changes nothing.
const FACTORS: [&str; 8] = [
    "partial_rotary_factor",
    "rotary_pct",
    "logit_scale",
    "logits_scaling",
    "embedding_multiplier",
    "residual_multiplier",
    "lm_head_multiplier",
    "attention_in_multiplier",
];

/// Numbers of experts; up to one is a plain feed-forward network.
const EXPERTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Limits that a tangent draws softly; none is no limit.
const CAPS: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// What is not there unless it is true.
const SWITCHES: [&str; 4] = ["is_encoder_decoder", "add_cross_attention", "alibi", "parallel_attn"];

/// Refuses a model that one of these keys makes another than its type says.
pub(crate) fn refuse(keys: &JsonKeys<'_>, config: &Config) -> Result<()> {
    let unsupported = |what: String| Err(LlmError::Unsupported { path: keys.path.into(), what });
    for key in FACTORS {
        if let Some(factor) = keys.float(key)?.filter(|factor| *factor != 1.0) {
            return unsupported(format!("{key} {factor}"));
        }
    }
    for key in EXPERTS {
        if let Some(n) = keys.unsigned(key)?.filter(|n| *n > 1) {
            return unsupported(format!("a mixture of {n} experts ({key})"));
        }
    }
    for key in CAPS {
        if let Some(cap) = keys.float(key)? {
            return unsupported(format!("{key} {cap}"));
        }
    }
    for key in SWITCHES {
        if keys.truth(key)? == Some(true) {
            return unsupported(format!("{key} true"));
        }
    }
    // The factor of the products of queries and keys, or the size that it is the inverse root of.
    let usual = (config.head_dim as f64).sqrt().recip();
    let near = |factor: f64| (factor / usual - 1.0).abs() < 1e-6;
    if let Some(factor) = keys.float("attention_multiplier")?.filter(|factor| !near(*factor)) {
        return unsupported(format!(
            "attention_multiplier {factor} (supported: {usual}, for heads of {})",
            config.head_dim
        ));
    }
    if let Some(size) = keys.float("query_pre_attn_scalar")?.filter(|size| *size != config.head_dim as f64) {
        return unsupported(format!("query_pre_attn_scalar {size} (supported: {})", config.head_dim));
    }
    // Where the outputs' weights come from; anything but a truth value says nothing.
    keys.truth("tie_word_embeddings").map(|_| ())
}
