//! The modules of a folder of sentence-transformers: what follows the model (`modules.json`).

use std::path::{Path, PathBuf};

use hologram_core::{Executor, Tensor};
use serde_json::{Map, Value};

use super::Pooling;
use crate::error::{LlmError, Result};
use crate::models::head::{Dense, Head};
use crate::models::{Activation, FolderNames};
use crate::safetensors::{Folder, FolderWeights};
use crate::tokenizer::json::{read, read_settings};

/// What follows a model in a folder of sentence-transformers.
pub(super) struct Modules {
    /// How hidden states are pooled.
    pub pooling: Option<Pooling>,
    /// Whether vectors get length 1.
    pub normalize: bool,
    /// The folders of matrices.
    dense: Vec<PathBuf>,
}

impl Modules {
    /// Reads the folder's description; `None` without one.
    ///
    /// # Errors
    /// When it is damaged, or names a module that is not supported.
    pub fn read(folder: &Path) -> Result<Option<Modules>> {
        let path = folder.join("modules.json");
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let bad = |reason: String| LlmError::BadFile { path: path.clone(), reason };
        let list: Vec<Map<String, Value>> =
            serde_json::from_slice(&bytes).map_err(|e| bad(format!("it is not a list of modules ({e})")))?;
        let mut modules = Modules { pooling: None, normalize: false, dense: Vec::new() };
        for module in list {
            let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
            let within = Path::new(text("path"));
            // A name, not a path: nothing outside the folder is opened.
            if !within.as_os_str().is_empty() && within.file_name() != Some(within.as_os_str()) {
                return Err(bad(format!("{:?} is not the name of a folder in this one", text("path"))));
            }
            match text("type").rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Pooling" => modules.pooling = Some(pooling(&folder.join(within))?),
                "Normalize" => modules.normalize = true,
                "Dense" => modules.dense.push(folder.join(within)),
                other => {
                    let what = format!("module {other}");
                    let supported = "Transformer, Pooling, Dense, Normalize".into();
                    return Err(LlmError::Unsupported { path: path.clone(), what, supported });
                }
            }
        }
        Ok(Some(modules))
    }

    /// The matrices `[outputs, inputs]` alone, in their order.
    ///
    /// # Errors
    /// When one is missing or damaged, or there is more than a matrix.
    pub fn matrices(&self, executor: &Executor) -> Result<Vec<Tensor>> {
        let matrix = |folder: &PathBuf| {
            let what = "writing a module with a bias or an activation as a GGUF file".into();
            let more = LlmError::Unsupported { path: folder.clone(), what, supported: String::new() };
            dense(folder, executor)?.matrix().cloned().ok_or(more)
        };
        self.dense.iter().map(matrix).collect()
    }

    /// The matrices on a device.
    ///
    /// # Errors
    /// When one is missing or damaged.
    pub fn load(&self, executor: &Executor) -> Result<Vec<Head>> {
        self.dense.iter().map(|folder| dense(folder, executor)).collect()
    }
}

/// Reads `config.json` of a pooling module.
fn pooling(folder: &Path) -> Result<Pooling> {
    let path = folder.join("config.json");
    let bad = |reason: String| LlmError::BadFile { path: path.clone(), reason };
    let settings = read_settings(&path)?.ok_or_else(|| bad("it is missing".into()))?;
    if let Some(mode) = settings.get("pooling_mode").and_then(Value::as_str) {
        return match mode {
            "mean" => Ok(Pooling::Mean),
            "cls" => Ok(Pooling::Cls),
            "lasttoken" => Ok(Pooling::Last),
            other => Err(unsupported(&path, format!("pooling mode {other}"))),
        };
    }
    let modes: Vec<&str> = settings
        .iter()
        .filter(|(key, on)| key.starts_with("pooling_mode_") && on.as_bool() == Some(true))
        .map(|(key, _)| key.as_str())
        .collect();
    match modes[..] {
        ["pooling_mode_cls_token"] => Ok(Pooling::Cls),
        ["pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
        ["pooling_mode_lasttoken"] => Ok(Pooling::Last),
        [] => Err(bad("it selects no way of pooling".into())),
        _ => Err(unsupported(&path, modes.join(" with "))),
    }
}

fn unsupported(path: &Path, what: String) -> LlmError {
    LlmError::Unsupported { path: path.into(), what, supported: "mean, cls, last token".into() }
}

/// Loads a module with one matrix.
fn dense(path: &Path, executor: &Executor) -> Result<Head> {
    static NAMES: FolderNames = FolderNames::PLAIN;
    let folder = Folder::open(path)?;
    let config = folder.config_json();
    let bad = |reason: String| LlmError::BadFile { path: path.join("config.json"), reason };
    let inputs = config.get("in_features").and_then(Value::as_u64);
    let inputs = inputs.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| bad("it has no in_features".into()))?;
    let name = config.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    let activation = match name.rsplit('.').next().unwrap_or_default() {
        "Identity" => Activation::Identity,
        "Tanh" => Activation::Tanh,
        "GELU" => Activation::Gelu,
        other => {
            let what = format!("activation {other}");
            return Err(LlmError::Unsupported { path: path.into(), what, supported: "Identity, Tanh, GELU".into() });
        }
    };
    let weights = FolderWeights::new(executor, &folder, &NAMES)?;
    let dense = Dense::load(&weights, "linear", inputs, activation)?;
    let missing = LlmError::MissingTensor { path: path.into(), tensor: "linear.weight".into() };
    Ok(Head(vec![dense.ok_or(missing)?]))
}
