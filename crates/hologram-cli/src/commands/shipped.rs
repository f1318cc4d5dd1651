//! The built-in model, which is part of the binary.

use std::path::Path;

use anyhow::bail;
use hologram_core::Executor;
use hologram_llm::gguf::{FileBytes, GgufFile};
use hologram_llm::{Model, ModelFiles};

use super::words::is_repository;
use crate::args::usage;
use crate::progress::Progress;

/// Aligns the embedded file like a mapped one.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../../assets/rust-docs-bitnet.gguf"));

/// The name shown instead of a path.
const NAME: &str = "rust-docs-bitnet (shipped)";

/// Loads a model, with a progress bar on a terminal.
///
/// # Errors
/// When the files are damaged or of an unknown kind, or the device lacks the memory.
pub fn load(files: ModelFiles, executor: &Executor) -> anyhow::Result<Model> {
    let mut progress = Progress::new("loading", "MB");
    Ok(Model::from_files_with(files, executor, &mut |done, of| progress.at(done / 1_000_000, of / 1_000_000))?)
}

/// A model's files: the given ones, or the built-in model.
///
/// # Errors
/// When a file cannot be read.
pub fn open(path: Option<&Path>) -> anyhow::Result<ModelFiles> {
    Ok(match path {
        Some(path) if path == Path::new("-") => {
            return usage("a model must be a .gguf file or a folder; it cannot be read from standard input");
        }
        Some(path) if !path.exists() && path.to_str().is_some_and(is_repository) => {
            let name = path.to_str().unwrap_or_default();
            let name = name.strip_prefix("hf:").unwrap_or(name);
            bail!(
                "there is no file or folder {name}, and models are not downloaded: get a .gguf file of it, for example from \
                 https://huggingface.co/{name}/tree/main, and give its path"
            );
        }
        Some(path) => ModelFiles::open(path)?,
        None => GgufFile::from_bytes(NAME, FileBytes::Static(&MODEL.0))?.into(),
    })
}
