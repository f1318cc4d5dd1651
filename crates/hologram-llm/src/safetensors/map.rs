//! One safetensors file: mapped, its header checked once when opened.
//!
//! A file consists of the header's length (`u64`, little-endian), the header (a JSON object: per tensor its type, shape
//! and byte range), and the tensors' bytes without gaps, row-major and little-endian.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hologram_backends::DType;
use serde_json::Value;

use crate::error::{LlmError, Result};
use crate::gguf::FileBytes;

/// Maximum header size accepted; the largest models need a few megabytes.
const MAX_HEADER: usize = 100 << 20;
/// Maximum number of dimensions accepted.
const MAX_DIMS: usize = 16;

/// An element type of safetensors files.
#[derive(Debug, PartialEq, Eq)]
pub struct Dtype {
    /// The name in files.
    pub name: &'static str,
    /// Bits of an element.
    pub bits: usize,
    /// The format in which backends read the data, if any.
    pub format: Option<DType>,
}

const fn dtype(name: &'static str, bits: usize, format: Option<DType>) -> Dtype {
    Dtype { name, bits, format }
}

/// All types that the format defines.
static DTYPES: [Dtype; 21] = [
    dtype("F32", 32, Some(DType::F32)),
    dtype("F16", 16, Some(DType::F16)),
    dtype("BF16", 16, Some(DType::BF16)),
    dtype("U8", 8, None),
    dtype("I8", 8, None),
    dtype("BOOL", 8, None),
    dtype("I16", 16, None),
    dtype("U16", 16, None),
    dtype("I32", 32, None),
    dtype("U32", 32, None),
    dtype("I64", 64, None),
    dtype("U64", 64, None),
    dtype("F64", 64, None),
    dtype("C64", 64, None),
    dtype("F8_E5M2", 8, None),
    dtype("F8_E4M3", 8, None),
    dtype("F8_E8M0", 8, None),
    dtype("F6_E2M3", 6, None),
    dtype("F6_E3M2", 6, None),
    dtype("F4", 4, None),
    dtype("F4_E2M1", 4, None),
];

/// A tensor's entry in the header.
#[derive(Debug)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: &'static Dtype,
    pub shape: Vec<usize>,
    /// The position of its bytes in the file.
    pub range: Range<usize>,
}

/// An open file.
pub(crate) struct Shard {
    pub path: PathBuf,
    pub map: Arc<FileBytes>,
    /// In the order of their bytes.
    pub entries: Vec<Entry>,
}

impl Shard {
    /// Maps a file and checks its header.
    pub fn open(path: &Path) -> Result<Shard> {
        let map = Arc::new(FileBytes::open(path)?);
        let entries = parse(&map).map_err(|reason| LlmError::BadFile { path: path.into(), reason })?;
        Ok(Shard { path: path.into(), map, entries })
    }

    /// All elements of a tensor.
    ///
    /// # Errors
    /// When it is missing or not of a float type.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let missing = || LlmError::MissingTensor { path: self.path.clone(), tensor: name.into() };
        self.values_of(self.entries.iter().find(|e| e.name == name).ok_or_else(missing)?)
    }

    /// All elements of a tensor.
    ///
    /// # Errors
    /// When it is not of a float type.
    pub fn values_of(&self, entry: &Entry) -> Result<Vec<f32>> {
        let mut values = vec![0.0; entry.shape.iter().product()];
        // The range was checked when the file was opened.
        self.format(entry)?.decode_row(self.map.get(entry.range.clone()).unwrap_or_default(), &mut values)?;
        Ok(values)
    }

    /// The format in which backends read a tensor.
    ///
    /// # Errors
    /// When there is none.
    pub fn format(&self, entry: &Entry) -> Result<DType> {
        entry.dtype.format.ok_or_else(|| LlmError::UnsupportedType {
            path: self.path.clone(),
            tensor: entry.name.clone(),
            ty: entry.dtype.name,
            supported: "F32, F16, BF16".into(),
        })
    }
}

/// The entries of a file. Checks that each tensor's byte count matches its type and shape, and that the tensors cover
/// the data exactly.
fn parse(file: &[u8]) -> std::result::Result<Vec<Entry>, String> {
    let (length, rest) = file
        .split_first_chunk::<8>()
        .ok_or_else(|| format!("it has only {} bytes: it is not a safetensors file", file.len()))?;
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length).ok().filter(|n| *n <= MAX_HEADER.min(rest.len())).ok_or_else(|| {
        let most = MAX_HEADER.min(rest.len());
        format!(
            "its header claims {length} bytes, but at most {most} are possible: it is truncated or not a safetensors file"
        )
    })?;
    let (text, data) = rest.split_at(header);
    let header: Value = serde_json::from_slice(text).map_err(|e| format!("its header is not valid JSON ({e})"))?;
    let Value::Object(header) = header else { return Err("its header is not a JSON object".into()) };
    let mut entries = Vec::with_capacity(header.len());
    for (name, value) in &header {
        if name != "__metadata__" {
            entries.push(entry(name, value, data.len()).map_err(|reason| format!("tensor {name} {reason}"))?);
        }
    }
    entries.sort_by_key(|e| (e.range.start, e.range.end));
    let mut at = 0;
    let mut before = "the header";
    for e in &entries {
        if e.range.start < at {
            return Err(format!("tensors {before} and {} overlap", e.name));
        }
        if e.range.start > at {
            return Err(format!(
                "there is a gap of {} bytes between {before} and tensor {}",
                e.range.start - at,
                e.name
            ));
        }
        (at, before) = (e.range.end, &e.name);
    }
    if at != data.len() {
        return Err(format!("{} bytes follow the last tensor", data.len() - at));
    }
    let start = file.len() - data.len();
    for e in &mut entries {
        e.range = e.range.start + start..e.range.end + start;
    }
    Ok(entries)
}

/// One entry, with the position of its bytes relative to the data. The error reads "tensor NAME …".
fn entry(name: &str, value: &Value, data: usize) -> std::result::Result<Entry, String> {
    let ty = value.get("dtype").and_then(Value::as_str).ok_or("has no dtype")?;
    let dtype = DTYPES.iter().find(|d| d.name == ty).ok_or_else(|| format!("has the unknown type {ty}"))?;
    let sizes = |key: &str| -> Option<Vec<usize>> {
        let list = value.get(key)?.as_array()?;
        list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
    };
    let shape = sizes("shape").filter(|s| s.len() <= MAX_DIMS).ok_or("has no valid shape")?;
    let range = sizes("data_offsets").ok_or("has no data_offsets")?;
    let [start, end] = range[..] else { return Err("must have two data_offsets".into()) };
    let bits = shape.iter().try_fold(dtype.bits, |n, size| n.checked_mul(*size)).filter(|n| n.is_multiple_of(8));
    let bytes = bits.ok_or_else(|| format!("has shape {shape:?}, which is not a whole number of bytes"))? / 8;
    if start > end || end > data {
        return Err(format!("has bytes {start} to {end}, but the data have {data}: the file is truncated or damaged"));
    }
    if end - start != bytes {
        return Err(format!("has {} bytes, but {ty} {shape:?} takes {bytes}", end - start));
    }
    Ok(Entry { name: name.into(), dtype, shape, range: start..end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    }

    #[test]
    fn headers_are_checked() {
        let a = r#""a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}"#;
        let b = |start: usize, end: usize| {
            format!(r#""b":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start)
        };
        let good = file(&format!(r#"{{"__metadata__":{{"x":"y"}},{},{a}}}"#, b(12, 17)), 17);
        let entries = parse(&good).unwrap();
        let names: Vec<(&str, usize)> = entries.iter().map(|e| (&*e.name, e.range.len())).collect();
        assert_eq!(names, [("a", 12), ("b", 5)]);
        assert_eq!(entries[1].range.end, good.len());
        for n in 0..good.len() {
            assert!(parse(&good[..n]).is_err(), "cut to {n} bytes");
        }
        for (header, data, want) in [
            (format!("{{{a},{}}}", b(11, 16)), 16, "a and b overlap"),
            (format!("{{{a},{}}}", b(13, 18)), 18, "gap of 1 bytes between a and tensor b"),
            (format!("{{{a}}}"), 13, "1 bytes follow"),
            (format!("{{{a}}}"), 11, "truncated"),
            (a.replace("[2,3]", "[2,4]").replace("\"a\"", "{\"a\"") + "}", 12, "takes 16"),
            (format!("{{{}}}", a.replace("F16", "F17")), 12, "unknown type F17"),
            (format!("{{{}}}", a.replace("[2,3]", "[18446744073709551615,3]")), 12, "not a whole number of bytes"),
            (format!("{{{}}}", a.replace("[2,3]", "[-2,3]")), 12, "no valid shape"),
            (format!("{{{}}}", a.replace("[0,12]", "[12,0]")), 12, "12 to 0"),
            (format!("{{{}}}", a.replace("[0,12]", "[0]")), 12, "two data_offsets"),
            (r#"{"a":3}"#.into(), 0, "no dtype"),
            ("[]".into(), 0, "not a JSON object"),
            ("{".into(), 0, "not valid JSON"),
            // Of two entries with the same name, the later one counts.
            (format!("{{{a},{}}}", a.replace("[0,12]", "[12,24]")), 24, "gap of 12"),
        ] {
            let error = parse(&file(&header, data)).map(|_| ()).expect_err(want);
            assert!(error.contains(want), "{error}");
        }
        assert!(parse(&u64::MAX.to_le_bytes()).unwrap_err().contains("claims 18446744073709551615 bytes"));
    }
}
