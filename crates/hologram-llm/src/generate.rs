//! Text generation: prompt in, pieces of text out.

use std::time::{Duration, Instant};

use hologram_backends::DType;

use crate::error::{LlmError, Result};
use crate::model::Model;
use crate::sampling::{Sampler, SamplerConfig};
use crate::session::{Logits, Session, SessionOptions};
use crate::stop::StopFilter;
use crate::tokenizer::TokenDecoder;

/// Options of a generation.
///
/// ```
/// use hologram_llm::GenerateOptions;
/// use hologram_llm::sampling::SamplerConfig;
///
/// let options = GenerateOptions { max_tokens: 100, sampling: SamplerConfig::GREEDY, ..GenerateOptions::default() };
/// assert!(options.context.is_none() && options.stop.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Maximum number of tokens to generate. Default: 256; `usize::MAX` is no limit, so that the model or the context
    /// ends the text.
    pub max_tokens: usize,
    /// How tokens are sampled. Default: temperature 0.8, top-k 40, top-p 0.95 and seed 0, so that each call generates
    /// the same text; [`SamplerConfig::GREEDY`] takes the most probable token.
    pub sampling: SamplerConfig,
    /// Context length in tokens, of prompt and text together; memory for it is reserved. 0 is the model's.
    /// Default: the model's, at most 4096.
    pub context: Option<usize>,
    /// Element type of the KV cache: `F32`, `F16`, `F8`, `Q8Planes` or `Q4Planes`. Default: chosen by model and device;
    /// see [`SessionOptions::kv`].
    pub kv: Option<DType>,
    /// Stop texts: generation ends before any of these, which is not part of the text. None may be empty. Default:
    /// none.
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
#[non_exhaustive]
pub enum Finish {
    /// The model sent an end token.
    EndOfText,
    /// The limit of tokens was reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// A stop text was found.
    Stop,
    /// The request's time was over; see [`Request::timeout`](crate::Request::timeout).
    Deadline,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub id: u32,
    /// The text that the token completes; empty while a character is incomplete.
    pub text: String,
}

/// Statistics of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were already cached.
    pub cached_tokens: usize,
    /// Time from the start to the first generated token.
    pub prompt_time: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time for all steps after the prompt.
    pub decode_time: Duration,
    /// Steps after the prompt.
    pub decode_steps: usize,
}

/// A running generation: an iterator over pieces of text.
pub struct Generation<'a> {
    model: &'a Model,
    session: SessionRef<'a>,
    sampler: Sampler,
    decoder: TokenDecoder,
    stop: StopFilter,
    /// Input tokens of the next step: the prompt, then the last token.
    pending: Vec<u32>,
    remaining: usize,
    finish: Option<Finish>,
    failed: bool,
    stats: GenerationStats,
}

/// A session that belongs to the generation, or one that the caller keeps.
enum SessionRef<'a> {
    Owned(Box<Session>),
    Borrowed(&'a mut Session),
}

impl SessionRef<'_> {
    fn get(&mut self) -> &mut Session {
        match self {
            SessionRef::Owned(session) => session,
            SessionRef::Borrowed(session) => session,
        }
    }
}

/// The default context length, unless the model's is shorter.
const DEFAULT_CONTEXT: usize = 4096;

impl GenerateOptions {
    /// Options of a session for these generations.
    pub(crate) fn session(&self, model: &Model) -> SessionOptions {
        SessionOptions { context: self.context_for(model), kv: self.kv, ..SessionOptions::default() }
    }

    /// The context length in tokens: the one given, or the default for a model.
    pub fn context_for(&self, model: &Model) -> usize {
        match self.context {
            None => model.config().context.min(DEFAULT_CONTEXT),
            Some(0) => model.config().context,
            Some(n) => n,
        }
    }

    fn check(&self) -> Result<()> {
        if self.stop.iter().any(String::is_empty) {
            return Err(LlmError::Option { option: "stop", reason: "must not be empty".into() });
        }
        Ok(())
    }
}

impl<'a> Generation<'a> {
    pub(crate) fn start(model: &'a Model, prompt: &str, options: &GenerateOptions) -> Result<Generation<'a>> {
        options.check()?;
        let tokenizer = model.tokenizer()?;
        let mut pending = tokenizer.encode(prompt, true)?;
        if pending.is_empty() {
            // An empty prompt starts from BOS.
            match tokenizer.bos() {
                Some(bos) => pending.push(bos),
                None => return Err(LlmError::Option { option: "prompt", reason: "must not be empty".into() }),
            }
        }
        let settings = options.session(model);
        if pending.len() > settings.context {
            return Err(LlmError::PromptTooLong { tokens: pending.len(), context: settings.context });
        }
        let session = SessionRef::Owned(Box::new(model.session(settings)?));
        Generation::new(model, session, pending, 0, options)
    }

    /// Continues `tokens` in a session's first sequence. Only tokens after the common prefix with the cache are
    /// computed.
    pub(crate) fn resume(
        model: &'a Model,
        session: &'a mut Session,
        tokens: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'a>> {
        options.check()?;
        model.tokenizer()?;
        if tokens.is_empty() {
            return Err(LlmError::Option { option: "prompt", reason: "must not be empty".into() });
        }
        if tokens.len() > session.context() {
            return Err(LlmError::PromptTooLong { tokens: tokens.len(), context: session.context() });
        }
        let cached = session.keep_prefix(0, tokens);
        Generation::new(model, SessionRef::Borrowed(session), tokens[cached..].to_vec(), cached, options)
    }

    fn new(
        model: &'a Model,
        session: SessionRef<'a>,
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

    /// How many of the prompt's tokens are computed, and how many there are.
    pub fn prompt_progress(&self) -> (usize, usize) {
        let all = self.stats.prompt_tokens;
        let left = if self.stats.generated_tokens > 0 { 0 } else { self.pending.len() };
        (all - left.min(all), all)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.model
    }

    /// Statistics so far.
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
        let tokenizer = self.model.tokenizer()?;
        if tokenizer.is_end(id) || self.model.end_tokens().contains(&id) {
            return Ok(self.end(Finish::EndOfText));
        }
        let (text, stopped) = self.stop.push(self.decoder.push(tokenizer, id));
        if stopped.is_some() {
            self.finish = Some(Finish::Stop);
        }
        Ok(Some(Piece { id, text }))
    }

    /// Ends the generation. An incomplete character becomes U+FFFD.
    fn end(&mut self, finish: Finish) -> Option<Piece> {
        self.finish = Some(finish);
        let (mut text, stopped) = self.stop.push(self.decoder.finish());
        if stopped.is_none() {
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
