//! Compiled kernels on disk, each in a binary archive of Metal, which contains a kernel's machine code or compiles it
//! if missing. This is only a cache: after any failure here the kernel is compiled without an archive.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use hologram_device::cache::DiskCache;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString, NSURL};
use objc2_metal::{MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice};

use super::device::Device;

/// A temporary file for an archive: Metal reads and writes archives only as files.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("hologram-{}-{number}.metalarchive", std::process::id())))
    }

    fn url(&self) -> Option<Retained<NSURL>> {
        self.0.to_str().map(|path| NSURL::fileURLWithPath(&NSString::from_str(path)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The file is missing if Metal could not write it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The archive from which a pipeline is made. The caller has an autorelease pool.
pub(super) struct Archive {
    raw: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
    /// Whether it came from the cache.
    kept: bool,
    _file: Option<Scratch>,
}

impl Archive {
    /// The archive of a key with the descriptor's kernel: the cached one, or a new one.
    pub(super) fn open(
        device: &Device,
        cache: &DiskCache,
        key: &str,
        descriptor: &MTLComputePipelineDescriptor,
    ) -> Option<Archive> {
        let archive = Archive::cached(device, cache, key).or_else(|| {
            let raw = device.raw.newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new()).ok()?;
            raw.addComputePipelineFunctionsWithDescriptor_error(descriptor).ok()?;
            Some(Archive { raw, kept: false, _file: None })
        })?;
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive.raw])));
        Some(archive)
    }

    fn cached(device: &Device, cache: &DiskCache, key: &str) -> Option<Archive> {
        let (data, file) = (cache.get(key)?, Scratch::new());
        std::fs::write(&file.0, data).ok()?;
        let descriptor = MTLBinaryArchiveDescriptor::new();
        let url = file.url()?;
        descriptor.setUrl(Some(&url));
        let raw = device.raw.newBinaryArchiveWithDescriptor_error(&descriptor).ok()?;
        Some(Archive { raw, kept: true, _file: Some(file) })
    }

    /// Stores a new archive in the cache.
    pub(super) fn keep(&self, cache: &DiskCache, key: &str) {
        let file = Scratch::new();
        if let Some(url) = file.url()
            && !self.kept
            && self.raw.serializeToURL_error(&url).is_ok()
            && let Ok(data) = std::fs::read(&file.0)
        {
            cache.put(key, &data);
        }
    }
}
