//! The model that ships with the program, as part of its binary.

use std::path::Path;

use hologram_core::Executor;
use hologram_llm::gguf::{FileBytes, GgufFile};
use hologram_llm::{Model, ModelFiles};

use crate::args::usage;
use crate::progress::Progress;

/// Aligns the embedded file as a mapped one would be.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../../assets/rust-docs-bitnet.gguf"));

/// The name shown in place of a path.
const NAME: &str = "rust-docs-bitnet (shipped)";

/// Loads a model; a terminal shows how far it is.
///
/// # Errors
/// When the files are damaged or of an unknown kind, or the device has not enough memory.
pub fn load(files: ModelFiles, executor: &Executor) -> anyhow::Result<Model> {
    let mut progress = Progress::new("loading", "MB");
    Ok(Model::from_files_with(files, executor, &mut |done, of| progress.at(done / 1_000_000, of / 1_000_000))?)
}

/// A model's files: the given ones, or the shipped model.
///
/// # Errors
/// When a file cannot be read.
pub fn open(path: Option<&Path>) -> anyhow::Result<ModelFiles> {
    Ok(match path {
        Some(path) if path == Path::new("-") => {
            return usage("a model is a .gguf file or a folder, and not read from standard input");
        }
        Some(path) => ModelFiles::open(path)?,
        None => GgufFile::from_bytes(NAME, FileBytes::Static(&MODEL.0))?.into(),
    })
}
