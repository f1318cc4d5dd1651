//! The blocks that make up layers.
//!
//! An architecture's `layer` function composes them: [`residual`], [`chain`] and [`parallel`] contain other blocks;
//! [`Norm`], [`Attention`], [`GatedFfn`] and [`PlainFfn`] have weights. A block loads its weights once and adds its
//! operations to the graph of each step size.

mod altup;
mod attention;
mod delta_net;
mod experts;
mod feed_forward;
mod latent;
mod layer_input;
mod linear;
mod mamba;
mod short_conv;

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::Range;

use hologram_backends::DType;
use hologram_core::ops::AttentionPrecision;
use hologram_core::{Dim, Graph, NodeId, Tensor};
use hologram_isa::Type;

pub(crate) use altup::{AltUp, Branches};
pub(crate) use attention::{Attention, AttentionParts};
pub(crate) use delta_net::DeltaNet;
pub(crate) use experts::{experts_beside, feed_forward, plain_feed_forward};
pub(crate) use feed_forward::{GatedFfn, PlainFfn, SWIGLU_LIMIT, geglu, geglu_erf};
pub(crate) use latent::LatentAttention;
pub(crate) use layer_input::{LayerInput, LayerInputs};
pub(crate) use linear::{Linear, Linears, Sums};
pub(crate) use mamba::{MAMBA_PARTS, Mamba};
pub(crate) use short_conv::ShortConv;

use crate::error::{LlmError, Result};
use crate::kv::{KvCache, LayerState};
use crate::lora::Adapters;
use crate::models::config::Config;
use crate::models::rope::QueryGrowth;
use crate::models::{NormKind, Rotary};
use crate::weights::Weights;

/// A part of a layer.
pub(crate) trait Block: Debug + Send + Sync {
    /// Adds the block's operations on `x` (`[tokens, width]`) to a step. Returns their result.
    ///
    /// # Errors
    /// When weights do not fit together.
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId>;

    /// The weights, in the order in which a step reads them.
    fn weights(&self) -> Vec<&Tensor>;

    /// Bytes of weights that a token uses.
    fn bytes_per_token(&self) -> usize {
        self.weights().into_iter().map(Tensor::bytes).sum()
    }
}

/// Loads and composes one layer.
pub(crate) type LayerFn = fn(&mut Loader<'_>) -> Result<Box<dyn Block>>;

/// Loads the weights of one layer after another.
pub(crate) struct Loader<'a> {
    pub weights: &'a dyn Weights,
    /// The same for the device that computes experts; `None`: the device of the others.
    pub experts: Option<&'a dyn Weights>,
    pub config: &'a Config,
    pub adapters: &'a Adapters<'a>,
    /// The current layer.
    pub index: usize,
    /// The formats of the attention blocks' matrices.
    pub attention: Vec<DType>,
}

impl Loader<'_> {
    /// The weights of experts of which each token uses a few.
    pub fn of_experts(&self) -> &dyn Weights {
        self.experts.unwrap_or(self.weights)
    }

    /// A tensor's name in GGUF files.
    pub fn name(&self, name: &str, part: &str) -> String {
        format!("blk.{}.{name}.{part}", self.index)
    }

    /// The weight of a norm over `len` elements.
    ///
    /// # Errors
    /// Those of [`Weights::vector`].
    pub fn factors(&self, name: &str, len: usize) -> Result<Tensor> {
        self.weights.vector(&self.name(name, "weight"), len)
    }

    /// A norm of the residual stream, of the architecture's kind.
    ///
    /// # Errors
    /// As [`Loader::factors`].
    pub fn norm(&self, name: &str) -> Result<Box<dyn Block>> {
        Ok(Box::new(Norm::load(self.weights, self.config, &format!("blk.{}.{name}", self.index))?))
    }

    /// A linear layer. It has a bias if the file has one; `biased` requires one.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn linear(&self, name: &str, rows: usize, row_len: usize, biased: bool) -> Result<Linear> {
        let (of_weight, of_bias) = (self.name(name, "weight"), self.name(name, "bias"));
        let bias = match biased {
            true => Some(self.weights.vector(&of_bias, rows)?),
            false => self.weights.optional_vector(&of_bias, rows)?,
        };
        let weight = self.weights.matrix(&of_weight, rows, row_len)?;
        let scale = self.config.multipliers.times(self.weights.scale(&of_weight)?, name);
        let beside = self.adapters.of(self.weights.executor(), &of_weight, rows, 0..rows, row_len)?;
        Ok(Linear { name: of_weight, weight, bias, scale, beside })
    }
}

impl Loader<'_> {
    /// A single row in `f32`, as a matrix.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn row(&self, name: &str, row_len: usize) -> Result<Tensor> {
        Ok(self.weights.vector(&self.name(name, "weight"), row_len)?.reshape(&[1, row_len])?)
    }

    /// The weights of a convolution of each channel, `[channels, width]`.
    ///
    /// # Errors
    /// Those of [`Weights`], or when the model has no convolutions.
    pub fn conv(&self, name: &str) -> Result<Tensor> {
        let c = self.config;
        let sizes = c.recurrent.map_or([0, 0], |r| [r.channels, r.conv]);
        self.weights.small(&self.name(name, "weight"), sizes)
    }

    /// The error that a layer has no state.
    pub fn no_state(&self) -> LlmError {
        without_state(self.config, self.index)
    }

    /// Some rows of a matrix of `total` rows, with those elements of its bias if the file has one.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn linear_rows(&self, name: &str, total: usize, rows: Range<usize>, row_len: usize) -> Result<Linear> {
        let (of_weight, of_bias) = (self.name(name, "weight"), self.name(name, "bias"));
        let bias = self.weights.optional_values(&of_bias, total)?;
        let bias = bias.map(|b| Tensor::from_slice(self.weights.executor(), &[rows.len()], &b[rows.clone()]));
        let weight = self.weights.matrix_rows(&of_weight, total, rows.clone(), row_len)?;
        let beside = self.adapters.of(self.weights.executor(), &of_weight, total, rows, row_len)?;
        let scale = self.config.multipliers.times(self.weights.scale(&of_weight)?, name);
        Ok(Linear { name: of_weight, weight, bias: bias.transpose()?, scale, beside })
    }
}

fn without_state(config: &Config, layer: usize) -> LlmError {
    LlmError::Unsupported {
        path: config.name.clone().into(),
        what: format!("layer {layer} without the sizes of its state"),
        supported: String::new(),
    }
}

/// The graph of a step under construction.
pub(crate) struct Step<'a> {
    pub graph: Graph,
    pub config: &'a Config,
    pub cache: &'a KvCache,
    pub linears: Linears<'a>,
    pub precision: AttentionPrecision,
    /// See [`Bucket`](super::decoder::Bucket).
    pub pieces: bool,
    /// The step's tokens, and their maximum.
    pub tokens: Dim,
    pub rows: usize,
    /// Per token its position, its sequence and its slot in the cache.
    pub positions: NodeId,
    pub sequences: NodeId,
    pub slots: NodeId,
    /// Per sequence its blocks in the cache.
    pub block_table: NodeId,
    /// The rotary frequencies, and those of layers with [`Rotary::Local`].
    pub frequencies: NodeId,
    pub local_frequencies: Option<NodeId>,
    /// What tokens see if they see all of their text; `None`: what comes before them, and themselves.
    pub both: Option<BothSides>,
    /// The runs of tokens, for layers with states.
    pub runs: Option<Runs>,
    /// The factor of queries by position, once a layer has used it.
    pub growth: Option<NodeId>,
    /// The numbers of the heads for each token, once a layer with latent vectors has used them.
    pub head_numbers: Option<NodeId>,
    /// The keys and values of the layers so far, with those of the step, for layers that share them.
    pub appended: HashMap<usize, [NodeId; 2]>,
    /// The further embeddings of each token in all layers, `[tokens, layers · elements]`, if the model has them.
    pub layer_inputs: Option<NodeId>,
    /// The branches of the residual stream but the first.
    pub branches: Vec<NodeId>,
}

/// The step's tokens by sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// `[runs, 4]`, as for [`Graph::conv_state`].
    pub list: NodeId,
    /// Per token its run.
    pub of_tokens: NodeId,
}

/// What tokens see that see all of their text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BothSides {
    /// Per token the last position of its text.
    pub lasts: NodeId,
    /// Per token the first and the last position in its window, if layers have one.
    pub window: Option<[NodeId; 2]>,
    /// The keys and values, which all layers share.
    pub cache: [NodeId; 2],
}

impl Step<'_> {
    /// RMSNorm along the last dimension.
    ///
    /// # Errors
    /// When the lengths of `x` and the weight differ.
    pub fn norm(&mut self, x: NodeId, factors: &Tensor) -> Result<NodeId> {
        let w = self.graph.constant(factors)?;
        Ok(self.graph.rms_norm(x, w, self.config.eps)?)
    }

    /// The rotary embedding of heads.
    ///
    /// # Errors
    /// When the sizes do not fit.
    pub fn rope(&mut self, x: NodeId, rotary: Rotary) -> Result<NodeId> {
        let frequencies = match (rotary, self.local_frequencies) {
            (Rotary::None, _) => return Ok(x),
            (Rotary::Local, Some(local)) => local,
            _ => self.frequencies,
        };
        Ok(self.graph.rope(x, self.positions, frequencies, self.config.rope)?)
    }

    /// The factor of queries by position (`[tokens, 1, 1]`), if the model has one.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn query_growth(&mut self) -> Result<Option<NodeId>> {
        let Some(QueryGrowth { beta, original }) = self.config.query_growth else { return Ok(None) };
        if self.growth.is_none() {
            let g = &mut self.graph;
            let times = g.div_scalar(self.positions, original as f64)?;
            let times = g.cast(times, Type::F32)?;
            let growth = g.log1p(times)?;
            let growth = g.mul_scalar(growth, beta)?;
            let growth = g.add_scalar(growth, 1.0)?;
            self.growth = Some(g.reshape(growth, &[self.tokens, Dim::Fixed(1), Dim::Fixed(1)])?);
        }
        Ok(self.growth)
    }

    /// The runs of tokens and the state of a recurrent layer.
    ///
    /// # Errors
    /// When the model has none.
    pub fn state(&self, layer: usize) -> Result<(Runs, &'_ LayerState)> {
        self.runs.zip(self.cache.state(layer)).ok_or_else(|| self.no_state(layer))
    }

    /// The error that a layer has no state.
    pub fn no_state(&self, layer: usize) -> LlmError {
        without_state(self.config, layer)
    }

    /// The causal convolution of each channel of `x` with `weights` (`[channels, width]`), with the layer's state.
    ///
    /// # Errors
    /// When the sizes do not fit.
    pub fn conv(&mut self, layer: usize, x: NodeId, weights: &Tensor) -> Result<NodeId> {
        let (runs, state) = self.state(layer)?;
        let conv = state.conv.clone();
        let g = &mut self.graph;
        let state = g.state(&conv)?;
        let state = g.conv_state(state, x, runs.list)?;
        let weights = g.constant(weights)?;
        Ok(g.causal_conv(state, x, weights, runs.of_tokens, runs.list)?)
    }

    /// A linear layer of `x`, which has one row per token of the step.
    ///
    /// # Errors
    /// When their sizes do not fit.
    pub fn linear(&mut self, x: NodeId, linear: &Linear) -> Result<NodeId> {
        self.linears.apply(&mut self.graph, x, linear, self.rows)
    }

    /// Several linear layers of the same `x`. Their products are adjacent, so a device may fuse them.
    ///
    /// # Errors
    /// As [`Step::linear`].
    pub fn linears<const N: usize>(&mut self, x: NodeId, linears: [&Linear; N]) -> Result<[NodeId; N]> {
        self.linears.apply_all(&mut self.graph, x, linears, self.rows)
    }
}

/// A norm of the residual stream.
#[derive(Debug)]
pub(crate) struct Norm {
    factors: Tensor,
    /// Added after LayerNorm; `None`: RMSNorm.
    bias: Option<Tensor>,
}

impl Norm {
    /// Loads the norm of this name, of the architecture's kind.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(weights: &dyn Weights, config: &Config, name: &str) -> Result<Norm> {
        let len = config.width;
        let factors = weights.vector(&format!("{name}.weight"), len)?;
        let bias = match config.architecture.norm {
            NormKind::Rms => None,
            NormKind::Layer => Some(match weights.optional_vector(&format!("{name}.bias"), len)? {
                Some(bias) => bias,
                None => Tensor::from_slice(weights.executor(), &[len], &vec![0.0f32; len])?,
            }),
        };
        Ok(Norm { factors, bias })
    }

    /// RMSNorm with these factors.
    pub fn of(factors: Tensor) -> Norm {
        Norm { factors, bias: None }
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.weights().into_iter().map(Tensor::bytes).sum()
    }
}

impl Block for Norm {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let Some(bias) = &self.bias else { return step.norm(x, &self.factors) };
        let g = &mut step.graph;
        let (w, bias) = (g.constant(&self.factors)?, g.constant(bias)?);
        Ok(g.layer_norm(x, w, bias, step.config.eps)?)
    }

    fn weights(&self) -> Vec<&Tensor> {
        std::iter::once(&self.factors).chain(&self.bias).collect()
    }
}

/// Blocks applied one after another.
#[derive(Debug)]
struct Chain(Vec<Box<dyn Block>>);

/// Applies blocks one after another.
pub(crate) fn chain(blocks: Vec<Box<dyn Block>>) -> Box<dyn Block> {
    Box::new(Chain(blocks))
}

impl Block for Chain {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        self.0.iter().try_fold(x, |x, block| block.apply(step, x))
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.0.iter().flat_map(|block| block.weights()).collect()
    }

    fn bytes_per_token(&self) -> usize {
        self.0.iter().map(|block| block.bytes_per_token()).sum()
    }
}

/// A block whose result is added to its input.
#[derive(Debug)]
struct Residual(Box<dyn Block>);

/// Applies blocks one after another and adds the result to their input.
pub(crate) fn residual(blocks: Vec<Box<dyn Block>>) -> Box<dyn Block> {
    Box::new(Residual(chain(blocks)))
}

impl Block for Residual {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let mut y = self.0.apply(step, x)?;
        if step.config.scales.residual != 1.0 {
            y = step.graph.mul_scalar(y, step.config.scales.residual.into())?;
        }
        Ok(step.graph.add(x, y)?)
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.0.weights()
    }

    fn bytes_per_token(&self) -> usize {
        self.0.bytes_per_token()
    }
}

/// The product with a number.
#[derive(Debug)]
struct Scaled(f32);

/// Multiplies its input by a number.
pub(crate) fn scaled(factor: f32) -> Box<dyn Block> {
    Box::new(Scaled(factor))
}

impl Block for Scaled {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        Ok(step.graph.mul_scalar(x, self.0.into())?)
    }

    fn weights(&self) -> Vec<&Tensor> {
        Vec::new()
    }
}

/// Blocks of the same input, whose results are added.
#[derive(Debug)]
struct Parallel(Vec<Box<dyn Block>>);

/// Applies blocks to the same input and adds their results.
pub(crate) fn parallel(blocks: Vec<Box<dyn Block>>) -> Box<dyn Block> {
    Box::new(Parallel(blocks))
}

impl Block for Parallel {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let mut sum = None;
        for block in &self.0 {
            let y = block.apply(step, x)?;
            sum = Some(match sum {
                None => y,
                Some(sum) => step.graph.add(sum, y)?,
            });
        }
        Ok(sum.unwrap_or(x))
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.0.iter().flat_map(|block| block.weights()).collect()
    }

    fn bytes_per_token(&self) -> usize {
        self.0.iter().map(|block| block.bytes_per_token()).sum()
    }
}
