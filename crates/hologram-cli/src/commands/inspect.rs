//! `hologram inspect`: the content of a model file.

use std::io::Write;

use hologram_llm::gguf::{GgufFile, TensorType, Value, ValueType};
use hologram_llm::safetensors::{Folder, FolderTensor};
use hologram_llm::{Config, ModelFiles};
use serde_json::{Map, json};

use super::shipped;
use crate::args::InspectArgs;
use crate::text::{MESSAGE, NAME, counted, printable, size};

/// Elements of an array to show.
const SHOWN: usize = 6;

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or standard output fails.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let files = shipped::open(args.model.given())?;
    let not_run = files.config().ok().and_then(|config| files.not_run(&config));
    match &files {
        ModelFiles::Gguf(file) => gguf(args, file, not_run),
        ModelFiles::Folder(folder) => self::folder(args, folder, not_run),
    }
}

fn gguf(args: &InspectArgs, file: &GgufFile, not_run: Option<String>) -> anyhow::Result<()> {
    let weights: u64 = file.tensors().map(|t| t.data().len() as u64).sum();
    let parameters: u64 = file.tensors().map(|t| t.elements() as u64).sum();
    // Models of unsupported architectures can still be inspected.
    let config = Config::from_gguf(file);
    let mut out = std::io::stdout().lock();
    if args.json {
        return Ok(writeln!(out, "{}", as_json(file, weights, parameters, (config.ok().as_ref(), not_run)))?);
    }
    writeln!(out, "{}: GGUF version {}, aligned to {} bytes", file.path().display(), file.version(), file.alignment())?;
    for part in file.parts().iter().skip(1) {
        writeln!(out, "  and {}", part.path().display())?;
    }
    writeln!(out, "\nmetadata")?;
    for (key, value) in file.metadata() {
        writeln!(out, "  {key} = {}", show(&value))?;
    }
    writeln!(out, "\ntensors")?;
    table(&mut out, file.tensors().map(|t| (t.name(), t.ty().name, t.shape())))?;
    writeln!(out, "\ntypes")?;
    for (ty, tensors, bytes) in types(file) {
        // Mark unsupported types.
        let note = if ty.is_supported() { "" } else { ", cannot be run" };
        writeln!(out, "  {:<8} {} ({}){note}", ty.name, counted(tensors, "tensor"), size(bytes as u64))?;
    }
    memory(&mut out, weights, parameters, (config, not_run))
}

fn folder(args: &InspectArgs, folder: &Folder, not_run: Option<String>) -> anyhow::Result<()> {
    let weights: u64 = folder.tensors().map(|t| t.bytes as u64).sum();
    // Packed ternary weights are four per byte.
    let count =
        |t: &FolderTensor<'_>| t.shape.iter().product::<usize>() as u64 * if t.dtype.name == "U8" { 4 } else { 1 };
    let parameters: u64 = folder.tensors().map(|t| count(&t)).sum();
    let config = folder.config();
    let mut out = std::io::stdout().lock();
    if args.json {
        let tensors: Vec<serde_json::Value> = folder
            .tensors()
            .map(|t| {
                let file = t.file.file_name().unwrap_or_default().to_string_lossy();
                json!({ "name": t.name, "type": t.dtype.name, "shape": t.shape, "bytes": t.bytes, "file": file })
            })
            .collect();
        let all = json!({
            "file": folder.path().display().to_string(),
            "metadata": folder.config_json(),
            "tensors": tensors,
            "parameters": parameters,
            "weight_bytes": weights,
            "kv_bytes_per_position": config.as_ref().ok().map(|c| c.kv_bytes_per_position(4)),
            "state_bytes": config.as_ref().ok().map(|c| c.state_bytes()),
            "not_run": not_run,
        });
        return Ok(writeln!(out, "{all}")?);
    }
    writeln!(out, "{}: safetensors", folder.path().display())?;
    writeln!(out, "\nconfig.json")?;
    for (key, value) in folder.config_json() {
        writeln!(out, "  {} = {}", printable(key, NAME), printable(&value.to_string(), MESSAGE))?;
    }
    writeln!(out, "\ntensors")?;
    table(&mut out, folder.tensors().map(|t| (t.name, t.dtype.name, t.shape)))?;
    memory(&mut out, weights, parameters, (config, not_run))
}

/// Prints names, types and shapes in columns.
fn table<'a>(
    out: &mut impl Write,
    tensors: impl Iterator<Item = (&'a str, &'a str, &'a [usize])>,
) -> anyhow::Result<()> {
    let lines: Vec<(String, &str, &[usize])> = tensors.map(|(n, ty, shape)| (printable(n, NAME), ty, shape)).collect();
    let names = lines.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let types = lines.iter().map(|(_, ty, _)| ty.len()).max().unwrap_or(0);
    for (name, ty, shape) in lines {
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        writeln!(out, "  {name:<names$}  {ty:<types$}  [{}]", shape.join(", "))?;
    }
    Ok(())
}

fn memory(
    out: &mut impl Write,
    weights: u64,
    parameters: u64,
    (config, not_run): (hologram_llm::Result<Config>, Option<String>),
) -> anyhow::Result<()> {
    writeln!(out, "\nmemory")?;
    writeln!(out, "  weights: {} ({:.1} million parameters)", size(weights), parameters as f64 / 1e6)?;
    match config {
        Ok(c) => {
            let context = c.context.min(4096);
            let bytes = c.kv_bytes_per_position(4);
            let total = size((bytes * context) as u64);
            writeln!(out, "  KV cache: {bytes} bytes per position in f32, {total} for {context} positions")?;
            if c.state_bytes() > 0 {
                let recurrent = c.recurs.iter().filter(|recurs| **recurs).count();
                let (layers, size) = (counted(c.layers, "layer"), size(c.state_bytes() as u64));
                writeln!(out, "  state: {recurrent} of {layers} are recurrent, {size} for a sequence of any length")?;
            }
            if c.latent.is_some() {
                writeln!(out, "  attention to latent vectors: a position has one for all heads")?;
            }
            if c.bidirectional {
                writeln!(out, "  tokens see all of their text: for embed and rerank, not for run and chat")?;
            }
            let windows: Vec<u32> = c.windows.iter().copied().flatten().collect();
            if let Some(window) = windows.first() {
                let layers = counted(c.layers, "layer");
                writeln!(out, "  windows: {} of {layers} see {window} positions", windows.len())?;
            }
            if c.sharing > 0 {
                writeln!(
                    out,
                    "  shared keys and values: the last {} have those of others",
                    counted(c.sharing, "layer")
                )?;
            }
            if c.layer_input > 0 {
                writeln!(out, "  embeddings of layers: {} numbers of each token in each layer", c.layer_input)?;
            }
            if let Some(e) = &c.experts {
                let shared = if e.shared.is_some() { ", and one that all use" } else { "" };
                writeln!(out, "  experts: {} of {} for each token, {} wide{shared}", e.used, e.count, e.ffn)?;
            }
            if c.branches > 1 {
                writeln!(out, "  branches: {} vectors of each token between layers", c.branches)?;
            }
            if let Some(not_run) = not_run {
                writeln!(out, "  {}", printable(&not_run, MESSAGE))?;
            }
        }
        Err(e) => writeln!(out, "  cannot be run: {}", printable(&e.to_string(), MESSAGE))?,
    }
    Ok(())
}

/// The types in a file, with the number of tensors and their bytes, largest first.
fn types(file: &GgufFile) -> Vec<(&'static TensorType, usize, usize)> {
    let mut types: Vec<(&'static TensorType, usize, usize)> = Vec::new();
    for t in file.tensors() {
        match types.iter_mut().find(|(ty, ..)| ty.id == t.ty().id) {
            Some((_, tensors, bytes)) => (*tensors, *bytes) = (*tensors + 1, *bytes + t.data().len()),
            None => types.push((t.ty(), 1, t.data().len())),
        }
    }
    types.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    types
}

fn as_json(
    file: &GgufFile,
    weights: u64,
    parameters: u64,
    (config, not_run): (Option<&Config>, Option<String>),
) -> serde_json::Value {
    let metadata: Map<String, serde_json::Value> =
        file.metadata().map(|(key, value)| (key.to_string(), value_json(&value))).collect();
    let tensors: Vec<serde_json::Value> = file
        .tensors()
        .map(|t| json!({ "name": t.name(), "type": t.ty().name, "shape": t.shape(), "bytes": t.data().len() }))
        .collect();
    json!({
        "file": file.path().display().to_string(),
        "version": file.version(),
        "alignment": file.alignment(),
        "parts": file.parts().iter().map(|p| p.path().display().to_string()).collect::<Vec<_>>(),
        "types": types(file).iter().map(|(ty, tensors, bytes)| {
            json!({ "type": ty.name, "tensors": tensors, "bytes": bytes, "supported": ty.is_supported() })
        }).collect::<Vec<_>>(),
        "metadata": metadata,
        "tensors": tensors,
        "parameters": parameters,
        "weight_bytes": weights,
        "kv_bytes_per_position": config.map(|c| c.kv_bytes_per_position(4)),
        "state_bytes": config.map(|c| c.state_bytes()),
        "not_run": not_run,
    })
}

/// A value as one line of text; long arrays and strings are shortened.
fn show(value: &Value<'_>) -> String {
    let list = |shown: Vec<String>, len: usize| {
        let more = if len > shown.len() { format!(", … ({len} in all)") } else { String::new() };
        format!("[{}{more}]", shown.join(", "))
    };
    match value {
        Value::String(s) => {
            let cut: String = s.chars().take(200).collect();
            let more = if cut.len() < s.len() { "…" } else { "" };
            format!("{cut:?}{more}")
        }
        Value::Strings(s) => {
            let shown = s.iter().take(SHOWN).map(|t| format!("{:?}", String::from_utf8_lossy(t))).collect();
            list(shown, s.len())
        }
        Value::Numbers(n) => list(n.iter().take(SHOWN).map(|v| show(&v)).collect(), n.len()),
        other => other.to_string(),
    }
}

fn value_json(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Unsigned(_, v) => json!(v),
        Value::Signed(_, v) => json!(v),
        Value::Float(ValueType::F32, v) => json!(*v as f32),
        Value::Float(_, v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(s) => json!(s),
        Value::Strings(s) => s.iter().map(|t| json!(String::from_utf8_lossy(t))).collect(),
        Value::Numbers(n) => n.iter().map(|v| value_json(&v)).collect(),
    }
}
