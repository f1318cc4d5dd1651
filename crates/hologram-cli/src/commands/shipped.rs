//! The built-in model, which is part of the binary.

use std::path::Path;

use hologram_core::Executor;
use hologram_llm::gguf::{FileBytes, GgufFile};
use hologram_llm::{Model, ModelFiles};

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
        Some(path) => ModelFiles::open(path)?,
        None => GgufFile::from_bytes(NAME, FileBytes::Static(&MODEL.0))?.into(),
    })
}
