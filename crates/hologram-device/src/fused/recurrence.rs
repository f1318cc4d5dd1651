//! Groups of recurrent layers: convolutions and linear recurrences with what surrounds them.

use super::{FusedNorm, Nodes};
use crate::{Elementwise, Extent, GroupNode, Operand, Operation, Recurrence, TensorSpec};

/// `recurrent_state recurrence` with the same operands, and what prepares them: copies of parts of rows, norms of keys
/// and queries, and the factors of models. Afterwards `mul add` may add the values' own part. No slot after a run is a
/// slot before any.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedRecurrence {
    /// What a token adds to the state, and the heads of keys.
    pub rule: Recurrence,
    /// The state, which is updated.
    pub state: usize,
    /// The runs of tokens.
    pub runs: usize,
    /// The tokens' keys, with their norm.
    pub keys: (Rows, Option<FusedNorm>),
    /// Queries, likewise.
    pub queries: (Rows, Option<FusedNorm>),
    /// Values, before they are scaled.
    pub values: Rows,
    /// The factors of the state.
    pub decay: Decay,
    /// The factors of what tokens add.
    pub strength: Strength,
    /// Per head the factor of a token's values, which are added to its results.
    pub skip: Option<usize>,
}

/// A part of each row of an input, with the shape that an operation reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The input.
    pub input: usize,
    /// The part's first element in a row.
    pub offset: usize,
    /// Elements from row to row.
    pub stride: usize,
    /// The part's elements of a row, without the first dimension.
    pub shape: Vec<usize>,
}

/// The factors of a state, per token and head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// An input.
    Given(usize),
    /// exp(`factor` · softplus(`time` + `bias`)), with a bias and a factor per head.
    Timed {
        /// The input of time steps.
        time: usize,
        /// Added to them.
        bias: usize,
        /// The factor after softplus.
        factor: usize,
    },
}

/// The factor of what a token adds to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// 1.
    One,
    /// An input.
    Given(usize),
    /// The sigmoid of an input.
    Sigmoid(usize),
    /// softplus(time + bias) of [`Decay::Timed`].
    Time,
}

/// `conv_state causal_conv [add]? [silu]?` with the same operands. No slot after a run is a slot before any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedConv {
    /// The state, which is updated.
    pub state: usize,
    /// The inputs.
    pub x: usize,
    /// The weights.
    pub weights: usize,
    /// Per token its run.
    pub token_runs: usize,
    /// The runs of tokens.
    pub runs: usize,
    /// Per channel what is added to the results.
    pub bias: Option<usize>,
    /// Whether silu follows.
    pub silu: bool,
}

/// The sizes of a tensor after its first dimension.
fn of_row(spec: &TensorSpec) -> Option<Vec<usize>> {
    let fixed = |e: &Extent| if let Extent::Fixed(n) = e { Some(*n) } else { None };
    spec.shape.get(1..)?.iter().map(fixed).collect()
}

impl Nodes<'_> {
    /// The operands of a node that overwrites its first one, an input.
    fn update(&self, node: &GroupNode) -> Option<usize> {
        let state = self.input(*node.operands.first()?)?;
        (node.in_place == Some(0) && node.output == self.inputs[state]).then_some(state)
    }

    /// A node that is an operand.
    fn node(&self, operand: Operand) -> Option<&GroupNode> {
        match operand {
            Operand::Node(i) => self.nodes.get(i).filter(|n| n.in_place.is_none()),
            Operand::Input(_) => None,
        }
    }

    /// The operands of an elementwise node of this kind.
    fn elementwise<const N: usize>(&self, operand: Operand, op: Elementwise) -> Option<[Operand; N]> {
        let node = self.node(operand).filter(|n| n.op == op.into())?;
        node.operands[..].try_into().ok()
    }

    /// An input, or the copy of a part of its rows.
    fn rows(&self, operand: Operand) -> Option<Rows> {
        let whole = |input: usize, shape: Vec<usize>| {
            let stride = shape.iter().product();
            Some(Rows { input, offset: 0, stride, shape })
        };
        if let Some(input) = self.input(operand) {
            return whole(input, of_row(&self.inputs[input])?);
        }
        let node = self.node(operand)?;
        let [source] = node.operands[..] else { return None };
        let (input, shape) = (self.input(source)?, of_row(&node.output)?);
        let (offset, strides) = match &node.op {
            Operation::Copy if node.output == self.inputs[input] => return whole(input, shape),
            Operation::CopyView { offset, strides } => (*offset as usize, strides),
            _ => return None,
        };
        // Within a row the elements follow each other.
        let mut dense = 1;
        for (size, stride) in shape.iter().zip(strides.get(1..)?).rev() {
            if *size > 1 && *stride as usize != dense {
                return None;
            }
            dense *= size;
        }
        let stride = of_row(&self.inputs[input])?.iter().product();
        let alike = self.inputs[input].shape.first() == node.output.shape.first()
            && strides[0] as usize == stride
            && self.inputs[input].format == node.output.format
            && offset + dense <= stride;
        alike.then_some(Rows { input, offset, stride, shape })
    }

    fn normed_rows(&self, operand: Operand) -> Option<(Rows, Option<FusedNorm>)> {
        match self.node(operand).filter(|n| matches!(n.op, Operation::RmsNorm { .. })) {
            Some(node) => {
                let (x, norm) = self.norm(node)?;
                let rows = self.rows(x)?;
                (of_row(&node.output)? == rows.shape).then_some((rows, Some(norm)))
            }
            None => Some((self.rows(operand)?, None)),
        }
    }

    /// The operand of log(1 + exp(x)), computed without overflow.
    fn softplus(&self, operand: Operand) -> Option<Operand> {
        let [most, rest] = self.elementwise(operand, Elementwise::Add)?;
        let [x, zero] = self.elementwise(most, Elementwise::Max)?;
        let [exp] = self.elementwise(rest, Elementwise::Log1p)?;
        let [less] = self.elementwise(exp, Elementwise::Exp)?;
        let [magnitude] = self.elementwise(less, Elementwise::Neg)?;
        let [of] = self.elementwise(magnitude, Elementwise::Abs)?;
        let is_zero = matches!(self.node(zero)?.op, Operation::Fill { value } if value.get() == 0.0);
        (of == x && is_zero).then_some(x)
    }

    /// softplus(time + bias): the two inputs.
    fn time(&self, operand: Operand) -> Option<[usize; 2]> {
        let [time, bias] = self.elementwise(self.softplus(operand)?, Elementwise::Add)?;
        Some([self.input(time)?, self.input(bias)?])
    }

    /// Factors of the state, and the operand of their times.
    fn decay(&self, operand: Operand) -> Option<(Decay, Option<Operand>)> {
        if let Some(input) = self.input(operand) {
            return Some((Decay::Given(input), None));
        }
        let [log] = self.elementwise(operand, Elementwise::Exp)?;
        let [times, factor] = self.elementwise(log, Elementwise::Mul)?;
        let ([time, bias], factor) = (self.time(times)?, self.input(factor)?);
        Some((Decay::Timed { time, bias, factor }, Some(times)))
    }

    pub(super) fn recurrence(&self) -> Option<FusedRecurrence> {
        let at = self.nodes.iter().position(|n| matches!(n.op, Operation::RecurrentState(_)))?;
        let (of_state, results, rest) = (&self.nodes[at], self.nodes.get(at + 1)?, self.nodes.get(at + 2..)?);
        let Operation::RecurrentState(rule) = of_state.op else { return None };
        let (queries, own) = results.operands.split_last()?;
        let fits = results.op == Operation::Recurrence(rule)
            && results.in_place.is_none()
            && own.first() == Some(&Operand::Node(at))
            && own.get(1..) == of_state.operands.get(1..);
        if !fits || self.outputs != [self.nodes.len() - 1] {
            return None;
        }
        let (keys, values, decay, strength, runs) = match (rule.delta, own) {
            (true, [_, keys, values, decay, strength, runs]) => (keys, values, decay, Some(*strength), runs),
            (false, [_, keys, values, decay, runs]) => (keys, values, decay, None, runs),
            _ => return None,
        };
        let (decay, times) = self.decay(*decay)?;
        let scaled = self.elementwise(*values, Elementwise::Mul);
        let (of_values, strength) = match (strength, scaled) {
            (Some(strength), _) => match self.elementwise(strength, Elementwise::Sigmoid) {
                Some([x]) => (*values, Strength::Sigmoid(self.input(x)?)),
                None => (*values, Strength::Given(self.input(strength)?)),
            },
            (None, Some([values, scale])) if times == Some(scale) => (values, Strength::Time),
            (None, _) => (*values, Strength::One),
        };
        let skip = match rest {
            [] => None,
            [mul, add] => {
                let ([x, factor], [left, right]) = (&mul.operands[..], &add.operands[..]) else { return None };
                let added = mul.op == Elementwise::Mul.into()
                    && add.op == Elementwise::Add.into()
                    && *x == of_values
                    && [*left, *right] == [at + 1, at + 2].map(Operand::Node)
                    && add.output == results.output
                    && mul.output == results.output;
                Some(self.input(*factor).filter(|_| added)?)
            }
            _ => return None,
        };
        Some(FusedRecurrence {
            rule,
            state: self.update(of_state)?,
            runs: self.input(*runs)?,
            keys: self.normed_rows(*keys)?,
            queries: self.normed_rows(*queries)?,
            values: self.rows(of_values)?,
            decay,
            strength,
            skip,
        })
    }

    pub(super) fn conv(&self) -> Option<FusedConv> {
        let [first, second, rest @ ..] = self.nodes else { return None };
        let state = self.update(first)?;
        let ([_, of_x, of_runs], [read, x, weights, token_runs, runs]) = (&first.operands[..], &second.operands[..])
        else {
            return None;
        };
        let alike = (of_x, of_runs) == (x, runs) && *read == Operand::Node(0);
        let plain = second.op == Operation::CausalConv && self.nodes[1..].iter().all(|n| n.in_place.is_none());
        let (mut last, mut bias, mut silu) = (1, None, false);
        for node in rest {
            match (&node.op, &node.operands[..]) {
                (Operation::Elementwise(Elementwise::Add), [a, b]) if *a == Operand::Node(1) && last == 1 => {
                    let own = self.input(*b)?;
                    let [channels] = &self.inputs[own].shape[..] else { return None };
                    bias = Some(own).filter(|_| second.output.shape.last() == Some(channels));
                    bias?;
                }
                (Operation::Elementwise(Elementwise::Silu), [a]) if *a == Operand::Node(last) && !silu => silu = true,
                _ => return None,
            }
            last += 1;
        }
        let fits =
            alike && plain && self.outputs == [last] && self.nodes[1..].iter().all(|n| n.output == second.output);
        let [x, weights, token_runs, runs] = [x, weights, token_runs, runs].map(|o| self.input(*o));
        let (x, weights, token_runs, runs) = (x?, weights?, token_runs?, runs?);
        fits.then_some(FusedConv { state, x, weights, token_runs, runs, bias, silu })
    }
}
