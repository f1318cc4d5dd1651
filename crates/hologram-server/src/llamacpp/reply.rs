//! Parts of answers in llama.cpp's form.

use std::time::{Duration, Instant};

use hologram_llm::engine::{Logprob, Timings, TokenLogprobs, Usage};
use hologram_llm::{Event, Finish};
use serde_json::{Map, Value, json};

use super::extras::Extras;
use super::settings::settings;
use crate::error::Result;
use crate::job::Text;
use crate::params::Params;
use crate::served::Served;

/// `system_fingerprint`.
pub const FINGERPRINT: &str = concat!("build-", env!("CARGO_PKG_VERSION"));

/// Times and rates of a reply. A rate over no time is 0.
pub fn timings(usage: Usage, times: Timings) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (prompt_ms, predicted_ms) = (ms(times.prompt), ms(times.decode));
    let prompt = usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens);
    // The first token comes with the prompt.
    let steps = usage.generated_tokens.saturating_sub(1);
    let [prompt_each, predicted_each] =
        [(prompt_ms, prompt), (predicted_ms, steps)].map(|(ms, n)| if n > 0 { ms / n as f64 } else { 0.0 });
    let [prompt_rate, predicted_rate] =
        [(prompt_ms, prompt), (predicted_ms, steps)].map(|(ms, n)| if ms > 0.0 { 1e3 / ms * n as f64 } else { 0.0 });
    json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": prompt_rate,
        "predicted_n": usage.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_each,
        "predicted_per_second": predicted_rate,
    })
}

/// The times of a reply that is not complete.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    started: Option<Instant>,
    first: Option<Instant>,
    total: usize,
    cached: usize,
    computed: usize,
    generated: usize,
    slot: usize,
}

impl Clock {
    /// Notes an event.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Started { prompt_tokens, cached_tokens, slot } => {
                self.started = Some(Instant::now());
                (self.total, self.cached, self.computed) = (*prompt_tokens, *cached_tokens, *cached_tokens);
                self.slot = *slot;
            }
            Event::Progress { computed } => self.computed = *computed,
            Event::Token { ids, .. } => {
                self.computed = self.total;
                self.generated += ids.len();
                self.first.get_or_insert_with(Instant::now);
            }
            // With the token that ended it.
            Event::Finished { usage, .. } => self.generated = usage.generated_tokens,
            _ => {}
        }
    }

    /// The reply's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// Tokens of the prompt that were cached.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Tokens of the prompt.
    pub fn total(&self) -> usize {
        self.total
    }

    fn prompt_time(&self) -> Duration {
        match self.started {
            Some(started) if self.computed > self.cached => {
                self.first.unwrap_or_else(Instant::now).saturating_duration_since(started)
            }
            _ => Duration::ZERO,
        }
    }

    /// The times so far.
    pub fn timings(&self) -> Value {
        let usage =
            Usage { prompt_tokens: self.computed, cached_tokens: self.cached, generated_tokens: self.generated };
        let decode = self.first.map_or(Duration::ZERO, |first| first.elapsed());
        timings(usage, Timings { queued: Duration::ZERO, prompt: self.prompt_time(), decode })
    }

    /// How much of the prompt is computed, if an event tells.
    pub fn progress(&self, event: &Event) -> Option<Value> {
        let tells = matches!(event, Event::Started { .. } | Event::Progress { .. });
        let time = self.prompt_time().as_millis() as u64;
        tells.then(|| json!({ "total": self.total, "cache": self.cached, "processed": self.computed, "time_ms": time }))
    }
}

/// A token with its alternatives. `sampled`: probabilities instead of their logarithms.
pub fn probabilities(tokens: &[TokenLogprobs], sampled: bool) -> Value {
    let (one, top) = if sampled { ("prob", "top_probs") } else { ("logprob", "top_logprobs") };
    let token = |token: &Logprob| {
        // As llama.cpp, which has no infinity in JSON either.
        let value = if sampled { token.logprob.exp() } else { token.logprob.max(f32::MIN) };
        let text = String::from_utf8_lossy(&token.bytes);
        json!({ "id": token.id, "token": text, "bytes": token.bytes, one: value })
    };
    let all = tokens.iter().map(|logprobs| {
        let mut value = token(&logprobs.token);
        value[top] = logprobs.top.iter().map(token).collect();
        value
    });
    all.collect()
}

/// What the replies to a prompt have in common.
#[derive(Clone, Debug)]
pub struct Shape {
    model: String,
    settings: Value,
    prompt: String,
    returns_tokens: bool,
    sampled: bool,
}

impl Shape {
    /// For replies to a prompt of these tokens.
    ///
    /// # Errors
    /// Not for a model that is served.
    pub fn new(served: &Served, params: &Params, prompt: &[u32], stream: bool, extras: Extras) -> Result<Shape> {
        Ok(Shape {
            model: served.names[0].clone(),
            settings: settings(params, stream, extras),
            prompt: served.tokenizer()?.decode(prompt, true),
            returns_tokens: false,
            sampled: params.sampled_probabilities,
        })
    }

    /// With the tokens of a reply.
    #[must_use]
    pub fn returning_tokens(self, returns_tokens: bool) -> Shape {
        Shape { returns_tokens, ..self }
    }

    /// A complete reply.
    pub fn whole(&self, index: usize, text: &Text) -> Value {
        let mut value = json!({
            "index": index,
            "content": text.text,
            "tokens": if self.returns_tokens { &text.ids[..] } else { &[] },
            "id_slot": text.slot,
            "stop": true,
            "model": self.model,
            "tokens_predicted": text.usage.generated_tokens,
            "tokens_evaluated": text.usage.prompt_tokens,
            "generation_settings": self.settings,
            "prompt": self.prompt,
            "has_new_line": text.text.contains('\n'),
            "truncated": text.reason == Some(Finish::ContextFull),
            "stop_type": stop_type(text.reason),
            "stopping_word": text.stop.as_deref().unwrap_or(""),
            "tokens_cached": text.usage.prompt_tokens + text.usage.generated_tokens,
            "timings": timings(text.usage, text.timings),
        });
        if !text.logprobs.is_empty() {
            value["completion_probabilities"] = probabilities(&text.logprobs, self.sampled);
        }
        value
    }
}

fn stop_type(reason: Option<Finish>) -> &'static str {
    match reason {
        Some(Finish::EndOfText) => "eos",
        Some(Finish::Stop) => "word",
        Some(_) => "limit",
        None => "none",
    }
}

/// The members that a request asks for; all if it names none. A path's members are separated by `/`.
pub fn selected(value: Value, fields: &[String]) -> Value {
    if fields.is_empty() {
        return value;
    }
    let find = |path: &String| path.split('/').try_fold(&value, |value, name| value.get(name)).cloned();
    let found: Map<String, Value> = fields.iter().filter_map(|path| Some((path.clone(), find(path)?))).collect();
    found.into()
}
