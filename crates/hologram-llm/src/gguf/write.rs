//! Writes GGUF files (version 3), tensor by tensor.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufWriter, Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{FileBytes, GgufFile, TensorType, Value, ValueType};
use crate::error::{LlmError, Result};
use crate::files::without_links;

/// The alignment of tensor data, GGUF's default.
const ALIGNMENT: usize = 32;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// The name.
    pub name: String,
    /// The shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// The type.
    pub ty: &'static TensorType,
}

impl NewTensor {
    /// Bytes of the data; `None` if a row is not whole blocks or the size overflows.
    pub fn bytes(&self) -> Option<usize> {
        let (row_len, rest) = self.shape.split_last().map_or((1, &[][..]), |(last, rest)| (*last, rest));
        self.ty.bytes(rest.iter().product(), row_len)
    }
}

/// A GGUF file that is being written, under its name with `.partial` until [`GgufWriter::finish`]. Dropped before that,
/// it is removed; one that a killed process left is replaced.
pub struct GgufWriter {
    path: PathBuf,
    partial: PathBuf,
    file: Option<BufWriter<File>>,
    /// Bytes that are still to come for each tensor, last first.
    sizes: Vec<usize>,
    written: usize,
}

impl GgufWriter {
    /// Checks that a file of this name can be written: for results that take long to compute.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn check(path: &Path) -> Result<()> {
        GgufWriter::open(path.into(), Vec::new()).map(drop)
    }

    /// Opens the file that is renamed at the end.
    fn open(path: PathBuf, sizes: Vec<usize>) -> Result<GgufWriter> {
        let path = without_links(&path).map_err(|reason| failed(&path, reason))?;
        // The finished file takes the place of what is there, which must not be a device or a pipe.
        if std::fs::metadata(&path).is_ok_and(|there| !there.is_file()) {
            let reason = Error::new(ErrorKind::InvalidInput, "it is not a regular file");
            return Err(failed(&path, reason));
        }
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = open_partial(&partial).map_err(|reason| failed(&path, reason))?;
        Ok(GgufWriter { path, partial, file: Some(BufWriter::new(file)), sizes, written: 0 })
    }

    /// Begins a file with these metadata and tensors, whose data follow by [`GgufWriter::write`] in the same order.
    ///
    /// # Errors
    /// When the file cannot be written, or a tensor's row is not whole blocks of its type.
    pub fn create<'a>(
        path: impl Into<PathBuf>,
        metadata: impl Iterator<Item = (&'a str, Value<'a>)>,
        tensors: &[NewTensor],
    ) -> Result<GgufWriter> {
        let path = path.into();
        let (header, sizes) = header(&path, metadata, tensors)?;
        let mut writer = GgufWriter::open(path, sizes)?;
        writer.put(&header)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|reason| failed(&self.path, reason))
    }

    /// Writes data of the current tensor: all, or a piece.
    ///
    /// # Errors
    /// When the file cannot be written; when the data are more than the tensor's.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let size = self.sizes.last().copied().unwrap_or(0);
        if self.written + data.len() > size {
            let reason = format!("{} bytes were given for a tensor of {size}", self.written + data.len());
            return Err(LlmError::BadFile { path: self.path.clone(), reason });
        }
        self.put(data)?;
        self.written += data.len();
        if self.written == size {
            self.sizes.pop();
            self.written = 0;
            self.put(&[0; ALIGNMENT][..size.next_multiple_of(ALIGNMENT) - size])?;
        }
        Ok(())
    }

    /// Writes the rest to the disk and gives the file its name.
    ///
    /// # Errors
    /// When that fails, or data are missing.
    pub fn finish(mut self) -> Result<()> {
        if !self.sizes.is_empty() {
            let reason = format!("the data of {} tensors were not written", self.sizes.len());
            return Err(LlmError::BadFile { path: self.path.clone(), reason });
        }
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let finished = file.flush().and_then(|()| file.get_ref().sync_all());
        let finished = finished.and_then(|()| std::fs::rename(&self.partial, &self.path));
        finished.map_err(|reason| {
            let _ = std::fs::remove_file(&self.partial);
            failed(&self.path, reason)
        })
    }
}

impl Drop for GgufWriter {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Buffered bytes are discarded: the file is removed.
            drop(file.into_parts());
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// The bytes before the tensors' data, and the sizes of these, last first.
fn header<'a>(
    path: &Path,
    metadata: impl Iterator<Item = (&'a str, Value<'a>)>,
    tensors: &[NewTensor],
) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut header = Vec::new();
    let (mut count, mut pairs) = (0u64, Vec::new());
    for (key, value) in metadata {
        text(&mut pairs, key.as_bytes());
        put(&mut pairs, &value);
        count += 1;
    }
    header.extend(b"GGUF");
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend(count.to_le_bytes());
    header.extend(pairs);
    let (mut offset, mut sizes) = (0u64, Vec::with_capacity(tensors.len()));
    for tensor in tensors {
        let Some(bytes) = tensor.bytes() else {
            let reason =
                format!("tensor {} of shape {:?} is not whole blocks of {}", tensor.name, tensor.shape, tensor.ty.name);
            return Err(LlmError::BadFile { path: path.into(), reason });
        };
        text(&mut header, tensor.name.as_bytes());
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|n| header.extend((*n as u64).to_le_bytes()));
        header.extend(tensor.ty.id.to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset += bytes.next_multiple_of(ALIGNMENT) as u64;
        sizes.push(bytes);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    sizes.reverse();
    Ok((header, sizes))
}

impl GgufFile {
    /// What a file with these metadata and tensors is read as. Its data are zeros that take no memory.
    ///
    /// # Errors
    /// When memory runs out, or a tensor's row is not whole blocks of its type.
    pub(crate) fn without_data<'a>(
        path: &Path,
        metadata: impl Iterator<Item = (&'a str, Value<'a>)>,
        tensors: &[NewTensor],
    ) -> Result<GgufFile> {
        let (header, sizes) = header(path, metadata, tensors)?;
        let data: usize = sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT)).sum();
        let io = |reason| LlmError::Io { path: path.into(), reason };
        let map = memmap2::MmapOptions::new().len(header.len() + data).no_reserve_swap().map_anon();
        let mut map = map.map_err(io)?;
        map[..header.len()].copy_from_slice(&header);
        GgufFile::from_bytes(path, FileBytes::Map(map.make_read_only().map_err(io)?))
    }
}

/// An empty file of this name, locked against other processes.
fn open_partial(path: &Path) -> std::io::Result<File> {
    // What a link leads to is another file, perhaps the one that is being read.
    if std::fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
        std::fs::remove_file(path)?;
    }
    loop {
        // Emptied only under the lock: another process may be writing it.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(ErrorKind::ResourceBusy, "another process is writing it"));
            }
            // Some network file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // Otherwise it was finished and renamed between the two calls.
        if is_at(&file, path)? {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

/// Whether an open file still has this name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (open, named) = (file.metadata()?, std::fs::metadata(path));
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> std::io::Result<bool> {
    path.try_exists()
}

fn failed(path: &Path, reason: Error) -> LlmError {
    LlmError::Write { path: path.into(), reason }
}

/// A length and as many bytes.
fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// A value's type and bytes.
fn put(out: &mut Vec<u8>, value: &Value<'_>) {
    let ty = match value {
        Value::Unsigned(ty, _) | Value::Signed(ty, _) | Value::Float(ty, _) => *ty,
        Value::Bool(_) => ValueType::Bool,
        Value::String(_) => ValueType::String,
        Value::Strings(_) | Value::Numbers(_) => ValueType::Array,
    };
    out.extend((ty as u32).to_le_bytes());
    match value {
        Value::Strings(strings) => {
            out.extend((ValueType::String as u32).to_le_bytes());
            out.extend((strings.len() as u64).to_le_bytes());
            strings.iter().for_each(|string| text(out, string));
        }
        Value::Numbers(numbers) => {
            out.extend((numbers.element() as u32).to_le_bytes());
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|number| scalar(out, &number));
        }
        value => scalar(out, value),
    }
}

/// A value's bytes.
fn scalar(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Unsigned(ty, v) => out.extend(&v.to_le_bytes()[..ty.size().unwrap_or(8)]),
        Value::Signed(ty, v) => out.extend(&v.to_le_bytes()[..ty.size().unwrap_or(8)]),
        Value::Float(ValueType::F64, v) => out.extend(v.to_le_bytes()),
        Value::Float(_, v) => out.extend((*v as f32).to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => text(out, v.as_bytes()),
        Value::Strings(_) | Value::Numbers(_) => {}
    }
}
