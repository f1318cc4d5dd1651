//! Views: other shapes, parts and orders of a value's elements, without a copy.
//!
//! Elementwise operations and copies read a view where its elements lie. Before any other operation the graph inserts a
//! `copy`, which is a separate launch. No copy is needed if the view's elements are row-major and begin at a multiple
//! of [`VIEW_ALIGN`].

use hologram_backends::DType;

use super::{Graph, Node, NodeId, Source};
use crate::error::{CoreError, Result};
use crate::layout::Layout;
use crate::ops::Copy;
use crate::tensor::{Axis, Dim, TensorType};

/// Alignment in bytes of the memory that operations other than elementwise ones read.
pub(crate) const VIEW_ALIGN: usize = 64;

/// How a view was made, and of which value. Gradients go this way back.
#[derive(Clone, Debug)]
pub(crate) struct ViewStep {
    pub of: NodeId,
    pub kind: ViewKind,
}

/// What a view is.
#[derive(Clone, Debug)]
pub(crate) enum ViewKind {
    Reshape,
    Permute(Vec<usize>),
    /// The dimension, and the first index.
    Slice(usize, usize),
    Broadcast,
    /// The value itself, through which no gradient passes.
    Detached,
    /// The value itself, whose gradient is that of another value.
    StraightThrough(NodeId),
}

/// How a value lies in the memory of its storage.
pub(crate) enum Place<'a> {
    /// Row-major, at this offset in bytes.
    Dense(usize),
    /// Any other layout.
    Strided(&'a Layout),
}

/// The extent of a shape, if it has one, and the product of its other dimensions; `None` for more than memory can hold.
pub(crate) fn elements(shape: &[Dim]) -> Option<(Option<u32>, usize)> {
    shape.iter().try_fold((None, 1usize), |(extent, n), d| match d {
        Dim::Fixed(size) => Some((extent, n.checked_mul(*size)?)),
        Dim::Extent(e) => Some((Some(*e), n)),
    })
}

impl Graph {
    /// The same elements in row-major order with another shape: `f32 [tokens, h·d]` as `[tokens, h, d]`. Copies only a
    /// view whose elements cannot have this shape by strides.
    ///
    /// # Errors
    /// When the number of elements differs, the first dimension is an extent of only one of the shapes, the format is
    /// not plain, or the value is an updated state.
    pub fn reshape(&mut self, x: NodeId, shape: &[Dim]) -> Result<NodeId> {
        let from = self.viewed("reshape", x)?;
        let to = TensorType::new(from.format, shape);
        let count = elements(shape);
        if count.is_none() || count != elements(&from.shape) {
            let reason = format!("{} has not the same elements", self.describe(&to));
            return Err(CoreError::Operands {
                op: self.calling.unwrap_or("reshape"),
                reason,
                operands: self.describe(&from),
            });
        }
        let Some(layout) = self.nodes[x.0 as usize].layout.clone() else {
            return self.push_view(x, ViewKind::Reshape, to, None);
        };
        // An extent stays the first dimension and keeps its stride.
        let extent = matches!(from.shape.first(), Some(Dim::Extent(_)));
        let (fixed, first) = if extent { (1, Some(layout.strides[0])) } else { (0, None) };
        let sizes = |shape: &[Dim]| self.sizes(shape).split_off(fixed);
        let inner = Layout { offset: layout.offset, strides: layout.strides[fixed..].to_vec() };
        let reshaped = if count.is_some_and(|(_, n)| n == 0) {
            Some(Layout { offset: layout.offset, ..Layout::dense(&sizes(shape)) })
        } else {
            inner.reshape(&sizes(&from.shape), &sizes(shape))
        };
        match reshaped {
            Some(inner) => {
                let strides = first.into_iter().chain(inner.strides).collect();
                self.push_view(x, ViewKind::Reshape, to, Some(Layout { offset: inner.offset, strides }))
            }
            None => {
                let dense = self.contiguous(x)?;
                self.push_view(dense, ViewKind::Reshape, to, None)
            }
        }
    }

    /// Indices `start..end` of a dimension, as a view. The dimension must not be a run-time extent.
    ///
    /// # Errors
    /// When the range is not in the dimension, the format is not plain, or the value is an updated state.
    pub fn slice(&mut self, x: NodeId, dim: impl Axis, start: usize, end: usize) -> Result<NodeId> {
        let dim = self.axis("slice", x, dim)?;
        self.view("slice", x, ViewKind::Slice(dim, start), |ty, sizes, layout| {
            if matches!(ty.shape.get(dim), Some(Dim::Extent(_))) {
                return Err("a run-time extent cannot be sliced".into());
            }
            let (sizes, layout) = layout.slice(sizes, dim, start, end)?;
            let mut shape = ty.shape.clone();
            shape[dim] = Dim::Fixed(sizes[dim]);
            Ok((shape, layout))
        })
    }

    /// A view with the dimensions in another order: dimension `k` of the result is dimension `order[k]` of `x`.
    ///
    /// # Errors
    /// When `order` does not name each dimension once, a run-time extent would not be the first, the format is not
    /// plain, or the value is an updated state.
    pub fn permute(&mut self, x: NodeId, order: &[usize]) -> Result<NodeId> {
        self.view("permute", x, ViewKind::Permute(order.to_vec()), |ty, sizes, layout| {
            let (_, layout) = layout.permute(sizes, order)?;
            Ok((order.iter().map(|d| ty.shape[*d]).collect(), layout))
        })
    }

    /// A view with the last two dimensions swapped.
    ///
    /// # Errors
    /// As [`Graph::permute`]; when there are fewer than two dimensions.
    pub fn transpose(&mut self, x: NodeId) -> Result<NodeId> {
        let rank = self.viewed("transpose", x)?.shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        match order.as_mut_slice() {
            [.., a, b] => std::mem::swap(a, b),
            _ => {
                let operands = self.describe(self.ty(x));
                return Err(CoreError::Operands {
                    op: self.calling.unwrap_or("transpose"),
                    reason: "takes two dimensions".into(),
                    operands,
                });
            }
        }
        self.permute(x, &order)
    }

    /// A view of another shape in which dimensions of size 1, and leading dimensions that `x` lacks, repeat.
    ///
    /// # Errors
    /// When the shapes do not broadcast as in NumPy, the format is not plain, or the value is an updated state.
    pub fn broadcast_to(&mut self, x: NodeId, shape: &[Dim]) -> Result<NodeId> {
        let to = self.sizes(shape);
        self.view("broadcast_to", x, ViewKind::Broadcast, |ty, sizes, layout| {
            let extent = |(a, b): (&Dim, &Dim)| a != b && matches!((a, b), (Dim::Extent(_), _));
            if ty.shape.iter().rev().zip(shape.iter().rev()).any(extent) {
                return Err("a run-time extent does not repeat".into());
            }
            Ok((shape.to_vec(), layout.broadcast(sizes, &to)?))
        })
    }

    /// The value in row-major order: itself, or a copy of a view.
    ///
    /// # Errors
    /// As [`Graph::copy`].
    pub fn contiguous(&mut self, x: NodeId) -> Result<NodeId> {
        self.operand("contiguous", x)?;
        match self.place(x) {
            Place::Dense(_) => Ok(x),
            Place::Strided(_) => match self.copies.get(&x) {
                Some(copy) => Ok(*copy),
                None => {
                    let copy = self.apply(Copy, &[x])?;
                    self.copies.insert(x, copy);
                    Ok(copy)
                }
            },
        }
    }

    /// The transpose of a value of which only the transpose lies in row-major order.
    pub(crate) fn untransposed(&mut self, x: NodeId) -> Result<Option<NodeId>> {
        let (Some(Node { ty, .. }), true) = (self.nodes.get(x.0 as usize), self.has(x)) else { return Ok(None) };
        let (Place::Strided(layout), true) = (self.place(x), matches!(ty.shape.as_slice(), [.., _, _])) else {
            return Ok(None);
        };
        let (mut sizes, mut turned) = (self.sizes(&ty.shape), layout.clone());
        let last = sizes.len() - 1;
        sizes.swap(last - 1, last);
        turned.strides.swap(last - 1, last);
        // A run-time extent stays the first dimension.
        if matches!(ty.shape[last - 1], Dim::Extent(_)) || !turned.is_dense(&sizes) {
            return Ok(None);
        }
        let transposed = self.transpose(x)?;
        Ok(matches!(self.place(transposed), Place::Dense(_)).then_some(transposed))
    }

    /// A view with the value's own layout.
    pub(super) fn same(&mut self, op: &'static str, x: NodeId, kind: ViewKind) -> Result<NodeId> {
        let ty = self.viewed(op, x)?;
        let layout = self.nodes[x.0 as usize].layout.clone();
        self.push_view(x, kind, ty, layout)
    }

    /// Where a value's elements lie in its storage.
    pub(crate) fn place(&self, id: NodeId) -> Place<'_> {
        let node = &self.nodes[id.0 as usize];
        let Some(layout) = &node.layout else { return Place::Dense(0) };
        let bytes = layout.offset * node.ty.format.block_bytes();
        let start = match &self.nodes[self.storage(id).0 as usize].source {
            Source::Tensor(t) => t.offset,
            _ => 0,
        };
        if layout.is_dense(&self.sizes(&node.ty.shape)) && (start + bytes).is_multiple_of(VIEW_ALIGN) {
            Place::Dense(bytes)
        } else {
            Place::Strided(layout)
        }
    }

    /// The node whose memory a value lies in: its own, except for views.
    pub(crate) fn storage(&self, id: NodeId) -> NodeId {
        match self.nodes[id.0 as usize].source {
            Source::View(of, _) => of,
            _ => id,
        }
    }

    fn view(
        &mut self,
        op: &'static str,
        x: NodeId,
        kind: ViewKind,
        make: impl FnOnce(&TensorType, &[usize], &Layout) -> std::result::Result<(Vec<Dim>, Layout), String>,
    ) -> Result<NodeId> {
        let ty = self.viewed(op, x)?;
        let sizes = self.sizes(&ty.shape);
        let dense = Layout::dense(&sizes);
        let layout = self.nodes[x.0 as usize].layout.as_ref().unwrap_or(&dense);
        let (shape, layout) = make(&ty, &sizes, layout).map_err(|reason| CoreError::Operands {
            op: self.calling.unwrap_or(op),
            reason,
            operands: self.describe(&ty),
        })?;
        self.push_view(x, kind, TensorType::new(ty.format, shape), Some(layout))
    }

    pub(super) fn push_view(
        &mut self,
        x: NodeId,
        kind: ViewKind,
        ty: TensorType,
        layout: Option<Layout>,
    ) -> Result<NodeId> {
        let id = self.push(Source::View(self.storage(x), ViewStep { of: x, kind }), ty)?;
        self.nodes[id.0 as usize].layout = layout;
        Ok(id)
    }

    /// The type of a value, if views of it are possible.
    fn viewed(&self, op: &'static str, x: NodeId) -> Result<TensorType> {
        let node = self.operand(op, x)?;
        let reason = if node.state.is_some() && !matches!(node.source, Source::Tensor(_)) {
            "only a state's content before its updates has views"
        } else if !matches!(node.ty.format, DType::Plain(_)) {
            "only plain formats have views"
        } else {
            return Ok(node.ty.clone());
        };
        Err(CoreError::Operands {
            op: self.calling.unwrap_or(op),
            reason: reason.into(),
            operands: self.describe(&node.ty),
        })
    }

    /// A shape's maximum sizes.
    pub(super) fn sizes(&self, shape: &[Dim]) -> Vec<usize> {
        let size = |d: &Dim| match d {
            Dim::Fixed(n) => *n,
            Dim::Extent(e) => self.extents.get(*e as usize).map_or(0, |e| e.max),
        };
        shape.iter().map(size).collect()
    }
}
