//! The blocks that make up layers.
//!
//! An architecture's `layer` function composes them: [`residual`] and [`chain`] contain other blocks; [`Norm`],
//! [`Attention`] and [`GatedFfn`] have weights. A block loads its weights once and adds its operations to the graph of
//! each step size.

mod attention;
mod feed_forward;
mod linear;

use std::fmt::Debug;

use hologram_backends::DType;
use hologram_core::ops::AttentionPrecision;
use hologram_core::{Dim, Graph, NodeId, Tensor};

pub(crate) use attention::{Attention, AttentionParts};
pub(crate) use feed_forward::GatedFfn;
pub(crate) use linear::{Linear, Linears};

use crate::error::Result;
use crate::kv::KvCache;
use crate::models::config::Config;
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
}

/// Loads and composes one layer.
pub(crate) type LayerFn = fn(&mut Loader<'_>) -> Result<Box<dyn Block>>;

/// Loads the weights of one layer after another.
pub(crate) struct Loader<'a> {
    pub weights: &'a dyn Weights,
    pub config: &'a Config,
    /// The current layer.
    pub index: usize,
    /// The formats of the attention blocks' matrices.
    pub attention: Vec<DType>,
}

impl Loader<'_> {
    /// A tensor's name in GGUF files.
    fn name(&self, name: &str, part: &str) -> String {
        format!("blk.{}.{name}.{part}", self.index)
    }

    /// The weight of a norm over `len` elements.
    ///
    /// # Errors
    /// Those of [`Weights::vector`].
    pub fn factors(&self, name: &str, len: usize) -> Result<Tensor> {
        self.weights.vector(&self.name(name, "weight"), len)
    }

    /// A norm of the residual stream.
    ///
    /// # Errors
    /// As [`Loader::factors`].
    pub fn norm(&self, name: &str) -> Result<Box<dyn Block>> {
        Ok(Box::new(Norm { factors: self.factors(name, self.config.width)? }))
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
        let (weight, scale) = (self.weights.matrix(&of_weight, rows, row_len)?, self.weights.scale(&of_weight)?);
        Ok(Linear { weight, bias, scale })
    }
}

/// The graph of a step under construction.
pub(crate) struct Step<'a> {
    pub graph: Graph,
    pub config: &'a Config,
    pub cache: &'a KvCache,
    pub linears: Linears<'a>,
    pub precision: AttentionPrecision,
    /// The step's tokens, and their maximum.
    pub tokens: Dim,
    pub rows: usize,
    /// Per token its position, its sequence and its slot in the cache.
    pub positions: NodeId,
    pub sequences: NodeId,
    pub slots: NodeId,
    /// Per sequence its blocks in the cache.
    pub block_table: NodeId,
    /// The rotary frequencies.
    pub frequencies: NodeId,
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

/// RMSNorm of the residual stream.
#[derive(Debug)]
struct Norm {
    factors: Tensor,
}

impl Block for Norm {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        step.norm(x, &self.factors)
    }

    fn weights(&self) -> Vec<&Tensor> {
        vec![&self.factors]
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
        let y = self.0.apply(step, x)?;
        Ok(step.graph.add(x, y)?)
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.0.weights()
    }
}
