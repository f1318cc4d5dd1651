//! Which devices there are, and opening one by its name.

use std::sync::Arc;

use crate::backend::{Backend, BackendType};
use crate::cpu::CpuBackend;
use crate::error::{BackendError, Result};
use crate::reference::ReferenceBackend;

/// The devices that [`open`] can open here, best first.
pub fn available_backends() -> Vec<BackendType> {
    vec![BackendType::Cpu, BackendType::Reference]
}

/// Opens a device by its name on the command line: `auto` for the best there is, or a [`BackendType::name`]. `threads` is the number of
/// a CPU's worker threads (see [`CpuBackend::new`]); other devices have none and ignore it.
///
/// # Errors
/// [`BackendError::Unavailable`] with the devices there are, when this one is not, and when it cannot be opened.
pub fn open(device: &str, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    let there_are = || {
        let names: Vec<_> = available_backends().into_iter().map(BackendType::name).collect();
        format!("use one of: auto, {}", names.join(", "))
    };
    let unavailable = |why: &str| {
        Err(BackendError::Unavailable { device: device.to_string(), reason: format!("{why}; {}", there_are()) })
    };
    match device.to_ascii_lowercase().as_str() {
        "auto" | "cpu" => Ok(Arc::new(CpuBackend::new(threads)?)),
        "reference" => Ok(Arc::new(ReferenceBackend::new())),
        "cuda" | "metal" => unavailable("this build runs no GPU programs"),
        _ => unavailable("no device has this name"),
    }
}
