//! Feed-forward networks of which each token uses a few.

use hologram_core::ops::Reduction;
use hologram_core::{CoreError, Dim, Executor, Graph, NodeId, Tensor};
use hologram_isa::Type;

use super::feed_forward::{Activate, Gate, Inner};
use super::linear::{ExpertWeight, Linears};
use super::{Block, GatedFfn, Linear, Loader, Norm, PlainFfn, Step};
use crate::error::{LlmError, Result};
use crate::models::Experts;

/// The weighted sum of the feed-forward networks that a router chooses for each token, and of the shared one. The
/// choice stays on the device, unless another one computes the chosen networks.
#[derive(Debug)]
pub(crate) struct ExpertFfn {
    experts: Experts,
    /// The names of gate, up and down in GGUF files.
    names: [String; 3],
    router: Linear,
    /// Added to the scores that choose experts, but not to their weights.
    choice_bias: Option<Tensor>,
    /// The norms of what the router and the experts take, if they take the same vector otherwise.
    norms: Option<[Norm; 2]>,
    /// A factor of each expert, `[experts, 1]`.
    factors: Option<Tensor>,
    /// What makes the experts' vectors of those of the model's width, and the reverse, if they are of another one.
    latent: Option<[Linear; 2]>,
    /// The matrices of all experts, one after another. Without a gate, there is an activation.
    gate: Option<Tensor>,
    up: Tensor,
    down: Tensor,
    /// The biases of all experts' gate, up and down.
    biases: [Option<Tensor>; 3],
    inner: Inner,
    shared: Option<Shared>,
    /// The device of the experts' matrices and biases, if it is another one.
    elsewhere: Option<Executor>,
}

/// The feed-forward network that all tokens use.
#[derive(Debug)]
struct Shared {
    ffn: Box<dyn Block>,
    /// A row whose product with a token gives its weight, by the sigmoid; `None`: 1.
    gate: Option<Linear>,
}

/// The feed-forward network of a layer: that of the model, or its experts.
///
/// # Errors
/// Those of [`Weights`](crate::weights::Weights).
pub(crate) fn feed_forward(l: &mut Loader<'_>, combine: Gate) -> Result<Box<dyn Block>> {
    match &l.config.experts {
        None => GatedFfn::load(l, combine, None),
        Some(experts) if l.index < experts.first => GatedFfn::load(l, combine, None),
        Some(experts) => Ok(Box::new(ExpertFfn::load(l, experts, Inner::Gated(combine))?)),
    }
}

/// The feed-forward network of a layer without a gate: experts if the layer has a router.
///
/// # Errors
/// Those of [`Weights`](crate::weights::Weights).
pub(crate) fn plain_feed_forward(l: &Loader<'_>, activate: Activate) -> Result<Box<dyn Block>> {
    match &l.config.experts {
        Some(experts) if l.weights.shape(&l.name("ffn_gate_inp", "weight")).is_some() => {
            Ok(Box::new(ExpertFfn::load(l, experts, Inner::Plain(activate))?))
        }
        _ => PlainFfn::load(l, activate),
    }
}

/// Experts that stand beside a network of all tokens, with norms of their own before router and experts (the second by
/// its name), and factors of experts.
///
/// # Errors
/// Those of [`Weights`](crate::weights::Weights).
pub(crate) fn experts_beside(l: &Loader<'_>, experts: &Experts, combine: Gate, norm: &str) -> Result<Box<dyn Block>> {
    let (c, executor) = (l.config, l.weights.executor());
    let mut own = ExpertFfn::load(l, experts, Inner::Gated(combine))?;
    let vector = |name: &str, len: usize| -> Result<Vec<f32>> {
        let name = l.name(name, "scale");
        let found = l.weights.optional_values(&name, len)?;
        found.ok_or_else(|| LlmError::MissingTensor { path: c.name.clone().into(), tensor: name })
    };
    let by_width = (c.width as f32).sqrt().recip();
    let of_router: Vec<f32> = vector("ffn_gate_inp", c.width)?.into_iter().map(|factor| factor * by_width).collect();
    let of_router = Norm::of(Tensor::from_slice(executor, &[c.width], &of_router)?);
    own.norms = Some([of_router, Norm::load(l.weights, c, &format!("blk.{}.{norm}", l.index))?]);
    let factors = vector("ffn_down_exps", experts.count)?;
    own.factors = Some(Tensor::from_slice(executor, &[experts.count, 1], &factors)?);
    Ok(Box::new(own))
}

impl ExpertFfn {
    fn load(l: &Loader<'_>, experts: &Experts, inner: Inner) -> Result<ExpertFfn> {
        let (of_model, ffn) = (l.config.width, experts.ffn);
        let width = experts.latent.unwrap_or(of_model);
        let stack = |name: &str, rows: usize, row_len: usize| {
            l.of_experts().expert_matrices(&l.name(name, "weight"), experts.count, rows, row_len)
        };
        let shared = match experts.shared {
            None => None,
            Some(shared) => Some(Shared {
                ffn: match inner {
                    Inner::Gated(combine) => {
                        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
                        GatedFfn::load_named(l, names, shared, combine)?
                    }
                    Inner::Plain(activate) => {
                        PlainFfn::load_named(l, ["ffn_up_shexp", "ffn_down_shexp"], shared, activate)?
                    }
                },
                gate: match experts.shared_gate {
                    true => Some(Linear {
                        name: String::new(),
                        weight: l.row("ffn_gate_inp_shexp", of_model)?,
                        bias: None,
                        scale: None,
                        beside: Vec::new(),
                    }),
                    false => None,
                },
            }),
        };
        let bias = |name: &str, len: usize| l.of_experts().expert_vectors(&l.name(name, "bias"), experts.count, len);
        let of_choice = l.name("exp_probs_b", "bias");
        let choice_bias = l.weights.shape(&of_choice).map(|_| l.weights.vector(&of_choice, experts.count));
        let latent = match experts.latent {
            None => None,
            Some(latent) => Some([
                l.linear("ffn_latent_down", latent, of_model, false)?,
                l.linear("ffn_latent_up", of_model, latent, false)?,
            ]),
        };
        Ok(ExpertFfn {
            experts: experts.clone(),
            names: ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].map(|name| l.name(name, "weight")),
            choice_bias: choice_bias.transpose()?,
            biases: [bias("ffn_gate_exps", ffn)?, bias("ffn_up_exps", ffn)?, bias("ffn_down_exps", width)?],
            norms: None,
            factors: None,
            latent,
            router: l.linear("ffn_gate_inp", experts.count, of_model, false)?,
            gate: match inner {
                Inner::Gated(_) => Some(stack("ffn_gate_exps", ffn, width)?),
                Inner::Plain(_) => None,
            },
            up: stack("ffn_up_exps", ffn, width)?,
            down: stack("ffn_down_exps", width, ffn)?,
            inner,
            shared,
            elsewhere: l.experts.map(|weights| weights.executor().clone()),
        })
    }

    fn stacks(&self) -> impl Iterator<Item = &Tensor> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    fn others(&self) -> Vec<&Tensor> {
        let shared =
            self.shared.iter().flat_map(|s| s.ffn.weights().into_iter().chain(s.gate.iter().flat_map(Linear::tensors)));
        let biases = self.biases.iter().flatten().chain(&self.factors);
        let norms = self.norms.iter().flatten().flat_map(Norm::weights);
        let latent = self.latent.iter().flatten().flat_map(Linear::tensors);
        let router = norms.chain(self.router.tensors()).chain(&self.choice_bias);
        router.chain(latent).chain(biases).chain(shared).collect()
    }
}

/// `choice` (`[tokens, count]`) with negative infinity for experts outside of the best groups: those whose two greatest
/// scores have the greatest sums.
fn of_best_groups(
    g: &mut Graph,
    choice: NodeId,
    tokens: Dim,
    ((groups, used), count): ((usize, usize), usize),
) -> Result<NodeId> {
    let grouped = g.reshape(choice, &[tokens, Dim::Fixed(groups), Dim::Fixed(count / groups)])?;
    let (best, _) = g.top_k(grouped, 2)?;
    let sums = g.reduce(best, Reduction::Sum, 2)?;
    let (chosen, _) = g.top_k(sums, used)?;
    let least = g.reduce(chosen, Reduction::Min, 1)?;
    let least = g.reshape(least, &[tokens, Dim::Fixed(1)])?;
    let inside = g.ge(sums, least)?;
    let inside = g.reshape(inside, &[tokens, Dim::Fixed(groups), Dim::Fixed(1)])?;
    let outside = g.scalar(Type::F32, f64::NEG_INFINITY)?;
    let kept = g.select(inside, grouped, outside)?;
    Ok(g.reshape(kept, &[tokens, Dim::Fixed(count)])?)
}

impl ExpertFfn {
    /// Weights and ids of the experts that each token uses, both `[tokens, used]`.
    fn choose(&self, g: &mut Graph, scores: NodeId, tokens: Dim) -> Result<(NodeId, NodeId)> {
        let Experts { count, used, sigmoid, groups, normalized, .. } = self.experts;
        if normalized && !sigmoid && groups.0 <= 1 && self.choice_bias.is_none() {
            // Divided by their sum, the greatest of all probabilities are those of the greatest scores alone.
            let (greatest, ids) = g.top_k(scores, used)?;
            return Ok((g.softmax_rows(greatest)?, ids));
        }
        let scores = if sigmoid { g.sigmoid(scores)? } else { g.softmax_rows(scores)? };
        let mut choice = scores;
        if let Some(bias) = &self.choice_bias {
            let bias = g.constant(bias)?;
            choice = g.add(choice, bias)?;
        }
        if groups.0 > 1 {
            choice = of_best_groups(g, choice, tokens, (groups, count))?;
        }
        let (mut weights, ids) = g.top_k(choice, used)?;
        if choice != scores {
            weights = g.take(scores, ids)?;
        }
        if normalized {
            let sum = g.reduce(weights, Reduction::Sum, 1)?;
            let sum = g.reshape(sum, &[tokens, Dim::Fixed(1)])?;
            weights = g.div(weights, sum)?;
        }
        Ok((weights, ids))
    }
}

impl ExpertFfn {
    /// The sum of the results of each token's networks for `x`, with the weights and ids of [`ExpertFfn::choose`].
    fn networks(
        &self,
        g: &mut Graph,
        linears: &mut Linears<'_>,
        [x, weights, ids]: [NodeId; 3],
        rows: usize,
    ) -> Result<NodeId> {
        let chosen = (ids, self.experts.count);
        let mut product = |g: &mut Graph, x: NodeId, of: (usize, &Tensor), bias: &Option<Tensor>| -> Result<NodeId> {
            let (i, weight) = of;
            let (name, used) = (self.names[i].as_str(), self.experts.used);
            let of = ExpertWeight { name, weight, bias: bias.as_ref(), ids: chosen, used, own_inputs: i == 2 };
            linears.of_experts(g, x, &of, rows)
        };
        let [of_gate, of_up, of_down] = &self.biases;
        let gate = self.gate.as_ref().map(|gate| product(g, x, (0, gate), of_gate)).transpose()?;
        let up = product(g, x, (1, &self.up), of_up)?;
        let f = match self.inner {
            Inner::Gated(combine) => combine(g, gate.unwrap_or(up), up)?,
            Inner::Plain(activate) => activate(g, up)?,
        };
        let y = product(g, f, (2, &self.down), of_down)?;
        Ok(g.expert_sum(y, weights)?)
    }
}

impl Block for ExpertFfn {
    fn apply(&self, step: &mut Step<'_>, x: NodeId) -> Result<NodeId> {
        let whole = x;
        let (of_router, mut x) = match &self.norms {
            None => (x, x),
            Some([of_router, own]) => (of_router.apply(step, x)?, own.apply(step, x)?),
        };
        let scores = step.linear(of_router, &self.router)?;
        if let Some([down, _]) = &self.latent {
            x = step.linear(x, down)?;
        }
        let (tokens, rows, config) = (step.tokens, step.rows, step.config);
        let Step { graph: g, linears, .. } = step;
        let (mut weights, ids) = self.choose(g, scores, tokens)?;
        if self.experts.scale != 1.0 {
            weights = g.mul_scalar(weights, self.experts.scale.into())?;
        }
        if let Some(factors) = &self.factors {
            let factors = g.constant(factors)?;
            let own = g.gather(factors, ids)?;
            let own = g.reshape(own, &[tokens, Dim::Fixed(self.experts.used)])?;
            weights = g.mul(weights, own)?;
        }
        let mut y = match &self.elsewhere {
            None => self.networks(g, linears, [x, weights, ids], rows)?,
            Some(_) if linears.sums.is_some() => {
                let what = "the importance of experts that another device computes".into();
                return Err(LlmError::Unsupported { path: config.name.clone().into(), what, supported: String::new() });
            }
            // The GPU's part of a layer is small, and so is what moves: a vector of each token to the host and back.
            Some(executor) => g.elsewhere(executor, &[x, weights, ids], |g, inputs| {
                let mut linears = Linears::new(&**executor.backend(), config.ternary, linears.precision());
                let [x, weights, ids] = inputs else {
                    return Err(CoreError::Graph("a part without inputs".into()).into());
                };
                self.networks(g, &mut linears, [*x, *weights, *ids], rows)
            })?,
        };
        if let Some([_, up]) = &self.latent {
            y = step.linear(y, up)?;
        }
        let Some(shared) = &self.shared else { return Ok(y) };
        let of_all = shared.ffn.apply(step, whole)?;
        let Some(gate) = &shared.gate else { return Ok(step.graph.add(y, of_all)?) };
        let weight = step.linear(whole, gate)?;
        let g: &mut Graph = &mut step.graph;
        let weight = g.sigmoid(weight)?;
        let of_all = g.mul(of_all, weight)?;
        Ok(g.add(y, of_all)?)
    }

    fn weights(&self) -> Vec<&Tensor> {
        self.others().into_iter().chain(self.stacks()).collect()
    }

    fn bytes_per_token(&self) -> usize {
        let stacks: usize = self.stacks().map(Tensor::bytes).sum();
        self.others().into_iter().map(Tensor::bytes).sum::<usize>()
            + stacks / self.experts.count.max(1) * self.experts.used
    }
}
