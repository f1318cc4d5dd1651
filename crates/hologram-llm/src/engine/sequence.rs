//! A request that runs: its tokens, the text so far, and what it sends to its reader.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::Span;

use crate::error::LlmError;
use crate::generate::Finish;
use crate::model::Model;
use crate::sampling::{RECENT, Sampler};
use crate::session::{Change, MAX_ENTRIES, NO_TOKEN, TokenChange};
use crate::stop::StopFilter;
use crate::tokenizer::{TokenDecoder, Tokenizer};

use super::events::{Event, Failure, Sender, Timings, TokenLogprobs, Usage};
use super::grammar::Grammar;
use super::logprobs::{drawn, logprobs};
use super::queue::Waiting;
use super::request::Request;
use super::speculate::{DraftRate, Lookup};

/// A sequence. It is either in a slot of the session or preempted.
pub(super) struct Sequence {
    pub number: u64,
    pub request: Request,
    grammar: Option<Grammar>,
    /// What the constraint allows next, if the device is to sample by it.
    mask: Option<Result<Vec<u32>, String>>,
    pub sender: Sender,
    /// The prompt and the generated tokens.
    pub tokens: Vec<u32>,
    /// The session's sequence.
    pub slot: usize,
    /// The hash of the published blocks, and their number.
    pub hash: u128,
    pub published: usize,
    /// The hash of the latest saved state of the generated text.
    pub text_state: Option<u128>,
    pub preemptions: u32,
    /// The latest step in flight that computes it.
    pub flying: Option<Flying>,
    /// Since when it pauses for its reader.
    pub paused: Option<Instant>,
    /// What its text repeats, and how well a draft model guesses it.
    pub lookup: Lookup,
    pub draft: DraftRate,
    decoder: TokenDecoder,
    stop: StopFilter,
    cached_tokens: usize,
    /// Maximum number of generated tokens, and whether the context sets it.
    limit: (usize, bool),
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Tokens of the prompt that the reader knows to be computed.
    progress: usize,
    /// Whether the text holds a line end.
    has_line_end: bool,
    submitted: Instant,
    started: Instant,
    first_token: Option<Instant>,
    pub span: Span,
}

/// A sequence's part of a step in flight.
pub(super) struct Flying {
    /// The step, by its number.
    pub step: u64,
    /// The first token that it computes.
    pub from: usize,
    /// The output of the step that is the sequence's next token, if it has one.
    pub output: Option<usize>,
}

/// How a sequence ended, as its reader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    Failed,
}

/// More end tokens than any model has with those of a request.
const MAX_ENDS: usize = 256;

/// Preempted this many times, a sequence is preempted only if no other can be.
const MAX_PREEMPTIONS: u32 = 3;

impl Sequence {
    /// A sequence that starts now. `cached`: tokens of the prompt in the cache.
    pub fn start(waiting: Waiting, context: usize) -> Sequence {
        let Waiting { number, request, grammar, sender, submitted, span } = waiting;
        let decoder = if request.show_control { TokenDecoder::with_control() } else { TokenDecoder::new() };
        Sequence {
            number,
            grammar,
            mask: None,
            sender,
            tokens: request.prompt.clone(),
            slot: 0,
            hash: 0,
            published: 0,
            text_state: None,
            preemptions: 0,
            flying: None,
            paused: None,
            lookup: Lookup::default(),
            draft: DraftRate::default(),
            decoder,
            stop: StopFilter::new(&request.stop),
            cached_tokens: 0,
            limit: request.limit(context),
            prompt_logprobs: request.prompt_logprobs.map(|_| None).into_iter().collect(),
            progress: 0,
            has_line_end: false,
            submitted,
            started: Instant::now(),
            first_token: None,
            span,
            request,
        }
    }

    /// Tells the reader that the request no longer waits.
    pub fn send_started(&mut self, cached_tokens: usize) {
        (self.cached_tokens, self.progress) = (cached_tokens, cached_tokens);
        let prompt_tokens = self.request.prompt.len();
        self.sender.send(Event::Started { prompt_tokens, cached_tokens, slot: self.slot });
    }

    /// Tells the reader that so many tokens are computed, if that is more of the prompt than before.
    pub fn send_progress(&mut self, computed: usize) {
        let computed = computed.min(self.request.prompt.len());
        if self.request.progress && computed > self.progress {
            self.progress = computed;
            self.sender.send(Event::Progress { computed });
        }
    }

    /// Sorts sequences by the order in which they run.
    pub fn order(&self) -> (i64, u64) {
        (-i64::from(self.request.priority), self.number)
    }

    /// Sorts sequences by the order in which they are preempted.
    pub fn preemption_order(&self) -> (bool, i64, std::cmp::Reverse<u64>) {
        let protected = self.preemptions >= MAX_PREEMPTIONS;
        (protected, i64::from(self.request.priority), std::cmp::Reverse(self.number))
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// Tokens that it can still generate.
    pub fn left(&self) -> usize {
        self.limit.0 - self.generated().min(self.limit.0)
    }

    /// Its tokens once the step in flight is finished.
    pub fn expected(&self) -> usize {
        self.tokens.len() + usize::from(self.flying.as_ref().is_some_and(|flying| flying.output.is_some()))
    }

    /// The output of the step in flight that a next step can take as input, unseen: the sequence goes on after it,
    /// unless the text happens to end there.
    pub fn next_output(&self) -> Option<usize> {
        let output = self.flying.as_ref()?.output?;
        (self.left() > 1).then_some(output)
    }

    /// The time at which it ends unfinished.
    pub fn deadline(&self) -> Option<Instant> {
        let whole = self.request.timeout.and_then(|timeout| self.submitted.checked_add(timeout));
        let line = || self.first_token?.checked_add(self.request.line_timeout?);
        let line = if self.has_line_end { line() } else { None };
        [whole, line].into_iter().flatten().min()
    }

    /// Whether the tokens of the prompt still need logits.
    pub fn wants_prompt_logprobs(&self) -> bool {
        self.request.prompt_logprobs.is_some() && self.prompt_logprobs.len() < self.request.prompt.len()
    }

    /// Whether its next token needs logits on the host. Otherwise the device can sample it.
    pub fn needs_logits(&self) -> bool {
        let r = &self.request;
        let entries = r.logit_bias.len() + RECENT + if self.is_early() { MAX_ENDS } else { 0 };
        r.logprobs.is_some() || self.wants_prompt_logprobs() || r.sampling.typical_p != 1.0 || entries > MAX_ENTRIES
    }

    /// Whether the logits are changed before its next token is sampled.
    pub fn changes_logits(&self) -> bool {
        let r = &self.request;
        !r.logit_bias.is_empty() || self.grammar.is_some() || self.is_early() || r.sampling.penalises()
    }

    /// Whether the host samples its next token, unless the device changes the logits too.
    pub fn chosen_by_host(&self) -> bool {
        let r = &self.request;
        self.changes_logits() || !r.sampling.fits_device() || (r.sampled_probabilities && r.logprobs.is_some())
    }

    /// Whether the text may not end yet.
    fn is_early(&self) -> bool {
        self.generated() < self.request.min_tokens
    }

    /// Whether [`Sequence::find_mask`] has something to do.
    pub fn has_constraint(&self) -> bool {
        self.grammar.is_some()
    }

    /// Finds the tokens that the constraint allows next.
    pub fn find_mask(&mut self) {
        self.mask = self.grammar.as_mut().map(Grammar::bits);
    }

    /// What the device is to change in the logits of its next token.
    pub fn change(&self, model: &Model) -> Change {
        let (r, vocab) = (&self.request, model.config().vocab);
        let mut entries: BTreeMap<u32, TokenChange> = BTreeMap::new();
        let mut change = |id: u32, change: &dyn Fn(&mut TokenChange)| {
            if (id as usize) < vocab {
                change(entries.entry(id).or_insert(TokenChange::none(id)));
            }
        };
        for (id, bias) in &r.logit_bias {
            change(*id, &|entry| entry.bias += bias);
        }
        if self.is_early() {
            r.ends(model).for_each(|id| change(id, &|entry| entry.bias = f32::NEG_INFINITY));
        }
        if r.sampling.penalises() {
            let mut recent = self.tokens[self.tokens.len().saturating_sub(RECENT)..].to_vec();
            recent.sort_unstable();
            for same in recent.chunk_by(|a, b| a == b) {
                let less = r.sampling.presence_penalty + same.len() as f32 * r.sampling.frequency_penalty;
                change(same[0], &|entry| (entry.repeat, entry.less) = (r.sampling.repeat_penalty, less));
            }
        }
        let mask = self.mask.as_ref().and_then(|mask| mask.as_ref().ok());
        Change { entries: entries.into_values().collect(), mask: mask.cloned() }
    }

    /// Takes the logits of tokens of the prompt from `start` on.
    pub fn take_prompt(&mut self, start: usize, rows: std::slice::Chunks<'_, f32>, tokenizer: Option<&Tokenizer>) {
        if !self.wants_prompt_logprobs() {
            return;
        }
        for (row, next) in rows.zip(start + 1..self.request.prompt.len()) {
            if next == self.prompt_logprobs.len() {
                let top = self.request.prompt_logprobs.unwrap_or(0);
                self.prompt_logprobs.push(Some(logprobs(row, self.request.prompt[next], top, tokenizer)));
            }
        }
        if !self.wants_prompt_logprobs() {
            self.sender.send(Event::Prompt { logprobs: self.prompt_logprobs.clone() });
        }
    }

    /// Takes the result for the last token: the device's choice, or else the logits. Returns how the sequence ended, if
    /// it did.
    pub fn take(
        &mut self,
        chosen: Option<u32>,
        logits: Option<&[f32]>,
        model: &Model,
        sampler: &mut Sampler,
    ) -> Option<End> {
        if self.limit.0 == 0 {
            return Some(self.finish(self.limit_reason(), None));
        }
        let id = match self.choose(chosen, logits, model, sampler) {
            Ok(id) => id,
            Err(failure) => return Some(self.fail(failure)),
        };
        self.first_token.get_or_insert_with(Instant::now);
        let tokenizer = model.tokenizer().ok();
        let early = self.is_early();
        self.tokens.push(id);
        if !early && self.is_end(id, model) {
            return Some(self.finish_after(None, Finish::EndOfText, None, Some(id)));
        }
        let complete = match self.grammar.as_mut().map(|grammar| grammar.take(id)) {
            Some(Err(reason)) => return Some(self.fail(Failure::Constraint { reason })),
            Some(Ok(complete)) => complete,
            None => false,
        };
        let logprobs = match (self.request.logprobs, logits) {
            (Some(top), _) if self.request.sampled_probabilities => {
                vec![drawn(&sampler.distribution(), id, top, tokenizer)]
            }
            (Some(top), Some(logits)) => vec![logprobs(logits, id, top, tokenizer)],
            _ => Vec::new(),
        };
        let text = tokenizer.map(|t| self.decoder.push(t, id)).unwrap_or_default();
        let (text, stop) = if early { (text.into(), None) } else { self.stop.push(text) };
        self.has_line_end |= text.contains('\n');
        let token = Event::Token { ids: vec![id], text, logprobs };
        let reason = match () {
            () if stop.is_some() => Finish::Stop,
            () if complete => Finish::EndOfText,
            () if self.generated() >= self.limit.0 => self.limit_reason(),
            () => {
                self.sender.send(token);
                return None;
            }
        };
        Some(self.finish_after(Some(token), reason, stop, None))
    }

    fn is_end(&self, id: u32, model: &Model) -> bool {
        let of_model = model.end_tokens().contains(&id) || model.tokenizer().is_ok_and(|t| t.is_end(id));
        // A grammar allows them only where the text is complete.
        let ends = !self.request.ignore_end || self.grammar.is_some();
        (of_model && ends) || self.request.stop_tokens.contains(&id)
    }

    fn limit_reason(&self) -> Finish {
        if self.limit.1 { Finish::ContextFull } else { Finish::MaxTokens }
    }

    fn choose(
        &mut self,
        chosen: Option<u32>,
        logits: Option<&[f32]>,
        model: &Model,
        sampler: &mut Sampler,
    ) -> Result<u32, Failure> {
        let position = self.tokens.len() as u64;
        let fail = |e: LlmError| Failure::Step { reason: e.to_string() };
        let invalid = || fail(LlmError::Logits { position, reason: NO_TOKEN.into() });
        if let Some(Err(reason)) = self.mask.take() {
            return Err(Failure::Constraint { reason });
        }
        if let Some(id) = chosen {
            return if (id as usize) < model.config().vocab { Ok(id) } else { Err(invalid()) };
        }
        let Some(logits) = logits else { return Err(invalid()) };
        sampler.set_config(self.request.sampling);
        let early = self.is_early();
        if self.request.logit_bias.is_empty() && self.grammar.is_none() && !early {
            return sampler.sample_after(logits, &self.tokens, position).map_err(fail);
        }
        let mut changed = logits.to_vec();
        for (id, bias) in &self.request.logit_bias {
            if let Some(logit) = changed.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if early {
            for id in self.request.ends(model) {
                if let Some(logit) = changed.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let none_left = |logits: &[f32]| logits.iter().all(|logit| *logit == f32::NEG_INFINITY);
        if none_left(&changed) && !none_left(logits) {
            return Err(Failure::NoToken);
        }
        let Some(grammar) = &mut self.grammar else {
            return sampler.sample_after(&changed, &self.tokens, position).map_err(fail);
        };
        grammar.mask(&mut changed).map_err(|reason| Failure::Constraint { reason })?;
        if none_left(&changed) {
            let reason = "no token fulfils both it and the request's biases".into();
            return Err(Failure::Constraint { reason });
        }
        sampler.sample_after(&changed, &self.tokens, position).map_err(fail)
    }

    /// Ends the text. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self, reason: Finish, stop: Option<String>) -> End {
        self.finish_after(None, reason, stop, None)
    }

    /// As [`Sequence::finish`], with the last token or the token that ends the text.
    fn finish_after(
        &mut self,
        token: Option<Event>,
        mut reason: Finish,
        mut stop: Option<String>,
        end: Option<u32>,
    ) -> End {
        let mut events = Vec::from_iter(token);
        if stop.is_none() {
            let (mut text, found) = self.stop.push(self.decoder.finish());
            match found {
                Some(_) => (reason, stop) = (Finish::Stop, found),
                None => text += &self.stop.finish(),
            }
            if !text.is_empty() {
                events.push(Event::Token { ids: Vec::new(), text, logprobs: Vec::new() });
            }
        }
        self.record();
        let (usage, timings) = (self.usage(), self.timings());
        events.push(Event::Finished { reason, stop, end, usage, timings });
        self.sender.send_all(events);
        End::Finished
    }

    pub fn fail(&mut self, failure: Failure) -> End {
        self.record();
        self.sender.send(Event::Failed(failure));
        End::Failed
    }

    /// Adds what is known at the end to the span.
    fn record(&self) {
        let Usage { cached_tokens, generated_tokens, .. } = self.usage();
        self.span.record("cached_tokens", cached_tokens).record("generated_tokens", generated_tokens);
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated(),
        }
    }

    fn timings(&self) -> Timings {
        let since = |from: Instant, to: Instant| to.saturating_duration_since(from);
        let now = Instant::now();
        Timings {
            queued: since(self.submitted, self.started),
            prompt: since(self.started, self.first_token.unwrap_or(now)),
            decode: self.first_token.map_or(Duration::ZERO, |first| since(first, now)),
        }
    }
}
