//! A residual stream of several branches, of which layers compute one (AltUp, Baykal et al., 2023, arXiv:2301.13310).

use hologram_core::ops::Reduction;
use hologram_core::{Dim, Graph, NodeId, Tensor};

use super::{Block, Linear, Loader, Step};
use crate::error::{LlmError, Result};
use crate::models::config::Config;
use crate::weights::Weights;

/// What makes branches of an embedding before the layers, and one vector of them after the last.
#[derive(Debug)]
pub(crate) struct Branches {
    /// One matrix of the model's width for each branch but the first.
    split: Vec<Linear>,
    merge: Vec<Linear>,
}

impl Branches {
    /// Loads the weights; `None` if the residual stream is one vector.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(weights: &dyn Weights, c: &Config) -> Result<Option<Branches>> {
        let others = c.branches.saturating_sub(1);
        if others == 0 {
            return Ok(None);
        }
        let matrix = |name: &str, i: usize| -> Result<Linear> {
            let (name, rows) = (format!("{name}.weight"), i * c.width..(i + 1) * c.width);
            let weight = weights.matrix_rows(&name, others * c.width, rows, c.width)?;
            let scale = weights.scale(&name)?;
            Ok(Linear { name: String::new(), weight, bias: None, scale, beside: Vec::new() })
        };
        let all = |name: &str| (0..others).map(|i| matrix(name, i)).collect::<Result<Vec<_>>>();
        Ok(Some(Branches { split: all("altup_proj")?, merge: all("altup_unembd_proj")? }))
    }

    /// Makes the other branches of the first, `x`, with its magnitude.
    ///
    /// # Errors
    /// When weights do not fit together.
    pub fn split(&self, step: &mut Step<'_>, x: NodeId) -> Result<()> {
        let (tokens, rows) = (step.tokens, step.rows);
        let magnitude = magnitude(&mut step.graph, x, tokens, 0.0)?;
        for linear in &self.split {
            let y = step.linears.apply(&mut step.graph, x, linear, rows)?;
            let y = with_magnitude(&mut step.graph, y, tokens, magnitude)?;
            step.branches.push(y);
        }
        Ok(())
    }

    /// The mean of the branches in some rows of the tokens, the others with the magnitude of the first, `x`, which has
    /// these `rows` already, at most `most`.
    ///
    /// # Errors
    /// When weights do not fit together.
    pub fn merge(&self, step: &mut Step<'_>, x: NodeId, rows: NodeId, (outputs, most): (Dim, usize)) -> Result<NodeId> {
        let magnitude = magnitude(&mut step.graph, x, outputs, 0.0)?;
        let mut sum = x;
        for (linear, branch) in self.merge.iter().zip(std::mem::take(&mut step.branches)) {
            let y = step.graph.gather(branch, rows)?;
            let y = step.linears.apply(&mut step.graph, y, linear, most)?;
            let y = with_magnitude(&mut step.graph, y, outputs, magnitude)?;
            sum = step.graph.add(sum, y)?;
        }
        Ok(step.graph.mul_scalar(sum, ((self.merge.len() + 1) as f64).recip())?)
    }

    /// The weights.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.split.iter().chain(&self.merge).flat_map(Linear::tensors)
    }
}

/// The root of the mean square of each row, `[rows, 1]`; mean squares are at least `least`.
fn magnitude(g: &mut Graph, x: NodeId, rows: Dim, least: f64) -> Result<NodeId> {
    let squares = g.mul(x, x)?;
    let mean = g.reduce(squares, Reduction::Mean, 1)?;
    let mean = if least > 0.0 { g.max_scalar(mean, least)? } else { mean };
    let root = g.sqrt(mean)?;
    Ok(g.reshape(root, &[rows, Dim::Fixed(1)])?)
}

fn with_magnitude(g: &mut Graph, y: NodeId, rows: Dim, wanted: NodeId) -> Result<NodeId> {
    let own = magnitude(g, y, rows, 1e-5)?;
    let factor = g.div(wanted, own)?;
    Ok(g.mul(y, factor)?)
}

/// A layer of several branches: all are predicted from all, the layer computes the first, and its result corrects all.
/// What comes of the token's further embedding is added to the others.
#[derive(Debug)]
pub(crate) struct AltUp {
    layer: Box<dyn Block>,
    input: Box<dyn Block>,
    router_norm: Tensor,
    router: Linear,
    /// `[branches², branches]` and `[branches, branches]`.
    predict: Linear,
    correct: Linear,
    /// The factors of what `input` takes.
    scale: Tensor,
}

impl AltUp {
    /// Loads the weights around a layer, and around what its further embedding adds.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(l: &Loader<'_>, layer: Box<dyn Block>, input: Box<dyn Block>) -> Result<Box<dyn Block>> {
        let (c, n) = (l.config, l.config.branches);
        let small = |name: &str, rows: usize| -> Result<Linear> {
            let weight = l.weights.small(&l.name(name, "weight"), [rows, n])?;
            Ok(Linear { name: String::new(), weight, bias: None, scale: None, beside: Vec::new() })
        };
        Ok(Box::new(AltUp {
            layer,
            input,
            router_norm: l.factors("altup_router_norm", c.width)?,
            router: l.linear("altup_router", n, c.width, false)?,
            predict: small("altup_predict_coef", n * n)?,
            correct: small("altup_correct_coef", n)?,
            scale: l.factors("altup_correct_scale", c.width)?,
        }))
    }

    /// The coefficients that a vector gives.
    fn coefficients(&self, step: &mut Step<'_>, x: NodeId, of: &Linear) -> Result<NodeId> {
        let x = step.norm(x, &self.router_norm)?;
        let x = step.graph.mul_scalar(x, (step.config.width as f64).recip())?;
        let x = step.linear(x, &self.router)?;
        let x = step.graph.tanh(x)?;
        step.linear(x, of)
    }
}

impl Block for AltUp {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let n = step.config.branches;
        let all: Vec<NodeId> = std::iter::once(x).chain(std::mem::take(&mut step.branches)).collect();
        if all.len() != n {
            let what = format!("a layer of {n} branches after one of {}", all.len());
            let path = step.config.name.clone().into();
            return Err(LlmError::Unsupported { path, what, supported: String::new() });
        }
        let coefficients = self.coefficients(step, x, &self.predict)?;
        let g = &mut step.graph;
        let mut predicted = Vec::with_capacity(n);
        for (i, own) in all.iter().enumerate() {
            let mut sum = *own;
            for (j, other) in all.iter().enumerate() {
                let factor = g.slice(coefficients, 1, i * n + j, i * n + j + 1)?;
                let part = g.mul(*other, factor)?;
                sum = g.add(sum, part)?;
            }
            predicted.push(sum);
        }
        let y = self.layer.apply(step, predicted[0])?;
        let coefficients = self.coefficients(step, y, &self.correct)?;
        let g = &mut step.graph;
        let change = g.sub(y, predicted[0])?;
        let mut corrected = Vec::with_capacity(n);
        for (i, own) in predicted.iter().enumerate() {
            let factor = g.slice(coefficients, 1, i, i + 1)?;
            let factor = g.add_scalar(factor, 1.0)?;
            let part = g.mul(change, factor)?;
            corrected.push(g.add(*own, part)?);
        }
        let scale = g.constant(&self.scale)?;
        let first = g.mul(corrected[0], scale)?;
        let added = self.input.apply(step, first)?;
        for other in corrected.iter().skip(1) {
            let other = step.graph.add(*other, added)?;
            step.branches.push(other);
        }
        Ok(corrected[0])
    }

    fn weights(&self) -> Vec<&Tensor> {
        let linears = [&self.router, &self.predict, &self.correct].into_iter().flat_map(Linear::tensors);
        let own = linears.chain([&self.router_norm, &self.scale]);
        own.chain(self.layer.weights()).chain(self.input.weights()).collect()
    }
}
