//! The graph of a transformer: a decoder, or the layers of an encoder.

use std::collections::HashMap;

use hologram_backends::{Backend, DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_core::ops::AttentionPrecision;
use hologram_core::{Dim, Executor, Graph, Tensor};

use crate::error::{LlmError, Result};
use crate::kv::KvCache;
use crate::lora::{Adapter, Adapters};
use crate::models::Rotary;
use crate::models::blocks::{Block, BothSides, Branches, LayerInputs, Linear, Linears, Loader, Norm, Runs, Step, Sums};
use crate::models::config::Config;
use crate::models::head::{Dense, Head};
use crate::models::{Activation, EncoderParts};
use crate::not_run::layers_ahead;
use crate::weights::Weights;

/// The weights of a model on its device.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub config: Config,
    embedding: Tensor,
    front: Option<Front>,
    /// What each layer gets of a token beside the residual stream, if it does.
    inputs: Option<LayerInputs>,
    /// What is around the layers, if the residual stream has branches.
    branches: Option<Branches>,
    layers: Vec<Box<dyn Block>>,
    /// Whether all attention matrices are in `bf16` or in 8 or 4 bits.
    low: bool,
    output_norm: Option<Norm>,
    /// The output matrix; the embedding if tied. Encoders have none.
    output: Option<Linear>,
    /// The head for sequences, if the model has one.
    pub head: Head,
    /// What turns a text's vector into its embedding, if the file has it.
    pub projections: Head,
    /// The rotary frequencies, and those for sessions of contexts beyond the trained one if they differ.
    rope_frequencies: Tensor,
    long_frequencies: Option<Tensor>,
    /// Those of layers with [`Rotary::Local`].
    local_frequencies: Option<Tensor>,
}

/// What an encoder adds to the embedding of a token, and the norm of the sum.
#[derive(Debug)]
struct Front {
    /// A row per position.
    positions: Option<Tensor>,
    /// A row per segment.
    segments: Option<Tensor>,
    norm: Norm,
}

impl Front {
    fn load(weights: &dyn Weights, c: &Config, parts: &EncoderParts) -> Result<Front> {
        let (reserved, context) = (parts.reserved_positions, c.context);
        let rows = reserved..reserved + context;
        let positions = || weights.matrix_rows("position_embd.weight", rows.end, rows.clone(), c.width);
        let segments = || weights.matrix("token_types.weight", c.segments, c.width);
        Ok(Front {
            positions: parts.positions.then(positions).transpose()?,
            segments: (parts.segments && c.segments > 0).then(segments).transpose()?,
            norm: Norm::load(weights, c, "token_embd_norm")?,
        })
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.positions.iter().chain(&self.segments).chain(self.norm.weights())
    }
}

impl Decoder {
    /// Loads the weights, with adapters beside them; those of experts for another device if there are `experts` of it.
    /// Calls `progress` after each part with the parts done and the total.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or an unsupported type, or is not used by the model; when an
    /// adapter does not fit it.
    pub fn load(
        config: Config,
        weights: &dyn Weights,
        experts: Option<&dyn Weights>,
        adapters: &[Adapter],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Decoder> {
        let c = &config;
        if !adapters.is_empty() && !c.multipliers.is_neutral() {
            let what = "adapters of a model with factors of products".into();
            return Err(LlmError::Unsupported { path: c.name.clone().into(), what, supported: String::new() });
        }
        let adapters = Adapters::new(adapters, c, weights.is_folder())?;
        let parts = c.layers + 1;
        let mut layers = Vec::with_capacity(c.layers);
        let mut loader = Loader { weights, experts, config: c, adapters: &adapters, index: 0, attention: Vec::new() };
        for i in 0..c.layers {
            loader.index = i;
            layers.push((c.architecture.layer)(&mut loader)?);
            progress(i + 1, parts);
        }
        let low = |f: &DType| matches!(*f, DType::BF16 | DType::F16) || (f.is_quantized_weight() && !f.is_ternary());
        let low = loader.attention.iter().all(low);
        let embedding = weights.matrix("token_embd.weight", c.vocab, c.width)?;
        let encoder = c.architecture.encoder.as_ref();
        let front = encoder.map(|parts| Front::load(weights, c, parts)).transpose()?;
        let layer_inputs = LayerInputs::load(weights, c)?;
        let branches = Branches::load(weights, c)?;
        let output = match encoder {
            Some(_) => None,
            None => {
                let own = weights.optional_matrix("output.weight", c.vocab, c.width)?;
                let weight = own.unwrap_or_else(|| embedding.clone());
                let of_adapters = |name| adapters.of(weights.executor(), name, c.vocab, 0..c.vocab, c.width);
                Some(Linear {
                    name: String::new(),
                    weight,
                    bias: None,
                    scale: c.multipliers.times(None, "output"),
                    beside: of_adapters("output.weight")?,
                })
            }
        };
        let head = Head::load(weights, c, encoder.map_or(Activation::Identity, |parts| parts.head))?;
        let first = Dense::load(weights, "dense_2", c.width, Activation::Identity)?;
        let inputs = first.as_ref().map_or(c.width, Dense::outputs);
        let second = Dense::load(weights, "dense_3", inputs, Activation::Identity)?;
        let projections = Head(first.into_iter().chain(second).collect());
        let factors = |name: &str| -> Result<Option<Vec<f32>>> {
            let factors = weights.optional_values(name, c.rope_dim / 2)?;
            match factors.iter().flatten().find(|f| !(f.is_finite() && **f > 0.0)) {
                None => Ok(factors),
                Some(factor) => {
                    let what = format!("factor {factor} in tensor {name}");
                    Err(LlmError::Unsupported { path: c.name.clone().into(), what, supported: String::new() })
                }
            }
        };
        let tensor = |frequencies: Vec<f32>| -> Result<Tensor> {
            Ok(Tensor::from_slice(weights.executor(), &[frequencies.len()], &frequencies)?)
        };
        let [short, long] = match &c.rope_factors {
            Some([short, long]) => [Some(short.clone()), Some(long.clone())],
            None => [factors("rope_factors_short.weight")?, factors("rope_factors_long.weight")?],
        };
        let factors = factors("rope_freqs.weight")?.or(short);
        let rope_frequencies = tensor(c.rope_frequencies(factors.as_deref()))?;
        let long_frequencies = long.map(|long| tensor(c.rope_frequencies(Some(&long)))).transpose()?;
        let local = c.rotary.contains(&Rotary::Local);
        let local_frequencies = local.then(|| tensor(c.local_rope_frequencies())).transpose()?;
        let has_norm = encoder.is_none_or(|parts| parts.output_norm);
        let output_norm = has_norm.then(|| Norm::load(weights, c, c.architecture.output_norm)).transpose()?;
        weights.finish(layers_ahead(c))?;
        adapters.finish()?;
        progress(parts, parts);
        Ok(Decoder {
            embedding,
            front,
            inputs: layer_inputs,
            branches,
            layers,
            low,
            output_norm,
            output,
            head,
            projections,
            rope_frequencies,
            long_frequencies,
            local_frequencies,
            config,
        })
    }

    /// Bytes of weights read per decoded token: every matrix and norm, of experts the chosen ones, and one row of the
    /// embedding.
    pub fn bytes_per_token(&self) -> usize {
        let row = self.embedding.bytes() / self.config.vocab.max(1);
        self.layers.iter().map(|layer| layer.bytes_per_token()).sum::<usize>()
            + self.output_norm.as_ref().map_or(0, Norm::bytes)
            + self.output.iter().flat_map(Linear::tensors).map(Tensor::bytes).sum::<usize>()
            + self.inputs.as_ref().map_or(0, LayerInputs::bytes_per_token)
            + self.branches.iter().flat_map(Branches::tensors).map(Tensor::bytes).sum::<usize>()
            + row
    }

    /// Bytes of the weights that lie on other devices than the embedding.
    pub fn expert_bytes(&self) -> usize {
        let weights = self.layers.iter().flat_map(|layer| layer.weights());
        weights.filter(|weight| !weight.is_beside(&self.embedding)).map(Tensor::bytes).sum()
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> usize {
        let is_tied = |output: &Tensor| output.shape() == self.embedding.shape() && output.same_memory(&self.embedding);
        let output = self.output.as_ref().map(|output| &output.weight).filter(|output| !is_tied(output));
        self.layers.iter().flat_map(|layer| layer.weights()).map(Tensor::bytes).sum::<usize>()
            + self.output_norm.as_ref().map_or(0, Norm::bytes)
            + self.front.iter().flat_map(Front::tensors).map(Tensor::bytes).sum::<usize>()
            + self.inputs.iter().flat_map(LayerInputs::tensors).map(Tensor::bytes).sum::<usize>()
            + self.branches.iter().flat_map(Branches::tensors).map(Tensor::bytes).sum::<usize>()
            + output.map_or(0, Tensor::bytes)
            + self.embedding.bytes()
    }

    /// Formats for attention and its cache, the most precise first. Formats below `f32` are allowed only if all
    /// attention matrices are in 16 bits or fewer. Ternary models keep `f32`: quantizing their activations
    /// amplifies small differences.
    fn attention_choices(&self, lower: DType) -> Vec<DType> {
        if self.low { vec![DType::F32, lower] } else { vec![DType::F32] }
    }

    /// The element type of the KV cache that suits the device.
    pub fn cache_format(&self, backend: &dyn Backend) -> DType {
        let choices = self.attention_choices(DType::F16);
        backend.policy().cache_format(&choices).filter(|f| choices.contains(f)).unwrap_or(DType::F32)
    }

    /// The precision of attention scores that suits the device.
    fn attention_precision(&self, backend: &dyn Backend, tokens: usize) -> AttentionPrecision {
        let choices = self.attention_choices(DType::BF16);
        match backend.policy().attention_products(tokens, &choices).filter(|f| choices.contains(f)) {
            Some(DType::BF16) => AttentionPrecision::BF16,
            _ => AttentionPrecision::F32,
        }
    }

    /// Whether steps of exactly this many tokens are worth a separate plan: whether the device prefers fixed sizes for
    /// the most expensive product. `precision`: as in [`Bucket`].
    pub fn prefers_fixed(&self, backend: &dyn Backend, tokens: usize, precision: Option<usize>) -> bool {
        let weights = self.layers.first().map(|layer| layer.weights()).unwrap_or_default();
        let own = weights.into_iter().filter(|weight| weight.is_beside(&self.embedding));
        let longest = own.max_by_key(|w| w.shape().iter().product::<usize>());
        let Some((weight, [m, k])) = longest.map(|w| (w, w.shape())) else { return false };
        let (format, _) = Linears::new(backend, self.config.ternary, precision).activations(weight, tokens);
        let matrix = |format, sizes: [usize; 2]| TensorSpec { format, shape: sizes.map(Extent::Fixed).to_vec() };
        backend.kernels().prefers_fixed(&KernelSpec {
            op: Operation::Matmul,
            inputs: vec![matrix(format, [tokens, *k]), matrix(weight.dtype(), [*m, *k])],
            output: matrix(DType::F32, [tokens, *m]),
            in_place: None,
        })
    }

    /// The graph of one step for up to `bucket.tokens` tokens (exactly as many if `bucket.full`) of the cache's
    /// sequences.
    ///
    /// Inputs: `ids`, `positions`, `sequences` and `slots` (`u32 [tokens]`), `block_table` (`u32 [sequences, blocks]`)
    /// and `rows` (`u32 [outputs]`), the indices of the tokens whose `logits` (`f32 [outputs, vocabulary]`) are the
    /// output. Another output is `chosen` (`u32 [outputs]`): tokens that [`Graph::sample`] chooses, with the inputs
    /// `sampling_numbers` (`f32 [outputs, 3]`) and `sampling_words` (`u32 [outputs, 4]`). Instead of both, `hidden`
    /// (`f32 [outputs, width]`) is what the output matrix would be applied to. `bucket.results` says which outputs
    /// there are.
    ///
    /// A model with states has the inputs `runs` (`u32 [runs, 4]`), the tokens of a sequence that follow each other
    /// with the slots of its states as for [`Graph::conv_state`], and `token_runs` (`u32 [tokens]`), the run of each
    /// token.
    ///
    /// If tokens see all of their text, its tokens are in one step. Further inputs are then `lasts`, the last position
    /// of each token's text, `window_firsts` and `window_lasts`, the first and the last position in its window (if
    /// layers have one), and `segments`, its segment (if the model has them), all `u32 [tokens]`.
    ///
    /// # Errors
    /// When weights do not fit together.
    pub fn graph(&self, executor: &Executor, cache: &KvCache, bucket: Bucket) -> Result<Graph> {
        Ok(self.graph_with_sums(executor, cache, bucket)?.0)
    }

    /// As [`Decoder::graph`]. With [`Results::Sums`] also the names of the weights that have sums: `sum NAME` and, of
    /// experts, `count NAME` are outputs of the graph. The bucket must be full.
    ///
    /// # Errors
    /// As [`Decoder::graph`].
    pub fn graph_with_sums(
        &self,
        executor: &Executor,
        cache: &KvCache,
        bucket: Bucket,
    ) -> Result<(Graph, Vec<SumName>)> {
        let c = &self.config;
        let mut g = Graph::new();
        let extent = |g: &mut Graph, name: &str, max: usize| match bucket.independent {
            true => g.independent_extent(name, max),
            false => g.extent(name, max),
        };
        let tokens = if bucket.full { Dim::Fixed(bucket.tokens) } else { extent(&mut g, "tokens", bucket.tokens) };
        let outputs = extent(&mut g, "outputs", bucket.outputs);
        let ids = g.input("ids", DType::U32, &[tokens])?;
        let positions = g.input("positions", DType::U32, &[tokens])?;
        let sequences = g.input("sequences", DType::U32, &[tokens])?;
        let slots = g.input("slots", DType::U32, &[tokens])?;
        let table = [cache.max_sequences(), cache.blocks_per_sequence()].map(Dim::Fixed);
        let block_table = g.input("block_table", DType::U32, &table)?;
        let rows = g.input("rows", DType::U32, &[outputs])?;
        let long = self.long_frequencies.as_ref().filter(|_| c.is_long(cache.context()));
        let frequencies = g.constant(long.unwrap_or(&self.rope_frequencies))?;
        let local_frequencies = self.local_frequencies.as_ref().map(|local| g.constant(local)).transpose()?;
        let backend = &**executor.backend();
        let both = match c.bidirectional {
            false => None,
            true => {
                let mut input = |name: &str| g.input(name, DType::U32, &[tokens]);
                let lasts = input("lasts")?;
                let windowed = c.windows.iter().any(Option::is_some);
                let window = match windowed {
                    true => Some([input("window_firsts")?, input("window_lasts")?]),
                    false => None,
                };
                let shared = match cache.layer(0) {
                    Some((keys, values)) => Some([g.state(keys)?, g.state(values)?]),
                    None => None,
                };
                shared.map(|cache| BothSides { lasts, window, cache })
            }
        };
        let runs = match c.recurrent {
            None => None,
            Some(_) => {
                let most = if bucket.independent { usize::MAX } else { cache.max_sequences() };
                let most = extent(&mut g, "runs", bucket.tokens.min(most));
                let of_tokens = g.input("token_runs", DType::U32, &[tokens])?;
                Some(Runs { list: g.input("runs", DType::U32, &[most, Dim::Fixed(4)])?, of_tokens })
            }
        };
        let mut step = Step {
            graph: g,
            config: c,
            cache,
            linears: Linears::new(backend, c.ternary, bucket.precision),
            precision: self.attention_precision(backend, bucket.precision.unwrap_or(bucket.tokens)),
            pieces: bucket.pieces,
            tokens,
            rows: bucket.tokens,
            positions,
            sequences,
            slots,
            block_table,
            frequencies,
            local_frequencies,
            both,
            runs,
            growth: None,
            head_numbers: None,
            appended: HashMap::new(),
            layer_inputs: None,
            branches: Vec::new(),
        };
        step.linears.sums = (bucket.results == Results::Sums).then(Sums::default);
        let embedding = step.graph.constant(&self.embedding)?;
        let mut x = step.graph.gather(embedding, ids)?;
        let of_embedding = c.scales.embedding * c.multipliers.of("token_embd");
        if of_embedding != 1.0 {
            x = step.graph.mul_scalar(x, of_embedding.into())?;
        }
        if let Some(inputs) = &self.inputs {
            step.layer_inputs = Some(inputs.apply(&mut step, ids, x)?);
        }
        if let Some(front) = &self.front {
            let g = &mut step.graph;
            if let Some(table) = &front.positions {
                let table = g.constant(table)?;
                let of_position = g.gather(table, positions)?;
                x = g.add(x, of_position)?;
            }
            if let Some(table) = &front.segments {
                let segments = g.input("segments", DType::U32, &[tokens])?;
                let table = g.constant(table)?;
                let of_segment = g.gather(table, segments)?;
                x = g.add(x, of_segment)?;
            }
            x = front.norm.apply(&mut step, x)?;
        }
        if let Some(branches) = &self.branches {
            branches.split(&mut step, x)?;
        }
        let x = self.layers.iter().try_fold(x, |x, layer| layer.apply(&mut step, x))?;
        let mut x = step.graph.gather(x, rows)?;
        if let Some(branches) = &self.branches {
            x = branches.merge(&mut step, x, rows, (outputs, bucket.outputs))?;
        }
        let x = match &self.output_norm {
            Some(norm) => norm.apply(&mut step, x)?,
            None => x,
        };
        let Step { graph: mut g, mut linears, .. } = step;
        let output = self.output.as_ref().filter(|_| !matches!(bucket.results, Results::Hidden | Results::Sums));
        let mut names = Vec::new();
        for (name, sum) in linears.sums.take().into_iter().flat_map(|sums| sums.of_weights) {
            g.output(&format!("sum {name}"), sum.squares)?;
            if let Some(counts) = sum.counts {
                g.output(&format!("count {name}"), counts)?;
            }
            names.push(SumName { name, of_experts: sum.counts.is_some() });
        }
        let Some(output) = output else {
            g.output("hidden", x)?;
            return Ok((g, names));
        };
        let mut logits = linears.apply(&mut g, x, output, bucket.outputs)?;
        if c.scales.logits != 1.0 {
            logits = g.mul_scalar(logits, c.scales.logits.into())?;
        }
        if let Some(cap) = c.scales.logit_cap {
            let part = g.mul_scalar(logits, f64::from(cap).recip())?;
            let part = g.tanh(part)?;
            logits = g.mul_scalar(part, cap.into())?;
        }
        if bucket.results.has_tokens() {
            let numbers = g.input("sampling_numbers", DType::F32, &[outputs, Dim::Fixed(3)])?;
            let words = g.input("sampling_words", DType::U32, &[outputs, Dim::Fixed(4)])?;
            let chosen = g.sample(logits, numbers, words)?;
            g.output("chosen", chosen)?;
        }
        if let Some((name, _)) = bucket.results.rows(c) {
            g.output(name, logits)?;
        }
        Ok((g, names))
    }
}

/// The maximum sizes of the steps that a plan serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    /// Tokens.
    pub tokens: usize,
    /// Whether each step has exactly `tokens` tokens, so that the plan has no extent for them.
    pub full: bool,
    /// Tokens that get logits.
    pub outputs: usize,
    /// What the host gets.
    pub results: Results,
    /// The step size that determines the precision; `None`: `tokens`.
    pub precision: Option<usize>,
    /// Whether each token's results have the same bits whatever the other tokens, of which there is at most one of each
    /// sequence with states. The bucket is not full.
    pub independent: bool,
    /// See [`AttentionOptions::pieces`](hologram_core::ops::AttentionOptions::pieces).
    pub pieces: bool,
}

/// What the host gets from a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Results {
    /// Logits.
    Logits,
    /// Tokens that the device samples.
    Tokens,
    /// Both.
    Both,
    /// Normed hidden states.
    Hidden,
    /// Sums of the squared columns that weights are multiplied with.
    Sums,
}

/// A weight with sums.
#[derive(Clone, Debug)]
pub(crate) struct SumName {
    /// The weight's name in GGUF files.
    pub name: String,
    /// Whether each expert has its own.
    pub of_experts: bool,
}

impl Results {
    pub fn has_tokens(self) -> bool {
        matches!(self, Results::Tokens | Results::Both)
    }

    /// The name of the output with a row of numbers for each token, and the length of a row.
    pub fn rows(self, config: &Config) -> Option<(&'static str, usize)> {
        match self {
            Results::Logits | Results::Both => Some(("logits", config.vocab)),
            Results::Hidden => Some(("hidden", config.width)),
            Results::Tokens | Results::Sums => None,
        }
    }
}
