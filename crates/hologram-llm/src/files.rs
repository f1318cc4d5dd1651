//! A model's files: a GGUF file or a folder of safetensors.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hologram_backends::DType;

use crate::chat::ChatTemplate;
use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;
use crate::models::config::Config;
use crate::not_run::part;
use crate::placement::Bytes;
use crate::safetensors::Folder;
use crate::tokenizer::Tokenizer;

/// The open files of a model.
pub enum ModelFiles {
    /// A GGUF file.
    Gguf(GgufFile),
    /// A folder with `config.json`, `tokenizer.json` and weights in safetensors files.
    Folder(Folder),
}

/// Whether a path leads to `source` or, if that is a folder, to a file in it; through links too. Both exist then.
pub fn leads_to(path: &Path, source: &Path) -> bool {
    let Ok(path) = std::fs::canonicalize(path) else { return false };
    let is = |source: &Path| std::fs::canonicalize(source).is_ok_and(|source| source == path);
    let mut files = std::fs::read_dir(source).into_iter().flatten().flatten();
    is(source) || files.any(|file| is(&file.path()))
}

/// The file that a path leads to at the end of links. It need not exist.
///
/// # Errors
/// When links lead in a circle, or a folder cannot be read.
pub fn without_links(path: &Path) -> std::io::Result<PathBuf> {
    match (std::fs::canonicalize(path), std::fs::read_link(path)) {
        (Err(e), Ok(target)) if e.kind() == ErrorKind::NotFound => {
            without_links(&path.parent().unwrap_or(Path::new("")).join(target))
        }
        (Err(e), _) if e.kind() == ErrorKind::NotFound => Ok(path.into()),
        (found, _) => found,
    }
}

impl ModelFiles {
    /// Whether a path leads to one of the model's files: to a part of a GGUF file, or to any file in the folder.
    pub fn contain(&self, path: &Path) -> bool {
        match self {
            ModelFiles::Gguf(file) => file.contains(path),
            ModelFiles::Folder(folder) => folder.contains(path),
        }
    }

    /// Opens a folder as safetensors, anything else as GGUF.
    ///
    /// # Errors
    /// When a file is missing, damaged or of another kind.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFiles> {
        let path = path.as_ref();
        if path.is_dir() {
            return Ok(ModelFiles::Folder(Folder::open(path)?));
        }
        if path.extension().is_some_and(|end| end == "safetensors")
            || path.file_name().is_some_and(|n| n == "config.json")
        {
            let reason = "to load a safetensors model, give the folder that contains its files".into();
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

    /// The model's hyperparameters.
    ///
    /// # Errors
    /// When the architecture is unknown, a key is missing, or sizes contradict each other.
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

    /// The chat template. If there is none, ChatML's, provided that the vocabulary has its tokens.
    ///
    /// # Errors
    /// When there is neither, or the template's syntax is wrong.
    pub fn chat_template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        match self {
            ModelFiles::Gguf(file) => ChatTemplate::from_gguf(file, tokenizer),
            ModelFiles::Folder(folder) => ChatTemplate::from_folder(folder.path(), tokenizer),
        }
    }

    /// The architecture's name in the file, supported or not: `general.architecture`, or `model_type` of `config.json`.
    pub fn architecture(&self) -> Option<String> {
        match self {
            ModelFiles::Gguf(file) => file.architecture().ok().map(String::from),
            ModelFiles::Folder(folder) => Some(folder.config_json().get("model_type")?.as_str()?.to_string()),
        }
    }

    /// Checks without reading weights that the model can be run: its architecture, tensor types and tokenizer.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check(&self) -> Result<()> {
        self.config()?;
        if let ModelFiles::Gguf(file) = self {
            file.tensors().try_for_each(|tensor| tensor.dtype().map(|_| ()))?;
        }
        self.tokenizer().map(|_| ())
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        match self {
            ModelFiles::Gguf(file) => file.tensors().map(|t| t.data().len() as u64).sum(),
            ModelFiles::Folder(folder) => folder.tensors().map(|t| t.bytes as u64).sum(),
        }
    }

    /// Bytes of all tensors on a device with this layout of weights.
    pub(crate) fn loaded_bytes(&self, config: &Config, layout: impl Fn(DType) -> DType) -> Bytes {
        let mut bytes = Bytes::default();
        let mut add = |name: &str, is_of_experts: bool, n: u64| {
            if part(name).is_none() {
                *(if is_of_experts { &mut bytes.experts } else { &mut bytes.rest }) += n;
            }
        };
        match self {
            ModelFiles::Gguf(file) => {
                file.tensors().for_each(|t| add(t.name(), t.name().contains("_exps."), t.loaded_bytes(&layout) as u64));
            }
            ModelFiles::Folder(folder) => {
                let names = config.architecture.folder.tensors.iter().filter(|(ours, _)| ours.ends_with("_exps"));
                // Up to the number of the expert.
                let starts: Vec<String> =
                    names.filter_map(|(_, theirs)| Some(format!(".{}", theirs.split(['*', '$']).next()?))).collect();
                let is_of_experts = |name: &str| starts.iter().any(|start| name.contains(start));
                folder.tensors().for_each(|t| add(t.name, is_of_experts(t.name), t.bytes as u64));
            }
        }
        bytes
    }

    /// Whether loading shrinks weights by rounding and repacking, so that their memory is known only as each matrix is
    /// allocated.
    pub(crate) fn shrink(&self) -> bool {
        matches!(self, ModelFiles::Folder(folder) if folder.config_json().contains_key("quantization_config"))
    }

    /// The mapped files with weights.
    pub(crate) fn maps(&self) -> Vec<&[u8]> {
        match self {
            ModelFiles::Gguf(file) => file.parts().iter().map(|part| part.bytes()).collect(),
            ModelFiles::Folder(folder) => folder.maps(),
        }
    }

    /// The end-of-text and end-of-turn tokens of the metadata.
    ///
    /// # Errors
    /// When the metadata are damaged.
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

/// Opens a regular file. Anything else is never opened: a pipe would block, and opening a device may have side effects.
///
/// # Errors
/// When the file cannot be opened or is not a regular file.
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
