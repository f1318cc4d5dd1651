//! `--capture FILE.gputrace`: what an Apple GPU was given, as a document that Xcode opens.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hologram_backends::BackendType;
use hologram_core::Executor;

use crate::status::status;

/// A capture that was asked for and can be made here.
pub struct Capture(PathBuf);

impl Capture {
    /// Looks whether the device makes a capture, before the work that it takes to come there.
    ///
    /// # Errors
    /// When it does not, or a file is in the way.
    pub fn of(path: Option<&Path>, executor: &Executor) -> anyhow::Result<Option<Capture>> {
        let Some(path) = path else { return Ok(None) };
        let backend = executor.info().backend;
        if backend != BackendType::Metal {
            bail!("--capture works only on Apple platforms, with --device metal: this is device {backend}");
        }
        // Metal writes a new document only.
        if path.symlink_metadata().is_ok() {
            bail!("--capture: {} is there already", path.display());
        }
        Ok(Some(Capture(path.into())))
    }
}

/// Does some work, and captures what the device is given where that was asked for.
///
/// # Errors
/// Those of the work, and why there is no capture.
pub fn around<T>(
    capture: &Option<Capture>,
    executor: &Executor,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(Capture(path)) = capture else { return work() };
    let (mut work, mut done) = (Some(work), None);
    let captured = executor.backend().measure().capture(path, &mut || done = work.take().map(|work| work()));
    // What failed of the work comes first.
    let done = done.transpose()?;
    captured.context("--capture")?;
    if !path.exists() {
        bail!("--capture: Metal has not written {}", path.display());
    }
    status!("wrote {}\n", path.display());
    done.context("--capture: the device did not do the work")
}
