//! Feed-forward networks of which each token uses a few.

use hologram_core::ops::Reduction;
use hologram_core::{Dim, Graph, NodeId, Tensor};

use super::feed_forward::Gate;
use super::{Block, GatedFfn, Linear, Loader, Step};
use crate::error::Result;
use crate::models::Experts;

/// The weighted sum of the gated feed-forward networks that a router chooses for each token, and of the shared one. The
/// choice stays on the device.
#[derive(Debug)]
pub(crate) struct ExpertFfn {
    experts: Experts,
    router: Linear,
    /// The matrices of all experts, one after another.
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    combine: Gate,
    shared: Option<Shared>,
}

/// The feed-forward network that all tokens use.
#[derive(Debug)]
struct Shared {
    ffn: Box<dyn Block>,
    /// A row whose product with a token gives its weight, by the sigmoid.
    gate: Linear,
}

/// The feed-forward network of a layer: that of the model, or its experts.
///
/// # Errors
/// Those of [`Weights`](crate::weights::Weights).
pub(crate) fn feed_forward(l: &mut Loader<'_>, combine: Gate) -> Result<Box<dyn Block>> {
    match &l.config.experts {
        None => GatedFfn::load(l, combine, None),
        Some(experts) => ExpertFfn::load(l, experts, combine),
    }
}

impl ExpertFfn {
    fn load(l: &Loader<'_>, experts: &Experts, combine: Gate) -> Result<Box<dyn Block>> {
        let (width, ffn) = (l.config.width, experts.ffn);
        let stack = |name: &str, rows: usize, row_len: usize| {
            l.weights.expert_matrices(&l.name(name, "weight"), experts.count, rows, row_len)
        };
        let shared = match experts.shared {
            None => None,
            Some(shared) => Some(Shared {
                ffn: GatedFfn::load_named(l, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], shared, combine)?,
                gate: Linear { weight: l.row("ffn_gate_inp_shexp", width)?, bias: None, scale: None },
            }),
        };
        Ok(Box::new(ExpertFfn {
            experts: experts.clone(),
            router: l.linear("ffn_gate_inp", experts.count, width, false)?,
            gate: stack("ffn_gate_exps", ffn, width)?,
            up: stack("ffn_up_exps", ffn, width)?,
            down: stack("ffn_down_exps", width, ffn)?,
            combine,
            shared,
        }))
    }

    fn stacks(&self) -> [&Tensor; 3] {
        [&self.gate, &self.up, &self.down]
    }

    fn others(&self) -> Vec<&Tensor> {
        let shared = self.shared.iter().flat_map(|s| s.ffn.weights().into_iter().chain(s.gate.tensors()));
        self.router.tensors().chain(shared).collect()
    }
}

impl Block for ExpertFfn {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let Experts { count, used, .. } = self.experts;
        let scores = step.linear(x, &self.router)?;
        let (tokens, rows) = (step.tokens, step.rows);
        let Step { graph: g, linears, .. } = step;
        let scores = g.softmax_rows(scores)?;
        let (mut weights, ids) = g.top_k(scores, used)?;
        if self.experts.normalized {
            let sum = g.reduce(weights, Reduction::Sum, 1)?;
            let sum = g.reshape(sum, &[tokens, Dim::Fixed(1)])?;
            weights = g.div(weights, sum)?;
        }
        if self.experts.scale != 1.0 {
            weights = g.mul_scalar(weights, self.experts.scale.into())?;
        }
        let chosen = (ids, count);
        let gate = linears.of_experts(g, x, &self.gate, chosen, rows)?;
        let up = linears.of_experts(g, x, &self.up, chosen, rows)?;
        let f = (self.combine)(g, gate, up)?;
        let y = linears.of_experts(g, f, &self.down, chosen, rows)?;
        let y = g.expert_sum(y, weights)?;
        let Some(shared) = &self.shared else { return Ok(y) };
        let of_all = shared.ffn.apply(step, x)?;
        let weight = step.linear(x, &shared.gate)?;
        let g: &mut Graph = &mut step.graph;
        let weight = g.sigmoid(weight)?;
        let of_all = g.mul(of_all, weight)?;
        Ok(g.add(y, of_all)?)
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.others().into_iter().chain(self.stacks()).collect()
    }

    fn bytes_per_token(&self) -> usize {
        let stacks: usize = self.stacks().map(Tensor::bytes).iter().sum();
        self.others().into_iter().map(Tensor::bytes).sum::<usize>()
            + stacks / self.experts.count.max(1) * self.experts.used
    }
}
