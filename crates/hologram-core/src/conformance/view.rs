//! Views of cases' inputs, and their elements computed on the host one by one.

use super::HostTensor;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::tensor::Dim;

/// A view of an input.
#[derive(Clone, Debug)]
pub enum View {
    /// Dimension, start and end: indices `start..end` of the dimension.
    Slice(usize, usize, usize),
    /// The dimensions in another order.
    Permute(Vec<usize>),
    /// The shape that the elements are broadcast to.
    Broadcast(Vec<Dim>),
    /// The same elements with other sizes.
    Reshape(Vec<Dim>),
}

impl View {
    /// The view of a graph's value.
    pub(super) fn apply(&self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        match self {
            View::Slice(dim, start, end) => g.slice(x, *dim, *start, *end),
            View::Permute(order) => g.permute(x, order),
            View::Broadcast(shape) => g.broadcast_to(x, shape),
            View::Reshape(shape) => g.reshape(x, shape),
        }
    }

    /// The view of an operand; `actual` gives the sizes of extents.
    pub(super) fn apply_to_host(&self, t: &HostTensor, actual: impl Fn(Dim) -> usize) -> HostTensor {
        let mut shape = t.shape.clone();
        match self {
            View::Slice(dim, start, end) => shape[*dim] = end - start,
            View::Permute(order) => shape = order.iter().map(|d| t.shape[*d]).collect(),
            View::Broadcast(to) | View::Reshape(to) => shape = to.iter().map(|d| actual(*d)).collect(),
        }
        let value = |i: usize| {
            if matches!(self, View::Reshape(_)) {
                return t.values[i];
            }
            let mut at = coordinates(&shape, i);
            match self {
                View::Slice(dim, start, _) => at[*dim] += start,
                View::Permute(order) => {
                    let from = at.clone();
                    order.iter().zip(from).for_each(|(d, i)| at[*d] = i);
                }
                _ => {
                    at.drain(..shape.len() - t.shape.len());
                    at.iter_mut().zip(&t.shape).for_each(|(i, n)| *i = (*i).min(n - 1));
                }
            }
            t.values[at.iter().zip(&t.shape).fold(0, |sum, (i, n)| sum * n + i)]
        };
        let values = (0..shape.iter().product()).map(value).collect();
        HostTensor { format: t.format, shape, values }
    }
}

fn coordinates(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|n| {
            let k = i % n;
            i /= n;
            k
        })
        .collect();
    at.reverse();
    at
}
