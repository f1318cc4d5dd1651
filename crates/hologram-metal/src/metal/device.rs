//! Finds the GPU and opens it.

use std::sync::{Arc, Once};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSOperatingSystemVersion, NSProcessInfo};
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};

use hologram_device::{BackendError, BackendType, DeviceInfo, DeviceLimits, Result};
use hologram_gpu::Target;
use hologram_isa::Capability;
use hologram_isa::meaning::Subnormals;

use super::cores::cores;
use super::parts;
use super::residency::Residency;

// A command-line program gets a default device only when it is linked with CoreGraphics.
#[cfg(target_os = "macos")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// The least version of macOS: the first whose shading language (3.1) has `bfloat`.
const MIN_SYSTEM: isize = 14;

/// The variable of [`relax_watchdog`].
const RELAXED: &str = "AGX_RELAX_CDM_CTXSTORE_TIMEOUT";

/// GPU families by their chips, newest first, from Apple's "Metal Feature Set Tables"; a newer family counts as the
/// newest here.
const FAMILIES: [(MTLGPUFamily, u32, &str); 4] = [
    (MTLGPUFamily(1010), 10, "M5"),
    (MTLGPUFamily::Apple9, 9, "M3, M4"),
    (MTLGPUFamily::Apple8, 8, "M2"),
    (MTLGPUFamily::Apple7, 7, "M1"),
];

/// An opened GPU.
pub(super) struct Device {
    pub(super) raw: Retained<ProtocolObject<dyn MTLDevice>>,
    /// Its own name, such as `Apple M2 Pro`.
    pub(super) name: String,
    /// The properties that compiled code depends on: the system's version and the family.
    pub(super) stamp: String,
    /// The maximum working set that the system recommends, in bytes.
    pub(super) working_set: u64,
    /// The most seconds of a base M1 per command buffer.
    pub(super) command_seconds: f64,
    /// The most bytes per buffer.
    pub(super) max_buffer: usize,
    /// What kernels are chosen for.
    pub(super) target: Target,
    /// The memory that stays wired.
    pub(super) residency: Arc<Residency>,
}

/// Lets the GPU's context switches take their time: the driver reads this when it makes a device, and otherwise may end
/// long kernels. The user's own value stays.
pub(super) fn relax_watchdog() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os(RELAXED).is_none() {
            // SAFETY: macOS locks the environment in `getenv` and `setenv`, so other threads may read it.
            unsafe { std::env::set_var(RELAXED, "1") };
        }
    });
}

pub(super) fn unavailable(reason: String) -> BackendError {
    BackendError::Unavailable { device: BackendType::Metal.to_string(), reason }
}

impl Device {
    /// Opens the system's GPU.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] if there is none, or if it lacks a feature that the kernels need.
    pub(super) fn open() -> Result<(Device, DeviceInfo)> {
        relax_watchdog();
        autoreleasepool(|_| {
            let raw = MTLCreateSystemDefaultDevice()
                .ok_or_else(|| unavailable("the system names no Metal device to this process".into()))?;
            let name = raw.name().to_string();
            let NSOperatingSystemVersion { majorVersion, minorVersion, patchVersion } =
                NSProcessInfo::processInfo().operatingSystemVersion();
            let system = format!("{majorVersion}.{minorVersion}.{patchVersion}");
            if cfg!(target_os = "macos") && majorVersion < MIN_SYSTEM {
                return Err(unavailable(format!("macOS {system} is too old, {MIN_SYSTEM} or later is needed")));
            }
            // Other GPUs (of Macs with Intel processors) have no SIMD-groups of 32, or do not share the host's memory.
            let family = FAMILIES.into_iter().find(|(family, ..)| raw.supportsFamily(*family));
            let (Some((_, number, chips)), true) = (family, raw.hasUnifiedMemory()) else {
                return Err(unavailable(format!("{name} is no Apple GPU of the M1's family or later")));
            };
            let (working_set, max_buffer) = (raw.recommendedMaxWorkingSetSize(), raw.maxBufferLength());
            let cores = cores();
            let info = DeviceInfo {
                backend: BackendType::Metal,
                name: name.clone(),
                memory_bytes: working_set,
                parallelism: cores.map_or(1, |n| n as usize),
                limits: DeviceLimits {
                    workgroup_threads: raw.maxThreadsPerThreadgroup().width as u32,
                    shared_bytes: raw.maxThreadgroupMemoryLength() as u32,
                    buffer_bytes: max_buffer as u64,
                    ..DeviceLimits::PROGRAM
                },
                capabilities: vec![Capability::MatrixTile],
                subnormals: Subnormals::Flushed,
                features: Vec::new(),
                details: vec![
                    ("family", format!("Apple {number} ({chips})")),
                    ("system", system.clone()),
                    ("subnormal f32", "flushed".into()),
                ],
            };
            let stamp = format!("system {system}, family {number}");
            let command_seconds = parts::command_seconds();
            let target = cores.map_or(Target::APPLE, Target::apple);
            let residency = Arc::new(Residency::new(&raw));
            Ok((Device { raw, name, stamp, working_set, command_seconds, max_buffer, target, residency }, info))
        })
    }

    /// Bytes still available within the recommended working set.
    pub(super) fn available(&self) -> u64 {
        self.working_set.saturating_sub(autoreleasepool(|_| self.raw.currentAllocatedSize()) as u64)
    }

    pub(super) fn error(&self, operation: &str, reason: &str) -> BackendError {
        BackendError::Device { device: self.name.clone(), operation: operation.into(), reason: reason.into() }
    }
}
