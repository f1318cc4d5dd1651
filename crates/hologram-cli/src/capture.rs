//! `--capture FILE.gputrace`: a Metal frame capture for Xcode.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hologram_backends::BackendType;
use hologram_core::Executor;

use crate::status::status;

/// A requested capture that this device supports.
pub struct Capture(PathBuf);

impl Capture {
    /// Checks before the work that the device can make a capture.
    ///
    /// # Errors
    /// When it cannot, or the file exists.
    pub fn of(path: Option<&Path>, executor: &Executor) -> anyhow::Result<Option<Capture>> {
        let Some(path) = path else { return Ok(None) };
        let backend = executor.info().backend;
        if backend != BackendType::Metal {
            bail!("--capture works only on Apple platforms with --device metal; this is device {backend}");
        }
        // Metal never overwrites a document.
        if path.symlink_metadata().is_ok() {
            bail!("--capture: {} already exists", path.display());
        }
        Ok(Some(Capture(path.into())))
    }
}

/// Does some work, and captures it if requested.
///
/// # Errors
/// Those of the work and of the capture.
pub fn around<T>(
    capture: &Option<Capture>,
    executor: &Executor,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(Capture(path)) = capture else { return work() };
    let (mut work, mut done) = (Some(work), None);
    let captured = executor.backend().measure().capture(path, &mut || done = work.take().map(|work| work()));
    // An error of the work takes precedence.
    let done = done.transpose()?;
    captured.context("--capture")?;
    if !path.exists() {
        bail!("--capture: Metal did not write {}", path.display());
    }
    status!("wrote {}\n", path.display());
    done.context("--capture: the device did not run the work")
}
