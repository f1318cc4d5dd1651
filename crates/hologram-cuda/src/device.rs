//! Finds GPUs and opens one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hologram_device::{Backend, BackendError, BackendType, DeviceInfo, DeviceKind, DeviceLimits, OpenOptions, Result};
use hologram_gpu::Target;

use super::backend::{CudaBackend, CudaOptions};
use super::blas::Functions;
use super::context::{Context, DeviceFacts, device_count, device_facts};
use super::driver::{Driver, Missing};

/// The least compute capability: the first with bf16 tensor cores, for which the kernels' PTX is compiled.
const MIN_CAPABILITY: u32 = 80;

/// An opened GPU.
pub(super) struct Gpu {
    pub(super) context: Arc<Context>,
    pub(super) info: DeviceInfo,
    pub(super) target: Target,
    /// The driver's version, as exactly as it is known.
    pub(super) driver: String,
}

/// Whether there is a usable GPU.
pub(super) enum Presence {
    /// Descriptions of the GPUs; an error for each that cannot be used.
    Gpus(Vec<Result<DeviceInfo>>),
    /// No driver is installed: a machine without an NVIDIA GPU, or without its software.
    NoDriver(String),
    /// There is a driver, but it cannot be used.
    Unusable(String),
}

/// Looks for GPUs without opening one.
pub(super) fn presence() -> Presence {
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(Missing::NoDriver(why)) => return Presence::NoDriver(why),
        Err(Missing::Unusable(why)) => return Presence::Unusable(why),
    };
    match device_count(driver) {
        Err(why) => Presence::Unusable(why),
        Ok(0) => Presence::Unusable("the driver finds no NVIDIA GPU".into()),
        Ok(count) => Presence::Gpus((0..count).map(|i| describe(driver, i).map(|(_, _, info)| info)).collect()),
    }
}

/// Adds the optional libraries to a GPU's description. Loading them takes a third of a second, which opening a GPU
/// avoids.
fn with_libraries(mut info: DeviceInfo) -> DeviceInfo {
    let cublaslt = match Functions::get() {
        Ok(library) => format!("found ({})", library.name()),
        Err(why) => why.to_string(),
    };
    info.details.push(("cublaslt", cublaslt));
    info
}

/// NVIDIA GPUs as a kind of device.
pub struct Cuda;

impl DeviceKind for Cuda {
    fn backend(&self) -> BackendType {
        BackendType::Cuda
    }

    fn devices(&self) -> Vec<(String, Result<DeviceInfo>)> {
        match presence() {
            Presence::Gpus(gpus) => {
                let gpus = gpus.into_iter().map(|gpu| gpu.map(with_libraries));
                gpus.zip(0..).map(|(gpu, ordinal)| (name(ordinal), gpu)).collect()
            }
            Presence::NoDriver(reason) | Presence::Unusable(reason) => {
                let device = BackendType::Cuda.to_string();
                vec![(device.clone(), Err(BackendError::Unavailable { device, reason }))]
            }
        }
    }

    fn open(&self, number: u32, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
        let options = CudaOptions { ordinal: number, memory_cap: options.memory_cap, precision: options.precision };
        Ok(Arc::new(CudaBackend::with_options(options)?))
    }

    fn open_any(&self, options: &OpenOptions) -> std::result::Result<Arc<dyn Backend>, Option<String>> {
        let gpus = match presence() {
            Presence::Gpus(gpus) => gpus,
            Presence::NoDriver(why) => return Err(has_card(Path::new("/sys/bus/pci/devices")).then_some(why)),
            Presence::Unusable(why) => return Err(Some(why)),
        };
        let mut why = None;
        for (gpu, number) in gpus.into_iter().zip(0..) {
            match gpu.and_then(|_| self.open(number, options)) {
                Ok(gpu) => return Ok(gpu),
                Err(error) => why = Some(error.to_string()),
            }
        }
        Err(why)
    }
}

/// Whether one of Linux's PCI devices in this folder is a display controller (class 3) of NVIDIA (vendor 10de).
fn has_card(folder: &Path) -> bool {
    let Ok(devices) = std::fs::read_dir(folder) else { return false };
    let begins = |path: PathBuf, text: &str| std::fs::read_to_string(path).is_ok_and(|own| own.starts_with(text));
    devices
        .flatten()
        .map(|device| device.path())
        .any(|device| begins(device.join("vendor"), "0x10de") && begins(device.join("class"), "0x03"))
}

fn unavailable(ordinal: u32, reason: String) -> BackendError {
    BackendError::Unavailable { device: name(ordinal), reason }
}

fn name(ordinal: u32) -> String {
    format!("{}:{ordinal}", BackendType::Cuda)
}

fn describe(driver: &Driver, ordinal: u32) -> Result<(i32, DeviceFacts, DeviceInfo)> {
    let (device, facts) = device_facts(driver, ordinal).map_err(|e| unavailable(ordinal, e))?;
    let capability = format!("{}.{}", facts.capability / 10, facts.capability % 10);
    if facts.capability < MIN_CAPABILITY {
        let (major, minor) = (MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
        let reason = format!("{} has compute capability {capability}, {major}.{minor} or more is needed", facts.name);
        return Err(unavailable(ordinal, reason));
    }
    let info = DeviceInfo {
        backend: BackendType::Cuda,
        name: facts.name.clone(),
        memory_bytes: facts.memory_bytes,
        parallelism: facts.multiprocessors as usize,
        limits: DeviceLimits { shared_bytes: facts.max_shared, ..DeviceLimits::PROGRAM },
        capabilities: hologram_isa::Capability::ALL.to_vec(),
        subnormals: hologram_isa::meaning::Subnormals::Kept,
        features: Vec::new(),
        details: vec![("capability", capability), ("driver", driver_text(driver))],
    };
    Ok((device, facts, info))
}

/// The driver's own version, if the system reports it, and its CUDA version.
fn driver_text(driver: &Driver) -> String {
    let cuda = driver.version_text();
    match std::fs::read_to_string("/sys/module/nvidia/version") {
        Ok(version) if !version.trim().is_empty() => format!("{} (CUDA {cuda})", version.trim()),
        _ => format!("CUDA {cuda}"),
    }
}

impl Gpu {
    /// Opens a GPU by its place in the driver's order.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with what is missing.
    pub(super) fn open(ordinal: u32) -> Result<Gpu> {
        let driver = Driver::get().map_err(|missing| unavailable(ordinal, missing.reason().to_string()))?;
        let count = device_count(driver).map_err(|e| unavailable(ordinal, e))?;
        if ordinal >= count {
            let reason = match count {
                0 => "the driver finds no NVIDIA GPU".to_string(),
                _ => format!("there are {count} GPUs, {} to {}", name(0), name(count - 1)),
            };
            return Err(unavailable(ordinal, reason));
        }
        let (device, facts, info) = describe(driver, ordinal)?;
        let context = Context::new(driver, device, name(ordinal)).map_err(|e| unavailable(ordinal, e))?;
        let target = Target::nvidia(facts.capability, facts.multiprocessors, facts.max_shared);
        Ok(Gpu { context, info, target, driver: driver_text(driver) })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn cards_are_found_by_vendor_and_class() {
        let folder = std::env::temp_dir().join(format!("hologram-pci-{}", std::process::id()));
        let device = |name: &str, vendor: &str, class: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).expect("a folder");
            std::fs::write(path.join("vendor"), vendor).expect("a file");
            std::fs::write(path.join("class"), class).expect("a file");
        };
        assert!(!super::has_card(&folder));
        device("0000:00:02.0", "0x8086\n", "0x030000\n");
        device("0000:01:00.1", "0x10de\n", "0x040300\n");
        assert!(!super::has_card(&folder), "a sound device is no GPU");
        device("0000:01:00.0", "0x10de\n", "0x030200\n");
        assert!(super::has_card(&folder));
        std::fs::remove_dir_all(folder).expect("the folder");
    }
}
