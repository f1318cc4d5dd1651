//! The chain of elementwise operations that tests and benchmarks of fusion and fast functions use.

use crate::error::Result;
use crate::graph::{Graph, NodeId};

/// `relu(sigmoid(x·y + x) − quarter·tanh(y))·exp(−|x|)` of `f32` tensors of one shape, with `quarter` a scalar.
/// One launch when fused.
///
/// # Errors
/// When the operands do not fit together.
pub fn chain(g: &mut Graph, x: NodeId, y: NodeId, quarter: NodeId) -> Result<NodeId> {
    let product = g.mul(x, y)?;
    let sum = g.add(product, x)?;
    let left = g.sigmoid(sum)?;
    let tanh = g.tanh(y)?;
    let right = g.mul(tanh, quarter)?;
    let difference = g.sub(left, right)?;
    let positive = g.relu(difference)?;
    let size = g.abs(x)?;
    let minus = g.neg(size)?;
    let decay = g.exp(minus)?;
    g.mul(positive, decay)
}
