//! Saves and resumes a training.

use std::collections::BTreeMap;
use std::path::Path;

use super::Trainer;
use crate::error::{CoreError, Result};
use crate::tensor::{Tensor, bytes_of};

/// The name of the number of steps done, in a file.
const STEPS: &str = "optimizer.steps";

/// The name of a parameter's values in a row of the state: the parameter itself, or one of its moments.
fn name_of(parameter: &str, row: usize) -> String {
    if row == 0 { parameter.into() } else { format!("optimizer.{row}.{parameter}") }
}

impl Trainer {
    /// Writes parameters, moments and the number of steps to a safetensors file, the parameters under their own names
    /// in `f32`.
    ///
    /// # Errors
    /// When two tensors have one name or the file cannot be written; errors of the device.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut all = BTreeMap::new();
        let mut add = |name: String, tensor: Tensor| match all.insert(name.clone(), tensor) {
            None => Ok(()),
            Some(_) => Err(CoreError::Graph(format!("two tensors to save have the name {name}"))),
        };
        for place in &self.places {
            for row in 0..self.state.shape()[0] {
                add(name_of(&place.name, row), self.values(place, row)?)?;
            }
        }
        add(STEPS.into(), Tensor::from_slice(self.state.executor(), &[1], &[self.steps])?)?;
        Tensor::save_safetensors(&all, path)
    }

    /// Continues from a file that [`Trainer::save`] wrote with the same parameters and optimizer. A file with
    /// parameters alone starts the optimizer anew. Changes nothing if it fails.
    ///
    /// # Errors
    /// When the file cannot be read, or a tensor is missing, left over, no `f32` or of another shape; errors of the
    /// device.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bad = |reason: String| CoreError::Tensor(format!("cannot continue from {}: {reason}", path.display()));
        let mut all = Tensor::load_safetensors(self.state.executor(), path)?;
        let steps = match all.remove(STEPS) {
            Some(steps) => steps.to_vec::<u32>()?.first().copied(),
            None => None,
        };
        let [rows, n] = self.state.shape() else { return Err(bad("the state has no rows".into())) };
        let mut values = vec![0.0f32; rows * n];
        for place in &self.places {
            for row in 0..if steps.is_some() { *rows } else { 1 } {
                let name = name_of(&place.name, row);
                let tensor = all.remove(&name).ok_or_else(|| bad(format!("it lacks the tensor {name}")))?;
                if tensor.shape() != place.shape {
                    let (have, want) = (tensor.shape(), &place.shape);
                    return Err(bad(format!("{name} has shape {have:?}, but the parameter has {want:?}")));
                }
                let start = row * n + place.start;
                values[start..start + place.len].copy_from_slice(&tensor.to_vec::<f32>()?);
            }
        }
        if let Some((name, _)) = all.first_key_value() {
            return Err(bad(format!("it has the tensor {name}, which this training lacks")));
        }
        let backend = self.state.executor().backend();
        backend.copy_to_buffer(&self.state.buffer, self.state.offset, bytes_of(&values))?;
        self.steps = steps.unwrap_or(0);
        Ok(())
    }
}
