//! Attention to latent vectors (multi-head latent attention; DeepSeek-V2, 2024, arXiv:2405.04434), absorbed: the
//! matrices that would make keys and values of the latent vectors are applied to queries and results instead.

use half::bf16;
use hologram_core::ops::AttentionOptions;
use hologram_core::{Executor, NodeId, Tensor};

use super::linear::ExpertWeight;
use super::{Block, Linear, Loader, Step};
use crate::error::{LlmError, Result};
use crate::models::{Latent, Rotary};

/// The cache of a layer has one head: the rotated part of the key, then the latent vector, which is also the value.
#[derive(Debug)]
pub(crate) struct LatentAttention {
    layer: usize,
    sizes: Latent,
    q: Queries,
    kv: Linear,
    kv_norm: Tensor,
    /// Per head what turns the part of queries that is not rotated to the latent vectors, `[heads * rank, plain]`, and
    /// the mean of latent vectors to values, `[heads * value, rank]`.
    absorbed: [Tensor; 2],
    /// Their names in GGUF files.
    names: [String; 2],
    /// The numbers of the heads, `[1, heads]`.
    heads: Tensor,
    output: Linear,
}

/// What makes queries.
#[derive(Debug)]
enum Queries {
    Direct(Box<Linear>),
    /// By a smaller vector, with a norm.
    Through(Box<(Linear, Tensor, Linear)>),
}

impl LatentAttention {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights), or when the model has no latent vectors.
    pub fn load(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
        let c = l.config;
        let sizes = c.latent.ok_or_else(|| l.no_state())?;
        let Latent { rank, plain, rotated, value, q_rank } = sizes;
        let of_q = c.heads * (plain + rotated);
        let q = match q_rank {
            None => Queries::Direct(Box::new(l.linear("attn_q", of_q, c.width, false)?)),
            Some(small) => Queries::Through(Box::new((
                l.linear("attn_q_a", small, c.width, false)?,
                l.factors("attn_q_a_norm", small)?,
                l.linear("attn_q_b", of_q, small, false)?,
            ))),
        };
        let executor = l.weights.executor();
        let both = l.name("attn_kv_b", "weight");
        let absorbed = match l.weights.shape(&l.name("attn_k_b", "weight")) {
            Some(_) => [
                l.weights.expert_matrices(&l.name("attn_k_b", "weight"), c.heads, rank, plain)?,
                l.weights.expert_matrices(&l.name("attn_v_b", "weight"), c.heads, value, rank)?,
            ],
            // Per head the rows for keys, then those for values.
            None => {
                let all = l.weights.small(&both, [c.heads * (plain + value), rank])?.to_vec::<f32>()?;
                let (mut k, mut v) = (Vec::with_capacity(c.heads * rank * plain), Vec::new());
                for head in all.chunks_exact((plain + value) * rank) {
                    k.extend((0..rank).flat_map(|r| (0..plain).map(move |p| head[p * rank + r])));
                    v.extend_from_slice(&head[plain * rank..]);
                }
                [matrices(executor, [c.heads * rank, plain], &k)?, matrices(executor, [c.heads * value, rank], &v)?]
            }
        };
        let numbers: Vec<u32> = (0..c.heads as u32).collect();
        let attention = LatentAttention {
            layer: l.index,
            sizes,
            kv: l.linear("attn_kv_a_mqa", rank + rotated, c.width, false)?,
            kv_norm: l.factors("attn_kv_a_norm", rank)?,
            absorbed,
            names: ["attn_k_b", "attn_v_b"].map(|name| l.name(name, "weight")),
            heads: Tensor::from_slice(executor, &[1, c.heads], &numbers)?,
            output: l.linear("attn_output", c.width, c.heads * value, false)?,
            q,
        };
        l.attention.push(attention.output.weight.dtype());
        Ok(Box::new(attention))
    }

    /// The numbers of the heads for each token, which all layers share.
    fn head_numbers(&self, step: &mut Step<'_>) -> Result<NodeId> {
        if let Some(numbers) = step.head_numbers {
            return Ok(numbers);
        }
        let g = &mut step.graph;
        let numbers = g.constant(&self.heads)?;
        let numbers = g.broadcast_to(numbers, &[step.tokens, step.config.heads.into()])?;
        let numbers = g.copy(numbers)?;
        step.head_numbers = Some(numbers);
        Ok(numbers)
    }
}

/// Rows of matrices, in `bf16` if that holds all values: tensor cores multiply those of many tokens.
fn matrices(executor: &Executor, shape: [usize; 2], values: &[f32]) -> Result<Tensor> {
    if values.iter().any(|v| v.to_bits() & 0xffff != 0) {
        return Ok(Tensor::from_slice(executor, &shape, values)?);
    }
    let narrow: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
    Ok(Tensor::from_slice(executor, &shape, &narrow)?)
}

impl Block for LatentAttention {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let Latent { rank, plain, rotated, value, .. } = self.sizes;
        let (c, tokens, rows) = (step.config, step.tokens, step.rows);
        let (q, kv) = match &self.q {
            Queries::Direct(q) => step.linears(x, [q, &self.kv])?.into(),
            Queries::Through(parts) => {
                let (small, norm, q) = &**parts;
                let [small, kv] = step.linears(x, [small, &self.kv])?;
                let small = step.norm(small, norm)?;
                (step.linear(small, q)?, kv)
            }
        };
        let numbers = self.head_numbers(step)?;
        let g = &mut step.graph;
        let q = g.reshape(q, &[tokens, c.heads.into(), (plain + rotated).into()])?;
        let of_plain = g.slice(q, 2, 0, plain)?;
        let of_plain = g.copy(of_plain)?;
        let of_plain = g.reshape(of_plain, &[tokens, (c.heads * plain).into()])?;
        let mut of_rotated = g.slice(q, 2, plain, plain + rotated)?;
        let (scale, factor) = c.attention_scales(self.layer);
        if factor != 1.0 {
            of_rotated = g.mul_scalar(of_rotated, factor.into())?;
        }
        let of_heads = |i: usize| {
            let (name, weight) = (self.names[i].as_str(), &self.absorbed[i]);
            ExpertWeight { name, weight, bias: None, ids: (numbers, c.heads), used: c.heads, own_inputs: true }
        };
        let of_latent = step.linears.of_experts(g, of_plain, &of_heads(0), rows)?;
        let of_latent = g.reshape(of_latent, &[tokens, c.heads.into(), rank.into()])?;
        let q = g.cat(&[of_rotated, of_latent], 2)?;
        let latent = g.slice(kv, 1, 0, rank)?;
        let latent = g.copy(latent)?;
        let key = g.slice(kv, 1, rank, rank + rotated)?;
        let latent = step.norm(latent, &self.kv_norm)?;
        let g = &mut step.graph;
        let key = g.cat(&[key, latent], 1)?;
        let key = g.reshape(key, &[tokens, 1.into(), (rotated + rank).into()])?;
        let rotary = c.rotary.get(self.layer).copied().unwrap_or(Rotary::Scaled);
        let q = step.rope(q, rotary)?;
        let key = step.rope(key, rotary)?;
        let cache = step.cache.layer(self.layer).map(|(keys, _)| keys).ok_or_else(|| LlmError::Unsupported {
            path: c.name.clone().into(),
            what: format!("attention in layer {} without a cache", self.layer),
            supported: String::new(),
        })?;
        let g = &mut step.graph;
        let cache = g.state(cache)?;
        let cache = g.kv_append(cache, key, step.slots)?;
        let options =
            AttentionOptions { precision: step.precision, pieces: step.pieces, ..AttentionOptions::default() };
        let (positions, sequences, table) = (step.positions, step.sequences, step.block_table);
        let a = g.attention_with(q, cache, cache, positions, sequences, table, scale, options)?;
        let a = g.slice(a, 2, rotated, rotated + rank)?;
        let a = g.copy(a)?;
        let a = g.reshape(a, &[tokens, (c.heads * rank).into()])?;
        let y = step.linears.of_experts(g, a, &of_heads(1), rows)?;
        let y = g.reshape(y, &[tokens, (c.heads * value).into()])?;
        step.linear(y, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let q: Vec<&Tensor> = match &self.q {
            Queries::Direct(q) => q.tensors().collect(),
            Queries::Through(parts) => parts.0.tensors().chain([&parts.1]).chain(parts.2.tensors()).collect(),
        };
        let kv = self.kv.tensors().chain([&self.kv_norm]).chain(&self.absorbed);
        q.into_iter().chain(kv).chain(self.output.tensors()).collect()
    }
}
