//! Gated DeltaNet (Yang et al., 2024, arXiv:2412.06464), as in Qwen3-Next and Qwen3.5.

use hologram_core::ops::{Recurrence, RecurrenceOperands};
use hologram_core::{Dim, Graph, NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::{LlmError, Result};
use crate::models::RecurrentHeads;

/// Heads of queries, keys and values after a short convolution, a recurrence by the delta rule, and a norm with a gate.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    layer: usize,
    heads: RecurrentHeads,
    rule: Recurrence,
    inputs: Inputs,
    /// `[channels, width]`.
    conv: Tensor,
    /// Per head the bias of the time step, and the negative factor that makes it the logarithm of the decay.
    bias: Tensor,
    factor: Tensor,
    /// The factors that scale normed keys to length 1, and queries to 1 / √(their elements).
    units: [Tensor; 2],
    norm: Tensor,
    output: Linear,
}

/// The projections.
#[derive(Debug)]
enum Inputs {
    /// Queries, keys and values; gates; strengths; time steps.
    Apart(Box<[Linear; 4]>),
    /// Queries, keys, values and gates of each key head in turn, either in one matrix or gates apart; then strengths
    /// and time steps of each key head in turn.
    ByHead(Box<(Mixed, Linear)>),
}

/// The larger projections of models with those by heads.
#[derive(Debug)]
enum Mixed {
    All(Box<Linear>),
    GateApart(Box<[Linear; 2]>),
}

/// Added to the squares of a head's elements before its length is taken.
const EPS: f32 = 1e-6;

impl DeltaNet {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights), or when the model has no such heads.
    pub fn load(l: &Loader<'_>) -> Result<Box<dyn Block>> {
        let (c, missing) = (l.config, || l.no_state());
        let recurrent = c.recurrent.as_ref().ok_or_else(missing)?;
        let heads = recurrent.heads.ok_or_else(missing)?;
        let [of_keys, of_values] = heads.widths();
        let linear = |name: &str, rows: usize| l.linear(name, rows, c.width, false);
        let there = |name: &str| l.weights.shape(&l.name(name, "weight")).is_some();
        let gate_apart =
            || Ok::<_, LlmError>([linear("attn_qkv", 2 * of_keys + of_values)?, linear("attn_gate", of_values)?]);
        let inputs = if there("ssm_ba") {
            let mixed = match there("ssm_in") {
                true => Mixed::All(Box::new(linear("ssm_in", 2 * (of_keys + of_values))?)),
                false => Mixed::GateApart(Box::new(gate_apart()?)),
            };
            Inputs::ByHead(Box::new((mixed, linear("ssm_ba", 2 * heads.heads)?)))
        } else {
            let [qkv, gate] = gate_apart()?;
            Inputs::Apart(Box::new([qkv, gate, linear("ssm_beta", heads.heads)?, linear("ssm_alpha", heads.heads)?]))
        };
        let executor = l.weights.executor();
        let root = (heads.key as f32).sqrt();
        let filled = |value: f32| Tensor::from_slice(executor, &[heads.key], &vec![value; heads.key]);
        // Files of a folder have the logarithm of the positive factor.
        let factor = match l.weights.optional_values(&l.name("ssm_a_log", "weight"), heads.heads)? {
            Some(logs) => {
                let factors: Vec<f32> = logs.into_iter().map(|log| -log.exp()).collect();
                Tensor::from_slice(executor, &[heads.heads], &factors)?
            }
            None => l.weights.vector(&format!("blk.{}.ssm_a", l.index), heads.heads)?,
        };
        Ok(Box::new(DeltaNet {
            layer: l.index,
            heads,
            rule: Recurrence { delta: true, tiled: recurrent.tiled },
            inputs,
            conv: l.conv("ssm_conv1d")?,
            bias: l.weights.vector(&l.name("ssm_dt", "bias"), heads.heads)?,
            factor,
            units: [filled(root.recip())?, filled(root.powi(2).recip())?],
            norm: l.factors("ssm_norm", heads.value)?,
            output: l.linear("ssm_out", c.width, of_values, false)?,
        }))
    }

    /// Queries, keys and values `[tokens, channels]`, gates, strengths and time steps `[tokens, heads]`.
    fn project(&self, step: &mut Step<'_>, x: NodeId) -> Result<[NodeId; 4]> {
        let RecurrentHeads { groups, key, heads, value } = self.heads;
        let (mixed, pairs) = match &self.inputs {
            Inputs::Apart(linears) => return step.linears(x, linears.each_ref()),
            Inputs::ByHead(linears) => (&linears.0, &linears.1),
        };
        let (tokens, each) = (step.tokens, heads / groups);
        let by_head = |g: &mut Graph, x: NodeId, width: usize| g.reshape(x, &[tokens, groups.into(), width.into()]);
        // A part of each key head's elements, as a row of a token.
        let part = |g: &mut Graph, x: NodeId, [start, end]: [usize; 2]| -> Result<NodeId> {
            let x = g.slice(x, 2, start, end)?;
            let x = g.copy(x)?;
            Ok(g.reshape(x, &[tokens, (groups * (end - start)).into()])?)
        };
        let (qkv, gate) = match mixed {
            Mixed::GateApart(linears) => {
                let [qkv, gate] = step.linears(x, linears.each_ref())?;
                (qkv, gate)
            }
            Mixed::All(all) => {
                let all = step.linear(x, all)?;
                let g = &mut step.graph;
                let (of_value, ends) = (each * value, [key, 2 * key]);
                let all = by_head(g, all, 2 * (key + of_value))?;
                let [gates, end] = [ends[1] + of_value, ends[1] + 2 * of_value];
                let q = part(g, all, [0, ends[0]])?;
                let k = part(g, all, ends)?;
                let v = part(g, all, [ends[1], gates])?;
                (g.cat(&[q, k, v], 1)?, part(g, all, [gates, end])?)
            }
        };
        let pairs = step.linear(x, pairs)?;
        let g = &mut step.graph;
        let pairs = by_head(g, pairs, 2 * each)?;
        Ok([qkv, gate, part(g, pairs, [0, each])?, part(g, pairs, [each, 2 * each])?])
    }

    /// The decay of each head: exp(factor · softplus(time step + bias)).
    fn decay(&self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        let (bias, factor) = (g.constant(&self.bias)?, g.constant(&self.factor)?);
        let x = g.add(x, bias)?;
        let x = softplus(g, x)?;
        let x = g.mul(x, factor)?;
        Ok(g.exp(x)?)
    }
}

/// log(1 + exp(x)), without overflow.
pub(super) fn softplus(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let magnitude = g.abs(x)?;
    let less = g.neg(magnitude)?;
    let less = g.exp(less)?;
    let rest = g.log1p(less)?;
    let x = g.max_scalar(x, 0.0)?;
    Ok(g.add(x, rest)?)
}

impl Block for DeltaNet {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let RecurrentHeads { groups, key, heads, value } = self.heads;
        let ([of_keys, of_values], tokens) = (self.heads.widths(), step.tokens);
        let [qkv, gate, strength, time] = self.project(step, x)?;
        let qkv = step.conv(self.layer, qkv, &self.conv)?;
        let g = &mut step.graph;
        let qkv = g.silu(qkv)?;
        let part = |g: &mut Graph, start: usize, heads: usize, len: usize| -> Result<NodeId> {
            let x = g.slice(qkv, 1, start, start + heads * len)?;
            let x = g.reshape(x, &[tokens, heads.into(), len.into()])?;
            Ok(g.copy(x)?)
        };
        let (q, k) = (part(g, 0, groups, key)?, part(g, of_keys, groups, key)?);
        let values = part(g, 2 * of_keys, heads, value)?;
        let units = [g.constant(&self.units[0])?, g.constant(&self.units[1])?];
        let keys = g.rms_norm(k, units[0], EPS / key as f32)?;
        let queries = g.rms_norm(q, units[1], EPS / key as f32)?;
        let strength = g.sigmoid(strength)?;
        let decay = self.decay(g, time)?;
        let (runs, state) = step.state(self.layer)?;
        let state = state.heads.clone().ok_or_else(|| step.no_state(self.layer))?;
        let operands = RecurrenceOperands { keys, values, decay, strength: Some(strength), runs: runs.list };
        let g = &mut step.graph;
        let state = g.state(&state)?;
        let state = g.recurrent_state(state, self.rule, operands)?;
        let y = g.recurrence(state, self.rule, queries, operands)?;
        let y = step.norm(y, &self.norm)?;
        let g = &mut step.graph;
        let gate = g.reshape(gate, &[tokens, heads.into(), value.into()])?;
        let y = g.swiglu(gate, y)?;
        let y = g.reshape(y, &[tokens, Dim::Fixed(of_values)])?;
        step.linear(y, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let inputs: Vec<&Linear> = match &self.inputs {
            Inputs::Apart(linears) => linears.iter().collect(),
            Inputs::ByHead(linears) => match &linears.0 {
                Mixed::All(all) => vec![all, &linears.1],
                Mixed::GateApart(mixed) => mixed.iter().chain([&linears.1]).collect(),
            },
        };
        let own = [&self.conv, &self.bias, &self.factor, &self.norm];
        inputs.into_iter().flat_map(Linear::tensors).chain(own).chain(self.output.tensors()).collect()
    }
}
