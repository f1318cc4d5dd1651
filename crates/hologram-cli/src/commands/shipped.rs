//! The built-in model, which is part of the binary.

use std::path::{Path, PathBuf};

use hologram_core::Executor;
use hologram_hub::Request;
use hologram_llm::gguf::{FileBytes, GgufFile};
use hologram_llm::{LlmError, LoadOptions, Model, ModelFiles};

use super::models;
use super::words::{is_name_elsewhere, is_repository};
use crate::args::{LoraArgs, SpeculationArgs, usage};
use crate::progress::Progress;
use crate::status::status;

/// Aligns the embedded file like a mapped one.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/rust-docs-bitnet.gguf"));

/// The name shown instead of a path.
const NAME: &str = "rust-docs-bitnet (shipped)";

/// Loads a model with adapters, with a progress bar on a terminal, and says where its experts are.
///
/// # Errors
/// When the files are damaged or of an unknown kind, an adapter does not fit, or the device lacks the memory.
pub fn load(
    files: ModelFiles,
    lora: &LoraArgs,
    options: LoadOptions<'_>,
    executor: &Executor,
) -> anyhow::Result<Model> {
    let model = load_quietly(files, lora, options, executor)?;
    note_experts(&model);
    Ok(model)
}

/// As [`load`], but says nothing.
///
/// # Errors
/// As [`load`].
pub fn load_quietly(
    files: ModelFiles,
    lora: &LoraArgs,
    options: LoadOptions<'_>,
    executor: &Executor,
) -> anyhow::Result<Model> {
    let adapters = lora.open()?;
    let options = LoadOptions { adapters: &adapters, ..options };
    let mut progress = Progress::new("loading", "MB");
    let mut at = |done, of| progress.at(done / 1_000_000, of / 1_000_000);
    Model::load_with(files, executor, &options, &mut at).map_err(as_option)
}

/// An error of an option as the command line names it.
pub fn as_option(error: LlmError) -> anyhow::Error {
    match error {
        error @ LlmError::Option { .. } => crate::args::UsageError(format!("--{error}")).into(),
        error => error.into(),
    }
}

/// Says where the experts are, if they are not on the model's device.
pub fn note_experts(model: &Model) {
    if let Some(note) = model.experts_elsewhere() {
        status!("note: {note}\n");
    }
}

/// The draft model, if one is given.
///
/// # Errors
/// As [`open`] and [`load`].
pub fn draft(args: &SpeculationArgs, executor: &Executor) -> anyhow::Result<Option<Model>> {
    args.draft
        .as_deref()
        .map(|path| load(open(Some(path))?, &LoraArgs::default(), LoadOptions::default(), executor))
        .transpose()
}

/// A model's files: the given ones, or the built-in model.
///
/// # Errors
/// When a file cannot be read, or a download fails.
pub fn open(model: Option<&Path>) -> anyhow::Result<ModelFiles> {
    Ok(match model {
        Some(model) => {
            let name = model.to_str().unwrap_or_default();
            ModelFiles::open(path(model)?).map_err(|e| if Request::looks_like(name) { e } else { as_prompt(e) })?
        }
        None => GgufFile::from_bytes(NAME, FileBytes::Static(&MODEL.0))?.into(),
    })
}

/// What to do with a text of one's own that was given as a model.
fn as_prompt(error: LlmError) -> LlmError {
    match error {
        LlmError::Malformed { path, reason } if reason.ends_with("it is a text, not a model") => {
            LlmError::Malformed { path, reason: reason + "; `hologram run -f FILE` takes it as the prompt" }
        }
        error => error,
    }
}

/// Where a model lies: a path as it is; a name on Hugging Face is looked for in the cache, and downloaded into it.
///
/// # Errors
/// When it is neither, or a download fails.
pub fn path(model: &Path) -> anyhow::Result<PathBuf> {
    match model.to_str() {
        Some("-") => usage("a model must be a .gguf file or a folder; it cannot be read from standard input"),
        Some("") => usage("the model's name is empty: give a .gguf file, a folder of safetensors, or hf:OWNER/NAME"),
        Some(name) if Request::looks_like(name) => models::path_of(name),
        Some(name) if !model.exists() && (is_repository(name) || name.contains("://")) => models::hint(name),
        Some(name) if !model.exists() && is_name_elsewhere(name) => usage(format!(
            "there is no file or folder {name}; `hologram models` lists the models that are here, hf:OWNER/NAME takes \
             one from Hugging Face, and `-p {name}` makes it a prompt"
        )),
        _ => Ok(model.into()),
    }
}
