//! Attention over the cached positions of each token's sequence.

use hologram_core::ops::AttentionOptions;
use hologram_core::{NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::{LlmError, Result};
use crate::models::{HeadSizes, Rotary};

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
    /// Whether the rows of each query head are followed by those of its gate, whose sigmoid is the factor of its
    /// result.
    pub gated: bool,
    /// A score for each head that takes part in the softmax without a value.
    pub sinks: Option<&'static str>,
    /// Whether values have a norm without factors.
    pub value_norm: bool,
    /// Whether keys, before their norm, are also values in layers without a matrix for these.
    pub keys_as_values: bool,
}

/// Grouped-query attention with rotary embedding.
#[derive(Debug)]
pub(crate) struct Attention {
    /// The index of the layer in the cache.
    layer: usize,
    heads: HeadSizes,
    q: Linear,
    /// `None`: the layer reads the keys and values of another one.
    k: Option<Linear>,
    /// `None`: keys are also values.
    v: Option<Linear>,
    /// That of queries, and that of keys if the layer has its own.
    head_norms: Option<(Tensor, Option<Tensor>)>,
    /// Ones.
    value_norm: Option<Tensor>,
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
        let heads @ HeadSizes { kv_heads, head_dim } = c.heads_of(l.index);
        let (q_width, kv_width) = (c.heads * head_dim, kv_heads * head_dim);
        let shares = c.cache_layer(l.index) != l.index;
        if shares {
            // Some files have them, without effect.
            ["attn_k", "attn_v", "attn_k_norm"].into_iter().for_each(|name| l.weights.skip(&l.name(name, "weight")));
        }
        let has = |name: &str| l.weights.shape(&l.name(name, "weight")).is_some();
        let keys_are_values = parts.keys_as_values && has("attn_k") && !has("attn_v");
        let head_norms = |[q, k]: [&str; 2]| -> Result<(Tensor, Option<Tensor>)> {
            Ok((l.factors(q, head_dim)?, (!shares).then(|| l.factors(k, head_dim)).transpose()?))
        };
        let width_norms =
            |[q, k]: [&str; 2]| -> Result<[Tensor; 2]> { Ok([l.factors(q, q_width)?, l.factors(k, kv_width)?]) };
        let total = q_width + 2 * kv_width;
        let part = |name: &str, rows: std::ops::Range<usize>| match parts.fused {
            true => l.linear_rows("attn_qkv", total, rows, c.width),
            false => l.linear(name, rows.len(), c.width, parts.biased),
        };
        let of_rotated = match c.attention_scales(l.index).1 {
            1.0 => None,
            factor => {
                let factors: Vec<f32> = (0..head_dim).map(|i| if i < c.rope_dim { factor } else { 1.0 }).collect();
                Some(Tensor::from_slice(l.weights.executor(), &[head_dim], &factors)?)
            }
        };
        let attention = Attention {
            layer: l.index,
            heads,
            q: part("attn_q", 0..if parts.gated { 2 * q_width } else { q_width })?,
            k: (!shares).then(|| part("attn_k", q_width..q_width + kv_width)).transpose()?,
            v: (!shares && !keys_are_values).then(|| part("attn_v", q_width + kv_width..total)).transpose()?,
            head_norms: parts.head_norms.map(head_norms).transpose()?,
            value_norm: match parts.value_norm && !shares {
                true => Some(Tensor::from_slice(l.weights.executor(), &[head_dim], &vec![1.0f32; head_dim])?),
                false => None,
            },
            width_norms: parts.width_norms.map(width_norms).transpose()?,
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

impl Attention {
    /// Appends keys and values to the layer's cache. Returns both caches.
    fn append(&self, step: &mut Step<'_>, k: NodeId, v: NodeId) -> Result<[NodeId; 2]> {
        let [k_cache, v_cache] = match step.both {
            Some(both) => both.cache,
            None => {
                let (k_cache, v_cache) = step.cache.layer(self.layer).ok_or_else(|| self.no_cache(step))?;
                [step.graph.state(k_cache)?, step.graph.state(v_cache)?]
            }
        };
        let k_cache = step.graph.kv_append(k_cache, k, step.slots)?;
        let v_cache = step.graph.kv_append(v_cache, v, step.slots)?;
        step.appended.insert(self.layer, [k_cache, v_cache]);
        Ok([k_cache, v_cache])
    }

    fn no_cache(&self, step: &Step<'_>) -> LlmError {
        LlmError::Unsupported {
            path: step.config.name.clone().into(),
            what: format!("attention in layer {} without a cache", self.layer),
            supported: String::new(),
        }
    }
}

impl Block for Attention {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let (c, tokens) = (step.config, step.tokens);
        let HeadSizes { kv_heads, head_dim } = self.heads;
        let (mut q, mut own) = match (&self.k, &self.v) {
            (Some(k), Some(v)) => {
                let [q, k, v] = step.linears(x, [&self.q, k, v])?;
                (q, Some([k, v]))
            }
            (Some(k), None) => {
                let [q, k] = step.linears(x, [&self.q, k])?;
                (q, Some([k, k]))
            }
            (None, _) => (step.linear(x, &self.q)?, None),
        };
        if let Some([of_q, of_k]) = &self.width_norms {
            q = step.norm(q, of_q)?;
            if let Some([k, _]) = &mut own {
                *k = step.norm(*k, of_k)?;
            }
        }
        let mut gate = None;
        if self.gated {
            let g = &mut step.graph;
            let both = g.reshape(q, &[tokens, c.heads.into(), (2 * head_dim).into()])?;
            gate = Some(g.slice(both, 2, head_dim, 2 * head_dim)?);
            q = g.slice(both, 2, 0, head_dim)?;
            q = g.copy(q)?;
        }
        let mut q = step.graph.reshape(q, &[tokens, c.heads.into(), head_dim.into()])?;
        for own in own.iter_mut().flatten() {
            *own = step.graph.reshape(*own, &[tokens, kv_heads.into(), head_dim.into()])?;
        }
        if let Some((of_q, of_k)) = &self.head_norms {
            q = step.norm(q, of_q)?;
            if let (Some([k, _]), Some(of_k)) = (&mut own, of_k) {
                *k = step.norm(*k, of_k)?;
            }
        }
        if let (Some([_, v]), Some(ones)) = (&mut own, &self.value_norm) {
            *v = step.norm(*v, ones)?;
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
        let [k_cache, v_cache] = match own {
            Some([k, v]) => {
                let k = step.rope(k, rotary)?;
                self.append(step, k, v)?
            }
            None => {
                let found = step.appended.get(&c.cache_layer(self.layer));
                *found.ok_or_else(|| self.no_cache(step))?
            }
        };
        let g = &mut step.graph;
        let window = c.windows.get(self.layer).copied().flatten();
        let sinks = self.sinks.as_ref().map(|sinks| g.constant(sinks)).transpose()?;
        let (precision, pieces, cap) = (step.precision, step.pieces, c.scales.attention_cap);
        let mut options = AttentionOptions { precision, pieces, cap, sinks, ..AttentionOptions::default() };
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
        let mut a = g.reshape(a, &[tokens, (c.heads * head_dim).into()])?;
        if let Some(factors) = &self.sub_norm {
            a = step.norm(a, factors)?;
        }
        step.linear(a, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let inputs = std::iter::once(&self.q).chain(&self.k).chain(&self.v).flat_map(Linear::tensors);
        let norms = self.head_norms.iter().flat_map(|(q, k)| std::iter::once(q).chain(k));
        let norms = norms.chain(self.width_norms.iter().flatten()).chain(&self.sub_norm).chain(&self.sinks);
        inputs.chain(norms).chain(self.output.tensors()).collect()
    }
}
