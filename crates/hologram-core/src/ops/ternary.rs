//! Ternary weights and 8-bit activations for training, as BitNet b1.58 rounds them (Ma et al., 2024, arXiv:2402.17764).

use hologram_isa::Type;

use super::Reduction;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};

impl Graph {
    /// A matrix of floats, fixed in shape, rounded to −s, 0 and s, with s the mean magnitude of all elements, rounded
    /// to `f16` as files of ternary weights hold it. The gradient passes straight through to `w`, so a model trains
    /// with the weights that it will have.
    ///
    /// # Errors
    /// When `w` is no float or has a run-time extent.
    pub fn ternary(&mut self, w: NodeId) -> Result<NodeId> {
        self.called("ternary", |g| {
            let free = g.detach(w)?;
            let size = g.abs(free)?;
            let scale = g.reduce_all(size, Reduction::Mean)?;
            // Not 0, so that zeros stay zeros.
            let scale = g.max_scalar(scale, 1e-5)?;
            let scale = g.cast(scale, Type::F16)?;
            let scale = g.cast_like(scale, w)?;
            let codes = g.div(free, scale)?;
            let codes = g.round(codes)?;
            let codes = g.clip_scalar(codes, -1.0, 1.0)?;
            let rounded = g.mul(codes, scale)?;
            g.straight_through(w, rounded)
        })
    }

    /// Floats whose rows, along the last dimension, are rounded as [`Graph::quantize`] rounds a row that is one group:
    /// to multiples of a / 127, with a = max(max|x|, `floor`). The gradient passes straight through to `x`, so a model
    /// trains with the activations that it will have.
    ///
    /// # Errors
    /// When `x` is no float or a scalar, or the floor is not finite and above 0.
    pub fn round_activations(&mut self, x: NodeId, floor: f32) -> Result<NodeId> {
        self.called("round_activations", |g| {
            let ty = g.operand("round_activations", x)?.ty.clone();
            let shape = ty.shape.clone();
            let (Some(last), true) = (shape.len().checked_sub(1), floor > 0.0 && floor.is_finite()) else {
                let reason = "takes rows of floats and a finite floor above 0".into();
                let operands = ty.to_string();
                return Err(CoreError::Operands { op: "round_activations", reason, operands });
            };
            let free = g.detach(x)?;
            let size = g.abs(free)?;
            let greatest = g.reduce(size, Reduction::Max, last)?;
            let greatest = g.max_scalar(greatest, floor.into())?;
            let full = g.full(ty.format, &[], 127.0)?;
            let (inverse, scale) = (g.div(full, greatest)?, g.div(greatest, full)?);
            let inverse = g.unreduced(inverse, last, &shape)?;
            let codes = g.mul(free, inverse)?;
            let codes = g.round(codes)?;
            let scale = g.unreduced(scale, last, &shape)?;
            let rounded = g.mul(codes, scale)?;
            g.straight_through(x, rounded)
        })
    }
}
