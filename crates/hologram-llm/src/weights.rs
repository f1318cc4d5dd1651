//! Sources of weights: a mapped file, used in place or uploaded tensor by tensor.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use hologram_backends::{Buffer, DType, ForeignMemory};
use hologram_core::ops::Recode;
use hologram_core::{Executor, Tensor};

use crate::error::{LlmError, Result};
use crate::gguf::{GgufFile, I2_S_BLOCK_BYTES, i2_s_to_tq2_0};
use crate::models::config::malformed;
use crate::not_run::part;
use crate::safetensors::ternary::split_scale;

/// A source of weights.
pub(crate) trait Weights {
    /// The target device.
    fn executor(&self) -> &Executor;

    /// Whether they have the order of a folder of safetensors, which that of a GGUF file may differ from.
    fn is_folder(&self) -> bool {
        false
    }

    /// A matrix, in the layout that the device's kernels read.
    fn matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Tensor>;

    /// Some rows of a matrix of `total` rows.
    fn matrix_rows(&self, name: &str, total: usize, rows: Range<usize>, row_len: usize) -> Result<Tensor>;

    /// The matrices of `experts` experts, one after another.
    fn expert_matrices(&self, name: &str, experts: usize, rows: usize, row_len: usize) -> Result<Tensor>;

    /// An optional matrix.
    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>>;

    /// A vector in `f32`.
    fn vector(&self, name: &str, len: usize) -> Result<Tensor>;

    /// A small matrix in `f32`. Files may have other dimensions of 1.
    fn small(&self, name: &str, shape: [usize; 2]) -> Result<Tensor>;

    /// Vectors of `experts` experts in `f32`, `[experts, len]`; `None` where they are missing.
    fn expert_vectors(&self, name: &str, experts: usize, len: usize) -> Result<Option<Tensor>>;

    /// A tensor's shape; `None` where it is missing.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// An optional vector in `f32`.
    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>>;

    /// The values of an optional vector.
    fn optional_values(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>>;

    /// The factor of a matrix that its elements do not include, if any.
    fn scale(&self, name: &str) -> Result<Option<f32>>;

    /// Allows a tensor that has no effect.
    fn skip(&self, _name: &str) {}

    /// Called after loading. Rejects unused tensors, which would have no effect, except those of the layers `ahead`,
    /// which predict further tokens.
    fn finish(&self, ahead: Range<usize>) -> Result<()>;
}

/// The name of the table of token embeddings.
const EMBEDDING: &str = "token_embd.weight";

/// Rejects weights that do not fit into the device's memory before anything is uploaded. If the device does not report
/// its free memory, each allocation checks.
///
/// # Errors
/// One sentence with both sizes.
pub(crate) fn check_memory(executor: &Executor, model: &str, needed: u64) -> Result<()> {
    match executor.backend().available_memory() {
        Some(available) if needed > available => {
            let device = executor.info();
            let device = format!("{} ({})", device.backend, device.name);
            Err(LlmError::Memory { model: model.into(), needed, device, available })
        }
        _ => Ok(()),
    }
}

/// Tensors that may stay unused: tables that are recomputed, and activation scales for devices that need them.
pub(crate) fn may_be_unused(name: &str) -> bool {
    [".rotary_emb.inv_freq", ".attn_rot_embd.weight", ".input_scale"].iter().any(|end| name.ends_with(end))
}

/// A tensor's shape if it differs from the wanted one in dimensions of 1 only, else the wanted one.
pub(crate) fn alike(found: Option<Vec<usize>>, wanted: [usize; 2]) -> Vec<usize> {
    let long = |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    found.filter(|found| long(found) == long(&wanted)).unwrap_or(wanted.to_vec())
}

/// Whether a tensor belongs to one of these layers. `start`: what comes before the layer's number.
pub(crate) fn is_of_layers(name: &str, start: &str, layers: &Range<usize>) -> bool {
    let number = name.strip_prefix(start).and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    number.is_some_and(|layer| layers.contains(&layer))
}

/// The weights of a GGUF file in the device's layouts: used in place if the device shares host memory, else uploaded
/// one at a time, so that the device never holds the whole file as well.
pub(crate) struct FileWeights<'a> {
    executor: &'a Executor,
    file: &'a GgufFile,
    /// The files as device memory, if the device shares host memory.
    shared: Option<Vec<Buffer>>,
    /// Factors of `I2_S` matrices.
    factors: RefCell<HashMap<String, f32>>,
    /// The tensors used so far, also by siblings for other devices.
    taken: Rc<RefCell<HashSet<String>>>,
}

impl<'a> FileWeights<'a> {
    /// Hands the mapped file to a device that shares host memory.
    ///
    /// # Errors
    /// When the device cannot take it.
    pub fn new(executor: &'a Executor, file: &'a GgufFile) -> Result<FileWeights<'a>> {
        let backend = executor.backend();
        let shared = if backend.policy().shares_host_memory {
            let wrap = |part: &crate::gguf::Part| backend.wrap(ForeignMemory::from_owner(part.map()));
            Some(file.parts().iter().map(wrap).collect::<std::result::Result<_, _>>()?)
        } else {
            None
        };
        Ok(FileWeights { executor, file, shared, factors: RefCell::default(), taken: Rc::default() })
    }

    /// The same file for another device. Either may take a tensor.
    ///
    /// # Errors
    /// As [`FileWeights::new`].
    pub fn sibling(&self, executor: &'a Executor) -> Result<FileWeights<'a>> {
        Ok(FileWeights { taken: self.taken.clone(), ..FileWeights::new(executor, self.file)? })
    }

    /// A tensor in the file's layout or, for matrices, in the device's.
    fn take(&self, tensor: &crate::gguf::Tensor<'_>, layout: DType, shape: &[usize]) -> Result<Tensor> {
        self.take_bytes(tensor, 0..tensor.data().len(), layout, shape)
    }

    /// As [`FileWeights::take`], for a part of the bytes.
    fn take_bytes(
        &self,
        tensor: &crate::gguf::Tensor<'_>,
        bytes: Range<usize>,
        layout: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        let format = tensor.dtype()?;
        let start = tensor.range().start + bytes.start;
        // A file may align its tensors less than the device needs.
        let aligned = start.is_multiple_of(self.executor.backend().policy().alignment);
        match self.shared.as_ref().and_then(|files| files.get(tensor.part())) {
            Some(buffer) if layout == format && aligned => {
                Ok(Tensor::from_buffer(self.executor, buffer.clone(), start, format, shape)?)
            }
            _ => {
                let data = tensor.data().get(bytes).unwrap_or_default();
                let tensor_on_device = Tensor::from_bytes_as(self.executor, format, layout, shape, data)?;
                tensor.release();
                Ok(tensor_on_device)
            }
        }
    }

    /// A matrix in `I2_S`, as [`DType::TQ2_0`] in the device's layout. A scale that `f16` cannot represent becomes a
    /// separate factor.
    fn i2_s(&self, tensor: &crate::gguf::Tensor<'_>, codes: &[u8], scale: f32, shape: &[usize]) -> Result<Tensor> {
        let (name, block) = (tensor.name(), DType::TQ2_0.block_len());
        let bad = |reason: String| malformed(self.file, format!("tensor {name} of type I2_S {reason}"));
        if !tensor.row_len().is_multiple_of(block) {
            return Err(bad(format!(
                "has {} elements per row, which is not a multiple of the block size {block}",
                tensor.row_len()
            )));
        }
        if !scale.is_finite() {
            return Err(bad(format!("has the invalid scale {scale}")));
        }
        let (of_blocks, factor) = split_scale(scale);
        if let Some(factor) = factor {
            if name == EMBEDDING {
                return Err(bad(format!("is the embedding and has the scale {scale}, which f16 cannot represent")));
            }
            self.factors.borrow_mut().insert(name.into(), factor);
        }
        let layout = self.executor.backend().policy().weight_layout(DType::TQ2_0);
        let recode = |from: &[u8], to: &mut [u8]| i2_s_to_tq2_0(from, of_blocks, to);
        let recode = Recode { block_bytes: I2_S_BLOCK_BYTES, recode: &recode };
        let on_device = Tensor::from_recoded(self.executor, &recode, [DType::TQ2_0, layout], shape, codes);
        tensor.release();
        on_device.map_err(|e| match e {
            hologram_core::CoreError::Tensor(reason) => bad(reason),
            other => other.into(),
        })
    }

    fn checked(&self, name: &str, shape: &[usize]) -> Result<crate::gguf::Tensor<'a>> {
        let tensor = self.file.tensor(name)?;
        self.taken.borrow_mut().insert(name.into());
        if tensor.shape() != shape {
            let reason = format!("tensor {name} has shape {:?}, but the metadata require {shape:?}", tensor.shape());
            return Err(malformed(self.file, reason));
        }
        Ok(tensor)
    }
}

/// The tensor that may hold gate and up of all experts, instead of one named like this, and which half this is.
pub(crate) fn fused_experts(name: &str) -> Option<(String, usize)> {
    let half = |end: &str, half: usize| Some((format!("{}ffn_gate_up_exps.weight", name.strip_suffix(end)?), half));
    half("ffn_gate_exps.weight", 0).or_else(|| half("ffn_up_exps.weight", 1))
}

impl FileWeights<'_> {
    /// The first or the second half of each expert's rows, of `[experts, 2 · rows, row length]`.
    fn half_of_experts(&self, name: &str, half: usize, [experts, rows, row_len]: [usize; 3]) -> Result<Tensor> {
        let tensor = self.checked(name, &[experts, 2 * rows, row_len])?;
        let (format, data) = (tensor.dtype()?, tensor.data());
        let layout = self.executor.backend().policy().weight_layout(format.at_load());
        self.executor.backend().kernels().expect_weights(layout);
        // A row is a whole number of blocks.
        let len = data.len() / (2 * experts).max(1);
        let bytes: Vec<u8> = data.chunks_exact(len.max(1)).skip(half).step_by(2).flatten().copied().collect();
        let half = Tensor::from_bytes_as(self.executor, format, layout, &[experts * rows, row_len], &bytes)?;
        tensor.release();
        Ok(half)
    }
}

impl Weights for FileWeights<'_> {
    fn executor(&self) -> &Executor {
        self.executor
    }

    fn matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Tensor> {
        let shape = [rows, row_len];
        let tensor = self.checked(name, &shape)?;
        if let Some((codes, scale)) = tensor.i2_s() {
            return self.i2_s(&tensor, codes, scale, &shape);
        }
        let layout = self.executor.backend().policy().weight_layout(tensor.dtype()?.at_load());
        self.executor.backend().kernels().expect_weights(layout);
        self.take(&tensor, layout, &shape)
    }

    fn matrix_rows(&self, name: &str, total: usize, rows: Range<usize>, row_len: usize) -> Result<Tensor> {
        // Several matrices may be one tensor.
        let found = self.file.tensor_opt(name).map(|tensor| tensor.shape().to_vec());
        let stacked = found.filter(|s| s.len() == 3 && s[0].saturating_mul(s[1]) == total && s[2] == row_len);
        let tensor = self.checked(name, &stacked.unwrap_or(vec![total, row_len]))?;
        let layout = self.executor.backend().policy().weight_layout(tensor.dtype()?.at_load());
        self.executor.backend().kernels().expect_weights(layout);
        // A row is a whole number of blocks.
        let row = tensor.data().len() / total.max(1);
        self.take_bytes(&tensor, rows.start * row..rows.end * row, layout, &[rows.len(), row_len])
    }

    fn expert_matrices(&self, name: &str, experts: usize, rows: usize, row_len: usize) -> Result<Tensor> {
        if let Some((fused, half)) = fused_experts(name)
            && self.file.tensor_opt(name).is_none()
            && self.file.tensor_opt(&fused).is_some()
        {
            return self.half_of_experts(&fused, half, [experts, rows, row_len]);
        }
        let tensor = self.checked(name, &[experts, rows, row_len])?;
        let layout = self.executor.backend().policy().weight_layout(tensor.dtype()?.at_load());
        self.executor.backend().kernels().expect_weights(layout);
        self.take(&tensor, layout, &[experts * rows, row_len])
    }

    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>> {
        self.file.tensor_opt(name).map(|_| self.matrix(name, rows, row_len)).transpose()
    }

    fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        // Files of Falcon-H1 leave the ending of a norm out.
        let short = name.strip_suffix(".weight").filter(|short| self.file.tensor_opt(short).is_some());
        let tensor = self.checked(short.unwrap_or(name), &[len])?;
        if tensor.dtype()? == DType::F32 {
            return self.take(&tensor, DType::F32, &[len]);
        }
        Ok(Tensor::from_slice(self.executor, &[len], &tensor.to_f32()?)?)
    }

    fn small(&self, name: &str, [rows, row_len]: [usize; 2]) -> Result<Tensor> {
        let found = self.file.tensor_opt(name).map(|t| t.shape().to_vec());
        let tensor = self.checked(name, &alike(found, [rows, row_len]))?;
        Ok(Tensor::from_slice(self.executor, &[rows, row_len], &tensor.to_f32()?)?)
    }

    fn expert_vectors(&self, name: &str, experts: usize, len: usize) -> Result<Option<Tensor>> {
        if self.file.tensor_opt(name).is_none() {
            return Ok(None);
        }
        let values = self.checked(name, &[experts, len])?.to_f32()?;
        Ok(Some(Tensor::from_slice(self.executor, &[experts, len], &values)?))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.file.tensor_opt(name).map(|tensor| tensor.shape().to_vec())
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>> {
        self.file.tensor_opt(name).map(|_| self.vector(name, len)).transpose()
    }

    /// The tensor whose name ends in `scale` instead of `weight`, times the matrix's separate factor.
    fn scale(&self, name: &str) -> Result<Option<f32>> {
        let own = self.factors.borrow().get(name).copied();
        let Some(name) = name.strip_suffix("weight").map(|start| format!("{start}scale")) else { return Ok(own) };
        let Some(tensor) = self.file.tensor_opt(&name) else { return Ok(own) };
        // Others are factors of inputs or of experts.
        if tensor.shape().iter().product::<usize>() != 1 {
            return Ok(own);
        }
        self.taken.borrow_mut().insert(name);
        Ok(tensor.to_f32()?.first().map(|scale| scale * own.unwrap_or(1.0)).or(own))
    }

    fn skip(&self, name: &str) {
        self.taken.borrow_mut().insert(name.into());
    }

    fn finish(&self, ahead: Range<usize>) -> Result<()> {
        let taken = self.taken.borrow();
        let unused = |name: &str| may_be_unused(name) || part(name).is_some() || is_of_layers(name, "blk.", &ahead);
        match self.file.tensors().find(|t| !taken.contains(t.name()) && !unused(t.name())) {
            None => Ok(()),
            Some(t) => {
                let what = format!("tensor {} in a model of this architecture", t.name());
                Err(LlmError::Unsupported { path: self.file.path().into(), what, supported: String::new() })
            }
        }
    }

    fn optional_values(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        match self.file.tensor_opt(name) {
            None => Ok(None),
            Some(_) => Ok(Some(self.checked(name, &[len])?.to_f32()?)),
        }
    }
}
