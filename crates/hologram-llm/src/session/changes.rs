//! Sampling apart from the step that computes the logits: each row of logits is first changed, by biases, penalties and
//! the mask of a constraint, which the host finds while the device computes the step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hologram_backends::DType;
use hologram_core::{Dim, Executor, Graph, NodeId, Plan, Tensor};

use super::Session;
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
}

/// The plans that sample, and what the steps leave for them.
#[derive(Default)]
pub(super) struct Sampling {
    plans: HashMap<Sizes, Plan>,
    /// Logits `[rows, vocabulary]`.
    pub logits: HashMap<GatheredLogits, Tensor>,
    /// Those of the step finished last.
    pub finished: GatheredLogits,
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
/// and
/// `less`, all `[rows, entries]`; with a mask `mask`, `u32 [rows, words]`. Output: `chosen`, as of
/// [`Decoder::graph`](crate::models::decoder::Decoder::graph).
fn graph(executor: &Executor, logits: &Tensor, sizes: Sizes, vocab: usize) -> Result<Graph> {
    let mut g = Graph::new();
    let rows = Dim::Fixed(sizes.logits.rows);
    let mut x = g.state(logits)?;
    if sizes.entries > 0 {
        let of_entries = [rows, Dim::Fixed(sizes.entries)];
        let ids = g.input("ids", DType::U32, &of_entries)?;
        let [biases, repeats, less] = ["biases", "repeats", "less"].map(|name| g.input(name, DType::F32, &of_entries));
        let (biases, repeats, less) = (biases?, repeats?, less?);
        let taken = g.take_along(x, ids, 1)?;
        let biased = g.add(taken, biases)?;
        let (divided, times) = (g.div(biased, repeats)?, g.mul(biased, repeats)?);
        let zero = constant(&mut g, &Tensor::from_slice(executor, &[1, 1], &[0.0f32])?, &of_entries)?;
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
        let of_word = constant(&mut g, &Tensor::from_slice(executor, &[1, 1, 32], &of_word)?, &bits)?;
        let bit = g.and(mask, of_word)?;
        let bit = g.reshape(bit, &[rows, Dim::Fixed(words * 32)])?;
        let bit = g.slice(bit, 1, 0, vocab)?;
        let all = [rows, Dim::Fixed(vocab)];
        let zero = constant(&mut g, &Tensor::from_slice(executor, &[1, 1], &[0u32])?, &all)?;
        let forbidden = g.eq(bit, zero)?;
        let none = constant(&mut g, &Tensor::from_slice(executor, &[1, 1], &[f32::NEG_INFINITY])?, &all)?;
        x = g.select(forbidden, none, x)?;
    }
    let numbers = g.input("sampling_numbers", DType::F32, &[rows, Dim::Fixed(3)])?;
    let words = g.input("sampling_words", DType::U32, &[rows, Dim::Fixed(4)])?;
    let chosen = g.sample(x, numbers, words)?;
    g.output("chosen", chosen)?;
    Ok(g)
}

fn constant(g: &mut Graph, tensor: &Tensor, shape: &[Dim]) -> Result<NodeId> {
    let value = g.constant(tensor)?;
    Ok(g.broadcast_to(value, shape)?)
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
    /// after `changes[i]`. [`Session::finish`] then gives the tokens.
    ///
    /// # Errors
    /// Those of the device known at once. All steps begun are then undone.
    pub(crate) fn sample_begun(&mut self, configs: &[SamplerConfig], changes: &[Change]) -> Result<()> {
        let sampled = self.submit_sampling(configs, changes);
        if sampled.is_err() {
            self.abandon();
        }
        sampled
    }

    pub(super) fn submit_sampling(&mut self, configs: &[SamplerConfig], changes: &[Change]) -> Result<()> {
        let Some(flight) = self.flights.back() else { return Ok(()) };
        let (rows, vocab) = (flight.rows, self.decoder.config.vocab);
        let (outputs, of_flight, gathered) = (flight.outputs, flight.logits(), flight.gathered.is_some());
        let most = changes.iter().map(|change| change.entries.len()).max().unwrap_or(0);
        let entries = if most == 0 { 0 } else { most.next_power_of_two().max(64) };
        let sizes = Sizes { logits: of_flight, entries, mask: changes.iter().any(|change| change.mask.is_some()) };
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
        let chosen = super::flight::places(&mut self.chosen, &self.executor, self.options.batch, vocab)?;
        chosen[place].keep(plan, outputs)?;
        if let Some(flight) = self.flights.back_mut() {
            (flight.event, flight.sampled) = (event, true);
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
