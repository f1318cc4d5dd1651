//! A further embedding of each token in each layer, as in Gemma 4 (Google, 2026).

use hologram_core::{Dim, NodeId, Tensor};
use hologram_isa::Type;

use super::{Block, Linear, Loader, Step};
use crate::error::{LlmError, Result};
use crate::models::config::Config;
use crate::weights::Weights;

/// What computes the further embeddings of all layers: a table's row of the token, and a projection of its embedding.
#[derive(Debug)]
pub(crate) struct LayerInputs {
    /// `[vocabulary, layers · elements]`. Tokens behind its end have its first row.
    table: Tensor,
    projection: Linear,
    norm: Tensor,
}

impl LayerInputs {
    /// Loads the weights; `None` if the model has no such embeddings.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(weights: &dyn Weights, c: &Config) -> Result<Option<LayerInputs>> {
        if c.layer_input == 0 {
            return Ok(None);
        }
        let (all, name) = (c.layers * c.layer_input, "per_layer_model_proj.weight");
        let table = "per_layer_token_embd.weight";
        let rows = weights.shape(table).and_then(|shape| shape.first().copied()).unwrap_or(c.vocab).min(c.vocab);
        Ok(Some(LayerInputs {
            table: weights.matrix(table, rows, all)?,
            projection: Linear {
                name: name.into(),
                weight: weights.matrix(name, all, c.width)?,
                bias: None,
                scale: weights.scale(name)?,
                beside: Vec::new(),
            },
            norm: weights.vector("per_layer_proj_norm.weight", c.layer_input)?,
        }))
    }

    /// The embeddings `[tokens, layers · elements]` of tokens `ids`, whose embeddings are `x`:
    /// (norm(projection(x) / √width) + √elements · row) / √2.
    ///
    /// # Errors
    /// When weights do not fit together.
    pub fn apply(&self, step: &mut Step<'_>, ids: NodeId, x: NodeId) -> Result<NodeId> {
        let (c, tokens) = (step.config, step.tokens);
        let (layers, elements) = (Dim::Fixed(c.layers), Dim::Fixed(c.layer_input));
        let all = [tokens, Dim::Fixed(c.layers * c.layer_input)];
        let projected = step.linear(x, &self.projection)?;
        let g = &mut step.graph;
        let projected = g.mul_scalar(projected, (c.width as f64).sqrt().recip())?;
        let projected = g.reshape(projected, &[tokens, layers, elements])?;
        let projected = step.norm(projected, &self.norm)?;
        let g = &mut step.graph;
        let projected = g.reshape(projected, &all)?;
        let own = self.table.shape().first().copied().unwrap_or(0);
        let ids = if own < c.vocab {
            let (end, first) = (g.scalar(Type::U32, own as f64)?, g.scalar(Type::U32, 0.0)?);
            let inside = g.lt(ids, end)?;
            g.select(inside, ids, first)?
        } else {
            ids
        };
        let table = g.constant(&self.table)?;
        let rows = g.gather(table, ids)?;
        let rows = g.mul_scalar(rows, (c.layer_input as f64).sqrt())?;
        let sum = g.add(projected, rows)?;
        Ok(g.mul_scalar(sum, 0.5f64.sqrt())?)
    }

    /// The weights.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.table).chain(self.projection.tensors()).chain([&self.norm])
    }

    /// Bytes of weights that a token uses.
    pub fn bytes_per_token(&self) -> usize {
        let rows = self.table.shape().first().copied().unwrap_or(1).max(1);
        let others = self.projection.tensors().chain([&self.norm]);
        self.table.bytes() / rows + others.map(Tensor::bytes).sum::<usize>()
    }
}

/// `projection(gelu(gate(x)) ∘ e)` with the token's further embedding e of this layer, with the tanh form of GELU.
#[derive(Debug)]
pub(crate) struct LayerInput {
    layer: usize,
    gate: Linear,
    projection: Linear,
}

impl LayerInput {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(l: &Loader<'_>) -> Result<Box<dyn Block>> {
        let c = l.config;
        Ok(Box::new(LayerInput {
            layer: l.index,
            gate: l.linear("inp_gate", c.layer_input, c.width, false)?,
            projection: l.linear("proj", c.width, c.layer_input, false)?,
        }))
    }
}

impl Block for LayerInput {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let c = step.config;
        let inputs = step.layer_inputs.ok_or_else(|| LlmError::Unsupported {
            path: c.name.clone().into(),
            what: format!("layer {} without its embedding", self.layer),
            supported: String::new(),
        })?;
        let gate = step.linear(x, &self.gate)?;
        let g = &mut step.graph;
        let gate = g.gelu_tanh(gate)?;
        let own = g.slice(inputs, 1, self.layer * c.layer_input, (self.layer + 1) * c.layer_input)?;
        let y = g.mul(gate, own)?;
        step.linear(y, &self.projection)
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.gate.tensors().chain(self.projection.tensors()).collect()
    }
}
