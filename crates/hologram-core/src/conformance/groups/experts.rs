//! Cases of mixtures: the choice of experts, and products with the matrices of those chosen.

use hologram_backends::DType;

use super::{Convert, Drawing, End, TOKENS};
use crate::conformance::{CaseInput, Fill};
use crate::error::Result;
use crate::graph::NodeId;

/// The greatest elements of rows and their probabilities, among all or among themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub n: usize,
    pub k: usize,
    pub softmax_first: bool,
}

impl Route {
    /// Adds the operations; returns the values to output.
    pub fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        // Values far enough apart for a softmax to keep their order.
        let values = (0..d.extents[0].1 * self.n).map(|i| ((i * 7919 + i / self.n * 31) % self.n) as f32 / 16.0);
        let fill = Fill::Values(values.collect());
        let x = d.leaf(CaseInput { format: DType::F32, shape: vec![TOKENS, self.n.into()], fill })?;
        let x = if self.softmax_first { d.graph.softmax_rows(x)? } else { x };
        let (values, ids) = d.graph.top_k(x, self.k)?;
        let weights = if self.softmax_first { values } else { d.graph.softmax_rows(values)? };
        Ok(vec![ids, weights])
    }
}

/// Products with the matrices of chosen experts, and the operation after them.
#[derive(Clone, Debug)]
pub(super) struct Experts {
    pub convert: Convert,
    pub weights: DType,
    pub experts: usize,
    /// Experts of a token.
    pub slots: usize,
    pub k: usize,
    /// Rows of an expert's matrix.
    pub m: usize,
    /// A gate, or the sum of the results, to which `Add` adds something.
    pub end: End,
    /// Whether experts have biases.
    pub biased: bool,
}

impl Experts {
    /// Adds the operations; returns the values to output.
    pub fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let gated = matches!(self.end, End::Swiglu | End::Relu2 | End::ClampedSwiglu);
        // A gate's tokens have one row of activations, those of a sum one for each expert.
        let width = if gated { self.k } else { self.slots * self.k };
        let x = d.leaf(CaseInput::normal(DType::F32, &[TOKENS, width.into()]))?;
        let ids = d.leaf(CaseInput::below(self.experts as u32, &[TOKENS, self.slots.into()]))?;
        let matrices = CaseInput::normal(self.weights, &[(self.experts * self.m).into(), self.k.into()]);
        let w = d.leaf(matrices.clone())?;
        let up = if gated { Some(d.leaf(matrices)?) } else { None };
        let rows = CaseInput::normal(DType::F32, &[TOKENS, self.slots.into()]);
        let weights = if gated { None } else { Some(d.leaf(rows)?) };
        let row = CaseInput::normal(DType::F32, &[TOKENS, self.m.into()]);
        let residual = if matches!(self.end, End::Add { .. }) { Some(d.leaf(row)?) } else { None };
        let x = self.convert.apply(&mut d.graph, x)?;
        let mut product = |w| -> Result<NodeId> {
            if !self.biased {
                return d.graph.expert_linear(x, w, ids, self.experts);
            }
            let bias = d.leaf(CaseInput::normal(DType::F32, &[self.experts.into(), self.m.into()]))?;
            d.graph.expert_linear_biased(x, w, ids, bias, self.experts)
        };
        let y = product(w)?;
        let up = up.map(product).transpose()?;
        let y = match (up, weights) {
            (Some(up), _) => match self.end {
                End::Swiglu => d.graph.swiglu(y, up)?,
                End::ClampedSwiglu => d.graph.clamped_swiglu(y, up)?,
                _ => d.graph.relu2_mul(y, up)?,
            },
            (None, Some(weights)) => d.graph.expert_sum(y, weights)?,
            (None, None) => y,
        };
        Ok(vec![match (residual, self.end) {
            (Some(residual), End::Add { first: true }) => d.graph.add(residual, y)?,
            (Some(residual), _) => d.graph.add(y, residual)?,
            (None, _) => y,
        }])
    }
}

/// A norm, a router's product and choice, and the conversion for the experts.
#[derive(Clone, Debug)]
pub(super) struct Router {
    pub convert: Convert,
    /// Elements of a token, experts and chosen ones.
    pub width: usize,
    pub n: usize,
    pub k: usize,
    pub biased: bool,
    pub softmax_first: bool,
    /// Whether the norm's result is a result of the group.
    pub normed: bool,
}

impl Router {
    /// Adds the operations; returns the values to output.
    pub fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let x = d.leaf(CaseInput::normal(DType::F32, &[TOKENS, self.width.into()]))?;
        let gain = d.leaf(CaseInput::normal(DType::F32, &[self.width.into()]))?;
        let w = d.leaf(CaseInput::normal(DType::F32, &[self.n.into(), self.width.into()]))?;
        let bias = if self.biased { Some(d.leaf(CaseInput::normal(DType::F32, &[self.n.into()]))?) } else { None };
        let x = d.graph.rms_norm(x, gain, 1e-5)?;
        let mut scores = d.graph.linear(x, w)?;
        if let Some(bias) = bias {
            scores = d.graph.add(scores, bias)?;
        }
        if self.softmax_first {
            scores = d.graph.softmax_rows(scores)?;
        }
        let (values, ids) = d.graph.top_k(scores, self.k)?;
        let weights = if self.softmax_first { values } else { d.graph.softmax_rows(values)? };
        let converted = self.convert.apply(&mut d.graph, x)?;
        let mut results = vec![ids, weights];
        results.extend((self.convert != Convert::None).then_some(converted));
        results.extend(self.normed.then_some(x));
        Ok(results)
    }
}
