//! Quantizes the tensors of a model into a GGUF file, a piece at a time.

mod folder;
mod forms;
mod importance;
pub(crate) mod metadata;
mod recipe;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hologram_backends::DType;

use crate::error::{LlmError, Result};
use crate::files::ModelFiles;
use crate::gguf::{GgufFile, GgufWriter, NewTensor, TensorType, Value, ValueType};
use crate::safetensors::Folder;
pub use importance::{Importance, ImportanceSums};
pub use recipe::Recipe;
pub(crate) use recipe::{Facts, fitting};

/// Elements that are quantized at a time: 64 MiB as `f32`.
const PIECE: usize = 16 << 20;
/// How often progress is reported while a piece is quantized, and how soon the work may end.
const LOOK: Duration = Duration::from_millis(50);

/// How [`quantize`] chooses types.
#[derive(Debug)]
pub struct QuantizeOptions {
    /// The type or mixture.
    pub recipe: Recipe,
    /// Weights of the elements' errors.
    pub importance: Option<Importance>,
    /// Types of the tensors whose names match a pattern, in which `*` stands for any text; the first match counts.
    /// Vectors take plain types alone.
    pub keep: Vec<(String, DType)>,
    /// Worker threads; at least 1.
    pub threads: usize,
}

impl QuantizeOptions {
    /// A recipe, without importance and exceptions, on all processors.
    pub fn new(recipe: Recipe) -> QuantizeOptions {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        QuantizeOptions { recipe, importance: None, keep: Vec::new(), threads }
    }
}

/// What [`quantize`] wrote.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// Bytes of all tensors in the source.
    pub from: u64,
    /// Bytes of all tensors in the result.
    pub to: u64,
    /// With an importance matrix: the quantized tensors that it has no entry for, in the file's order. Those of the
    /// vocabulary ([`UNMEASURED`]) are left out.
    pub unweighted: Vec<String>,
}

/// Tensors that programs which write importance matrices do not measure.
pub const UNMEASURED: [&str; 3] = ["token_embd.weight", "per_layer_token_embd.weight", "output.weight"];

/// The files of a model to quantize.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A GGUF file.
    Gguf(&'a GgufFile),
    /// A folder of safetensors.
    Folder(&'a Folder),
}

impl<'a> From<&'a GgufFile> for Source<'a> {
    fn from(file: &'a GgufFile) -> Source<'a> {
        Source::Gguf(file)
    }
}

impl<'a> From<&'a ModelFiles> for Source<'a> {
    fn from(files: &'a ModelFiles) -> Source<'a> {
        match files {
            ModelFiles::Gguf(file) => Source::Gguf(file),
            ModelFiles::Folder(folder) => Source::Folder(folder),
        }
    }
}

/// Writes a model to `out`, a GGUF file, with the tensors' types chosen by `options`; quantized tensors of a folder are
/// dequantized first. A tensor that the importance matrix has no entry for is quantized without. Calls `progress` with
/// the bytes that are done, and their total; it may end the work. Until all is written the result has another name, and
/// after an error nothing is left.
///
/// # Errors
/// When a tensor's type cannot be read or an element is not finite, an exception fits no tensor or not its tensor's
/// rows, an entry of the importance matrix has another length than its tensor's rows, `out` cannot be written, GGUF
/// files cannot express the folder's model, or `progress` ends the work.
pub fn quantize<'a>(
    model: impl Into<Source<'a>>,
    out: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Quantized> {
    let model = model.into();
    match model {
        Source::Gguf(file) if file.contains(out) => {
            Err(bad(file.path(), "is also the file to write; give another name".into()))
        }
        Source::Folder(folder) if folder.contains(out) => {
            Err(bad(out, "is a file of the folder that is read; give another name".into()))
        }
        Source::Gguf(file) => quantize_file(file, out, options, progress),
        Source::Folder(folder) => folder::quantize(folder, out, options, progress),
    }
}

impl QuantizeOptions {
    /// Checks that each exception is for one of these tensors, of which each has a name and a shape.
    fn check_names<'a>(&self, path: &Path, tensors: &[(&'a str, &'a [usize])]) -> Result<()> {
        for (pattern, format) in &self.keep {
            let mut matched = tensors.iter().filter(|(name, _)| matches(pattern, name)).peekable();
            if matched.peek().is_none() {
                let reason = format!("no tensor's name matches {pattern}; `hologram inspect` lists the names");
                return Err(bad(path, reason));
            }
            if !matched.any(|(_, shape)| can_be(shape, *format)) {
                let reason = format!("{pattern} matches only vectors, which cannot be {format}: give F32, F16 or BF16");
                return Err(bad(path, reason));
            }
        }
        Ok(())
    }

    /// Checks the lengths of the importance matrix's entries, and gives the names of the quantized tensors that have
    /// none.
    fn unweighted<'t>(&self, quantized: impl Iterator<Item = &'t NewTensor>) -> Result<Vec<String>> {
        let Some(importance) = &self.importance else { return Ok(Vec::new()) };
        let mut missing = Vec::new();
        for NewTensor { name, shape, ty } in quantized {
            let row_len = shape.last().copied().unwrap_or(1);
            let found = importance.of(name, shape.iter().rev().skip(1).product(), row_len)?;
            let in_blocks = ty.format.is_some_and(|format| format.block_len() > 1);
            if in_blocks && found.is_none() && !UNMEASURED.contains(&name.as_str()) {
                missing.push(name.clone());
            }
        }
        Ok(missing)
    }

    /// The type of the first exception for a tensor.
    fn kept(&self, name: &str, shape: &[usize]) -> Option<DType> {
        let mut found = self.keep.iter().filter(|(pattern, _)| matches(pattern, name)).map(|(_, format)| *format);
        found.next().filter(|format| can_be(shape, *format))
    }
}

fn quantize_file(
    file: &GgufFile,
    out: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Quantized> {
    // Adapters and importance matrices say so; models of old say nothing.
    if let Some(kind) = file.get_opt::<&str>("general.type")?.filter(|kind| *kind != "model") {
        return Err(bad(file.path(), format!("is of type {kind}, not a model")));
    }
    let names: Vec<(&str, &[usize])> = file.tensors().map(|tensor| (tensor.name(), tensor.shape())).collect();
    options.check_names(file.path(), &names)?;
    let facts = Facts::of(file, options.importance.is_some());
    let mut tensors = Vec::new();
    for tensor in file.tensors() {
        let chosen = options.kept(tensor.name(), tensor.shape());
        let chosen = chosen.or_else(|| facts.choose(options.recipe, tensor.name(), tensor.shape()));
        // I2_S belongs to other programs; its values are written as F16 where nothing is chosen.
        let chosen = chosen.or_else(|| tensor.ty().is_i2_s().then_some(DType::F16));
        let ty = match chosen {
            Some(format) => {
                TensorType::of(format).ok_or_else(|| bad(file.path(), format!("cannot be written as {format}")))?
            }
            None => tensor.ty(),
        };
        tensors.push(NewTensor { name: tensor.name().into(), shape: tensor.shape().into(), ty });
    }
    let mut metadata: Vec<(&str, Value<'_>)> =
        file.metadata().filter(|(key, _)| !key.starts_with("split.") && !REPLACED.contains(key)).collect();
    let file_type = u64::from(options.recipe.file_type);
    metadata.push((REPLACED[0], Value::Unsigned(ValueType::U32, file_type)));
    metadata.push((REPLACED[1], Value::Unsigned(ValueType::U32, 2)));
    let changed = file.tensors().zip(&tensors).filter(|(old, new)| old.ty() != new.ty);
    let unweighted = options.unweighted(changed.map(|(_, new)| new))?;
    let total = file.tensors().map(|t| t.data().len() as u64).sum();
    let mut output = Output::create(out, metadata.into_iter(), &tensors, total, progress)?;
    output.result.unweighted = unweighted;
    for (tensor, new) in file.tensors().zip(&tensors) {
        let size = tensor.data().len() as u64;
        if new.ty == tensor.ty() {
            output.copy(tensor.data())?;
        } else {
            // Without blocks of rows: such a tensor is read as a whole.
            let whole = if tensor.ty().is_i2_s() { Some(tensor.to_f32()?) } else { None };
            let from = if whole.is_some() { DType::F32 } else { tensor.dtype()? };
            let row_len = tensor.row_len();
            let bytes = from.bytes(1, row_len).unwrap_or(0);
            let read = |row: usize, values: &mut [f32]| -> Result<()> {
                match &whole {
                    Some(all) => values.copy_from_slice(&all[row * row_len..(row + 1) * row_len]),
                    None => from.decode_row(&tensor.data()[row * bytes..(row + 1) * bytes], values)?,
                }
                Ok(())
            };
            output.tensor(file.path(), &Rows { rows: tensor.rows(), row_len, read: &read }, new, options, size)?;
        }
        tensor.release();
    }
    output.finish()
}

/// Keys with values of the result, and the alignment, which is the default.
const REPLACED: [&str; 3] = ["general.file_type", "general.quantization_version", "general.alignment"];

fn bad(path: &Path, reason: String) -> LlmError {
    LlmError::BadFile { path: path.into(), reason }
}

/// The rows of a tensor.
struct Rows<'a> {
    rows: usize,
    row_len: usize,
    /// Reads a row.
    read: &'a (dyn Fn(usize, &mut [f32]) -> Result<()> + Sync),
}

/// The file that is being written.
struct Output<'a> {
    path: &'a Path,
    writer: GgufWriter,
    result: Quantized,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl<'a> Output<'a> {
    fn create<'m>(
        path: &'a Path,
        metadata: impl Iterator<Item = (&'m str, Value<'m>)>,
        tensors: &[NewTensor],
        total: u64,
        progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Output<'a>> {
        let writer = GgufWriter::create(path, metadata, tensors)?;
        let to = tensors.iter().map(|new| new.bytes().unwrap_or(0) as u64).sum();
        Ok(Output { path, writer, result: Quantized { from: 0, to, unweighted: Vec::new() }, total, progress })
    }

    fn at(&mut self, done: u64) -> Result<()> {
        match (self.progress)(done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LlmError::Stopped { path: self.path.into() }),
        }
    }

    /// Writes a tensor as it is.
    fn copy(&mut self, data: &[u8]) -> Result<()> {
        for piece in data.chunks(PIECE) {
            self.writer.write(piece)?;
            self.result.from += piece.len() as u64;
            self.at(self.result.from)?;
        }
        Ok(())
    }

    /// Writes a tensor in its new type. `source`: for messages; `size`: its bytes in the source.
    fn tensor(
        &mut self,
        source: &Path,
        rows: &Rows<'_>,
        new: &NewTensor,
        options: &QuantizeOptions,
        size: u64,
    ) -> Result<()> {
        let Some(to) = new.ty.format else { return Err(bad(source, format!("cannot be written as {}", new.ty.name))) };
        let Rows { rows, row_len, read } = *rows;
        let importance = options.importance.as_ref().map(|all| all.of(&new.name, rows, row_len)).transpose()?.flatten();
        let bytes = to.bytes(1, row_len).unwrap_or(0);
        let per_piece = (PIECE / row_len.max(1)).clamp(1, rows.max(1));
        let convert = |row: usize, values: &mut Vec<f32>, out: &mut [u8]| -> Result<()> {
            values.resize(row_len, 0.0);
            read(row, values)?;
            let importance = importance.as_ref().map(|all| all.row(row, rows));
            to.encode_row(values, importance, out)
                .map_err(|e| bad(source, format!("tensor {}, row {row}: {e}", new.name)))
        };
        for first in (0..rows).step_by(per_piece) {
            let count = per_piece.min(rows - first);
            let mut out = vec![0; count * bytes];
            let each = count.div_ceil(options.threads.max(1)).max(1);
            let (converted, stopped) = (&AtomicUsize::new(0), &AtomicBool::new(false));
            let at = |rows_done: usize| self.result.from + (size as f64 * (rows_done as f64 / rows as f64)) as u64;
            let results: Vec<Result<()>> = thread::scope(|scope| {
                let parts = out.chunks_mut((each * bytes).max(1)).enumerate();
                let (working, ended) = mpsc::channel::<()>();
                let handles: Vec<_> = parts
                    .map(|(part, out)| {
                        let (convert, working) = (&convert, working.clone());
                        scope.spawn(move || {
                            // Dropped at the end.
                            let _working = working;
                            let mut values = Vec::new();
                            for (i, out) in out.chunks_mut(bytes.max(1)).enumerate() {
                                if stopped.load(Ordering::Relaxed) {
                                    break;
                                }
                                convert(first + part * each + i, &mut values, out)?;
                                converted.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(())
                        })
                    })
                    .collect();
                drop(working);
                while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let done = at(first + converted.load(Ordering::Relaxed));
                    if (self.progress)(done, self.total).is_break() {
                        stopped.store(true, Ordering::Relaxed);
                    }
                }
                handles
                    .into_iter()
                    .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            });
            results.into_iter().collect::<Result<()>>()?;
            if stopped.load(Ordering::Relaxed) {
                return Err(LlmError::Stopped { path: self.path.into() });
            }
            let done = at(first + count);
            self.writer.write(&out)?;
            self.at(done)?;
        }
        self.result.from += size;
        self.at(self.result.from)
    }

    /// Gives the file its name.
    fn finish(self) -> Result<Quantized> {
        self.writer.finish()?;
        Ok(self.result)
    }
}

/// Whether a tensor can be written in a type: vectors, such as norms, are small and much depends on them.
fn can_be(shape: &[usize], format: DType) -> bool {
    shape.len() > 1 || format.block_len() == 1
}

/// Whether a name matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, name, want) in [
            ("output.weight", "output.weight", true),
            ("output", "output.weight", false),
            ("*attn_v*", "blk.3.attn_v.weight", true),
            ("blk.*.ffn_down.weight", "blk.11.ffn_down.weight", true),
            ("blk.*.ffn_down.weight", "blk.11.ffn_down.bias", false),
            ("*", "anything", true),
            ("a*a", "a", false),
            ("*b*b", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
    }
}
