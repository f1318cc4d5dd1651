//! What an engine is asked for.

use std::time::Duration;

use crate::error::LlmError;
use crate::model::Model;
use crate::sampling::SamplerConfig;

use super::options::EngineOptions;

/// A text to generate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The tokens to continue; at least one.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to generate; 0 only computes the prompt. `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// How tokens are sampled.
    pub sampling: SamplerConfig,
    /// Stop texts: generation ends before any of these. None may be empty.
    pub stop: Vec<String>,
    /// Tokens that end the text, beside the model's end tokens.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's end tokens do not end the text.
    pub ignore_end: bool,
    /// Tokens to generate before an end token, a stop token or a stop text may end the text.
    pub min_tokens: usize,
    /// The number of most probable tokens to report beside each generated token, at most [`MAX_TOP_LOGPROBS`]; 0
    /// reports only the generated token.
    pub logprobs: Option<usize>,
    /// The number of most probable tokens to report beside each token of the prompt, at most [`MAX_TOP_LOGPROBS`];
    /// `None` reports none of them. The prompt is then computed anew.
    pub prompt_logprobs: Option<usize>,
    /// Whether the probabilities reported are those that a token was drawn from, after biases, constraint, penalties,
    /// filters and temperature, instead of the model's own.
    pub sampled_probabilities: bool,
    /// Whether to report how much of the prompt is computed, step by step.
    pub progress: bool,
    /// Whether what the cache holds of earlier prompts with the same start is reused.
    pub reuse: bool,
    /// The slot to take if it is free; see [`Event::Started`](crate::Event::Started). All slots share the cache.
    pub slot: Option<usize>,
    /// Added to the logits of tokens before sampling; negative infinity forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// What the text must conform to. It is cut short only by the limits above and the context.
    pub constraint: Option<Constraint>,
    /// Requests of higher priority run first.
    pub priority: i32,
    /// For whom the text is. Tenants take turns, and share no cached prefixes.
    pub tenant: Option<String>,
    /// How long the request may wait before it fails.
    pub queue_timeout: Option<Duration>,
    /// How long the request may take from its submission; it then ends with [`Finish::Deadline`](crate::Finish).
    pub timeout: Option<Duration>,
    /// How long the text may take from its first token, once it holds a line end; it then ends with
    /// [`Finish::Deadline`](crate::Finish).
    pub line_timeout: Option<Duration>,
    /// Whether control tokens appear in the text as the vocabulary spells them.
    pub show_control: bool,
}

/// The maximum of [`Request::logprobs`] and [`Request::prompt_logprobs`].
pub const MAX_TOP_LOGPROBS: usize = 20;

/// What a text must conform to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that a schema accepts.
    JsonSchema(serde_json::Value),
    /// A text that a regular expression matches from start to end.
    Regex(String),
    /// A text of a grammar in Lark's format.
    Lark(String),
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The prompt leaves no room for a token.
    #[error("the prompt has {prompt} tokens, but the context holds {context} with at least one generated token")]
    ContextFull {
        /// Tokens of the prompt.
        prompt: usize,
        /// Context length in tokens.
        context: usize,
    },
    /// Too many requests wait, or their prompts have too many tokens.
    #[error("{waiting} requests are waiting, and there is no room for another (limit {limit}): try again later")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// The maximum number.
        limit: usize,
    },
    /// The engine finishes its requests and accepts no more.
    #[error("the engine is shutting down")]
    Draining,
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
    /// A field of the request is invalid.
    #[error("{field} {reason}")]
    Invalid {
        /// The field of [`Request`], or of its [`SamplerConfig`] as on the command line.
        field: &'static str,
        /// For instance "is -1, but must be 0 or more".
        reason: String,
    },
    /// The engine or this model cannot do what a field asks for.
    #[error("{field} is not supported: {reason}")]
    Unsupported {
        /// The field of [`Request`].
        field: &'static str,
        /// Why.
        reason: String,
    },
}

impl Request {
    /// Continues a prompt with the default sampling until the model ends the text.
    pub fn new(prompt: impl Into<Vec<u32>>) -> Request {
        Request {
            prompt: prompt.into(),
            max_tokens: None,
            sampling: SamplerConfig::default(),
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            min_tokens: 0,
            logprobs: None,
            prompt_logprobs: None,
            sampled_probabilities: false,
            progress: false,
            reuse: true,
            slot: None,
            logit_bias: Vec::new(),
            constraint: None,
            priority: 0,
            tenant: None,
            queue_timeout: None,
            timeout: None,
            line_timeout: None,
            show_control: false,
        }
    }

    /// Checks the request.
    pub(super) fn check(&self, model: &Model, options: &EngineOptions) -> Result<(), SubmitError> {
        let invalid = |field, reason: String| Err(SubmitError::Invalid { field, reason });
        let vocab = model.config().vocab;
        let outside = |token: u32| format!("must be below {vocab}, the size of the vocabulary, but one is {token}");
        if model.config().bidirectional {
            return invalid("model", "is an encoder, which does not continue texts: use it for embeddings".into());
        }
        if self.prompt.is_empty() {
            return invalid("prompt", "must not be empty".into());
        }
        if let Some(token) = self.prompt.iter().find(|token| **token as usize >= vocab) {
            return invalid("prompt", outside(*token));
        }
        let least = usize::from(self.max_tokens != Some(0));
        if self.prompt.len() + least > options.context {
            return Err(SubmitError::ContextFull { prompt: self.prompt.len(), context: options.context });
        }
        match self.sampling.validate() {
            Err(LlmError::Option { option, reason }) => return invalid(option, reason),
            Err(e) => return invalid("sampling", e.to_string()),
            Ok(()) => {}
        }
        if self.stop.iter().any(String::is_empty) {
            return invalid("stop", "must not be empty".into());
        }
        for (field, n) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(n) = n.filter(|n| *n > MAX_TOP_LOGPROBS) {
                return invalid(field, format!("is {n}, but must be at most {MAX_TOP_LOGPROBS}"));
            }
        }
        if let Some((token, _)) = self.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
            return invalid("logit_bias", outside(*token));
        }
        if let Some((_, bias)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            return invalid("logit_bias", format!("is {bias}, but must be a number"));
        }
        if self.max_tokens.is_some_and(|max| self.min_tokens > max) {
            let max = self.max_tokens.unwrap_or_default();
            return invalid("min_tokens", format!("is {}, but max_tokens is {max}", self.min_tokens));
        }
        if self.forbids_all(model) {
            return invalid("logit_bias", "forbids every token".into());
        }
        // Without a tokenizer there is no text, so only tokens can end it.
        let needs_text = !self.stop.is_empty() || self.constraint.is_some();
        if let (true, Err(e)) = (needs_text, model.tokenizer()) {
            let field = if self.stop.is_empty() { "constraint" } else { "stop" };
            return Err(SubmitError::Unsupported { field, reason: e.to_string() });
        }
        Ok(())
    }

    /// Whether the biases leave no token for the first one.
    fn forbids_all(&self, model: &Model) -> bool {
        let vocab = model.config().vocab;
        let banned = self.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).map(|(id, _)| *id);
        let mut banned: Vec<u32> = banned.collect();
        if self.min_tokens > 0 && !banned.is_empty() {
            banned.extend(self.ends(model));
        }
        if banned.len() < vocab {
            return false;
        }
        banned.sort_unstable();
        banned.dedup();
        banned.len() >= vocab
    }

    /// The tokens that end the text, whether or not they are ignored.
    pub(super) fn ends<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = u32> + 'a {
        let ends = model.end_tokens().iter().chain(&self.stop_tokens);
        ends.chain(model.tokenizer().map(|t| t.ends()).unwrap_or_default()).copied()
    }

    /// The maximum number of tokens to generate, and whether it is the context that limits them.
    pub(super) fn limit(&self, context: usize) -> (usize, bool) {
        let room = context.saturating_sub(self.prompt.len());
        match self.max_tokens {
            Some(max) if max <= room => (max, false),
            _ => (room, true),
        }
    }
}
