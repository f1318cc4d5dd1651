//! Split models as written by `gguf-split`: `NAME-00001-of-00003.gguf` and so on. The first file has the metadata;
//! `split.no`, `split.count` and `split.tensors.count` identify the parts.

use std::path::{Path, PathBuf};

use super::{FileBytes, GgufFile, Part};
use crate::error::{LlmError, Result};

/// A file's position in its split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The index of the file, from 0.
    no: u64,
    count: u64,
    /// Tensors of all files.
    tensors: Option<u64>,
}

impl Place {
    fn of(file: &GgufFile) -> Result<Place> {
        let no = file.get_opt("split.no")?.unwrap_or(0);
        Ok(Place {
            no,
            count: file.get_opt("split.count")?.unwrap_or(1),
            tensors: file.get_opt("split.tensors.count")?,
        })
    }
}

/// Rejects a file that is one of several.
pub(super) fn reject(file: GgufFile) -> Result<GgufFile> {
    let Place { no, count, .. } = Place::of(&file)?;
    if count > 1 {
        let part = no.saturating_add(1);
        return Err(bad(&file.path, format!("it is part {part} of {count}; a split model must be opened by path")));
    }
    Ok(file)
}

/// Opens the other files of a split model and adds their tensors to the first.
pub(super) fn complete(mut first: GgufFile) -> Result<GgufFile> {
    let place = Place::of(&first)?;
    if place.count <= 1 {
        return Ok(first);
    }
    let of = place.count;
    let name = first.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part_name = |prefix: &str, no: u64| format!("{prefix}-{:05}-of-{of:05}.gguf", no + 1);
    let suffix = part_name("", place.no.min(of));
    let Some(prefix) = name.strip_suffix(&suffix).map(str::to_string) else {
        let reason =
            format!("it is one of {of} parts, but its name must end with {suffix} so that the others can be found");
        return Err(bad(&first.path, reason));
    };
    if place.no != 0 {
        let (part, lead) = (place.no + 1, part_name(&prefix, 0));
        return Err(bad(&first.path, format!("it is part {part} of {of}; open the first part, {lead}")));
    }
    let paths: Vec<PathBuf> = (1..of).map(|no| first.path.with_file_name(part_name(&prefix, no))).collect();
    let missing: Vec<&PathBuf> = paths.iter().filter(|p| !p.exists()).collect();
    if let Some(path) = missing.first() {
        let (what, n) = (path.display(), missing.len());
        let all = if n > 1 { format!(" ({n} of {of} parts are missing)") } else { String::new() };
        return Err(bad(&first.path, format!("its part {what} is missing{all}")));
    }
    for (no, path) in (1u64..).zip(paths) {
        let bytes = FileBytes::open(&path)?;
        take(&mut first, GgufFile::parse(&path, bytes)?, Place { no, ..place })?;
    }
    match place.tensors {
        Some(n) if n != first.header.tensors.len() as u64 => {
            let found = first.header.tensors.len();
            Err(bad(&first.path, format!("its {of} parts have {found} tensors, but split.tensors.count is {n}")))
        }
        _ => Ok(first),
    }
}

/// Adds the tensors of another file.
fn take(first: &mut GgufFile, mut file: GgufFile, expected: Place) -> Result<()> {
    let found = Place::of(&file)?;
    let architecture = "general.architecture";
    let same = match (file.get_opt::<&str>(architecture)?, first.get_opt::<&str>(architecture)?) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    if (found.no, found.count) != (expected.no, expected.count)
        || (found.tensors.is_some() && found.tensors != expected.tensors)
        || !same
    {
        let (part, of, whole) = (expected.no + 1, expected.count, first.path.display());
        let (is, is_of) = (found.no.saturating_add(1), found.count);
        let reason = if (found.count, found.tensors, same) == (expected.count, expected.tensors, true) {
            format!("it should be part {part} of {of}, but contains part {is}")
        } else {
            format!("it should be part {part} of {of} of {whole}, but is part {is} of {is_of} of another model")
        };
        return Err(bad(&file.path, reason));
    }
    let part = first.parts.len();
    for mut tensor in std::mem::take(&mut file.header.tensors) {
        tensor.part = part;
        let at = first.header.tensors.len();
        if first.header.tensor_index.insert(tensor.name.clone(), at).is_some() {
            return Err(bad(&file.path, format!("tensor {} is also in another part", tensor.name)));
        }
        first.header.tensors.push(tensor);
    }
    first.parts.append(&mut file.parts);
    Ok(())
}

fn bad(path: &Path, reason: String) -> LlmError {
    LlmError::Malformed { path: path.into(), reason }
}

impl Part {
    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The mapped bytes. A clone keeps the mapping alive after the [`GgufFile`] is dropped.
    pub fn map(&self) -> std::sync::Arc<FileBytes> {
        self.map.clone()
    }
}
