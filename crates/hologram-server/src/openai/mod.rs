//! OpenAI's interface.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod logprobs;
pub mod messages;
pub mod models;

use std::time::{SystemTime, UNIX_EPOCH};

use hologram_llm::engine::Usage;
use hologram_llm::{Event, Finish};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::llamacpp::extras::Extras;
use crate::llamacpp::reply::{Clock, FINGERPRINT};
use crate::stream::data;

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// OpenAI's word for the end of a text.
pub fn finish_reason(reason: Option<Finish>) -> &'static str {
    match reason {
        Some(Finish::EndOfText | Finish::Stop) => "stop",
        _ => "length",
    }
}

/// Numbers of tokens of a whole response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    prompt: usize,
    cached: usize,
    generated: usize,
    /// Those of thoughts.
    pub thought: usize,
}

impl Total {
    /// Adds a reply; of several replies to a prompt only the first counts the prompt.
    pub fn add(&mut self, usage: Usage, first: bool) {
        self.generated += usage.generated_tokens;
        if first {
            self.prompt += usage.prompt_tokens;
            self.cached += usage.cached_tokens;
        }
    }

    /// In OpenAI's form.
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.thought },
        })
    }
}

/// Where a streamed response has the numbers of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Nowhere.
    None,
    /// In a chunk at the end.
    AtEnd,
    /// There, and in each chunk those of its choice so far.
    InEach,
}

/// What the chunks of a streamed response have in common.
struct Head {
    id: String,
    /// The kind of the chunks, such as `text_completion`.
    object: &'static str,
    created: u64,
    model: String,
    /// Where the numbers of tokens are.
    numbers: Numbers,
    /// What llama.cpp's clients asked for besides.
    extras: Extras,
}

impl Head {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if self.numbers != Numbers::None {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// A chunk of a reply that is not complete, with its times if the client asked for them.
    fn chunk_at(&self, choices: Value, clock: &Clock) -> Value {
        let mut chunk = self.chunk(choices);
        if self.extras.timings {
            chunk["timings"] = clock.timings();
        }
        self.count(&mut chunk, clock, clock.generated());
        chunk
    }

    /// A chunk of a reply before what was generated.
    fn chunk_before(&self, choices: Value, clock: &Clock) -> Value {
        let mut chunk = self.chunk(choices);
        self.count(&mut chunk, clock, 0);
        chunk
    }

    fn count(&self, chunk: &mut Value, clock: &Clock, generated_tokens: usize) {
        if self.numbers == Numbers::InEach {
            let mut total = Total::default();
            total.add(Usage { prompt_tokens: clock.total(), cached_tokens: clock.cached(), generated_tokens }, true);
            chunk["usage"] = total.json();
        }
    }

    /// Appends how much of the prompt is computed, if the client asked for that and an event tells.
    fn progress(&self, choices: Value, clock: &Clock, event: &Event, out: &mut String) {
        if let Some(progress) = clock.progress(event).filter(|_| self.extras.progress) {
            let mut chunk = self.chunk_at(choices, clock);
            chunk["prompt_progress"] = progress;
            data(&chunk, out);
        }
    }

    /// Appends the response's end. `timings`: of the reply that ended last.
    fn end(&self, total: &Total, timings: &Value, out: &mut String) {
        if self.numbers != Numbers::None {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = total.json();
            chunk["timings"] = timings.clone();
            data(&chunk, out);
        }
        *out += "data: [DONE]\n\n";
    }
}

/// Reads `stream` and `stream_options`: whether to stream, and where to send the numbers of tokens.
///
/// # Errors
/// Names the parameter at fault.
pub fn stream(fields: &mut Fields) -> Result<(bool, Numbers)> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let name = fields.name("stream_options");
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, Numbers::None)) };
    if !stream {
        return Err(ApiError::invalid(name, "stream_options need stream: true"));
    }
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    // vLLM's; without usage it has no effect there either.
    let each = options.boolean("continuous_usage_stats")?.unwrap_or(false) && usage;
    options.only("include_obfuscation", &[false.into()])?;
    options.finish()?;
    Ok((
        stream,
        if each {
            Numbers::InEach
        } else if usage {
            Numbers::AtEnd
        } else {
            Numbers::None
        },
    ))
}
