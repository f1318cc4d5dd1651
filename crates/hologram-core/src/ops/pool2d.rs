//! Pooling of images, as the greatest or the sum of shifted views: one launch, with gradients.

use super::Reduction;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::tensor::Dim;

/// Options of [`Graph::pool2d`]; each pair is for rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// The size of a window.
    pub kernel: [usize; 2],
    /// The distance of neighbouring windows.
    pub stride: [usize; 2],
    /// Padding on each side: −∞ for the greatest and ∞ for the least, else 0, which counts in means.
    pub padding: [usize; 2],
}

impl Graph {
    /// Reduces each window of images `x` (`[n, c, h, w]`, floats) to its greatest or least element, sum or mean:
    /// `[n, c, h', w']`, with `h' = (h + 2·padding − kernel) / stride + 1`, rounded down, and w' likewise. In gradients
    /// equal elements share.
    ///
    /// # Errors
    /// When `x` is of another type, the reduction is a product, windows are empty, have more padding than half their
    /// size, or are larger than an image with its padding.
    pub fn pool2d(&mut self, x: NodeId, reduction: Reduction, options: &Pool2dOptions) -> Result<NodeId> {
        self.called("pool2d", |g| g.pooled(x, reduction, options))
    }

    fn pooled(&mut self, x: NodeId, reduction: Reduction, options: &Pool2dOptions) -> Result<NodeId> {
        let Pool2dOptions { kernel, stride, padding } = *options;
        let ty = self.operand("pool2d", x)?.ty.clone();
        let refuse =
            |reason: &str| CoreError::Operands { op: "pool2d", reason: reason.into(), operands: ty.to_string() };
        let [_, _, Dim::Fixed(h), Dim::Fixed(w)] = *ty.shape else { return Err(refuse("takes images [n, c, h, w]")) };
        let value = match reduction {
            Reduction::Max => f64::NEG_INFINITY,
            Reduction::Min => f64::INFINITY,
            Reduction::Sum | Reduction::Mean => 0.0,
            Reduction::Prod => return Err(refuse("there is no pooling by products")),
        };
        if self.float_of(x).is_none() {
            return Err(refuse("takes floats"));
        }
        // Per side: the number of windows, the elements before and after the image, and the elements in a view.
        let mut sides = [(0, 0, 0); 2];
        for (k, size) in [h, w].into_iter().enumerate() {
            if kernel[k] == 0 || stride[k] == 0 || padding[k] > kernel[k] / 2 {
                return Err(refuse("windows and strides are at least 1, padding is at most half a window"));
            }
            let count = (size + 2 * padding[k]).checked_sub(kernel[k]).map(|rest| rest / stride[k] + 1);
            let count = count.ok_or_else(|| refuse("the windows do not fit into the images"))?;
            // A view takes whole strides from any element of a window on.
            let end = (kernel[k] - 1) + count * stride[k];
            sides[k] = (count, padding[k], end.saturating_sub(size + padding[k]));
        }
        let mut padded = x;
        if sides.iter().any(|(_, before, after)| (*before, *after) != (0, 0)) {
            let [rows, columns] = sides.map(|(_, before, after)| (before, after));
            padded = self.pad(x, &[(0, 0), (0, 0), rows, columns], value)?;
        }
        let mut result = None;
        for row in 0..kernel[0] {
            for column in 0..kernel[1] {
                let mut part = padded;
                for (dim, first) in [(2, row), (3, column)] {
                    let (count, _, _) = sides[dim - 2];
                    part = self.every(part, dim, first, stride[dim - 2], count)?;
                }
                result = Some(match (result, reduction) {
                    (None, _) => part,
                    (Some(other), Reduction::Max) => self.maximum(other, part)?,
                    (Some(other), Reduction::Min) => self.minimum(other, part)?,
                    (Some(other), _) => self.add(other, part)?,
                });
            }
        }
        let result = result.ok_or_else(|| refuse("windows are at least 1"))?;
        match reduction {
            Reduction::Mean => self.mul_scalar(result, 1.0 / (kernel[0] * kernel[1]) as f64),
            _ => Ok(result),
        }
    }

    /// Every `step`-th element of a dimension from `first` on, `count` in all, as a view.
    fn every(&mut self, x: NodeId, dim: usize, first: usize, step: usize, count: usize) -> Result<NodeId> {
        let part = self.slice(x, dim, first, first + count * step)?;
        if step == 1 {
            return Ok(part);
        }
        let mut shape = self.shape_of(part).to_vec();
        shape[dim] = Dim::Fixed(count);
        shape.insert(dim + 1, Dim::Fixed(step));
        let apart = self.reshape(part, &shape)?;
        let heads = self.slice(apart, dim + 1, 0, 1)?;
        shape.remove(dim + 1);
        self.reshape(heads, &shape)
    }
}
