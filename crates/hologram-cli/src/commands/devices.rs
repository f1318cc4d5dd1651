//! `hologram devices`: the devices of this machine.

use std::collections::HashSet;
use std::io::Write;

use anyhow::bail;
use hologram_backends::{BackendError, BackendType, DeviceInfo};
use serde_json::{Map, Value, json};

use crate::args::DevicesArgs;
use crate::text;

/// Runs the command.
///
/// # Errors
/// When standard output fails, or with `--compile-kernels` a kernel does not compile.
pub fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    if args.compile_kernels {
        return compile_kernels();
    }
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

/// Compiles every native kernel of Metal, and the programs of all operations.
#[cfg(feature = "metal")]
fn compile_kernels() -> anyhow::Result<()> {
    let (mut seen, mut failures) = (HashSet::new(), 0usize);
    let cases = hologram_core::ops::cases();
    let mut programs = cases.iter().filter(|case| case.views.is_empty()).filter_map(|case| {
        let (program, _) = case.program().ok()?;
        seen.insert(program.text_hash()).then_some(program)
    });
    let count = hologram_backends::metal::compile_kernels(&mut programs, &mut |name, reason| {
        failures += 1;
        eprintln!("{name}: {}", text::printable(reason, text::MESSAGE));
    })?;
    if failures > 0 {
        bail!("{failures} of {} do not compile", text::counted(count, "kernel text"));
    }
    writeln!(std::io::stdout(), "{} compile", text::counted(count, "kernel text"))?;
    Ok(())
}

#[cfg(not(feature = "metal"))]
fn compile_kernels() -> anyhow::Result<()> {
    bail!("this build is without Metal")
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

/// The device's parallel units, where their number is known.
pub(super) fn workers(info: &DeviceInfo) -> Option<String> {
    match info.backend {
        BackendType::Cuda => Some(text::counted(info.parallelism, "multiprocessor")),
        BackendType::Metal if info.parallelism > 1 => Some(text::counted(info.parallelism, "core")),
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
