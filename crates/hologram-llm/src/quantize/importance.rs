//! Importance matrices: the mean square of the activations that each column of a matrix is multiplied with.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;

/// The importance of the columns of a model's matrices, as `llama-imatrix` writes it to GGUF files.
#[derive(Debug)]
pub struct Importance {
    path: PathBuf,
    matrices: HashMap<String, Columns>,
}

/// The importance of a matrix's columns, for each of its experts.
#[derive(Clone, Debug)]
pub struct Columns {
    values: Vec<f32>,
    len: usize,
}

impl Importance {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is not an importance matrix, or has values that are negative or not finite.
    pub fn open(path: impl AsRef<Path>) -> Result<Importance> {
        let path = path.as_ref();
        let file = GgufFile::open(path)?;
        let bad = |reason: String| LlmError::BadFile { path: path.into(), reason };
        let mut matrices = HashMap::new();
        for sums in file.tensors() {
            let Some(name) = sums.name().strip_suffix(".in_sum2") else { continue };
            let counts = file.tensor(&format!("{name}.counts"))?.to_f32()?;
            let (mut values, len) = (sums.to_f32()?, sums.row_len());
            if counts.len() != sums.rows() {
                return Err(bad(format!("{name} has {} counts, but sums of {} experts", counts.len(), sums.rows())));
            }
            for (values, count) in values.chunks_exact_mut(len.max(1)).zip(&counts) {
                // An expert that no token used: all columns alike.
                values.iter_mut().for_each(|v| *v = if *count > 0.0 { *v / count } else { 1.0 });
            }
            if values.iter().any(|v| !v.is_finite() || *v < 0.0) {
                return Err(bad(format!("{name} has a sum of squares that is negative or not finite")));
            }
            matrices.insert(name.to_string(), Columns { values, len });
        }
        if matrices.is_empty() {
            return Err(bad("it has no tensors NAME.in_sum2: it is not an importance matrix".into()));
        }
        Ok(Importance { path: path.into(), matrices })
    }

    /// That of a tensor; `None` if the file lacks it.
    pub(super) fn of(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Columns>> {
        let Some(columns) = self.matrices.get(name) else { return Ok(None) };
        let experts = columns.values.len() / columns.len.max(1);
        if columns.len != row_len || experts == 0 || !rows.is_multiple_of(experts) {
            let reason = format!(
                "it is for another model: {name} has {} columns there, but {row_len} in the model",
                columns.len
            );
            return Err(LlmError::BadFile { path: self.path.clone(), reason });
        }
        Ok(Some(columns.clone()))
    }
}

impl Columns {
    /// That of a row, of so many.
    pub(super) fn row(&self, row: usize, rows: usize) -> &[f32] {
        let experts = (self.values.len() / self.len.max(1)).max(1);
        let expert = row / (rows / experts).max(1);
        &self.values[expert.min(experts - 1) * self.len..][..self.len]
    }
}
