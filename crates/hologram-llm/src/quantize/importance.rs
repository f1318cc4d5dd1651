//! Importance matrices: the mean square of the activations that each column of a matrix is multiplied with.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hologram_backends::DType;

use super::forms::measured;
use crate::error::{LlmError, Result};
use crate::files::ModelFiles;
use crate::gguf::{GgufFile, GgufWriter, NewTensor, Strings, TensorType, Value, ValueType};
use crate::model::Model;
use crate::perplexity::check_window;
use crate::session::SessionOptions;
use crate::weights::fused_experts;

/// The importance of the columns of a model's matrices, as `llama-imatrix` writes it to GGUF files.
#[derive(Debug)]
pub struct Importance {
    path: PathBuf,
    matrices: HashMap<String, Columns>,
}

/// The importance of a matrix's columns, for each of its experts.
#[derive(Debug)]
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
    pub(super) fn of(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<&Columns>> {
        let Some(columns) = self.matrices.get(name) else { return Ok(None) };
        let experts = columns.values.len() / columns.len.max(1);
        if columns.len != row_len || experts == 0 || !rows.is_multiple_of(experts) {
            let reason = format!(
                "it is for another model: {name} has {} columns there, but {row_len} in the model",
                columns.len
            );
            return Err(LlmError::BadFile { path: self.path.clone(), reason });
        }
        Ok(Some(columns))
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

/// Sums of the squared activations that the columns of a model's matrices were multiplied with, to be written as an
/// importance matrix.
#[derive(Debug, Default)]
pub struct ImportanceSums {
    /// By the weight's name: the sums of all experts, and the tokens of each.
    weights: BTreeMap<String, (Vec<f64>, Vec<f64>)>,
    /// The windows, and the tokens of each.
    windows: usize,
    context: usize,
}

impl Model {
    /// Sums of squared activations over a text (its tokens) in windows of `context` tokens; `bos` takes the place of
    /// the first token of each. `progress` gets the tokens done and those of all windows; it can end the work,
    /// which then gives `None`.
    ///
    /// # Errors
    /// When the text is shorter than a window, a sum is not finite, or the device fails.
    pub fn importance(
        &self,
        tokens: &[u32],
        context: usize,
        bos: Option<u32>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<ImportanceSums>> {
        check_window(context, tokens.len())?;
        let mut session =
            self.session(SessionOptions { context, batch: Some(context), ..SessionOptions::default() })?;
        let mut sums = ImportanceSums { context, ..ImportanceSums::default() };
        let all = tokens.len() / context * context;
        for window in tokens.chunks_exact(context) {
            if progress(sums.windows * context, all).is_break() {
                return Ok(None);
            }
            let mut window = window.to_vec();
            if let Some(bos) = bos {
                window[0] = bos;
            }
            session.sums(&window, &mut |name, squares, counts| {
                if !sums.weights.contains_key(name) {
                    sums.weights.insert(name.into(), (vec![0.0; squares.len()], vec![0.0; counts.len()]));
                }
                if let Some((all, tokens)) = sums.weights.get_mut(name) {
                    all.iter_mut().zip(squares).for_each(|(sum, v)| *sum += f64::from(*v));
                    tokens.iter_mut().zip(counts).for_each(|(sum, v)| *sum += f64::from(*v));
                }
            })?;
            sums.windows += 1;
            if let Some((name, _)) = sums.weights.iter().find(|(_, (all, _))| all.iter().any(|v| !v.is_finite())) {
                let reason = format!("the activations of {name} in window {} contain NaN or infinity", sums.windows);
                return Err(LlmError::BadFile { path: self.config().name.clone().into(), reason });
            }
        }
        Ok(progress(all, all).is_continue().then(|| sums.renamed(self)))
    }
}

impl ImportanceSums {
    /// Under the names, and with the columns in the order, that GGUF files of the model have.
    fn renamed(self, model: &Model) -> ImportanceSums {
        let in_file = |name: &str, experts: usize, columns: usize| match model.files() {
            Some(ModelFiles::Folder(_)) => measured(model.config(), name, experts, columns),
            Some(ModelFiles::Gguf(file)) => {
                let fused = fused_experts(name).map(|(fused, _)| fused);
                let fused = fused.filter(|fused| file.tensor_opt(name).is_none() && file.tensor_opt(fused).is_some());
                vec![(fused.unwrap_or_else(|| name.into()), None)]
            }
            None => vec![(name.into(), None)],
        };
        let mut weights = BTreeMap::new();
        for (name, (sums, counts)) in self.weights {
            let columns = sums.len() / counts.len().max(1);
            for (name, order) in in_file(&name, counts.len(), columns) {
                let sums = match order {
                    None => sums.clone(),
                    Some(order) => {
                        let of_expert = |own: &[f64]| order.iter().map(|i| own[*i]).collect::<Vec<_>>();
                        sums.chunks_exact(columns.max(1)).flat_map(of_expert).collect()
                    }
                };
                weights.insert(name, (sums, counts.clone()));
            }
        }
        ImportanceSums { weights, ..self }
    }

    /// The number of weights.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The experts that no token used, over all weights.
    pub fn unused_experts(&self) -> usize {
        self.weights.values().map(|(_, counts)| counts.iter().filter(|count| **count == 0.0).count()).sum()
    }

    /// Writes a GGUF file as `llama-imatrix` does. `text`: the name of the text.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>, text: &str) -> Result<()> {
        let path = path.as_ref();
        let failed = |reason| LlmError::Write { path: path.into(), reason };
        let texts = Strings::from_texts(&[text]).map_err(failed)?;
        let whole = |n: usize| Value::Unsigned(ValueType::U32, n as u64);
        let keys = [
            ("general.type", Value::String("imatrix")),
            ("imatrix.datasets", Value::Strings(&texts)),
            ("imatrix.chunk_count", whole(self.windows)),
            ("imatrix.chunk_size", whole(self.context)),
        ];
        let ty = TensorType::of(DType::F32)
            .ok_or_else(|| LlmError::BadFile { path: path.into(), reason: "GGUF files have no F32".into() })?;
        let new = |name: &str, end: &str, shape: [usize; 2]| NewTensor {
            name: format!("{name}.{end}"),
            shape: shape.to_vec(),
            ty,
        };
        let tensors: Vec<NewTensor> = self
            .weights
            .iter()
            .flat_map(|(name, (sums, counts))| {
                let (experts, columns) = (counts.len(), sums.len() / counts.len().max(1));
                [new(name, "in_sum2", [experts, columns]), new(name, "counts", [experts, 1])]
            })
            .collect();
        let mut writer = GgufWriter::create(path, keys.into_iter(), &tensors)?;
        for (sums, counts) in self.weights.values() {
            for values in [sums, counts] {
                writer.write(&values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect::<Vec<_>>())?;
            }
        }
        writer.finish()
    }
}
