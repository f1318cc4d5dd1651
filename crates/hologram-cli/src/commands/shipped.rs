//! The model that ships with the program, as part of its binary.

use std::path::Path;

use hologram_llm::ModelFiles;
use hologram_llm::gguf::{FileBytes, GgufFile};

/// Aligns the embedded file as a mapped one would be.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../../assets/rust-docs-bitnet.gguf"));

/// The name shown in place of a path.
const NAME: &str = "rust-docs-bitnet (shipped)";

/// A model's files: the given ones, or the shipped model.
///
/// # Errors
/// When a file cannot be read.
pub fn open(path: Option<&Path>) -> anyhow::Result<ModelFiles> {
    Ok(match path {
        Some(path) => ModelFiles::open(path)?,
        None => GgufFile::from_bytes(NAME, FileBytes::Static(&MODEL.0))?.into(),
    })
}
