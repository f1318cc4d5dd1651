//! Kernels compiled from Metal Shading Language.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice, MTLLanguageVersion,
    MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode, MTLPipelineOption,
};

use super::archive::Archive;
use super::device::Device;

use hologram_device::cache::DiskCache;
use hologram_device::{BackendError, Result, busy};
use hologram_gpu::texts;
use hologram_isa::SUBGROUP_SIZE;

/// The version of the language in which texts are printed and compiled: the first with `bfloat`; macOS 14 supports it.
pub(super) const LANGUAGE: (u32, u32) = (3, 1);

/// Everything apart from the text that machine code depends on: the device, the system, [`LANGUAGE`] and the compiler
/// options. It begins the key of whatever is kept on disk.
pub(super) fn compiled_for(device: &Device) -> String {
    let (major, minor) = LANGUAGE;
    format!("metal, {}, {}, language {major}.{minor}, safe math, precise functions", device.name, device.stamp)
}

/// The compiler's time after which the user is told what the wait is for.
const PATIENCE: Duration = Duration::from_millis(300);

/// The compiler of a device. Each native kernel is compiled once, apart from the others of its text, and kept; machine
/// code is cached on disk.
pub(super) struct Modules {
    cache: DiskCache,
    loaded: Mutex<Loaded>,
}

/// A text's functions, and the cache key of its machine code.
struct Library {
    raw: Retained<ProtocolObject<dyn MTLLibrary>>,
    key: Arc<str>,
}

#[derive(Default)]
struct Loaded {
    kernels: HashMap<(&'static str, String), Kernel>,
    /// What the compiler has taken for them.
    spent: Duration,
}

impl Modules {
    pub(super) fn new() -> Modules {
        Modules { cache: DiskCache::standard(), loaded: Mutex::default() }
    }

    /// The only kernel of a text.
    ///
    /// # Errors
    /// As [`Modules::kernel`].
    pub(super) fn program(&self, device: &Device, name: &str, text: &str, entry: &str) -> Result<Kernel> {
        Kernel::new(device, &self.cache, &library(device, name, text)?, name, entry)
    }

    /// A kernel of one of the native texts.
    ///
    /// # Errors
    /// [`BackendError::Kernel`] with the compiler's message.
    pub(super) fn kernel(&self, device: &Device, image: &'static str, entry: &str) -> Result<Kernel> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (image, entry.to_string());
        if let Some(kernel) = loaded.kernels.get(&key) {
            return Ok(kernel.clone());
        }
        let text =
            texts::text_of_kernel(image, entry).ok_or_else(|| refused(device, entry, "this build lacks its text"))?;
        let (start, shown) = (Instant::now(), loaded.spent > PATIENCE);
        if shown {
            busy(Some(&format!("compiling kernels for {}: {}", device.name, loaded.kernels.len() + 1)));
        }
        let kernel =
            library(device, image, &text).and_then(|library| Kernel::new(device, &self.cache, &library, entry, entry));
        loaded.spent += start.elapsed();
        if shown {
            busy(None);
        }
        let kernel = kernel?;
        loaded.kernels.insert(key, kernel.clone());
        Ok(kernel)
    }
}

/// A kernel that can be launched.
#[derive(Clone)]
pub(super) struct Kernel {
    pub(super) pipeline: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    /// The most threads per workgroup with which the device runs it.
    max_threads: usize,
}

fn text_of(error: &NSError) -> String {
    error.localizedDescription().to_string().trim().to_string()
}

/// Compiler options: every operation is rounded as the language specifies, nothing is reassociated, no value is assumed
/// not to occur. Without a version, Metal takes that of the oldest system that the executable runs on: 2.3 for Rust's
/// default of macOS 11.
fn options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion((LANGUAGE.0 as usize) << 16 | LANGUAGE.1 as usize));
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        // Systems before macOS 15 have one switch for all of these.
        #[expect(deprecated, reason = "the only switch of these systems")]
        options.setFastMathEnabled(false);
    }
    options
}

/// The library of a text, or the compiler's message.
pub(super) fn compile(
    device: &ProtocolObject<dyn MTLDevice>,
    text: &str,
) -> std::result::Result<Retained<ProtocolObject<dyn MTLLibrary>>, String> {
    autoreleasepool(|_| {
        device.newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options())).map_err(|e| text_of(&e))
    })
}

/// The text's functions.
///
/// # Errors
/// [`BackendError::Kernel`] with the compiler's message.
fn library(device: &Device, name: &str, text: &str) -> Result<Library> {
    let raw = compile(&device.raw, text).map_err(|reason| refused(device, name, &reason))?;
    Ok(Library { raw, key: format!("{}\n{text}", compiled_for(device)).into() })
}

impl Kernel {
    /// A kernel of a library.
    ///
    /// # Errors
    /// [`BackendError::Kernel`] with the system's message.
    fn new(device: &Device, cache: &DiskCache, library: &Library, name: &str, entry: &str) -> Result<Kernel> {
        autoreleasepool(|_| {
            let function = library
                .raw
                .newFunctionWithName(&NSString::from_str(entry))
                .ok_or_else(|| refused(device, name, &format!("its text has no kernel {entry}")))?;
            let descriptor = MTLComputePipelineDescriptor::new();
            descriptor.setComputeFunction(Some(&function));
            let key = format!("{entry}, {}", library.key);
            let archive = Archive::open(device, cache, &key, &descriptor);
            let pipeline = device
                .raw
                .newComputePipelineStateWithDescriptor_options_reflection_error(
                    &descriptor,
                    MTLPipelineOption::None,
                    None,
                )
                .map_err(|e| refused(device, name, &text_of(&e)))?;
            if let Some(archive) = archive {
                archive.keep(cache, &key);
            }
            let width = pipeline.threadExecutionWidth();
            if width != SUBGROUP_SIZE as usize {
                return Err(refused(
                    device,
                    name,
                    &format!("its SIMD-groups have {width} threads, not {SUBGROUP_SIZE}"),
                ));
            }
            let max_threads = pipeline.maxTotalThreadsPerThreadgroup();
            Ok(Kernel { pipeline, max_threads })
        })
    }

    /// Checks that the device runs the kernel with workgroups of this many threads.
    ///
    /// # Errors
    /// [`BackendError::Kernel`].
    pub(super) fn check_threads(&self, device: &Device, name: &str, threads: u32) -> Result<()> {
        if threads as usize > self.max_threads {
            let reason = format!(
                "its workgroups have {threads} threads, and the registers that it needs allow {} on this GPU",
                self.max_threads
            );
            return Err(refused(device, name, &reason));
        }
        Ok(())
    }
}

fn refused(device: &Device, name: &str, reason: &str) -> BackendError {
    BackendError::Kernel { device: device.name.clone(), kernel: name.into(), reason: reason.into() }
}
