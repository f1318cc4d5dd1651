//! llama.cpp's names in `/metrics`: the sums of all models, without labels.

use std::fmt::Write;

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were cached.
    pub cached_tokens: u64,
    /// Seconds for prompts.
    pub prompt_seconds: f64,
    /// Tokens generated.
    pub predicted_tokens: u64,
    /// Those after the first of each text.
    pub predicted_steps: u64,
    /// Seconds for those.
    pub predicted_seconds: f64,
    /// Steps, and texts that were embedded.
    pub decodes: u64,
    /// Texts in steps.
    pub step_texts: u64,
    /// Tokens of the longest text.
    pub longest: u64,
    /// Times that tokens of a text were guessed.
    pub guesses: u64,
    /// Tokens guessed.
    pub guessed: u64,
    /// Guesses that came true.
    pub accepted: u64,
    /// Texts that are generated now.
    pub processing: u64,
    /// Requests that wait.
    pub deferred: u64,
}

/// Appends the metrics.
pub fn write(totals: &Totals, out: &mut String) {
    let t = *totals;
    let rate = |n: u64, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let rows: [(&str, &str, &str, f64); 15] = [
        ("prompt_tokens_total", "counter", "Tokens of prompts computed", t.prompt_tokens as f64),
        ("prompt_tokens_cached_total", "counter", "Tokens of prompts found in the cache", t.cached_tokens as f64),
        ("prompt_seconds_total", "counter", "Time for prompts", t.prompt_seconds),
        ("tokens_predicted_total", "counter", "Tokens generated", t.predicted_tokens as f64),
        ("tokens_predicted_seconds_total", "counter", "Time for tokens generated", t.predicted_seconds),
        ("n_decode_total", "counter", "Steps", t.decodes as f64),
        ("n_tokens_max", "counter", "Tokens of the longest text", t.longest as f64),
        ("spec_decode_num_draft_tokens_total", "counter", "Tokens guessed", t.guessed as f64),
        ("spec_decode_num_accepted_tokens_total", "counter", "Guesses that came true", t.accepted as f64),
        ("spec_decode_num_drafts_total", "counter", "Times that tokens were guessed", t.guesses as f64),
        ("prompt_tokens_seconds", "gauge", "Tokens of prompts per second", rate(t.prompt_tokens, t.prompt_seconds)),
        (
            "predicted_tokens_seconds",
            "gauge",
            "Tokens generated per second",
            rate(t.predicted_steps, t.predicted_seconds),
        ),
        ("requests_processing", "gauge", "Texts that are generated", t.processing as f64),
        ("requests_deferred", "gauge", "Requests that wait", t.deferred as f64),
        ("n_busy_slots_per_decode", "gauge", "Texts per step", t.step_texts as f64 / t.decodes.max(1) as f64),
    ];
    for (name, kind, help, value) in rows {
        let _ = writeln!(out, "# HELP llamacpp:{name} {help}.\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}");
    }
}
