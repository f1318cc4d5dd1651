//! Settings as answers repeat them.

use serde_json::{Value, json};

use super::extras::Extras;
use crate::params::Params;

/// The samplers in the order in which they are applied.
pub const SAMPLERS: [&str; 6] = ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"];

/// `generation_settings`. What the server does not have is there as switched off, as llama.cpp's clients expect.
pub fn settings(params: &Params, stream: bool, extras: Extras) -> Value {
    let s = &params.sampling;
    let most = params.max_tokens.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
    // Minus infinity, a ban, becomes null.
    let biases = params.logit_bias.iter().map(|(token, bias)| json!({ "bias": bias, "token": token }));
    let biases: Vec<Value> = biases.collect();
    let mut settings = json!({
        "seed": s.seed, "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p,
        "typical_p": s.typical_p, "repeat_last_n": hologram_llm::sampling::RECENT,
        "repeat_penalty": s.repeat_penalty, "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty, "stop": params.stop, "max_tokens": most, "n_predict": most,
        "ignore_eos": params.ignore_end, "stream": stream, "logit_bias": biases,
        "n_probs": params.logprobs.unwrap_or(0), "post_sampling_probs": params.sampled_probabilities,
        "timings_per_token": extras.timings, "samplers": SAMPLERS,
    });
    let off = json!({
        "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
        "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": 0, "dry_sequence_breakers": [], "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
        "adaptive_target": -1.0, "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0, "min_keep": 0, "lora": [],
    });
    if let (Value::Object(settings), Value::Object(off)) = (&mut settings, off) {
        settings.extend(off);
    }
    settings
}
