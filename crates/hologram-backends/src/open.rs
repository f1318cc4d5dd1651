//! Which devices there are, and opening one by its name.

use std::sync::Arc;

use crate::backend::{Backend, BackendType, DeviceInfo};
use crate::cpu::{CpuBackend, CpuOptions};
use crate::cuda::{self, CudaBackend, CudaOptions, Presence};
use crate::error::{BackendError, Result};
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
use crate::metal::{self, MetalBackend, MetalOptions};
use crate::reference::ReferenceBackend;

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// A CPU's worker threads, 1 to 1024; by default one for each physical core that the process may use. Other devices ignore it.
    pub threads: Option<usize>,
    /// The most bytes of device memory that buffers and the allocator's cache may hold together; by default no limit but the device's.
    pub memory_cap: Option<u64>,
}

/// The kinds of device that [`open`] can open here, best first.
pub fn available_backends() -> Vec<BackendType> {
    let gpu = matches!(cuda::presence(), Presence::Gpus(gpus) if gpus.iter().any(Result::is_ok));
    let gpus = [(gpu, BackendType::Cuda), (metal_device().is_ok(), BackendType::Metal)];
    let gpus = gpus.into_iter().filter_map(|(there, gpu)| there.then_some(gpu));
    gpus.chain([BackendType::Cpu, BackendType::Reference]).collect()
}

/// The devices of this machine, best first, each with the name that [`open`] takes: its description, or why it cannot be used. A GPU's
/// driver that does not work stands for its GPUs.
pub fn devices() -> Vec<(String, Result<DeviceInfo>)> {
    let cuda = BackendType::Cuda.name();
    let gpus = match cuda::presence() {
        Presence::Gpus(gpus) => {
            let described = gpus.into_iter().map(|gpu| gpu.map(cuda::with_libraries));
            described.enumerate().map(|(i, gpu)| (format!("{cuda}:{i}"), gpu)).collect()
        }
        Presence::NoDriver(_) => Vec::new(),
        Presence::Unusable(reason) => {
            vec![(cuda.to_string(), Err(BackendError::Unavailable { device: cuda.to_string(), reason }))]
        }
    };
    // Elsewhere there is nothing to say of Metal.
    let metal = cfg!(any(target_vendor = "apple", feature = "host-double"))
        .then(|| (BackendType::Metal.to_string(), metal_device()));
    let cpu = CpuBackend::new(None).map(|device| device.info().clone());
    let reference = ReferenceBackend::new().info().clone();
    let host = [(BackendType::Cpu.to_string(), cpu), (BackendType::Reference.to_string(), Ok(reference))];
    gpus.into_iter().chain(metal).chain(host).collect()
}

/// Opens a device by its name on the command line: `auto` for the best there is, a [`BackendType::name`], or `cuda:N` for GPU number N in
/// the driver's order. `threads` is the number of a CPU's worker threads (see [`CpuBackend::new`]); other devices have none and ignore it.
///
/// # Errors
/// [`BackendError::Unavailable`] with what is missing and the devices there are, when this one is not, and when it cannot be opened.
pub fn open(device: &str, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    open_noting(device, threads).map(|(backend, _)| backend)
}

/// As [`open`], with a sentence for the user when `auto` took the CPU: which GPU could not be used, and why.
///
/// # Errors
/// As [`open`].
pub fn open_noting(device: &str, threads: Option<usize>) -> Result<(Arc<dyn Backend>, Option<String>)> {
    open_with(device, &OpenOptions { threads, memory_cap: None })
}

/// As [`open_noting`], with options.
///
/// # Errors
/// As [`open`].
pub fn open_with(device: &str, options: &OpenOptions) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let OpenOptions { threads, memory_cap } = *options;
    let cpu = || {
        let device = CpuBackend::with_options(CpuOptions { threads, memory_cap, ..CpuOptions::default() })?;
        Ok::<Arc<dyn Backend>, BackendError>(Arc::new(device))
    };
    let there_are = || {
        let names: Vec<_> = available_backends().into_iter().map(BackendType::name).collect();
        format!("use one of: auto, {}", names.join(", "))
    };
    let unavailable = |reason: String| {
        Err(BackendError::Unavailable { device: shown(device), reason: format!("{reason}; {}", there_are()) })
    };
    match device.to_ascii_lowercase().as_str() {
        "auto" => {
            let gpu = match best_gpu(memory_cap) {
                Ok(gpu) => Ok(Arc::new(gpu) as Arc<dyn Backend>),
                // No NVIDIA driver has been made for Apple's machines for years: what is news there is a Mac's own GPU.
                Err(_) if cfg!(any(target_vendor = "apple", feature = "host-double")) => {
                    open_metal(memory_cap).map_err(|e| e.to_string())
                }
                Err(why) => Err(why),
            };
            match gpu {
                Ok(gpu) => Ok((gpu, None)),
                Err(why) => Ok((cpu()?, Some(format!("the CPU did the work: {why}")))),
            }
        }
        "cpu" => Ok((cpu()?, None)),
        "reference" => Ok((Arc::new(ReferenceBackend::with_memory_cap(memory_cap)), None)),
        "metal" => match open_metal(memory_cap) {
            Ok(gpu) => Ok((gpu, None)),
            Err(BackendError::Unavailable { reason, .. }) => unavailable(reason),
            Err(error) => Err(error),
        },
        name => match name.strip_prefix("cuda").map(ordinal) {
            None => unavailable("no device has this name".into()),
            Some(None) => unavailable("a GPU is named cuda or cuda:N".into()),
            Some(Some(ordinal)) => match CudaBackend::with_options(CudaOptions { ordinal, memory_cap }) {
                Ok(gpu) => Ok((Arc::new(gpu), None)),
                Err(BackendError::Unavailable { reason, .. }) => unavailable(reason),
                Err(error) => Err(error),
            },
        },
    }
}

/// The Apple GPU.
#[cfg(any(target_vendor = "apple", feature = "host-double"))]
fn open_metal(memory_cap: Option<u64>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(MetalBackend::with_options(MetalOptions { memory_cap })?))
}

#[cfg(not(any(target_vendor = "apple", feature = "host-double")))]
fn open_metal(_memory_cap: Option<u64>) -> Result<Arc<dyn Backend>> {
    Err(no_metal())
}

/// The description of the Apple GPU.
fn metal_device() -> Result<DeviceInfo> {
    #[cfg(any(target_vendor = "apple", feature = "host-double"))]
    return metal::device();
    #[cfg(not(any(target_vendor = "apple", feature = "host-double")))]
    Err(no_metal())
}

#[cfg(not(any(target_vendor = "apple", feature = "host-double")))]
fn no_metal() -> BackendError {
    let reason = "Metal is there only on Apple platforms".into();
    BackendError::Unavailable { device: BackendType::Metal.to_string(), reason }
}

/// Whether [`open`] would open a device of this name on a machine that has it.
pub fn is_device_name(device: &str) -> bool {
    match device.to_ascii_lowercase().as_str() {
        "auto" | "cpu" | "reference" | "metal" => true,
        name => name.strip_prefix("cuda").and_then(ordinal).is_some(),
    }
}

/// A device's name as a message shows it: in quotation marks if it is empty or odd.
fn shown(device: &str) -> String {
    let plain = !device.is_empty() && device.chars().all(|c| c.is_alphanumeric() || ":-_.".contains(c));
    if plain { device.to_string() } else { format!("{device:?}") }
}

/// The number of a GPU from what follows `cuda`.
fn ordinal(rest: &str) -> Option<u32> {
    if rest.is_empty() { Some(0) } else { rest.strip_prefix(':')?.parse().ok() }
}

/// The first GPU that opens, or why there is none.
fn best_gpu(memory_cap: Option<u64>) -> std::result::Result<CudaBackend, String> {
    let gpus = match cuda::presence() {
        Presence::Gpus(gpus) => gpus,
        Presence::NoDriver(why) | Presence::Unusable(why) => return Err(why),
    };
    let mut why = String::new();
    for (ordinal, gpu) in gpus.into_iter().enumerate() {
        let options = CudaOptions { ordinal: ordinal as u32, memory_cap };
        match gpu.and_then(|_| CudaBackend::with_options(options)) {
            Ok(gpu) => return Ok(gpu),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_no_device_are_refused_in_clear_words() {
        let there_are = "no device has this name; use one of: auto, ";
        let gpu = "a GPU is named cuda or cuda:N; use one of: auto, ";
        let cases = [
            ("", r#""""#, there_are),
            (" ", r#"" ""#, there_are),
            ("cpu\n", r#""cpu\n""#, there_are),
            ("abacus", "abacus", there_are),
            ("cuda:x", "cuda:x", gpu),
            ("cuda: 1", r#""cuda: 1""#, gpu),
        ];
        for (device, shown, why) in cases {
            let text = open(device, None).err().unwrap().to_string();
            assert!(text.starts_with(&format!("device {shown} is not available: {why}")), "{device:?}: {text}");
        }
    }
}
