//! Tensors in files: NumPy's `.npy`, and safetensors (<https://github.com/huggingface/safetensors>).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use hologram_backends::DType;
use hologram_isa::Type;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, View};

use super::Tensor;
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::npy;

/// Element types and their names in safetensors.
const TYPES: [(Type, Dtype); 13] = [
    (Type::Bool, Dtype::BOOL),
    (Type::I8, Dtype::I8),
    (Type::U8, Dtype::U8),
    (Type::I16, Dtype::I16),
    (Type::U16, Dtype::U16),
    (Type::I32, Dtype::I32),
    (Type::U32, Dtype::U32),
    (Type::I64, Dtype::I64),
    (Type::U64, Dtype::U64),
    (Type::F16, Dtype::F16),
    (Type::BF16, Dtype::BF16),
    (Type::F32, Dtype::F32),
    (Type::F64, Dtype::F64),
];

fn failed(what: &str, path: &Path, reason: impl std::fmt::Display) -> CoreError {
    CoreError::Tensor(format!("cannot {what} {}: {reason}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| failed("read", path, e))
}

/// Writes a file whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let beside = folder.join(format!(".{name}.{}.part", std::process::id()));
    let done = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    done.map_err(|e| {
        // Removes a partial file. The file may not exist, so the error is ignored.
        let _ = std::fs::remove_file(&beside);
        failed("write", path, e)
    })
}

/// A tensor's elements on the host.
struct Elements {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Elements {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

impl Tensor {
    /// The bytes of plain elements in row-major order, with their type.
    fn elements(&self) -> Result<(Type, Vec<u8>)> {
        let DType::Plain(ty) = self.format else {
            return Err(self.refuse("save", "only plain elements can be saved; convert them by to_dtype first".into()));
        };
        let whole = self.contiguous()?;
        let mut bytes = vec![0; whole.bytes()];
        self.executor.backend().copy_from_buffer(&whole.buffer, whole.offset, &mut bytes)?;
        Ok((ty, bytes))
    }

    /// Writes a `.npy` file, which NumPy loads; `bf16` is written as two bytes without a type, as the package
    /// `ml_dtypes` writes it: `.view(ml_dtypes.bfloat16)` there.
    ///
    /// # Errors
    /// When the file cannot be written, or the format is not plain.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let (ty, bytes) = self.elements()?;
        write(path.as_ref(), &npy::to_bytes(&npy::Array { ty, shape: self.shape.clone(), bytes }))
    }

    /// Reads a `.npy` file.
    ///
    /// # Errors
    /// When the file cannot be read, or holds anything but plain numbers.
    pub fn load_npy(executor: &Executor, path: impl AsRef<Path>) -> Result<Tensor> {
        let path = path.as_ref();
        let array = npy::from_bytes(&read(path)?).map_err(|e| failed("read", path, e))?;
        Tensor::from_bytes(executor, DType::Plain(array.ty), &array.shape, &array.bytes)
    }

    /// Writes tensors under their names to a safetensors file.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use hologram_core::{DType, Executor, Tensor};
    ///
    /// let device = Executor::open("cpu", None)?;
    /// let path = std::env::temp_dir().join(format!("hologram-{}.safetensors", std::process::id()));
    /// let weights = BTreeMap::from([("w".to_string(), Tensor::ones(&device, DType::F16, &[2, 3])?)]);
    /// Tensor::save_safetensors(&weights, &path)?;
    /// let loaded = Tensor::load_safetensors(&device, &path)?;
    /// assert_eq!(loaded["w"].shape(), [2, 3]);
    /// # std::fs::remove_file(path).ok();
    /// # Ok::<(), hologram_core::CoreError>(())
    /// ```
    ///
    /// # Errors
    /// When the file cannot be written, or a tensor's format is not plain.
    pub fn save_safetensors(tensors: &BTreeMap<String, Tensor>, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let one = |(name, tensor): (&String, &Tensor)| {
            let (ty, bytes) = tensor.elements()?;
            let known = TYPES.iter().find(|(own, _)| *own == ty);
            let (_, dtype) = known.ok_or_else(|| tensor.refuse("save", "safetensors lacks its type".into()))?;
            Ok((name.clone(), Elements { dtype: *dtype, shape: tensor.shape.clone(), bytes }))
        };
        let all = tensors.iter().map(one).collect::<Result<Vec<_>>>()?;
        let views = all.iter().map(|(name, elements)| (name.as_str(), elements));
        let file = safetensors::serialize(views, None).map_err(|e| failed("write", path, e))?;
        write(path, &file)
    }

    /// Reads all tensors of a safetensors file.
    ///
    /// # Errors
    /// When the file cannot be read, is not a safetensors file, or holds a type that Hologram lacks.
    pub fn load_safetensors(executor: &Executor, path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
        let path = path.as_ref();
        let bytes = read(path)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| failed("read", path, e))?;
        let one = |(name, view): (String, TensorView<'_>)| {
            let known = TYPES.iter().find(|(_, dtype)| *dtype == view.dtype());
            let lacks = || failed("read", path, format!("tensor {name} has elements of {:?}", view.dtype()));
            let (ty, _) = known.ok_or_else(lacks)?;
            let tensor = Tensor::from_bytes(executor, DType::Plain(*ty), view.shape(), view.data())?;
            Ok((name, tensor))
        };
        file.tensors().into_iter().map(one).collect()
    }
}
