//! The header of a GGUF file. Every count, length, offset and size is checked against the file before use, and no
//! allocation depends on an unchecked count.

use super::FileBytes;
use super::types::TensorType;
use super::value::{Strings, ValueType};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum length of keys and tensor names; the format limits keys to 65535 bytes.
const MAX_NAME: usize = 65535;
/// Maximum entries to reserve memory for in advance.
const MAX_RESERVE: usize = 1 << 16;

/// An error continues the sentence "cannot read FILE as a GGUF file: ".
type Parsed<T> = Result<T, String>;

/// The position of a value in the file.
pub(super) enum Stored {
    Scalar { ty: ValueType, at: usize },
    String { at: usize, len: usize },
    Numbers { ty: ValueType, at: usize, bytes: usize },
    Strings(Strings),
}

/// A tensor; `shape` is slowest first, `offset` counts from the start of the file.
pub(super) struct TensorInfo {
    pub name: Box<str>,
    pub shape: Vec<usize>,
    pub ty: &'static TensorType,
    pub offset: usize,
    pub bytes: usize,
    /// The index of its file.
    pub part: usize,
}

/// Everything before the tensor data.
pub(super) struct Header {
    pub version: u32,
    pub alignment: usize,
    pub keys: Vec<(Box<str>, Stored)>,
    pub key_index: HashMap<Box<str>, usize>,
    pub tensors: Vec<TensorInfo>,
    pub tensor_index: HashMap<Box<str>, usize>,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    fn take(&mut self, len: usize, what: &str) -> Parsed<&'a [u8]> {
        let end = self.at.checked_add(len).ok_or_else(|| format!("{what} is longer than the largest possible file"))?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| {
            format!(
                "{what} needs {len} bytes at offset {}, but the file ends at {}; it may be incomplete",
                self.at,
                self.bytes.len()
            )
        })?;
        self.at = end;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Parsed<u32> {
        let bytes = self.take(4, what)?;
        bytes.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or_else(|| what.to_string())
    }

    fn u64(&mut self, what: &str) -> Parsed<u64> {
        let bytes = self.take(8, what)?;
        bytes.first_chunk().map(|b| u64::from_le_bytes(*b)).ok_or_else(|| what.to_string())
    }

    /// A count of items that take at least `least` bytes each.
    fn count(&mut self, what: &str, least: usize) -> Parsed<usize> {
        let claimed = self.u64(what)?;
        match usize::try_from(claimed) {
            Ok(n) if n <= self.remaining() / least => Ok(n),
            _ => {
                let left = self.remaining();
                let s = if left == 1 { "" } else { "s" };
                Err(format!(
                    "{what} is {claimed}, more than the remaining {left} byte{s} can hold; it may be incomplete"
                ))
            }
        }
    }

    fn string(&mut self, what: &str, max: usize) -> Parsed<&'a str> {
        let len = self.count(&format!("the length of {what}"), 1)?;
        if len > max {
            return Err(format!("{what} is {len} bytes long; the maximum is {max}"));
        }
        std::str::from_utf8(self.take(len, what)?).map_err(|_| format!("{what} is not UTF-8"))
    }
}

/// Reads the header of a mapped file.
pub(super) fn parse(map: &Arc<FileBytes>) -> Parsed<Header> {
    let mut cursor = Cursor { bytes: map, at: 0 };
    let version = version(&mut cursor)?;
    let tensor_count = cursor.count("the number of tensors", 24)?;
    let key_count = cursor.count("the number of keys", 13)?;

    let mut keys = Vec::with_capacity(key_count.min(MAX_RESERVE));
    let mut key_index = HashMap::new();
    for i in 0..key_count {
        let key = cursor.string(&format!("key {i}"), MAX_NAME)?;
        let stored = value(&mut cursor, map, key)?;
        if key_index.insert(key.into(), i).is_some() {
            return Err(format!("key {key} occurs twice"));
        }
        keys.push((key.into(), stored));
    }

    let alignment = match key_index.get("general.alignment").and_then(|&i| keys.get(i)) {
        None => 32,
        Some((_, Stored::Scalar { ty: ValueType::U32, at })) => {
            let n = Cursor { bytes: map, at: *at }.u32("general.alignment")?;
            usize::try_from(n)
                .ok()
                .filter(|n| n.is_power_of_two())
                .ok_or_else(|| format!("general.alignment is {n}, which is not a power of two"))?
        }
        Some(_) => return Err("general.alignment is not of type u32".into()),
    };

    let mut tensors = Vec::with_capacity(tensor_count.min(MAX_RESERVE));
    let mut tensor_index = HashMap::new();
    for i in 0..tensor_count {
        let info = tensor(&mut cursor, i, alignment)?;
        if tensor_index.insert(info.name.clone(), i).is_some() {
            return Err(format!("tensor {} occurs twice", info.name));
        }
        tensors.push(info);
    }
    place(&mut tensors, cursor.at, alignment, map.len())?;
    Ok(Header { version, alignment, keys, key_index, tensors, tensor_index })
}

fn version(cursor: &mut Cursor<'_>) -> Parsed<u32> {
    if cursor.remaining() < 24 {
        return Err(format!("it has only {} bytes", cursor.remaining()));
    }
    let magic = cursor.take(4, "the magic number")?;
    if magic != b"GGUF" {
        let hint = match magic {
            b"PK\x03\x04" => "; it is a ZIP archive, perhaps a PyTorch checkpoint: convert it to GGUF",
            b"vers" => "; it may be a Git LFS pointer: run `git lfs pull`",
            b"<!DO" | b"<!do" | b"<htm" => "; it is a web page, not a model",
            text if text.iter().all(|c| matches!(c, b' '..=b'~' | b'\n' | b'\t' | b'\r')) => {
                "; it is a text, not a model"
            }
            _ => "",
        };
        return Err(format!("it starts with {:?} instead of \"GGUF\"{hint}", String::from_utf8_lossy(magic)));
    }
    match cursor.u32("the version")? {
        v @ (2 | 3) => Ok(v),
        1 => Err("it has version 1 of the format; convert it to version 3 (supported: 2, 3)".into()),
        v if v & 0xffff == 0 => Err("it is big-endian; convert it to little-endian".into()),
        v => Err(format!("it has version {v} of the format (supported: 2, 3)")),
    }
}

fn value(cursor: &mut Cursor<'_>, map: &Arc<FileBytes>, key: &str) -> Parsed<Stored> {
    let what = format!("the value of key {key}");
    match value_type(cursor, key)? {
        ValueType::String => {
            let len = cursor.string(&what, usize::MAX)?.len();
            Ok(Stored::String { at: cursor.at - len, len })
        }
        ValueType::Array => array(cursor, map, key, &what),
        ty => {
            let at = cursor.at;
            let bytes = cursor.take(ty.size().unwrap_or(0), &what)?;
            check_bools(ty, bytes, key)?;
            Ok(Stored::Scalar { ty, at })
        }
    }
}

fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Parsed<ValueType> {
    let id = cursor.u32(&format!("the type of key {key}"))?;
    ValueType::from_id(id).ok_or_else(|| format!("key {key} has the unknown type {id}"))
}

fn array(cursor: &mut Cursor<'_>, map: &Arc<FileBytes>, key: &str, what: &str) -> Parsed<Stored> {
    let ty = value_type(cursor, key)?;
    let length = format!("the length of the array of key {key}");
    if let Some(size) = ty.size() {
        let bytes = cursor.count(&length, size)? * size;
        let at = cursor.at;
        check_bools(ty, cursor.take(bytes, what)?, key)?;
        return Ok(Stored::Numbers { ty, at, bytes });
    }
    if ty == ValueType::Array {
        return Err(format!("key {key} has nested arrays, which are not supported"));
    }
    let count = cursor.count(&length, 8)?;
    let mut starts = Vec::with_capacity(count.min(MAX_RESERVE));
    for i in 0..count {
        starts.push(cursor.at);
        // This loop visits the whole vocabulary, so messages are built only on errors.
        let len = match cursor.bytes.get(cursor.at..).and_then(|b| b.first_chunk::<8>()) {
            Some(len) => u64::from_le_bytes(*len),
            None => return Err(format!("the file ends at string {i} of key {key}; it may be incomplete")),
        };
        cursor.at += 8;
        match usize::try_from(len) {
            Ok(len) if len <= cursor.remaining() => cursor.at += len,
            _ => return Err(format!("string {i} of key {key} is {len} bytes long, more than the file has left")),
        }
    }
    Ok(Stored::Strings(Strings::new(map.clone(), starts)))
}

fn check_bools(ty: ValueType, bytes: &[u8], key: &str) -> Parsed<()> {
    match bytes.iter().find(|&&b| ty == ValueType::Bool && b > 1) {
        Some(b) => Err(format!("key {key} has the bool {b}, but must have 0 or 1")),
        None => Ok(()),
    }
}

/// One entry of the tensor table. `offset` is still relative to the data.
fn tensor(cursor: &mut Cursor<'_>, index: usize, alignment: usize) -> Parsed<TensorInfo> {
    let name = cursor.string(&format!("the name of tensor {index}"), MAX_NAME)?;
    let what = format!("tensor {name}");
    let rank = cursor.u32(&what)?;
    if rank > 4 {
        return Err(format!("{what} has {rank} dimensions; the maximum is 4"));
    }
    let mut shape = Vec::with_capacity(4);
    let mut elements = 1usize;
    for _ in 0..rank {
        let dim = cursor.u64(&what)?;
        // Zero is left out of the product, so 0 × huge is rejected too.
        let dim = usize::try_from(dim).ok().filter(|&d| {
            elements.checked_mul(d.max(1)).inspect(|&n| elements = n).is_some_and(|n| n <= isize::MAX as usize)
        });
        shape.push(dim.ok_or_else(|| format!("{what} has too many elements"))?);
    }
    shape.reverse();
    let id = cursor.u32(&what)?;
    let ty = TensorType::from_id(id).ok_or_else(|| match TensorType::removed(id) {
        Some(name) => format!("{what} has the type {name}, which is no longer in use; convert the model again"),
        None => format!("{what} has the unknown type {id}"),
    })?;
    let row_len = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).product();
    if !row_len.is_multiple_of(ty.block_len) {
        let blocks = ty.block_len;
        return Err(format!(
            "{what} of type {} has {row_len} elements per row, which is not a multiple of the block size {blocks}",
            ty.name
        ));
    }
    let bytes = ty
        .bytes(rows, row_len)
        .ok_or_else(|| format!("{what} of type {} is larger than the largest possible file", ty.name))?;
    let offset = cursor.u64(&what)?;
    let offset = usize::try_from(offset)
        .ok()
        .filter(|o| o.is_multiple_of(alignment))
        .ok_or_else(|| format!("{what} has offset {offset}, which is not a multiple of the alignment {alignment}"))?;
    Ok(TensorInfo { name: name.into(), shape, ty, offset, bytes, part: 0 })
}

/// Converts offsets to file positions. Checks that all tensors lie within the file and do not overlap.
fn place(tensors: &mut [TensorInfo], header_end: usize, alignment: usize, file_len: usize) -> Parsed<()> {
    let data = header_end.checked_next_multiple_of(alignment).ok_or("the alignment is too large")?;
    for t in tensors.iter_mut() {
        let start = data.checked_add(t.offset);
        match start.and_then(|s| s.checked_add(t.bytes)) {
            Some(end) if end <= file_len => t.offset = end - t.bytes,
            _ => {
                return Err(format!(
                    "tensor {} of {} bytes at data offset {} ends beyond the file of {file_len} bytes; it may be incomplete",
                    t.name, t.bytes, t.offset
                ));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.bytes > 0).collect();
    order.sort_by_key(|t| t.offset);
    match order.windows(2).find(|w| matches!(w, [a, b] if a.offset + a.bytes > b.offset)) {
        Some([a, b]) => Err(format!("tensors {} and {} overlap", a.name, b.name)),
        _ => Ok(()),
    }
}
