//! Linear layers and the precision of their matrix products.

use std::collections::HashMap;

use hologram_backends::{Backend, DType, Policy};
use hologram_core::ops::Reduction;
use hologram_core::{Dim, Graph, NodeId, Tensor};
use hologram_isa::Type;

use crate::error::Result;
use crate::lora::LowRank;
use crate::models::TernaryActivations;

/// A linear layer.
#[derive(Debug)]
pub(crate) struct Linear {
    /// The weight's name in GGUF files; empty: it has no importance.
    pub name: String,
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// Added to the product.
    pub bias: Option<Tensor>,
    /// Multiplied with the product if the weight's format cannot represent the scale.
    pub scale: Option<f32>,
    /// Low-rank products that adapters add.
    pub beside: Vec<LowRank>,
}

impl Linear {
    /// The weight, the bias and the matrices of adapters.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let beside = self.beside.iter().flat_map(|part| [&part.a, &part.b]);
        std::iter::once(&self.weight).chain(&self.bias).chain(beside)
    }
}

/// Linear layers. Chooses the precision of activations by weight format and device.
pub(crate) struct Linears<'a> {
    backend: &'a dyn Backend,
    ternary: TernaryActivations,
    /// The step size that determines the precision, instead of each step's own number of tokens.
    precision: Option<usize>,
    /// Converted activations, by node and format.
    converted: HashMap<(NodeId, DType), NodeId>,
    /// What is summed for importance matrices, if anything.
    pub sums: Option<Sums>,
}

/// The sums of squares of the columns that weights are multiplied with.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// By the activations, or by those of the experts with these ids.
    known: HashMap<(NodeId, Option<NodeId>), Sum>,
    /// By the weight's name.
    pub of_weights: Vec<(String, Sum)>,
}

/// The sums `[columns]` of a weight. Of experts: `[experts, columns]`, with the tokens of each, `[experts]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub squares: NodeId,
    pub counts: Option<NodeId>,
}

impl Sums {
    fn has(&self, name: &str) -> bool {
        name.is_empty() || self.of_weights.iter().any(|(known, _)| known == name)
    }

    fn add(&mut self, g: &mut Graph, name: &str, x: NodeId) -> Result<()> {
        if self.has(name) {
            return Ok(());
        }
        let sum = match self.known.get(&(x, None)) {
            Some(sum) => *sum,
            None => {
                let squares = g.mul(x, x)?;
                Sum { squares: g.reduce(squares, Reduction::Sum, 0)?, counts: None }
            }
        };
        self.known.insert((x, None), sum);
        self.of_weights.push((name.into(), sum));
        Ok(())
    }

    /// Of `tokens` rows, without run-time extents.
    fn add_experts(&mut self, g: &mut Graph, of: &ExpertWeight<'_>, x: NodeId, tokens: usize) -> Result<()> {
        if self.has(of.name) {
            return Ok(());
        }
        let (ids, count) = of.ids;
        let sum = match self.known.get(&(x, Some(ids))) {
            Some(sum) => *sum,
            None => {
                let columns = Dim::Fixed(of.weight.shape().last().copied().unwrap_or(1));
                let slots = Dim::Fixed(tokens * of.used);
                let [tokens, used] = [tokens, of.used].map(Dim::Fixed);

                let mut squares = g.mul(x, x)?;
                if !of.own_inputs {
                    squares = g.reshape(squares, &[tokens, Dim::Fixed(1), columns])?;
                    squares = g.broadcast_to(squares, &[tokens, used, columns])?;
                    squares = g.copy(squares)?;
                }
                let squares = g.reshape(squares, &[slots, columns])?;
                let ids = g.reshape(ids, &[slots])?;
                let none = g.full(Type::F32, &[Dim::Fixed(count), columns], 0.0)?;
                let squares = g.scatter_add(none, ids, squares, 0)?;
                let none = g.full(Type::F32, &[Dim::Fixed(count)], 0.0)?;
                let ones = g.full(Type::F32, &[slots], 1.0)?;
                Sum { squares, counts: Some(g.scatter_add(none, ids, ones, 0)?) }
            }
        };
        self.known.insert((x, Some(ids)), sum);
        self.of_weights.push((of.name.into(), sum));
        Ok(())
    }
}

/// The matrices of all experts.
pub(crate) struct ExpertWeight<'a> {
    /// The name in GGUF files; empty: they have no importance.
    pub name: &'a str,
    pub weight: &'a Tensor,
    /// A row for each expert of what is added to its products.
    pub bias: Option<&'a Tensor>,
    /// The experts of each token, `[tokens, used]`, and the number of all experts.
    pub ids: (NodeId, usize),
    pub used: usize,
    /// Whether each of a token's experts has an input of its own.
    pub own_inputs: bool,
}

/// A policy's choice of activations for weights with rows of some elements, in a step of some tokens.
type Choice = fn(&Policy, DType, usize, usize, &[DType]) -> Option<DType>;

impl Linears<'_> {
    /// Linear layers on a device, in the precision of steps of `precision` tokens; `None`: of their own number of
    /// tokens.
    pub fn new(backend: &dyn Backend, ternary: TernaryActivations, precision: Option<usize>) -> Linears<'_> {
        Linears { backend, ternary, precision, converted: HashMap::new(), sums: None }
    }

    /// The step size that determines the precision, if it is not each step's own.
    pub fn precision(&self) -> Option<usize> {
        self.precision
    }

    /// The activation format for products with `weight` in a step of up to `tokens` tokens, and the minimum of its
    /// scales.
    pub fn activations(&self, weight: &Tensor, tokens: usize) -> (DType, f32) {
        self.choose(weight, tokens, Policy::activations)
    }

    /// The activation format by the policy's choice.
    fn choose(&self, weight: &Tensor, tokens: usize, choice: Choice) -> (DType, f32) {
        let row_len = weight.shape().last().copied().unwrap_or(0);
        let mut floor = 0.0;
        let choices = match weight.dtype() {
            w if w.is_ternary() => match self.ternary {
                TernaryActivations::PerToken => {
                    // BitNet clamps a token's largest magnitude to at least 1e-5.
                    floor = 1e-5;
                    vec![DType::I8Groups { group: row_len as u32 }]
                }
                TernaryActivations::PerBlock => vec![DType::I8Groups { group: 256 }],
            },
            w if w.has_float_codes() => {
                vec![DType::F32, DType::BF16, DType::F8Groups { group: row_len as u32 }]
            }
            w if w.is_quantized_weight() && w.block_len() < 256 => {
                vec![DType::I8Groups { group: 32 }, DType::BF16, DType::F32]
            }
            w if w.is_quantized_weight() => {
                vec![DType::I8Groups { group: 256 }, DType::I8Groups { group: 32 }, DType::BF16, DType::F32]
            }
            DType::BF16 => vec![DType::BF16],
            DType::F16 => vec![DType::F32, DType::BF16],
            _ => vec![DType::F32],
        };
        let tokens = self.precision.unwrap_or(tokens);
        let chosen = choice(self.backend.policy(), weight.dtype(), row_len, tokens, &choices);
        (chosen.filter(|f| choices.contains(f)).unwrap_or(choices[0]), floor)
    }

    /// A linear layer of `x`, which has up to `tokens` rows.
    pub fn apply(&mut self, g: &mut Graph, x: NodeId, linear: &Linear, tokens: usize) -> Result<NodeId> {
        let [y] = self.apply_all(g, x, [linear], tokens)?;
        Ok(y)
    }

    /// Several linear layers of the same `x`, which has up to `tokens` rows.
    pub fn apply_all<const N: usize>(
        &mut self,
        g: &mut Graph,
        x: NodeId,
        linears: [&Linear; N],
        tokens: usize,
    ) -> Result<[NodeId; N]> {
        let mut results = [x; N];
        for (y, linear) in results.iter_mut().zip(linears) {
            *y = self.product(g, x, &linear.weight, tokens)?;
            if let Some(sums) = &mut self.sums {
                sums.add(g, &linear.name, x)?;
            }
        }
        for (y, linear) in results.iter_mut().zip(linears) {
            if let Some(scale) = linear.scale {
                let scale = g.scalar(Type::F32, scale.into())?;
                *y = g.mul(*y, scale)?;
            }
            for part in &linear.beside {
                let inner = self.product(g, x, &part.a, tokens)?;
                let added = self.product(g, inner, &part.b, tokens)?;
                *y = g.add(*y, added)?;
            }
            if let Some(bias) = &linear.bias {
                let bias = g.constant(bias)?;
                *y = g.add(*y, bias)?;
            }
        }
        Ok(results)
    }

    /// The product of `x`, which has up to `tokens` rows, with a weight.
    fn product(&mut self, g: &mut Graph, x: NodeId, weight: &Tensor, tokens: usize) -> Result<NodeId> {
        let w = g.constant(weight)?;
        let format = self.activations(weight, tokens);
        let x = self.converted(g, x, format)?;
        Ok(g.linear(x, w)?)
    }

    /// The products of `x`, which has up to `tokens` rows, with the matrices of each token's experts.
    pub fn of_experts(&mut self, g: &mut Graph, x: NodeId, of: &ExpertWeight<'_>, tokens: usize) -> Result<NodeId> {
        if let Some(sums) = &mut self.sums {
            sums.add_experts(g, of, x, tokens)?;
        }
        let ExpertWeight { weight, bias, ids: (ids, count), .. } = *of;
        let w = g.constant(weight)?;
        let format = self.choose(weight, tokens, Policy::activations_of_experts);
        let x = self.converted(g, x, format)?;
        let Some(bias) = bias else { return Ok(g.expert_linear(x, w, ids, count)?) };
        let bias = g.constant(bias)?;
        Ok(g.expert_linear_biased(x, w, ids, bias, count)?)
    }

    /// `x` in a format of activations, with the minimum of its scales.
    fn converted(&mut self, g: &mut Graph, x: NodeId, (format, floor): (DType, f32)) -> Result<NodeId> {
        Ok(match self.converted.get(&(x, format)) {
            Some(converted) => *converted,
            None => {
                let converted = match format {
                    DType::I8Groups { group } => g.quantize(x, group, floor)?,
                    DType::F8Groups { group } => g.quantize_f8(x, group)?,
                    DType::BF16 => g.cast(x, Type::BF16)?,
                    _ => x,
                };
                self.converted.insert((x, format), converted);
                converted
            }
        })
    }
}
