//! LoRA adapters: low-rank matrices whose product is added to a weight (Hu et al., 2021, arXiv:2106.09685), from
//! folders as the PEFT library writes them and from GGUF files of llama.cpp's `convert_lora_to_gguf.py`.
//!
//! They stay beside the weights, which may be quantized or mapped: `y = W·x + scale · B·(A·x)`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hologram_backends::DType;
use hologram_core::ops::RopeStyle;
use hologram_core::{Executor, Tensor};
use serde_json::{Map, Value};

use crate::checksum::Checksum;
use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;
use crate::models::config::Config;
use crate::models::rope::source_row;
use crate::safetensors::{Shard, object};

/// Where names of tensors begin in models of text, with a language model of several inputs, and without a head.
const BASES: [&str; 2] = ["model.language_model.", ""];

/// An open adapter.
pub struct Adapter {
    path: PathBuf,
    source: Source,
    /// By the name of the weight, as the adapter's kind of file calls it.
    pairs: BTreeMap<String, Pair>,
    scale: f32,
}

enum Source {
    Gguf(GgufFile),
    Peft(Shard),
}

/// The two matrices of a weight.
struct Pair {
    /// The tensors' names: `[rank, inputs]` and `[outputs, rank]`.
    names: [String; 2],
    rank: usize,
    inputs: usize,
    outputs: usize,
    /// Multiplied with the product.
    factor: f32,
}

/// A part of a linear layer beside its weight: `b · (a · x)`.
#[derive(Debug)]
pub(crate) struct LowRank {
    /// `[rank, inputs]`.
    pub a: Tensor,
    /// `[outputs, rank]`.
    pub b: Tensor,
}

impl Adapter {
    /// Opens a PEFT folder (`adapter_config.json` and `adapter_model.safetensors`) or a GGUF file. `scale` multiplies
    /// its effect; 1 is that of its training.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the adapter is not a LoRA adapter of linear layers.
    pub fn open(path: impl AsRef<Path>, scale: f32) -> Result<Adapter> {
        let path = path.as_ref();
        if !scale.is_finite() {
            return Err(bad(path, format!("the adapter's scale is {scale}, but must be a number")));
        }
        if path.is_dir() { peft(path, scale) } else { gguf(path, scale) }
    }

    /// The file or the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds what tells it from other adapters.
    pub(crate) fn add_to(&self, sum: Checksum) -> Checksum {
        let file: Vec<&[u8]> = match &self.source {
            Source::Gguf(file) => file.parts().iter().map(|part| part.bytes()).collect(),
            Source::Peft(shard) => vec![&shard.map],
        };
        let sum = file.into_iter().fold(sum, Checksum::add_sample);
        let factors = self.pairs.values().map(|pair| pair.factor).chain([self.scale]);
        factors.fold(sum, |sum, factor| sum.add(&factor.to_le_bytes()))
    }

    fn values(&self, name: &str) -> Result<Vec<f32>> {
        let values = match &self.source {
            Source::Gguf(file) => file.tensor(name)?.to_f32()?,
            Source::Peft(shard) => shard.values(name)?,
        };
        match values.iter().find(|v| !v.is_finite()) {
            None => Ok(values),
            Some(value) => Err(bad(&self.path, format!("tensor {name} has the element {value}"))),
        }
    }

    /// Which elements of a head rotary embedding pairs in the model that the adapter was made for.
    fn rope(&self, config: &Config) -> RopeStyle {
        match self.source {
            Source::Gguf(_) => config.architecture.rope,
            Source::Peft(_) => config.architecture.folder.rope,
        }
    }
}

fn bad(path: &Path, reason: String) -> LlmError {
    LlmError::BadFile { path: path.into(), reason }
}

/// A tensor's name and shape.
type Shaped<'a> = (&'a str, [usize; 2]);

/// The pairs among tensors of these names and shapes. `split` gives a name's weight, and whether it is B.
fn pairs<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
    split: impl Fn(&str) -> Option<(String, bool)>,
    factor: impl Fn(&str, usize) -> f32,
) -> Result<BTreeMap<String, Pair>> {
    let mut found: BTreeMap<String, [Option<Shaped<'_>>; 2]> = BTreeMap::new();
    for (name, shape) in tensors {
        let Some((weight, is_b)) = split(name) else {
            let reason =
                format!("tensor {name} is not a low-rank matrix of a linear layer, which is all that is supported");
            return Err(bad(path, reason));
        };
        let &[rows, row_len] = shape else {
            let reason = format!("tensor {name} has shape {shape:?}; only adapters of plain matrices are supported");
            return Err(bad(path, reason));
        };
        let place = &mut found.entry(weight).or_default()[usize::from(is_b)];
        if let Some((other, _)) = place.replace((name, [rows, row_len])) {
            return Err(bad(path, format!("{other} and {name} are the same matrix")));
        }
    }
    if found.is_empty() {
        return Err(bad(path, "it has no low-rank matrices: it is not a LoRA adapter".into()));
    }
    let pair = |(weight, pair): (String, [Option<Shaped<'_>>; 2])| {
        let [Some((a, [rank, inputs])), Some((b, [outputs, of_b]))] = pair else {
            return Err(bad(path, format!("it has only one of the two matrices of {weight}")));
        };
        if rank == 0 || rank != of_b {
            return Err(bad(path, format!("the ranks of {a} and {b} are {rank} and {of_b}, but must be equal")));
        }
        let factor = factor(&weight, rank);
        if !factor.is_finite() {
            return Err(bad(path, format!("the factor of {weight} is {factor}")));
        }
        Ok((weight, Pair { names: [a.into(), b.into()], rank, inputs, outputs, factor }))
    };
    found.into_iter().map(pair).collect()
}

fn gguf(path: &Path, scale: f32) -> Result<Adapter> {
    let file = GgufFile::open(path)?;
    let kind = |key: &str| file.get_opt::<&str>(key);
    if kind("general.type")?.unwrap_or("model") != "adapter" || kind("adapter.type")?.unwrap_or("lora") != "lora" {
        return Err(bad(path, "it is not a LoRA adapter; give a model by -m".into()));
    }
    let alpha: f32 = file.get("adapter.lora.alpha")?;
    let split = |name: &str| {
        let a = name.strip_suffix(".lora_a").map(|weight| (weight.to_string(), false));
        a.or_else(|| name.strip_suffix(".lora_b").map(|weight| (weight.to_string(), true)))
    };
    // llama.cpp takes an alpha of 0 as none.
    let factor = |_: &str, rank: usize| if alpha == 0.0 { scale } else { scale * alpha / rank as f32 };
    let pairs = pairs(path, file.tensors().map(|t| (t.name(), t.shape())), split, factor)?;
    Ok(Adapter { path: path.into(), source: Source::Gguf(file), pairs, scale })
}

/// Settings of `adapter_config.json` that change what the matrices mean; only these values are supported.
const PLAIN: [(&str, &[&str]); 15] = [
    ("use_dora", &["false", "null"]),
    ("bias", &["\"none\"", "null"]),
    ("modules_to_save", &["null", "[]"]),
    ("use_qalora", &["false", "null"]),
    ("use_bdlora", &["false", "null"]),
    ("use_rslora", &["true", "false", "null"]),
    ("lora_bias", &["false", "null"]),
    ("alora_invocation_tokens", &["null", "[]"]),
    ("arrow_config", &["null"]),
    ("corda_config", &["null"]),
    ("layer_replication", &["null", "[]"]),
    ("target_parameters", &["null", "[]"]),
    ("trainable_token_indices", &["null", "[]"]),
    ("peft_type", &["\"LORA\""]),
    // Others change the model's weights, too.
    ("init_lora_weights", &["true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""]),
];

fn peft(path: &Path, scale: f32) -> Result<Adapter> {
    let of_config = path.join("adapter_config.json");
    if !of_config.exists() {
        return Err(bad(path, "the folder has no adapter_config.json: it is not an adapter".into()));
    }
    let config = object(&of_config)?;
    for (key, allowed) in PLAIN {
        if let Some(value) = config.get(key).filter(|value| !allowed.contains(&value.to_string().as_str())) {
            return Err(LlmError::Unsupported {
                path: of_config,
                what: format!("{key} of {value}"),
                supported: String::new(),
            });
        }
    }
    let weights = path.join("adapter_model.safetensors");
    if !weights.exists() {
        return Err(bad(path, "the folder has no adapter_model.safetensors".into()));
    }
    let shard = Shard::open(&weights)?;
    let alphas = Alphas::of(&of_config, &config)?;
    let split = |name: &str| {
        let (module, end) = name.strip_prefix("base_model.model.").unwrap_or(name).rsplit_once(".lora_")?;
        let is_b = match end {
            "A.weight" | "A.default.weight" => false,
            "B.weight" | "B.default.weight" => true,
            _ => return None,
        };
        Some((format!("{module}.weight"), is_b))
    };
    let factor = |weight: &str, rank: usize| scale * alphas.factor(weight.trim_end_matches(".weight"), rank);
    // With patterns of ranks each matrix has its own.
    let rank =
        config.get("r").filter(|_| config.get("rank_pattern").and_then(Value::as_object).is_none_or(Map::is_empty));
    let tensors = shard.entries.iter().map(|e| (e.name.as_str(), &e.shape[..]));
    let pairs = pairs(path, tensors, split, factor)?;
    if let (Some(rank), Some((weight, pair))) =
        (rank, pairs.iter().find(|(_, pair)| rank.is_some_and(|rank| rank.as_u64() != Some(pair.rank as u64))))
    {
        let reason = format!("is {rank}, but the matrices of {weight} have rank {}", pair.rank);
        return Err(LlmError::BadKey { path: of_config, key: "r".into(), reason });
    }
    Ok(Adapter { path: path.into(), source: Source::Peft(shard), pairs, scale })
}

/// The factors of a PEFT adapter.
struct Alphas<'a> {
    alpha: f64,
    /// By module: a whole name, or its end after a dot.
    patterns: Vec<(&'a str, f64)>,
    /// Divided by the root of the rank instead of the rank (Kalajdzievski, 2023, arXiv:2312.03732).
    by_root: bool,
}

impl Alphas<'_> {
    fn of<'a>(path: &Path, config: &'a Map<String, Value>) -> Result<Alphas<'a>> {
        let wrong =
            |key: &str, reason: &str| LlmError::BadKey { path: path.into(), key: key.into(), reason: reason.into() };
        let alpha = config.get("lora_alpha").map(|v| v.as_f64().ok_or_else(|| wrong("lora_alpha", "is not a number")));
        let mut patterns = Vec::new();
        for (pattern, value) in config.get("alpha_pattern").and_then(Value::as_object).into_iter().flatten() {
            if !pattern.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')) {
                return Err(wrong(
                    "alpha_pattern",
                    "has a regular expression, but only names of modules are supported",
                ));
            }
            let value = value.as_f64().ok_or_else(|| wrong("alpha_pattern", "has a value that is not a number"))?;
            patterns.push((pattern.as_str(), value));
        }
        let by_root = config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        // PEFT's default.
        Ok(Alphas { alpha: alpha.transpose()?.unwrap_or(8.0), patterns, by_root })
    }

    fn factor(&self, module: &str, rank: usize) -> f32 {
        let is =
            |pattern: &str| module.strip_suffix(pattern).is_some_and(|start| start.is_empty() || start.ends_with('.'));
        let alpha = self.patterns.iter().find(|(pattern, _)| is(pattern)).map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = rank as f64;
        (alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}

/// The adapters of a model that is being loaded.
pub(crate) struct Adapters<'a> {
    list: &'a [Adapter],
    config: &'a Config,
    /// The pairs used so far, by adapter.
    used: RefCell<HashSet<(usize, &'a str)>>,
}

impl<'a> Adapters<'a> {
    /// # Errors
    /// When an adapter is for another architecture, or for another kind of file whose weights are in another order.
    pub fn new(list: &'a [Adapter], config: &'a Config, from_folder: bool) -> Result<Adapters<'a>> {
        let architecture = config.architecture;
        for adapter in list {
            let of_folder = matches!(adapter.source, Source::Peft(_));
            if let Source::Gguf(file) = &adapter.source {
                let name = file.architecture()?;
                if !architecture.names.contains(&name) {
                    let own = architecture.names.first().unwrap_or(&"another architecture");
                    let reason =
                        format!("the adapter is for models of the architecture {name}, but {} is {own}", config.name);
                    return Err(bad(&adapter.path, reason));
                }
            }
            if of_folder != from_folder && (architecture.latent || architecture.state.is_some()) {
                let (kind, other) =
                    if of_folder { ("a PEFT folder", "a GGUF file") } else { ("a GGUF file", "a folder") };
                return Err(LlmError::Unsupported {
                    path: adapter.path.clone(),
                    what: format!(
                        "{kind} as the adapter of {other} of this architecture, which orders weights otherwise,"
                    ),
                    supported: String::new(),
                });
            }
        }
        Ok(Adapters { list, config, used: RefCell::default() })
    }

    /// The pair of a weight in an adapter, by the weight's name in GGUF files.
    fn pair(&self, adapter: &'a Adapter, ours: &str) -> Option<(&'a str, &'a Pair)> {
        let found = |name: &str| adapter.pairs.get_key_value(name).map(|(name, pair)| (name.as_str(), pair));
        match adapter.source {
            Source::Gguf(_) => found(ours),
            Source::Peft(_) => {
                let names = &self.config.architecture.folder;
                let bases = std::iter::once(names.base).chain(BASES);
                bases.map(|base| names.tensor(base, ours)).find_map(|name| found(&name))
            }
        }
    }

    /// What adapters add to some rows of a weight of `total` rows, named as in GGUF files.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn of(
        &self,
        executor: &Executor,
        ours: &str,
        total: usize,
        rows: Range<usize>,
        row_len: usize,
    ) -> Result<Vec<LowRank>> {
        let mut parts = Vec::new();
        for (i, adapter) in self.list.iter().enumerate() {
            let Some((name, pair)) = self.pair(adapter, ours) else { continue };
            if [pair.outputs, pair.inputs] != [total, row_len] {
                let (of_adapter, of_model) = ([pair.outputs, pair.inputs], [total, row_len]);
                let reason = format!(
                    "the adapter is for another model: its {name} has shape {of_adapter:?}, but that of {} has {of_model:?}",
                    self.config.name
                );
                return Err(bad(&adapter.path, reason));
            }
            self.used.borrow_mut().insert((i, name));
            if adapter.scale == 0.0 {
                continue;
            }
            let (a, mut b) = (adapter.values(&pair.names[0])?, adapter.values(&pair.names[1])?);
            b.iter_mut().for_each(|v| *v *= pair.factor);
            if adapter.rope(self.config) != self.config.rope
                && let Some(".attn_q" | ".attn_k") = ours.strip_suffix(".weight").and_then(|n| n.get(n.rfind('.')?..))
            {
                b = reordered(&b, pair.rank, self.config.head_dim, self.config.rope);
            }
            let b = &b[rows.start * pair.rank..rows.end * pair.rank];
            let layout = executor.backend().policy().weight_layout(DType::F32);
            let upload = |values: &[f32], shape: [usize; 2]| {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                Tensor::from_bytes_as(executor, DType::F32, layout, &shape, &bytes)
            };
            parts.push(LowRank { a: upload(&a, [pair.rank, row_len])?, b: upload(b, [rows.len(), pair.rank])? });
        }
        Ok(parts)
    }

    /// Called after loading.
    ///
    /// # Errors
    /// When an adapter changes weights that the model does not have.
    pub fn finish(&self) -> Result<()> {
        let used = self.used.borrow();
        for (i, adapter) in self.list.iter().enumerate() {
            if let Some(name) = adapter.pairs.keys().find(|name| !used.contains(&(i, name.as_str()))) {
                let reason = format!(
                    "the adapter changes {name}, which is not a linear layer of {}: it is for another model, or its kind of layer is not supported",
                    self.config.name
                );
                return Err(bad(&adapter.path, reason));
            }
        }
        Ok(())
    }
}

/// Rows (of `len` elements) of all heads in the order of the pairs of rotary embedding.
fn reordered(values: &[f32], len: usize, head_dim: usize, to: RopeStyle) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (row, out) in out.chunks_mut(len.max(1)).enumerate() {
        out.copy_from_slice(&values[source_row(row, head_dim, to) * len..][..len]);
    }
    out
}
