//! Gated feed-forward networks.

use hologram_core::{Graph, NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::Result;

/// Combines gate and up projection, such as [`Graph::swiglu`].
type Gate = fn(&mut Graph, NodeId, NodeId) -> hologram_core::Result<NodeId>;

/// `down(gate(x) ∘ up(x))`.
#[derive(Debug)]
pub(crate) struct GatedFfn {
    gate: Linear,
    up: Linear,
    combine: Gate,
    /// A norm before the down projection.
    sub_norm: Option<Tensor>,
    down: Linear,
}

impl GatedFfn {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load(l: &mut Loader<'_>, combine: Gate, sub_norm: Option<&str>) -> Result<Box<dyn Block>> {
        let c = l.config;
        Ok(Box::new(GatedFfn {
            gate: l.linear("ffn_gate", c.ffn, c.width, false)?,
            up: l.linear("ffn_up", c.ffn, c.width, false)?,
            combine,
            sub_norm: sub_norm.map(|name| l.factors(name, c.ffn)).transpose()?,
            down: l.linear("ffn_down", c.width, c.ffn, false)?,
        }))
    }
}

impl Block for GatedFfn {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let [gate, up] = step.linears(x, [&self.gate, &self.up])?;
        let mut f = (self.combine)(&mut step.graph, gate, up)?;
        if let Some(factors) = &self.sub_norm {
            f = step.norm(f, factors)?;
        }
        step.linear(f, &self.down)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let inputs = [&self.gate, &self.up].into_iter().flat_map(Linear::tensors);
        inputs.chain(&self.sub_norm).chain(self.down.tensors()).collect()
    }
}
