//! What follows the layers of an encoder and the pooling: small networks that turn a text's vector into scores or into
//! another vector.

use hologram_backends::DType;
use hologram_core::{Dim, Executor, Graph, Plan, Tensor};

use crate::error::Result;
use crate::models::blocks::{Linear, Linears};
use crate::models::config::Config;
use crate::models::{Activation, TernaryActivations};
use crate::weights::Weights;

/// Vectors of a run.
const ROWS: usize = 64;

/// A matrix with an activation and a norm after it.
#[derive(Debug)]
pub(crate) struct Dense {
    linear: Linear,
    activation: Activation,
    /// The factors of a LayerNorm and its epsilon.
    norm: Option<(Tensor, f32)>,
}

impl Dense {
    /// Loads the matrix of this name, of any number of rows, with a bias if the file has one; `None` where it is
    /// missing.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(weights: &dyn Weights, name: &str, inputs: usize, activation: Activation) -> Result<Option<Dense>> {
        let (of_weight, of_bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let Some(shape) = weights.shape(&of_weight) else { return Ok(None) };
        let rows = shape.first().copied().unwrap_or(0);
        let linear = Linear {
            name: String::new(),
            weight: weights.matrix(&of_weight, rows, inputs)?,
            bias: weights.shape(&of_bias).map(|_| weights.vector(&of_bias, rows)).transpose()?,
            scale: weights.scale(&of_weight)?,
            beside: Vec::new(),
        };
        Ok(Some(Dense { linear, activation, norm: None }))
    }

    /// The number of results.
    pub fn outputs(&self) -> usize {
        self.linear.weight.shape().first().copied().unwrap_or(0)
    }

    fn inputs(&self) -> usize {
        self.linear.weight.shape().last().copied().unwrap_or(0)
    }
}

/// The networks of a model, applied one after another.
#[derive(Debug, Default)]
pub(crate) struct Head(pub Vec<Dense>);

impl Head {
    /// The head for sequences of an encoder: `cls.output`, with `cls` and `cls.norm` before it if there are any.
    ///
    /// # Errors
    /// Those of [`Weights`].
    pub fn load(weights: &dyn Weights, c: &Config, activation: Activation) -> Result<Head> {
        if weights.shape("cls.output.weight").is_none() {
            return Ok(Head::default());
        }
        let mut first = Dense::load(weights, "cls", c.width, activation)?;
        if let Some(dense) = &mut first
            && weights.shape("cls.norm.weight").is_some()
        {
            dense.norm = Some((weights.vector("cls.norm.weight", dense.outputs())?, c.eps));
        }
        let inputs = first.as_ref().map_or(c.width, Dense::outputs);
        let last = Dense::load(weights, "cls.output", inputs, Activation::Identity)?;
        Ok(Head(first.into_iter().chain(last).collect()))
    }

    /// The matrix, if there is nothing else.
    pub fn matrix(&self) -> Option<&Tensor> {
        match &self.0[..] {
            [dense @ Dense { activation: Activation::Identity, norm: None, linear }]
                if linear.bias.is_none() && linear.scale.is_none() =>
            {
                Some(&dense.linear.weight)
            }
            _ => None,
        }
    }

    /// Numbers of a result; `width` without networks.
    pub fn outputs(&self, width: usize) -> usize {
        self.0.last().map_or(width, Dense::outputs)
    }

    /// Applies the networks to vectors.
    ///
    /// # Errors
    /// Those of the device.
    pub fn apply(&self, executor: &Executor, vectors: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        let Some(first) = self.0.first() else { return Ok(vectors) };
        let mut plan = self.plan(executor, first.inputs())?;
        let mut results = Vec::with_capacity(vectors.len());
        for part in vectors.chunks(ROWS) {
            plan.write("x", &part.concat())?;
            plan.set_extent("rows", part.len())?;
            plan.run()?;
            let width = self.outputs(0);
            let mut y = vec![0.0f32; part.len() * width];
            plan.read_into("y", &mut y)?;
            results.extend(y.chunks(width.max(1)).map(<[f32]>::to_vec));
        }
        Ok(results)
    }

    fn plan(&self, executor: &Executor, inputs: usize) -> Result<Plan> {
        let mut g = Graph::new();
        let rows = g.extent("rows", ROWS);
        let mut x = g.input("x", DType::F32, &[rows, Dim::Fixed(inputs)])?;
        let mut linears = Linears::new(&**executor.backend(), TernaryActivations::PerBlock, Some(1));
        for dense in &self.0 {
            x = linears.apply(&mut g, x, &dense.linear, ROWS)?;
            x = match dense.activation {
                Activation::Identity => x,
                Activation::Tanh => g.tanh(x)?,
                Activation::Gelu => g.gelu(x)?,
            };
            if let Some((factors, eps)) = &dense.norm {
                let zeros = Tensor::from_slice(executor, factors.shape(), &vec![0.0f32; dense.outputs()])?;
                let (w, bias) = (g.constant(factors)?, g.constant(&zeros)?);
                x = g.layer_norm(x, w, bias, *eps)?;
            }
        }
        g.output("y", x)?;
        Ok(g.compile(executor, &[])?)
    }
}
