//! Rejects keys of `config.json` that change a model's results in a way that no graph supports.

use crate::error::{LlmError, Result};
use crate::models::config::Keys;
use crate::models::config_json::JsonKeys;

/// Number of experts; 0 and 1 mean a plain feed-forward network.
const EXPERTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Features that are off unless true.
const SWITCHES: [&str; 4] = ["is_encoder_decoder", "add_cross_attention", "alibi", "parallel_attn"];

/// Rejects a model if one of these keys changes its architecture.
pub(crate) fn reject(keys: &JsonKeys<'_>) -> Result<()> {
    let unsupported = |what: String| -> Result<()> {
        Err(LlmError::Unsupported { path: keys.path.into(), what, supported: String::new() })
    };
    for key in EXPERTS {
        if let Some(n) = keys.unsigned(key)?.filter(|n| *n > 1) {
            return unsupported(format!("a mixture of {n} experts ({key})"));
        }
    }
    for key in SWITCHES {
        if keys.truth(key)? == Some(true) {
            return unsupported(format!("{key} true"));
        }
    }
    // Selects the output weights; must be a bool.
    keys.truth("tie_word_embeddings").map(|_| ())
}
