//! Short convolutions with gates before and after them.

use hologram_core::{NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::Result;

/// `out(c ∘ conv(b ∘ x))`, where b, c and x are projections (LFM2, Liquid AI, 2025, arXiv:2511.23404).
#[derive(Debug)]
pub(crate) struct ShortConv {
    layer: usize,
    b: Linear,
    c: Linear,
    x: Linear,
    /// `[width, conv]`.
    conv: Tensor,
    output: Linear,
}

impl ShortConv {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load(l: &Loader<'_>) -> Result<Box<dyn Block>> {
        let width = l.config.width;
        let part = |i: usize| l.linear_rows("shortconv.in_proj", 3 * width, i * width..(i + 1) * width, width);
        Ok(Box::new(ShortConv {
            layer: l.index,
            b: part(0)?,
            c: part(1)?,
            x: part(2)?,
            conv: l.conv("shortconv.conv")?,
            output: l.linear("shortconv.out_proj", width, width, false)?,
        }))
    }
}

impl Block for ShortConv {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let [b, c, x] = step.linears(x, [&self.b, &self.c, &self.x])?;
        let x = step.graph.mul(b, x)?;
        let y = step.conv(self.layer, x, &self.conv)?;
        let y = step.graph.mul(c, y)?;
        step.linear(y, &self.output)
    }

    fn weights(&self) -> Vec<&Tensor> {
        let inputs = [&self.b, &self.c, &self.x].into_iter().flat_map(Linear::tensors);
        inputs.chain([&self.conv]).chain(self.output.tensors()).collect()
    }
}
