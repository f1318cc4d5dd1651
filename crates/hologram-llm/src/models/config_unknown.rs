//! Rejects keys of `config.json` that change a model's results in a way that no graph supports.

use crate::error::{LlmError, Result};
use crate::models::config::Keys;
use crate::models::config_json::JsonKeys;

/// Features that are off unless true.
const SWITCHES: [&str; 4] = ["is_encoder_decoder", "add_cross_attention", "alibi", "parallel_attn"];

/// Rejects a model if one of these keys changes its architecture.
pub(crate) fn reject(keys: &JsonKeys<'_>) -> Result<()> {
    let unsupported = |what: String| -> Result<()> {
        Err(LlmError::Unsupported { path: keys.path.into(), what, supported: String::new() })
    };
    if let Some(limit) = keys.float("clip_qkv")? {
        return unsupported(format!("clip_qkv {limit}"));
    }
    for key in SWITCHES {
        if keys.truth(key)? == Some(true) {
            return unsupported(format!("{key} true"));
        }
    }
    // Without it a layer's tensor of factors would have no effect.
    if keys.truth("altup_correct_scale")? == Some(false) {
        return unsupported("altup_correct_scale false".into());
    }
    // Selects the output weights; must be a bool.
    keys.truth("tie_word_embeddings").map(|_| ())
}
