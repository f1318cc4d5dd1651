//! The graph of a decoder-only transformer.

use std::collections::HashMap;

use hologram_backends::Format;
use hologram_core::{Dim, Graph, NodeId, Tensor};
use hologram_isa::Type;

use crate::error::Result;
use crate::kv::KvCache;
use crate::models::config::Config;
use crate::models::{Gate, TernaryActivations};
use crate::weights::Weights;

/// The weights of a model on its device.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    output_norm: Tensor,
    /// The output matrix; the embedding where the file has none (tied).
    output: Tensor,
    rope_frequencies: Tensor,
}

#[derive(Debug)]
struct Layer {
    attn_norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_sub_norm: Option<Tensor>,
    attn_output: Tensor,
    ffn_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    ffn_sub_norm: Option<Tensor>,
    down: Tensor,
}

impl Decoder {
    /// Takes the weights.
    ///
    /// # Errors
    /// A tensor is missing or has another shape or a type that is not supported.
    pub fn load(config: Config, weights: &dyn Weights) -> Result<Decoder> {
        let c = &config;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut layers = Vec::with_capacity(c.layers);
        for i in 0..c.layers {
            let matrix = |name: &str, rows: usize, row_len: usize| {
                weights.matrix(&format!("blk.{i}.{name}.weight"), rows, row_len)
            };
            let norm = |name: &str, len: usize| weights.vector(&format!("blk.{i}.{name}.weight"), len);
            let sub_norm = |name: &str, len| c.architecture.sub_norms.then(|| norm(name, len)).transpose();
            layers.push(Layer {
                attn_norm: norm("attn_norm", c.width)?,
                q: matrix("attn_q", q_width, c.width)?,
                k: matrix("attn_k", kv_width, c.width)?,
                v: matrix("attn_v", kv_width, c.width)?,
                attn_sub_norm: sub_norm("attn_sub_norm", q_width)?,
                attn_output: matrix("attn_output", c.width, q_width)?,
                ffn_norm: norm("ffn_norm", c.width)?,
                gate: matrix("ffn_gate", c.ffn, c.width)?,
                up: matrix("ffn_up", c.ffn, c.width)?,
                ffn_sub_norm: sub_norm("ffn_sub_norm", c.ffn)?,
                down: matrix("ffn_down", c.width, c.ffn)?,
            });
        }
        let embedding = weights.matrix("token_embd.weight", c.vocab, c.width)?;
        let output = match weights.optional_matrix("output.weight", c.vocab, c.width)? {
            Some(output) => output,
            None => embedding.clone(),
        };
        let factors = weights.optional_values("rope_freqs.weight", c.rope_dim / 2)?;
        let frequencies = c.rope_frequencies(factors.as_deref());
        let rope_frequencies = Tensor::from_slice(weights.executor(), &[frequencies.len()], &frequencies)?;
        let output_norm = weights.vector("output_norm.weight", c.width)?;
        Ok(Decoder { embedding, layers, output_norm, output, rope_frequencies, config })
    }

    /// Bytes of weights that one decoded token reads: every matrix and norm once, and one row of the embedding.
    pub fn bytes_per_token(&self) -> usize {
        let layer = |l: &Layer| {
            let all = [&l.attn_norm, &l.q, &l.k, &l.v, &l.attn_output, &l.ffn_norm, &l.gate, &l.up, &l.down];
            let sub_norms = [&l.attn_sub_norm, &l.ffn_sub_norm];
            let sub_norms: usize = sub_norms.into_iter().flatten().map(Tensor::bytes).sum();
            all.iter().map(|t| t.bytes()).sum::<usize>() + sub_norms
        };
        let row = self.embedding.bytes() / self.config.vocab.max(1);
        self.layers.iter().map(layer).sum::<usize>() + self.output_norm.bytes() + self.output.bytes() + row
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> usize {
        let row = self.embedding.bytes() / self.config.vocab.max(1);
        let tied = self.output.shape() == self.embedding.shape() && self.output.same_memory(&self.embedding);
        self.bytes_per_token() - row + if tied { 0 } else { self.embedding.bytes() }
    }

    /// The graph of one step for up to `batch` tokens of the cache's sequences.
    ///
    /// Inputs: `ids`, `positions`, `sequences` and `slots` (`u32 [tokens]`), `block_table` (`u32 [sequences, blocks]`) and `rows`
    /// (`u32 [outputs]`), the tokens whose `logits` (`f32 [outputs, vocabulary]`) are wanted.
    ///
    /// # Errors
    /// When weights do not fit together.
    pub fn graph(&self, cache: &KvCache, batch: usize) -> Result<Graph> {
        let c = &self.config;
        let mut g = Graph::new();
        let tokens = g.extent("tokens", batch);
        let outputs = g.extent("outputs", batch);
        let ids = g.input("ids", Format::U32, &[tokens])?;
        let positions = g.input("positions", Format::U32, &[tokens])?;
        let sequences = g.input("sequences", Format::U32, &[tokens])?;
        let slots = g.input("slots", Format::U32, &[tokens])?;
        let table = [cache.max_sequences(), cache.blocks_per_sequence()].map(Dim::Fixed);
        let block_table = g.input("block_table", Format::U32, &table)?;
        let rows = g.input("rows", Format::U32, &[outputs])?;
        let frequencies = g.constant(&self.rope_frequencies)?;
        let mut linears = Linears { ternary: c.architecture.ternary, quantized: HashMap::new() };

        let embedding = g.constant(&self.embedding)?;
        let mut x = g.gather(embedding, ids)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let h = norm(&mut g, x, &layer.attn_norm, c.eps)?;
            let q = linears.apply(&mut g, h, &layer.q)?;
            let k = linears.apply(&mut g, h, &layer.k)?;
            let v = linears.apply(&mut g, h, &layer.v)?;
            let q = g.reshape(q, &[tokens, c.heads.into(), c.head_dim.into()])?;
            let k = g.reshape(k, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
            let v = g.reshape(v, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
            let q = g.rope(q, positions, frequencies, c.architecture.rope)?;
            let k = g.rope(k, positions, frequencies, c.architecture.rope)?;
            let (k_cache, v_cache) = cache.layer(i);
            let (k_cache, v_cache) = (g.state(k_cache)?, g.state(v_cache)?);
            let k_cache = g.kv_append(k_cache, k, slots)?;
            let v_cache = g.kv_append(v_cache, v, slots)?;
            let scale = 1.0 / (c.head_dim as f32).sqrt();
            let a = g.attention(q, k_cache, v_cache, positions, sequences, block_table, scale)?;
            let mut a = g.reshape(a, &[tokens, (c.heads * c.head_dim).into()])?;
            if let Some(w) = &layer.attn_sub_norm {
                a = norm(&mut g, a, w, c.eps)?;
            }
            let a = linears.apply(&mut g, a, &layer.attn_output)?;
            x = g.add(x, a)?;

            let h = norm(&mut g, x, &layer.ffn_norm, c.eps)?;
            let gate = linears.apply(&mut g, h, &layer.gate)?;
            let up = linears.apply(&mut g, h, &layer.up)?;
            let mut f = match c.architecture.gate {
                Gate::Swiglu => g.swiglu(gate, up)?,
                Gate::Relu2 => g.relu2_mul(gate, up)?,
            };
            if let Some(w) = &layer.ffn_sub_norm {
                f = norm(&mut g, f, w, c.eps)?;
            }
            let f = linears.apply(&mut g, f, &layer.down)?;
            x = g.add(x, f)?;
        }
        let x = g.gather(x, rows)?;
        let x = norm(&mut g, x, &self.output_norm, c.eps)?;
        let logits = linears.apply(&mut g, x, &self.output)?;
        g.output("logits", logits)?;
        Ok(g)
    }
}

fn norm(g: &mut Graph, x: NodeId, weight: &Tensor, eps: f32) -> Result<NodeId> {
    let w = g.constant(weight)?;
    Ok(g.rms_norm(x, w, eps)?)
}

/// Linear layers, with the precision of activations that goes with each weight format.
struct Linears {
    ternary: TernaryActivations,
    /// Activations that were converted already, by node and format.
    quantized: HashMap<(NodeId, Format), NodeId>,
}

impl Linears {
    fn apply(&mut self, g: &mut Graph, x: NodeId, weight: &Tensor) -> Result<NodeId> {
        let w = g.constant(weight)?;
        let row_len = weight.shape().last().copied().unwrap_or(0);
        let (format, floor) = match weight.format() {
            Format::Q8_0 | Format::Q4_0 => (Format::I8Groups { group: 32 }, 0.0),
            // BitNet clamps a token's greatest magnitude from below by 1e-5.
            Format::TQ2_0 => match self.ternary {
                TernaryActivations::PerToken => (Format::I8Groups { group: row_len as u32 }, 1e-5),
                TernaryActivations::PerBlock => (Format::I8Groups { group: 256 }, 0.0),
            },
            Format::BF16 => (Format::BF16, 0.0),
            _ => (Format::F32, 0.0),
        };
        let x = match self.quantized.get(&(x, format)) {
            Some(converted) => *converted,
            None => {
                let converted = match format {
                    Format::I8Groups { group } => g.quantize(x, group, floor)?,
                    Format::BF16 => g.cast(x, Type::BF16)?,
                    _ => x,
                };
                self.quantized.insert((x, format), converted);
                converted
            }
        };
        Ok(g.matmul(x, w)?)
    }
}
