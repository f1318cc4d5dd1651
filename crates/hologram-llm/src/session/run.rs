//! Runs of steps: input tokens in pieces of the batch, their places in the cache, and what the plans read and write.

use std::collections::HashSet;
use std::collections::hash_map::Entry;

use hologram_core::Event;

use super::flight::{self, NEXT, Next};
use super::parts::Part;
use super::{Growth, Output, Session, StepPlan};
use crate::error::{LlmError, Result};
use crate::models::decoder::{Bucket, Results};

/// Plans of this many tokens may suppose that each has a sequence of its own, if there are as many sequences.
const FEW: usize = 33;

/// Positions that the tokens of a step read in common with the next token of their sequence, from which on it pays to
/// read them once. An H200 reads as many rows of an 8B's layer, 256 MB, in some 60 us, and kernels that read them once
/// take up to 30 us longer.
const MUCH_SHARED: usize = 1 << 16;

impl Session {
    /// Computes the input tokens.
    pub(super) fn run(&mut self, output: Output<'_>) -> Result<()> {
        self.scratch.filled = 0;
        self.scratch.chosen.clear();
        self.add_lost();
        self.check(&[])?;
        let (count, batch) = (self.scratch.input.len(), self.batch);
        for start in (0..count).step_by(batch) {
            let step = start..(start + batch).min(count);
            let last = step.end == count;
            let outputs = {
                let wanted = &self.scratch.wanted;
                wanted.partition_point(|at| *at < step.start)..wanted.partition_point(|at| *at < step.end)
            };
            let wait = last && outputs.is_empty();
            let requested = outputs.len();
            let done = self.step(Part::of(step, outputs), output, &[]).and_then(|(bucket, _)| match wait {
                true => Ok(self.executor.backend().synchronize()?),
                false => self.collect(bucket, requested),
            });
            if let Err(e) = done {
                self.undo_run();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Puts tokens whose state is lost before the input tokens of their sequences.
    pub(super) fn add_lost(&mut self) {
        let lost = |s: usize| self.cached.get(s).is_some_and(|cached| self.cache.len(s) < cached.len());
        if !self.cache.has_states() || !self.scratch.input.iter().any(|(sequence, _)| lost(*sequence)) {
            return;
        }
        let s = &mut self.scratch;
        let (given, wanted) = (std::mem::take(&mut s.input), std::mem::take(&mut s.wanted));
        let (mut done, mut wanted) = (HashSet::new(), wanted.into_iter().peekable());
        for (at, (sequence, token)) in given.into_iter().enumerate() {
            if lost(sequence) && done.insert(sequence) {
                let tokens = self.cached[sequence][self.cache.len(sequence)..].iter();
                s.input.extend(tokens.map(|token| (sequence, *token)));
            }
            if wanted.next_if_eq(&at).is_some() {
                s.wanted.push(s.input.len());
            }
            s.input.push((sequence, token));
        }
    }

    /// Checks the input tokens and counts how the sequences grow. `next`: those that the device has chosen.
    pub(super) fn check(&mut self, next: &[Next]) -> Result<()> {
        if self.decoder.config.bidirectional {
            return Err(LlmError::Encoder { path: self.decoder.config.name.clone().into() });
        }
        let (sequences, vocab, context) = (self.cache.max_sequences(), self.vocab(), self.context());
        let growth = &mut self.scratch.growth;
        growth.clear();
        let now = |s: usize| Growth { len: self.cached[s].len(), computed: self.cache.len(s), added: 0 };
        growth.extend((0..sequences).map(now));
        for (sequence, token) in &self.scratch.input {
            let Some(growth) = growth.get_mut(*sequence) else {
                let reason = format!("{sequence} does not exist; there are {sequences}, counted from 0");
                return Err(LlmError::Option { option: "sequence", reason });
            };
            let chosen = *token == NEXT && next.iter().any(|next| next.sequence == *sequence);
            if *token as usize >= vocab && !chosen {
                let reason = format!("must be below {vocab}, the size of the vocabulary, but one is {token}");
                return Err(LlmError::Option { option: "tokens", reason });
            }
            growth.added += 1;
            if growth.computed + growth.added > context {
                return Err(LlmError::ContextFull { context });
            }
        }
        Ok(())
    }

    /// Submits a run of the graph: appends the part's tokens and computes its outputs. `next` are the input tokens that
    /// the device has chosen in the step before. Returns the plan's bucket and the end of the run.
    pub(super) fn step(&mut self, part: Part, output: Output<'_>, next: &[Next]) -> Result<(Bucket, Event)> {
        let Part { tokens: range, outputs: wanted, independent } = part;
        let requested = wanted.len();
        // Sums are over all tokens of a plan.
        let exact = matches!(output, Output::Sums);
        let (tokens, outputs) = match independent {
            true => (self.independent_tokens(), self.independent_tokens()),
            false if exact => (range.len(), self.bucket_size(requested)),
            false => (self.bucket_size(range.len()), self.bucket_size(requested)),
        };
        let s = &mut self.scratch;
        if self.cache.has_states() {
            // Layers with states take the tokens of a sequence as one run.
            let order = by_sequence(&mut s.input[range.clone()]);
            for at in &mut s.wanted[wanted.clone()] {
                *at = range.start + order[*at - range.start];
            }
        }
        let input = &s.input[range.clone()];
        for list in [&mut s.ids, &mut s.positions, &mut s.sequences, &mut s.slots, &mut s.rows] {
            list.clear();
        }
        for (sequence, token) in input {
            s.ids.push(if *token == NEXT { 0 } else { *token });
            s.sequences.push(*sequence as u32);
            s.positions.push(self.cache.len(*sequence) as u32);
            s.slots.push(self.cache.append(*sequence)?);
            // Tokens that are computed again are there already.
            if self.cached[*sequence].len() < self.cache.len(*sequence) {
                self.cached[*sequence].push(*token);
            }
        }
        let followed = input.windows(2).zip(&s.positions).filter(|(pair, _)| pair[0].0 == pair[1].0);
        let shared = || followed.map(|(_, position)| *position as usize + 1).sum::<usize>();
        let pieces = !independent && (FEW..=self.cache.max_sequences()).contains(&tokens) && shared() > MUCH_SHARED;
        s.runs.clear();
        s.token_runs.clear();
        let mut first = 0;
        for run in input.chunk_by(|(a, _), (b, _)| a == b) {
            let Some([from, to]) = self.cache.step_state(run[0].0) else { break };
            s.token_runs.extend(run.iter().map(|_| (s.runs.len() / 4) as u32));
            s.runs.extend([first as u32, run.len() as u32, from, to]);
            first += run.len();
        }
        s.rows.extend(s.wanted[wanted.clone()].iter().map(|at| (at - range.start) as u32));

        let _feed = tracing::trace_span!("feed", tokens = range.len(), outputs = requested).entered();
        let results = match output {
            Output::Tokens(_) if requested > 0 => Results::Tokens,
            Output::Both(_) if requested > 0 => Results::Both,
            Output::Hidden => Results::Hidden,
            Output::Sums => Results::Sums,
            _ => Results::Logits,
        };
        let (decoder, backend, precision) = (&self.decoder, self.executor.backend(), self.precision);
        let prefers_fixed = || decoder.prefers_fixed(&**backend, tokens, precision);
        let full = exact
            || input.len() == tokens
                && !independent
                && *self.prefers_fixed.entry((tokens, precision)).or_insert_with(prefers_fixed);
        let bucket = Bucket { tokens, full, outputs, results, precision, independent, pieces };
        self.last = Some(bucket);
        let StepPlan { plan, table } = match self.plans.entry(bucket) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => {
                let (graph, names) = self.decoder.graph_with_sums(&self.executor, &self.cache, bucket)?;
                if exact {
                    self.sum_names = names;
                }
                e.insert(StepPlan { plan: graph.compile(&self.executor, &[])?, table: 0 })
            }
        };
        plan.write("ids", &s.ids)?;
        plan.write("positions", &s.positions)?;
        plan.write("sequences", &s.sequences)?;
        plan.write("slots", &s.slots)?;
        plan.write("rows", &s.rows)?;
        for (first, blocks) in self.cache.table_changes(table) {
            plan.write_at("block_table", first, blocks)?;
        }
        if !full {
            plan.set_extent("tokens", input.len())?;
        }
        if !s.runs.is_empty() {
            plan.write("runs", &s.runs)?;
            plan.write("token_runs", &s.token_runs)?;
            plan.set_extent("runs", s.runs.len() / 4)?;
        }
        plan.set_extent("outputs", requested)?;
        if let (true, Output::Tokens(configs) | Output::Both(configs)) = (results.has_tokens(), output) {
            s.numbers.clear();
            s.words.clear();
            for (row, at) in s.rows.iter().zip(wanted) {
                let Some(config) = configs.get(at).or(configs.last()) else { continue };
                let (numbers, words) = config.row(u64::from(s.positions[*row as usize]) + 1);
                s.numbers.extend(numbers);
                s.words.extend(words);
            }
            plan.write("sampling_numbers", &s.numbers)?;
            plan.write("sampling_words", &s.words)?;
        }
        if let (Some(chosen), false) = (&self.chosen, next.is_empty()) {
            let place = self.flights.back().map_or(0, |flight| flight.place);
            flight::write_next(plan, input, next, &chosen[place].next)?;
        }
        Ok((bucket, plan.submit()?))
    }

    /// Waits for a run of a plan and stores its outputs behind those stored.
    pub(super) fn collect(&mut self, bucket: Bucket, requested: usize) -> Result<()> {
        let (results, s) = (bucket.results, &mut self.scratch);
        let Some(StepPlan { plan, .. }) = self.plans.get(&bucket) else { return Ok(()) };
        if results.has_tokens() {
            let from = s.chosen.len();
            s.chosen.resize(from + requested, 0);
            plan.read_into("chosen", &mut s.chosen[from..])?;
        }
        self.collect_rows(bucket, requested)
    }

    /// As [`Session::collect`], of logits and hidden states alone.
    pub(super) fn collect_rows(&mut self, bucket: Bucket, requested: usize) -> Result<()> {
        let s = &mut self.scratch;
        let Some(StepPlan { plan, .. }) = self.plans.get(&bucket) else { return Ok(()) };
        if let Some((name, width)) = bucket.results.rows(&self.decoder.config).filter(|_| requested > 0) {
            let end = s.filled + requested * width;
            // Not cleared between calls: that would write half a megabyte per token.
            s.logits.resize(end.max(s.logits.len()), 0.0);
            plan.read_into(name, &mut s.logits[s.filled..end])?;
            s.filled = end;
        }
        Ok(())
    }
}

/// Sorts tokens by sequence, those of each in their order. Returns the new place of each.
pub(super) fn by_sequence(input: &mut [(usize, u32)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..input.len()).collect();
    order.sort_by_key(|at| input[*at].0);
    let sorted: Vec<(usize, u32)> = order.iter().map(|at| input[*at]).collect();
    input.copy_from_slice(&sorted);
    let mut places = vec![0; order.len()];
    order.into_iter().enumerate().for_each(|(place, at)| places[at] = place);
    places
}
