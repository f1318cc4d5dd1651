//! Quantizes the tensors of a GGUF file into another one, a piece at a time.

mod importance;
mod recipe;

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;

use hologram_backends::DType;

use crate::error::{LlmError, Result};
use crate::gguf::{GgufFile, GgufWriter, NewTensor, Tensor, TensorType, Value, ValueType};
pub use importance::Importance;
use recipe::Facts;
pub use recipe::Recipe;

/// Elements that are quantized at a time: 64 MiB as `f32`.
const PIECE: usize = 16 << 20;

/// How [`quantize`] chooses types.
#[derive(Debug)]
pub struct QuantizeOptions {
    /// The type or mixture.
    pub recipe: Recipe,
    /// Weights of the elements' errors.
    pub importance: Option<Importance>,
    /// Types of the tensors whose names match a pattern, in which `*` stands for any text; the first match counts.
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
#[derive(Clone, Copy, Debug)]
pub struct Quantized {
    /// Bytes of all tensors in the source.
    pub from: u64,
    /// Bytes of all tensors in the result.
    pub to: u64,
}

/// Writes `file` to `out` with the tensors' types chosen by `options`. Calls `progress` with the bytes of the source
/// that are done, and their total; it may end the work. Until all is written the result has another name, and after an
/// error nothing is left.
///
/// # Errors
/// When a tensor's type cannot be read or an element is not finite, an exception fits no tensor or not its tensor's
/// rows, `out` cannot be written, or `progress` ends the work.
pub fn quantize(
    file: &GgufFile,
    out: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Quantized> {
    let same = |part: &crate::gguf::Part| std::fs::canonicalize(part.path()).ok();
    if std::fs::canonicalize(out).is_ok_and(|out| file.parts().iter().any(|part| same(part).as_deref() == Some(&*out)))
    {
        return Err(bad(file, "is also the file to write; give another name".into()));
    }
    let unused = |(pattern, _): &&(String, DType)| !file.tensors().any(|tensor| matches(pattern, tensor.name()));
    if let Some((pattern, _)) = options.keep.iter().find(unused) {
        return Err(bad(file, format!("no tensor's name matches {pattern}; `hologram inspect` lists the names")));
    }
    let mut at = |done, of| match progress(done, of) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(LlmError::Stopped { path: out.into() }),
    };
    let facts = Facts::of(file, options.importance.is_some());
    let mut tensors = Vec::new();
    for tensor in file.tensors() {
        let kept = options.keep.iter().find(|(pattern, _)| matches(pattern, tensor.name()));
        let chosen = match kept {
            Some((_, format)) => Some(*format),
            None => facts.choose(options.recipe, tensor.name(), tensor.shape()),
        };
        // I2_S belongs to other programs; its values are written as F16 where nothing is chosen.
        let chosen = chosen.or_else(|| tensor.ty().is_i2_s().then_some(DType::F16));
        let ty = match chosen {
            Some(format) => {
                TensorType::of(format).ok_or_else(|| bad(file, format!("cannot be written as {format}")))?
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
    let mut writer = GgufWriter::create(out, metadata.into_iter(), &tensors)?;
    let total = file.tensors().map(|t| t.data().len() as u64).sum();
    let mut result = Quantized { from: 0, to: 0 };
    for (tensor, new) in file.tensors().zip(&tensors) {
        result.to += new.bytes().unwrap_or(0) as u64;
        write_tensor(file, &tensor, new, options, &mut writer, &mut |share| {
            at(result.from + (tensor.data().len() as f64 * share) as u64, total)
        })?;
        tensor.release();
        result.from += tensor.data().len() as u64;
        at(result.from, total)?;
    }
    writer.finish()?;
    Ok(result)
}

/// Keys with values of the result, and the alignment, which is the default.
const REPLACED: [&str; 3] = ["general.file_type", "general.quantization_version", "general.alignment"];

fn bad(file: &GgufFile, reason: String) -> LlmError {
    LlmError::BadFile { path: file.path().into(), reason }
}

fn write_tensor(
    file: &GgufFile,
    tensor: &Tensor<'_>,
    new: &NewTensor,
    options: &QuantizeOptions,
    writer: &mut GgufWriter,
    share: &mut dyn FnMut(f64) -> Result<()>,
) -> Result<()> {
    if new.ty == tensor.ty() {
        return writer.write(tensor.data());
    }
    let Some(to) = new.ty.format else { return Err(bad(file, format!("cannot be written as {}", new.ty.name))) };
    let (rows, row_len) = (tensor.rows(), tensor.row_len());
    let importance = options.importance.as_ref().map(|all| all.of(tensor)).transpose()?.flatten();
    // Without blocks of rows: such a tensor is read as a whole.
    let whole = if tensor.ty().is_i2_s() { Some(tensor.to_f32()?) } else { None };
    let from = if whole.is_some() { DType::F32 } else { tensor.dtype()? };
    let (from_bytes, to_bytes) = (from.bytes(1, row_len).unwrap_or(0), to.bytes(1, row_len).unwrap_or(0));
    let per_piece = (PIECE / row_len.max(1)).clamp(1, rows.max(1));
    let convert = |row: usize, values: &mut Vec<f32>, out: &mut [u8]| -> Result<()> {
        values.resize(row_len, 0.0);
        match &whole {
            Some(all) => values.copy_from_slice(&all[row * row_len..(row + 1) * row_len]),
            None => from.decode_row(&tensor.data()[row * from_bytes..(row + 1) * from_bytes], values)?,
        }
        let importance = importance.as_ref().map(|all| all.row(row, rows));
        to.encode_row(values, importance, out)
            .map_err(|e| bad(file, format!("tensor {}, row {row}: {e}", tensor.name())))
    };
    for first in (0..rows).step_by(per_piece) {
        let count = per_piece.min(rows - first);
        let mut out = vec![0; count * to_bytes];
        let each = count.div_ceil(options.threads.max(1)).max(1);
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let parts = out.chunks_mut((each * to_bytes).max(1)).enumerate();
            let handles: Vec<_> = parts
                .map(|(part, out)| {
                    let convert = &convert;
                    scope.spawn(move || {
                        let mut values = Vec::new();
                        for (i, out) in out.chunks_mut(to_bytes.max(1)).enumerate() {
                            convert(first + part * each + i, &mut values, out)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        results.into_iter().collect::<Result<()>>()?;
        writer.write(&out)?;
        share((first + count) as f64 / rows as f64)?;
    }
    Ok(())
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
