//! The gradients of elementwise operations: expressions over the operands, the result and its gradient, which become
//! operations of the same table.

use std::cell::RefCell;
use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::ops::{Add, Div, Mul, Neg, Sub};

use hologram_isa::Type;

use super::Map;
use super::functions::GELU_TANH;
use super::table::row;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId, Vjp};

/// The gradients by the operands, for the terms of a call.
pub(super) type Gradients = for<'a> fn(&Terms<'a>) -> Vec<Term<'a>>;

/// The terms that a gradient is made of.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// The operands: the first, the second and the third.
    pub a: Term<'a>,
    pub b: Term<'a>,
    pub c: Term<'a>,
    /// The result.
    pub y: Term<'a>,
    /// The gradient by the result.
    pub g: Term<'a>,
    /// No gradient: it is 0 wherever it exists.
    pub zero: Term<'a>,
}

/// An expression.
#[derive(Clone, Copy)]
pub(super) struct Term<'a> {
    all: &'a RefCell<Vec<Node>>,
    at: usize,
}

/// One operation of an expression, or a leaf.
enum Node {
    /// One of the fields of [`Terms`], in their order.
    Given(usize),
    Zero,
    Number(f64),
    Apply(fn() -> Map, Vec<usize>),
}

impl<'a> Term<'a> {
    fn push(self, node: Node) -> Term<'a> {
        let mut all = self.all.borrow_mut();
        all.push(node);
        Term { all: self.all, at: all.len() - 1 }
    }

    fn apply(self, op: fn() -> Map, others: &[Term<'a>]) -> Term<'a> {
        self.push(Node::Apply(op, std::iter::once(self.at).chain(others.iter().map(|t| t.at)).collect()))
    }

    fn number(self, value: f64) -> Term<'a> {
        self.push(Node::Number(value))
    }

    /// Whether this is greater than another.
    pub fn gt(self, other: Term<'a>) -> Term<'a> {
        self.apply(row::gt, &[other])
    }

    /// Whether this equals a number.
    pub fn same(self, value: f64) -> Term<'a> {
        self.apply(row::eq, &[self.number(value)])
    }

    /// Whether this lies between two others, or equals one.
    pub fn within(self, least: Term<'a>, greatest: Term<'a>) -> Term<'a> {
        self.apply(row::ge, &[least]).apply(row::and, &[self.apply(row::le, &[greatest])])
    }

    /// The first where this condition is true, else the second.
    pub fn choose(self, yes: Term<'a>, no: Term<'a>) -> Term<'a> {
        self.apply(row::select, &[yes, no])
    }

    pub fn max(self, other: Term<'a>) -> Term<'a> {
        self.apply(row::maximum, &[other])
    }

    pub fn pow(self, exponent: Term<'a>) -> Term<'a> {
        self.apply(row::pow, &[exponent])
    }

    /// The slope of x/2 · (1 + erf(x/√2)): Φ(x) + x·φ(x), with the normal distribution's Φ and its density φ.
    pub fn gelu_slope(self) -> Term<'a> {
        let below = ((self * FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
        below + self * (self * self * -0.5).exp() * (1.0 / (2.0 * PI).sqrt())
    }

    /// The slope of x/2 · (1 + tanh(u)), u = a·(x + b·x³): (1 + tanh u)/2 + x/2 · (1 − tanh² u) · a·(1 + 3b·x²).
    pub fn gelu_tanh_slope(self) -> Term<'a> {
        let [a, b] = GELU_TANH;
        let t = (self * (self * self * b + 1.0) * a).tanh();
        (t + 1.0) * 0.5 + self * 0.5 * (-(t * t) + 1.0) * (self * self * (3.0 * b) + 1.0) * a
    }
}

macro_rules! functions {
    ($($name:ident)*) => {
        impl<'a> Term<'a> {
            $(pub fn $name(self) -> Term<'a> {
                self.apply(row::$name, &[])
            })*
        }
    };
}
functions! { sign floor sin cos sinh cosh rsqrt relu erf tanh exp log sigmoid }

macro_rules! operators {
    ($($trait:ident $method:ident)*) => {$(
        impl<'a> $trait for Term<'a> {
            type Output = Term<'a>;

            fn $method(self, other: Term<'a>) -> Term<'a> {
                self.apply(row::$method, &[other])
            }
        }

        impl<'a> $trait<f64> for Term<'a> {
            type Output = Term<'a>;

            fn $method(self, other: f64) -> Term<'a> {
                self.apply(row::$method, &[self.number(other)])
            }
        }
    )*};
}
operators! { Add add Sub sub Mul mul Div div }

impl<'a> Neg for Term<'a> {
    type Output = Term<'a>;

    fn neg(self) -> Term<'a> {
        self.apply(row::neg, &[])
    }
}

impl<'a> Terms<'a> {
    pub fn number(&self, value: f64) -> Term<'a> {
        self.g.number(value)
    }

    /// The gradient of an operand that wins where the condition is true; of equal operands half for each.
    pub fn share(&self, wins: Term<'a>) -> Term<'a> {
        let equal = self.a.apply(row::eq, &[self.b]);
        wins.choose(self.g, equal.choose(self.g * 0.5, self.number(0.0)))
    }
}

/// The gradients by the operands of a call: computed in at least `f32`, and summed over an operand's repetitions.
pub(super) fn vjp(g: &mut Graph, call: &Vjp<'_>, gradients: Gradients) -> Result<Vec<Option<NodeId>>> {
    let all = RefCell::new((0..5).map(Node::Given).chain([Node::Zero]).collect::<Vec<_>>());
    let term = |at| Term { all: &all, at };
    let terms = Terms { a: term(0), b: term(1), c: term(2), y: term(3), g: term(4), zero: term(5) };
    let grads: Vec<usize> = gradients(&terms).iter().map(|t| t.at).collect();
    let nodes = all.into_inner();
    let operand = |k: usize| call.inputs.get(k).copied();
    let given = [operand(0), operand(1), operand(2), Some(call.output), Some(call.grad)];
    let ty = match g.float_of(call.grad) {
        Some(Type::F64) => Type::F64,
        Some(_) => Type::F32,
        None => return Err(CoreError::Graph("only floats have gradients".into())),
    };
    let mut values = vec![None; nodes.len()];
    let mut results = Vec::with_capacity(call.inputs.len());
    for (k, input) in call.inputs.iter().enumerate() {
        let at = grads.get(k).copied().filter(|at| call.wanted[k] && !matches!(nodes[*at], Node::Zero));
        results.push(match at {
            None => None,
            Some(at) => {
                let grad = emit(g, &nodes, &given, ty, &mut values, at)?;
                // An expression of numbers and conditions alone may lack the result's shape.
                let shape = g.shape_of(call.output).to_vec();
                let grad = if g.shape_of(grad) == shape { grad } else { g.broadcast_to(grad, &shape)? };
                let of_input = g.shape_of(*input).to_vec();
                let grad = g.sum_to(grad, &of_input)?;
                Some(g.cast_like(grad, *input)?)
            }
        });
    }
    Ok(results)
}

/// The value of an expression's node.
fn emit(
    g: &mut Graph,
    nodes: &[Node],
    given: &[Option<NodeId>; 5],
    ty: Type,
    values: &mut [Option<NodeId>],
    at: usize,
) -> Result<NodeId> {
    if let Some(value) = values[at] {
        return Ok(value);
    }
    let missing = || CoreError::Graph("a gradient names an operand that its operation has not".into());
    let value = match &nodes[at] {
        Node::Given(k) => g.widened(given[*k].ok_or_else(missing)?)?,
        Node::Zero => return Err(missing()),
        Node::Number(value) => g.scalar(ty, *value)?,
        Node::Apply(op, operands) => {
            let operands =
                operands.iter().map(|k| emit(g, nodes, given, ty, values, *k)).collect::<Result<Vec<_>>>()?;
            g.apply(op(), &operands)?
        }
    };
    values[at] = Some(value);
    Ok(value)
}
