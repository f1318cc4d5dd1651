//! Lines of a tensor along one of its dimensions: the tensor as `[outer, n, inner]`.

use hologram_device::{Extent, TensorSpec};

/// A tensor's sizes around one of its dimensions; only the slowest of all may vary.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    outer: Vec<Extent>,
    n: Extent,
    /// Elements from one element of a line to the next: the product of the dimensions after.
    pub(super) inner: usize,
}

/// The sizes in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
}

impl Lines {
    /// `None` if there is no such dimension, or if another dimension than the slowest varies.
    pub(super) fn new(tensor: &TensorSpec, axis: u32) -> Option<Lines> {
        let axis = axis as usize;
        let n = *tensor.shape.get(axis)?;
        let inner = tensor.shape[axis + 1..].iter().map(|e| e.max()).product();
        super::is_dense(tensor).then(|| Lines { outer: tensor.shape[..axis].to_vec(), n, inner })
    }

    /// The sizes in a run with this step block.
    pub(super) fn sizes(&self, step: &[u32]) -> Sizes {
        let outer = self.outer.iter().map(|e| e.value(step)).product();
        Sizes { outer, n: self.n.value(step), inner: self.inner }
    }

    /// The maximum sizes.
    pub(super) fn max(&self) -> Sizes {
        Sizes { outer: self.outer.iter().map(|e| e.max()).product(), n: self.n.max(), inner: self.inner }
    }
}

impl Sizes {
    /// The number of lines.
    pub(super) fn lines(self) -> usize {
        self.outer * self.inner
    }

    /// The number of elements.
    pub(super) fn elements(self) -> usize {
        self.lines() * self.n
    }

    /// The position of a line's first element.
    pub(super) fn first(self, line: usize) -> usize {
        line / self.inner.max(1) * self.n * self.inner + line % self.inner.max(1)
    }
}
