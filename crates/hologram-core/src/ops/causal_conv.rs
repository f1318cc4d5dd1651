//! Causal convolution of each channel along the tokens of sequences, and its state: the last inputs of each sequence.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, Value};

use super::{Kernel, Launchable, Mismatch, Op, TensorArg};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The inputs after the tokens; the inputs are those of [`Graph::conv_state`] in order.
#[derive(Debug)]
struct ConvState;

/// The convolution; the inputs are those of [`Graph::causal_conv`] in order.
#[derive(Debug)]
struct CausalConv;

impl Graph {
    /// Stores the last inputs of each run of tokens in a state `f32 [slots, w - 1, c]` of convolutions of width w, and
    /// returns its new version. `x` is `f32 [n, c]`.
    ///
    /// `runs` is `u32 [r, 4]`: the first token of a run, its number of tokens, and the slots of the state before and
    /// after them. A slot before that the state does not have means zeros; a run without tokens changes nothing. No
    /// slot after may be another run's slot before or after.
    ///
    /// # Errors
    /// When the operands do not fit or the state is none.
    pub fn conv_state(&mut self, state: NodeId, x: NodeId, runs: NodeId) -> Result<NodeId> {
        self.apply(ConvState, &[state, x, runs])
    }

    /// Σⱼ `weights[c, j]` · x[t - w + 1 + j, c] for each token t and channel c, `f32 [n, c]`, where inputs before the
    /// first token of t's run are those of the state. `weights` is `f32 [c, w]`; `token_runs` (`u32 [n]`) gives each
    /// token's run. The others are those of [`Graph::conv_state`], whose result may be the state if all runs have
    /// different slots before and after.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn causal_conv(
        &mut self,
        state: NodeId,
        x: NodeId,
        weights: NodeId,
        token_runs: NodeId,
        runs: NodeId,
    ) -> Result<NodeId> {
        self.apply(CausalConv, &[state, x, weights, token_runs, runs])
    }
}

const THREADS: u32 = 256;

/// The sizes of a state: slots, inputs of a slot, channels.
fn state_sizes(state: &TensorType, x: &TensorType, runs: &TensorType) -> std::result::Result<[usize; 3], String> {
    let f32 = DType::F32;
    if state.format != f32 || x.format != f32 || runs.format != DType::U32 {
        return Err("takes a state and x of f32, and u32 runs".into());
    }
    match (state.shape.as_slice(), x.shape.as_slice(), runs.shape.as_slice()) {
        ([Dim::Fixed(slots), Dim::Fixed(before), Dim::Fixed(c)], [_, Dim::Fixed(x)], [_, Dim::Fixed(4)])
            if c == x && *before > 0 =>
        {
            Ok([*slots, *before, *c])
        }
        _ => Err("takes a state [slots, width - 1, c], x [n, c] and runs [r, 4]".into()),
    }
}

/// A run of tokens in a program.
pub(super) struct Run {
    /// The first token.
    pub first: Value,
    /// Their number.
    pub count: Value,
    /// The slots before and after.
    pub from: Value,
    /// See `from`.
    pub to: Value,
}

impl Run {
    /// Loads the run of this index.
    pub fn load(b: &mut Builder, runs: &TensorArg, index: Value) -> Run {
        let at = b.mul(index, 4u32);
        let mut field = |i: u32| {
            let at = b.add(at, i);
            b.load(runs.views[0], at)
        };
        Run { first: field(0), count: field(1), from: field(2), to: field(3) }
    }

    /// Input `place` of a channel, of the `before` inputs of the state that the run continues and the run's own after
    /// them. Without a `known` state those before are 0.
    fn input(
        &self,
        b: &mut Builder,
        [state, x]: [&TensorArg; 2],
        [before, c]: [u32; 2],
        known: Value,
        channel: Value,
        place: Value,
    ) -> Value {
        let value = b.var(0.0f32);
        let old = b.lt(place, before);
        b.if_else(
            old,
            |b| {
                b.if_(known, |b| {
                    let at = b.mul(self.from, before);
                    let at = b.add(at, place);
                    let at = b.mul(at, c);
                    let at = b.add(at, channel);
                    let v = b.load(state.views[0], at);
                    b.assign(value, v);
                });
            },
            |b| {
                let of_run = b.sub(place, before);
                let at = b.add(self.first, of_run);
                let at = b.mul(at, c);
                let at = b.add(at, channel);
                let v = b.load(x.views[0], at);
                b.assign(value, v);
            },
        );
        value
    }

    /// The run of this index on the host.
    pub fn of(runs: &HostTensor, index: usize) -> [usize; 4] {
        [0, 1, 2, 3].map(|i| runs.values[4 * index + i] as usize)
    }
}

impl Op for ConvState {
    fn operation(&self) -> Operation {
        Operation::ConvState
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [state, x, runs] = inputs else { return Err("takes a state, x and runs".into()) };
        state_sizes(state, x, runs)?;
        Ok((*state).clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    /// One thread per run and channel.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let size = |i: usize| spec.output.shape.get(i).map_or(1, |e| e.max()) as u32;
        let (slots, before, c) = (size(0), size(1), size(2));
        let mut k = Kernel::new(spec, THREADS);
        let count = k.rows(&spec.inputs[2]);
        let (x, runs, state) = (k.inputs[1].clone(), k.inputs[2].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let total = b.mul(count, c);
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let (channel, index) = (b.rem(i, c), b.div(i, c));
            let run = Run::load(b, &runs, index);
            let known = b.lt(run.from, slots);
            let exists = b.lt(run.to, slots);
            let any = b.gt(run.count, 0u32);
            b.if_(any, |b| {
                // In order: each input that moves within a slot is read before its place is written.
                b.for_(0u32, before, 1u32, |b, j| {
                    let place = b.add(run.count, j);
                    let value = run.input(b, [&state, &x], [before, c], known, channel, place);
                    let at = b.mul(run.to, before);
                    let at = b.add(at, j);
                    let at = b.mul(at, c);
                    let at = b.add(at, channel);
                    // No state has an element at u32::MAX: the store to a slot that is out of range fails.
                    let at = b.select(exists, at, u32::MAX);
                    b.store(state.views[0], at, value);
                });
            });
        });
        k.finish((spec.inputs[2].max_rows() * c as usize).div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [state, x, runs] = inputs else { return Reference::default() };
        let [slots, before, c] = state.shape[..] else { return Reference::default() };
        let mut values = state.values.clone();
        for run in 0..runs.shape[0] {
            let [first, count, from, to] = Run::of(runs, run);
            for (j, channel) in (0..before).flat_map(|j| (0..c).map(move |channel| (j, channel))) {
                if count > 0 {
                    values[(to * before + j) * c + channel] = match (count + j).checked_sub(before) {
                        Some(token) => x.values[(first + token) * c + channel],
                        None if from < slots => state.values[(from * before + count + j) * c + channel],
                        None => 0.0,
                    };
                }
            }
        }
        let bounds = vec![0.0; values.len()];
        Reference { values, bounds }
    }
}

impl Op for CausalConv {
    fn operation(&self) -> Operation {
        Operation::CausalConv
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [state, x, weights, token_runs, runs] = inputs else {
            return Err("takes a state, x, weights, the tokens' runs and runs".into());
        };
        let [_, before, c] = state_sizes(state, x, runs)?;
        let fits = weights.shape.as_slice() == [c, before + 1].map(Dim::Fixed)
            && token_runs.shape.as_slice() == &x.shape[..1]
            && (weights.format, token_runs.format) == (DType::F32, DType::U32);
        match fits {
            true => Ok((*x).clone()),
            false => Err(format!("takes f32 weights [{c}, {}] and u32 runs of the tokens [n]", before + 1).into()),
        }
    }

    /// One thread per element.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let size = |i: usize| spec.inputs[0].shape.get(i).map_or(1, |e| e.max()) as u32;
        let (slots, before, c) = (size(0), size(1), size(2));
        let runs_max = spec.inputs[4].max_rows() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let [state, x, weights, token_runs, runs] = [0, 1, 2, 3, 4].map(|i| k.inputs[i].clone());
        let out = k.output.clone();
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let (channel, token) = (b.rem(i, c), b.div(i, c));
            let index = b.load(token_runs.views[0], token);
            // No tensor has an element at u32::MAX: loads for a run that is out of range fail.
            let exists = b.lt(index, runs_max);
            let index = b.select(exists, index, u32::MAX / 4);
            let run = Run::load(b, &runs, index);
            let known = b.lt(run.from, slots);
            let position = b.sub(token, run.first);
            let of_weights = b.mul(channel, before + 1);
            let sum = b.var(0.0f32);
            b.for_(0u32, before + 1, 1u32, |b, j| {
                let at = b.add(of_weights, j);
                let weight = b.load(weights.views[0], at);
                let place = b.add(position, j);
                let value = run.input(b, [&state, &x], [before, c], known, channel, place);
                b.assign_op(sum, Opcode::Fma, &[value, weight, sum]);
            });
            out.store(b, i, sum);
        });
        k.finish((spec.output.max_rows() * c as usize).div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [state, x, weights, token_runs, runs] = inputs else { return Reference::default() };
        let [slots, before, c] = state.shape[..] else { return Reference::default() };
        let mut out = Reference::default();
        for (token, channel) in (0..x.shape[0]).flat_map(|t| (0..c).map(move |c| (t, c))) {
            let [first, _, from, _] = Run::of(runs, token_runs.values[token] as usize);
            let terms = (0..=before).map(|j| {
                let place = token - first + j;
                let value = match place.checked_sub(before) {
                    Some(of_run) => x.values[(first + of_run) * c + channel],
                    None if from < slots => state.values[(from * before + place) * c + channel],
                    None => 0.0,
                };
                value * weights.values[channel * (before + 1) + j]
            });
            let (sum, most) = terms.fold((0.0, 0.0), |(sum, most), term| (sum + term, most + f64::abs(term)));
            out.push(sum, most * (before + 1) as f64 * f64::from(f32::EPSILON));
        }
        out
    }
}

/// Lists of runs: slots, the most tokens and runs, and the runs. Tokens belong to the runs in order.
#[cfg(feature = "conformance")]
pub(super) fn run_lists() -> Vec<(usize, [usize; 2], Vec<[u32; 4]>)> {
    let none = u32::MAX >> 8;
    vec![
        (1, [1, 1], vec![[0, 1, none, 0]]),
        (2, [2, 3], vec![]),
        (4, [4, 2], vec![[0, 1, 0, 1], [1, 1, 3, 2]]),
        (8, [24, 6], vec![[0, 3, none, 1], [3, 1, 0, 2], [4, 0, 5, 6], [4, 2, 3, 4], [6, 11, 7, 5]]),
    ]
}

/// The runs and the runs of the tokens, as inputs of extents 1 and 0, and the number of tokens.
#[cfg(feature = "conformance")]
pub(super) fn run_inputs(runs: &[[u32; 4]]) -> (CaseInput, CaseInput, usize) {
    let values = |values: Vec<f32>, shape: &[Dim]| CaseInput {
        format: DType::U32,
        shape: shape.to_vec(),
        fill: Fill::Values(values),
    };
    let of_tokens: Vec<f32> = runs.iter().enumerate().flat_map(|(i, run)| vec![i as f32; run[1] as usize]).collect();
    let n = of_tokens.len();
    let fields = runs.iter().flatten().map(|v| *v as f32).collect();
    (values(fields, &[Dim::Extent(1), Dim::Fixed(4)]), values(of_tokens, &[Dim::Extent(0)]), n)
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (before, c) in [(1, 1), (2, 37), (3, 256), (3, 300)] {
        for (slots, [tokens, most], list) in run_lists() {
            let (runs, of_tokens, n) = run_inputs(&list);
            let extents = [(tokens, n), (most, list.len())];
            let state = CaseInput::normal(DType::F32, &[slots, before, c].map(Dim::Fixed));
            let x = CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(c)]);
            let weights = CaseInput::normal(DType::F32, &[c, before + 1].map(Dim::Fixed));
            cases.push(Case::new(ConvState, &extents).input(state.clone()).input(x.clone()).input(runs.clone()));
            let case = Case::new(CausalConv, &extents).input(state).input(x).input(weights);
            cases.push(case.input(of_tokens).input(runs));
        }
    }
    cases
}
