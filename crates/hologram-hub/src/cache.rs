//! The layout of a Hugging Face cache, shared with other programs:
//! <https://huggingface.co/docs/hub/local-cache>.
//!
//! ```text
//! models--OWNER--NAME/
//!     blobs/CHECKSUM              content
//!     snapshots/COMMIT/PATH       links to blobs
//!     refs/main                   a commit
//! .locks/models--OWNER--NAME/CHECKSUM.lock
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Hub;
use crate::checksum::{Checksum, is_hex};
use crate::choose::{Choice, choose};
use crate::error::{HubError, Result, io, make_folder};
use crate::listing::is_inside;
use crate::request::{Repo, Request, Wanted};

/// Deepest folder of a repository that is looked into.
const MAX_DEPTH: usize = 4;

/// A model that is complete in the cache.
#[derive(Debug)]
pub struct Cached {
    /// The GGUF file, or the folder of safetensors.
    pub path: PathBuf,
    /// Its files.
    pub choice: Choice,
    /// Bytes of its files.
    pub size: u64,
}

impl Hub {
    /// The wanted model, if it is in the cache. Uses no network. Of several models of the repository, the preferred
    /// one.
    ///
    /// # Errors
    /// When folders of the cache cannot be read.
    pub fn cached(&self, request: &Request) -> Result<Option<Cached>> {
        let repo = RepoCache::new(&self.settings().cache, &request.repo);
        for snapshot in repo.snapshots()? {
            if let Some(cached) = snapshot.model(&request.wanted) {
                return Ok(Some(cached));
            }
        }
        Ok(None)
    }
}

/// A repository's folder in the cache.
pub struct RepoCache {
    pub root: PathBuf,
    pub locks: PathBuf,
}

/// The files of a commit in the cache, with their sizes.
pub struct Snapshot {
    pub path: PathBuf,
    pub files: Vec<(String, u64)>,
}

impl RepoCache {
    pub fn new(cache: &Path, repo: &Repo) -> RepoCache {
        let folder = repo.folder();
        RepoCache { root: cache.join(&folder), locks: cache.join(".locks").join(folder) }
    }

    /// Where a content lies.
    pub fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.root.join("blobs").join(checksum.digits())
    }

    /// A commit's folder.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The commits in the cache, that of the main branch first, then by name.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let folder = self.root.join("snapshots");
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io(&folder)(e)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| is_hex(name, 40)).collect();
        let main = fs::read_to_string(self.root.join("refs/main")).unwrap_or_default();
        names.sort_by_key(|name| (name != main.trim(), name.clone()));
        Ok(names.iter().map(|name| Snapshot::read(self.snapshot(name))).collect())
    }

    /// Makes a file part of a commit: a link to its blob, relative, so that a cache can be moved.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub fn link(&self, commit: &str, path: &str, checksum: &Checksum) -> Result<()> {
        let (pointer, blob) = (join(&self.snapshot(commit), path), self.blob(checksum));
        let folder = pointer.parent().unwrap_or(&pointer);
        make_folder(folder)?;
        let up = "../".repeat(path.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{}", checksum.digits()));
        // Others may make the same link at the same time: each makes its own and puts it in place in one step. A copy
        // onto a link that somebody else made would overwrite the blob with itself, truncated.
        replace(&pointer, |new| {
            let linked = symlink(&target, new);
            // Where links need a privilege, as on Windows, the file gets a second name or is copied.
            linked.or_else(|_| fs::hard_link(&blob, new)).or_else(|_| fs::copy(&blob, new).map(|_| ()))
        })
    }

    /// Says that a commit is the main branch's.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_main(&self, commit: &str) -> Result<()> {
        let refs = self.root.join("refs");
        make_folder(&refs)?;
        replace(&refs.join("main"), |new| fs::write(new, commit))
    }
}

impl Snapshot {
    fn read(path: PathBuf) -> Snapshot {
        let mut files = Vec::new();
        walk(&path, "", 0, &mut files);
        files.sort();
        Snapshot { path, files }
    }

    /// The wanted model, if all of its files are here.
    pub fn model(&self, wanted: &Wanted) -> Option<Cached> {
        let choice = choose(self.files.iter().map(|(file, _)| file.as_str()), wanted).ok()?;
        Some(self.cached(choice))
    }

    /// A model of this snapshot.
    pub fn cached(&self, choice: Choice) -> Cached {
        let size = self.files.iter().filter(|(file, _)| choice.files.contains(file)).map(|(_, size)| size).sum();
        let path = if choice.is_folder() { self.path.clone() } else { join(&self.path, &choice.files[0]) };
        Cached { path, choice, size }
    }
}

/// Files under a folder, by their paths in it. Links that lead nowhere are no files.
fn walk(folder: &Path, before: &str, depth: usize, files: &mut Vec<(String, u64)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{before}{name}");
        match fs::metadata(entry.path()) {
            Ok(m) if m.is_file() && is_inside(&path) => files.push((path, m.len())),
            // A link to a folder may lead round in circles.
            Ok(m) if m.is_dir() && depth < MAX_DEPTH && !entry.path().is_symlink() => {
                walk(&entry.path(), &format!("{path}/"), depth + 1, files);
            }
            _ => {}
        }
    }
}

/// A path of a repository in a folder.
pub fn join(folder: &Path, path: &str) -> PathBuf {
    path.split('/').fold(folder.to_path_buf(), |folder, part| folder.join(part))
}

/// Makes a file under a name that nobody else uses, then gives it its own.
fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = path.with_file_name(format!(".{name}.{}.{count}", std::process::id()));
    // What a killed process of the same number left.
    let _ = fs::remove_file(&new);
    let made = make(&new).and_then(|()| fs::rename(&new, path));
    // Two names of one file: the rename does nothing and leaves both.
    let _ = fs::remove_file(&new);
    made.map_err(io(path))
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symlink(to: &Path, at: &Path) -> std::io::Result<()> {
    // The system wants its own separators in a link.
    std::os::windows::fs::symlink_file(to.components().collect::<PathBuf>(), at)
}

impl RepoCache {
    /// Waits until no other process downloads this content, and returns what keeps others away. `waiting` is called if
    /// there is a wait.
    ///
    /// # Errors
    /// When the lock cannot be taken.
    pub fn lock(&self, checksum: &Checksum, waiting: impl FnOnce()) -> Result<fs::File> {
        make_folder(&self.locks)?;
        let path = self.locks.join(format!("{}.lock", checksum.digits()));
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(io(&path))?;
                Ok(file)
            }
            // Some network file systems have no locks. Then a checksum still tells a mixed file from a good one.
            Err(fs::TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => Ok(file),
            Err(fs::TryLockError::Error(e)) => Err(HubError::Io { path, reason: e }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_made_by_several_at_once_leave_the_blob_whole() {
        let folder = std::env::temp_dir().join(format!("hologram-links-{}", std::process::id()));
        let repo: Request = "hf:some/model".parse().unwrap();
        let cache = RepoCache::new(&folder, &repo.repo);
        let (checksum, commit) = (Checksum::Sha256("ab".repeat(32)), "01".repeat(20));
        let blob = cache.blob(&checksum);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(&blob, b"content").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        cache.link(&commit, "a/b.gguf", &checksum).unwrap();
                        cache.set_main(&commit).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read(&blob).unwrap(), b"content");
        assert_eq!(fs::read(cache.snapshot(&commit).join("a/b.gguf")).unwrap(), b"content");
        let names = |folder: PathBuf| fs::read_dir(folder).unwrap().count();
        assert_eq!([names(cache.snapshot(&commit).join("a")), names(cache.root.join("refs"))], [1, 1]);
        fs::remove_dir_all(folder).unwrap();
    }
}
