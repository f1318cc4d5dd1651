//! Removing models from the cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Hub;
use crate::cache::{RepoCache, Snapshot, join};
use crate::choose::{choose, models};
use crate::error::{HubError, Result, io};
use crate::partial::{BYTES, RECORD};
use crate::request::{Request, Wanted};

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Paths of its files in the repository.
    pub files: Vec<String>,
    /// Bytes that are free again.
    pub bytes: u64,
}

impl Hub {
    /// Removes a model from the cache: the whole repository without a file or type, else that model's files. Unfinished
    /// downloads of the repository go too.
    ///
    /// # Errors
    /// When the cache has no such model, or a file cannot be removed.
    pub fn remove(&self, request: &Request) -> Result<Removed> {
        let cache = RepoCache::new(&self.settings().cache, &request.repo);
        let nothing = |reason: String| HubError::NoFile { repo: request.repo.to_string(), reason };
        if !cache.root.is_dir() {
            return Err(nothing("is not in the cache; `hologram models` lists what is".into()));
        }
        let mut removed = Removed::default();
        let mut reason = None;
        for snapshot in cache.snapshots()? {
            let paths = || snapshot.files.iter().map(|(file, _)| file.as_str());
            if request.wanted == Wanted::Any {
                removed.files.extend(paths().map(String::from));
                continue;
            }
            match choose(paths(), &request.wanted) {
                Ok(choice) => {
                    for file in choice.files {
                        let pointer = join(&snapshot.path, &file);
                        fs::remove_file(&pointer).map_err(io(&pointer))?;
                        removed.files.push(file);
                    }
                }
                Err(e) => reason = Some(e),
            }
        }
        if request.wanted != Wanted::Any && removed.files.is_empty() {
            return Err(nothing(reason.unwrap_or_else(|| "has no complete model in the cache".into())));
        }
        removed.files.sort();
        removed.files.dedup();
        let has_model = |snapshot: &Snapshot| !models(snapshot.files.iter().map(|(file, _)| file.as_str())).is_empty();
        let rest = cache.snapshots()?.iter().any(has_model);
        if request.wanted == Wanted::Any || !rest {
            removed.bytes = size(&cache.root);
            fs::remove_dir_all(&cache.root).map_err(io(&cache.root))?;
            let _ = fs::remove_dir_all(&cache.locks);
        } else {
            removed.bytes = sweep(&cache)?;
        }
        Ok(removed)
    }
}

/// Removes blobs that no snapshot links to, and unfinished downloads. Returns their bytes.
fn sweep(cache: &RepoCache) -> Result<u64> {
    let mut linked = BTreeSet::new();
    for snapshot in cache.snapshots()? {
        linked.extend(snapshot.files.iter().filter_map(|(file, _)| fs::canonicalize(join(&snapshot.path, file)).ok()));
    }
    let blobs = cache.root.join("blobs");
    let mut freed = 0;
    for entry in fs::read_dir(&blobs).map_err(io(&blobs))?.flatten() {
        let path = entry.path();
        let unfinished = path.extension().is_some_and(|end| end == BYTES || end == RECORD);
        let alone = fs::canonicalize(&path).is_ok_and(|path| !linked.contains(&path));
        // Other programs' own unfinished downloads stay.
        if unfinished || alone && path.extension().is_none() {
            freed += on_disk(&path);
            fs::remove_file(&path).map_err(io(&path))?;
        }
    }
    Ok(freed)
}

/// Bytes of all files in a folder; links count nothing.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| !path.is_symlink()).collect();
    paths.iter().map(|path| if path.is_dir() { size(path) } else { on_disk(path) }).sum()
}

/// Bytes that a file takes: fewer than its length while it is being downloaded.
fn on_disk(path: &Path) -> u64 {
    let Ok(metadata) = fs::metadata(path) else { return 0 };
    #[cfg(unix)]
    return metadata.len().min(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512);
    #[cfg(not(unix))]
    metadata.len()
}
