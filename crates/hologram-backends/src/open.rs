//! Opens a device by its name.

use std::sync::Arc;

use crate::{Backend, BackendError, Result};

/// Opens a device by its name on the command line; `threads` bounds a CPU's workers.
///
/// # Errors
/// [`BackendError::Unavailable`] with the devices there are.
pub fn open(device: &str, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    let _ = threads;
    Err(BackendError::Unavailable { device: device.into(), reason: "this build has no such device".into() })
}
