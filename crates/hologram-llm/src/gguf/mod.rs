//! GGUF model files: mapped, checked once when opened, read in place.
//!
//! A file consists of metadata (typed values under dotted keys) and tensors. [`GgufFile::open`] reads and checks only
//! the header. Tensor data stay in the mapping; backends use them without a copy through [`GgufFile::parts`] and
//! [`Tensor::range`].

mod i2_s;
mod parse;
mod split;
mod types;
mod value;
mod write;

pub(crate) use i2_s::{BLOCK_BYTES as I2_S_BLOCK_BYTES, to_tq2_0 as i2_s_to_tq2_0};
pub use types::TensorType;
pub use value::{FromValue, Numbers, Strings, Value, ValueType};
pub use write::{GgufWriter, NewTensor};

use crate::error::{LlmError, Result};
use crate::files::open_regular;
use hologram_backends::DType;
use memmap2::Mmap;
use parse::{Header, Stored, TensorInfo};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes of a model file.
#[derive(Debug)]
pub enum FileBytes {
    /// A mapped file.
    Map(Mmap),
    /// Bytes that are part of the program, such as the built-in model. They are aligned to 64 bytes.
    Static(&'static [u8]),
}

impl FileBytes {
    /// Maps a file read-only. The file must not change while it is open.
    ///
    /// # Errors
    /// When the file cannot be opened, is empty or is not a regular file.
    pub fn open(path: &Path) -> Result<FileBytes> {
        let io = |reason| LlmError::Io { path: path.into(), reason };
        let file = open_regular(path)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(LlmError::BadFile { path: path.into(), reason: "it is empty".into() });
        }
        // SAFETY: the mapping is read-only and private to this process. Rust also requires that the bytes never change.
        // Only another program that writes the file can break that; the documentation above forbids it, as every
        // program that maps model files does.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        // Every token reads the weights from start to end; 2 MiB pages make that a tenth faster. Linux loads uncached
        // files into such pages if the file system supports them. Elsewhere the advice fails without effect on results.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(FileBytes::Map(map))
    }

    /// Tells the system that this range will not be read soon, so its memory can be reused. It remains readable.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let FileBytes::Map(map) = self {
            // Advice applies to whole pages; the outer ones may hold other data. Ignored advice changes no result.
            let start = range.start.next_multiple_of(PAGE);
            if let Some(len) = (range.end / PAGE * PAGE).checked_sub(start).filter(|len| *len > 0) {
                // SAFETY: the mapping is read-only and backed by a file; dropped pages are read again with the same
                // content.
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Map(map) => map,
            FileBytes::Static(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The largest page size of common systems.
#[cfg(unix)]
const PAGE: usize = 1 << 16;

/// An open GGUF file, or all files of a split model.
pub struct GgufFile {
    path: PathBuf,
    /// The first part has the metadata.
    parts: Vec<Part>,
    header: Header,
}

/// One of the files of a model.
pub struct Part {
    path: PathBuf,
    map: Arc<FileBytes>,
}

impl GgufFile {
    /// Maps a file read-only and checks its header. Given the first file of a split model (`NAME-00001-of-00003.gguf`),
    /// opens all of them. The files must not change while they are open.
    ///
    /// # Errors
    /// When a file cannot be opened, is not little-endian GGUF version 2 or 3, is truncated or contradicts itself; when
    /// a part of a split model is missing or belongs to another model.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile> {
        let path = path.as_ref();
        split::complete(GgufFile::parse(path, FileBytes::open(path)?)?)
    }

    /// Reads a file from memory. `path` is for error messages.
    ///
    /// # Errors
    /// As [`GgufFile::open`], and when the file is part of a split model.
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: FileBytes) -> Result<GgufFile> {
        split::reject(GgufFile::parse(path, bytes)?)
    }

    fn parse(path: impl Into<PathBuf>, bytes: FileBytes) -> Result<GgufFile> {
        let (path, map) = (path.into(), Arc::new(bytes));
        match parse::parse(&map) {
            Err(reason) => Err(LlmError::Malformed { path, reason }),
            Ok(header) => Ok(GgufFile { parts: vec![Part { path: path.clone(), map }], path, header }),
        }
    }

    /// The path as given to `open`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a path leads to one of the files.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.parts.iter().any(|part| crate::files::leads_to(path, part.path()))
    }

    /// The files: one, or all parts of a split model in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The bytes of the file with the metadata.
    fn first(&self) -> &FileBytes {
        // There is always a first part.
        &self.parts[0].map
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// The alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> usize {
        self.header.alignment
    }

    /// `general.architecture`.
    ///
    /// # Errors
    /// When the key is missing or not a string.
    pub fn architecture(&self) -> Result<&str> {
        self.get("general.architecture")
    }

    /// The value of a key; `None` if the file lacks it.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        let (_, stored) = self.header.keys.get(*self.header.key_index.get(key)?)?;
        self.read(stored)
    }

    /// All keys and values in file order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.header.keys.iter().filter_map(|(key, stored)| Some((&**key, self.read(stored)?)))
    }

    /// The value of a key as a Rust type. Integers of any width convert if they fit; see [`FromValue`].
    ///
    /// # Errors
    /// When the key is missing, or its value has the wrong type or is out of range.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get_opt(key)?.ok_or_else(|| LlmError::MissingKey { path: self.path.clone(), key: key.into() })
    }

    /// As [`GgufFile::get`], but `None` for a missing key.
    ///
    /// # Errors
    /// When the value has the wrong type or is out of range.
    pub fn get_opt<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|reason| LlmError::BadKey {
            path: self.path.clone(),
            key: key.into(),
            reason,
        })
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.header.tensors.iter().map(|info| Tensor { file: self, info })
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// When the file lacks it.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.tensor_opt(name).ok_or_else(|| LlmError::MissingTensor { path: self.path.clone(), tensor: name.into() })
    }

    /// A tensor by name; `None` if the file lacks it.
    pub fn tensor_opt(&self, name: &str) -> Option<Tensor<'_>> {
        let info = self.header.tensors.get(*self.header.tensor_index.get(name)?)?;
        Some(Tensor { file: self, info })
    }

    fn read<'a>(&'a self, stored: &'a Stored) -> Option<Value<'a>> {
        match stored {
            Stored::Scalar { ty, at } => Value::scalar(*ty, self.first().get(*at..)?),
            Stored::String { at, len } => {
                std::str::from_utf8(self.first().get(*at..at.checked_add(*len)?)?).ok().map(Value::String)
            }
            Stored::Numbers { ty, at, bytes } => {
                Numbers::new(*ty, self.first().get(*at..at.checked_add(*bytes)?)?).map(Value::Numbers)
            }
            Stored::Strings(strings) => Some(Value::Strings(strings)),
        }
    }
}

impl fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufFile")
            .field("path", &self.path)
            .field("keys", &self.header.keys.len())
            .field("tensors", &self.header.tensors.len())
            .finish_non_exhaustive()
    }
}

/// A tensor of an open file.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    file: &'a GgufFile,
    info: &'a TensorInfo,
}

impl<'a> Tensor<'a> {
    /// The name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// The shape, slowest dimension first, so the last is the row length (the file stores the reverse). Empty for a
    /// scalar.
    pub fn shape(&self) -> &'a [usize] {
        &self.info.shape
    }

    /// Elements per row: the last dimension, or 1.
    pub fn row_len(&self) -> usize {
        self.info.shape.last().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all dimensions except the last.
    pub fn rows(&self) -> usize {
        self.info.shape.iter().rev().skip(1).product()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.info.shape.iter().product()
    }

    /// The stored type. [`Tensor::dtype`] supports only some of them.
    pub fn ty(&self) -> &'static TensorType {
        self.info.ty
    }

    /// The format in which backends read the data.
    ///
    /// # Errors
    /// When no device computes with the type.
    pub fn dtype(&self) -> Result<DType> {
        self.info.ty.format.ok_or_else(|| LlmError::UnsupportedType {
            path: self.file.path.clone(),
            tensor: self.info.name.to_string(),
            ty: self.info.ty.name,
            supported: TensorType::supported_names(),
        })
    }

    /// The bytes in the mapped file.
    pub fn data(&self) -> &'a [u8] {
        // The range was checked when the file was opened.
        self.file.parts.get(self.info.part).and_then(|p| p.map.get(self.range())).unwrap_or_default()
    }

    /// Tells the system that the data will not be read soon, so their memory can be reused. They remain readable.
    pub(crate) fn release(&self) {
        if let Some(part) = self.file.parts.get(self.info.part) {
            part.map.release(self.range());
        }
    }

    /// The index of its file in [`GgufFile::parts`].
    pub fn part(&self) -> usize {
        self.info.part
    }

    /// The codes and the scale of an `I2_S` tensor.
    pub(crate) fn i2_s(&self) -> Option<(&'a [u8], f32)> {
        if self.info.ty.is_i2_s() { i2_s::parts(self.data()) } else { None }
    }

    /// Bytes of the tensor on a device with this layout of weights.
    pub fn loaded_bytes(&self, layout: impl Fn(DType) -> DType) -> usize {
        let format = if self.info.ty.is_i2_s() { Some(DType::TQ2_0) } else { self.info.ty.format };
        format.and_then(|f| layout(f.at_load()).bytes(self.rows(), self.row_len())).unwrap_or(self.info.bytes)
    }

    /// The position of the data in the mapped file.
    pub fn range(&self) -> Range<usize> {
        self.info.offset..self.info.offset + self.info.bytes
    }

    /// All elements as `f32`, row by row.
    ///
    /// # Errors
    /// When the type is not supported.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        if let Some((codes, scale)) = self.i2_s() {
            let mut out = vec![0.0; self.elements()];
            i2_s::dequantize(codes, scale, &mut out);
            return Ok(out);
        }
        let format = self.dtype()?;
        let mut out = vec![0.0; self.elements()];
        format.decode_row(self.data(), &mut out)?;
        Ok(out)
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.info.name, self.info.ty.name, self.info.shape)
    }
}
