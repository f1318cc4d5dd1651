//! `hologram quantize`: a model in other types.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use hologram_backends::DType;
use hologram_llm::gguf::TensorType;
use hologram_llm::quantize::{Importance, QuantizeOptions, Recipe, quantize};
use hologram_llm::{LlmError, ModelFiles};

use super::shipped;
use crate::args::{QuantizeArgs, usage};
use crate::output;
use crate::progress::Progress;
use crate::status::{Interrupted, status};
use crate::text::{NAME, counted, printable, shown, size};

/// Signals that end the work.
const ENDING: &[i32] = &[
    signal_hook::consts::SIGINT,
    signal_hook::consts::SIGTERM,
    #[cfg(unix)]
    signal_hook::consts::SIGHUP,
];

/// Runs the command.
///
/// # Errors
/// When the model cannot be read, a tensor cannot be quantized or the result cannot be written.
pub fn run(args: &QuantizeArgs) -> anyhow::Result<()> {
    let (out, ty) = out_and_type(args)?;
    output::check_is_file(out)?;
    let Some(recipe) = Recipe::from_name(ty) else {
        let names = Recipe::ALL.map(|recipe| recipe.name).join(", ");
        let why = match TensorType::from_name(ty).filter(|ty| ty.is_supported()) {
            Some(ty) => format!("{} is read, but not written", ty.name),
            None => format!("unknown type {}", shown(ty)),
        };
        return usage(format!("{why}: choose one of {names}; Q3_K, Q4_K and Q5_K mean their _M mixtures"));
    };
    let mut keep = Vec::new();
    for exception in &args.keep {
        let found = exception.rsplit_once('=').and_then(|(pattern, ty)| Some((pattern, format(ty)?)));
        let Some((pattern, format)) = found else {
            return usage(format!("--keep {exception} is not PATTERN=TYPE with a type such as F16 or Q8_0"));
        };
        if pattern.is_empty() {
            return usage(format!("--keep {exception} has no pattern before the =; * is any text"));
        }
        keep.push((pattern.to_string(), format));
    }
    let file = shipped::open(Some(&args.input))?;
    output::check_not_read(out, None, args.imatrix.as_deref())?;
    let mut options = QuantizeOptions { keep, ..QuantizeOptions::new(recipe) };
    if let Some(threads) = args.threads() {
        options.threads = threads as usize;
    }
    if let Some(path) = &args.imatrix {
        options.importance = Some(Importance::open(path).context("cannot use the importance matrix")?);
    }
    let mut progress = Progress::with_rate("quantizing", "MB");
    // The unfinished file is removed when the signal ends the work.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        signal_hook::flag::register(*signal, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    }
    let done = quantize(&file, out, &options, &mut |done, of| {
        progress.at(done / 1_000_000, of / 1_000_000);
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(progress);
    let done = match done {
        Err(LlmError::Stopped { .. }) => return Err(Interrupted.into()),
        done => done?,
    };
    if let ModelFiles::Folder(folder) = &file
        && !folder.path().join("tokenizer.json").is_file()
    {
        status!("note: the folder has no tokenizer.json, so {} has no tokenizer\n", out.display());
    }
    status!("{}: {}, {} (from {})\n", out.display(), recipe.name, size(done.to), size(done.from));
    if let (Some(first), Some(matrix)) = (done.unweighted.first(), &args.imatrix) {
        let (n, first) = (done.unweighted.len(), printable(first, NAME));
        let (what, whose) = (counted(n, "quantized tensor"), if n == 1 { "its" } else { "their" });
        status!("note: {} has no entry for {what}, {first} first: {whose} columns count alike\n", matrix.display());
    }
    if done.to > done.from {
        status!("note: the result is larger than its source, and no more precise\n");
    }
    Ok(())
}

/// The file to write and the name of its type.
fn out_and_type(args: &QuantizeArgs) -> anyhow::Result<(&Path, &str)> {
    let is_type = |path: &Path| path.to_str().is_some_and(|word| Recipe::from_name(word).is_some()) && !path.exists();
    let model = shown(&args.input.to_string_lossy());
    if is_type(&args.input) {
        return usage("the type stands last: hologram quantize IN.gguf OUT.gguf TYPE");
    }
    match (args.out.as_deref(), args.word.as_deref().or(args.ty.as_deref())) {
        (Some(out), None) if is_type(out) => {
            usage(format!("the file to write is missing: hologram quantize {model} OUT.gguf {}", out.display()))
        }
        (Some(out), Some(ty)) if is_type(out) && args.word.is_some() => {
            usage(format!("the type stands last: hologram quantize {model} {} {}", shown(ty), out.display()))
        }
        (Some(out), Some(ty)) => Ok((out, ty)),
        (None, ty) => {
            let ty = ty.unwrap_or("Q4_K_M");
            usage(format!("the file to write is missing: hologram quantize {model} OUT.gguf {}", shown(ty)))
        }
        (Some(out), None) => {
            let out = shown(&out.to_string_lossy());
            usage(format!("the type is missing: for example hologram quantize {model} {out} Q4_K_M"))
        }
    }
}

/// A type that tensors can be written in, by its name in any case.
fn format(name: &str) -> Option<DType> {
    let plain = [DType::F32, DType::F16, DType::BF16];
    let in_files = |format: &DType| format.row().is_none_or(|row| row.id.is_some());
    let all = plain.into_iter().chain(DType::BLOCKS).filter(|format| format.is_encodable() && in_files(format));
    all.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
}
