//! Steps whose results do not depend on what is computed beside them: each prompt's piece is computed by itself, and
//! the single tokens of texts in runs whose kernels give each token the same bits whatever the others are.

use std::ops::Range;

use super::changes::GatheredLogits;
use super::flight::{Flight, Gives, Next, Unknown};
use super::{Input, Logits, Output, Session};
use crate::error::Result;

/// What one run of a plan computes of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The step's input tokens.
    pub tokens: Range<usize>,
    /// The step's outputs.
    pub outputs: Range<usize>,
    /// Whether each token is the only input of its own; see [`Bucket`](crate::models::decoder::Bucket).
    pub independent: bool,
}

impl Part {
    /// Tokens that are computed together.
    pub fn of(tokens: Range<usize>, outputs: Range<usize>) -> Part {
        Part { tokens, outputs, independent: false }
    }
}

/// The parts of a step. An input of several tokens is a part of its own. Inputs of one token share parts of up to
/// `most` tokens; with `apart` no two of a sequence do.
fn parts(inputs: &[Input<'_>], most: usize, apart: bool) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let (mut tokens, mut outputs, mut first) = (0, 0, 0);
    for (at, input) in inputs.iter().enumerate() {
        let count = input.tokens.len();
        let (ends, end) = (tokens + count, outputs + input.logits.of(count));
        let again = |first: usize| apart && inputs[first..at].iter().any(|other| other.sequence == input.sequence);
        match parts.last_mut().filter(|part| part.independent && count == 1) {
            Some(part) if part.tokens.len() < most && !again(first) => {
                (part.tokens.end, part.outputs.end) = (ends, end);
            }
            _ if count == 0 => {}
            _ => {
                first = at;
                parts.push(Part { tokens: tokens..ends, outputs: outputs..end, independent: count == 1 });
            }
        }
        (tokens, outputs) = (ends, end);
    }
    parts
}

impl Logits {
    /// How many of `count` tokens get logits.
    fn of(self, count: usize) -> usize {
        match self {
            Logits::None => 0,
            Logits::Last => count.min(1),
            Logits::All => count,
        }
    }
}

impl Session {
    /// Makes the results of [`Session::begin`] independent of what else a step computes: a token's bits depend only on
    /// its sequence and on which input it came with. Inputs of several tokens are computed one after the other.
    pub(crate) fn separate_steps(&mut self) {
        self.separate = true;
    }

    /// Tokens of a plan for single tokens, whatever their number.
    pub(super) fn independent_tokens(&self) -> usize {
        self.executor.backend().policy().independent_tokens.max(1)
    }

    /// As [`Session::begin`], in parts whose logits are gathered. The inputs are set and checked.
    pub(super) fn begin_parts(
        &mut self,
        inputs: &[Input<'_>],
        next: &[Next],
        gives: Gives<'_>,
        unknown: Unknown,
    ) -> Result<()> {
        let outputs = self.scratch.wanted.len();
        let place = self.flights.back().map_or(0, |before| 1 - before.place);
        let of = GatheredLogits { rows: self.bucket_size(outputs), place };
        let mut positions = Vec::with_capacity(outputs);
        let mut last = None;
        for part in parts(inputs, self.independent_tokens(), self.cache.has_states()) {
            let run = self.step(part.clone(), Output::Logits, next);
            let run = run.and_then(|run| self.gather(&part, of).map(|()| run));
            match run {
                Ok(run) => last = Some(run),
                Err(e) => {
                    self.undo_run();
                    return Err(e);
                }
            }
            let s = &self.scratch;
            positions.extend(s.rows.iter().map(|row| s.positions.get(*row as usize).copied().unwrap_or(0)));
        }
        let Some((bucket, event)) = last else { return Ok(()) };
        let growth = std::mem::take(&mut self.scratch.growth);
        let configs = match gives {
            Gives::Tokens(configs) | Gives::Both(configs) if self.device_sampling => Some(configs),
            _ => None,
        };
        let reads = matches!(gives, Gives::Both(_)) || !self.device_sampling;
        self.flights.push_back(Flight {
            growth,
            bucket,
            rows: of.rows,
            outputs,
            positions,
            event,
            sampled: false,
            probabilities: false,
            gathered: Some(reads),
            place,
            unknown,
        });
        let sampled = match configs.filter(|_| outputs > 0) {
            Some(configs) => self.submit_sampling(configs, &[], false),
            None => Ok(()),
        };
        if sampled.is_err()
            && let Some(flight) = self.flights.pop_back()
        {
            self.undo(&flight.growth);
        }
        sampled
    }

    /// Copies the logits of the part submitted last to their rows of a step's.
    fn gather(&mut self, part: &Part, of: GatheredLogits) -> Result<()> {
        let (vocab, rows) = (self.vocab(), part.outputs.clone());
        let Some(step) = self.last.and_then(|bucket| self.plans.get(&bucket)).filter(|_| !rows.is_empty()) else {
            return Ok(());
        };
        let logits = self.sampling.logits_of(&self.executor, of, vocab)?;
        Ok(step.plan.copy_output("logits", &logits, rows.start * vocab, rows.len() * vocab)?)
    }

    /// Reads the logits of a step that gathered them.
    pub(super) fn read_gathered(&mut self, flight: &Flight) -> Result<()> {
        let (s, len) = (&mut self.scratch, flight.outputs * self.decoder.config.vocab);
        let Some(logits) = self.sampling.logits.get(&flight.logits()) else { return Ok(()) };
        s.logits.resize(len.max(s.logits.len()), 0.0);
        logits.read_into(&mut s.logits[..len])?;
        s.filled = len;
        Ok(())
    }
}
