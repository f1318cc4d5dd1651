//! The weights of a folder, under their GGUF names.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;

use half::{bf16, f16};
use hologram_backends::{Buffer, DType, ForeignMemory};
use hologram_core::{Executor, Tensor};
use hologram_isa::Type;
use serde_json::{Map, Value};

use super::map::Entry;
use super::{Folder, ternary};
use crate::error::{LlmError, Result};
use crate::models::config_json::Ternary;
use crate::models::{ExpertFiles, FolderNames};
use crate::not_run::part;
use crate::weights::{Weights, alike, is_of_layers, may_be_unused};

/// Tensors in the device's layouts: used in place if the device shares host memory and the layout matches, else
/// converted or uploaded one at a time, after which their pages are released.
pub(crate) struct FolderWeights<'a> {
    pub(super) executor: &'a Executor,
    folder: &'a Folder,
    pub(super) names: &'a FolderNames,
    /// Each file's bytes as device memory, if the device shares host memory.
    shared: Vec<Option<Buffer>>,
    /// `config.json`, or its part for text.
    settings: Cow<'a, Map<String, Value>>,
    ternary: Option<Ternary>,
    /// `tie_word_embeddings`: whether the output matrix is the embedding.
    tied: Option<bool>,
    /// Factors of ternary matrices, by GGUF name.
    scales: RefCell<HashMap<String, f32>>,
    /// The tensors used so far, also by siblings for other devices.
    taken: Rc<RefCell<HashSet<String>>>,
    /// What names of tensors begin with: [`FolderNames::base`], or nothing.
    base: &'static str,
}

impl<'a> FolderWeights<'a> {
    /// Hands the mapped files to a device that shares host memory.
    ///
    /// # Errors
    /// When the device cannot take them, or `config.json` is damaged.
    pub fn new(executor: &'a Executor, folder: &'a Folder, names: &'a FolderNames) -> Result<FolderWeights<'a>> {
        let backend = executor.backend();
        let share = |shard: &super::Shard| -> Result<Option<Buffer>> {
            if !backend.policy().shares_host_memory {
                return Ok(None);
            }
            Ok(Some(backend.wrap(ForeignMemory::from_owner(shard.map.clone()))?))
        };
        let shared = folder.shards.iter().map(share).collect::<Result<Vec<_>>>()?;
        let tied = folder.config.get("tie_word_embeddings").and_then(Value::as_bool);
        let (scales, taken) = (RefCell::default(), Rc::default());
        let embedding = names.others.first().map_or("", |(_, theirs)| theirs);
        // Models of text and images have one more level.
        let base = ["", names.base, "model.", "model.language_model."].into_iter().find(|base| {
            let name = format!("{base}{embedding}");
            folder.find(&name).is_some()
        });
        let base = base.unwrap_or(names.base);
        Ok(FolderWeights {
            executor,
            folder,
            names,
            settings: folder.settings(),
            shared,
            ternary: folder.ternary()?,
            tied,
            scales,
            taken,
            base,
        })
    }

    /// The same folder for another device. Either may take a tensor.
    ///
    /// # Errors
    /// As [`FolderWeights::new`].
    pub fn sibling(&self, executor: &'a Executor) -> Result<FolderWeights<'a>> {
        Ok(FolderWeights { taken: self.taken.clone(), ..FolderWeights::new(executor, self.folder, self.names)? })
    }

    /// A tensor by its name in the folder, with the index of its file.
    pub(super) fn entry(&self, name: &str) -> Result<(usize, &'a Entry)> {
        let found = self.folder.find(name);
        let missing = || LlmError::MissingTensor { path: self.folder.path.clone(), tensor: name.into() };
        let found = found.ok_or_else(missing)?;
        self.taken.borrow_mut().insert(name.into());
        Ok(found)
    }

    pub(crate) fn folder(&self) -> &'a Folder {
        self.folder
    }

    /// Marks a tensor that has no effect on the model's weights as used.
    pub(super) fn ignore(&self, name: &str) {
        self.taken.borrow_mut().insert(name.into());
    }

    /// The name in folders of the tensor that GGUF files call `ours`.
    pub(super) fn name_of(&self, ours: &str) -> String {
        self.names.tensor(self.base, ours)
    }

    pub(super) fn bad(&self, shard: usize, reason: String) -> LlmError {
        LlmError::BadFile { path: self.folder.shards[shard].path.clone(), reason }
    }

    pub(super) fn checked(&self, name: &str, shape: &[usize]) -> Result<(usize, &'a Entry)> {
        let (shard, entry) = self.entry(name)?;
        if entry.shape != shape {
            let reason = format!("tensor {name} has shape {:?}, but config.json requires {shape:?}", entry.shape);
            return Err(self.bad(shard, reason));
        }
        Ok((shard, entry))
    }

    pub(super) fn data(&self, shard: usize, entry: &Entry) -> &'a [u8] {
        // The range was checked when the file was opened.
        self.folder.shards[shard].map.get(entry.range.clone()).unwrap_or_default()
    }

    pub(super) fn format(&self, shard: usize, entry: &Entry) -> Result<DType> {
        self.folder.shards[shard].format(entry)
    }

    pub(super) fn values(&self, shard: usize, entry: &Entry) -> Result<Vec<f32>> {
        self.folder.shards[shard].values_of(entry)
    }

    /// A tensor in the device's layout: in place, or copied.
    fn take(&self, shard: usize, entry: &Entry, layout: DType, shape: &[usize]) -> Result<Tensor> {
        self.take_bytes(shard, entry, entry.range.clone(), layout, shape)
    }

    /// As [`FolderWeights::take`], for the part of the tensor at these bytes of the file.
    fn take_bytes(
        &self,
        shard: usize,
        entry: &Entry,
        bytes: Range<usize>,
        layout: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        let format = self.format(shard, entry)?;
        // Files align tensors to 8 bytes at most: those that a device cannot read in place are copied.
        let alignment = self.executor.backend().policy().alignment;
        let aligned = bytes.start.is_multiple_of(format.block_bytes()) && bytes.start.is_multiple_of(alignment);
        match &self.shared[shard] {
            Some(buffer) if layout == format && aligned => {
                Ok(Tensor::from_buffer(self.executor, buffer.clone(), bytes.start, format, shape)?)
            }
            _ => {
                let map = &self.folder.shards[shard].map;
                let data = map.get(bytes.clone()).unwrap_or_default();
                let taken = Tensor::from_bytes_as(self.executor, format, layout, shape, data)?;
                map.release(bytes);
                Ok(taken)
            }
        }
    }

    /// Whether this matrix is ternary.
    fn is_ternary(&self, name: &str, entry: &Entry) -> bool {
        let Some(ternary) = &self.ternary else { return false };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let kept =
            |k: &String| module == k || module.starts_with(&format!("{k}.")) || module.ends_with(&format!(".{k}"));
        let linear = module.ends_with("_proj") && !ternary.kept.iter().any(kept);
        linear && (ternary.online || entry.dtype.name == "U8" || self.folder.find(&scale_name(name)).is_some())
    }

    /// A ternary matrix as [`DType::TQ2_0`], from packed codes, unrounded weights or codes as numbers.
    fn ternary(&self, ours: &str, name: &str, rows: usize, row_len: usize, conf: &Ternary) -> Result<Tensor> {
        let (shard, entry) = self.entry(name)?;
        let bad = |reason: String| self.bad(shard, format!("tensor {name} {reason}"));
        if !row_len.is_multiple_of(ternary::BLOCK) {
            return Err(bad(format!(
                "has {row_len} elements per row, which is not a multiple of the block size {}",
                ternary::BLOCK
            )));
        }
        let data = self.data(shard, entry);
        let packed = entry.dtype.name == "U8";
        let stored = if packed { rows / 4 } else { rows };
        if entry.shape != [stored, row_len] || (packed && !rows.is_multiple_of(4)) {
            let reason = format!("has shape {:?}, but config.json requires {:?}", entry.shape, [stored, row_len]);
            return Err(bad(reason));
        }
        let format = if packed { None } else { Some(self.format(shard, entry)?) };
        let row_of = |r: usize| {
            let row = row_len * format.map_or(1, DType::block_bytes);
            data.get(r * row..(r + 1) * row).unwrap_or_default()
        };
        let value = |format: DType, bytes: &[u8]| match (format, bytes) {
            (DType::Plain(Type::F16), &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (DType::Plain(Type::BF16), &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => f32::NAN,
        };
        let scale = if conf.online && !packed {
            let format = format.unwrap_or(DType::F32);
            let all = data.chunks_exact(format.block_bytes()).map(|b| value(format, b));
            ternary::mean_magnitude(all, rows * row_len)
        } else {
            self.weight_scale(name, conf)?
        };
        if !scale.is_finite() {
            return Err(bad(format!("has the invalid scale {scale}")));
        }
        let (of_blocks, factor) = ternary::split_scale(scale);
        let blocks = match format {
            None => ternary::pack(rows, row_len, of_blocks, |r, codes| {
                ternary::unpack_row(data, stored, r, codes)
                    .ok_or_else(|| bad(format!("has the invalid code 3 in row {r}")))
            })?,
            Some(format) if conf.online => {
                let inverse = 1.0 / scale;
                ternary::pack(rows, row_len, of_blocks, |r, codes| {
                    for (code, b) in codes.iter_mut().zip(row_of(r).chunks_exact(format.block_bytes())) {
                        *code = ((value(format, b) * inverse).round_ties_even().clamp(-1.0, 1.0) + 1.0) as u8;
                    }
                    Ok::<(), Infallible>(())
                })
                .unwrap_or_default()
            }
            Some(format) => ternary::pack(rows, row_len, of_blocks, |r, codes| {
                for (code, b) in codes.iter_mut().zip(row_of(r).chunks_exact(format.block_bytes())) {
                    *code = match value(format, b) {
                        -1.0 => 0,
                        0.0 => 1,
                        1.0 => 2,
                        other => return Err(bad(format!("has the element {other}, but must have only -1, 0 and 1"))),
                    };
                }
                Ok(())
            })?,
        };
        self.folder.shards[shard].map.release(entry.range.clone());
        if let Some(factor) = factor {
            self.scales.borrow_mut().insert(ours.into(), factor);
        }
        let layout = self.executor.backend().policy().weight_layout(DType::TQ2_0);
        Ok(Tensor::from_bytes_as(self.executor, DType::TQ2_0, layout, &[rows, row_len], &blocks)?)
    }

    /// Rejects two different matrices that `config.json` ties. Some files store the same matrix twice.
    fn same_matrix(&self, a: &str, b: &str) -> Result<()> {
        let ((of_a, x), (of_b, y)) = (self.entry(a)?, self.entry(b)?);
        let same = x.shape == y.shape && x.dtype.name == y.dtype.name && self.data(of_a, x) == self.data(of_b, y);
        self.folder.shards[of_a].map.release(x.range.clone());
        if same {
            return Ok(());
        }
        Err(self.bad(of_a, format!("tie_word_embeddings is true in config.json, but {a} differs from {b}")))
    }

    /// The scale of a ternary matrix. The file may store its inverse.
    fn weight_scale(&self, name: &str, conf: &Ternary) -> Result<f32> {
        let name = scale_name(name);
        let (shard, entry) = self.entry(&name)?;
        let values = self.values(shard, entry)?;
        let [scale] = values[..] else { return Err(self.bad(shard, format!("tensor {name} is not a single number"))) };
        if !scale.is_finite() {
            return Err(self.bad(shard, format!("tensor {name} is {scale}")));
        }
        Ok(if conf.inverse { 1.0 / scale } else { scale })
    }
}

impl Weights for FolderWeights<'_> {
    fn executor(&self) -> &Executor {
        self.executor
    }

    fn is_folder(&self) -> bool {
        true
    }

    fn matrix(&self, ours: &str, rows: usize, row_len: usize) -> Result<Tensor> {
        let name = self.name_of(ours);
        let shape = [rows, row_len];
        if let Some(packed) = self.packed(&name, shape)? {
            self.scales.borrow_mut().extend(packed.factor.map(|factor| (ours.into(), factor)));
            let layout = self.executor.backend().policy().weight_layout(packed.format);
            self.executor.backend().kernels().expect_weights(layout);
            return Ok(Tensor::from_bytes_as(self.executor, packed.format, layout, &shape, &packed.bytes)?);
        }
        let (shard, entry) = self.entry(&name)?;
        if let Some(conf) = &self.ternary
            && self.is_ternary(&name, entry)
        {
            return self.ternary(ours, &name, rows, row_len, conf);
        }
        let layout = self.executor.backend().policy().weight_layout(self.format(shard, entry)?);
        self.checked(&name, &shape)?;
        self.take(shard, entry, layout, &shape)
    }

    fn matrix_rows(&self, ours: &str, total: usize, rows: Range<usize>, row_len: usize) -> Result<Tensor> {
        let name = self.name_of(ours);
        if name.contains('*') {
            // One of several matrices.
            let name = name.replacen('*', &(rows.start / rows.len().max(1)).to_string(), 1);
            let shape = [rows.len(), row_len];
            let (shard, entry) = self.checked(&name, &shape)?;
            let layout = self.executor.backend().policy().weight_layout(self.format(shard, entry)?);
            return self.take(shard, entry, layout, &shape);
        }
        let (shard, entry) = self.checked(&name, &[total, row_len])?;
        let layout = self.executor.backend().policy().weight_layout(self.format(shard, entry)?);
        let row = entry.range.len() / total.max(1);
        let bytes = entry.range.start + rows.start * row..entry.range.start + rows.end * row;
        self.take_bytes(shard, entry, bytes, layout, &[rows.len(), row_len])
    }

    fn expert_matrices(&self, ours: &str, experts: usize, rows: usize, row_len: usize) -> Result<Tensor> {
        if self.names.experts != ExpertFiles::Separate {
            return self.joined_experts(ours, [experts, rows, row_len]);
        }
        let pattern = self.name_of(ours);
        let name = |expert: usize| pattern.replacen('*', &expert.to_string(), 1);
        let (first_shard, first) = self.checked(&name(0), &[rows, row_len])?;
        let format = self.format(first_shard, first)?;
        let mut bytes = Vec::with_capacity(experts * first.range.len());
        for expert in 0..experts {
            let (shard, entry) = self.checked(&name(expert), &[rows, row_len])?;
            if self.format(shard, entry)? != format {
                let reason = format!("tensor {} is of another type than {}", entry.name, first.name);
                return Err(self.bad(shard, reason));
            }
            bytes.extend_from_slice(self.data(shard, entry));
            self.folder.shards[shard].map.release(entry.range.clone());
        }
        let layout = self.executor.backend().policy().weight_layout(format);
        Ok(Tensor::from_bytes_as(self.executor, format, layout, &[experts * rows, row_len], &bytes)?)
    }

    /// Only the output matrix is optional: it may be tied to the embedding.
    fn optional_matrix(&self, ours: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>> {
        let name = self.name_of(ours);
        let there = self.folder.find(&name).is_some();
        match self.tied {
            Some(true) => {
                if there {
                    self.same_matrix(&name, &self.name_of("token_embd.weight"))?;
                }
                Ok(None)
            }
            None if !there => Ok(None),
            _ => self.matrix(ours, rows, row_len).map(Some),
        }
    }

    fn vector(&self, ours: &str, len: usize) -> Result<Tensor> {
        let name = self.name_of(ours);
        // Some vectors are matrices of one row.
        let row = self.folder.find(&name).is_some_and(|(_, entry)| entry.shape == [1, len]);
        let (shard, entry) = if row { self.checked(&name, &[1, len])? } else { self.checked(&name, &[len])? };
        // The norm of heads of recurrences is stored as it is.
        let plain = ours.ends_with(".ssm_norm.weight") || !ours.ends_with("norm.weight");
        let base = if plain { 0.0 } else { self.names.norm_base };
        if self.format(shard, entry)? == DType::F32 && base == 0.0 {
            return self.take(shard, entry, DType::F32, &[len]);
        }
        let values: Vec<f32> = self.values(shard, entry)?.into_iter().map(|v| v + base).collect();
        Ok(Tensor::from_slice(self.executor, &[len], &values)?)
    }

    fn small(&self, ours: &str, [rows, row_len]: [usize; 2]) -> Result<Tensor> {
        let name = self.name_of(ours);
        let found = self.folder.find(&name).map(|(_, entry)| entry.shape.clone());
        let (shard, entry) = self.checked(&name, &alike(found, [rows, row_len]))?;
        Ok(Tensor::from_slice(self.executor, &[rows, row_len], &self.values(shard, entry)?)?)
    }

    fn expert_vectors(&self, ours: &str, experts: usize, len: usize) -> Result<Option<Tensor>> {
        if self.names.experts != ExpertFiles::Interleaved {
            return Ok(None);
        }
        self.joined_biases(ours, [experts, len]).map(Some)
    }

    fn shape(&self, ours: &str) -> Option<Vec<usize>> {
        self.folder.find(&self.name_of(ours)).map(|(_, entry)| entry.shape.clone())
    }

    /// Biases; `config.json` may require or exclude them.
    fn optional_vector(&self, ours: &str, len: usize) -> Result<Option<Tensor>> {
        let name = self.name_of(ours);
        let key = if ours.contains(".ffn_") { "mlp_bias" } else { "attention_bias" };
        let expected = self.settings.get(key).and_then(Value::as_bool);
        let expected = expected.filter(|_| self.names.output_bias || !name.contains(".o_proj."));
        match (expected, self.folder.find(&name)) {
            (Some(false), Some((shard, _))) => {
                Err(self.bad(shard, format!("{key} is false in config.json, but tensor {name} exists")))
            }
            (Some(true), _) | (None, Some(_)) => self.vector(ours, len).map(Some),
            _ => Ok(None),
        }
    }

    fn optional_values(&self, ours: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let name = self.name_of(ours);
        if self.folder.find(&name).is_none() {
            return Ok(None);
        }
        let (shard, entry) = self.checked(&name, &[len])?;
        self.values(shard, entry).map(Some)
    }

    fn scale(&self, ours: &str) -> Result<Option<f32>> {
        Ok(self.scales.borrow().get(ours).copied())
    }

    fn skip(&self, ours: &str) {
        self.ignore(&self.name_of(ours));
    }

    fn finish(&self, ahead: Range<usize>) -> Result<()> {
        let taken = self.taken.borrow();
        let of_layer = format!("{}{}.", self.base, self.names.layers);
        let unused = |name: &str| {
            may_be_unused(name)
                || part(name).is_some()
                || is_of_layers(name, &of_layer, &ahead)
                || self.names.unused.iter().any(|start| name.starts_with(start))
        };
        match self.folder.tensors.keys().filter(|name| !taken.contains(*name) && !unused(name)).min() {
            None => Ok(()),
            Some(name) => {
                let what = format!("tensor {name} in a model of this architecture");
                Err(LlmError::Unsupported { path: self.folder.path.clone(), what, supported: String::new() })
            }
        }
    }
}

/// The name of a ternary matrix's scale.
fn scale_name(weight: &str) -> String {
    format!("{weight}_scale")
}
