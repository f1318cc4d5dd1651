//! `hologram cache`: the cache of kernels compiled at run time.

use std::io::Write;

use serde_json::json;

use crate::args::CacheArgs;

/// Runs the command.
///
/// # Errors
/// When the directory cannot be read, a file of the cache cannot be removed, or standard output fails.
pub fn run(args: &CacheArgs) -> anyhow::Result<()> {
    let info = if args.clear { hologram_backends::clear_cache() } else { hologram_backends::cache_info() };
    let info = info.map_err(|e| anyhow::Error::new(e).context("the cache of compiled kernels"))?;
    let directory = info.directory.as_ref().map(|d| d.display().to_string());
    let mut out = std::io::stdout().lock();
    if args.json {
        let line = json!({
            "directory": directory,
            "entries": info.entries,
            "bytes": info.bytes,
            "cleared": args.clear,
        });
        writeln!(out, "{line}")?;
    } else {
        let what = if args.clear { "removed" } else { "holds" };
        let entries = if info.entries == 1 { "entry" } else { "entries" };
        match directory {
            Some(directory) => writeln!(out, "{directory}: {what} {} {entries}, {} bytes", info.entries, info.bytes)?,
            None => writeln!(out, "there is no cache directory: set HOLOGRAM_CACHE")?,
        }
    }
    Ok(())
}
