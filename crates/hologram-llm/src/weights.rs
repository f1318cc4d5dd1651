//! Where a model's weights come from: a mapped file, used in place or uploaded tensor by tensor.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use hologram_backends::{Buffer, ForeignMemory, Format};
use hologram_core::ops::Recode;
use hologram_core::{Executor, Tensor};

use crate::error::{LlmError, Result};
use crate::gguf::{GgufFile, I2_S_BLOCK_BYTES, i2_s_to_tq2_0};
use crate::models::config::malformed;
use crate::safetensors::ternary::split_scale;

/// A source of weights.
pub(crate) trait Weights {
    /// The device that they go to.
    fn executor(&self) -> &Executor;

    /// A matrix, in the layout of its format that the device's kernels read.
    fn matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Tensor>;

    /// A matrix that a model may lack.
    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>>;

    /// A vector in `f32`.
    fn vector(&self, name: &str, len: usize) -> Result<Tensor>;

    /// A vector in `f32` that a model may lack.
    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>>;

    /// The values of a vector that a model may lack.
    fn optional_values(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>>;

    /// The factor of a matrix that is not part of its elements, where it has one.
    fn scale(&self, name: &str) -> Result<Option<f32>>;

    /// Called when all is taken: refuses what would have been of no effect.
    fn finish(&self) -> Result<()>;
}

/// The name of the table of token embeddings.
const EMBEDDING: &str = "token_embd.weight";

/// Refuses weights that the device has no room for, before any of it is filled. A device that does not tell is asked piece by piece.
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

/// What may stand in a file without a use: tables that are computed anew, and scales of activations for devices that need them.
pub(crate) fn may_be_unused(name: &str) -> bool {
    [".rotary_emb.inv_freq", ".attn_rot_embd.weight", ".input_scale"].iter().any(|end| name.ends_with(end))
}

/// The weights of a GGUF file, in the layouts that the device's kernels read: used in place where the device shares the host's memory,
/// else uploaded one after the other, so that the file is never on the device as a whole beside them.
pub(crate) struct FileWeights<'a> {
    executor: &'a Executor,
    file: &'a GgufFile,
    /// The whole files as device memory, where the device shares the host's.
    shared: Option<Vec<Buffer>>,
    /// Factors that matrices of `I2_S` have beside their elements.
    factors: RefCell<HashMap<String, f32>>,
    /// The tensors that were taken.
    taken: RefCell<HashSet<String>>,
}

impl<'a> FileWeights<'a> {
    /// Hands the mapped file to a device that shares the host's memory.
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
        Ok(FileWeights { executor, file, shared, factors: RefCell::default(), taken: RefCell::default() })
    }

    /// A tensor of the file as it is, or in the device's layout for matrices.
    fn take(&self, tensor: &crate::gguf::Tensor<'_>, layout: Format, shape: &[usize]) -> Result<Tensor> {
        let format = tensor.format()?;
        match self.shared.as_ref().and_then(|files| files.get(tensor.part())) {
            Some(buffer) if layout == format => {
                Ok(Tensor::from_buffer(self.executor, buffer.clone(), tensor.range().start, format, shape)?)
            }
            _ => {
                let tensor_on_device = Tensor::from_bytes_as(self.executor, format, layout, shape, tensor.data())?;
                tensor.release();
                Ok(tensor_on_device)
            }
        }
    }

    /// A matrix in `I2_S`, as [`Format::TQ2_0`] in the device's layout. A scale that `f16` does not hold becomes a factor of its own.
    fn i2_s(&self, tensor: &crate::gguf::Tensor<'_>, codes: &[u8], scale: f32, shape: &[usize]) -> Result<Tensor> {
        let (name, block) = (tensor.name(), Format::TQ2_0.block_len());
        let bad = |reason: String| malformed(self.file, format!("tensor {name} of type I2_S {reason}"));
        if !tensor.row_len().is_multiple_of(block) {
            return Err(bad(format!("has rows of {} elements, not whole blocks of {block}", tensor.row_len())));
        }
        if !scale.is_finite() {
            return Err(bad(format!("has the scale {scale}")));
        }
        let (of_blocks, factor) = split_scale(scale);
        if let Some(factor) = factor {
            if name == EMBEDDING {
                return Err(bad(format!("has the scale {scale}, which f16 does not hold, and is looked up by rows")));
            }
            self.factors.borrow_mut().insert(name.into(), factor);
        }
        let layout = self.executor.backend().policy().weight_layout(Format::TQ2_0);
        let recode = |from: &[u8], to: &mut [u8]| i2_s_to_tq2_0(from, of_blocks, to);
        let recode = Recode { block_bytes: I2_S_BLOCK_BYTES, recode: &recode };
        let on_device = Tensor::from_recoded(self.executor, &recode, [Format::TQ2_0, layout], shape, codes);
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
            let reason = format!("tensor {name} has shape {:?}, but the metadata ask for {shape:?}", tensor.shape());
            return Err(malformed(self.file, reason));
        }
        Ok(tensor)
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
        let layout = self.executor.backend().policy().weight_layout(tensor.format()?.at_load());
        self.executor.backend().kernels().expect_weights(layout);
        self.take(&tensor, layout, &shape)
    }

    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>> {
        self.file.tensor_opt(name).map(|_| self.matrix(name, rows, row_len)).transpose()
    }

    fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        let tensor = self.checked(name, &[len])?;
        if tensor.format()? == Format::F32 {
            return self.take(&tensor, Format::F32, &[len]);
        }
        Ok(Tensor::from_slice(self.executor, &[len], &tensor.to_f32()?)?)
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>> {
        self.file.tensor_opt(name).map(|_| self.vector(name, len)).transpose()
    }

    /// The tensor beside a matrix whose name ends with `scale` instead of `weight`, times the factor of its own.
    fn scale(&self, name: &str) -> Result<Option<f32>> {
        let own = self.factors.borrow().get(name).copied();
        let Some(name) = name.strip_suffix("weight").map(|start| format!("{start}scale")) else { return Ok(own) };
        let Some(tensor) = self.file.tensor_opt(&name) else { return Ok(own) };
        self.taken.borrow_mut().insert(name);
        match tensor.to_f32()?[..] {
            [scale] => Ok(Some(scale * own.unwrap_or(1.0))),
            _ => Err(malformed(self.file, format!("tensor {} is not one number", tensor.name()))),
        }
    }

    fn finish(&self) -> Result<()> {
        let taken = self.taken.borrow();
        match self.file.tensors().find(|t| !taken.contains(t.name()) && !may_be_unused(t.name())) {
            None => Ok(()),
            Some(t) => {
                let what = format!("tensor {}, for which models of this architecture have no use,", t.name());
                Err(LlmError::Unsupported { path: self.file.path().into(), what })
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
