//! Recognises, in one place, the groups of operations that one kernel may compute: the role of each operation, and its
//! inputs.

mod cache;
mod recurrence;

pub use cache::{CacheUpdate, FusedAttention};
pub use recurrence::{Decay, FusedConv, FusedRecurrence, Rows, Strength};

use crate::{DType, Elementwise, GroupNode, Operand, Operation, TensorSpec};

/// The meaning of a group of operations. Inputs are indices into the group's inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Fused {
    /// Matrix products with the same left side, with the operations that prepare it and the operation after them.
    Products(FusedProducts),
    /// A norm and the conversion of its result.
    NormConvert(NormConvert),
    /// Two norms.
    Norms(Norms),
    /// `add add [add]?`: sums of a tensor and a bias each, which are the same elements for all rows.
    Biases(Vec<(usize, usize)>),
    /// A bias and the operation after it.
    Biased(Biased),
    /// A norm whose result silu of a gate multiplies.
    NormGate(NormGate),
    /// Rotary embedding and the cache's updates, with or without the attention that reads them.
    CacheUpdate(CacheUpdate),
    /// A router's choice among experts.
    Route(Route),
    /// The same with the norm and the product before it.
    Router(Router),
    /// Products with experts' matrices, and the operation after them.
    Experts(FusedExperts),
    /// A linear recurrence: its state and its results.
    Recurrence(Box<FusedRecurrence>),
    /// A causal convolution: its state and its results.
    CausalConv(FusedConv),
    /// The indices that sort whole lines.
    SortLines {
        /// The dimension.
        axis: u32,
        /// Whether the order is descending.
        descending: bool,
    },
}

/// The weights and ε of an RMSNorm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedNorm {
    /// The input that holds the weights.
    pub weights: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// A conversion of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conversion {
    /// To 8 bits with a scale for each group.
    Quantize {
        /// Elements of a group.
        group: u32,
        /// The least magnitude that a scale represents.
        floor: f32,
    },
    /// To a narrower float.
    Cast,
}

/// The most products of a group: those of the input of a linear recurrence.
pub const MOST_PRODUCTS: usize = 4;

/// `[rms_norm]? [quantize | cast]?`, then one to [`MOST_PRODUCTS`] products; two may be followed by a gate, one by an
/// addition.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedProducts {
    /// The input of the norm, of the conversion, or else of the products.
    pub x: usize,
    /// The norm of x.
    pub norm: Option<FusedNorm>,
    /// The conversion before the products, and its result.
    pub conversion: Option<(Conversion, TensorSpec)>,
    /// The products in order; if there is a gate, its product comes first.
    pub products: Vec<FusedProduct>,
    /// The operation after them.
    pub after: AfterProducts,
}

/// One product of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedProduct {
    /// The input that holds the matrix.
    pub weights: usize,
    /// The product.
    pub value: TensorSpec,
}

/// The operation after products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AfterProducts {
    /// None: each product is a result.
    Store,
    /// Addition of an input to the only product.
    Add {
        /// The input.
        residual: usize,
    },
    /// The gate of a feed-forward network, whose value has the products' shape.
    Gate {
        /// The kind of gate.
        gate: Gate,
        /// Whether its value is converted to `bf16`.
        bf16: bool,
    },
}

/// The gate of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// silu(gate) · up.
    Swiglu,
    /// max(gate, 0)² · up.
    Relu2,
    /// g·σ(1.702·g) · (u + 1) with g = min(gate, 7) and u = up clamped to ±7; of experts only.
    ClampedSwiglu,
}

/// `top_k take softmax`, or `softmax top_k take`: indices of the greatest elements of rows, and their probabilities.
/// Both are results, the indices first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The rows.
    pub x: usize,
    /// How many are chosen.
    pub k: u32,
    /// Whether probabilities are those among all, instead of among the chosen.
    pub softmax_first: bool,
}

/// `rms_norm matmul [add]?`, the operations of a [`Route`], `[quantize | cast]?`: a router's choice from its input's
/// norm, which the experts take, converted or not. Results are the norm's, if others use it, then the indices, the
/// probabilities, and what the conversion gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// The input of the norm.
    pub x: usize,
    /// The norm.
    pub norm: FusedNorm,
    /// The router's matrix.
    pub weights: usize,
    /// Added to the products, an element for each expert.
    pub bias: Option<usize>,
    /// How many are chosen.
    pub k: u32,
    /// Whether probabilities are those among all, instead of among the chosen.
    pub softmax_first: bool,
    /// The conversion of the norm's result.
    pub conversion: Option<Conversion>,
    /// Whether the norm's result is a result.
    pub normed: bool,
}

/// `expert_matmul expert_matmul gate`, or `[quantize | cast]? expert_matmul expert_sum [add]?`.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedExperts {
    /// The left side of the products, or the input of its conversion.
    pub x: usize,
    /// The conversion before the products, and its result.
    pub conversion: Option<(Conversion, TensorSpec)>,
    /// Each token's experts.
    pub ids: usize,
    /// The number of experts.
    pub experts: u32,
    /// The experts' matrices; with a gate, the gate's.
    pub weights: usize,
    /// The experts' biases, if they have any, which are added to the products with these matrices.
    pub bias: Option<usize>,
    /// The operation after the products.
    pub after: AfterExperts,
}

/// The operation after products with experts' matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AfterExperts {
    /// The gate of a feed-forward network.
    Gate {
        /// The kind of gate.
        gate: Gate,
        /// The second matrices.
        up: usize,
        /// Their biases.
        up_bias: Option<usize>,
    },
    /// The sum of a token's results.
    Sum {
        /// Each result's weight.
        weights: usize,
        /// Added to the sum.
        residual: Option<usize>,
    },
}

/// `rms_norm [quantize | cast]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConvert {
    /// The input of the norm.
    pub x: usize,
    /// The norm.
    pub norm: FusedNorm,
    /// The conversion.
    pub conversion: Conversion,
}

/// `rms_norm rms_norm`: two norms, as of queries and of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// Their inputs.
    pub x: [usize; 2],
    /// The norms.
    pub norms: [FusedNorm; 2],
}

/// `add [gelu | add] [cast]?`: a tensor and its bias, which is the same for all rows, and the operation after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biased {
    /// The tensor.
    pub x: usize,
    /// The bias.
    pub bias: usize,
    /// The operation on their sum.
    pub after: AfterBias,
}

/// The operation on the sum of a tensor and its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterBias {
    /// GELU, with the error function.
    Gelu,
    /// Addition of a tensor of the same shape.
    Add {
        /// The tensor.
        residual: usize,
    },
}

/// `rms_norm swiglu`: silu(gate) · norm(x).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormGate {
    /// The input of the norm.
    pub x: usize,
    /// The norm.
    pub norm: FusedNorm,
    /// The gate, of the shape of x.
    pub gate: usize,
}

impl Fused {
    /// The group's meaning; `None` if no device may have a kernel for it.
    pub fn of(inputs: &[TensorSpec], nodes: &[GroupNode], outputs: &[usize]) -> Option<Fused> {
        let group = Nodes { inputs, nodes, outputs };
        match &nodes.first()?.op {
            Operation::Rope { .. } => group.cache_update().map(Fused::CacheUpdate),
            _ if nodes.get(2).is_some_and(|n| matches!(n.op, Operation::Rope { .. })) => {
                group.cache_update().map(Fused::CacheUpdate)
            }
            Operation::SortBlocks { axis, descending } => group.sort_lines(*axis, *descending),
            Operation::TopK { .. } | Operation::Softmax { .. } => group.route().map(Fused::Route),
            Operation::Elementwise(Elementwise::Add) => {
                group.biases().map(Fused::Biases).or_else(|| group.biased().map(Fused::Biased))
            }
            Operation::ExpertMatmul { .. } => group.experts().map(Fused::Experts),
            _ if nodes.get(1).is_some_and(|n| matches!(n.op, Operation::ExpertMatmul { .. })) => {
                group.experts().map(Fused::Experts)
            }
            Operation::RecurrentState(_) | Operation::Copy | Operation::CopyView { .. } => {
                group.recurrence().map(Box::new).map(Fused::Recurrence)
            }
            Operation::ConvState => group.conv().map(Fused::CausalConv),
            _ => {
                let products = || group.products().map(Fused::Products);
                let gated = || group.norm_gate().map(Fused::NormGate);
                let router = || group.router().map(Fused::Router).or_else(|| group.norms().map(Fused::Norms));
                group.norm_convert().map(Fused::NormConvert).or_else(gated).or_else(products).or_else(router)
            }
        }
    }
}

/// A group before it is recognised.
struct Nodes<'a> {
    inputs: &'a [TensorSpec],
    nodes: &'a [GroupNode],
    outputs: &'a [usize],
}

/// Elements of a block that `sort_blocks` sorts; the runs that its merges begin with.
pub const SORT_BLOCK: usize = 512;

impl Nodes<'_> {
    /// The index of an operand that is an input.
    fn input(&self, operand: Operand) -> Option<usize> {
        match operand {
            Operand::Input(i) if i < self.inputs.len() => Some(i),
            _ => None,
        }
    }

    /// The input and the parameters of a norm node.
    fn norm(&self, node: &GroupNode) -> Option<(Operand, FusedNorm)> {
        let (Operation::RmsNorm { eps }, [x, weights]) = (&node.op, &node.operands[..]) else { return None };
        let norm = FusedNorm { weights: self.input(*weights)?, eps: eps.get() };
        (norm.eps >= 0.0 && node.in_place.is_none()).then_some((*x, norm))
    }

    /// The input and the parameters of a conversion node.
    fn conversion(node: &GroupNode) -> Option<(Operand, Conversion)> {
        let [x] = node.operands[..] else { return None };
        let conversion = match (&node.op, node.output.format) {
            (Operation::Quantize { group, floor }, DType::I8Groups { group: stored }) if *group == stored => {
                Conversion::Quantize { group: *group, floor: floor.get() }
            }
            (Operation::Cast, DType::F16 | DType::BF16) => Conversion::Cast,
            _ => return None,
        };
        node.in_place.is_none().then_some((x, conversion))
    }

    fn norm_convert(&self) -> Option<NormConvert> {
        let [norm, convert] = self.nodes else { return None };
        let ((x, parts), (converted, conversion)) = (self.norm(norm)?, Self::conversion(convert)?);
        let x = self.input(x)?;
        let fits = converted == Operand::Node(0)
            && self.outputs == [1]
            && norm.output == self.inputs[x]
            && convert.output.shape == norm.output.shape;
        fits.then_some(NormConvert { x, norm: parts, conversion })
    }

    fn biases(&self) -> Option<Vec<(usize, usize)>> {
        let sum = |node: &GroupNode| {
            let [x, bias] = node.operands[..] else { return None };
            let (x, bias) = (self.input(x)?, self.input(bias)?);
            let fits = node.op == Elementwise::Add.into()
                && node.in_place.is_none()
                && node.output == self.inputs[x]
                && self.inputs[bias].shape.len() == 1;
            fits.then_some((x, bias))
        };
        let all = self.nodes.iter().map(sum).collect::<Option<Vec<_>>>()?;
        let each = self.outputs.iter().copied().eq(0..self.nodes.len());
        (each && (2..=3).contains(&all.len())).then_some(all)
    }

    fn biased(&self) -> Option<Biased> {
        let [sum, after, rest @ ..] = self.nodes else { return None };
        let [x, bias] = sum.operands[..] else { return None };
        let (x, bias) = (self.input(x)?, self.input(bias)?);
        let of = &self.inputs[x];
        let after_bias = match (&after.op, &after.operands[..]) {
            (Operation::Elementwise(Elementwise::Gelu), [Operand::Node(0)]) => AfterBias::Gelu,
            (Operation::Elementwise(Elementwise::Add), [Operand::Node(0), other] | [other, Operand::Node(0)]) => {
                let residual = self.input(*other)?;
                (self.inputs[residual] == *of).then_some(AfterBias::Add { residual })?
            }
            _ => return None,
        };
        let narrow = match rest {
            [] => true,
            [cast] => Self::conversion(cast)? == (Operand::Node(1), Conversion::Cast) && cast.output.shape == of.shape,
            _ => false,
        };
        let fits = [sum, after].iter().all(|n| n.in_place.is_none() && n.output == *of)
            && self.inputs[bias].shape[..] == of.shape[of.shape.len().saturating_sub(1)..]
            && self.outputs == [self.nodes.len() - 1];
        (fits && narrow).then_some(Biased { x, bias, after: after_bias })
    }

    fn norms(&self) -> Option<Norms> {
        let [first, second] = self.nodes else { return None };
        let (of_first, of_second) = (self.norm(first)?, self.norm(second)?);
        let x = [self.input(of_first.0)?, self.input(of_second.0)?];
        let fits = self.outputs == [0, 1] && [first, second].iter().zip(x).all(|(n, x)| n.output == self.inputs[x]);
        fits.then_some(Norms { x, norms: [of_first.1, of_second.1] })
    }

    fn norm_gate(&self) -> Option<NormGate> {
        let [norm, swiglu] = self.nodes else { return None };
        let ((x, parts), [gate, normed]) = (self.norm(norm)?, &swiglu.operands[..]) else { return None };
        let (x, gate) = (self.input(x)?, self.input(*gate)?);
        let fits = swiglu.op == Elementwise::Swiglu.into()
            && swiglu.in_place.is_none()
            && *normed == Operand::Node(0)
            && self.outputs == [1]
            && [&norm.output, &swiglu.output, &self.inputs[gate]].iter().all(|t| **t == self.inputs[x]);
        fits.then_some(NormGate { x, norm: parts, gate })
    }

    fn products(&self) -> Option<FusedProducts> {
        let mut rest = self.nodes.iter().enumerate().peekable();
        let first = *self.nodes.first()?.operands.first()?;
        let (x, mut last) = (self.input(first)?, first);
        let x_spec = &self.inputs[x];
        let mut norm = None;
        if let Some((i, node)) = rest.next_if(|(_, n)| matches!(n.op, Operation::RmsNorm { .. })) {
            let (read, of) = self.norm(node)?;
            if read != last || node.output != *x_spec {
                return None;
            }
            (norm, last) = (Some(of), Operand::Node(i));
        }
        let mut conversion = None;
        if let Some((i, node)) = rest.next_if(|(_, n)| matches!(n.op, Operation::Quantize { .. } | Operation::Cast)) {
            let (read, of) = Self::conversion(node)?;
            let served = matches!(of, Conversion::Quantize { .. }) || node.output.format == DType::BF16;
            if read != last || node.output.shape != x_spec.shape || !served {
                return None;
            }
            (conversion, last) = (Some((of, node.output.clone())), Operand::Node(i));
        }
        let (mut products, mut values) = (Vec::new(), Vec::new());
        while let Some((i, node)) = rest.next_if(|(_, n)| n.op == Operation::Matmul) {
            let [read, w] = node.operands[..] else { return None };
            if read != last || node.in_place.is_some() {
                return None;
            }
            products.push(FusedProduct { weights: self.input(w)?, value: node.output.clone() });
            values.push(i);
        }
        if !(1..=MOST_PRODUCTS).contains(&products.len()) {
            return None;
        }
        let rest: Vec<(usize, &GroupNode)> = rest.collect();
        let (after, wanted) = match rest[..] {
            [] => (AfterProducts::Store, values),
            [(i, node)] => (self.after(node, &mut products, &values)?, vec![i]),
            [(gate, node), (i, cast)] => match (self.after(node, &mut products, &values)?, Self::conversion(cast)?) {
                (AfterProducts::Gate { gate: kind, .. }, (read, Conversion::Cast))
                    if read == Operand::Node(gate)
                        && cast.output == TensorSpec { format: DType::BF16, ..node.output.clone() } =>
                {
                    (AfterProducts::Gate { gate: kind, bf16: true }, vec![i])
                }
                _ => return None,
            },
            _ => return None,
        };
        (self.outputs == wanted).then_some(FusedProducts { x, norm, conversion, products, after })
    }

    /// The operation of a node on the products, which are the values of nodes `values`; moves the gate's product to the
    /// front.
    fn after(&self, node: &GroupNode, products: &mut [FusedProduct], values: &[usize]) -> Option<AfterProducts> {
        if node.in_place.is_some() || products.iter().any(|p| p.value != node.output) {
            return None;
        }
        let gate = match &node.op {
            Operation::Elementwise(Elementwise::Swiglu) => Gate::Swiglu,
            Operation::Elementwise(Elementwise::Relu2Mul) => Gate::Relu2,
            Operation::Elementwise(Elementwise::Add) => {
                let ([a], [left, right]) = (values, &node.operands[..]) else { return None };
                let other = if *left == Operand::Node(*a) { right } else { left };
                let residual = self.input(*other)?;
                let reads = [left, right].into_iter().any(|o| *o == Operand::Node(*a));
                return (reads && self.inputs[residual] == node.output).then_some(AfterProducts::Add { residual });
            }
            _ => return None,
        };
        let ([a, b], [left, right]) = (values, &node.operands[..]) else { return None };
        let (a, b) = (Operand::Node(*a), Operand::Node(*b));
        if (*left, *right) == (b, a) {
            products.swap(0, 1);
        } else if (*left, *right) != (a, b) {
            return None;
        }
        Some(AfterProducts::Gate { gate, bf16: false })
    }

    fn route(&self) -> Option<Route> {
        let rows = *self.nodes.first()?.operands.first()?;
        let x = self.input(rows)?;
        let (k, softmax_first, [top_k, weights]) = self.choice(0, rows, &self.inputs[x])?;
        let fits = self.nodes.len() == 3 && self.outputs == [top_k, weights];
        fits.then_some(Route { x, k, softmax_first })
    }

    /// The choice of the three nodes from `at` on among the elements of `scores`, of this shape: how many, whether the
    /// softmax is first, and the nodes of the indices and of the probabilities.
    fn choice(&self, at: usize, scores: Operand, of: &TensorSpec) -> Option<(u32, bool, [usize; 2])> {
        let [first, second, third] = self.nodes.get(at..at + 3)? else { return None };
        let softmax_first = matches!(first.op, Operation::Softmax { .. });
        // The nodes of the choice and of the elements of its indices; the rows that both read.
        let (top_k, take, softmax, rows) = match softmax_first {
            true => (at + 1, at + 2, first, Operand::Node(at)),
            false => (at, at + 1, third, scores),
        };
        let (choice, taken) = if softmax_first { (second, third) } else { (first, second) };
        let (Operation::TopK { k }, Operation::Take { axis }) = (&choice.op, &taken.op) else { return None };
        let (last, of_softmax) = (choice.output.shape.len().checked_sub(1)?, *softmax.operands.first()?);
        let last_axis = |axis: u32| axis as usize == last;
        let fits = matches!(softmax.op, Operation::Softmax { log: false, axis } if last_axis(axis))
            && last_axis(*axis)
            && choice.operands == [rows]
            && taken.operands == [rows, Operand::Node(top_k)]
            && of_softmax == if softmax_first { scores } else { Operand::Node(take) }
            && [first, second, third].iter().all(|n| n.in_place.is_none())
            && (!softmax_first || first.output == *of);
        fits.then_some((*k, softmax_first, [top_k, at + 2]))
    }

    fn router(&self) -> Option<Router> {
        let [first, product, rest @ ..] = self.nodes else { return None };
        let (x, norm) = self.norm(first)?;
        let x = self.input(x)?;
        let ([Operand::Node(0), matrix], Operation::Matmul) = (&product.operands[..], &product.op) else { return None };
        let (weights, scores) = (self.input(*matrix)?, &product.output);
        let mut at = 1;
        let mut bias = None;
        if let Some(add) = rest.first().filter(|n| n.op == Elementwise::Add.into()) {
            let [Operand::Node(1), other] = add.operands[..] else { return None };
            if add.output != *scores || add.in_place.is_some() {
                return None;
            }
            (bias, at) = (Some(self.input(other)?), 2);
        }
        let (k, softmax_first, chosen) = self.choice(at + 1, Operand::Node(at), scores)?;
        let mut wanted = chosen.to_vec();
        let mut conversion = None;
        match self.nodes.get(at + 4..)? {
            [] => {}
            [node] => {
                let (of, kind) = Self::conversion(node)?;
                if of != Operand::Node(0) || node.output.shape != first.output.shape {
                    return None;
                }
                conversion = Some(kind);
                wanted.push(at + 4);
            }
            _ => return None,
        }
        let normed = self.outputs.first() == Some(&0);
        let fits = first.output == self.inputs[x]
            && product.in_place.is_none()
            && self.outputs.get(usize::from(normed)..)? == wanted;
        fits.then_some(Router { x, norm, weights, bias, k, softmax_first, conversion, normed })
    }

    fn experts(&self) -> Option<FusedExperts> {
        let mut nodes = self.nodes;
        // What the first product reads; the index of its node.
        let (mut conversion, mut left, mut at) = (None, *nodes.first()?.operands.first()?, 0);
        if let [first, rest @ ..] = nodes
            && matches!(first.op, Operation::Quantize { .. } | Operation::Cast)
        {
            let (of, kind) = Self::conversion(first)?;
            if first.output.shape != self.inputs[self.input(of)?].shape {
                return None;
            }
            conversion = Some((kind, first.output.clone()));
            (nodes, left, at) = (rest, of, 1);
        }
        let read = if conversion.is_some() { Operand::Node(0) } else { left };
        let Operation::ExpertMatmul { experts } = nodes.first()?.op else { return None };
        let product = |node: &GroupNode| {
            let [x, w, ids, ref bias @ ..] = node.operands[..] else { return None };
            let plain = node.op == Operation::ExpertMatmul { experts } && node.in_place.is_none();
            let bias = match *bias {
                [] => None,
                [bias] => Some(self.input(bias)?),
                _ => return None,
            };
            let operands = (x, (self.input(w)?, bias), self.input(ids)?);
            plain.then_some(operands)
        };
        let (first_x, matrices, ids) = product(nodes.first()?)?;
        let x = self.input(left).filter(|_| first_x == read)?;
        let gated = conversion.is_none();
        let fused = |(weights, bias), after| FusedExperts { x, conversion, ids, experts, weights, bias, after };
        let last = self.nodes.len() - 1;
        if self.outputs != [last] || self.nodes.iter().any(|n| n.in_place.is_some()) {
            return None;
        }
        let [product_node, sum_node] = [at, at + 1].map(Operand::Node);
        match nodes {
            [first, second, node] if second.op == first.op && gated => {
                let gate = match &node.op {
                    Operation::Elementwise(Elementwise::Swiglu) => Gate::Swiglu,
                    Operation::Elementwise(Elementwise::Relu2Mul) => Gate::Relu2,
                    Operation::Elementwise(Elementwise::ClampedSwiglu) => Gate::ClampedSwiglu,
                    _ => return None,
                };
                let (of_x, other, of_ids) = product(second)?;
                let alike =
                    (of_x, of_ids) == (first_x, ids) && first.output == node.output && second.output == node.output;
                let (gated, (up, up_bias)) = match node.operands[..] {
                    [Operand::Node(0), Operand::Node(1)] => (matrices, other),
                    [Operand::Node(1), Operand::Node(0)] => (other, matrices),
                    _ => return None,
                };
                alike.then_some(fused(gated, AfterExperts::Gate { gate, up, up_bias }))
            }
            [_, sum, rest @ ..] if sum.op == Operation::ExpertSum => {
                let [of, factors] = sum.operands[..] else { return None };
                let residual = match rest {
                    [] => None,
                    [add] if add.op == Elementwise::Add.into() && add.output == sum.output => match add.operands[..] {
                        [a, b] if a == sum_node => Some(self.input(b)?),
                        [a, b] if b == sum_node => Some(self.input(a)?),
                        _ => return None,
                    },
                    _ => return None,
                };
                let fits = of == product_node && residual.is_none_or(|r| self.inputs[r] == sum.output);
                fits.then_some(fused(matrices, AfterExperts::Sum { weights: self.input(factors)?, residual }))
            }
            _ => None,
        }
    }

    fn sort_lines(&self, axis: u32, descending: bool) -> Option<Fused> {
        let ([x], [blocks, merges @ ..]) = (self.inputs, self.nodes) else { return None };
        if merges.is_empty() || self.outputs != [merges.len()] || blocks.operands != [Operand::Input(0)] {
            return None;
        }
        let mut run = SORT_BLOCK;
        for (i, merge) in merges.iter().enumerate() {
            let follows = merge.op == Operation::SortMerge { axis, descending, run: u32::try_from(run).ok()? }
                && merge.operands == [Operand::Input(0), Operand::Node(i)];
            if !follows {
                return None;
            }
            run = run.checked_mul(2)?;
        }
        let n = x.shape.get(axis as usize)?.max();
        (run >= n).then_some(Fused::SortLines { axis, descending })
    }
}
