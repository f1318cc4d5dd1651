//! Training: a graph of a loss, its gradients, and an optimizer's step, compiled to one plan.

mod files;

use std::collections::HashMap;

use hologram_backends::DType;
use hologram_isa::Type;

use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{Graph, NodeId, Plan};
use crate::ops::{Optimizer, Reduction};
use crate::tensor::{Dim, Element, Tensor};

/// Where parameters begin in the state, in elements: a view there needs no copy.
const ALIGN: usize = 16;
/// The state's rows are whole lines of this many elements, so that norms are sums of lines.
const LINE: usize = 1024;
/// The number of tensors that one concatenation takes.
const PARTS: usize = 64;

/// The parameters of a model: names, shapes and first values.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    all: Vec<Parameter>,
    seed: u64,
}

#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Parameters {
    /// No parameters. The seed is that of [`Parameters::normal`].
    pub fn new(seed: u64) -> Parameters {
        Parameters { all: Vec::new(), seed }
    }

    /// Adds a parameter with these values.
    ///
    /// # Errors
    /// When the name is taken or the number of values is not that of the shape.
    pub fn values(&mut self, name: &str, shape: &[usize], values: Vec<f32>) -> Result<()> {
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if count != Some(values.len()) {
            return Err(CoreError::Tensor(format!("parameter {name} {shape:?} has not {} elements", values.len())));
        }
        if self.all.iter().any(|p| p.name == name) {
            return Err(CoreError::Tensor(format!("two parameters are named {name}")));
        }
        self.all.push(Parameter { name: name.into(), shape: shape.to_vec(), values });
        Ok(())
    }

    /// Adds a parameter of which every element is `value`.
    ///
    /// # Errors
    /// As [`Parameters::values`].
    pub fn full(&mut self, name: &str, shape: &[usize], value: f32) -> Result<()> {
        self.values(name, shape, vec![value; shape.iter().product()])
    }

    /// Adds a parameter of normally distributed elements, which the seed and the names before it determine.
    ///
    /// # Errors
    /// As [`Parameters::values`].
    pub fn normal(&mut self, name: &str, shape: &[usize], deviation: f32) -> Result<()> {
        let stream = self.all.len() as u32;
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        let pair = |i: usize| {
            let words = crate::ops::philox4x32_10([i as u32, stream, 0, 0], key);
            let radius = (-2.0 * unit(words[0]).ln()).sqrt();
            let angle = std::f64::consts::TAU * unit(words[1]);
            [radius * angle.cos(), radius * angle.sin()]
        };
        let count: usize = shape.iter().product();
        let values = (0..count.div_ceil(2)).flat_map(pair).take(count).map(|v| (v as f32) * deviation).collect();
        self.values(name, shape, values)
    }

    /// The number of elements of all parameters.
    pub fn elements(&self) -> usize {
        self.all.iter().map(|p| p.values.len()).sum()
    }
}

/// Options of [`Trainer::new`].
#[derive(Clone, Copy, Debug)]
pub struct TrainOptions {
    /// The optimizer. Weight decay applies to parameters of two and more dimensions, not to biases and norms.
    pub optimizer: Optimizer,
    /// The greatest norm of all gradients together; greater gradients are scaled to it. `None`: no limit.
    pub clip: Option<f32>,
    /// The type that the loss sees parameters in: `f32`, `bf16` or `f16`. Parameters and moments are `f32` in any case.
    pub compute: DType,
    /// The factor of the loss before its gradients are taken, which keeps small gradients of `f16`. A step with
    /// gradients that are not finite changes nothing, with any factor.
    pub loss_scale: f32,
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions { optimizer: Optimizer::adamw(0.01), clip: None, compute: DType::F32, loss_scale: 1.0 }
    }
}

/// The values of parameters in a loss's graph.
#[derive(Debug)]
pub struct Weights {
    /// By name: in the type of the computation, and in `f32`.
    nodes: HashMap<String, [NodeId; 2]>,
}

impl Weights {
    /// The value of a parameter, in the type of [`TrainOptions::compute`].
    ///
    /// # Errors
    /// When there is no such parameter.
    pub fn get(&self, name: &str) -> Result<NodeId> {
        self.find(name).map(|[node, _]| node)
    }

    /// The value of a parameter in `f32`, as embeddings and norms need it.
    ///
    /// # Errors
    /// When there is no such parameter.
    pub fn master(&self, name: &str) -> Result<NodeId> {
        self.find(name).map(|[_, master]| master)
    }

    fn find(&self, name: &str) -> Result<[NodeId; 2]> {
        let nodes = self.nodes.get(name).copied();
        nodes.ok_or_else(|| CoreError::Graph(format!("there is no parameter named {name}")))
    }
}

/// The place of a parameter in the state's first row.
#[derive(Clone, Debug)]
struct Place {
    name: String,
    shape: Vec<usize>,
    start: usize,
    len: usize,
}

impl Place {
    /// The number of elements up to the next parameter.
    fn room(&self) -> usize {
        self.len.next_multiple_of(ALIGN)
    }
}

/// Trains parameters by the gradients of a loss: forward pass, backward pass and the optimizer's step are one plan.
///
/// ```
/// use hologram_core::ops::{LossReduction, Optimizer};
/// use hologram_core::{DType, Dim, Executor, Parameters, TrainOptions, Trainer};
///
/// let mut parameters = Parameters::new(1);
/// parameters.normal("w", &[1, 2], 0.5)?;
/// let options = TrainOptions { optimizer: Optimizer::sgd(0.0), ..TrainOptions::default() };
/// let mut trainer = Trainer::new(&Executor::open("cpu", None)?, &parameters, options, |g, weights| {
///     let x = g.input("x", DType::F32, &[Dim::Fixed(4), Dim::Fixed(2)])?;
///     let y = g.input("y", DType::F32, &[Dim::Fixed(4), Dim::Fixed(1)])?;
///     let guess = g.linear(x, weights.get("w")?)?;
///     g.mse_loss(guess, y, LossReduction::Mean)
/// })?;
/// trainer.write("x", &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, -1.0])?;
/// trainer.write("y", &[3.0f32, -2.0, 1.0, 8.0])?;
/// for _ in 0..200 {
///     trainer.step(0.1)?;
/// }
/// assert!(trainer.loss()? < 1e-6);
/// let w = trainer.parameter("w")?.to_vec::<f32>()?;
/// assert!((w[0] - 3.0).abs() < 1e-3 && (w[1] + 2.0).abs() < 1e-3);
/// # Ok::<(), hologram_core::CoreError>(())
/// ```
pub struct Trainer {
    plan: Plan,
    state: Tensor,
    places: Vec<Place>,
    optimizer: Optimizer,
    steps: u32,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trainer({} parameters, {} steps)", self.places.len(), self.steps)
    }
}

impl Trainer {
    /// Builds and compiles a step. `loss` declares the inputs and returns a float of one element.
    ///
    /// # Errors
    /// When there is no parameter; those of `loss`, of [`Graph::gradients`] and of the device.
    pub fn new(
        executor: &Executor,
        parameters: &Parameters,
        options: TrainOptions,
        loss: impl FnOnce(&mut Graph, &Weights) -> Result<NodeId>,
    ) -> Result<Trainer> {
        let TrainOptions { optimizer, clip, compute, loss_scale } = options;
        if !matches!(compute, DType::F32 | DType::F16 | DType::BF16) {
            return Err(CoreError::Graph(format!(
                "parameters are computed in f32, f16 or bf16, not in {}",
                compute.name()
            )));
        }
        let (places, n, decayed) = place(parameters);
        if places.is_empty() {
            return Err(CoreError::Graph("there is nothing to train: no parameter has elements".into()));
        }
        let rows = optimizer.rows();
        let mut values = vec![0.0f32; rows * n];
        for place in &places {
            if let Some(parameter) = parameters.all.iter().find(|p| p.name == place.name) {
                values[place.start..place.start + place.len].copy_from_slice(&parameter.values);
            }
        }
        let state = Tensor::from_slice(executor, &[rows, n], &values)?;

        let mut g = Graph::new();
        let held = g.state(&state)?;
        let line = g.slice(held, 0, 0, 1)?;
        let line = g.reshape(line, &[Dim::Fixed(n)])?;
        let (mut masters, mut nodes) = (Vec::new(), HashMap::new());
        for place in &places {
            let part = g.slice(line, 0, place.start, place.start + place.len)?;
            let shape: Vec<Dim> = place.shape.iter().map(|n| Dim::Fixed(*n)).collect();
            let part = g.reshape(part, &shape)?;
            masters.push(part);
            let computed = if compute == DType::F32 { part } else { g.cast(part, compute)? };
            nodes.insert(place.name.clone(), [computed, part]);
        }
        let loss = loss(&mut g, &Weights { nodes })?;
        let of_loss = g.type_of(loss)?.clone();
        let DType::Plain(ty) = of_loss.format else { return Err(CoreError::Graph("the loss is no float".into())) };
        if !ty.is_float() || of_loss.shape.iter().any(|d| *d != Dim::Fixed(1)) {
            return Err(CoreError::Graph(format!("the loss must be a float of one element, not {of_loss}")));
        }
        let seed = g.full(ty, &of_loss.shape, loss_scale.into())?;
        let grads = g.vjp(&[(loss, seed)], &masters)?;
        let grads = flat(&mut g, &places, &grads, n)?;
        // The norm of all gradients, as the root of a sum of sums of lines.
        let squares = g.mul(grads, grads)?;
        let squares = g.reshape(squares, &[Dim::Fixed(n / LINE), Dim::Fixed(LINE)])?;
        let sums = g.reduce(squares, Reduction::Sum, 1)?;
        let sum = g.reduce(sums, Reduction::Sum, 0)?;
        let norm = g.sqrt(sum)?;
        let norm = g.div_scalar(norm, loss_scale.into())?;
        let mut scale = g.scalar(Type::F32, 1.0 / f64::from(loss_scale))?;
        if let Some(clip) = clip {
            let limit = g.scalar(Type::F32, clip.into())?;
            let factor = g.add_scalar(norm, 1e-6)?;
            let factor = g.div(limit, factor)?;
            let factor = g.min_scalar(factor, 1.0)?;
            scale = g.mul(scale, factor)?;
        }
        // No step if a gradient is not finite.
        let (finite, zero) = (g.isfinite(norm)?, g.scalar(Type::F32, 0.0)?);
        let scale = g.select(finite, scale, zero)?;
        let rates = g.input("optimizer rates", DType::F32, &[Dim::Fixed(3)])?;
        // The loss is read after the step, which must not change what it is read from.
        let loss = if g.is_computed(loss) { loss } else { g.copy(loss)? };
        let loss = g.cast(loss, Type::F32)?;
        let loss = g.reshape(loss, &[])?;
        g.output("loss", loss)?;
        g.output("gradient norm", norm)?;
        g.optimizer_step(held, grads, rates, scale, &optimizer, decayed)?;
        let plan = g.compile(executor, &[])?;
        Ok(Trainer { plan, state, places, optimizer, steps: 0 })
    }

    /// Sets an input of the loss, as [`Plan::write`].
    ///
    /// # Errors
    /// As [`Plan::write`].
    pub fn write<T: Element>(&mut self, name: &str, data: &[T]) -> Result<()> {
        self.plan.write(name, data)
    }

    /// The plan of a step, for its run-time extents and figures.
    pub fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// One step with this learning rate; returns when the device has accepted it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn step(&mut self, learning_rate: f32) -> Result<()> {
        self.steps = self.steps.saturating_add(1);
        let [first, second] = self.optimizer.corrections(self.steps);
        self.plan.write("optimizer rates", &[learning_rate, first, second])?;
        self.plan.run()
    }

    /// The loss of the last step, before its update. Waits for the step.
    ///
    /// # Errors
    /// When there was no step; those of the device.
    pub fn loss(&self) -> Result<f32> {
        self.scalar("loss")
    }

    /// The norm of all gradients of the last step, before clipping. It is not finite if the step changed nothing.
    ///
    /// # Errors
    /// As [`Trainer::loss`].
    pub fn gradient_norm(&self) -> Result<f32> {
        self.scalar("gradient norm")
    }

    /// The current values of a parameter: a view of the state's memory, which later steps change.
    ///
    /// # Errors
    /// When there is no such parameter.
    pub fn parameter(&self, name: &str) -> Result<Tensor> {
        let Some(place) = self.places.iter().find(|p| p.name == name) else {
            return Err(CoreError::Graph(format!("there is no parameter named {name}")));
        };
        self.values(place, 0)
    }

    /// A parameter's part of a row of the state.
    fn values(&self, place: &Place, row: usize) -> Result<Tensor> {
        let line = self.state.slice(0, row, row + 1)?.reshape(&[self.state.shape()[1]])?;
        line.slice(0, place.start, place.start + place.len)?.reshape(&place.shape)
    }

    /// The names of the parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.name.as_str())
    }

    fn scalar(&self, name: &str) -> Result<f32> {
        let mut value = [0.0f32];
        self.plan.read_into(name, &mut value)?;
        Ok(value[0])
    }
}

/// The places of the parameters: those that decay first. Returns the number of all elements and of those that decay.
fn place(parameters: &Parameters) -> (Vec<Place>, usize, usize) {
    let decays = |p: &&Parameter| p.shape.len() > 1;
    let (mut places, mut start, mut decayed) = (Vec::new(), 0, 0);
    let mut add = |parameter: &Parameter| {
        let len = parameter.values.len();
        if len > 0 {
            places.push(Place { name: parameter.name.clone(), shape: parameter.shape.clone(), start, len });
            start += len.next_multiple_of(ALIGN);
        }
        start
    };
    for parameter in parameters.all.iter().filter(decays) {
        decayed = add(parameter);
    }
    for parameter in parameters.all.iter().filter(|p| !decays(p)) {
        add(parameter);
    }
    let end = places.last().map_or(0, |p: &Place| p.start + p.room());
    (places, end.next_multiple_of(LINE), decayed)
}

/// The gradients in one row, as the parameters lie in the state.
fn flat(g: &mut Graph, places: &[Place], grads: &[NodeId], n: usize) -> Result<NodeId> {
    let mut parts = Vec::with_capacity(places.len());
    for (place, grad) in places.iter().zip(grads) {
        let mut part = g.reshape(*grad, &[Dim::Fixed(place.len)])?;
        if place.room() > place.len {
            part = g.pad(part, &[(0, place.room() - place.len)], 0.0)?;
        }
        parts.push(part);
    }
    let end = places.last().map_or(0, |p| p.start + p.room());
    if n > end {
        parts.push(g.full(Type::F32, &[Dim::Fixed(n - end)], 0.0)?);
    }
    while parts.len() > 1 {
        let joined = parts.chunks(PARTS).map(|part| if let [one] = part { Ok(*one) } else { g.cat(part, 0) });
        parts = joined.collect::<Result<_>>()?;
    }
    parts.first().copied().ok_or_else(|| CoreError::Graph("there are no gradients".into()))
}
