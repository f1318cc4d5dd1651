//! Steps of optimizers: one launch updates all parameters and their moments, which lie in one state.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Value};

use super::lines::THREADS;
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::OptimizerRule;
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// A rule by which parameters follow their gradients, with its constants. The learning rate is given at each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub rule: OptimizerRule,
    /// How much parameters decay per step, relative to the learning rate.
    pub weight_decay: f32,
}

impl Optimizer {
    /// Stochastic gradient descent with momentum; 0 for none.
    pub fn sgd(momentum: f32) -> Optimizer {
        Optimizer { rule: OptimizerRule::Sgd { momentum: momentum.into(), nesterov: false }, weight_decay: 0.0 }
    }

    /// Adam with β₁ = 0.9, β₂ = 0.999 and ε = 10⁻⁸, without weight decay.
    pub fn adam() -> Optimizer {
        Optimizer { rule: adam([0.9, 0.999], 1e-8, false), weight_decay: 0.0 }
    }

    /// Adam whose weight decay is apart from the gradient.
    pub fn adamw(weight_decay: f32) -> Optimizer {
        Optimizer { rule: adam([0.9, 0.999], 1e-8, true), weight_decay }
    }

    /// The same rule with other β₁ and β₂, if it is Adam.
    pub fn with_betas(mut self, betas: [f32; 2]) -> Optimizer {
        if let OptimizerRule::Adam { betas: of_rule, .. } = &mut self.rule {
            *of_rule = betas.map(Into::into);
        }
        self
    }

    /// The number of rows of the state: the parameters and their moments.
    pub fn rows(&self) -> usize {
        match self.rule {
            OptimizerRule::Sgd { momentum, .. } => 1 + usize::from(momentum.get() != 0.0),
            OptimizerRule::Adam { .. } => 3,
        }
    }

    /// The factors 1 − βᵗ of step t, from 1 on, by which moments are divided; 1 for rules without them.
    pub fn corrections(&self, step: u32) -> [f32; 2] {
        match self.rule {
            OptimizerRule::Sgd { .. } => [1.0; 2],
            OptimizerRule::Adam { betas, .. } => {
                betas.map(|beta| (1.0 - f64::from(beta.get()).powi(step.min(i32::MAX as u32) as i32)) as f32)
            }
        }
    }
}

fn adam(betas: [f32; 2], eps: f32, decoupled: bool) -> OptimizerRule {
    OptimizerRule::Adam { betas: betas.map(Into::into), eps: eps.into(), decoupled }
}

/// The operation; its inputs are the state `f32 [rows, n]`, the gradients `f32 [n]`, the rates `f32 [3]` and the scale,
/// an `f32` scalar.
#[derive(Debug)]
struct OptimizerStep {
    optimizer: Optimizer,
    decayed: usize,
}

impl Graph {
    /// One step of an optimizer, in place, in one launch. Returns the state's new version.
    ///
    /// - `state` is `f32 [rows, n]`, with [`Optimizer::rows`] rows: the parameters, then their moments, at first 0.
    /// - `grads` is `f32 [n]`. The gradients are `grads · scale`; `scale` is an `f32` scalar, such as the factor that
    ///   clips them. A scale of 0 leaves the state unchanged, whatever the gradients are.
    /// - `rates` is `f32 [3]`: the learning rate and the step's [`Optimizer::corrections`].
    /// - Of the parameters the first `decayed` have weight decay.
    ///
    /// # Errors
    /// When the operands do not fit, or `state` is no state.
    pub fn optimizer_step(
        &mut self,
        state: NodeId,
        grads: NodeId,
        rates: NodeId,
        scale: NodeId,
        optimizer: &Optimizer,
        decayed: usize,
    ) -> Result<NodeId> {
        self.apply(OptimizerStep { optimizer: *optimizer, decayed }, &[state, grads, rates, scale])
    }
}

impl Op for OptimizerStep {
    fn operation(&self) -> Operation {
        let Optimizer { rule, weight_decay } = self.optimizer;
        Operation::OptimizerStep { rule, decay: weight_decay.into(), decayed: self.decayed as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [state, grads, rates, scale] = inputs else {
            return Err("takes a state, gradients, rates and a scale".into());
        };
        if inputs.iter().any(|t| t.format != DType::F32) {
            return Err("takes f32".into());
        }
        let rows = self.optimizer.rows();
        match (state.shape.as_slice(), grads.shape.as_slice(), rates.shape.as_slice(), scale.shape.as_slice()) {
            ([Dim::Fixed(r), Dim::Fixed(n)], [Dim::Fixed(m)], [Dim::Fixed(3)], []) if *r == rows && n == m => {
                Ok((*state).clone())
            }
            _ => Err(format!("takes a state [{rows}, n], gradients [n], rates [3] and a scalar scale").into()),
        }
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    /// One thread per parameter.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let n = spec.output.row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let (state, grads) = (k.output.views[0], k.inputs[1].views[0]);
        let (rates, scale) = (k.inputs[2].views[0], k.inputs[3].views[0]);
        let b = &mut k.b;
        let i = b.global_x();
        let scale = b.load(scale, 0u32);
        let (inside, steps) = (b.lt(i, n), b.ne(scale, 0.0f32));
        let steps = b.and(inside, steps);
        b.if_(steps, |b| {
            let [rate, first, second] = [0u32, 1, 2].map(|at| b.load(rates, at));
            let p = b.load(state, i);
            let g = b.load(grads, i);
            let g = b.mul(g, scale);
            let decay = b.lt(i, self.decayed as u32);
            let decay = b.select(decay, self.optimizer.weight_decay, 0.0f32);
            let moment = |b: &mut Builder, row: u32| {
                let at = b.add(i, row * n);
                (at, b.load(state, at))
            };
            // A moment that keeps `keep` of itself and takes `take` of a value.
            let blend = |b: &mut Builder, m: Value, keep: f32, take: f32, v: Value| {
                let v = b.mul(v, take);
                b.fma(m, keep, v)
            };
            let p = match self.optimizer.rule {
                OptimizerRule::Sgd { momentum, nesterov } => {
                    let g = b.fma(p, decay, g);
                    let step = match momentum.get() {
                        0.0 => g,
                        momentum => {
                            let (at, m) = moment(b, 1);
                            let m = blend(b, m, momentum, 1.0, g);
                            b.store(state, at, m);
                            if nesterov { b.fma(m, momentum, g) } else { m }
                        }
                    };
                    let step = b.mul(rate, step);
                    b.sub(p, step)
                }
                OptimizerRule::Adam { betas, eps, decoupled } => {
                    let g = if decoupled { g } else { b.fma(p, decay, g) };
                    let [one, two] = betas.map(|beta| beta.get());
                    let (at, m) = moment(b, 1);
                    let m = blend(b, m, one, 1.0 - one, g);
                    b.store(state, at, m);
                    let (at, v) = moment(b, 2);
                    let square = b.mul(g, g);
                    let v = blend(b, v, two, 1.0 - two, square);
                    b.store(state, at, v);
                    let v = b.div(v, second);
                    let divisor = b.sqrt(v);
                    let divisor = b.add(divisor, eps.get());
                    let m = b.div(m, first);
                    let step = b.div(m, divisor);
                    let step = if decoupled { b.fma(p, decay, step) } else { step };
                    let step = b.mul(rate, step);
                    b.sub(p, step)
                }
            };
            b.store(state, i, p);
        });
        k.finish((n as usize).div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [state, grads, rates, scale] = inputs else { return Reference::default() };
        let (n, scale) = (grads.values.len(), scale.values[0]);
        let [rate, first, second] = [0, 1, 2].map(|i| rates.values[i]);
        let eps = f64::from(f32::EPSILON);
        let (mut values, mut bounds) = (state.values.clone(), vec![0.0; state.values.len()]);
        for i in (0..n).filter(|_| scale != 0.0) {
            let (p, g) = (state.values[i], grads.values[i] * scale);
            let decay = if i < self.decayed { f64::from(self.optimizer.weight_decay) } else { 0.0 };
            let mut set = |row: usize, value: f64, bound: f64| {
                values[row * n + i] = value;
                bounds[row * n + i] = bound + f64::from(f32::MIN_POSITIVE);
            };
            // Each sum is off by a few units in the last place of its greatest term.
            let (step, off) = match self.optimizer.rule {
                OptimizerRule::Sgd { momentum, nesterov } => {
                    let (size, g) = (g.abs() + (p * decay).abs(), g + p * decay);
                    match f64::from(momentum.get()) {
                        0.0 => (g, 2.0 * eps * size),
                        momentum => {
                            let m = momentum * state.values[n + i];
                            let off = 3.0 * eps * (m.abs() + size);
                            set(1, m + g, off);
                            let m = m + g;
                            if nesterov { (g + momentum * m, 2.0 * off) } else { (m, off) }
                        }
                    }
                }
                OptimizerRule::Adam { betas, eps: least, decoupled } => {
                    let (size, g) = if decoupled { (g.abs(), g) } else { (g.abs() + (p * decay).abs(), g + p * decay) };
                    let [one, two] = betas.map(|beta| f64::from(beta.get()));
                    // The program's 1 − β is rounded to f32.
                    let rest = |beta: f64| f64::from(1.0 - beta as f32);
                    let (m, new) = (one * state.values[n + i], rest(one) * g);
                    let off = 3.0 * eps * (m.abs() + rest(one) * size);
                    let m = m + new;
                    set(1, m, off);
                    let v = two * state.values[2 * n + i] + rest(two) * g * g;
                    set(2, v, eps * (4.0 * v + rest(two) * 6.0 * size * size));
                    let divisor = (v / second).sqrt() + f64::from(least.get());
                    let relative = 4.0 * eps + eps * (4.0 * v + rest(two) * 6.0 * size * size) / v.max(1e-30);
                    let step = m / first / divisor;
                    let off = off / first / divisor + step.abs() * relative;
                    if decoupled { (step + decay * p, off + eps * (decay * p).abs()) } else { (step, off) }
                }
            };
            set(
                0,
                p - rate * step,
                rate.abs() * (off + 2.0 * eps * step.abs()) + eps * (p.abs() + (rate * step).abs()),
            );
        }
        Reference { values, bounds }
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let nesterov = Optimizer { rule: OptimizerRule::Sgd { momentum: 0.9.into(), nesterov: true }, weight_decay: 0.1 };
    let decays = |optimizer: Optimizer| Optimizer { weight_decay: 0.1, ..optimizer };
    let all =
        [Optimizer::sgd(0.0), decays(Optimizer::sgd(0.5)), nesterov, decays(Optimizer::adam()), Optimizer::adamw(0.1)];
    for optimizer in all {
        for (n, scale) in [(1usize, 1.0f32), (301, 0.25), (77, 0.0)] {
            let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 25.0;
            // Second moments are not negative.
            let state = (0..optimizer.rows() * n).map(|i| if i < 2 * n { value(i) } else { value(i).abs() }).collect();
            let values = |shape: &[usize], values: Vec<f32>| CaseInput {
                format: DType::F32,
                shape: shape.iter().map(|n| Dim::Fixed(*n)).collect(),
                fill: Fill::Values(values),
            };
            let [first, second] = optimizer.corrections(3);
            let case = Case::new(OptimizerStep { optimizer, decayed: n / 2 }, &[]);
            let case = case.input(values(&[optimizer.rows(), n], state));
            let case = case.input(values(&[n], (0..n).map(|i| value(7 * i + 3)).collect()));
            cases.push(case.input(values(&[3], vec![0.125, first, second])).input(values(&[], vec![scale])));
        }
    }
    cases
}
