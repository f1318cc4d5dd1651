//! OpenAI's interface.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod logprobs;
pub mod messages;
pub mod models;

use std::time::{SystemTime, UNIX_EPOCH};

use hologram_llm::Finish;
use hologram_llm::engine::Usage;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
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

/// What the chunks of a streamed response have in common.
struct Head {
    id: String,
    /// The kind of the chunks, such as `text_completion`.
    object: &'static str,
    created: u64,
    model: String,
    /// Whether the numbers of tokens come at the end.
    include_usage: bool,
}

impl Head {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Appends the response's end.
    fn end(&self, total: &Total, out: &mut String) {
        if self.include_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = total.json();
            data(&chunk, out);
        }
        *out += "data: [DONE]\n\n";
    }
}

/// Reads `stream` and `stream_options`: whether to stream, and whether to send the numbers of tokens at the end.
///
/// # Errors
/// Names the parameter at fault.
pub fn stream(fields: &mut Fields) -> Result<(bool, bool)> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let name = fields.name("stream_options");
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, false)) };
    if !stream {
        return Err(ApiError::invalid(name, "stream_options need stream: true"));
    }
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", &[false.into()])?;
    options.finish()?;
    Ok((stream, usage))
}
