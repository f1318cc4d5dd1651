//! Errors of devices.

use hologram_isa::IsaError;

/// An error of a backend.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device does not exist or cannot be used.
    #[error("device {device} is not available: {reason}")]
    Unavailable {
        /// The device as the user named it.
        device: String,
        /// Why, and what to do.
        reason: String,
    },
    /// An allocation failed.
    #[error("{device}: cannot allocate {bytes} bytes: {reason}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The requested size.
        bytes: usize,
        /// Why, with the figures of the allocator.
        reason: String,
    },
    /// A copy or a binding is out of a buffer's bounds, or a buffer of another device was used.
    #[error("{device}: {operation}: {reason}")]
    InvalidArgument {
        /// The device.
        device: String,
        /// The operation that was called.
        operation: String,
        /// The mismatch.
        reason: String,
    },
    /// The device lacks something that a program needs.
    #[error("{device}: {what} is not supported by this device")]
    Unsupported {
        /// The device.
        device: String,
        /// The capability.
        what: String,
    },
    /// The device or its driver rejected a valid request.
    #[error("{device}: {operation}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// The operation that failed.
        operation: String,
        /// The driver's message.
        reason: String,
    },
    /// A kernel failed while it ran; the error sticks to the bytes that it was to write.
    #[error("{device}: kernel {kernel}: {reason}")]
    Kernel {
        /// The device.
        device: String,
        /// The kernel's name.
        kernel: String,
        /// What happened.
        reason: String,
    },
    /// A program was rejected, or its run failed.
    #[error("{0}")]
    Program(std::sync::Arc<IsaError>),
}

/// The message, so that a `main` that returns the error prints a sentence.
impl std::fmt::Debug for BackendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<IsaError> for BackendError {
    fn from(e: IsaError) -> Self {
        BackendError::Program(std::sync::Arc::new(e))
    }
}

/// A result with a [`BackendError`].
pub type Result<T> = std::result::Result<T, BackendError>;
