//! Sampling apart from the step that computes the logits: each row of logits is first changed, by biases, penalties and
//! the mask of a constraint, which the host finds while the device computes the step, and by typical sampling. The
//! logits before that give log-probabilities.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hologram_backends::DType;
use hologram_core::{Dim, Executor, Graph, NodeId, Plan, Tensor};

use super::{Session, probabilities, typical};
use crate::error::Result;
use crate::sampling::SamplerConfig;

/// Changes to a row of logits before sampling.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Change {
    /// One per token.
    pub entries: Vec<TokenChange>,
    /// A bit per token, the lowest first in each word: 0 forbids it.
    pub mask: Option<Vec<u32>>,
}

/// A change of one token's logit: `bias` is added; then, if that is positive, it is divided by `repeat`, else
/// multiplied; then `less` is subtracted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenChange {
    pub id: u32,
    pub bias: f32,
    pub repeat: f32,
    pub less: f32,
}

impl TokenChange {
    /// Changes nothing.
    pub fn none(id: u32) -> TokenChange {
        TokenChange { id, bias: 0.0, repeat: 1.0, less: 0.0 }
    }
}

/// Most entries of a row.
pub(crate) const MAX_ENTRIES: usize = 1024;

/// Logits in memory of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct GatheredLogits {
    pub rows: usize,
    /// The place of their step if the next step's are gathered before these are read, else 0.
    pub place: usize,
}

/// The sizes of a plan that samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    logits: GatheredLogits,
    /// Entries of each row; 0: no row has any.
    entries: usize,
    mask: bool,
    /// The candidates of typical sampling; 0: no row has it.
    candidates: usize,
    probabilities: bool,
}

/// The plans that sample, and what the steps leave for them.
#[derive(Default)]
pub(super) struct Sampling {
    plans: HashMap<Sizes, Plan>,
    /// Logits `[rows, vocabulary]`.
    pub logits: HashMap<GatheredLogits, Tensor>,
    /// Those of the step finished last.
    pub finished: GatheredLogits,
    /// The log-probabilities of the last two steps that have some, by place, and the host's of the step finished last.
    pub kept: [Option<probabilities::Kept>; 2],
    pub read: probabilities::Read,
    ids: Vec<u32>,
    /// The biases, factors and subtrahends of all entries.
    numbers: [Vec<f32>; 3],
    mask: Vec<u32>,
}

/// A row's words of a mask.
fn words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// The graph that samples from rows of logits.
///
/// Inputs: `sampling_numbers` and `sampling_words` as for [`Graph::sample`]; with entries `ids`, `biases`, `repeats`
/// and `less`, all `[rows, entries]`; with a mask `mask`, `u32 [rows, words]`; with candidates those of
/// [`typical::keep`]. Outputs: `chosen`, as of [`Decoder::graph`](crate::models::decoder::Decoder::graph); with
/// probabilities those of [`probabilities::add_outputs`].
fn graph(executor: &Executor, logits: &Tensor, sizes: Sizes, vocab: usize) -> Result<Graph> {
    let mut g = Graph::new();
    let shape = (sizes.logits.rows, vocab);
    let rows = Dim::Fixed(sizes.logits.rows);
    let own = g.state(logits)?;
    let mut x = own;
    if sizes.entries > 0 {
        let of_entries = [rows, Dim::Fixed(sizes.entries)];
        let ids = g.input("ids", DType::U32, &of_entries)?;
        let [biases, repeats, less] = ["biases", "repeats", "less"].map(|name| g.input(name, DType::F32, &of_entries));
        let (biases, repeats, less) = (biases?, repeats?, less?);
        let taken = g.take_along(x, ids, 1)?;
        let biased = g.add(taken, biases)?;
        let (divided, times) = (g.div(biased, repeats)?, g.mul(biased, repeats)?);
        let zero = broadcast(&mut g, DType::F32, 0.0, &of_entries)?;
        let positive = g.gt(biased, zero)?;
        let penalised = g.select(positive, divided, times)?;
        let changed = g.sub(penalised, less)?;
        x = g.scatter(x, ids, changed, 1)?;
    }
    if sizes.mask {
        let words = words(vocab);
        let mask = g.input("mask", DType::U32, &[rows, Dim::Fixed(words)])?;
        let bits = [rows, Dim::Fixed(words), Dim::Fixed(32)];
        let mask = g.reshape(mask, &[rows, Dim::Fixed(words), Dim::Fixed(1)])?;
        let mask = g.broadcast_to(mask, &bits)?;
        let of_word: Vec<u32> = (0..32).map(|bit| 1 << bit).collect();
        let of_word = g.constant(&Tensor::from_slice(executor, &[1, 1, 32], &of_word)?)?;
        let of_word = g.broadcast_to(of_word, &bits)?;
        let bit = g.and(mask, of_word)?;
        let bit = g.reshape(bit, &[rows, Dim::Fixed(words * 32)])?;
        let bit = g.slice(bit, 1, 0, vocab)?;
        let all = [rows, Dim::Fixed(vocab)];
        let zero = broadcast(&mut g, DType::U32, 0.0, &all)?;
        let forbidden = g.eq(bit, zero)?;
        let none = broadcast(&mut g, DType::F32, f64::NEG_INFINITY, &all)?;
        x = g.select(forbidden, none, x)?;
    }
    if sizes.candidates > 0 {
        x = typical::keep(&mut g, x, shape, sizes.candidates)?;
    }
    let numbers = g.input("sampling_numbers", DType::F32, &[rows, Dim::Fixed(3)])?;
    let words = g.input("sampling_words", DType::U32, &[rows, Dim::Fixed(4)])?;
    let chosen = g.sample(x, numbers, words)?;
    g.output("chosen", chosen)?;
    if sizes.probabilities {
        probabilities::add_outputs(&mut g, own, chosen, shape)?;
    }
    Ok(g)
}

/// A number for each element of a shape.
pub(super) fn broadcast(g: &mut Graph, format: DType, value: f64, shape: &[Dim]) -> Result<NodeId> {
    let one = vec![Dim::Fixed(1); shape.len()];
    let value = g.full(format, &one, value)?;
    Ok(g.broadcast_to(value, shape)?)
}

/// The place of each element in its row of `n`, `u32 [rows, n]`.
pub(super) fn along(g: &mut Graph, rows: usize, n: usize) -> Result<NodeId> {
    let place = g.arange(DType::U32, 0.0, 1.0, Dim::Fixed(n))?;
    let place = g.reshape(place, &[Dim::Fixed(1), Dim::Fixed(n)])?;
    Ok(g.broadcast_to(place, &[Dim::Fixed(rows), Dim::Fixed(n)])?)
}

impl Sampling {
    /// The memory of logits, which is zero at first.
    pub fn logits_of(&mut self, executor: &Executor, of: GatheredLogits, vocab: usize) -> Result<Tensor> {
        Ok(match self.logits.entry(of) {
            Entry::Occupied(e) => e.get().clone(),
            Entry::Vacant(e) => {
                let tensor = Tensor::empty(executor, DType::F32, &[of.rows, vocab])?;
                tensor.zero()?;
                e.insert(tensor).clone()
            }
        })
    }
}

impl Session {
    /// Lets the device sample the outputs of the step begun last, which gives logits: output `i` with `configs[i]`,
    /// after `changes[i]`. [`Session::finish`] then gives the tokens; with `probabilities` also
    /// [`Session::probabilities`].
    ///
    /// # Errors
    /// Those of the device known at once. All steps begun are then undone.
    pub(crate) fn sample_begun(
        &mut self,
        configs: &[SamplerConfig],
        changes: &[Change],
        probabilities: bool,
    ) -> Result<()> {
        let sampled = self.submit_sampling(configs, changes, probabilities);
        if sampled.is_err() {
            self.abandon();
        }
        sampled
    }

    pub(super) fn submit_sampling(
        &mut self,
        configs: &[SamplerConfig],
        changes: &[Change],
        probabilities: bool,
    ) -> Result<()> {
        let Some(flight) = self.flights.back() else { return Ok(()) };
        let (rows, vocab) = (flight.rows, self.decoder.config.vocab);
        let (outputs, of_flight, gathered) = (flight.outputs, flight.logits(), flight.gathered.is_some());
        let most = changes.iter().map(|change| change.entries.len()).max().unwrap_or(0);
        let entries = if most == 0 { 0 } else { most.next_power_of_two().max(64) };
        let mask = changes.iter().any(|change| change.mask.is_some());
        let candidates = typical::candidates(configs.iter(), vocab);
        let sizes = Sizes { logits: of_flight, entries, mask, candidates, probabilities };
        let s = &mut self.sampling;
        let logits = s.logits_of(&self.executor, of_flight, vocab)?;
        if let (Some(step), false) = (self.plans.get(&flight.bucket), gathered) {
            step.plan.copy_output("logits", &logits, 0, outputs * vocab)?;
        }
        let plan = match s.plans.entry(sizes) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(graph(&self.executor, &logits, sizes, vocab)?.compile(&self.executor, &[])?),
        };
        s.ids.clear();
        s.mask.clear();
        s.numbers.iter_mut().for_each(Vec::clear);
        let none = Change::default();
        for change in (0..rows).map(|row| changes.get(row).unwrap_or(&none)) {
            if entries > 0 {
                // The rest repeats one: the same change of the same logit.
                let fill = change.entries.first().copied().unwrap_or(TokenChange::none(0));
                for at in 0..entries {
                    let TokenChange { id, bias, repeat, less } = change.entries.get(at).copied().unwrap_or(fill);
                    s.ids.push(id);
                    s.numbers.iter_mut().zip([bias, repeat, less]).for_each(|(list, value)| list.push(value));
                }
            }
            if sizes.mask {
                match &change.mask {
                    Some(mask) => s.mask.extend((0..words(vocab)).map(|at| mask.get(at).copied().unwrap_or(0))),
                    None => s.mask.resize(s.mask.len() + words(vocab), u32::MAX),
                }
            }
        }
        if entries > 0 {
            plan.write("ids", &s.ids)?;
            for (name, list) in ["biases", "repeats", "less"].into_iter().zip(&s.numbers) {
                plan.write(name, list)?;
            }
        }
        if sizes.mask {
            plan.write("mask", &s.mask)?;
        }
        if sizes.candidates > 0 {
            let (shares, best): (Vec<f32>, Vec<u32>) =
                (0..rows).map(|row| typical::row(configs.get(row), vocab)).unzip();
            plan.write("typical", &shares)?;
            plan.write("typical_k", &best)?;
        }
        let scratch = &mut self.scratch;
        scratch.numbers.clear();
        scratch.words.clear();
        for row in 0..rows {
            let config = configs.get(row).copied().unwrap_or(SamplerConfig::GREEDY);
            let (numbers, words) = config.row(flight.positions.get(row).map_or(0, |at| u64::from(*at) + 1));
            scratch.numbers.extend(numbers);
            scratch.words.extend(words);
        }
        plan.write("sampling_numbers", &scratch.numbers)?;
        plan.write("sampling_words", &scratch.words)?;
        let event = plan.submit()?;
        let place = flight.place;
        let chosen = super::flight::places(&mut self.chosen, &self.executor, self.batch, vocab)?;
        chosen[place].keep(plan, outputs)?;
        if probabilities {
            let kept = match &mut s.kept[place] {
                Some(kept) => kept,
                none => none.insert(probabilities::Kept::new(&self.executor, self.batch, vocab)?),
            };
            kept.keep(plan, outputs, vocab)?;
        }
        if let Some(flight) = self.flights.back_mut() {
            (flight.event, flight.sampled, flight.probabilities) = (event, true, probabilities);
        }
        Ok(())
    }

    /// The logits of an output of the step finished last, before they were changed; for steps that
    /// [`Session::sample_begun`] sampled.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn sampled_logits(&self, output: usize) -> Result<Vec<f32>> {
        let vocab = self.vocab();
        let mut logits = vec![0.0f32; (output + 1) * vocab];
        if let Some(tensor) = self.sampling.logits.get(&self.sampling.finished) {
            tensor.read_into(&mut logits)?;
        }
        Ok(logits.split_off(output * vocab))
    }
}
