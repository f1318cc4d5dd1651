//! A model's files: one in GGUF, or a folder of safetensors.

use std::fs::File;
use std::path::Path;

use crate::chat::ChatTemplate;
use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;
use crate::models::config::Config;
use crate::safetensors::Folder;
use crate::tokenizer::Tokenizer;

/// The open files of a model.
pub enum ModelFiles {
    /// A GGUF file.
    Gguf(GgufFile),
    /// A folder with `config.json`, `tokenizer.json` and weights in safetensors files.
    Folder(Folder),
}

impl ModelFiles {
    /// Opens a folder as such, anything else as a GGUF file.
    ///
    /// # Errors
    /// What is missing, damaged or of another kind.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFiles> {
        let path = path.as_ref();
        if path.is_dir() {
            return Ok(ModelFiles::Folder(Folder::open(path)?));
        }
        if path.extension().is_some_and(|end| end == "safetensors")
            || path.file_name().is_some_and(|n| n == "config.json")
        {
            let reason = "a model of safetensors files is given as the folder that holds them".into();
            return Err(LlmError::BadFile { path: path.into(), reason });
        }
        Ok(ModelFiles::Gguf(GgufFile::open(path)?))
    }

    /// The file or the folder.
    pub fn path(&self) -> &Path {
        match self {
            ModelFiles::Gguf(file) => file.path(),
            ModelFiles::Folder(folder) => folder.path(),
        }
    }

    /// The sizes of the model.
    ///
    /// # Errors
    /// An unknown architecture, a missing key, or sizes that contradict each other.
    pub fn config(&self) -> Result<Config> {
        match self {
            ModelFiles::Gguf(file) => Config::from_gguf(file),
            ModelFiles::Folder(folder) => folder.config(),
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// When there is none, it is damaged or of an unknown kind.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self {
            ModelFiles::Gguf(file) => Tokenizer::from_gguf(file),
            ModelFiles::Folder(folder) => Tokenizer::from_folder(folder.path()),
        }
    }

    /// The chat template; where there is none, ChatML if the vocabulary has its tokens.
    ///
    /// # Errors
    /// When there is none, or its syntax is wrong.
    pub fn chat_template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        match self {
            ModelFiles::Gguf(file) => ChatTemplate::from_gguf(file, tokenizer),
            ModelFiles::Folder(folder) => ChatTemplate::from_folder(folder.path(), tokenizer),
        }
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        match self {
            ModelFiles::Gguf(file) => file.tensors().map(|t| t.data().len() as u64).sum(),
            ModelFiles::Folder(folder) => folder.tensors().map(|t| t.bytes as u64).sum(),
        }
    }

    /// Bytes of all tensors on a device that reads blocks as they are in files.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        match self {
            ModelFiles::Gguf(file) => file.tensors().map(|t| t.loaded_bytes() as u64).sum(),
            // What is rounded or packed anew takes less than it does in the files: then the device is asked matrix by matrix.
            ModelFiles::Folder(folder) if folder.config_json().contains_key("quantization_config") => 0,
            ModelFiles::Folder(_) => self.tensor_bytes(),
        }
    }

    /// The tokens that end a text or a turn, as the metadata have them.
    ///
    /// # Errors
    /// Metadata that are damaged.
    pub fn end_tokens(&self) -> Result<Vec<u32>> {
        match self {
            ModelFiles::Folder(folder) => folder.end_tokens(),
            ModelFiles::Gguf(file) => {
                let mut ids = Vec::new();
                for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
                    ids.extend(file.get_opt::<u32>(&format!("tokenizer.ggml.{key}"))?);
                }
                ids.sort_unstable();
                ids.dedup();
                Ok(ids)
            }
        }
    }
}

/// Opens a regular file. What is none is not opened at all: a pipe would wait for its writer, a device may do anything.
///
/// # Errors
/// When it cannot be opened or is no regular file.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let io = |reason| LlmError::Io { path: path.into(), reason };
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(LlmError::BadFile { path: path.into(), reason: "it is not a regular file".into() });
    }
    File::open(path).map_err(io)
}

impl From<GgufFile> for ModelFiles {
    fn from(file: GgufFile) -> ModelFiles {
        ModelFiles::Gguf(file)
    }
}

impl From<Folder> for ModelFiles {
    fn from(folder: Folder) -> ModelFiles {
        ModelFiles::Folder(folder)
    }
}
