//! Feed-forward networks, with a gate and without.

use hologram_core::ops::Reduction;
use hologram_core::{Dim, Graph, NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::Result;

/// Combines gate and up projection, such as [`Graph::swiglu`].
pub(crate) type Gate = fn(&mut Graph, NodeId, NodeId) -> hologram_core::Result<NodeId>;

/// An activation, such as [`Graph::gelu`].
pub(crate) type Activate = fn(&mut Graph, NodeId) -> hologram_core::Result<NodeId>;

/// What is between the first products of a network and its last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inner {
    Gated(Gate),
    Plain(Activate),
}

/// `gelu(gate) ∘ up`, with the tanh form of GELU (Shazeer, 2020, arXiv:2002.05202).
pub(crate) fn geglu(g: &mut Graph, gate: NodeId, up: NodeId) -> hologram_core::Result<NodeId> {
    let gate = g.gelu_tanh(gate)?;
    g.mul(gate, up)
}

/// `gelu(gate) ∘ up`, with the exact form of GELU.
pub(crate) fn geglu_erf(g: &mut Graph, gate: NodeId, up: NodeId) -> hologram_core::Result<NodeId> {
    let gate = g.gelu(gate)?;
    g.mul(gate, up)
}

/// The greatest magnitude of what [`Graph::clamped_swiglu`] takes.
pub(crate) const SWIGLU_LIMIT: f32 = 7.0;

/// `down(gate(x) ∘ up(x))`.
#[derive(Debug)]
pub(crate) struct GatedFfn {
    gate: Linear,
    up: Linear,
    combine: Gate,
    /// Gates lose this many deviations above their mean, and are 0 below that.
    cut: Option<f32>,
    /// A norm before the down projection.
    sub_norm: Option<Tensor>,
    down: Linear,
}

/// What of each row exceeds its mean by more than `deviations` standard deviations.
fn above(g: &mut Graph, x: NodeId, tokens: Dim, deviations: f32) -> Result<NodeId> {
    let column = [tokens, Dim::Fixed(1)];
    let mean = g.reduce(x, Reduction::Mean, 1)?;
    let mean = g.reshape(mean, &column)?;
    let x = g.sub(x, mean)?;
    let squares = g.mul(x, x)?;
    let variance = g.reduce(squares, Reduction::Mean, 1)?;
    let variance = g.reshape(variance, &column)?;
    let deviation = g.sqrt(variance)?;
    let cut = g.mul_scalar(deviation, deviations.into())?;
    let x = g.sub(x, cut)?;
    Ok(g.relu(x)?)
}

impl GatedFfn {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load(l: &mut Loader<'_>, combine: Gate, sub_norm: Option<&str>) -> Result<Box<dyn Block>> {
        let c = l.config;
        let gate = l.linear("ffn_gate", c.ffn, c.width, false)?;
        let up = l.linear("ffn_up", c.ffn, c.width, false)?;
        GatedFfn::of(l, gate, up, combine, sub_norm)
    }

    /// As [`GatedFfn::load`], of this width, with these names of gate, up and down. If there is no gate, it is the
    /// first half of up.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load_named(
        l: &Loader<'_>,
        [gate, up, down]: [&str; 3],
        ffn: usize,
        combine: Gate,
    ) -> Result<Box<dyn Block>> {
        Ok(Box::new(GatedFfn::named(l, [gate, up, down], ffn, combine)?))
    }

    /// As [`GatedFfn::load`], of this width. Of gates only what is `cut` deviations above their mean counts.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load_cut(l: &Loader<'_>, ffn: usize, combine: Gate, cut: Option<f32>) -> Result<Box<dyn Block>> {
        let own = GatedFfn::named(l, ["ffn_gate", "ffn_up", "ffn_down"], ffn, combine)?;
        Ok(Box::new(GatedFfn { cut, ..own }))
    }

    fn named(l: &Loader<'_>, [gate, up, down]: [&str; 3], ffn: usize, combine: Gate) -> Result<GatedFfn> {
        let width = l.config.width;
        let apart = l.weights.shape(&l.name(gate, "weight")).is_some();
        let half = |rows: std::ops::Range<usize>| l.linear_rows(up, 2 * ffn, rows, width);
        Ok(GatedFfn {
            gate: if apart { l.linear(gate, ffn, width, false)? } else { half(0..ffn)? },
            up: if apart { l.linear(up, ffn, width, false)? } else { half(ffn..2 * ffn)? },
            combine,
            cut: None,
            sub_norm: None,
            down: l.linear(down, width, ffn, false)?,
        })
    }

    /// As [`GatedFfn::load`], with gate and up as the rows of one matrix, `ffn_up`.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load_fused(l: &mut Loader<'_>, combine: Gate) -> Result<Box<dyn Block>> {
        let c = l.config;
        let gate = l.linear_rows("ffn_up", 2 * c.ffn, 0..c.ffn, c.width)?;
        let up = l.linear_rows("ffn_up", 2 * c.ffn, c.ffn..2 * c.ffn, c.width)?;
        GatedFfn::of(l, gate, up, combine, None)
    }

    fn of(l: &Loader<'_>, gate: Linear, up: Linear, combine: Gate, sub_norm: Option<&str>) -> Result<Box<dyn Block>> {
        let c = l.config;
        Ok(Box::new(GatedFfn {
            gate,
            up,
            combine,
            cut: None,
            sub_norm: sub_norm.map(|name| l.factors(name, c.ffn)).transpose()?,
            down: l.linear("ffn_down", c.width, c.ffn, false)?,
        }))
    }
}

impl Block for GatedFfn {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let [mut gate, up] = step.linears(x, [&self.gate, &self.up])?;
        if let Some(cut) = self.cut {
            gate = above(&mut step.graph, gate, step.tokens, cut)?;
        }
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

/// `down(activate(up(x)))`.
#[derive(Debug)]
pub(crate) struct PlainFfn {
    up: Linear,
    activate: Activate,
    down: Linear,
}

impl PlainFfn {
    /// Loads the weights.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load(l: &Loader<'_>, activate: Activate) -> Result<Box<dyn Block>> {
        PlainFfn::load_named(l, ["ffn_up", "ffn_down"], l.config.ffn, activate)
    }

    /// As [`PlainFfn::load`], of this width, with these names of up and down.
    ///
    /// # Errors
    /// Those of [`Weights`](crate::weights::Weights).
    pub fn load_named(l: &Loader<'_>, [up, down]: [&str; 2], ffn: usize, activate: Activate) -> Result<Box<dyn Block>> {
        let width = l.config.width;
        let (up, down) = (l.linear(up, ffn, width, false)?, l.linear(down, width, ffn, false)?);
        Ok(Box::new(PlainFfn { up, activate, down }))
    }
}

impl Block for PlainFfn {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let up = step.linear(x, &self.up)?;
        let f = (self.activate)(&mut step.graph, up)?;
        step.linear(f, &self.down)
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.up.tensors().chain(self.down.tensors()).collect()
    }
}
