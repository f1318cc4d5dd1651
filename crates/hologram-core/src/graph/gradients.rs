//! Gradients by reverse mode: the operations that compute them are appended to the same graph, so that fusion and the
//! memory plan see forward and backward pass together.

use std::collections::HashMap;

use hologram_backends::{DType, Reduction};
use hologram_isa::Type;

use super::view::{ViewKind, ViewStep};
use super::{Graph, NodeId, Source};
use crate::error::{CoreError, Result};
use crate::tensor::{Dim, TensorType};

/// A call of an operation whose derivative is taken, by [`Op::vjp`](crate::ops::Op::vjp).
#[derive(Clone, Copy, Debug)]
pub struct Vjp<'a> {
    /// The operands.
    pub inputs: &'a [NodeId],
    /// The result.
    pub output: NodeId,
    /// The gradient of the loss by the result, of the result's type and shape.
    pub grad: NodeId,
    /// Whether the gradient by each operand is needed.
    pub wanted: &'a [bool],
}

impl Graph {
    /// The gradients of `loss`, a float of one element, by each value of `wrt`: each has the value's type and shape.
    ///
    /// Their operations are appended to this graph; like any value, a gradient is computed only if an output or the
    /// update of a state needs it. A value that does not influence the loss has the gradient 0. No gradient passes
    /// through integers and `bool`, [`Graph::detach`], and functions whose slope is 0 where it exists, such as
    /// [`Graph::round`]. Gradients of `f16` and `bf16` are computed in `f32` per operation and rounded to the type.
    ///
    /// # Errors
    /// When the loss has several elements or is no float, a value of `wrt` is no float, an operation between them has
    /// no derivative (the message names it), or reads a state that has been updated since.
    ///
    /// ```
    /// use hologram_core::{DType, Dim, Executor, Graph};
    ///
    /// let mut g = Graph::new();
    /// let x = g.input("x", DType::F32, &[Dim::Fixed(3)])?;
    /// let squares = g.mul(x, x)?;
    /// let loss = g.reduce_sum(squares)?;
    /// let by_x = g.gradients(loss, &[x])?[0];
    /// g.output("by x", by_x)?;
    /// let mut plan = g.compile(&Executor::open("cpu", None)?, &[])?;
    /// plan.write("x", &[1.0f32, 2.0, 3.0])?;
    /// plan.run()?;
    /// assert_eq!(plan.read::<f32>("by x")?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), hologram_core::CoreError>(())
    /// ```
    pub fn gradients(&mut self, loss: NodeId, wrt: &[NodeId]) -> Result<Vec<NodeId>> {
        let ty = self.operand("gradients", loss)?.ty.clone();
        let ones = match (self.float_of(loss), ty.shape.iter().all(|d| *d == Dim::Fixed(1))) {
            (Some(float), true) => self.full(float, &ty.shape, 1.0)?,
            _ => {
                let reason = "the loss must be a float of one element; reduce_all makes it so".into();
                return Err(CoreError::Operands { op: "gradients", reason, operands: self.describe(&ty) });
            }
        };
        self.vjp(&[(loss, ones)], wrt)
    }

    /// The product of the gradients of `outputs` and the Jacobian by each value of `wrt`: with the gradient of a loss
    /// by each output, of its type and shape, the gradients of the loss. As [`Graph::gradients`] otherwise.
    ///
    /// # Errors
    /// As [`Graph::gradients`]; when a gradient has not the output's type and shape.
    pub fn vjp(&mut self, outputs: &[(NodeId, NodeId)], wrt: &[NodeId]) -> Result<Vec<NodeId>> {
        for id in wrt {
            self.operand("gradients", *id)?;
            if self.float_of(*id).is_none() {
                let operands = self.describe(self.ty(*id));
                return Err(CoreError::Operands {
                    op: "gradients",
                    reason: "only floats have gradients".into(),
                    operands,
                });
            }
        }
        let depends = self.depends_on(wrt);
        let mut grads: HashMap<NodeId, NodeId> = HashMap::new();
        for (output, grad) in outputs {
            self.operand("gradients", *output)?;
            self.operand("gradients", *grad)?;
            self.add_gradient(&mut grads, "gradients", *output, *grad)?;
        }
        // The values of checkpoints for the backward pass.
        let mut again: HashMap<NodeId, NodeId> = HashMap::new();
        for index in (0..depends.len()).rev() {
            let id = self.node(index);
            if !depends[index] {
                continue;
            }
            let Some(grad) = grads.get(&id).copied() else { continue };
            self.recompute(index, &mut again)?;
            match self.nodes[index].source.clone() {
                Source::Op { op, inputs } => {
                    let wanted: Vec<bool> = inputs.iter().map(|i| depends[i.0 as usize]).collect();
                    let value = |id: &NodeId| again.get(id).copied().unwrap_or(*id);
                    let (operands, output) = (inputs.iter().map(value).collect::<Vec<_>>(), value(&id));
                    let by_inputs = op.vjp(self, &Vjp { inputs: &operands, output, grad, wanted: &wanted })?;
                    for (k, input) in inputs.iter().enumerate().filter(|(k, _)| wanted[*k]) {
                        if let Some(by_input) = by_inputs.get(k).copied().flatten() {
                            self.add_gradient(&mut grads, op.name(), *input, by_input)?;
                        }
                    }
                }
                Source::Part { .. } => return Err(no_derivative("elsewhere")),
                Source::View(_, step) => {
                    if let Some((of, by_value)) = self.view_vjp(&step, grad)?
                        && depends[of.0 as usize]
                    {
                        self.add_gradient(&mut grads, "view", of, by_value)?;
                    }
                }
                Source::Input { .. } | Source::Tensor(_) => {}
            }
        }
        wrt.iter().map(|id| grads.get(id).copied().map_or_else(|| self.zeros_like(*id), Ok)).collect()
    }

    /// The same value, through which no gradient passes.
    ///
    /// # Errors
    /// When the format is not plain or the value is an updated state.
    pub fn detach(&mut self, x: NodeId) -> Result<NodeId> {
        self.same("detach", x, ViewKind::Detached)
    }

    /// The value of `y` with the gradient of `x`: the straight-through estimator (Bengio, Léonard and Courville, 2013,
    /// arXiv:1308.3432). With `y` the rounded `x`, a model trains with rounded weights while the gradients reach the
    /// weights themselves.
    ///
    /// # Errors
    /// When the two have not one float type and shape, or `y` is an updated state.
    pub fn straight_through(&mut self, x: NodeId, y: NodeId) -> Result<NodeId> {
        let (of_x, of_y) = (&self.operand("straight_through", x)?.ty, &self.operand("straight_through", y)?.ty);
        if of_x != of_y || self.float_of(x).is_none() {
            let operands = format!("{}, {}", self.describe(of_x), self.describe(of_y));
            let reason = "takes two values of one float type and shape".into();
            return Err(CoreError::Operands { op: "straight_through", reason, operands });
        }
        self.same("straight_through", y, ViewKind::StraightThrough(x))
    }

    /// The sum of `x` over the dimensions along which a value of `shape` was repeated to the shape of `x`: the gradient
    /// of [`Graph::broadcast_to`].
    ///
    /// # Errors
    /// When `shape` does not broadcast to the shape of `x`.
    pub fn sum_to(&mut self, x: NodeId, shape: &[Dim]) -> Result<NodeId> {
        let have = self.operand("sum_to", x)?.ty.clone();
        let missing = have.shape.len().checked_sub(shape.len());
        let repeats = |k: usize| {
            let small = missing.and_then(|m| k.checked_sub(m)).map_or(Dim::Fixed(1), |k| shape[k]);
            if small == have.shape[k] { Some(false) } else { (small == Dim::Fixed(1)).then_some(true) }
        };
        let summed: Option<Vec<bool>> = missing.and_then(|_| (0..have.shape.len()).map(repeats).collect());
        let Some(summed) = summed else {
            let reason = "the shape does not broadcast to that of x".into();
            return Err(CoreError::Operands { op: "sum_to", reason, operands: self.describe(&have) });
        };
        // Neighbouring fixed dimensions that are all summed, or all kept, become one.
        let mut runs: Vec<(bool, Dim)> = Vec::new();
        for (dim, sum) in have.shape.iter().zip(summed) {
            match (runs.last_mut(), dim) {
                (Some((last, Dim::Fixed(n))), Dim::Fixed(m)) if *last == sum => *n *= m,
                _ => runs.push((sum, *dim)),
            }
        }
        let mut sum = x;
        if runs.iter().any(|(sum, _)| *sum) {
            let merged: Vec<Dim> = runs.iter().map(|(_, d)| *d).collect();
            sum = self.reshape(sum, &merged)?;
            for k in (0..runs.len()).rev().filter(|k| runs[*k].0) {
                sum = self.reduce(sum, Reduction::Sum, k)?;
            }
        }
        if self.shape_of(sum) == shape { Ok(sum) } else { self.reshape(sum, shape) }
    }

    /// The float type of a value.
    pub(crate) fn float_of(&self, id: NodeId) -> Option<Type> {
        match self.ty(id).format {
            DType::Plain(ty) if ty.is_float() => Some(ty),
            _ => None,
        }
    }

    /// A float value in the type in which its gradient is computed: `f32` for narrower ones.
    pub(crate) fn widened(&mut self, x: NodeId) -> Result<NodeId> {
        match self.float_of(x) {
            Some(Type::F16 | Type::BF16) => self.cast(x, Type::F32),
            _ => Ok(x),
        }
    }

    /// A value in the type of `like`.
    pub(crate) fn cast_like(&mut self, x: NodeId, like: NodeId) -> Result<NodeId> {
        let to = self.ty(like).format;
        if self.ty(x).format == to { Ok(x) } else { self.cast(x, to) }
    }

    /// Zeros of the type and shape of a float.
    pub(crate) fn zeros_like(&mut self, x: NodeId) -> Result<NodeId> {
        let TensorType { format, shape } = self.ty(x).clone();
        self.full(format, &shape, 0.0)
    }

    /// A reduced value with the reduced dimension again, repeated to a shape.
    pub(crate) fn unreduced(&mut self, x: NodeId, dim: usize, shape: &[Dim]) -> Result<NodeId> {
        let mut kept = self.shape_of(x).to_vec();
        kept.insert(dim.min(kept.len()), Dim::Fixed(1));
        let x = self.reshape(x, &kept)?;
        self.broadcast_to(x, shape)
    }

    /// The elements in reverse order along a fixed dimension.
    pub(crate) fn flip(&mut self, x: NodeId, dim: usize) -> Result<NodeId> {
        let Some(Dim::Fixed(n)) = self.shape_of(x).get(dim).copied() else {
            return Err(CoreError::Graph("only a fixed dimension can be reversed".into()));
        };
        if n < 2 {
            return Ok(x);
        }
        let places = self.arange(Type::I32, n as f64 - 1.0, -1.0, Dim::Fixed(n))?;
        let places = self.cast(places, Type::U32)?;
        self.take_along(x, places, dim)
    }

    /// The gradient by the operand of an operation of one operand, for rules that use the rule of another operation.
    pub(crate) fn vjp_of(&mut self, output: NodeId, grad: NodeId) -> Result<NodeId> {
        let by_operand = match self.nodes[output.0 as usize].source.clone() {
            Source::Op { op, inputs } => op.vjp(self, &Vjp { inputs: &inputs, output, grad, wanted: &[true] })?,
            _ => Vec::new(),
        };
        let none = || CoreError::Graph("an operation of one operand has no gradient".into());
        by_operand.first().copied().flatten().ok_or_else(none)
    }

    /// Per node, whether a float of it depends on one of these values.
    fn depends_on(&self, wrt: &[NodeId]) -> Vec<bool> {
        let mut depends = vec![false; self.nodes.len()];
        for id in wrt {
            depends[id.0 as usize] = true;
        }
        for (i, node) in self.nodes.iter().enumerate() {
            // Quantized formats have operations without derivatives, which is an error; numbers that are not floats
            // have none to pass on.
            if depends[i] || matches!(node.ty.format, DType::Plain(ty) if !ty.is_float()) {
                continue;
            }
            depends[i] = match &node.source {
                Source::Op { inputs, .. } | Source::Part { inputs, .. } => {
                    inputs.iter().any(|id| depends[id.0 as usize])
                }
                Source::View(_, ViewStep { of, kind }) => match kind {
                    ViewKind::Detached => false,
                    ViewKind::StraightThrough(x) => depends[x.0 as usize],
                    _ => depends[of.0 as usize],
                },
                Source::Input { .. } | Source::Tensor(_) => false,
            };
        }
        depends
    }

    /// Adds a gradient by a value to those that it has already.
    fn add_gradient(
        &mut self,
        grads: &mut HashMap<NodeId, NodeId>,
        op: &'static str,
        value: NodeId,
        grad: NodeId,
    ) -> Result<()> {
        if self.ty(value) != self.ty(grad) {
            let operands = format!("{}, {}", self.describe(self.ty(value)), self.describe(self.ty(grad)));
            return Err(CoreError::Operands {
                op,
                reason: "a value and its gradient must be of one type".into(),
                operands,
            });
        }
        let sum = match grads.get(&value) {
            Some(other) => self.add(*other, grad)?,
            None => grad,
        };
        grads.insert(value, sum);
        Ok(())
    }

    /// The value that a view is of, and the gradient by it.
    fn view_vjp(&mut self, step: &ViewStep, grad: NodeId) -> Result<Option<(NodeId, NodeId)>> {
        let shape = self.shape_of(step.of).to_vec();
        let by_value = match &step.kind {
            ViewKind::Reshape => self.reshape(grad, &shape)?,
            ViewKind::Broadcast => self.sum_to(grad, &shape)?,
            ViewKind::Permute(order) => {
                let mut back = vec![0; order.len()];
                order.iter().enumerate().for_each(|(k, d)| back[*d] = k);
                self.permute(grad, &back)?
            }
            ViewKind::Slice(dim, start) => {
                let size = |g: &Graph, id| match g.shape_of(id).get(*dim) {
                    Some(Dim::Fixed(n)) => *n,
                    _ => 0,
                };
                let mut sides = vec![(0, 0); shape.len()];
                sides[*dim] = (*start, size(self, step.of) - start - size(self, grad));
                self.pad(grad, &sides, 0.0)?
            }
            ViewKind::Detached => return Ok(None),
            ViewKind::StraightThrough(x) => return Ok(Some((*x, grad))),
        };
        Ok(Some((step.of, by_value)))
    }
}

/// The error of an operation without a derivative.
pub(crate) fn no_derivative(op: &str) -> CoreError {
    CoreError::Graph(format!("{op} has no derivative; Graph::detach of its operand leaves it out of the gradient"))
}
