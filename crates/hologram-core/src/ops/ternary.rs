//! Ternary weights for training, as BitNet b1.58 rounds them (Ma et al., 2024, arXiv:2402.17764).

use super::Reduction;
use crate::error::Result;
use crate::graph::{Graph, NodeId};

impl Graph {
    /// A matrix of floats, fixed in shape, rounded to −s, 0 and s, with s the mean magnitude of all elements. The
    /// gradient passes straight through to `w`, so a model trains with the weights that it will have.
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
            let codes = g.div(free, scale)?;
            let codes = g.round(codes)?;
            let codes = g.clip_scalar(codes, -1.0, 1.0)?;
            let rounded = g.mul(codes, scale)?;
            g.straight_through(w, rounded)
        })
    }
}
