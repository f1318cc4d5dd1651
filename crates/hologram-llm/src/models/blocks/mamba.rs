//! Mamba2 (Dao and Gu, 2024, arXiv:2405.21060).

use hologram_core::ops::{Recurrence, RecurrenceOperands};
use hologram_core::{Graph, NodeId, Tensor};

use super::delta_net::softplus;
use super::{Block, Linear, Loader, Step};
use crate::error::Result;
use crate::models::{RecurrentHeads, StateRule};

/// What [`Multipliers`](crate::models::Multipliers) call the parts of the first product, in their order.
pub(crate) const MAMBA_PARTS: [&str; 5] =
    ["ssm_in gates", "ssm_in inputs", "ssm_in keys", "ssm_in queries", "ssm_in times"];

/// The weights of the convolution, with the factors of its inputs.
fn conv(l: &Loader<'_>, channels: usize, heads: RecurrentHeads) -> Result<Tensor> {
    let weights = l.conv("ssm_conv1d")?;
    let [of_keys, inner] = heads.widths();
    let of = |part: &str| l.config.multipliers.of(part);
    let [_, inputs, keys, queries, _] = MAMBA_PARTS.map(of);
    let factors = [(inputs, inner), (keys, of_keys), (queries, of_keys)];
    if factors.iter().all(|(factor, _)| *factor == 1.0) {
        return Ok(weights);
    }
    let width = weights.shape().last().copied().unwrap_or(1);
    let rows = factors.iter().flat_map(|(factor, len)| std::iter::repeat_n(*factor, *len));
    let mut values: Vec<f32> = weights.to_vec()?;
    for (row, factor) in values.chunks_mut(width.max(1)).zip(rows) {
        row.iter_mut().for_each(|v| *v *= factor);
    }
    Ok(Tensor::from_slice(l.weights.executor(), &[channels, width], &values)?)
}

/// A state space model by heads: inputs, input and output vectors after a short convolution, a recurrence whose decay
/// and step depend on the token, and a norm after the gate.
#[derive(Debug)]
pub(crate) struct Mamba {
    layer: usize,
    heads: RecurrentHeads,
    /// Gates; what the convolution takes; time steps.
    inputs: [Linear; 3],
    /// `[channels, width]`, and its bias.
    conv: Tensor,
    conv_bias: Option<Tensor>,
    /// Per head the bias of the time step, the negative factor that makes it the logarithm of the decay, and the
    /// weight of the input itself (`[heads, 1]`).
    bias: Tensor,
    factor: Tensor,
    skip: Tensor,
    /// The factors of the norm by groups, `[groups, elements]`, and ones, if there is a norm.
    norm: Option<[Tensor; 2]>,
    output: Linear,
}

impl Mamba {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights), or when the model has no such heads.
    pub fn load(l: &Loader<'_>) -> Result<Box<dyn Block>> {
        let c = l.config;
        let recurrent = c.recurrent.as_ref().ok_or_else(|| l.no_state())?;
        let h = recurrent.heads.ok_or_else(|| l.no_state())?;
        let [_, inner] = h.widths();
        let ends = [inner, inner + recurrent.channels, inner + recurrent.channels + h.heads];
        let rows = |start: usize, end: usize| l.linear_rows("ssm_in", ends[2], start..end, c.width);
        let mut inputs = [rows(0, ends[0])?, rows(ends[0], ends[1])?, rows(ends[1], ends[2])?];
        let [gates, .., times] = MAMBA_PARTS;
        inputs[0].scale = c.multipliers.times(inputs[0].scale, gates);
        inputs[2].scale = c.multipliers.times(inputs[2].scale, times);
        let executor = l.weights.executor();
        let conv_bias = l.name("ssm_conv1d", "bias");
        // Files of a folder have the logarithm of the positive factor.
        let factor = match l.weights.optional_values(&l.name("ssm_a_log", "weight"), h.heads)? {
            Some(logs) => {
                let factors: Vec<f32> = logs.into_iter().map(|log| -log.exp()).collect();
                Tensor::from_slice(executor, &[h.heads], &factors)?
            }
            None => l.weights.small(&format!("blk.{}.ssm_a", l.index), [1, h.heads])?.reshape(&[h.heads])?,
        };
        let elements = inner / h.groups;
        let norm = l.name("ssm_norm", "weight");
        let norm = match l.weights.shape(&norm).as_deref() {
            None if c.architecture.state == Some(StateRule::MambaBeside) => None,
            Some(&[len]) if len == inner => Some(l.weights.vector(&norm, inner)?.reshape(&[h.groups, elements])?),
            _ => Some(l.weights.small(&norm, [h.groups, elements])?),
        };
        let ones = || Tensor::from_slice(executor, &[elements], &vec![1.0f32; elements]);
        Ok(Box::new(Mamba {
            layer: l.index,
            heads: h,
            inputs,
            conv: conv(l, recurrent.channels, h)?,
            conv_bias: l
                .weights
                .shape(&conv_bias)
                .map(|_| l.weights.vector(&conv_bias, recurrent.channels))
                .transpose()?,
            bias: l.weights.vector(&l.name("ssm_dt", "bias"), h.heads)?,
            factor,
            skip: l.weights.small(&format!("blk.{}.ssm_d", l.index), [h.heads, 1])?,
            norm: norm.map(|norm| Ok::<_, crate::error::LlmError>([norm, ones()?])).transpose()?,
            output: l.linear("ssm_out", c.width, inner, false)?,
        }))
    }
}

impl Block for Mamba {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let RecurrentHeads { groups, key, heads, value } = self.heads;
        let ([of_keys, inner], tokens) = (self.heads.widths(), step.tokens);
        let [gate, x, time] = step.linears(x, self.inputs.each_ref())?;
        let x = step.conv(self.layer, x, &self.conv)?;
        let g = &mut step.graph;
        let x = match &self.conv_bias {
            None => x,
            Some(bias) => {
                let bias = g.constant(bias)?;
                g.add(x, bias)?
            }
        };
        let x = g.silu(x)?;
        let part = |g: &mut Graph, start: usize, heads: usize, len: usize| -> Result<NodeId> {
            let x = g.slice(x, 1, start, start + heads * len)?;
            let x = g.reshape(x, &[tokens, heads.into(), len.into()])?;
            Ok(g.copy(x)?)
        };
        let inputs = part(g, 0, heads, value)?;
        let (keys, queries) = (part(g, inner, groups, key)?, part(g, inner + of_keys, groups, key)?);
        let (bias, factor) = (g.constant(&self.bias)?, g.constant(&self.factor)?);
        let time = g.add(time, bias)?;
        let time = softplus(g, time)?;
        let decay = g.mul(time, factor)?;
        let decay = g.exp(decay)?;
        let time = g.reshape(time, &[tokens, heads.into(), 1.into()])?;
        let values = g.mul(inputs, time)?;
        let (runs, state) = step.state(self.layer)?;
        let state = state.heads.clone().ok_or_else(|| step.no_state(self.layer))?;
        let operands = RecurrenceOperands { keys, values, decay, strength: None, runs: runs.list };
        let rule = Recurrence::default();
        let g = &mut step.graph;
        let state = g.state(&state)?;
        let state = g.recurrent_state(state, rule, operands)?;
        let y = g.recurrence(state, rule, queries, operands)?;
        let skip = g.constant(&self.skip)?;
        let own = g.mul(inputs, skip)?;
        let y = g.add(y, own)?;
        let y = g.reshape(y, &[tokens, inner.into()])?;
        let mut y = g.swiglu(gate, y)?;
        if let Some([norm, ones]) = &self.norm {
            y = g.reshape(y, &[tokens, groups.into(), (inner / groups).into()])?;
            y = step.norm(y, ones)?;
            let g = &mut step.graph;
            let norm = g.constant(norm)?;
            y = g.mul(y, norm)?;
            y = g.reshape(y, &[tokens, inner.into()])?;
        }
        step.linear(y, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let own = [&self.conv, &self.bias, &self.factor, &self.skip];
        let inputs = self.inputs.iter().flat_map(Linear::tensors);
        inputs
            .chain(own)
            .chain(self.norm.iter().map(|[norm, _]| norm))
            .chain(&self.conv_bias)
            .chain(self.output.tensors())
            .collect()
    }
}
