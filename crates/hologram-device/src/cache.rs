//! On-disk cache of code compiled at run time. Each entry is a file named by the hash of its key, with the whole key
//! inside.
//!
//! Several processes may use the directory at once: an entry is written to a temporary file and renamed. An incomplete
//! entry, or one of another key, counts as absent and is rewritten. Where nothing can be written the cache is empty.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of an entry; the last one is the version of the layout.
const MAGIC: &[u8; 8] = b"HOLOCCH\x01";
/// File name extension of entries.
const ENDING: &str = "hologram";
/// File name extension of files that are still being written.
const UNFINISHED: &str = "hologram-new";

/// The cache's directory and its contents.
#[derive(Clone, Debug)]
pub struct CacheInfo {
    /// The directory; `None` when the system defines no place for caches.
    pub directory: Option<PathBuf>,
    /// Entries in it.
    pub entries: usize,
    /// Bytes of their files.
    pub bytes: u64,
}

/// The contents of the cache of compiled kernels.
///
/// # Errors
/// When its directory exists but cannot be read. The text names the path.
pub fn cache_info() -> io::Result<CacheInfo> {
    DiskCache::standard().info()
}

/// Writes an entry into the cache of compiled kernels and removes it again.
///
/// # Errors
/// What keeps the cache from being written, which is otherwise silent: kernels are then compiled at every start.
pub fn check_cache() -> io::Result<()> {
    DiskCache::standard().check()
}

/// Empties the cache of compiled kernels and returns what it removed; entries that another process removes meanwhile do
/// not count.
///
/// # Errors
/// When its directory exists but cannot be read; when a file cannot be removed, after all others are. The text names
/// the path.
pub fn clear_cache() -> io::Result<CacheInfo> {
    DiskCache::standard().clear()
}

/// Data by key, on disk.
#[derive(Clone, Debug)]
pub struct DiskCache {
    directory: Option<PathBuf>,
}

impl DiskCache {
    /// The cache in `$HOLOGRAM_CACHE`, or in the platform's place for caches.
    pub fn standard() -> DiskCache {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        // As for models: without HOME the system's list of users says it.
        let home = || std::env::home_dir().filter(|home| home.is_absolute());
        let platform = if cfg!(windows) {
            path("LOCALAPPDATA").map(|p| p.join("hologram").join("cache"))
        } else if cfg!(target_vendor = "apple") {
            home().map(|p| p.join("Library").join("Caches").join("hologram"))
        } else {
            let cache = || home().map(|p| p.join(".cache"));
            path("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(cache).map(|p| p.join("hologram"))
        };
        DiskCache { directory: path("HOLOGRAM_CACHE").or(platform) }
    }

    #[cfg(test)]
    fn at(directory: &Path) -> DiskCache {
        DiskCache { directory: Some(directory.to_path_buf()) }
    }

    /// The data of a key; `None` if there is no entry or it is damaged.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.path(key)?).ok()?;
        parse(&entry, key).map(<[u8]>::to_vec)
    }

    /// Stores data. If that fails, as where a folder has the entry's name, nothing happens.
    pub fn put(&self, key: &str, data: &[u8]) {
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
        let mut info = self.nothing();
        self.files()?.iter().for_each(|file| info.add(file));
        Ok(info)
    }

    fn check(&self) -> io::Result<()> {
        const KEY: &str = "a check";
        let Some(path) = self.path(KEY) else { return Ok(()) };
        self.write(&path, KEY, &[])?;
        fs::remove_file(path)
    }

    fn clear(&self) -> io::Result<CacheInfo> {
        self.clear_with(|path| fs::remove_file(path))
    }

    fn clear_with(&self, remove: impl Fn(&Path) -> io::Result<()>) -> io::Result<CacheInfo> {
        let mut removed = self.nothing();
        let mut failures = Vec::new();
        for file in self.files()? {
            match remove(&file.path) {
                Ok(()) => removed.add(&file),
                // Another process removed it first.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => failures.push((file.path, e)),
            }
        }
        let Some((path, error)) = failures.first() else { return Ok(removed) };
        let counts = format!("{} files were not removed, {} entries were", failures.len(), removed.entries);
        Err(io::Error::new(error.kind(), format!("{}: {error} ({counts})", path.display())))
    }

    fn nothing(&self) -> CacheInfo {
        CacheInfo { directory: self.directory.clone(), entries: 0, bytes: 0 }
    }

    /// The cache's own files: regular files with a name that the cache uses.
    fn files(&self) -> io::Result<Vec<CacheFile>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", directory.display()));
        let entries = match fs::read_dir(directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(named)?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(named)?.path();
            let Some(whole) = path.file_name().and_then(|n| own(n.to_str()?)) else { continue };
            // A file may be renamed or removed by another process at any time.
            if let Ok(data) = fs::symlink_metadata(&path)
                && data.is_file()
            {
                files.push(CacheFile { path, bytes: data.len(), whole });
            }
        }
        Ok(files)
    }
}

/// A file of the cache.
struct CacheFile {
    path: PathBuf,
    bytes: u64,
    /// A complete entry; false for a file that was never finished.
    whole: bool,
}

impl CacheInfo {
    /// Counts a file if it is an entry.
    fn add(&mut self, file: &CacheFile) {
        if file.whole {
            self.entries += 1;
            self.bytes += file.bytes;
        }
    }
}

/// Whether a name is that of an entry (true) or of a file that is still being written (false); `None` for names that
/// the cache does not use.
fn own(name: &str) -> Option<bool> {
    let (stem, ending) = name.rsplit_once('.')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    match ending {
        ENDING if stem.len() == 32 && stem.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) => Some(true),
        UNFINISHED if stem.split_once('-').is_some_and(|(a, b)| digits(a) && digits(b)) => Some(false),
        _ => None,
    }
}

/// The data of an entry, if it is complete and of this key.
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

/// 128-bit FNV-1a. It names files and detects damage; different keys with one hash are told apart by comparing the
/// keys.
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
        // Every length, and a changed byte at every place of the head and at some of the data.
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
        // Another key's entry under this name: two keys with one hash.
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
        // Files that only look like entries are neither counted nor removed; a folder in an entry's place does no harm.
        let folder = cache.path("in the way").unwrap();
        fs::create_dir_all(folder.join("below")).unwrap();
        cache.put("in the way", b"1");
        assert_eq!(cache.get("in the way"), None);
        let hex = "0123456789abcdef0123456789abcdef";
        for name in ["notes", &hex[1..], &format!("{hex}0"), &hex.to_uppercase(), &hex.replace('a', "g")] {
            fs::write(path.join(format!("{name}.{ENDING}")), "stays").unwrap();
        }
        for name in ["mine", "1", "1-", "-1", "1-1-1"] {
            fs::write(path.join(format!("{name}.{UNFINISHED}")), "stays").unwrap();
        }
        assert_eq!((cache.info().unwrap().entries, cache.clear().unwrap().entries), (0, 0));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 12);
        // A directory that cannot be created: nothing is stored, nothing fails.
        let impossible = DiskCache::at(&path.join("other.txt").join("below"));
        impossible.put("a", b"1");
        assert_eq!(impossible.get("a"), None);
        let file = path.join("other.txt");
        let cache = DiskCache::at(&file);
        for error in [cache.info().unwrap_err(), cache.clear().unwrap_err()] {
            assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
        }
        assert_eq!(DiskCache { directory: None }.clear().unwrap().entries, 0);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn clearing_at_the_same_time_counts_every_entry_once() {
        let path = directory("clears");
        let cache = DiskCache::at(&path);
        for i in 0..400 {
            cache.put(&i.to_string(), &[0; 100]);
        }
        let held = cache.info().unwrap();
        let barrier = std::sync::Barrier::new(4);
        let clear = || {
            barrier.wait();
            cache.clear().unwrap()
        };
        let removed: Vec<CacheInfo> = std::thread::scope(|scope| {
            let clears: Vec<_> = (0..4).map(|_| scope.spawn(clear)).collect();
            clears.into_iter().map(|c| c.join().unwrap()).collect()
        });
        assert_eq!(removed.iter().map(|r| r.entries).sum::<usize>(), 400);
        assert_eq!(removed.iter().map(|r| r.bytes).sum::<u64>(), held.bytes);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn clearing_goes_on_after_a_failure_and_reports_it() {
        let path = directory("failure");
        let cache = DiskCache::at(&path);
        (0..4).for_each(|i| cache.put(&i.to_string(), b"1"));
        let stuck = [cache.path("1").unwrap(), cache.path("2").unwrap()];
        let refuse = |path: &Path| match stuck.iter().any(|s| s == path) {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => fs::remove_file(path),
        };
        let error = cache.clear_with(refuse).unwrap_err();
        let text = error.to_string();
        assert!(stuck.iter().any(|s| text.starts_with(s.to_str().unwrap())), "{text}");
        assert!(text.contains("2 files were not removed, 2 entries were"), "{text}");
        assert_eq!((error.kind(), cache.info().unwrap().entries), (io::ErrorKind::PermissionDenied, 2));
        fs::remove_dir_all(path).unwrap();
    }
}
