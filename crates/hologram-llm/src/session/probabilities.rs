//! Log-probabilities on the device: of the tokens chosen in a step and of the most probable ones in their places, so
//! that the host reads a few numbers of each row instead of its logits.

use hologram_backends::DType;
use hologram_core::ops::Reduction;
use hologram_core::{Dim, Executor, Graph, NodeId, Plan, Tensor};

use super::Session;
use super::changes::{along, broadcast};
use crate::engine::MAX_TOP_LOGPROBS;
use crate::error::Result;

/// Most probable tokens of a row.
pub(super) fn top(vocab: usize) -> usize {
    MAX_TOP_LOGPROBS.min(vocab)
}

/// Numbers of a row: how many tokens come before the chosen one, then the log-probabilities of the chosen and of the
/// most probable tokens.
fn numbers(vocab: usize) -> usize {
    top(vocab) + 2
}

/// Adds the outputs `top` (`u32 [rows, top]`, the most probable tokens) and `probabilities` (`f32 [rows, numbers]`) for
/// logits `x` (`f32 [rows, vocab]`) and the tokens `chosen` (`u32 [rows]`). Equal logits rank by token.
///
/// With `x` relative to its greatest element m, the logarithm of a probability is (x − m) − ln Σ exp(x − m).
pub(super) fn add_outputs(g: &mut Graph, x: NodeId, chosen: NodeId, (rows, vocab): (usize, usize)) -> Result<()> {
    let (one, all) = ([Dim::Fixed(rows), Dim::Fixed(1)], [Dim::Fixed(rows), Dim::Fixed(vocab)]);
    let (greatest, top) = g.top_k(x, top(vocab))?;
    let max = g.slice(greatest, 1, 0, 1)?;
    let of_all = g.broadcast_to(max, &all)?;
    let below = g.sub(x, of_all)?;
    let share = g.exp(below)?;
    let sum = g.reduce(share, Reduction::Sum, 1)?;
    let log_sum = g.log(sum)?;
    // A row without a token to choose has any numbers.
    let last = broadcast(g, DType::U32, vocab.saturating_sub(1) as f64, &[Dim::Fixed(rows)])?;
    let chosen = g.minimum(chosen, last)?;
    let chosen = g.reshape(chosen, &one)?;
    let own = g.take_along(x, chosen, 1)?;
    let before = {
        let (own, chosen) = (g.broadcast_to(own, &all)?, g.broadcast_to(chosen, &all)?);
        let token = along(g, rows, vocab)?;
        let (above, equal, early) = (g.gt(x, own)?, g.eq(x, own)?, g.lt(token, chosen)?);
        let tie = g.and(equal, early)?;
        let before = g.or(above, tie)?;
        // Exact in f32 for vocabularies of up to 2^24 tokens, in any order.
        let before = g.cast(before, DType::F32)?;
        let count = g.reduce(before, Reduction::Sum, 1)?;
        g.reshape(count, &one)?
    };
    let logits = g.cat(&[own, greatest], 1)?;
    let wide = [Dim::Fixed(rows), Dim::Fixed(numbers(vocab) - 1)];
    let log_sum = g.reshape(log_sum, &one)?;
    let (max, log_sum) = (g.broadcast_to(max, &wide)?, g.broadcast_to(log_sum, &wide)?);
    let logits = g.sub(logits, max)?;
    let logprobs = g.sub(logits, log_sum)?;
    let numbers = g.cat(&[before, logprobs], 1)?;
    g.output("top", top)?;
    Ok(g.output("probabilities", numbers)?)
}

/// What a plan with [`add_outputs`] gave, in memory of its own: the plan's is used again by the next step.
pub(super) struct Kept {
    top: Tensor,
    numbers: Tensor,
}

impl Kept {
    /// Memory for up to `rows` rows.
    pub fn new(executor: &Executor, rows: usize, vocab: usize) -> Result<Kept> {
        Ok(Kept {
            top: Tensor::zeros(executor, DType::U32, &[rows, top(vocab)])?,
            numbers: Tensor::zeros(executor, DType::F32, &[rows, numbers(vocab)])?,
        })
    }

    /// Copies what a plan gave for its first `rows` rows.
    pub fn keep(&self, plan: &Plan, rows: usize, vocab: usize) -> Result<()> {
        plan.copy_output("top", &self.top, 0, rows * top(vocab))?;
        Ok(plan.copy_output("probabilities", &self.numbers, 0, rows * numbers(vocab))?)
    }
}

/// The host's copy for the step finished last; empty if it has none.
#[derive(Default)]
pub(super) struct Read {
    top: Vec<u32>,
    numbers: Vec<f32>,
}

impl Read {
    pub fn clear(&mut self) {
        self.top.clear();
        self.numbers.clear();
    }

    pub fn read(&mut self, kept: &Kept, rows: usize, vocab: usize) -> Result<()> {
        self.top.resize(rows * top(vocab), 0);
        self.numbers.resize(rows * numbers(vocab), 0.0);
        kept.top.read_into(&mut self.top)?;
        Ok(kept.numbers.read_into(&mut self.numbers)?)
    }
}

/// Log-probabilities of an output of a step, of its logits before they are changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probabilities<'a> {
    /// How many tokens rank before the chosen one.
    pub before: usize,
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, the best first, and theirs.
    pub top: &'a [u32],
    pub logprobs: &'a [f32],
}

impl Session {
    /// Those of an output of the step finished last, if [`Session::sample_begun`] was to have them.
    pub(crate) fn probabilities(&self, output: usize) -> Option<Probabilities<'_>> {
        let (vocab, read) = (self.vocab(), &self.sampling.read);
        let row = read.numbers.chunks_exact(numbers(vocab)).nth(output)?;
        let [before, chosen, logprobs @ ..] = row else { return None };
        let top = read.top.chunks_exact(top(vocab)).nth(output)?;
        Some(Probabilities { before: *before as usize, chosen: *chosen, top, logprobs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::logprobs;
    use crate::session::typical::tests::logits;

    /// The numbers are the host's: ranks and tokens to the last, also of equal logits.
    #[test]
    fn probabilities_are_the_hosts() {
        let executor = Executor::open("cpu", Some(2)).unwrap();
        for (rows, vocab) in [(1, 1), (7, 77), (33, 5000), (2, 70_000)] {
            let logits = logits(rows, vocab);
            // Every kind of token: the best, some, and one that does not exist.
            let chosen: Vec<u32> =
                (0..rows).map(|row| [0, vocab as u32 - 1, (row * 37 % vocab) as u32][row % 3]).collect();
            let mut g = Graph::new();
            let x = Tensor::from_slice(&executor, &[rows, vocab], &logits).unwrap();
            let x = g.state(&x).unwrap();
            let tokens = g.input("tokens", DType::U32, &[Dim::Fixed(rows)]).unwrap();
            add_outputs(&mut g, x, tokens, (rows, vocab)).unwrap();
            let mut plan = g.compile(&executor, &[]).unwrap();
            plan.write("tokens", &chosen).unwrap();
            plan.run().unwrap();
            let (kept, mut read) = (Kept::new(&executor, rows + 2, vocab).unwrap(), Read::default());
            kept.keep(&plan, rows, vocab).unwrap();
            read.read(&kept, rows, vocab).unwrap();
            for (row, logits) in logits.chunks(vocab).enumerate() {
                let want = logprobs(logits, chosen[row], MAX_TOP_LOGPROBS, None);
                let numbers = &read.numbers[row * numbers(vocab)..][..numbers(vocab)];
                let tops = &read.top[row * top(vocab)..][..top(vocab)];
                let what = format!("row {row} of {rows} × {vocab}");
                assert_eq!(numbers[0] as usize + 1, want.token.rank, "{what}");
                assert_eq!(tops, want.top.iter().map(|t| t.id).collect::<Vec<_>>(), "{what}");
                for (got, want) in numbers[1..].iter().zip([&want.token].into_iter().chain(&want.top)) {
                    assert!(*got == want.logprob || (got - want.logprob).abs() < 1e-5, "{what}: {got}, {want:?}");
                }
            }
            // A row without a token does not stop the others.
            plan.write("tokens", &vec![u32::MAX; rows]).unwrap();
            plan.run().unwrap();
            kept.keep(&plan, rows, vocab).unwrap();
            read.read(&kept, rows, vocab).unwrap();
            assert_eq!(read.numbers.len(), rows * numbers(vocab));
        }
    }
}
