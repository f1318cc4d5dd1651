//! Where a model's weights come from: a mapped file.

use std::sync::Arc;

use hologram_backends::{Buffer, ForeignMemory, Format};
use hologram_core::{Executor, Tensor};

use crate::error::Result;
use crate::gguf::GgufFile;
use crate::models::config::malformed;

/// A source of weights.
pub(crate) trait Weights {
    /// The device that they go to.
    fn executor(&self) -> &Executor;

    /// A matrix in the format it is stored in.
    fn matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Tensor>;

    /// A matrix that a model may lack.
    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>>;

    /// A vector in `f32`.
    fn vector(&self, name: &str, len: usize) -> Result<Tensor>;

    /// The values of a vector that a model may lack.
    fn optional_values(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>>;
}

/// The weights of a GGUF file, used in place where the device can.
pub(crate) struct FileWeights<'a> {
    executor: &'a Executor,
    file: &'a GgufFile,
    /// The whole file as device memory.
    buffer: Buffer,
}

impl<'a> FileWeights<'a> {
    /// Hands the mapped file to the device.
    ///
    /// # Errors
    /// When the device cannot hold it.
    pub fn new(executor: &'a Executor, file: &'a GgufFile) -> Result<FileWeights<'a>> {
        let map = file.map();
        let (data, bytes) = (map.as_ptr(), map.len());
        let owner: Arc<dyn std::any::Any + Send + Sync> = map;
        let buffer = executor.backend().wrap(ForeignMemory { owner, data, bytes })?;
        Ok(FileWeights { executor, file, buffer })
    }

    fn checked(&self, name: &str, shape: &[usize]) -> Result<crate::gguf::Tensor<'a>> {
        let tensor = self.file.tensor(name)?;
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
        let offset = tensor.range().start;
        Ok(Tensor::from_buffer(self.executor, self.buffer.clone(), offset, tensor.format()?, &shape)?)
    }

    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>> {
        self.file.tensor_opt(name).map(|_| self.matrix(name, rows, row_len)).transpose()
    }

    fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        let tensor = self.checked(name, &[len])?;
        if tensor.format()? == Format::F32 {
            let offset = tensor.range().start;
            return Ok(Tensor::from_buffer(self.executor, self.buffer.clone(), offset, Format::F32, &[len])?);
        }
        Ok(Tensor::from_slice(self.executor, &[len], &tensor.to_f32()?)?)
    }

    fn optional_values(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        match self.file.tensor_opt(name) {
            None => Ok(None),
            Some(_) => Ok(Some(self.checked(name, &[len])?.to_f32()?)),
        }
    }
}
