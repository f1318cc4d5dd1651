//! Checkpoints: parts of a graph that the backward pass computes again, so that their values need no memory until then
//! (Chen et al., 2016, arXiv:1604.06174).

use std::collections::HashMap;

use super::view::{ViewKind, ViewStep};
use super::{Graph, NodeId, Source};
use crate::error::{CoreError, Result};

impl Graph {
    /// Runs `build`, whose operations [`Graph::gradients`] then applies a second time for the backward pass instead of
    /// keeping their values: less memory for more time, and the same gradients, bit for bit. A layer of a model is a
    /// good part. Only what `build` reads, and those of its values that are used outside, stay in memory. A part within
    /// a part counts with the outer one.
    ///
    /// # Errors
    /// Those of `build`. [`Graph::gradients`] fails if `build` updates a state.
    ///
    /// ```
    /// use hologram_core::{DType, Dim, Graph};
    ///
    /// let mut g = Graph::new();
    /// let x = g.input("x", DType::F32, &[Dim::Fixed(3)])?;
    /// let y = g.checkpoint(|g| {
    ///     let wave = g.sin(x)?;
    ///     g.exp(wave)
    /// })?;
    /// let loss = g.reduce_sum(y)?;
    /// let by_x = g.gradients(loss, &[x])?;
    /// # Ok::<(), hologram_core::CoreError>(())
    /// ```
    pub fn checkpoint<T>(&mut self, build: impl FnOnce(&mut Graph) -> Result<T>) -> Result<T> {
        let start = self.nodes.len();
        let built = build(self)?;
        self.checkpoints.retain(|inner| inner.start < start);
        self.checkpoints.push(start..self.nodes.len());
        Ok(built)
    }

    /// Applies the operations of the part around a node again, if it lies in one and they have not been: `again` has
    /// the new value of each.
    pub(super) fn recompute(&mut self, index: usize, again: &mut HashMap<NodeId, NodeId>) -> Result<()> {
        let Some(part) = self.checkpoints.iter().find(|part| part.contains(&index)).cloned() else { return Ok(()) };
        if again.contains_key(&self.node(index)) {
            return Ok(());
        }
        for index in part {
            let id = self.node(index);
            let new = |id: &NodeId| again.get(id).copied().unwrap_or(*id);
            let copy = match self.nodes[index].source.clone() {
                Source::Input { .. } | Source::Tensor(_) => id,
                Source::Op { op, .. } if op.in_place().is_some() => {
                    let reason = "in a checkpoint updates a state, and cannot be applied again";
                    return Err(CoreError::Graph(format!("{} {reason}", op.name())));
                }
                Source::Op { op, inputs } => {
                    let inputs: Vec<NodeId> = inputs.iter().map(new).collect();
                    self.apply_shared(op, &inputs)?
                }
                Source::Part { .. } => {
                    return Err(CoreError::Graph("elsewhere in a checkpoint cannot be applied again".into()));
                }
                Source::View(_, ViewStep { of, kind }) => {
                    let kind = match kind {
                        ViewKind::StraightThrough(x) => ViewKind::StraightThrough(new(&x)),
                        kind => kind,
                    };
                    let (ty, layout) = (self.nodes[index].ty.clone(), self.nodes[index].layout.clone());
                    self.push_view(new(&of), kind, ty, layout)?
                }
            };
            again.insert(id, copy);
        }
        Ok(())
    }
}
