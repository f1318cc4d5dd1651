//! Rejects keys of `config.json` that change a model's results in a way that no graph supports.

use crate::error::{LlmError, Result};
use crate::models::config::{Config, Keys};
use crate::models::config_json::JsonKeys;

/// Factors, under the names that model types use; 1 has no effect.
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

/// Number of experts; 0 and 1 mean a plain feed-forward network.
const EXPERTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Logit soft-capping (tanh). Absent: no cap.
const CAPS: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// Features that are off unless true.
const SWITCHES: [&str; 4] = ["is_encoder_decoder", "add_cross_attention", "alibi", "parallel_attn"];

/// Rejects a model if one of these keys changes its architecture.
pub(crate) fn reject(keys: &JsonKeys<'_>, config: &Config) -> Result<()> {
    let only = |what: String, supported: String| Err(LlmError::Unsupported { path: keys.path.into(), what, supported });
    let unsupported = |what: String| only(what, String::new());
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
    // The factor of attention scores, or the size whose inverse square root it is.
    let usual = (config.head_dim as f64).sqrt().recip();
    let near = |factor: f64| (factor / usual - 1.0).abs() < 1e-6;
    if let Some(factor) = keys.float("attention_multiplier")?.filter(|factor| !near(*factor)) {
        let supported = format!("{usual}, for heads of {} elements", config.head_dim);
        return only(format!("attention_multiplier {factor}"), supported);
    }
    if let Some(size) = keys.float("query_pre_attn_scalar")?.filter(|size| *size != config.head_dim as f64) {
        return only(format!("query_pre_attn_scalar {size}"), config.head_dim.to_string());
    }
    // Selects the output weights; must be a bool.
    keys.truth("tie_word_embeddings").map(|_| ())
}
