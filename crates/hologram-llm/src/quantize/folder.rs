//! A folder's model as a GGUF file: the tensors that its layers load, under the names that they load them by.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use hologram_backends::{Binding, Buffer, DType, ForeignMemory};
use hologram_core::{Executor, Tensor};

use super::forms::{Form, Make, RowsOf, forms, joined};
use super::metadata::{self, Stored};
use super::recipe::Facts;
use super::{Output, QuantizeOptions, Quantized, Rows};
use crate::embed::AfterLayers;
use crate::error::{LlmError, Result};
use crate::gguf::{GgufFile, NewTensor, TensorType};
use crate::models::config::Config;
use crate::models::decoder::Decoder;
use crate::models::rope::RopeScaling;
use crate::safetensors::{Folder, FolderWeights};
use crate::tokenizer::{Tokenizer, to_gguf};
use crate::weights::Weights;

/// How the layers load a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Matrix,
    Experts,
    Vector,
    Small,
    ExpertVectors,
    Values,
}

/// A tensor that the layers load.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub name: String,
    pub kind: Kind,
    pub shape: Vec<usize>,
}

/// Notes what is loaded, and gives tensors whose memory is never touched.
struct Recorder<'a> {
    inner: &'a FolderWeights<'a>,
    wanted: RefCell<Vec<Wanted>>,
    names: RefCell<HashSet<String>>,
    /// As long as the largest tensor in `f32`.
    blank: Buffer,
}

impl Recorder<'_> {
    fn want(&self, name: &str, kind: Kind, shape: &[usize]) {
        if self.names.borrow_mut().insert(name.into()) {
            self.wanted.borrow_mut().push(Wanted { name: name.into(), kind, shape: shape.to_vec() });
        }
    }

    fn blank(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_buffer(self.inner.executor(), self.blank.clone(), 0, DType::F32, shape)?)
    }

    fn both(&self, name: &str, kind: Kind, wanted: &[usize], shape: &[usize]) -> Result<Tensor> {
        self.want(name, kind, wanted);
        self.blank(shape)
    }
}

impl Weights for Recorder<'_> {
    fn executor(&self) -> &Executor {
        self.inner.executor()
    }

    fn is_folder(&self) -> bool {
        true
    }

    fn matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Tensor> {
        self.both(name, Kind::Matrix, &[rows, row_len], &[rows, row_len])
    }

    fn matrix_rows(&self, name: &str, total: usize, rows: Range<usize>, row_len: usize) -> Result<Tensor> {
        self.both(name, Kind::Matrix, &[total, row_len], &[rows.len(), row_len])
    }

    fn expert_matrices(&self, name: &str, experts: usize, rows: usize, row_len: usize) -> Result<Tensor> {
        self.both(name, Kind::Experts, &[experts, rows, row_len], &[experts * rows, row_len])
    }

    /// The output matrix is small beside the other tensors' sum, and whether it is there depends on more than its name.
    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>> {
        let found = self.inner.optional_matrix(name, rows, row_len)?;
        Ok(found.inspect(|_| self.want(name, Kind::Matrix, &[rows, row_len])))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        self.both(name, Kind::Vector, &[len], &[len])
    }

    fn small(&self, name: &str, shape: [usize; 2]) -> Result<Tensor> {
        self.both(name, Kind::Small, &shape, &shape)
    }

    fn expert_vectors(&self, name: &str, experts: usize, len: usize) -> Result<Option<Tensor>> {
        let found = self.inner.expert_vectors(name, experts, len)?;
        Ok(found.inspect(|_| self.want(name, Kind::ExpertVectors, &[experts, len])))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.inner.shape(name)
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>> {
        let found = self.inner.optional_vector(name, len)?;
        Ok(found.inspect(|_| self.want(name, Kind::Vector, &[len])))
    }

    fn optional_values(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let found = self.inner.optional_values(name, len)?;
        Ok(found.inspect(|_| self.want(name, Kind::Values, &[len])))
    }

    fn scale(&self, _: &str) -> Result<Option<f32>> {
        Ok(None)
    }

    fn skip(&self, name: &str) {
        self.inner.skip(name);
    }

    fn finish(&self, _: Range<usize>) -> Result<()> {
        Ok(())
    }
}

/// The tensors of a folder's model, in the order in which its layers load them.
fn wanted(config: &Config, weights: &FolderWeights<'_>, elements: usize) -> Result<Vec<Wanted>> {
    let io = |reason| LlmError::Io { path: weights.folder().path().into(), reason };
    // Untouched pages take no memory.
    let blank = memmap2::MmapOptions::new().len(elements.max(1) * size_of::<f32>()).no_reserve_swap().map_anon();
    let blank = Arc::new(blank.and_then(memmap2::MmapMut::make_read_only).map_err(io)?);
    let blank = weights.executor().backend().wrap(ForeignMemory::from_owner(blank))?;
    let recorder = Recorder { inner: weights, wanted: RefCell::default(), names: RefCell::default(), blank };
    Decoder::load(config.clone(), &recorder, None, &[], &mut |_, _| ())?;
    Ok(recorder.wanted.into_inner())
}

/// A tensor's elements in host memory, row by row.
struct Loaded {
    executor: Executor,
    buffer: Buffer,
    start: usize,
    format: DType,
    /// Multiplied with all elements.
    factor: f32,
}

impl Loaded {
    fn of(tensor: &Tensor, factor: Option<f32>) -> Option<Loaded> {
        // Parts of blocks are views of the same bytes.
        let bindings = tensor.bindings();
        let Some(Binding::Buffer { buffer, range }) = bindings.first() else { return None };
        Some(Loaded {
            executor: tensor.executor().clone(),
            buffer: buffer.clone(),
            start: range.start,
            format: tensor.dtype(),
            factor: factor.unwrap_or(1.0),
        })
    }

    /// A row of a GGUF file's tensor.
    fn made(&self, rows: &RowsOf, row: usize, values: &mut [f32]) -> Result<()> {
        self.row(rows.pick.as_ref().map_or(row, |pick| pick(row)), values)?;
        if let Some(columns) = &rows.columns {
            let own = values.to_vec();
            values.iter_mut().zip(columns).for_each(|(v, column)| *v = own.get(*column).copied().unwrap_or(f32::NAN));
        }
        let of_row = rows.factors.as_ref().and_then(|factors| factors.get(row)).copied().unwrap_or(1.0);
        let factor = of_row * rows.factor.unwrap_or(1.0);
        if factor != 1.0 {
            values.iter_mut().for_each(|v| *v *= factor);
        }
        Ok(())
    }

    fn row(&self, row: usize, values: &mut [f32]) -> Result<()> {
        let mut bytes = vec![0; self.format.bytes(1, values.len()).unwrap_or(0)];
        self.executor.backend().copy_from_buffer(&self.buffer, self.start + row * bytes.len(), &mut bytes)?;
        self.format.decode_row(&bytes, values)?;
        if self.factor != 1.0 {
            values.iter_mut().for_each(|v| *v *= self.factor);
        }
        Ok(())
    }
}

fn unsupported(folder: &Folder, what: String) -> LlmError {
    LlmError::Unsupported { path: folder.path().into(), what, supported: String::new() }
}

/// As [`super::quantize`], of a folder.
///
/// # Errors
/// Also when a GGUF file cannot express the model or its tokenizer.
pub(super) fn quantize(
    folder: &Folder,
    out: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Quantized> {
    let config = folder.config()?;
    let architecture = config.architecture;
    if architecture.latent && config.rope != architecture.rope {
        return Err(unsupported(folder, "writing latent attention with rope_interleave false as a GGUF file".into()));
    }
    // The device whose weights all have the layout of files.
    let executor = Executor::open("reference", None)?;
    let weights = FolderWeights::new(&executor, folder, &architecture.folder)?;
    let largest = folder.tensors().map(|t| t.bytes).max().unwrap_or(0);
    // A byte holds at most four elements.
    let wanted = joined(&config, wanted(&config, &weights, largest.saturating_mul(4))?);

    let has_output = wanted.iter().any(|tensor| tensor.name == "output.weight");
    let facts = Facts::of_config(&config, has_output, options.importance.is_some());
    let mut names = Vec::new();
    let modules = AfterLayers::of(folder.path(), &executor)?;
    let mut computed: Vec<(&str, Vec<usize>, Vec<f32>)> =
        rope_factors(&config).into_iter().map(|(name, values)| (name, vec![values.len()], values)).collect();
    let matrices = ["dense_2.weight", "dense_3.weight"];
    if modules.matrices.len() > matrices.len() {
        return Err(unsupported(folder, format!("writing {} matrices of modules", modules.matrices.len())));
    }
    for (name, matrix) in matrices.into_iter().zip(&modules.matrices) {
        let shape = matrix.shape().to_vec();
        let mut values = vec![0.0; shape.iter().product()];
        let loaded = Loaded::of(matrix, None).ok_or_else(|| unsupported(folder, format!("reading tensor {name}")))?;
        loaded.row(0, &mut values)?;
        computed.push((name, shape, values));
    }
    names.extend(computed.iter().map(|(name, shape, _)| (name.to_string(), shape.clone())));
    let forms: Vec<Vec<Form>> = wanted.iter().map(|tensor| forms(&config, tensor, !has_output)).collect();
    names.extend(forms.iter().flatten().map(|form| (form.name.clone(), form.shape.clone())));
    let all: Vec<(&str, &[usize])> = names.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
    options.check_names(folder.path(), &all)?;
    let mut tensors = Vec::with_capacity(names.len());
    for (name, shape) in names {
        let chosen =
            options.kept(&name, &shape).or_else(|| facts.choose(options.recipe, &name, &shape)).unwrap_or(DType::F32);
        let ty = TensorType::of(chosen)
            .ok_or_else(|| unsupported(folder, format!("writing tensor {name} as {}", chosen.name())))?;
        tensors.push(NewTensor { name, shape, ty });
    }
    let unweighted = options.unweighted(tensors.iter())?;

    let mut keys = metadata::of_config(&config, &widths(&config, &wanted));
    if let Some(pooling) = modules.pooling {
        keys.push((format!("{}.pooling_type", metadata::architecture(&config)), Stored::U32(pooling)));
    }
    keys.extend(to_gguf::of_folder(folder.path(), &folder.end_tokens()?, config.vocab)?);
    keys.push(("general.file_type".into(), Stored::U32(options.recipe.file_type)));
    keys.push(("general.quantization_version".into(), Stored::U32(2)));
    check(folder, &config, &keys)?;
    let unused = |weights: &FolderWeights<'_>| weights.finish(config.layers..config.layers + config.ahead);
    if config.experts.is_none() && !folder.config_json().contains_key("quantization_config") {
        // Where loading copies nothing, errors come before the first byte is written.
        wanted.iter().try_for_each(|tensor| load(&weights, tensor).map(drop))?;
        unused(&weights)?;
    }

    let total = wanted.iter().map(|t| t.shape.iter().product::<usize>() as u64 * 2).sum();
    let pairs = keys.iter().filter_map(|(key, value)| Some((key.as_str(), value.value()?)));
    let mut output = Output::create(out, pairs, &tensors, total, progress)?;
    let (first, rest) = tensors.split_at(computed.len());
    for ((_, shape, values), new) in computed.iter().zip(first) {
        let row_len = shape.last().copied().unwrap_or(1);
        let read = |row: usize, out: &mut [f32]| -> Result<()> {
            out.copy_from_slice(&values[row * row_len..(row + 1) * row_len]);
            Ok(())
        };
        let rows = values.len() / row_len.max(1);
        output.tensor(folder.path(), &Rows { rows, row_len, read: &read }, new, options, 0)?;
    }
    let mut rest = rest.iter();
    for (tensor, forms) in wanted.iter().zip(&forms) {
        let loaded = load(&weights, tensor)?;
        let loaded = loaded.ok_or_else(|| unsupported(folder, format!("reading tensor {}", tensor.name)))?;
        let size = tensor.shape.iter().product::<usize>() as u64 * 2 / forms.len().max(1) as u64;
        for (form, new) in forms.iter().zip(&mut rest) {
            let row_len = form.shape.last().copied().unwrap_or(1);
            let rows = form.shape.iter().rev().skip(1).product();
            let all = match &form.make {
                Make::Rows(_) => None,
                Make::All(make) => {
                    let mut values = vec![0.0; tensor.shape.iter().product()];
                    loaded.row(0, &mut values)?;
                    Some(make(values))
                }
            };
            let read = |row: usize, values: &mut [f32]| -> Result<()> {
                match (&form.make, &all) {
                    (Make::Rows(of), _) => loaded.made(of, row, values),
                    (_, all) => {
                        let own = all.as_ref().and_then(|all| all.get(row * row_len..(row + 1) * row_len));
                        values.copy_from_slice(own.unwrap_or(&vec![f32::NAN; row_len]));
                        Ok(())
                    }
                }
            };
            output.tensor(folder.path(), &Rows { rows, row_len, read: &read }, new, options, size)?;
        }
        folder.release();
    }
    unused(&weights)?;
    output.result.unweighted = unweighted;
    output.result.from = folder.tensors().map(|t| t.bytes as u64).sum();
    output.finish()
}

/// The width of each layer's network, where layers have one.
fn widths(config: &Config, wanted: &[Wanted]) -> Vec<usize> {
    let of = |layer: usize| {
        let matrix = |part: &str| {
            let name = format!("blk.{layer}.{part}.weight");
            wanted.iter().find(|tensor| tensor.name == name)
        };
        match (matrix("ffn_up"), matrix("ffn_up_exps")) {
            (Some(up), _) => up.shape[0],
            (None, Some(up)) => up.shape[1],
            (None, None) => 0,
        }
    };
    (0..config.layers).map(of).collect()
}

/// The tensors of rotary factors: those of LongRoPE, and what Llama 3's scaling divides frequencies by.
fn rope_factors(config: &Config) -> Vec<(&'static str, Vec<f32>)> {
    if let (Some([factors, _]), false) = (&config.rope_factors, matches!(config.rope_scaling, RopeScaling::Long { .. }))
    {
        return vec![("rope_freqs.weight", factors.clone())];
    }
    if let Some([short, long]) = &config.rope_factors {
        return vec![("rope_factors_long.weight", long.clone()), ("rope_factors_short.weight", short.clone())];
    }
    if !matches!(config.rope_scaling, RopeScaling::Llama3 { .. }) {
        return Vec::new();
    }
    let plain = RopeScaling::None.frequencies(config.rope_dim, config.rope_base, None);
    let scaled = config.rope_frequencies(None);
    vec![("rope_freqs.weight", plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled).collect())]
}

fn load(weights: &FolderWeights<'_>, tensor: &Wanted) -> Result<Option<Loaded>> {
    let name = &tensor.name;
    let loaded = match (tensor.kind, &tensor.shape[..]) {
        (Kind::Matrix, &[rows, row_len]) => weights.matrix(name, rows, row_len)?,
        (Kind::Experts, &[experts, rows, row_len]) => weights.expert_matrices(name, experts, rows, row_len)?,
        (Kind::Vector, &[len]) => weights.vector(name, len)?,
        (Kind::Small, &[rows, row_len]) => weights.small(name, [rows, row_len])?,
        (Kind::ExpertVectors, &[experts, len]) => match weights.expert_vectors(name, experts, len)? {
            Some(tensor) => tensor,
            None => return Ok(None),
        },
        (Kind::Values, &[len]) => match weights.optional_values(name, len)? {
            Some(values) => Tensor::from_slice(weights.executor(), &[len], &values)?,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Loaded::of(&loaded, weights.scale(name)?))
}

/// Reads the metadata back and compares the model and its tokenizer with the folder's.
fn check(folder: &Folder, config: &Config, keys: &[(String, Stored)]) -> Result<()> {
    let pairs = keys.iter().filter_map(|(key, value)| Some((key.as_str(), value.value()?)));
    let ty = TensorType::of(DType::F16).ok_or_else(|| unsupported(folder, "F16".into()))?;
    let embedding = NewTensor { name: "token_embd.weight".into(), shape: vec![config.vocab, config.width], ty };
    let segments = NewTensor { name: "token_types.weight".into(), shape: vec![config.segments, config.width], ty };
    let some = if config.segments > 0 { vec![embedding, segments] } else { vec![embedding] };
    let file = GgufFile::without_data(folder.path(), pairs, &some)?;
    if let Some(difference) = metadata::difference(config, &Config::from_gguf(&file)?) {
        return Err(unsupported(folder, format!("writing this model as a GGUF file ({difference})")));
    }
    if file.value("tokenizer.ggml.model").is_some() {
        let of_folder = Tokenizer::from_folder(folder.path())?;
        to_gguf::same(&of_folder, &Tokenizer::from_gguf(&file)?, folder.path())?;
    }
    Ok(())
}
