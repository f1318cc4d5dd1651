//! Steps that are submitted before the results of the step before are known: the device takes the tokens that it has
//! chosen itself.

use hologram_backends::DType;
use hologram_core::{Event, Executor, Graph, Plan, Tensor};

use super::changes::GatheredLogits;
use super::parts::Part;
use super::{Growth, Input, Output, Session, StepPlan};
use crate::error::{LlmError, Result};
use crate::models::decoder::Bucket;
use crate::sampling::SamplerConfig;

/// In the inputs of [`Session::begin`]: the token that the step before chooses.
pub(crate) const NEXT: u32 = u32::MAX;

/// A sequence whose input is [`NEXT`], and the output of the step before that is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub sequence: usize,
    pub output: usize,
}

/// What a step that is begun gives.
#[derive(Clone, Copy)]
pub(crate) enum Gives<'a> {
    /// Tokens, or logits if the device does not sample.
    Tokens(&'a [SamplerConfig]),
    /// Logits, and tokens if the device samples.
    Both(&'a [SamplerConfig]),
    /// Tokens, once [`Session::sample_begun`] has said how.
    Later,
}

/// What the device chose in a step, in memory of its own: the plan's is used again by the next step.
pub(super) struct Chosen {
    /// The tokens as sampled.
    tokens: Tensor,
    /// Those to go on with, which are in the vocabulary even if there was none to choose.
    pub next: Tensor,
    /// Makes these of those. It is no part of the step's plan, because other steps need no such tokens.
    within: Plan,
}

impl Chosen {
    /// Copies what a plan has chosen.
    pub fn keep(&mut self, plan: &Plan, outputs: usize) -> Result<()> {
        plan.copy_output("chosen", &self.tokens, 0, outputs)?;
        self.within.run()?;
        Ok(self.within.copy_output("next", &self.next, 0, outputs)?)
    }

    /// Memory for up to `most` tokens of a vocabulary.
    fn new(executor: &Executor, most: usize, vocab: usize) -> Result<Chosen> {
        let tensor = || Tensor::zeros(executor, DType::U32, &[most]);
        let (tokens, next) = (tensor()?, tensor()?);
        let mut g = Graph::new();
        let (chosen, last) =
            (g.state(&tokens)?, Tensor::from_slice(executor, &[1], &[vocab.saturating_sub(1) as u32])?);
        let last = g.constant(&last)?;
        let within = g.minimum(chosen, last)?;
        g.output("next", within)?;
        Ok(Chosen { tokens, next, within: g.compile(executor, &[])? })
    }
}

/// The places for what steps of up to `most` outputs choose, made at the first use.
pub(super) fn places<'a>(
    chosen: &'a mut Option<[Chosen; 2]>,
    executor: &Executor,
    most: usize,
    vocab: usize,
) -> Result<&'a mut [Chosen; 2]> {
    match chosen {
        Some(chosen) => Ok(chosen),
        none => {
            let chosen = || Chosen::new(executor, most, vocab);
            Ok(none.insert([chosen()?, chosen()?]))
        }
    }
}

/// A step whose results are not taken yet.
pub(super) struct Flight {
    pub growth: Vec<Growth>,
    /// The bucket of its plan, or of its last part's.
    pub bucket: Bucket,
    pub outputs: usize,
    /// The rows of its logits where they are sampled.
    pub rows: usize,
    /// The positions of the tokens with outputs.
    pub positions: Vec<u32>,
    pub event: Event,
    /// Whether its outputs are sampled apart.
    pub sampled: bool,
    /// Whether its log-probabilities are kept.
    pub probabilities: bool,
    /// If its parts' logits are gathered in memory of their own, whether the host reads them.
    pub gathered: Option<bool>,
    /// Where its choices are.
    pub place: usize,
    /// The cached tokens that are those of the step before.
    pub unknown: Unknown,
}

/// A sequence, the index of a cached token and the output that it is, for each.
pub(super) type Unknown = Vec<(usize, usize, usize)>;

impl Flight {
    /// The logits that it is sampled from.
    pub fn logits(&self) -> GatheredLogits {
        GatheredLogits { rows: self.rows, place: if self.gathered.is_some() { self.place } else { 0 } }
    }
}

impl Session {
    /// As [`Session::rows`], but only submits: [`Session::finish`] waits. A second step may be begun before the first
    /// is finished, if that gives tokens alone. `next` says which tokens [`NEXT`] stands for in the inputs.
    ///
    /// # Errors
    /// Those known at once, as of [`Session::feed_inputs`]; when there are more tokens than a step holds. The sequences
    /// are then unchanged.
    pub(crate) fn begin(&mut self, inputs: &[Input<'_>], next: &[Next], gives: Gives<'_>) -> Result<()> {
        self.set_inputs(inputs);
        self.add_lost();
        self.check(next)?;
        let (count, outputs) = (self.scratch.input.len(), self.scratch.wanted.len());
        if count > self.batch {
            let reason = format!("is {}, but the step has {count} tokens", self.batch);
            return Err(LlmError::Option { option: "batch", reason });
        }
        let unknown: Unknown =
            next.iter().map(|next| (next.sequence, self.cached[next.sequence].len(), next.output)).collect();
        let output = match gives {
            Gives::Tokens(configs) => self.output(configs, false),
            Gives::Both(configs) => self.output(configs, true),
            Gives::Later => Output::Logits,
        };
        if self.separate {
            return self.begin_parts(inputs, next, gives, unknown);
        }
        let begun = self.step(Part::of(0..count, 0..outputs), output, next);
        match begun.and_then(|(bucket, event)| Ok((bucket, event, self.keep_chosen(bucket, outputs)?))) {
            Ok((bucket, event, place)) => {
                let s = &mut self.scratch;
                let growth = std::mem::take(&mut s.growth);
                let position = |row: &u32| s.positions.get(*row as usize).copied().unwrap_or(0);
                let positions = s.rows.iter().map(position).collect();
                let (rows, sampled, gathered) = (bucket.outputs, false, None);
                self.flights.push_back(Flight {
                    growth,
                    bucket,
                    rows,
                    outputs,
                    positions,
                    event,
                    sampled,
                    probabilities: false,
                    gathered,
                    place,
                    unknown,
                });
                Ok(())
            }
            Err(e) => {
                self.undo_run();
                Err(e)
            }
        }
    }

    /// Whether steps with these outputs choose tokens that a next step can take: whether the device samples.
    pub(crate) fn chooses(&self) -> bool {
        self.device_sampling
    }

    /// Waits for the oldest step begun and takes its results, which [`Session::results`] then returns.
    ///
    /// # Errors
    /// Those of the device. All steps begun are then undone.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.scratch.filled = 0;
        self.scratch.chosen.clear();
        self.sampling.read.clear();
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        if let Err(e) = self.land(&flight) {
            self.flights.push_front(flight);
            self.abandon();
            return Err(e);
        }
        self.scratch.growth = flight.growth;
        for (sequence, index, output) in self.flights.front().iter().flat_map(|later| &later.unknown) {
            let token = self.cached.get_mut(*sequence).and_then(|cached| cached.get_mut(*index));
            if let (Some(token @ &mut NEXT), Some(chosen)) = (token, self.scratch.chosen.get(*output)) {
                *token = *chosen;
            }
        }
        Ok(())
    }

    /// Undoes all steps begun.
    pub(super) fn abandon(&mut self) {
        // They have to end before what they wrote counts as unwritten.
        let _ = self.executor.backend().synchronize();
        while let Some(flight) = self.flights.pop_back() {
            self.undo(&flight.growth);
        }
        // Their sequences may go on: tokens without a state have to be fed again.
        for (sequence, cached) in self.cached.iter_mut().enumerate() {
            cached.truncate(self.cache.len(sequence));
        }
    }

    fn land(&mut self, flight: &Flight) -> Result<()> {
        if flight.outputs == 0 {
            return Ok(flight.event.wait()?);
        }
        self.sampling.finished = flight.logits();
        if let (Some(chosen), true) = (&self.chosen, flight.sampled || flight.bucket.results.has_tokens()) {
            self.scratch.chosen.resize(flight.outputs, 0);
            chosen[flight.place].tokens.read_into(&mut self.scratch.chosen)?;
        }
        let s = &mut self.sampling;
        if let (Some(kept), true) = (&s.kept[flight.place], flight.probabilities) {
            s.read.read(kept, flight.outputs, self.decoder.config.vocab)?;
        }
        match flight.gathered {
            Some(true) => self.read_gathered(flight),
            Some(false) => Ok(()),
            None if flight.sampled => Ok(()),
            None => self.collect_rows(flight.bucket, flight.outputs),
        }
    }

    /// Puts what a step chooses where the next step leaves it. Returns the place.
    fn keep_chosen(&mut self, bucket: Bucket, outputs: usize) -> Result<usize> {
        let place = self.flights.back().map_or(0, |before| 1 - before.place);
        if outputs == 0 || !bucket.results.has_tokens() {
            return Ok(place);
        }
        let chosen = places(&mut self.chosen, &self.executor, self.batch, self.decoder.config.vocab)?;
        if let Some(StepPlan { plan, .. }) = self.plans.get(&bucket) {
            chosen[place].keep(plan, outputs)?;
        }
        Ok(place)
    }
}

/// Lets the device write the input tokens that are [`NEXT`], a copy for each run of consecutive ones.
pub(super) fn write_next(plan: &mut Plan, input: &[(usize, u32)], next: &[Next], chosen: &Tensor) -> Result<()> {
    let output = |(at, (sequence, token)): (usize, &(usize, u32))| {
        let next = next.iter().find(|next| *token == NEXT && next.sequence == *sequence)?;
        Some((at, next.output))
    };
    let copies: Vec<(usize, usize)> = input.iter().enumerate().filter_map(output).collect();
    for run in copies.chunk_by(|a, b| b.0 == a.0 + 1 && b.1 == a.1 + 1) {
        plan.write_from("ids", run[0].0, chosen, run[0].1, run.len())?;
    }
    Ok(())
}
