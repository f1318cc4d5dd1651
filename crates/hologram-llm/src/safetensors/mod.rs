//! A model folder as written by the transformers library: `config.json`, `tokenizer.json` and weights in safetensors
//! files.
//!
//! The parser is our own: the format is a page long, and errors can name the tensor, the file and a remedy.

mod experts;
mod map;
mod names;
mod packed;
mod quantized;
pub(crate) mod ternary;
mod weights;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{LlmError, Result};
use crate::files::open_regular;
use crate::models::config::{Config, Keys};
use crate::models::config_json::{self, JsonKeys, Ternary};
use crate::models::config_unknown;
pub use map::Dtype;
use map::Entry;
pub(crate) use map::Shard;
pub(crate) use weights::FolderWeights;

/// Maximum size of JSON files accepted.
const MAX_JSON: u64 = 64 << 20;
/// Maximum number of weight files accepted.
const MAX_SHARDS: usize = 4096;

/// An open folder.
pub struct Folder {
    path: PathBuf,
    config_path: PathBuf,
    config: Map<String, Value>,
    shards: Vec<Shard>,
    tensors: Places,
}

/// A tensor of a folder.
#[derive(Clone, Copy, Debug)]
pub struct FolderTensor<'a> {
    /// The name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: &'a str,
    /// The element type.
    pub dtype: &'static Dtype,
    /// The shape, slowest dimension first.
    pub shape: &'a [usize],
    /// Size in bytes.
    pub bytes: usize,
    /// The file that holds it.
    pub file: &'a Path,
}

/// A GGUF file in a folder, the first by name.
fn gguf_file(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|file| file.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))).min()
}

/// The model's name, by its folder's.
fn name_of_folder(path: &Path) -> Option<String> {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let parent = path.parent();
    // A Hugging Face cache names folders by commits: models--OWNER--NAME/snapshots/COMMIT.
    let repository = parent.filter(|p| p.ends_with("snapshots")).and_then(|p| name(p.parent()?));
    let of_cache = repository.as_deref().and_then(|repo| repo.strip_prefix("models--")?.split_once("--"));
    of_cache.map(|(_, model)| model.to_string()).or_else(|| name(path))
}

impl Folder {
    /// Reads `config.json`, maps the weight files and checks their headers: `model.safetensors`, or the files listed in
    /// `model.safetensors.index.json`.
    ///
    /// # Errors
    /// When a file is missing, truncated or contradicts itself or another.
    pub fn open(path: impl AsRef<Path>) -> Result<Folder> {
        let path = path.as_ref();
        let bad = |reason: String| LlmError::BadFile { path: path.into(), reason };
        let config_path = path.join("config.json");
        if !config_path.exists() {
            let reason = "the folder has no config.json, which a safetensors model requires".to_string();
            return Err(bad(match gguf_file(path) {
                Some(file) => format!("{reason}; give the file {} in it instead", file.display()),
                None => reason,
            }));
        }
        let config = object(&config_path)?;
        let (single, index) = (path.join("model.safetensors"), path.join("model.safetensors.index.json"));
        let (shards, tensors) = if index.exists() {
            sharded(path, &index)?
        } else if single.exists() {
            let shard = Shard::open(&single)?;
            let tensors = shard.entries.iter().enumerate().map(|(i, e)| (e.name.clone(), (0, i))).collect();
            (vec![shard], tensors)
        } else {
            let reason = "the folder has neither model.safetensors nor model.safetensors.index.json";
            let others = [("pytorch_model.bin", "PyTorch"), ("weights.npz", "MLX"), ("model.onnx", "ONNX")];
            let other = others.iter().find(|(file, _)| path.join(file).exists());
            return Err(bad(match other {
                Some((file, of)) => format!("{reason}, but {file} of {of}: convert it to safetensors or GGUF"),
                None => reason.into(),
            }));
        };
        Ok(Folder { path: path.into(), config_path, config, shards, tensors })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a path leads to a file in the folder, or to one that a link in it leads to.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        crate::files::leads_to(path, &self.path)
    }

    /// The content of `config.json`.
    pub fn config_json(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The model's hyperparameters.
    ///
    /// # Errors
    /// When the architecture is unknown, a key is missing, or sizes contradict each other.
    pub fn config(&self) -> Result<Config> {
        let own = self.config.get("_name_or_path").and_then(Value::as_str).filter(|s| !s.is_empty());
        // Relative paths such as "." or "model/" lack a useful name.
        let full = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let name = own.map(String::from).or_else(|| name_of_folder(&full)).unwrap_or_else(|| "unnamed".into());
        let settings = self.settings();
        let config = Config::from_json(&self.config_path, name, &settings)?;
        let keys = JsonKeys { path: &self.config_path, prefix: "", object: &settings };
        let tensors: Vec<FolderTensor<'_>> = self.tensors().collect();
        config_unknown::reject_tensors(&keys, &config, &tensors)?;
        Ok(config)
    }

    /// `config.json`, or its part for text with the keys of the whole.
    fn settings(&self) -> Cow<'_, Map<String, Value>> {
        config_json::text_part(&self.config).map_or(Cow::Borrowed(&self.config), Cow::Owned)
    }

    /// All tensors, by file and in the order of their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = FolderTensor<'_>> {
        let of = |(s, shard): (usize, &'_ Shard)| (s, shard.entries.len());
        let places = self.shards.iter().enumerate().map(of).flat_map(|(s, n)| (0..n).map(move |e| (s, e)));
        places.map(|(s, e)| (&self.shards[s], &self.shards[s].entries[e])).map(|(shard, e)| FolderTensor {
            name: &e.name,
            dtype: e.dtype,
            shape: &e.shape,
            bytes: e.range.len(),
            file: &shard.path,
        })
    }

    /// The mapped files with weights.
    pub(crate) fn maps(&self) -> Vec<&[u8]> {
        self.shards.iter().map(|shard| &**shard.map as &[u8]).collect()
    }

    /// End-of-text tokens: those of `generation_config.json`, else of `config.json`.
    ///
    /// # Errors
    /// When a file is damaged or an id is not a token.
    pub fn end_tokens(&self) -> Result<Vec<u32>> {
        const KEY: &str = "eos_token_id";
        let path = self.path.join("generation_config.json");
        let object = if path.exists() { object(&path)? } else { Map::new() };
        let of_generation = JsonKeys { path: &path, prefix: "", object: &object };
        let config = JsonKeys { path: &self.config_path, prefix: "", object: &self.config };
        let (mut keys, mut ids) = (&of_generation, of_generation.ids(KEY)?);
        if ids.is_empty() {
            (keys, ids) = (&config, config.ids(KEY)?);
        }
        // A missing size is reported elsewhere.
        if let Some(size) = config.unsigned("vocab_size")?
            && let Some(id) = ids.iter().find(|id| u64::from(**id) >= size)
        {
            return Err(keys.bad(KEY, format!("is {id}, but must be below {size}, the size of the vocabulary")));
        }
        Ok(ids)
    }

    /// Tells the system that the files will not be read soon, so their memory can be reused.
    pub(crate) fn release(&self) {
        self.shards.iter().for_each(|shard| shard.map.release(0..shard.map.len()));
    }

    fn ternary(&self) -> Result<Option<Ternary>> {
        config_json::ternary(&self.config_path, &self.config)
    }

    fn find(&self, name: &str) -> Option<(usize, &Entry)> {
        let (shard, entry) = *self.tensors.get(name)?;
        Some((shard, &self.shards[shard].entries[entry]))
    }
}

/// Per tensor its file and its index among that file's entries.
type Places = HashMap<String, (usize, usize)>;

/// Opens the files of an index. Returns them and the place of each tensor.
fn sharded(folder: &Path, index: &Path) -> Result<(Vec<Shard>, Places)> {
    let bad = |reason: String| LlmError::BadFile { path: index.into(), reason };
    let object = object(index)?;
    let Some(Value::Object(map)) = object.get("weight_map") else { return Err(bad("it has no weight_map".into())) };
    let mut shards: Vec<Shard> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut entries: Vec<HashMap<&str, usize>> = Vec::new();
    let mut wanted = Vec::with_capacity(map.len());
    for (name, file) in map {
        let file = file.as_str().ok_or_else(|| bad(format!("the file of tensor {name} is not a string")))?;
        // A name, not a path: nothing outside the folder is opened.
        if Path::new(file).file_name() != Some(file.as_ref()) {
            return Err(bad(format!("{file:?} is not the name of a file in the folder")));
        }
        let shard = match places.get(file) {
            Some(shard) => *shard,
            None => {
                let path = folder.join(file);
                if !path.exists() {
                    return Err(bad(format!("it lists {file}, which is not in the folder")));
                }
                if shards.len() == MAX_SHARDS {
                    return Err(bad(format!("it lists more than {MAX_SHARDS} files")));
                }
                shards.push(Shard::open(&path)?);
                places.insert(file, shards.len() - 1);
                shards.len() - 1
            }
        };
        wanted.push((name, shard));
    }
    for shard in &shards {
        entries.push(shard.entries.iter().enumerate().map(|(i, e)| (&*e.name, i)).collect());
    }
    let mut tensors = HashMap::with_capacity(wanted.len());
    for (name, shard) in wanted {
        let Some(entry) = entries[shard].get(&**name) else {
            let file = shards[shard].path.file_name().unwrap_or_default().to_string_lossy();
            return Err(bad(format!("it lists tensor {name} in {file}, which does not contain it")));
        };
        tensors.insert(name.clone(), (shard, *entry));
    }
    drop(entries);
    Ok((shards, tensors))
}

/// Reads a JSON file that holds an object.
pub(crate) fn object(path: &Path) -> Result<Map<String, Value>> {
    let io = |reason| LlmError::Io { path: path.into(), reason };
    let bad = |reason: String| LlmError::BadFile { path: path.into(), reason };
    let mut text = Vec::new();
    open_regular(path)?.take(MAX_JSON + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > MAX_JSON {
        return Err(bad(format!("it is larger than {} MiB", MAX_JSON >> 20)));
    }
    match serde_json::from_slice(&text).or_else(|e| serde_json::from_slice(&finite(&text)).map_err(|_| e)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("it is not a JSON object".into())),
        Err(e) => Err(bad(format!("it is not valid JSON ({e})"))),
    }
}

/// A text with null in place of the numbers `Infinity` and `NaN`, which Python writes although JSON has none.
fn finite(text: &[u8]) -> Vec<u8> {
    let (mut out, mut at, mut in_string) = (Vec::with_capacity(text.len()), 0, false);
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        if !in_string
            && let Some(word) = [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter().find(|w| rest.starts_with(w))
        {
            out.extend_from_slice(b"null");
            at += word.len();
            continue;
        }
        let len = if in_string && *byte == b'\\' { 2.min(rest.len()) } else { 1 };
        in_string ^= *byte == b'"';
        out.extend_from_slice(&rest[..len]);
        at += len;
    }
    out
}
