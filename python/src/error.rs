//! The errors of the other crates as Python's exceptions, with the same sentences.

use std::path::Path;

use hologram_backends::BackendError;
use hologram_core::CoreError;
use hologram_llm::LlmError;
use hologram_llm::engine::{Failure, SubmitError};
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    hologram,
    DeviceError,
    PyRuntimeError,
    "A device is missing, lacks a capability or failed. Nothing was computed on another device instead."
);

/// An error on its way to Python.
#[derive(Debug)]
pub struct Error(PyErr);

/// A result of a function that Python calls.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        error.0
    }
}

impl From<PyErr> for Error {
    fn from(error: PyErr) -> Error {
        Error(error)
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        let text = error.to_string();
        Error(match error {
            BackendError::OutOfMemory { .. } => PyMemoryError::new_err(text),
            BackendError::InvalidArgument { .. } | BackendError::Program(_) => PyValueError::new_err(text),
            _ => DeviceError::new_err(text),
        })
    }
}

impl From<CoreError> for Error {
    fn from(error: CoreError) -> Error {
        match error {
            CoreError::Backend(error) => error.into(),
            CoreError::Type { .. } => Error(PyTypeError::new_err(error.to_string())),
            error => Error(PyValueError::new_err(error.to_string())),
        }
    }
}

impl From<LlmError> for Error {
    fn from(error: LlmError) -> Error {
        match error {
            LlmError::Core(error) => error.into(),
            LlmError::Backend(error) => error.into(),
            LlmError::Memory { .. } | LlmError::CacheTooLarge { .. } => {
                Error(PyMemoryError::new_err(error.to_string()))
            }
            LlmError::Io { ref path, ref reason } | LlmError::Write { ref path, ref reason } => {
                match reason.raw_os_error() {
                    Some(_) => Error(system(reason, path)),
                    None => Error(PyOSError::new_err(error.to_string())),
                }
            }
            error => Error(PyValueError::new_err(error.to_string())),
        }
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        let text = match &error {
            // The command's names of options, such as top-p, are Python's with underscores.
            SubmitError::Invalid { field, reason } => format!("{} {reason}", field.replace('-', "_")),
            error => error.to_string(),
        };
        Error(match error {
            SubmitError::Stopped => PyRuntimeError::new_err(text),
            _ => PyValueError::new_err(text),
        })
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let text = failure.to_string();
        Error(match failure {
            Failure::Step { .. } => DeviceError::new_err(text),
            Failure::Constraint { .. } | Failure::NoToken => PyValueError::new_err(text),
            Failure::QueueTimeout { .. } => PyTimeoutError::new_err(text),
            _ => PyRuntimeError::new_err(text),
        })
    }
}

/// An error of the system: with its number, Python chooses the class, such as FileNotFoundError.
pub fn system(error: &std::io::Error, path: &Path) -> PyErr {
    // Python writes the number itself.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text).to_string();
    PyOSError::new_err((error.raw_os_error(), text, path.display().to_string()))
}

/// A ValueError.
pub fn value<T>(text: impl Into<String>) -> Result<T> {
    Err(Error(PyValueError::new_err(text.into())))
}

/// A TypeError.
pub fn wrong_type<T>(text: impl Into<String>) -> Result<T> {
    Err(Error(PyTypeError::new_err(text.into())))
}
