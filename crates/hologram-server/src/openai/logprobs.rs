//! Log-probabilities in OpenAI's two forms.

use hologram_llm::engine::{Logprob, TokenLogprobs};
use serde_json::{Map, Value, json};

/// What OpenAI sends for a probability of zero, which JSON has no logarithm of.
const NEVER: f32 = -9999.0;

/// A log-probability as a number of JSON.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { NEVER }
}

/// A token's text.
pub fn text(token: &Logprob) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

/// How a token is called: by its text or, as vLLM's clients may ask, by its number.
fn name(token: &Logprob, by_id: bool) -> String {
    if by_id { format!("token_id:{}", token.id) } else { text(token) }
}

/// A token in a chat completion. `by_id`: tokens are called by their numbers.
pub fn chat(logprobs: &TokenLogprobs, by_id: bool) -> Value {
    let token = |token: &Logprob| {
        let name = name(token, by_id);
        json!({ "token": name, "logprob": finite(token.logprob), "bytes": token.bytes })
    };
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
    /// The most alternatives per token.
    most: usize,
    /// Whether tokens are called by their numbers.
    by_id: bool,
}

impl Completion {
    /// Without the first `hidden` characters of its tokens, the text of the tokens is that of the completion. Each has
    /// at most so many alternatives; `by_id`: tokens are called by their numbers.
    pub fn new(hidden: usize, most: usize, by_id: bool) -> Completion {
        Completion { hidden, most, by_id, ..Completion::default() }
    }

    /// Adds a token, `None` for the prompt's first, which is `first`.
    pub fn push(&mut self, logprobs: Option<&TokenLogprobs>, first: &Logprob) {
        let token = logprobs.map_or(first, |logprobs| &logprobs.token);
        let (bytes, spelled) = (&token.bytes, name(token, self.by_id));
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
                let all = logprobs.top.iter().take(self.most).chain([&logprobs.token]);
                let by_id = self.by_id;
                let tops: Map<String, Value> = all.map(|t| (name(t, by_id), finite(t.logprob).into())).collect();
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
