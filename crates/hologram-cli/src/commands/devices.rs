//! `hologram devices`: the devices of this machine.

use std::io::Write;

use hologram_backends::{BackendError, BackendType, DeviceInfo};
use serde_json::{Map, Value, json};

use crate::args::DevicesArgs;
use crate::text;

/// Runs the command.
///
/// # Errors
/// When standard output fails.
pub fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for (name, device) in hologram_backends::devices() {
        if args.json {
            let line = match device {
                Ok(info) => in_json(&name, &info),
                Err(error) => json!({ "device": name, "error": reason(&error) }),
            };
            writeln!(out, "{line}")?;
        } else {
            let line = match device {
                Ok(info) => in_words(&info),
                Err(error) => reason(&error),
            };
            writeln!(out, "{name:<10} {}", text::printable(&line, text::MESSAGE))?;
        }
    }
    Ok(())
}

/// Why a device is unavailable; its name is printed before it.
pub(super) fn reason(error: &BackendError) -> String {
    match error {
        BackendError::Unavailable { reason, .. } => reason.clone(),
        error => error.to_string(),
    }
}

pub(super) fn in_json(name: &str, info: &DeviceInfo) -> Value {
    let mut line = Map::new();
    line.insert("device".into(), name.into());
    line.insert("name".into(), info.name.clone().into());
    line.insert("memory_bytes".into(), info.memory_bytes.into());
    line.insert("parallelism".into(), workers(info).map(|_| info.parallelism).into());
    line.insert("features".into(), info.features.clone().into());
    for (key, value) in &info.details {
        line.insert((*key).into(), value.clone().into());
    }
    line.into()
}

/// The device's parallel units. Metal does not report the number of cores.
pub(super) fn workers(info: &DeviceInfo) -> Option<String> {
    match info.backend {
        BackendType::Cuda => Some(text::counted(info.parallelism, "multiprocessor")),
        BackendType::Cpu | BackendType::Reference => Some(text::counted(info.parallelism, "thread")),
        _ => None,
    }
}

pub(super) fn in_words(info: &DeviceInfo) -> String {
    let gib = info.memory_bytes as f64 / f64::from(1u32 << 30);
    let mut words = vec![info.name.clone()];
    words.extend(workers(info));
    words.push(format!("{gib:.1} GiB"));
    words.extend(info.details.iter().map(|(key, value)| format!("{key} {value}")));
    if !info.features.is_empty() {
        words.push(info.features.join(" "));
    }
    words.join(", ")
}
