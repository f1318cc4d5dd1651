//! The engine's thread: it owns the session, and plans and runs its steps.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{LlmError, Result};
use crate::generate::Finish;
use crate::kv::{BLOCK_SIZE, Prefix, PrefixHasher};
use crate::model::Model;
use crate::sampling::{Sampler, SamplerConfig};
use crate::session::{Logits, Session, SessionOptions};

use super::draft::{Draft, Wanted};
use super::events::Failure;
use super::options::EngineOptions;
use super::queue::Phase;
use super::request::Request;
use super::sequence::{End, Sequence};
use super::speculate::{Guesses, MAX_GUESSES, Pace, Speculation};
use super::stats::EngineStats;
use super::step::{Flight, Item};
use super::{Shared, lock};

/// A text that ended in a slot.
pub(super) struct Last {
    pub tenant: Option<String>,
    pub tokens: Vec<u32>,
}

pub(super) struct Worker {
    pub model: Arc<Model>,
    pub options: EngineOptions,
    pub shared: Arc<Shared>,
    pub session: Session,
    pub hasher: PrefixHasher,
    /// Sequences in slots of the session, in the order in which they run.
    pub running: Vec<Sequence>,
    /// Sequences that wait for blocks to be computed again, in the same order.
    preempted: Vec<Sequence>,
    /// Free slots.
    slots: Vec<usize>,
    /// The last text that ended in each slot.
    pub last: Vec<Option<Last>>,
    /// The next step.
    pub step: Vec<Item>,
    /// The steps submitted and not finished, the oldest first.
    pub flights: VecDeque<Flight>,
    /// Steps submitted.
    pub submitted: u64,
    /// When the last span of time ended that is counted.
    pub mark: Instant,
    pub sampler: Sampler,
    /// Threads that find the masks of constraints.
    pub mask_threads: usize,
    pub stats: EngineStats,
    draft: Option<Draft>,
    pub pace: Pace,
    /// Steps that failed one after the other.
    pub failures: u32,
}

/// The engine stops after this many failed steps one after the other.
const MAX_FAILURES: u32 = 3;

/// With [`EngineOptions::deterministic`], most tokens of the pieces that prompts are computed in, each by itself.
const MAX_PIECE: usize = 256;

/// Maximum tokens of a piece of a prompt whose logits all go to the host.
const MAX_LOGITS: usize = 128;

/// Tokens of a step with texts and prompts, if one of the texts is long, and if one of the prompts is, so that the texts
/// wait less; and the most sequences for which that holds. On GPUs such steps read prompts as fast as larger ones,
/// because texts alone leave arithmetic unused: an 8B on an H200 serves 32 and 64 users at the same rate, and the first
/// token comes in less than half the time. Beside long texts, whose attention takes longer, steps of 512 made others wait
/// for more than three times the median; for short ones 384 is slower (benches/history/2026-11-28.md).
const BESIDE: usize = 512;
const BESIDE_LONG_TEXTS: usize = 384;
const BESIDE_LONG_PROMPTS: usize = 256;
const MOST_BESIDE: usize = 96;

impl Worker {
    pub fn new(
        model: Arc<Model>,
        options: EngineOptions,
        blocks: usize,
        shared: Arc<Shared>,
        draft: Option<&Model>,
    ) -> Result<Worker> {
        let batch = if options.deterministic { 2 * options.step_tokens.max(MAX_PIECE) } else { options.step_tokens };
        let of_session = SessionOptions {
            context: options.context,
            batch: Some(batch),
            sequences: options.max_sequences,
            kv: options.kv,
            device_sampling: options.device_sampling,
            blocks: Some(blocks),
            saved_states: if options.prefix_cache { options.saved_states() } else { 0 },
        };
        let mut session = model.session(of_session)?;
        let mut options = options;
        if session.cache().has_states() {
            // A wrong guess would cost the state: the sequence would be computed again from its first token.
            let asked = if draft.is_some() { Some("draft") } else { None };
            let fixed = matches!(options.speculation, Speculation::Fixed(_)).then_some("speculation");
            if let Some(option) = asked.or(fixed) {
                let reason = "is for models without recurrent layers, whose state cannot be taken back".into();
                return Err(LlmError::Option { option, reason });
            }
            options.speculation = Speculation::Off;
        }
        let draft = draft.map(|draft| Draft::new(draft, &model, of_session)).transpose()?;
        if options.deterministic {
            session.separate_steps();
        }
        let stats = EngineStats { blocks_total: blocks, block_tokens: BLOCK_SIZE, ..EngineStats::default() };
        *lock(&shared.stats) = stats;
        Ok(Worker {
            slots: (0..options.max_sequences).rev().collect(),
            last: (0..options.max_sequences).map(|_| None).collect(),
            sampler: Sampler::new(SamplerConfig::GREEDY)?,
            mask_threads: std::thread::available_parallelism().map_or(1, |n| n.get().min(8)),
            hasher: PrefixHasher::new(),
            running: Vec::new(),
            preempted: Vec::new(),
            step: Vec::new(),
            flights: VecDeque::new(),
            submitted: 0,
            mark: Instant::now(),
            failures: 0,
            draft,
            pace: Pace::default(),
            model,
            options,
            shared,
            session,
            stats,
        })
    }

    /// Serves until the engine is dropped or fails. Requests that are left then fail.
    pub fn run(mut self) {
        // A panic is a bug, but its victims should hear of it instead of waiting forever.
        let _ = catch_unwind(AssertUnwindSafe(|| self.serve()));
        self.shared.queue.enter(Phase::Stopped);
        self.shared.queue.clear();
        self.running.clear();
        self.preempted.clear();
        self.report();
    }

    fn serve(&mut self) {
        while self.shared.queue.phase() < Phase::Stopping && self.failures < MAX_FAILURES {
            for job in self.shared.queue.take_jobs() {
                self.finish_all();
                job(self);
            }
            self.sweep();
            self.admit();
            while !self.plan() {
                // What the steps in flight give may be missing, or the blocks of sequences that end with them.
                if !self.flights.is_empty() {
                    self.finish_all();
                } else if self.running.len() > 1 {
                    self.preempt();
                } else {
                    break;
                }
            }
            if !self.step.is_empty() {
                self.advance();
                self.report();
            } else if !self.flights.is_empty() {
                self.finish_all();
            } else if !self.fail_stuck() {
                self.report();
                self.shared.queue.bell.wait(self.time_to_wait());
                self.mark = Instant::now();
            }
        }
        self.finish_all();
    }

    /// Fails a sequence that could run but for which even the whole cache has no block. The options exclude that.
    fn fail_stuck(&mut self) -> bool {
        let Some(at) = self.running.iter().position(|s| s.paused.is_none()) else { return false };
        let reason = "the KV cache has no block for the sequence".into();
        let end = self.running[at].fail(Failure::Step { reason });
        self.stats.count(end);
        self.end(at);
        true
    }

    /// Publishes the counters.
    fn report(&mut self) {
        let stats = self.count();
        *lock(&self.shared.stats) = stats;
    }

    /// The counters now.
    pub fn count(&mut self) -> EngineStats {
        self.stats.running = self.running.len();
        self.stats.waiting = self.preempted.len();
        self.shared.queue.set_started(self.running.len() + self.preempted.len());
        self.stats.blocks_used = self.stats.blocks_total - self.session.cache().available_blocks();
        self.stats
    }

    /// How long nothing happens unless the bell rings.
    fn time_to_wait(&self) -> Option<Duration> {
        let slow = |s: &Sequence| s.paused?.checked_add(self.options.slow_reader);
        let running = self.running.iter().flat_map(|s| [s.deadline(), slow(s)]).flatten();
        let next = running.chain(self.shared.queue.next_deadline()).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Ends sequences that are cancelled, late or not read.
    fn sweep(&mut self) {
        let (cancelled, expired) = self.shared.queue.sweep();
        self.stats.cancelled += cancelled;
        self.stats.failed += expired;
        for at in (0..self.running.len()).rev() {
            if Worker::is_over(&mut self.running[at], &self.options, &mut self.stats) {
                self.end(at);
            }
        }
        let (options, stats) = (&self.options, &mut self.stats);
        self.preempted.retain_mut(|s| !Worker::is_over(s, options, stats));
    }

    /// Whether a sequence ends before its next step.
    fn is_over(s: &mut Sequence, options: &EngineOptions, stats: &mut EngineStats) -> bool {
        if s.sender.is_cancelled() {
            stats.cancelled += 1;
            return true;
        }
        let now = Instant::now();
        if s.deadline().is_some_and(|deadline| now >= deadline) {
            stats.count(s.finish(Finish::Deadline, None));
            return true;
        }
        s.paused = s.sender.is_full().then(|| s.paused.unwrap_or(now));
        let paused = s.paused.map_or(Duration::ZERO, |since| now - since);
        let slow = s.paused.is_some() && paused >= options.slow_reader;
        if slow {
            stats.count(s.fail(Failure::SlowReader { paused }));
        }
        slow
    }

    /// Takes a sequence out of its slot and frees its blocks.
    fn remove(&mut self, at: usize) -> Sequence {
        let sequence = self.running.remove(at);
        self.session.truncate(sequence.slot, 0);
        self.slots.push(sequence.slot);
        sequence
    }

    /// Removes a sequence that has ended.
    pub fn end(&mut self, at: usize) {
        let s = &self.running[at];
        // What a step in flight adds is not there yet, or not part of the text.
        self.session.truncate(s.slot, self.computed(s));
        // Of a failed step the cache may hold less than what was published.
        let rest = self.options.prefix_cache && !self.options.deterministic;
        if rest && s.published == self.session.len(s.slot) / BLOCK_SIZE {
            self.session.publish_rest(s.slot, self.hasher.rest(s.hash));
        }
        let Sequence { slot, tokens, request, .. } = self.remove(at);
        self.last[slot] = Some(Last { tenant: request.tenant, tokens });
    }

    /// Starts requests while there are slots, blocks, and work for their prompts in the next step.
    fn admit(&mut self) {
        while let Some(slot) = self.slots.last().copied() {
            let share = self.prompt_share();
            let pending: usize = self.running.iter().map(|s| self.pending(s).min(share)).sum();
            if pending >= self.options.step_tokens {
                return;
            }
            let Some((mut sequence, prefix)) = self.next() else { return };
            let wanted = sequence.request.slot.filter(|wanted| self.slots.contains(wanted));
            let slot = wanted.unwrap_or(slot);
            self.slots.retain(|free| *free != slot);
            sequence.slot = slot;
            sequence.hash = prefix.hash;
            sequence.published = prefix.tokens() / BLOCK_SIZE;
            self.session.adopt(slot, &prefix, &sequence.tokens);
            if sequence.preemptions == 0 {
                self.stats.prompt_tokens += sequence.tokens.len() as u64;
                if self.options.prefix_cache {
                    self.stats.prefix_queries += sequence.tokens.len() as u64;
                    self.stats.prefix_hits += prefix.tokens() as u64;
                }
                sequence.send_started(prefix.tokens());
            }
            let at = self.running.partition_point(|s| s.order() < sequence.order());
            self.running.insert(at, sequence);
        }
    }

    /// Takes the sequence to start next, if its blocks are available, with what the cache holds of it.
    fn next(&mut self) -> Option<(Sequence, Prefix)> {
        let mut found = None;
        let preempted = self.preempted.first().map(|s| s.request.priority);
        let waiting = self.shared.queue.take_next(preempted, |request| {
            found = self.fit(&request.prompt, request);
            found.is_some()
        });
        if let Some(waiting) = waiting {
            return Some((Sequence::start(waiting, self.options.context), found?));
        }
        let first = self.preempted.first()?;
        let prefix = self.fit(&first.tokens, &first.request)?;
        Some((self.preempted.remove(0), prefix))
    }

    /// What the cache holds of these tokens, if there are blocks for the rest and for what the running sequences still
    /// have to compute, with one token more for each; and if none of those is just computing more of the same.
    fn fit(&self, tokens: &[u32], request: &Request) -> Option<Prefix> {
        let cache = self.session.cache();
        // All logits of a prompt are wanted only if nothing of it is reused.
        let reuses = self.options.prefix_cache && request.reuse && request.prompt_logprobs.is_none();
        let reused = if reuses { tokens } else { &[] };
        let find = |tokens: &[u32]| cache.find_prefix(&self.hasher, request.tenant.as_deref(), tokens);
        let (mut prefix, unit) = (find(reused), self.unit());
        while self.options.deterministic && !prefix.tokens().is_multiple_of(unit) {
            prefix = find(&reused[..prefix.tokens() / unit * unit + 1]);
        }
        let blocks = |tokens: usize| (tokens + 1).div_ceil(BLOCK_SIZE);
        let own = blocks(tokens.len()) - prefix.tokens() / BLOCK_SIZE + prefix.idle;
        let rest = |s: &Sequence| blocks(s.expected()).saturating_sub(cache.blocks_of(s.slot));
        let others: usize = self.running.iter().map(rest).sum();
        let soon = |s: &Sequence| {
            let shared = s.tokens.iter().zip(reused).take_while(|(a, b)| a == b).count();
            // The last token of a prompt is never reused.
            let shared = shared.min(reused.len().saturating_sub(1)) / unit * unit;
            shared > prefix.tokens().max(self.computed(s))
        };
        let goes_on = |s: &Sequence| s.paused.is_none() && s.tokens.len() - self.computed(s) > 1;
        let same = |s: &&Sequence| s.request.tenant == request.tenant && goes_on(s);
        // The states of recurrent layers exist only where they are saved.
        if !cache.has_states() && self.running.iter().filter(same).any(soon) {
            return None;
        }
        (self.running.is_empty() || own + others <= cache.available_blocks()).then_some(prefix)
    }

    /// Makes the least important sequence give up its blocks.
    fn preempt(&mut self) {
        let all = self.running.iter().enumerate().skip(1);
        let Some((at, _)) = all.min_by_key(|(_, s)| s.preemption_order()) else { return };
        let mut sequence = self.remove(at);
        sequence.preemptions += 1;
        sequence.paused = None;
        self.stats.preemptions += 1;
        let at = self.preempted.partition_point(|s| s.order() < sequence.order());
        self.preempted.insert(at, sequence);
    }

    /// The tokens of a sequence that no step computes yet.
    fn pending(&self, s: &Sequence) -> usize {
        s.tokens.len().saturating_sub(self.session.len(s.slot))
    }

    /// The tokens of a sequence that finished steps have computed.
    fn computed(&self, s: &Sequence) -> usize {
        s.flying.as_ref().map_or(self.session.len(s.slot), |flying| flying.from)
    }

    /// The unit in which computed tokens are reused. With `deterministic` that is a piece of a prompt: prompts are
    /// computed from one multiple of it to the next, so that a piece has the same bits whether those before it were
    /// computed now or earlier.
    pub fn unit(&self) -> usize {
        match self.options.deterministic {
            true => (self.prompt_share().min(MAX_PIECE) / BLOCK_SIZE).max(1) * BLOCK_SIZE,
            false => BLOCK_SIZE,
        }
    }

    /// With `deterministic`, the end of the part of a sequence from `from` on that is computed by itself: it depends on
    /// nothing but the prompt. From there on tokens are computed one by one, in any number at a time.
    fn end_of_piece(&self, s: &Sequence, from: usize) -> Option<usize> {
        let (unit, prompt) = (self.unit(), s.request.prompt.len());
        let unit = if s.request.prompt_logprobs.is_some() { unit.min(MAX_LOGITS) } else { unit };
        (self.options.deterministic && from < prompt).then_some(prompt.min((from / unit + 1) * unit))
    }

    /// Whether tokens of a sequence from `from` on are inputs of their own.
    pub fn is_text(&self, s: &Sequence, from: usize) -> bool {
        self.options.deterministic && from >= s.request.prompt.len()
    }

    /// Maximum tokens of one prompt in a step while others have to be computed.
    fn prompt_share(&self) -> usize {
        (self.options.step_tokens / 2).max(1)
    }

    /// Plans the next step: a token of each sequence that generates text, then pieces of prompts in order. What a step
    /// takes of long prompts is bounded by the time that the texts wait for it, and beside texts, if they are at least as
    /// many as the prompts, a step has [`BESIDE`] tokens at most, and fewer beside long ones. Returns false if blocks are
    /// missing, or the results of the step in flight.
    fn plan(&mut self) -> bool {
        self.step.clear();
        let mut room = self.session.cache().available_blocks();
        let mut budget = self.options.step_tokens;
        let ready = |s: &Sequence| s.paused.is_none();
        let prompts = self.running.iter().filter(|s| ready(s) && self.pending(s) > 1).count();
        // A deterministic prompt has its pieces at fixed places.
        let is_long = |pending: usize| pending > self.options.step_tokens / 2 && !self.options.deterministic;
        let mut has_piece = false;
        let mut long = budget;
        for single in [true, false] {
            if let (false, texts @ 1..) = (single, self.step.len()) {
                long = budget.min(self.pace.piece(self.options.step_tokens, texts));
                let any_long =
                    |length: &dyn Fn(&Sequence) -> usize| self.running.iter().any(|s| ready(s) && is_long(length(s)));
                let most = if any_long(&|s| self.pending(s)) {
                    BESIDE_LONG_PROMPTS
                } else if any_long(&|s| self.session.len(s.slot)) {
                    BESIDE_LONG_TEXTS
                } else {
                    BESIDE
                };
                if texts >= prompts && texts + prompts <= MOST_BESIDE && !self.options.deterministic {
                    budget = budget.min(most.saturating_sub(texts));
                }
            }
            for (at, s) in self.running.iter().enumerate().filter(|(_, s)| ready(s)) {
                let (mut pending, from) = (self.pending(s), self.session.len(s.slot));
                let next = if pending == 0 { s.next_output() } else { None };
                if next.is_some() {
                    pending = 1;
                }
                let is_long = is_long(pending);
                let budget_here = if is_long { budget.min(long) } else { budget };
                if pending == 0 || (pending == 1) != single || budget_here == 0 {
                    continue;
                }
                let share = if prompts > 1 { self.prompt_share() } else { budget };
                let all = s.wants_prompt_logprobs();
                let last_block = from.next_multiple_of(BLOCK_SIZE) - from;
                let most = share.min(budget_here).min(if all { MAX_LOGITS } else { budget });
                let mut count = pending.min(most).min(last_block + room * BLOCK_SIZE);
                // A step ends with the prompt's last whole block, so that its state can be saved.
                let whole_blocks = s.request.prompt.len().saturating_sub(1) / BLOCK_SIZE * BLOCK_SIZE;
                let ends_block = self.options.prefix_cache && self.session.cache().has_states() && whole_blocks > from;
                if let (Some(end), false) = (self.end_of_piece(s, from), single) {
                    // A piece is never cut: the first of a step may be larger than the step, the others wait.
                    let whole = if ends_block { end.min(whole_blocks) } else { end } - from;
                    let fits = whole <= last_block + room * BLOCK_SIZE && (whole <= budget || !has_piece);
                    (count, has_piece) = (if fits { whole } else { 0 }, has_piece || fits);
                } else if ends_block {
                    count = count.min(whole_blocks - from);
                }
                if count == 0 {
                    if single {
                        return false;
                    }
                    continue;
                }
                room -= (count - count.min(last_block)).div_ceil(BLOCK_SIZE);
                budget = budget.saturating_sub(count);
                long = long.saturating_sub(if is_long { count } else { 0 });
                let logits = match (all, count == pending) {
                    (true, _) => Logits::All,
                    (false, true) => Logits::Last,
                    (false, false) => Logits::None,
                };
                let order = s.order();
                self.step.push(Item { at, order, from, count, logits, next, guessed: Vec::new(), drafted: false });
            }
        }
        if prompts == 0 {
            return self.guess(budget, room);
        }
        !self.step.is_empty()
    }

    /// Adds guesses to a step that has a token of each sequence, as far as tokens and blocks are left. Returns false if
    /// guesses pay but the last tokens are not known yet.
    fn guess(&mut self, mut budget: usize, mut room: usize) -> bool {
        let fixed = match self.options.speculation {
            Speculation::Off => return true,
            Speculation::Auto => None,
            Speculation::Fixed(n) => Some(n.min(MAX_GUESSES)),
        };
        let mut all: Vec<(Guesses, usize)> = Vec::new();
        for item in &self.step {
            let s = &mut self.running[item.at];
            s.lookup.observe(&s.tokens, s.request.prompt.len());
            let most = if s.request.speculate { fixed.unwrap_or(MAX_GUESSES) } else { 0 };
            let most = most.min(s.left().saturating_sub(1));
            let mut guesses = s.lookup.guess(&s.tokens, most);
            if guesses.tokens.is_empty() && self.draft.is_some() {
                guesses.chances = if fixed.is_some() { vec![1.0; most] } else { s.draft.chances(most) };
            }
            all.push((guesses, most));
        }
        let chances = |drafted: bool| -> Vec<&[f64]> {
            all.iter().map(|(g, _)| g).filter(|g| g.tokens.is_empty() == drafted).map(|g| &g.chances[..]).collect()
        };
        let depth = match fixed {
            Some(n) => all.iter().map(|(_, most)| *most).max().unwrap_or(0).min(n),
            None => self.pace.depth(&chances(false), &chances(true), self.step.len()),
        };
        if !self.flights.is_empty() {
            return depth == 0;
        }
        let mut to_draft = Vec::new();
        for (index, (item, (mut guesses, most))) in self.step.iter_mut().zip(all).enumerate() {
            let last_block = (item.from + 1).next_multiple_of(BLOCK_SIZE) - (item.from + 1);
            let count = guesses.chances.len().min(depth).min(most).min(budget).min(last_block + room * BLOCK_SIZE);
            budget -= count;
            room -= (count - count.min(last_block)).div_ceil(BLOCK_SIZE);
            guesses.tokens.truncate(count);
            if guesses.tokens.is_empty() {
                to_draft.extend((count > 0).then_some((index, count)));
            } else {
                guesses.tokens.insert(0, self.running[item.at].tokens[item.from]);
                item.guessed = guesses.tokens;
            }
        }
        self.guess_by_draft(&to_draft);
        true
    }

    /// Adds the draft model's guesses to items of the step: their indices and how many each gets.
    fn guess_by_draft(&mut self, items: &[(usize, usize)]) {
        let (Some(draft), false) = (&mut self.draft, items.is_empty()) else { return };
        let started = Instant::now();
        let wanted = |(index, most): &(usize, usize)| {
            let s = &self.running[self.step[*index].at];
            Wanted { slot: s.slot, tokens: &s.tokens, sampling: s.request.sampling, most: *most }
        };
        let wanted: Vec<Wanted<'_>> = items.iter().map(wanted).collect();
        match draft.guess(&wanted) {
            Ok((guesses, rounds)) => {
                self.pace.measure_draft(rounds, started.elapsed().as_secs_f64());
                for ((index, _), mut guesses) in items.iter().zip(guesses) {
                    let item = &mut self.step[*index];
                    if !guesses.is_empty() {
                        guesses.insert(0, self.running[item.at].tokens[item.from]);
                        (item.guessed, item.drafted) = (guesses, true);
                    }
                }
            }
            // The model itself needs no draft.
            Err(_) => self.draft = None,
        }
    }
}

impl EngineStats {
    pub(super) fn count(&mut self, end: End) {
        match end {
            End::Finished => self.finished += 1,
            End::Failed => self.failed += 1,
        }
    }
}
