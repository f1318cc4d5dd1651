//! Log-probabilities in OpenAI's two forms.

use hologram_llm::engine::{Logprob, TokenLogprobs};
use serde_json::{Map, Value, json};

/// What OpenAI sends for a probability of zero, which JSON has no logarithm of.
const NEVER: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { NEVER }
}

fn text(token: &Logprob) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

fn token(token: &Logprob) -> Value {
    json!({ "token": text(token), "logprob": finite(token.logprob), "bytes": token.bytes })
}

/// A token in a chat completion.
pub fn chat(logprobs: &TokenLogprobs) -> Value {
    let mut value = token(&logprobs.token);
    value["top_logprobs"] = logprobs.top.iter().map(token).collect();
    value
}

/// The number of characters that begin in these bytes.
pub fn characters(bytes: &[u8]) -> usize {
    // The other bytes of a character begin with the bits 10.
    bytes.iter().filter(|byte| **byte >> 6 != 0b10).count()
}

/// The tokens of a completion.
#[derive(Debug, Default)]
pub struct Completion {
    tokens: Vec<Value>,
    probabilities: Vec<Value>,
    tops: Vec<Value>,
    offsets: Vec<usize>,
    /// Characters so far.
    offset: usize,
    /// Characters of the first tokens that are not in the text.
    hidden: usize,
}

impl Completion {
    /// Without the first `hidden` characters of its tokens, the text of the tokens is that of the completion.
    pub fn new(hidden: usize) -> Completion {
        Completion { hidden, ..Completion::default() }
    }

    /// Adds a token, `None` for the prompt's first, whose bytes are `first`.
    pub fn push(&mut self, logprobs: Option<&TokenLogprobs>, first: &[u8]) {
        let bytes = logprobs.map_or(first, |logprobs| &logprobs.token.bytes);
        let spelled = String::from_utf8_lossy(bytes).into_owned();
        self.offsets.push(self.offset.saturating_sub(self.hidden));
        self.offset += characters(bytes);
        self.tokens.push(spelled.into());
        match logprobs {
            None => {
                self.probabilities.push(Value::Null);
                self.tops.push(Value::Null);
            }
            Some(logprobs) => {
                self.probabilities.push(finite(logprobs.token.logprob).into());
                // The chosen token is among them, whatever its rank.
                let all = logprobs.top.iter().chain([&logprobs.token]);
                let tops: Map<String, Value> = all.map(|t| (text(t), finite(t.logprob).into())).collect();
                self.tops.push(tops.into());
            }
        }
    }

    /// Takes what was added since the last call; `null` if nothing was.
    pub fn take(&mut self) -> Value {
        if self.tokens.is_empty() {
            return Value::Null;
        }
        let (tokens, probabilities) = (std::mem::take(&mut self.tokens), std::mem::take(&mut self.probabilities));
        let (tops, offsets) = (std::mem::take(&mut self.tops), std::mem::take(&mut self.offsets));
        json!({ "tokens": tokens, "token_logprobs": probabilities, "top_logprobs": tops, "text_offset": offsets })
    }
}
