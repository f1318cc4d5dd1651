//! The graph of a decoder-only transformer.

use std::collections::HashMap;

use hologram_backends::{Backend, Extent, Format, KernelSpec, Operation, TensorSpec};
use hologram_core::ops::{AttentionOptions, AttentionPrecision};
use hologram_core::{Dim, Executor, Graph, NodeId, Tensor};
use hologram_isa::Type;

use crate::error::{LlmError, Result};
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
    output: Linear,
    rope_frequencies: Tensor,
}

/// A linear layer.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// Added to the product.
    pub bias: Option<Tensor>,
    /// Multiplied with the product, where the weight's format cannot hold it.
    pub scale: Option<f32>,
}

impl Linear {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

#[derive(Debug)]
struct Layer {
    attn_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    attn_sub_norm: Option<Tensor>,
    attn_output: Linear,
    ffn_norm: Tensor,
    gate: Linear,
    up: Linear,
    ffn_sub_norm: Option<Tensor>,
    down: Linear,
}

impl Layer {
    fn load(weights: &dyn Weights, c: &Config, i: usize) -> Result<Layer> {
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let linear = |name: &str, rows: usize, row_len: usize, bias: bool| {
            let name = format!("blk.{i}.{name}");
            let (of_weight, of_bias) = (format!("{name}.weight"), format!("{name}.bias"));
            let bias = match bias {
                true => Some(weights.vector(&of_bias, rows)?),
                false => weights.optional_vector(&of_bias, rows)?,
            };
            let (weight, scale) = (weights.matrix(&of_weight, rows, row_len)?, weights.scale(&of_weight)?);
            Result::Ok(Linear { weight, bias, scale })
        };
        let norm = |name: &str, len: usize| weights.vector(&format!("blk.{i}.{name}.weight"), len);
        let architecture = c.architecture;
        let sub_norm = |name: &str, len| architecture.sub_norms.then(|| norm(name, len)).transpose();
        let head_norm = |name: &str| architecture.qk_norms.then(|| norm(name, c.head_dim)).transpose();
        let biased = architecture.qkv_biases;
        Ok(Layer {
            attn_norm: norm("attn_norm", c.width)?,
            q: linear("attn_q", q_width, c.width, biased)?,
            k: linear("attn_k", kv_width, c.width, biased)?,
            v: linear("attn_v", kv_width, c.width, biased)?,
            q_norm: head_norm("attn_q_norm")?,
            k_norm: head_norm("attn_k_norm")?,
            attn_sub_norm: sub_norm("attn_sub_norm", q_width)?,
            attn_output: linear("attn_output", c.width, q_width, false)?,
            ffn_norm: norm("ffn_norm", c.width)?,
            gate: linear("ffn_gate", c.ffn, c.width, false)?,
            up: linear("ffn_up", c.ffn, c.width, false)?,
            ffn_sub_norm: sub_norm("ffn_sub_norm", c.ffn)?,
            down: linear("ffn_down", c.width, c.ffn, false)?,
        })
    }

    fn bytes(&self) -> usize {
        let linears = [&self.q, &self.k, &self.v, &self.attn_output, &self.gate, &self.up, &self.down];
        let optional = [&self.q_norm, &self.k_norm, &self.attn_sub_norm, &self.ffn_sub_norm];
        let norms = [&self.attn_norm, &self.ffn_norm].into_iter().chain(optional.into_iter().flatten());
        linears.into_iter().flat_map(Linear::tensors).chain(norms).map(Tensor::bytes).sum()
    }
}

impl Decoder {
    /// Takes the weights; `progress` is told after each of how many parts that is done.
    ///
    /// # Errors
    /// A tensor is missing or has another shape or a type that is not supported, or the file has one that the model has no use for.
    pub fn load(config: Config, weights: &dyn Weights, progress: &mut dyn FnMut(usize, usize)) -> Result<Decoder> {
        let c = &config;
        let parts = c.layers + 1;
        let mut layers = Vec::with_capacity(c.layers);
        for i in 0..c.layers {
            layers.push(Layer::load(weights, c, i)?);
            progress(i + 1, parts);
        }
        let embedding = weights.matrix("token_embd.weight", c.vocab, c.width)?;
        let output = match weights.optional_matrix("output.weight", c.vocab, c.width)? {
            Some(output) => output,
            None => embedding.clone(),
        };
        let factors = weights.optional_values("rope_freqs.weight", c.rope_dim / 2)?;
        if let Some(factor) = factors.iter().flatten().find(|f| !(f.is_finite() && **f > 0.0)) {
            let what = format!("a factor of {factor} in tensor rope_freqs.weight");
            return Err(LlmError::Unsupported { path: config.name.clone().into(), what });
        }
        let frequencies = c.rope_frequencies(factors.as_deref());
        let rope_frequencies = Tensor::from_slice(weights.executor(), &[frequencies.len()], &frequencies)?;
        let output_norm = weights.vector("output_norm.weight", c.width)?;
        weights.finish()?;
        progress(parts, parts);
        let output = Linear { weight: output, bias: None, scale: None };
        Ok(Decoder { embedding, layers, output_norm, output, rope_frequencies, config })
    }

    /// Bytes of weights that one decoded token reads: every matrix and norm once, and one row of the embedding.
    pub fn bytes_per_token(&self) -> usize {
        let row = self.embedding.bytes() / self.config.vocab.max(1);
        self.layers.iter().map(Layer::bytes).sum::<usize>()
            + self.output_norm.bytes()
            + self.output.weight.bytes()
            + row
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> usize {
        let row = self.embedding.bytes() / self.config.vocab.max(1);
        let output = &self.output.weight;
        let tied = output.shape() == self.embedding.shape() && output.same_memory(&self.embedding);
        self.bytes_per_token() - row + if tied { 0 } else { self.embedding.bytes() }
    }

    /// Formats for attention and its cache, the most precise first: less than `f32` only where all matrices around are in `bf16` or in 8
    /// or 4 bits. Ternary models keep `f32`: their activations' codes turn the least difference into a greater one.
    fn attention_choices(&self, lower: Format) -> Vec<Format> {
        let low = |l: &Layer| {
            let format = l.q.weight.format();
            format == Format::BF16 || (format.is_quantized_weight() && !format.is_ternary())
        };
        if self.layers.iter().all(low) { vec![Format::F32, lower] } else { vec![Format::F32] }
    }

    /// Elements of the KV cache that suit the device.
    pub fn cache_format(&self, backend: &dyn Backend) -> Format {
        let choices = self.attention_choices(Format::F16);
        backend.cache_format(&choices).filter(|f| choices.contains(f)).unwrap_or(Format::F32)
    }

    /// The precision of attention's products that suits the device.
    fn attention_precision(&self, backend: &dyn Backend, tokens: usize) -> AttentionPrecision {
        let choices = self.attention_choices(Format::BF16);
        match backend.attention_products(tokens, &choices).filter(|f| choices.contains(f)) {
            Some(Format::BF16) => AttentionPrecision::BF16,
            _ => AttentionPrecision::F32,
        }
    }

    /// Whether a step of exactly this many tokens, in the precision of steps of `precision` tokens or its own, is worth
    /// a plan of its own: whether the device prefers fixed sizes in the product that takes a step longest alone.
    pub fn prefers_fixed(&self, backend: &dyn Backend, tokens: usize, precision: Option<usize>) -> bool {
        let Some([m, k]) = self.layers.first().map(|l| l.down.weight.shape()) else { return false };
        let weight = &self.layers[0].down.weight;
        let linears = Linears { backend, ternary: self.config.ternary, precision, converted: HashMap::new() };
        let (format, _) = linears.activations(weight, tokens);
        let matrix = |format, sizes: [usize; 2]| TensorSpec { format, shape: sizes.map(Extent::Fixed).to_vec() };
        backend.prefers_fixed(&KernelSpec {
            op: Operation::Matmul,
            inputs: vec![matrix(format, [tokens, *k]), matrix(weight.format(), [*m, *k])],
            output: matrix(Format::F32, [tokens, *m]),
            in_place: None,
        })
    }

    /// The graph of one step for up to `bucket.tokens` tokens of the cache's sequences, or exactly so many, in the precision that suits the
    /// device in a step of that size or of the size that the bucket says.
    ///
    /// Inputs: `ids`, `positions`, `sequences` and `slots` (`u32 [tokens]`), `block_table` (`u32 [sequences, blocks]`) and `rows`
    /// (`u32 [outputs]`), the tokens whose `logits` (`f32 [outputs, vocabulary]`) are wanted. Where the bucket says so, the output is
    /// `chosen` (`u32 [outputs]`) instead, tokens that [`Graph::sample`] chooses from the logits by the inputs `sampling_numbers` (`f32
    /// [outputs, 2]`) and `sampling_words` (`u32 [outputs, 4]`).
    ///
    /// # Errors
    /// When weights do not fit together.
    pub fn graph(&self, executor: &Executor, cache: &KvCache, bucket: Bucket) -> Result<Graph> {
        let c = &self.config;
        let mut g = Graph::new();
        let tokens = if bucket.full { Dim::Fixed(bucket.tokens) } else { g.extent("tokens", bucket.tokens) };
        let outputs = g.extent("outputs", bucket.outputs);
        let ids = g.input("ids", Format::U32, &[tokens])?;
        let positions = g.input("positions", Format::U32, &[tokens])?;
        let sequences = g.input("sequences", Format::U32, &[tokens])?;
        let slots = g.input("slots", Format::U32, &[tokens])?;
        let table = [cache.max_sequences(), cache.blocks_per_sequence()].map(Dim::Fixed);
        let block_table = g.input("block_table", Format::U32, &table)?;
        let rows = g.input("rows", Format::U32, &[outputs])?;
        let frequencies = g.constant(&self.rope_frequencies)?;
        let backend = &**executor.backend();
        let mut linears =
            Linears { backend, ternary: c.ternary, precision: bucket.precision, converted: HashMap::new() };
        let precision = self.attention_precision(backend, bucket.precision.unwrap_or(bucket.tokens));

        let embedding = g.constant(&self.embedding)?;
        let mut x = g.gather(embedding, ids)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let h = norm(&mut g, x, &layer.attn_norm, c.eps)?;
            // The products first, side by side: a device may compute them together.
            let [q, k, v] = linears.apply_all(&mut g, h, [&layer.q, &layer.k, &layer.v], bucket.tokens)?;
            let mut q = g.reshape(q, &[tokens, c.heads.into(), c.head_dim.into()])?;
            let mut k = g.reshape(k, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
            let v = g.reshape(v, &[tokens, c.kv_heads.into(), c.head_dim.into()])?;
            if let Some(w) = &layer.q_norm {
                q = norm(&mut g, q, w, c.eps)?;
            }
            if let Some(w) = &layer.k_norm {
                k = norm(&mut g, k, w, c.eps)?;
            }
            let q = g.rope(q, positions, frequencies, c.rope)?;
            let k = g.rope(k, positions, frequencies, c.rope)?;
            let (k_cache, v_cache) = cache.layer(i);
            let (k_cache, v_cache) = (g.state(k_cache)?, g.state(v_cache)?);
            let k_cache = g.kv_append(k_cache, k, slots)?;
            let v_cache = g.kv_append(v_cache, v, slots)?;
            // A window that no sequence outgrows is none.
            let window = c.windows.get(i).copied().flatten().filter(|n| (*n as usize) < cache.context());
            let options = AttentionOptions { precision, window };
            let scale = c.attention_scale();
            let a = g.attention_with(q, k_cache, v_cache, positions, sequences, block_table, scale, options)?;
            let mut a = g.reshape(a, &[tokens, (c.heads * c.head_dim).into()])?;
            if let Some(w) = &layer.attn_sub_norm {
                a = norm(&mut g, a, w, c.eps)?;
            }
            let a = linears.apply(&mut g, a, &layer.attn_output, bucket.tokens)?;
            x = g.add(x, a)?;

            let h = norm(&mut g, x, &layer.ffn_norm, c.eps)?;
            let [gate, up] = linears.apply_all(&mut g, h, [&layer.gate, &layer.up], bucket.tokens)?;
            let mut f = match c.architecture.gate {
                Gate::Swiglu => g.swiglu(gate, up)?,
                Gate::Relu2 => g.relu2_mul(gate, up)?,
            };
            if let Some(w) = &layer.ffn_sub_norm {
                f = norm(&mut g, f, w, c.eps)?;
            }
            let f = linears.apply(&mut g, f, &layer.down, bucket.tokens)?;
            x = g.add(x, f)?;
        }
        let x = g.gather(x, rows)?;
        let x = norm(&mut g, x, &self.output_norm, c.eps)?;
        let logits = linears.apply(&mut g, x, &self.output, bucket.outputs)?;
        if bucket.sampled {
            let numbers = g.input("sampling_numbers", Format::F32, &[outputs, Dim::Fixed(2)])?;
            let words = g.input("sampling_words", Format::U32, &[outputs, Dim::Fixed(4)])?;
            let chosen = g.sample(logits, numbers, words)?;
            g.output("chosen", chosen)?;
        } else {
            g.output("logits", logits)?;
        }
        Ok(g)
    }
}

/// The greatest sizes of the steps that a plan serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    /// Tokens.
    pub tokens: usize,
    /// Whether each step has exactly so many, and `tokens` is no extent.
    pub full: bool,
    /// Tokens whose logits are wanted.
    pub outputs: usize,
    /// Whether the device chooses tokens from them.
    pub sampled: bool,
    /// The tokens of the steps in whose precision it computes; `None`: those of its own.
    pub precision: Option<usize>,
}

fn norm(g: &mut Graph, x: NodeId, weight: &Tensor, eps: f32) -> Result<NodeId> {
    let w = g.constant(weight)?;
    Ok(g.rms_norm(x, w, eps)?)
}

/// Linear layers, with the precision of activations that goes with each weight format and suits the device.
struct Linears<'a> {
    backend: &'a dyn Backend,
    ternary: TernaryActivations,
    /// The tokens of the steps whose precision is wanted, whatever the number of this one's.
    precision: Option<usize>,
    /// Activations that were converted already, by node and format.
    converted: HashMap<(NodeId, Format), NodeId>,
}

impl Linears<'_> {
    /// The format of activations that a weight is multiplied with in a step of up to `tokens` tokens, and the floor of their scales.
    fn activations(&self, weight: &Tensor, tokens: usize) -> (Format, f32) {
        let row_len = weight.shape().last().copied().unwrap_or(0);
        let mut floor = 0.0;
        let choices = match weight.format() {
            w if w.is_ternary() => match self.ternary {
                TernaryActivations::PerToken => {
                    // BitNet clamps a token's greatest magnitude from below by 1e-5.
                    floor = 1e-5;
                    vec![Format::I8Groups { group: row_len as u32 }]
                }
                TernaryActivations::PerBlock => vec![Format::I8Groups { group: 256 }],
            },
            w if w.is_quantized_weight() && w.block_len() == 32 => {
                vec![Format::I8Groups { group: 32 }, Format::BF16, Format::F32]
            }
            w if w.is_quantized_weight() => {
                vec![Format::I8Groups { group: 256 }, Format::I8Groups { group: 32 }, Format::BF16, Format::F32]
            }
            Format::BF16 => vec![Format::BF16],
            _ => vec![Format::F32],
        };
        let chosen = self.backend.activations(weight.format(), self.precision.unwrap_or(tokens), &choices);
        (chosen.filter(|f| choices.contains(f)).unwrap_or(choices[0]), floor)
    }

    /// A linear layer of `x`, of up to `tokens` rows.
    fn apply(&mut self, g: &mut Graph, x: NodeId, linear: &Linear, tokens: usize) -> Result<NodeId> {
        let [y] = self.apply_all(g, x, [linear], tokens)?;
        Ok(y)
    }

    /// Several linear layers of the same `x`, of up to `tokens` rows.
    fn apply_all<const N: usize>(
        &mut self,
        g: &mut Graph,
        x: NodeId,
        linears: [&Linear; N],
        tokens: usize,
    ) -> Result<[NodeId; N]> {
        let mut results = [x; N];
        for (y, linear) in results.iter_mut().zip(linears) {
            *y = self.product(g, x, &linear.weight, tokens)?;
        }
        for (y, linear) in results.iter_mut().zip(linears) {
            if let Some(scale) = linear.scale {
                let scale = g.scalar(scale.into(), Type::F32)?;
                *y = g.mul(*y, scale)?;
            }
            if let Some(bias) = &linear.bias {
                let bias = g.constant(bias)?;
                *y = g.add(*y, bias)?;
            }
        }
        Ok(results)
    }

    /// The product of `x`, of up to `tokens` rows, with a weight.
    fn product(&mut self, g: &mut Graph, x: NodeId, weight: &Tensor, tokens: usize) -> Result<NodeId> {
        let w = g.constant(weight)?;
        let (format, floor) = self.activations(weight, tokens);
        let x = match self.converted.get(&(x, format)) {
            Some(converted) => *converted,
            None => {
                let converted = match format {
                    Format::I8Groups { group } => g.quantize(x, group, floor)?,
                    Format::BF16 => g.cast(x, Type::BF16)?,
                    _ => x,
                };
                self.converted.insert((x, format), converted);
                converted
            }
        };
        Ok(g.matmul(x, w)?)
    }
}
