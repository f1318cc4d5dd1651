//! Text generation: prompt in, pieces of text out.

use std::time::{Duration, Instant};

use hologram_backends::Format;

use crate::error::{LlmError, Result};
use crate::model::Model;
use crate::sampling::{Sampler, SamplerConfig};
use crate::session::{Logits, Session, SessionOptions};
use crate::stop::StopFilter;
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
    /// Elements of the KV cache, as [`SessionOptions::kv`].
    pub kv: Option<Format>,
    /// The text ends before any of these, none of them empty.
    pub stop: Vec<String>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_tokens: 256,
            sampling: SamplerConfig::default(),
            context: None,
            kv: None,
            stop: Vec::new(),
        }
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
    /// One of the texts that end it was found.
    Stop,
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
    /// How many of these were in the cache already.
    pub cached_tokens: usize,
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
    session: Holder<'a>,
    sampler: Sampler,
    decoder: TokenDecoder,
    stop: StopFilter,
    /// Tokens that the model has not seen yet: the prompt, then the last token.
    pending: Vec<u32>,
    remaining: usize,
    finish: Option<Finish>,
    failed: bool,
    stats: GenerationStats,
}

/// A session of the generation's own, or one that others go on with.
enum Holder<'a> {
    Own(Box<Session>),
    Lent(&'a mut Session),
}

impl Holder<'_> {
    fn get(&mut self) -> &mut Session {
        match self {
            Holder::Own(session) => session,
            Holder::Lent(session) => session,
        }
    }
}

/// The context when neither the user nor the model asks for less.
const DEFAULT_CONTEXT: usize = 4096;

impl GenerateOptions {
    /// How a session for such generations is set up.
    pub(crate) fn session(&self, model: &Model) -> SessionOptions {
        let context = self.context.unwrap_or(model.config().context.min(DEFAULT_CONTEXT));
        SessionOptions { context, kv: self.kv, ..SessionOptions::default() }
    }

    fn check(&self) -> Result<()> {
        if self.stop.iter().any(String::is_empty) {
            return Err(LlmError::Option { option: "stop", reason: "is an empty text, which is everywhere".into() });
        }
        Ok(())
    }
}

impl<'a> Generation<'a> {
    pub(crate) fn start(model: &'a Model, prompt: &str, options: &GenerateOptions) -> Result<Generation<'a>> {
        options.check()?;
        let tokenizer = model.loaded_tokenizer()?;
        let mut pending = tokenizer.encode(prompt, true)?;
        if pending.is_empty() {
            // Without a first token there is nothing to continue: begin as a text begins.
            match tokenizer.bos() {
                Some(bos) => pending.push(bos),
                None => return Err(LlmError::Option { option: "prompt", reason: "is empty".into() }),
            }
        }
        let settings = options.session(model);
        if pending.len() > settings.context {
            return Err(LlmError::PromptTooLong { tokens: pending.len(), context: settings.context });
        }
        let session = Holder::Own(Box::new(model.session(settings)?));
        Generation::new(model, session, pending, 0, options)
    }

    /// Goes on from `tokens` in a session's first sequence, computing only what does not begin as what is there.
    pub(crate) fn resume(
        model: &'a Model,
        session: &'a mut Session,
        tokens: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'a>> {
        options.check()?;
        model.loaded_tokenizer()?;
        if tokens.is_empty() {
            return Err(LlmError::Option { option: "prompt", reason: "is empty".into() });
        }
        if tokens.len() > session.context() {
            return Err(LlmError::PromptTooLong { tokens: tokens.len(), context: session.context() });
        }
        let cached = session.keep_prefix(0, tokens);
        Generation::new(model, Holder::Lent(session), tokens[cached..].to_vec(), cached, options)
    }

    fn new(
        model: &'a Model,
        session: Holder<'a>,
        pending: Vec<u32>,
        cached: usize,
        options: &GenerateOptions,
    ) -> Result<Generation<'a>> {
        Ok(Generation {
            model,
            session,
            sampler: Sampler::new(options.sampling)?,
            decoder: TokenDecoder::new(),
            stop: StopFilter::new(&options.stop),
            stats: GenerationStats {
                prompt_tokens: pending.len() + cached,
                cached_tokens: cached,
                ..GenerationStats::default()
            },
            pending,
            remaining: options.max_tokens,
            finish: None,
            failed: false,
        })
    }

    /// Computes one batch of a long prompt and returns whether to call again before the first token. Optional: a caller
    /// that may cancel a long prompt calls it repeatedly.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prefill(&mut self) -> Result<bool> {
        let session = self.session.get();
        let batch = session.batch();
        if self.stats.generated_tokens > 0 || self.pending.len() <= batch {
            return Ok(false);
        }
        let started = Instant::now();
        session.feed(0, &self.pending[..batch], Logits::None)?;
        self.pending.drain(..batch);
        self.stats.prompt_time += started.elapsed();
        Ok(self.pending.len() > batch)
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
        let session = self.session.get();
        if session.len(0) + self.pending.len() > session.context() {
            return Ok(self.end(Finish::ContextFull));
        }
        let started = Instant::now();
        let id = session.sample(0, &self.pending, &mut self.sampler)?;
        let elapsed = started.elapsed();
        if self.stats.generated_tokens == 0 {
            self.stats.prompt_time += elapsed;
        } else {
            self.stats.decode_time += elapsed;
            self.stats.decode_steps += 1;
        }
        self.stats.generated_tokens += 1;
        self.remaining -= 1;
        self.pending.clear();
        self.pending.push(id);
        let tokenizer = self.model.loaded_tokenizer()?;
        if tokenizer.is_end(id) || self.model.end_tokens().contains(&id) {
            return Ok(self.end(Finish::EndOfText));
        }
        let (text, stopped) = self.stop.push(self.decoder.push(tokenizer, id));
        if stopped {
            self.finish = Some(Finish::Stop);
        }
        Ok(Some(Piece { id, text }))
    }

    /// Ends the generation; a character left incomplete is shown as U+FFFD.
    fn end(&mut self, finish: Finish) -> Option<Piece> {
        self.finish = Some(finish);
        let (mut text, stopped) = self.stop.push(self.decoder.finish());
        if !stopped {
            text += &self.stop.finish();
        }
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
