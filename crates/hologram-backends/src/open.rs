//! Lists devices and opens them by name.

use std::sync::Arc;

use hologram_device::{
    Backend, BackendError, BackendType, DeviceInfo, DeviceKind, OpenOptions, Precision, Reference, Result,
};

macro_rules! kinds {
    ($(($there:meta) $kind:path,)*) => {
        /// The kinds of device of this build, best first; [`Reference`] is for tests.
        const KINDS: &[&dyn DeviceKind] = &[$(#[cfg($there)] &$kind,)* &Reference];
    };
}

// When a build has a kind, and what opens it.
kinds! {
    (feature = "cuda") hologram_cuda::Cuda,
    (all(feature = "metal", any(target_vendor = "apple", feature = "host-double"))) hologram_metal::Metal,
    (feature = "cpu") hologram_cpu::Cpu,
}

/// The kinds of device that [`open`] can open here, best first.
pub fn available_backends() -> Vec<BackendType> {
    let works = |kind: &&&dyn DeviceKind| kind.devices().iter().any(|(_, device)| device.is_ok());
    KINDS.iter().filter(works).map(|kind| kind.backend()).collect()
}

/// The devices of this machine, best first, each with the name that [`open`] takes: its description, or why it cannot
/// be used. A kind without a device has one entry with the reason.
pub fn devices() -> Vec<(String, Result<DeviceInfo>)> {
    let of = |backend: BackendType| match KINDS.iter().find(|kind| kind.backend() == backend) {
        Some(kind) => kind.devices(),
        None => {
            let device = backend.to_string();
            vec![(device.clone(), Err(BackendError::Unavailable { device, reason: left_out(backend) }))]
        }
    };
    BackendType::ALL.into_iter().flat_map(of).collect()
}

/// Why this build has no device of a kind.
fn left_out(backend: BackendType) -> String {
    match backend {
        BackendType::Metal => "Metal is there only on Apple platforms".into(),
        other => format!("this build leaves {other} out"),
    }
}

/// Opens a device by its name on the command line: `auto` for the best one, a [`BackendType::name`], or `cuda:N` for
/// GPU number N in the driver's order. `threads` is the number of a CPU's worker threads (see [`OpenOptions`]); other
/// devices ignore it.
///
/// # Errors
/// [`BackendError::Unavailable`] when the device does not exist, with the reason and the existing devices, and when it
/// cannot be opened.
pub fn open(device: &str, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    open_noting(device, threads).map(|(backend, _)| backend)
}

/// As [`open`]. When `auto` chose the CPU, also returns a sentence for the user: which GPU could not be used, and why.
///
/// # Errors
/// As [`open`].
pub fn open_noting(device: &str, threads: Option<usize>) -> Result<(Arc<dyn Backend>, Option<String>)> {
    open_with(device, &OpenOptions { threads, ..OpenOptions::default() })
}

/// As [`open_noting`], with options.
///
/// # Errors
/// As [`open`]; [`BackendError::Unsupported`] for a precision that the device does not have.
pub fn open_with(device: &str, options: &OpenOptions) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let opened = open_named(device, options)?;
    let own = opened.0.info().backend;
    if options.precision == Precision::Tf32 && own != BackendType::Cuda {
        return Err(BackendError::Unsupported { device: own.to_string(), what: "the precision tf32".into() });
    }
    Ok(opened)
}

fn open_named(device: &str, options: &OpenOptions) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let unavailable = |reason: String| {
        let names: Vec<_> = available_backends().into_iter().map(BackendType::name).collect();
        let reason = format!("{reason}; use one of: auto, {}", names.join(", "));
        Err(BackendError::Unavailable { device: shown(device), reason })
    };
    if device.eq_ignore_ascii_case("auto") {
        return open_best(options);
    }
    let (backend, number) = match named(device) {
        Ok(found) => found,
        Err(reason) => return unavailable(reason),
    };
    let Some(kind) = KINDS.iter().find(|kind| kind.backend() == backend) else {
        return unavailable(left_out(backend));
    };
    match kind.open(number, options) {
        Err(BackendError::Unavailable { reason, .. }) if backend != BackendType::Cpu => unavailable(reason),
        opened => Ok((opened?, None)),
    }
}

/// Opens the best device; returns a sentence about the GPU that could not be used, if any.
fn open_best(options: &OpenOptions) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let mut why = None;
    for kind in KINDS {
        match kind.backend() {
            BackendType::Reference => {}
            BackendType::Cpu => {
                return Ok((kind.open(0, options)?, why.map(|why| format!("the CPU did the work: {why}"))));
            }
            // A GPU.
            _ => match kind.open_any(options) {
                Ok(gpu) => return Ok((gpu, None)),
                Err(reason) => why = reason.or(why),
            },
        }
    }
    let reason = why.unwrap_or_else(|| "this build has no device but the reference".into());
    Err(BackendError::Unavailable { device: "auto".into(), reason })
}

/// Whether [`open`] would open a device of this name on a machine that has one.
pub fn is_device_name(device: &str) -> bool {
    device.eq_ignore_ascii_case("auto") || named(device).is_ok()
}

/// The kind and number that a device's name stands for, or why the name is invalid.
fn named(device: &str) -> std::result::Result<(BackendType, u32), String> {
    let lower = device.to_ascii_lowercase();
    for backend in BackendType::ALL {
        let name = backend.name();
        match lower.strip_prefix(name) {
            Some("") => return Ok((backend, 0)),
            Some(rest) if backend.is_numbered() => {
                let number = rest.strip_prefix(':').and_then(|number| number.parse().ok());
                return number.map(|n| (backend, n)).ok_or(format!("a GPU is named {name} or {name}:N"));
            }
            _ => {}
        }
    }
    Err("no device has this name".into())
}

/// A device's name as messages show it: quoted if it is empty or odd.
fn shown(device: &str) -> String {
    let plain = !device.is_empty() && device.chars().all(|c| c.is_alphanumeric() || ":-_.".contains(c));
    if plain { device.to_string() } else { format!("{device:?}") }
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
