//! Measurements of a device and of work.

use std::path::Path;

use crate::error::{BackendError, Result};
use crate::info::BackendType;
use crate::launch::{CommandList, KernelName, Launch};
use crate::metrics::Metrics;

/// The resource that bounds an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CeilingKind {
    /// Reading memory.
    Read,
    /// Writing as many bytes as are read.
    Copy,
    /// Writing one byte per two bytes read.
    Triad,
    /// Multiplications and additions of `f32`.
    F32,
    /// Dot products of `bf16`, summed in `f32`.
    Bf16,
    /// Dot products of 8-bit integers.
    I8,
}

/// See [`Measure::ceiling`].
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// The launch, with memory of its own.
    pub launch: Launch,
    /// Bytes moved, or operations done: multiplications and additions, each counted.
    pub amount: f64,
}

/// A device's measurements.
pub trait Measure: Send + Sync {
    /// The kind of device, for errors.
    fn device(&self) -> BackendType;

    /// Counters since the device was opened.
    fn metrics(&self) -> Metrics;

    /// Runs the launches of a recording one by one, in order; returns for each its kernel's name and its seconds on the
    /// device. For tuning: the sum is more than a replay takes.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for a device that cannot; the error of the list.
    fn profile(&self, _list: &CommandList) -> Result<Vec<(KernelName, f64)>> {
        let (device, what) = (self.device().to_string(), "measuring single kernels".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// Runs `work` while the device's own tools capture its commands into a new document with this name (for Metal a
    /// `.gputrace`, which Xcode opens).
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for a device without such tools; [`BackendError::Device`] with the reason if the
    /// system does not capture. The work is then not run.
    fn capture(&self, _path: &Path, _work: &mut dyn FnMut()) -> Result<()> {
        let (device, what) = (self.device().to_string(), "a frame capture, which Metal makes,".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// Sustained read bandwidth of device memory in bytes per second, measured now: the ceiling of kernels bound by
    /// memory.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] for a device without this measurement.
    fn read_bandwidth(&self) -> Result<f64> {
        let (device, what) = (self.device().to_string(), "measuring its read bandwidth".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// Sustained bandwidth of a copy within device memory in bytes per second, measured now; counts bytes read and
    /// bytes written.
    ///
    /// # Errors
    /// As [`Measure::read_bandwidth`].
    fn copy_bandwidth(&self) -> Result<f64> {
        let (device, what) = (self.device().to_string(), "measuring its copy bandwidth".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// A launch that does only what bounds an operation, as fast as the device can, for timing beside the operation;
    /// `None` for a device without such a launch.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn ceiling(&self, _kind: CeilingKind) -> Result<Option<Ceiling>> {
        Ok(None)
    }
}
