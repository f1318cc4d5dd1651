//! Attention over the cached positions of each token's sequence.

use hologram_core::ops::AttentionOptions;
use hologram_core::{NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::Result;

/// The optional parts of an attention block, by tensor name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttentionParts {
    /// Whether biases of queries, keys and values are required. Any projection may have one.
    pub biased: bool,
    /// Norms of each query head and each key head, before rotary embedding.
    pub head_norms: Option<[&'static str; 2]>,
    /// A norm before the output projection.
    pub sub_norm: Option<&'static str>,
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
    sub_norm: Option<Tensor>,
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
        let head_norm = |name: &str| l.factors(name, c.head_dim);
        let attention = Attention {
            layer: l.index,
            q: l.linear("attn_q", q_width, c.width, parts.biased)?,
            k: l.linear("attn_k", kv_width, c.width, parts.biased)?,
            v: l.linear("attn_v", kv_width, c.width, parts.biased)?,
            head_norms: parts.head_norms.map(|[q, k]| Result::Ok([head_norm(q)?, head_norm(k)?])).transpose()?,
            sub_norm: parts.sub_norm.map(|name| l.factors(name, q_width)).transpose()?,
            output: l.linear("attn_output", c.width, q_width, false)?,
        };
        l.attention.push(attention.q.weight.dtype());
        Ok(Box::new(attention))
    }
}

impl Block for Attention {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let (c, tokens) = (step.config, step.tokens);
        let [q, k, v] = step.linears(x, [&self.q, &self.k, &self.v])?;
        let mut q = step.graph.reshape(q, &[tokens, c.heads.into(), c.head_dim.into()])?;
        let mut k = step.graph.reshape(k, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
        let v = step.graph.reshape(v, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
        if let Some([of_q, of_k]) = &self.head_norms {
            q = step.norm(q, of_q)?;
            k = step.norm(k, of_k)?;
        }
        let g = &mut step.graph;
        let q = g.rope(q, step.positions, step.frequencies, c.rope)?;
        let k = g.rope(k, step.positions, step.frequencies, c.rope)?;
        let (k_cache, v_cache) = step.cache.layer(self.layer);
        let (k_cache, v_cache) = (g.state(k_cache)?, g.state(v_cache)?);
        let k_cache = g.kv_append(k_cache, k, step.slots)?;
        let v_cache = g.kv_append(v_cache, v, step.slots)?;
        // A window that no sequence can exceed has no effect.
        let window = c.windows.get(self.layer).copied().flatten().filter(|n| (*n as usize) < step.cache.context());
        let options = AttentionOptions { precision: step.precision, window };
        let (positions, sequences, table) = (step.positions, step.sequences, step.block_table);
        let scale = c.attention_scale();
        let a = g.attention_with(q, k_cache, v_cache, positions, sequences, table, scale, options)?;
        let mut a = g.reshape(a, &[tokens, (c.heads * c.head_dim).into()])?;
        if let Some(factors) = &self.sub_norm {
            a = step.norm(a, factors)?;
        }
        step.linear(a, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let inputs = [&self.q, &self.k, &self.v].into_iter().flat_map(Linear::tensors);
        let norms = self.head_norms.iter().flatten().chain(&self.sub_norm);
        inputs.chain(norms).chain(self.output.tensors()).collect()
    }
}
