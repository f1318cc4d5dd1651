//! Cases of the groups of recurrent layers, and the bounds of linear recurrences with inexact operands.

use hologram_backends::DType;

use super::bounded::Bounded;
use super::groups::{Drawing, TOKENS};
use super::{CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::{Recurrence, RecurrenceOperands};
use crate::tensor::Dim;

/// A part of a recurrent layer.
#[derive(Clone, Debug)]
pub(super) enum Layer {
    Recur(Recur),
    Conv(Conv),
    /// A norm of heads, and silu of a gate that multiplies it: heads and elements.
    Gated(usize, usize),
}

/// A linear recurrence: its state and its results.
#[derive(Clone, Debug)]
pub(super) struct Recur {
    rule: Recurrence,
    /// Heads of values and of keys.
    heads: (usize, usize),
    /// Elements of a value and of a key.
    sizes: (usize, usize),
    /// The tokens of each run.
    runs: Vec<usize>,
    /// Whether operands come as in models: by the delta rule those of gated DeltaNet, otherwise those of Mamba2.
    prepared: bool,
}

/// A causal convolution: its state and its results, with or without what follows it.
#[derive(Clone, Debug)]
pub(super) struct Conv {
    width: usize,
    channels: usize,
    bias: bool,
    silu: bool,
    runs: Vec<usize>,
}

impl Layer {
    /// Approximate number of multiplications per token.
    pub fn work(&self) -> usize {
        match self {
            Layer::Recur(r) => r.heads.0 * r.sizes.0 * r.sizes.1 * 3,
            Layer::Conv(c) => c.channels * c.width,
            Layer::Gated(heads, n) => heads * n,
        }
    }

    /// Adds the operations; returns the values to output.
    pub fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        match self {
            Layer::Recur(r) => r.build(d),
            Layer::Conv(c) => c.build(d),
            Layer::Gated(heads, n) => {
                let (x, gate) = (tokens(d, &[*heads, *n], 1.0)?, tokens(d, &[heads * n], 1.0)?);
                let w = d.leaf(CaseInput::normal(DType::F32, &[(*n).into()]))?;
                let x = d.graph.rms_norm(x, w, 1e-6)?;
                let gate = d.graph.reshape(gate, &[TOKENS, (*heads).into(), (*n).into()])?;
                Ok(vec![d.graph.swiglu(gate, x)?])
            }
        }
    }
}

/// Normal numbers for each token.
fn tokens(d: &mut Drawing<'_>, shape: &[usize], scale: f32) -> Result<NodeId> {
    let shape = std::iter::once(TOKENS).chain(shape.iter().map(|n| Dim::Fixed(*n))).collect();
    d.leaf(CaseInput { format: DType::F32, shape, fill: Fill::Normal(scale) })
}

/// The slots of these runs, two each, and the runs: the first has no state before it.
fn run_list(d: &mut Drawing<'_>, counts: &[usize]) -> Result<(usize, NodeId)> {
    let mut first = 0;
    let fields = counts.iter().enumerate().flat_map(|(i, count)| {
        first += count;
        [first - count, *count, if i == 0 { 1 << 20 } else { 2 * i }, 2 * i + 1]
    });
    let runs = d.indices(&[counts.len().into(), 4.into()], fields)?;
    Ok((2 * counts.len(), runs))
}

impl Recur {
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let ((h, g), (v, k)) = (self.heads, self.sizes);
        let (slots, runs) = run_list(d, &self.runs)?;
        let state = d.state(&CaseInput::normal(DType::F32, &[slots, h, v, k].map(Dim::Fixed)))?;
        if self.prepared {
            return self.prepared(d, state, runs);
        }
        let of_keys = (k as f32).sqrt().recip();
        let (keys, queries) = (tokens(d, &[g, k], of_keys)?, tokens(d, &[g, k], of_keys)?);
        let (values, decay) = (tokens(d, &[h, v], 1.0)?, tokens(d, &[h], 0.5)?);
        let strength = if self.rule.delta { Some(tokens(d, &[h], 0.5)?) } else { None };
        let operands = RecurrenceOperands { keys, values, decay, strength, runs };
        let state = d.graph.recurrent_state(state, self.rule, operands)?;
        Ok(vec![d.graph.recurrence(state, self.rule, queries, operands)?])
    }

    fn prepared(&self, d: &mut Drawing<'_>, state: NodeId, runs: NodeId) -> Result<Vec<NodeId>> {
        let ((h, g), (v, k)) = (self.heads, self.sizes);
        let scale = if self.rule.delta { 1.0 } else { (k as f32).sqrt().recip() };
        let x = tokens(d, &[2 * g * k + h * v], scale)?;
        let (time, strength) = (tokens(d, &[h], 1.0)?, tokens(d, &[h], 1.0)?);
        let per_head =
            |values: Vec<f32>| CaseInput { format: DType::F32, shape: vec![h.into()], fill: Fill::Values(values) };
        let bias = d.leaf(per_head((0..h).map(|i| i as f32 / h as f32 - 0.5).collect()))?;
        let factor = d.leaf(per_head((0..h).map(|i| -0.1 - i as f32 / h as f32).collect()))?;
        let norms = [0, 1].map(|_| {
            d.leaf(CaseInput {
                format: DType::F32,
                shape: vec![k.into()],
                fill: Fill::Normal((k as f32).sqrt().recip()),
            })
        });
        let skip = d.leaf(CaseInput::normal(DType::F32, &[h.into(), 1.into()]))?;
        let graph = &mut d.graph;
        let part = |graph: &mut Graph, start: usize, heads: usize, len: usize| -> Result<NodeId> {
            let x = graph.slice(x, 1, start, start + heads * len)?;
            let x = graph.reshape(x, &[TOKENS, heads.into(), len.into()])?;
            graph.copy(x)
        };
        let (mut queries, mut keys) = (part(graph, 0, g, k)?, part(graph, g * k, g, k)?);
        let inputs = part(graph, 2 * g * k, h, v)?;
        let [of_keys, of_queries] = norms;
        let strength = match self.rule.delta {
            true => {
                keys = graph.rms_norm(keys, of_keys?, 1e-6)?;
                queries = graph.rms_norm(queries, of_queries?, 1e-6)?;
                Some(graph.sigmoid(strength)?)
            }
            false => None,
        };
        let time = graph.add(time, bias)?;
        let magnitude = graph.abs(time)?;
        let less = graph.neg(magnitude)?;
        let less = graph.exp(less)?;
        let rest = graph.log1p(less)?;
        let time = graph.max_scalar(time, 0.0)?;
        let time = graph.add(time, rest)?;
        let decay = graph.mul(time, factor)?;
        let decay = graph.exp(decay)?;
        let values = match self.rule.delta {
            true => inputs,
            false => {
                let time = graph.reshape(time, &[TOKENS, h.into(), 1.into()])?;
                graph.mul(inputs, time)?
            }
        };
        let operands = RecurrenceOperands { keys, values, decay, strength, runs };
        let state = graph.recurrent_state(state, self.rule, operands)?;
        let y = graph.recurrence(state, self.rule, queries, operands)?;
        if self.rule.delta {
            return Ok(vec![y]);
        }
        let own = graph.mul(inputs, skip)?;
        Ok(vec![graph.add(y, own)?])
    }
}

impl Conv {
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let (slots, runs) = run_list(d, &self.runs)?;
        let c = self.channels;
        let state = d.state(&CaseInput::normal(DType::F32, &[slots, self.width - 1, c].map(Dim::Fixed)))?;
        let x = tokens(d, &[c], 1.0)?;
        let weights = d.leaf(CaseInput::normal(DType::F32, &[c, self.width].map(Dim::Fixed)))?;
        let of = self.runs.iter().enumerate().flat_map(|(i, count)| std::iter::repeat_n(i, *count));
        let token_runs = d.indices(&[TOKENS], of)?;
        let bias = if self.bias { Some(d.leaf(CaseInput::normal(DType::F32, &[c.into()]))?) } else { None };
        let state = d.graph.conv_state(state, x, runs)?;
        let mut y = d.graph.causal_conv(state, x, weights, token_runs, runs)?;
        if let Some(bias) = bias {
            y = d.graph.add(y, bias)?;
        }
        Ok(vec![if self.silu { d.graph.silu(y)? } else { y }])
    }
}

/// The maximum and the actual number of tokens, and the layer.
pub(super) fn cases() -> impl Iterator<Item = ((usize, usize), Layer)> {
    let mut layers = Vec::new();
    let mut push = |n: usize, layer| layers.push(((if n > 1 { n + 3 } else { n }, n), layer));
    // A token, sequences of one token, runs that end within what a kernel takes at a time, and lengths of models.
    let rules = [(false, false), (true, false), (true, true)].map(|(delta, tiled)| Recurrence { delta, tiled });
    for (heads, sizes, runs) in [
        ((2, 1), (33, 24), vec![3, 0, 9]),
        ((4, 2), (64, 64), vec![1, 17, 1, 5]),
        ((32, 16), (128, 128), vec![1]),
        ((6, 3), (128, 128), vec![1, 1, 1]),
        ((2, 2), (128, 128), vec![2, 150, 1]),
        ((3, 1), (40, 256), vec![5, 1]),
        ((64, 1), (64, 128), vec![1, 1]),
    ] {
        for rule in rules.into_iter().filter(|rule| heads.0 < 32 || rule.delta == (heads.1 > 1)) {
            for prepared in [false, true] {
                let runs = runs.clone();
                push(runs.iter().sum(), Layer::Recur(Recur { rule, heads, sizes, runs, prepared }));
            }
        }
    }
    for (width, channels, runs) in
        [(3, 2048, vec![1]), (4, 8192, vec![1, 1, 2]), (2, 260, vec![1, 70, 4]), (4, 300, vec![7, 0, 90])]
    {
        for (bias, silu) in [(false, false), (false, true), (true, true)] {
            let runs = runs.clone();
            push(runs.iter().sum(), Layer::Conv(Conv { width, channels, bias, silu, runs }));
        }
    }
    for (n, heads, elements) in [(1, 32, 128), (5, 6, 64), (9, 3, 260), (131, 33, 64)] {
        push(n, Layer::Gated(heads, elements));
    }
    layers.into_iter()
}

/// The deviations that those of the operands cause: of the state if `of_state`, otherwise of the results.
pub(super) fn recurred(rule: Recurrence, of_state: bool, operands: &[&Bounded]) -> Option<Vec<f64>> {
    let [state, keys, values, decay, rest @ ..] = operands else { return None };
    let (strength, rest) = if rule.delta { (Some(*rest.first()?), rest.get(1..)?) } else { (None, rest) };
    let (runs, queries) = rest.split_first()?;
    let ([slots, h, v, k], [_, g, _]) = (&state.tensor.shape[..], &keys.tensor.shape[..]) else { return None };
    let (slots, h, v, k, g) = (*slots, *h, *v, *k, *g);
    let of = |x: &Bounded, i: usize| Some((*x.tensor.values.get(i)?, *x.bounds.get(i)?));
    let row_of = |x: &Bounded, at: usize| (at..at + k).map(|i| of(x, i)).collect::<Option<Vec<_>>>();
    // The product of two numbers, and its deviation.
    let times = |(a, da): (f64, f64), (b, db): (f64, f64)| (a * b, a.abs() * db + da * (b.abs() + db));
    let dot = |a: &[(f64, f64)], b: &[(f64, f64)]| {
        let products = a.iter().zip(b).map(|(a, b)| times(*a, *b));
        products.fold((0.0, 0.0), |sum, x| (sum.0 + x.0, sum.1 + x.1))
    };
    let mut out = if of_state { state.bounds.clone() } else { vec![0.0; values.bounds.len()] };
    for run in runs.tensor.values.chunks_exact(4) {
        let [first, count, from, to] = [run[0], run[1], run[2], run[3]].map(|f| f as usize);
        for row in 0..if count > 0 { h * v } else { 0 } {
            let (head, of_head) = (row / v, h * v * k);
            let mut s = match from < slots {
                true => row_of(state, from * of_head + row * k)?,
                false => vec![(0.0, 0.0); k],
            };
            for token in first..first + count {
                let (at, of_key) = (token * h + head, (token * g + rule.key_head(head, h, g)) * k);
                let (key, factor) = (row_of(keys, of_key)?, of(decay, at)?);
                let mut added = of(values, token * h * v + row)?;
                if let Some(strength) = strength {
                    let known = times(dot(&s, &key), factor);
                    added = times((added.0 - known.0, added.1 + known.1), of(strength, at)?);
                }
                for (s, key) in s.iter_mut().zip(&key) {
                    let (kept, new) = (times(*s, factor), times(*key, added));
                    *s = (kept.0 + new.0, kept.1 + new.1);
                }
                if let [queries] = queries {
                    out[token * h * v + row] = dot(&s, &row_of(queries, of_key)?).1;
                }
            }
            if of_state {
                out.get_mut(to * of_head + row * k..)?.iter_mut().zip(&s).for_each(|(out, s)| *out = s.1);
            }
        }
    }
    Some(out)
}
