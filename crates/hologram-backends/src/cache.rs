//! What was compiled at run time, kept on disk: one file an entry, named by the hash of its key, with the whole key inside.
//!
//! Several processes may use the directory at once: an entry is written beside its place and renamed into it, and an entry that is not
//! whole, or of another key, counts as absent and is written anew. Where nothing can be written the cache is simply empty.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of an entry; the last is the version of its layout.
const MAGIC: &[u8; 8] = b"HOLOCCH\x01";
/// The ending of entries' names.
const ENDING: &str = "hologram";
/// The ending of files that are still being written.
const UNFINISHED: &str = "hologram-new";

/// The cache's directory and what it holds.
#[derive(Clone, Debug)]
pub struct CacheInfo {
    /// The directory; `None` when the system names no place for caches.
    pub directory: Option<PathBuf>,
    /// Entries in it.
    pub entries: usize,
    /// Bytes of their files.
    pub bytes: u64,
}

/// What the cache of compiled kernels holds.
///
/// # Errors
/// When its directory is there but cannot be read.
pub fn cache_info() -> io::Result<CacheInfo> {
    DiskCache::standard().info()
}

/// Empties the cache of compiled kernels, and says what it held.
///
/// # Errors
/// When its directory is there but cannot be read, or an entry cannot be removed.
pub fn clear_cache() -> io::Result<CacheInfo> {
    DiskCache::standard().clear()
}

/// Data by key, on disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskCache {
    directory: Option<PathBuf>,
}

impl DiskCache {
    /// The cache in `$HOLOGRAM_CACHE`, or in the platform's place for caches.
    pub(crate) fn standard() -> DiskCache {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let platform = if cfg!(windows) {
            path("LOCALAPPDATA").map(|p| p.join("hologram").join("cache"))
        } else if cfg!(target_vendor = "apple") {
            path("HOME").map(|p| p.join("Library").join("Caches").join("hologram"))
        } else {
            let home = || path("HOME").map(|p| p.join(".cache"));
            path("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(home).map(|p| p.join("hologram"))
        };
        DiskCache { directory: path("HOLOGRAM_CACHE").or(platform) }
    }

    #[cfg(test)]
    fn at(directory: &Path) -> DiskCache {
        DiskCache { directory: Some(directory.to_path_buf()) }
    }

    /// The data of a key, unless it was never put, or its entry is damaged.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.path(key)?).ok()?;
        parse(&entry, key).map(<[u8]>::to_vec)
    }

    /// Keeps data; where that is not possible, nothing happens.
    pub(crate) fn put(&self, key: &str, data: &[u8]) {
        if let Some(path) = self.path(key) {
            let _ = self.write(&path, key, data);
        }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{:032x}.{ENDING}", hash(key.as_bytes()))))
    }

    fn write(&self, path: &Path, key: &str, data: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut entry = Vec::with_capacity(MAGIC.len() + 32 + key.len() + data.len());
        entry.extend_from_slice(MAGIC);
        entry.extend_from_slice(&(key.len() as u64).to_le_bytes());
        entry.extend_from_slice(key.as_bytes());
        entry.extend_from_slice(&(data.len() as u64).to_le_bytes());
        entry.extend_from_slice(&hash(data).to_le_bytes());
        entry.extend_from_slice(data);
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let new = directory.join(format!("{}-{number}.{UNFINISHED}", std::process::id()));
        let done = fs::write(&new, entry).and_then(|()| fs::rename(&new, path));
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done
    }

    fn info(&self) -> io::Result<CacheInfo> {
        let mut info = CacheInfo { directory: self.directory.clone(), entries: 0, bytes: 0 };
        for (path, bytes) in self.files()? {
            if path.extension().is_some_and(|e| e == ENDING) {
                info.entries += 1;
                info.bytes += bytes;
            }
        }
        Ok(info)
    }

    fn clear(&self) -> io::Result<CacheInfo> {
        let info = self.info()?;
        for (path, _) in self.files()? {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(info)
    }

    /// The cache's own files with their sizes.
    fn files(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let entries = match fs::read_dir(directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let own = path.extension().is_some_and(|e| e == ENDING || e == UNFINISHED);
            // A file may be renamed or removed by another process at any time.
            if own && let Ok(data) = fs::symlink_metadata(&path) {
                files.push((path, data.len()));
            }
        }
        Ok(files)
    }
}

/// The data of an entry, if it is whole and of this key.
fn parse<'a>(entry: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let rest = entry.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*length) != key.len() as u64 {
        return None;
    }
    let rest = rest.strip_prefix(key.as_bytes())?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (sum, data) = rest.split_first_chunk::<16>()?;
    let whole = u64::from_le_bytes(*length) == data.len() as u64 && u128::from_le_bytes(*sum) == hash(data);
    whole.then_some(data)
}

/// FNV-1a with 128 bits. It names files and finds damage; that two keys differ is seen by comparing them.
fn hash(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hologram-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn damaged_and_foreign_entries_are_absent_and_written_anew() {
        let path = directory("damage");
        let cache = DiskCache::at(&path);
        assert_eq!((cache.get("key"), cache.info().unwrap().entries), (None, 0));
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        cache.put("key", &data);
        assert_eq!(cache.get("key").as_ref(), Some(&data));
        let file = cache.path("key").unwrap();
        let whole = fs::read(&file).unwrap();
        // Every length, and a changed byte in every place of the head and in some of the data.
        for length in (0..64).chain([whole.len() - 1]) {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(cache.get("key"), None, "{length} bytes");
        }
        for at in (0..64).chain((64..whole.len()).step_by(97)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, &damaged).unwrap();
            assert_eq!(cache.get("key"), None, "byte {at}");
        }
        fs::write(&file, [whole.as_slice(), b"more"].concat()).unwrap();
        assert_eq!(cache.get("key"), None);
        cache.put("key", &data);
        assert_eq!(cache.get("key").as_ref(), Some(&data));
        // The entry of another key under this name: two keys with one hash.
        fs::copy(&file, cache.path("kez").unwrap()).unwrap();
        assert_eq!(cache.get("kez"), None);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn writers_at_the_same_time_leave_whole_entries() {
        let path = directory("writers");
        let cache = DiskCache::at(&path);
        let data = |i: usize| vec![i as u8; 100_000 + i];
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let cache = cache.clone();
                scope.spawn(move || {
                    for round in 0..50 {
                        cache.put("shared", &data(writer));
                        let found = cache.get("shared").expect("an entry is there at all times");
                        assert_eq!(found, data(found[0] as usize), "round {round}");
                    }
                });
            }
        });
        let info = cache.info().unwrap();
        assert!(info.entries == 1 && info.bytes > 100_000, "{info:?}");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "no unfinished file is left");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn clearing_removes_the_caches_own_files_only() {
        let path = directory("clear");
        let cache = DiskCache::at(&path);
        cache.put("a", b"1");
        cache.put("b", b"2");
        fs::write(path.join("other.txt"), "stays").unwrap();
        fs::write(path.join(format!("1-1.{UNFINISHED}")), "left by a process that died").unwrap();
        assert_eq!(cache.clear().unwrap().entries, 2);
        assert_eq!(cache.info().unwrap().entries, 0);
        assert_eq!((cache.get("a"), fs::read_dir(&path).unwrap().count()), (None, 1));
        // A directory that cannot be made: nothing is kept, nothing fails.
        let impossible = DiskCache::at(&path.join("other.txt").join("below"));
        impossible.put("a", b"1");
        assert_eq!(impossible.get("a"), None);
        assert_eq!(DiskCache { directory: None }.clear().unwrap().entries, 0);
        fs::remove_dir_all(path).unwrap();
    }
}
