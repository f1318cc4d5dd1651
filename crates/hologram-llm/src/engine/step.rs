//! A step of the engine: its submission, and what its results change.
//!
//! With [`EngineOptions::overlap`](super::EngineOptions::overlap) the step after it is submitted first, of the tokens
//! that the device itself has chosen: the device has work while the host turns tokens into text. A sequence whose text
//! then turns out to have ended, or whose request was dropped, is in that step for nothing: its extra token is left out
//! and its blocks are free at once, because the device works in order.
//!
//! Where logits are changed before a token is sampled, a step is submitted in two parts. While the device computes the
//! logits, the host takes the token before, and finds out what its constraint, penalties and biases change; then it
//! submits the sampling. Steps whose logits the host needs are finished before the next is submitted.

use std::time::Instant;

use crate::error::LlmError;
use crate::kv::BLOCK_SIZE;
use crate::sampling::SamplerConfig;
use crate::session::{Change, Gives, Input, Logits, NEXT, Next};

use super::events::Failure;
use super::lock;
use super::sequence::{Flying, Sequence};
use super::worker::Worker;

/// A sequence's part of a step.
pub(super) struct Item {
    /// The sequence's index in `running` when the step is planned, and its [`order`](super::sequence::Sequence::order).
    pub at: usize,
    pub order: (i64, u64),
    /// The first token to compute.
    pub from: usize,
    pub count: usize,
    pub logits: Logits,
    /// The output of the step in flight that is the token to compute, if that is not known yet.
    pub next: Option<usize>,
    /// The last token and guesses at those that follow; empty without guesses.
    pub guessed: Vec<u32>,
    /// Whether the guesses are the draft model's.
    pub drafted: bool,
}

impl Item {
    fn outputs(&self) -> usize {
        match self.logits {
            _ if !self.guessed.is_empty() => self.guessed.len(),
            Logits::None => 0,
            Logits::Last => 1,
            Logits::All => self.count,
        }
    }
}

/// Masks that one thread finds before a second one pays.
const MASKS_PER_THREAD: usize = 4;

/// A step that is submitted.
pub(super) struct Flight {
    number: u64,
    items: Vec<Item>,
    started: Instant,
    /// Whether logits are changed before the device samples.
    late: bool,
}

/// How a step was begun.
struct Begun {
    /// Whether the host needs its results before the next.
    wait: bool,
    late: bool,
}

impl Worker {
    /// Submits the planned step and takes the results of the one before; and its own, if the host needs them.
    pub fn advance(&mut self) {
        if self.flights.is_empty() {
            self.stats.host_time += self.mark.elapsed();
            self.mark = Instant::now();
        }
        let (items, started) = (std::mem::take(&mut self.step), Instant::now());
        match self.begin(&items) {
            Ok(Begun { wait, late }) => {
                self.submitted += 1;
                let number = self.submitted;
                let mut row = 0;
                for item in &items {
                    row += item.outputs();
                    let s = &mut self.running[item.at];
                    let complete = item.outputs() > 0 && item.from + item.count == s.expected();
                    s.flying = Some(Flying { step: number, from: item.from, output: complete.then(|| row - 1) });
                }
                self.flights.push_back(Flight { number, items, started, late });
                while self.flights.len() > 1 {
                    self.finish();
                }
                // It is gone if the one before has failed.
                if let Some(flight) = self.flights.pop_back() {
                    match if late { self.sample(&flight.items) } else { Ok(()) } {
                        Ok(()) => self.flights.push_back(flight),
                        Err(e) => {
                            self.running.iter_mut().for_each(|s| s.flying = None);
                            self.fail(&flight.items, &e);
                        }
                    }
                }
                if wait {
                    self.finish_all();
                }
            }
            Err(e) => {
                // Those in flight have results all the same.
                self.finish_all();
                self.fail(&items, &e);
            }
        }
    }

    /// Takes the results of all steps in flight.
    pub fn finish_all(&mut self) {
        while !self.flights.is_empty() {
            self.finish();
        }
    }

    /// Submits a step, or its first part.
    fn begin(&mut self, items: &[Item]) -> Result<Begun, LlmError> {
        let running = &self.running;
        let mut inputs = Vec::with_capacity(items.len());
        for item in items {
            let s = &running[item.at];
            let (tokens, logits) = match (item.next, item.guessed.is_empty()) {
                (Some(_), _) => (&[NEXT][..], item.logits),
                (None, true) => (&s.tokens[item.from..item.from + item.count], item.logits),
                (None, false) => (&item.guessed[..], Logits::All),
            };
            let apart = self.is_text(s, item.from) || self.options.deterministic && !item.guessed.is_empty();
            let most = if apart { 1 } else { tokens.len() };
            let mut left = tokens.len();
            inputs.extend(tokens.chunks(most.max(1)).map(|tokens| {
                left -= tokens.len();
                let logits = if logits == Logits::Last && left > 0 { Logits::None } else { logits };
                Input { sequence: s.slot, tokens, logits }
            }));
        }
        let next = |item: &Item| Some(Next { sequence: running[item.at].slot, output: item.next? });
        let next: Vec<Next> = items.iter().filter_map(next).collect();
        let mut configs = Vec::with_capacity(items.len());
        let (mut wants_logits, mut changes) = (false, false);
        for item in items.iter().filter(|item| item.outputs() > 0) {
            let s = &running[item.at];
            wants_logits |= s.needs_logits();
            changes |= s.changes_logits();
            configs.extend(std::iter::repeat_n(s.request.sampling, item.outputs()));
        }
        let tokens = inputs.iter().map(|input| input.tokens.len() as u64).sum::<u64>();
        self.stats.steps += 1;
        self.stats.step_sequences += inputs.len() as u64;
        self.stats.step_tokens += tokens;
        let span = tracing::trace_span!("step", sequences = items.len(), tokens).entered();
        if !span.is_disabled() {
            for item in items {
                span.follows_from(&running[item.at].span);
            }
        }
        let guesses = items.iter().any(|item| !item.guessed.is_empty());
        let late = changes && !wants_logits && !guesses && self.session.chooses();
        let gives = match (late, wants_logits || changes) {
            (true, _) => Gives::Later,
            (false, true) => Gives::Both(&configs),
            (false, false) => Gives::Tokens(&configs),
        };
        self.session.begin(&inputs, &next, gives)?;
        self.stats.overlapped_steps += u64::from(!self.flights.is_empty());
        let by_host = wants_logits || guesses || !self.session.chooses();
        Ok(Begun { wait: !self.options.overlap || by_host, late })
    }

    /// Submits the second part of the step begun last: each sequence's token is sampled as its text now demands.
    fn sample(&mut self, items: &[Item]) -> Result<(), LlmError> {
        let of = |item: &Item, running: &[Sequence]| {
            let at = running.binary_search_by_key(&item.order, |s| s.order()).ok()?;
            (item.from + item.count == running[at].tokens.len()).then_some(at)
        };
        let with_output = || items.iter().filter(|item| item.outputs() > 0);
        let mut wanting = vec![false; self.running.len()];
        with_output().filter_map(|item| of(item, &self.running)).for_each(|at| wanting[at] = true);
        let wanting = self.running.iter_mut().zip(wanting).filter(|(s, wanting)| *wanting && s.has_constraint());
        let mut wanting: Vec<&mut Sequence> = wanting.map(|(s, _)| s).collect();
        let share = wanting.len().div_ceil(self.mask_threads).max(MASKS_PER_THREAD);
        if wanting.len() > share {
            std::thread::scope(|scope| {
                for part in wanting.chunks_mut(share) {
                    scope.spawn(|| part.iter_mut().for_each(|s| s.find_mask()));
                }
            });
        } else {
            wanting.iter_mut().for_each(|s| s.find_mask());
        }
        // The output of a cancelled request is sampled and not used.
        let how = with_output().map(|item| match of(item, &self.running) {
            Some(at) => (self.running[at].request.sampling, self.running[at].change(&self.model)),
            None => (SamplerConfig::GREEDY, Change::default()),
        });
        let (configs, changes): (Vec<_>, Vec<_>) = how.unzip();
        self.session.sample_begun(&configs, &changes)
    }

    /// Fails the sequences of a step.
    fn fail(&mut self, items: &[Item], e: &LlmError) {
        self.failures += 1;
        let shared = self.shared.clone();
        let mut published = lock(&shared.stats);
        for item in items.iter().rev() {
            if let Ok(at) = self.running.binary_search_by_key(&item.order, |s| s.order()) {
                let end = self.running[at].fail(Failure::Step { reason: e.to_string() });
                self.stats.count(end);
                self.end(at);
            }
        }
        *published = self.count();
    }

    /// Waits for the oldest step in flight and takes its results.
    fn finish(&mut self) {
        let Some(flight) = self.flights.pop_front() else { return };
        let Flight { number, items, started, late } = flight;
        let finished = self.session.finish();
        let (began, now) = (started.max(self.mark), Instant::now());
        self.stats.step_time += now - self.mark;
        self.mark = now;
        if let Err(e) = finished {
            // The later ones are undone: what was in them is computed again.
            self.flights.clear();
            self.running.iter_mut().for_each(|s| s.flying = None);
            return self.fail(&items, &e);
        }
        let rows = self.session.results();
        let seconds = (now - began).as_secs_f64();
        let pieces = || items.iter().filter(|item| item.guessed.is_empty() && item.count > 1);
        if pieces().next().is_none() {
            let tokens = items.iter().map(|item| item.guessed.len().max(1)).sum();
            self.pace.measure(tokens, seconds);
        }
        let beside = pieces().count() < items.len();
        self.pace.measure_piece(pieces().map(|item| item.count).sum(), beside, seconds);
        // Who has read an event finds it counted.
        let shared = self.shared.clone();
        let mut published = lock(&shared.stats);
        self.failures = 0;
        let (vocab, tokenizer) = (self.model.config().vocab, self.model.tokenizer().ok());
        let (mut next, mut lengths, mut ended) = (0, Vec::new(), Vec::new());
        for item in &items {
            let row = next;
            next += item.outputs();
            // It may have ended since.
            let Ok(at) = self.running.binary_search_by_key(&item.order, |s| s.order()) else { continue };
            let s = &mut self.running[at];
            s.flying.take_if(|flying| flying.step == number);
            s.send_progress(item.from + item.count);
            if item.outputs() == 0 {
                continue;
            }
            let of_item = rows.logits.get(row * vocab..next * vocab);
            if let (Logits::All, Some(logits)) = (item.logits, of_item) {
                s.take_prompt(item.from, logits.chunks(vocab), tokenizer);
            }
            if item.from + item.count != s.tokens.len() {
                continue;
            }
            let before = s.generated();
            // Without guesses the last output counts, else all of them in order.
            let first = if item.guessed.is_empty() { next - 1 } else { row };
            for output in first..next {
                let mut logits = rows.logits.get(output * vocab..(output + 1) * vocab);
                let mut chosen = rows.chosen.get(output).copied().filter(|_| late || !s.chosen_by_host());
                // The host finds out why the device found no token.
                let own = chosen.filter(|id| late && *id as usize >= vocab);
                let own = own.and_then(|_| self.session.sampled_logits(output).ok());
                if let Some(own) = &own {
                    (chosen, logits) = (None, Some(&own[..]));
                }
                if let Some(end) = s.take(chosen, logits, &self.model, &mut self.sampler) {
                    self.stats.count(end);
                    ended.push(item.order);
                    break;
                }
                // The next output is the model's only if it has seen its own choice.
                if item.guessed.get(output - first + 1) != s.tokens.last() {
                    break;
                }
            }
            let generated = s.generated() - before;
            self.stats.generated_tokens += generated as u64;
            if let Some(guesses @ 1..) = item.guessed.len().checked_sub(1) {
                let right = generated.saturating_sub(1).min(guesses);
                self.stats.guesses += 1;
                self.stats.guessed_tokens += guesses as u64;
                self.stats.accepted_tokens += right as u64;
                if item.drafted {
                    s.draft.observe(guesses, right);
                }
                lengths.push((s.slot, s.tokens.len() - 1));
            }
        }
        for (slot, len) in lengths {
            self.session.truncate(slot, len);
        }
        self.publish(&items);
        for order in ended {
            if let Ok(at) = self.running.binary_search_by_key(&order, |s| s.order()) {
                self.end(at);
            }
        }
        *published = self.count();
    }

    /// Lets others find the blocks that a step has filled.
    fn publish(&mut self, items: &[Item]) {
        if !self.options.prefix_cache {
            return;
        }
        let unit = self.unit();
        for item in items {
            let Ok(at) = self.running.binary_search_by_key(&item.order, |s| s.order()) else { continue };
            let s = &mut self.running[at];
            // Of guesses those that came true count.
            let computed = if item.guessed.is_empty() { item.from + item.count } else { self.session.len(s.slot) };
            let computed = computed.min(s.tokens.len());
            // Tokens that were generated one by one have other bits than those of a prompt.
            let whole = match self.options.deterministic {
                // Its pieces may be shorter.
                true if s.request.prompt_logprobs.is_some() => 0,
                true => computed.min(s.request.prompt.len() / unit * unit),
                false => computed,
            };
            while let Some(tokens) = s.tokens[..whole].chunks_exact(BLOCK_SIZE).nth(s.published) {
                s.hash = self.hasher.next(s.hash, tokens);
                self.session.publish(s.slot, s.published, s.hash);
                s.published += 1;
            }
            if computed == s.published * BLOCK_SIZE {
                self.session.save_state(s.slot, s.hash, computed);
                // Of the text only the latest is kept: the next turn of a conversation goes on from it.
                if computed >= s.request.prompt.len()
                    && let Some(before) = s.text_state.replace(s.hash).filter(|before| *before != s.hash)
                {
                    self.session.forget_state(before);
                }
            }
        }
    }
}
