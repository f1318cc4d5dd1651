//! Text generation: prompt in, pieces of text out.

use std::time::{Duration, Instant};

use crate::error::{LlmError, Result};
use crate::model::Model;
use crate::sampling::{Sampler, SamplerConfig};
use crate::session::{Session, SessionOptions};
use crate::tokenizer::TokenDecoder;

/// How text is generated.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplerConfig,
    /// Positions of the context; the default is the model's, but at most 4096.
    pub context: Option<usize>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions { max_tokens: 256, sampling: SamplerConfig::default(), context: None }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its text.
    EndOfText,
    /// The limit of tokens was reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub id: u32,
    /// The text that it completes; empty where a character is still incomplete.
    pub text: String,
}

/// Figures of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time for the prompt, until the first token was chosen.
    pub prompt_time: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time for all steps after the prompt.
    pub decode_time: Duration,
    /// Steps after the prompt.
    pub decode_steps: usize,
}

/// A running generation; iterate over it for the text.
pub struct Generation<'a> {
    model: &'a Model,
    session: Session,
    sampler: Sampler,
    decoder: TokenDecoder,
    /// Tokens that the model has not seen yet: the prompt, then the last token.
    pending: Vec<u32>,
    remaining: usize,
    finish: Option<Finish>,
    failed: bool,
    stats: GenerationStats,
}

/// The context when neither the user nor the model asks for less.
const DEFAULT_CONTEXT: usize = 4096;

impl<'a> Generation<'a> {
    pub(crate) fn start(model: &'a Model, prompt: &str, options: &GenerateOptions) -> Result<Generation<'a>> {
        let tokenizer = model.loaded_tokenizer().ok_or_else(|| LlmError::Tokenizer {
            path: model.config().name.clone().into(),
            reason: "the tokenizer is not loaded".into(),
        })?;
        let mut pending = tokenizer.encode(prompt, true)?;
        if pending.is_empty() {
            // Without a first token there is nothing to continue: begin as a text begins.
            match tokenizer.bos() {
                Some(bos) => pending.push(bos),
                None => return Err(LlmError::Option { option: "prompt", reason: "is empty".into() }),
            }
        }
        let context = options.context.unwrap_or(model.config().context.min(DEFAULT_CONTEXT));
        if pending.len() > context {
            return Err(LlmError::PromptTooLong { tokens: pending.len(), context });
        }
        let session = model.session(SessionOptions { context, ..SessionOptions::default() })?;
        Ok(Generation {
            model,
            session,
            sampler: Sampler::new(options.sampling)?,
            decoder: TokenDecoder::new(),
            stats: GenerationStats { prompt_tokens: pending.len(), ..GenerationStats::default() },
            pending,
            remaining: options.max_tokens,
            finish: None,
            failed: false,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.model
    }

    /// Figures so far.
    pub fn stats(&self) -> GenerationStats {
        self.stats
    }

    /// Why the generation ended; `None` while it runs and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The next token, or `None` at the end.
    fn advance(&mut self) -> Result<Option<Piece>> {
        if self.remaining == 0 {
            return Ok(self.end(Finish::MaxTokens));
        }
        if self.session.len(0) + self.pending.len() > self.session.context() {
            return Ok(self.end(Finish::ContextFull));
        }
        let started = Instant::now();
        let id = self.session.sample(0, &self.pending, &mut self.sampler)?;
        let elapsed = started.elapsed();
        if self.stats.generated_tokens == 0 {
            self.stats.prompt_time = elapsed;
        } else {
            self.stats.decode_time += elapsed;
            self.stats.decode_steps += 1;
        }
        self.stats.generated_tokens += 1;
        self.remaining -= 1;
        self.pending.clear();
        self.pending.push(id);
        let Some(tokenizer) =
            self.model.loaded_tokenizer().filter(|t| !t.is_end(id) && !self.model.end_tokens().contains(&id))
        else {
            return Ok(self.end(Finish::EndOfText));
        };
        let text = self.decoder.push(tokenizer, id).to_string();
        Ok(Some(Piece { id, text }))
    }

    /// Ends the generation; a character left incomplete is shown as U+FFFD.
    fn end(&mut self, finish: Finish) -> Option<Piece> {
        self.finish = Some(finish);
        let text = self.decoder.finish().to_string();
        if text.is_empty() { None } else { Some(Piece { id: self.pending.last().copied().unwrap_or(0), text }) }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        if self.finish.is_some() || self.failed {
            return None;
        }
        match self.advance() {
            Ok(piece) => piece.map(Ok),
            Err(e) => {
                self.failed = true;
                Some(Err(e))
            }
        }
    }
}
