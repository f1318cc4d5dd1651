//! `hologram devices`: the devices of this machine.

use std::io::Write;

use serde_json::json;

use crate::args::DevicesArgs;

/// Runs the command.
///
/// # Errors
/// When a device cannot be opened or standard output fails.
pub fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for kind in hologram_backends::available_backends() {
        let backend = hologram_backends::open(kind.name(), None)?;
        let info = backend.info();
        if args.json {
            let line = json!({
                "device": info.backend.name(),
                "name": info.name,
                "memory_bytes": info.memory_bytes,
                "parallelism": info.parallelism,
                "features": info.features,
            });
            writeln!(out, "{line}")?;
        } else {
            let gib = info.memory_bytes as f64 / f64::from(1u32 << 30);
            writeln!(
                out,
                "{:<10} {}, {} threads, {gib:.1} GiB{}{}",
                info.backend.name(),
                info.name,
                info.parallelism,
                if info.features.is_empty() { "" } else { ", " },
                info.features.join(" ")
            )?;
        }
    }
    Ok(())
}
