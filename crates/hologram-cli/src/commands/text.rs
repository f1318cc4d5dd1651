//! One text at a time, as `run` and `chat` print it: from an engine, or step by step for a trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hologram_core::Executor;
use hologram_llm::engine::{EngineStats, SubmitError};
use hologram_llm::{
    Engine, EngineOptions, Event, Events, Finish, GenerateOptions, Generation, LlmError, Model, Request, Speculation,
};

use super::shipped;
use crate::args::SpeculationArgs;
use crate::progress::Progress;

/// How soon Ctrl-C and the progress bar are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Text is printed no more often than this: waking the reader for each token of a small model would slow the steps.
const PAUSE: Duration = Duration::from_millis(4);
/// Events that may wait for the reader.
const UNREAD: usize = 1024;

/// An engine for one user: its whole context is allocated, and nobody hurries its reader.
///
/// # Errors
/// When an option is out of range, the draft model does not fit, or the device lacks the memory.
pub fn engine(
    model: Model,
    options: &GenerateOptions,
    speculation: &SpeculationArgs,
    repeatable: bool,
    executor: &Executor,
) -> anyhow::Result<Engine> {
    let draft = shipped::draft(speculation, executor)?;
    let mut own = EngineOptions::for_model(&model);
    own.max_sequences = 1;
    own.context = options.context_for(&model);
    (own.kv, own.kv_memory) = (options.kv, Some(u64::MAX));
    // Ctrl-C takes effect between steps.
    own.step_tokens = executor.backend().policy().prompt_tokens;
    (own.unread_events, own.slow_reader) = (UNREAD, Duration::MAX);
    // Which tokens are guessed depends on the time that steps take, and their number may change how sums are rounded.
    own.speculation = if !speculation.is_given() && repeatable { Speculation::Off } else { speculation.chosen()? };
    Ok(Engine::with_draft(Arc::new(model), own, draft.as_ref())?)
}

/// Numbers of tokens, and where the time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub prompt: usize,
    /// Tokens of the prompt that were computed before.
    pub cached: usize,
    pub generated: usize,
    /// Until the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub decode_time: Duration,
    /// Tokens that were guessed, and those of them that came true.
    pub guessed: u64,
    pub accepted: u64,
}

impl Counts {
    /// Tokens per second after the first.
    pub fn rate(&self) -> Option<f64> {
        rate(self.generated.saturating_sub(1), self.decode_time)
    }

    /// Tokens of the prompt per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt - self.cached, self.prompt_time).filter(|_| self.generated > 0)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0).then(|| n as f64 / time.as_secs_f64().max(1e-9))
}

/// A text that is generated.
pub struct Text<'a> {
    source: Option<Source<'a>>,
    interrupted: &'a AtomicBool,
    started: Instant,
    /// The first and the last token.
    first: Option<Instant>,
    last: Instant,
    pub counts: Counts,
    /// Why it ended; `None` while it goes on and after an interruption.
    pub finish: Option<Finish>,
}

enum Source<'a> {
    Engine { engine: &'a Engine, events: Events, before: Box<EngineStats> },
    Steps(Box<Generation<'a>>),
}

impl<'a> Text<'a> {
    /// Lets an engine continue a prompt.
    ///
    /// # Errors
    /// When the request is invalid or the prompt is longer than the context.
    pub fn of_engine(engine: &'a Engine, request: Request, interrupted: &'a AtomicBool) -> anyhow::Result<Text<'a>> {
        let before = Box::new(engine.stats());
        let prompt = request.prompt.len();
        let events = engine.submit(request).map_err(|e| match e {
            SubmitError::ContextFull { prompt, context } if prompt > context => {
                anyhow::Error::from(LlmError::PromptTooLong { tokens: prompt, context })
            }
            e => e.into(),
        })?;
        Ok(Text::new(Source::Engine { engine, events, before }, prompt, interrupted))
    }

    /// A generation on this thread.
    pub fn of_steps(generation: Generation<'a>, interrupted: &'a AtomicBool) -> Text<'a> {
        let prompt = generation.stats().prompt_tokens;
        Text::new(Source::Steps(Box::new(generation)), prompt, interrupted)
    }

    fn new(source: Source<'a>, prompt: usize, interrupted: &'a AtomicBool) -> Text<'a> {
        let (now, counts) = (Instant::now(), Counts { prompt, ..Counts::default() });
        Text { source: Some(source), interrupted, started: now, first: None, last: now, counts, finish: None }
    }

    /// More text, or `None` at its end or after Ctrl-C. Shows a bar while the prompt is computed.
    ///
    /// # Errors
    /// When the device fails, or the text cannot conform to its constraint.
    pub fn next(&mut self) -> anyhow::Result<Option<String>> {
        let next = self.more();
        if !matches!(next, Ok(Some(_))) {
            // An engine cancels what is not read to its end.
            self.source = None;
        }
        next
    }

    fn more(&mut self) -> anyhow::Result<Option<String>> {
        let mut progress = Progress::new("prompt", "tokens");
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match &mut self.source {
                None => return Ok(None),
                Some(Source::Steps(generation)) => {
                    if generation.prefill()? {
                        let (done, of) = generation.prompt_progress();
                        progress.at(done as u64, of as u64);
                        continue;
                    }
                    let piece = generation.next().transpose()?;
                    self.finish = generation.finish();
                    let generated = generation.stats().generated_tokens;
                    self.count(generated);
                    return Ok(piece.map(|piece| piece.text));
                }
                Some(Source::Engine { engine, events, before }) => {
                    if self.first.is_some() && !events.wait(Duration::ZERO) {
                        std::thread::sleep(PAUSE);
                    }
                    if !events.wait(LOOK) {
                        if self.first.is_none() {
                            let done = engine.stats().step_tokens - before.step_tokens;
                            progress.at(self.counts.cached as u64 + done, self.counts.prompt as u64);
                        }
                        continue;
                    }
                    match events.next_blocking() {
                        None => return Ok(None),
                        Some(Event::Started { cached_tokens, .. }) => self.counts.cached = cached_tokens,
                        Some(Event::Progress { .. } | Event::Prompt { .. }) => {}
                        Some(Event::Token { ids, text, .. }) => {
                            let generated = self.counts.generated + ids.len();
                            self.count(generated);
                            return Ok(Some(text));
                        }
                        Some(Event::Finished { reason, usage, timings, .. }) => {
                            let stats = engine.stats();
                            self.counts.guessed = stats.guessed_tokens - before.guessed_tokens;
                            self.counts.accepted = stats.accepted_tokens - before.accepted_tokens;
                            self.finish = Some(reason);
                            self.count(usage.generated_tokens);
                            // As measured where the text was made, not where it is read.
                            self.counts.prompt_time = timings.queued + timings.prompt;
                            self.counts.decode_time = timings.decode;
                            return Ok(None);
                        }
                        Some(Event::Failed(failure)) => return Err(failure.into()),
                    }
                }
            }
        }
    }

    /// Takes the number of tokens generated so far.
    fn count(&mut self, generated: usize) {
        if generated > self.counts.generated {
            (self.last, self.counts.generated) = (Instant::now(), generated);
            let first = *self.first.get_or_insert(self.last);
            self.counts.prompt_time = first - self.started;
            self.counts.decode_time = self.last - first;
        }
    }
}
