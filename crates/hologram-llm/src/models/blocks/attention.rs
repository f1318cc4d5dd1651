//! Attention over the cached positions of each token's sequence.

use hologram_core::ops::AttentionOptions;
use hologram_core::{NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::{LlmError, Result};
use crate::models::Rotary;

/// The optional parts of an attention block, by tensor name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttentionParts {
    /// Whether biases of queries, keys and values are required. Any projection may have one.
    pub biased: bool,
    /// Norms of each query head and each key head, before rotary embedding.
    pub head_norms: Option<[&'static str; 2]>,
    /// Norms of all queries and all keys of a token, before rotary embedding.
    pub width_norms: Option<[&'static str; 2]>,
    /// Whether queries, keys and values are rows of one matrix, `attn_qkv`.
    pub fused: bool,
    /// A norm before the output projection.
    pub sub_norm: Option<&'static str>,
    /// Whether the rows of each query head are followed by those of its gate, whose sigmoid is the factor of its result.
    pub gated: bool,
    /// A score for each head that takes part in the softmax without a value.
    pub sinks: Option<&'static str>,
}

/// Grouped-query attention with rotary embedding.
#[derive(Debug)]
pub(crate) struct Attention {
    /// The index of the layer in the cache.
    layer: usize,
    q: Linear,
    k: Linear,
    v: Linear,
    head_norms: Option<[Tensor; 2]>,
    width_norms: Option<[Tensor; 2]>,
    /// Per element of a head a factor of queries, if rotary embedding scales only a part of it.
    of_rotated: Option<Tensor>,
    sub_norm: Option<Tensor>,
    gated: bool,
    sinks: Option<Tensor>,
    output: Linear,
}

impl Attention {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load(l: &mut Loader<'_>, parts: AttentionParts) -> Result<Box<dyn Block>> {
        let c = l.config;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let norms = |names: Option<[&str; 2]>, lens: [usize; 2]| -> Result<Option<[Tensor; 2]>> {
            names.map(|[q, k]| Ok([l.factors(q, lens[0])?, l.factors(k, lens[1])?])).transpose()
        };
        let total = q_width + 2 * kv_width;
        let part = |name: &str, rows: std::ops::Range<usize>| match parts.fused {
            true => l.linear_rows("attn_qkv", total, rows, c.width),
            false => l.linear(name, rows.len(), c.width, parts.biased),
        };
        let of_rotated = match c.attention_scales(l.index).1 {
            1.0 => None,
            factor => {
                let factors: Vec<f32> = (0..c.head_dim).map(|i| if i < c.rope_dim { factor } else { 1.0 }).collect();
                Some(Tensor::from_slice(l.weights.executor(), &[c.head_dim], &factors)?)
            }
        };
        let attention = Attention {
            layer: l.index,
            q: part("attn_q", 0..if parts.gated { 2 * q_width } else { q_width })?,
            k: part("attn_k", q_width..q_width + kv_width)?,
            v: part("attn_v", q_width + kv_width..total)?,
            head_norms: norms(parts.head_norms, [c.head_dim; 2])?,
            width_norms: norms(parts.width_norms, [q_width, kv_width])?,
            of_rotated,
            sub_norm: parts.sub_norm.map(|name| l.factors(name, q_width)).transpose()?,
            gated: parts.gated,
            sinks: parts.sinks.map(|name| l.factors(name, c.heads)).transpose()?,
            output: l.linear("attn_output", c.width, q_width, false)?,
        };
        l.attention.push(attention.q.weight.dtype());
        Ok(Box::new(attention))
    }
}

impl Block for Attention {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let (c, tokens) = (step.config, step.tokens);
        let [mut q, mut k, v] = step.linears(x, [&self.q, &self.k, &self.v])?;
        if let Some([of_q, of_k]) = &self.width_norms {
            q = step.norm(q, of_q)?;
            k = step.norm(k, of_k)?;
        }
        let mut gate = None;
        if self.gated {
            let g = &mut step.graph;
            let both = g.reshape(q, &[tokens, c.heads.into(), (2 * c.head_dim).into()])?;
            gate = Some(g.slice(both, 2, c.head_dim, 2 * c.head_dim)?);
            q = g.slice(both, 2, 0, c.head_dim)?;
            q = g.copy(q)?;
        }
        let mut q = step.graph.reshape(q, &[tokens, c.heads.into(), c.head_dim.into()])?;
        let mut k = step.graph.reshape(k, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
        let v = step.graph.reshape(v, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
        if let Some([of_q, of_k]) = &self.head_norms {
            q = step.norm(q, of_q)?;
            k = step.norm(k, of_k)?;
        }
        if let Some(factors) = &self.of_rotated {
            let factors = step.graph.constant(factors)?;
            q = step.graph.mul(q, factors)?;
        }
        if let Some(growth) = step.query_growth()? {
            q = step.graph.mul(q, growth)?;
        }
        let rotary = c.rotary.get(self.layer).copied().unwrap_or(Rotary::Scaled);
        let q = step.rope(q, rotary)?;
        let k = step.rope(k, rotary)?;
        let g = &mut step.graph;
        let [k_cache, v_cache] = match step.both {
            Some(both) => both.cache,
            None => {
                let caches = step.cache.layer(self.layer);
                let (k_cache, v_cache) = caches.ok_or_else(|| LlmError::Unsupported {
                    path: c.name.clone().into(),
                    what: format!("attention in layer {} without a cache", self.layer),
                    supported: String::new(),
                })?;
                [g.state(k_cache)?, g.state(v_cache)?]
            }
        };
        let k_cache = g.kv_append(k_cache, k, step.slots)?;
        let v_cache = g.kv_append(v_cache, v, step.slots)?;
        let window = c.windows.get(self.layer).copied().flatten();
        let sinks = self.sinks.as_ref().map(|sinks| g.constant(sinks)).transpose()?;
        let (precision, cap) = (step.precision, c.scales.attention_cap);
        let mut options = AttentionOptions { precision, cap, sinks, ..AttentionOptions::default() };
        let positions = match &mut step.both {
            Some(both) => {
                both.cache = [k_cache, v_cache];
                match both.window.filter(|_| window.is_some()) {
                    Some([first, last]) => {
                        options.firsts = Some(first);
                        last
                    }
                    None => both.lasts,
                }
            }
            None => {
                // A window that no sequence can exceed has no effect.
                options.window = window.filter(|n| (*n as usize) < step.cache.context());
                step.positions
            }
        };
        let (sequences, table) = (step.sequences, step.block_table);
        let (scale, _) = c.attention_scales(self.layer);
        let mut a = g.attention_with(q, k_cache, v_cache, positions, sequences, table, scale, options)?;
        if let Some(gate) = gate {
            let gate = g.sigmoid(gate)?;
            a = g.mul(a, gate)?;
        }
        let mut a = g.reshape(a, &[tokens, (c.heads * c.head_dim).into()])?;
        if let Some(factors) = &self.sub_norm {
            a = step.norm(a, factors)?;
        }
        step.linear(a, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let inputs = [&self.q, &self.k, &self.v].into_iter().flat_map(Linear::tensors);
        let norms = self.head_norms.iter().chain(&self.width_norms).flatten();
        let norms = norms.chain(&self.sub_norm).chain(&self.sinks);
        inputs.chain(norms).chain(self.output.tensors()).collect()
    }
}
