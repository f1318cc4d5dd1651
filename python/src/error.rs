//! The errors of the other crates as Python's exceptions, with the same sentences.

use hologram_backends::BackendError;
use hologram_core::CoreError;
use hologram_llm::LlmError;
use hologram_llm::engine::{Failure, SubmitError};
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError};
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
            // With its number, Python chooses the class: FileNotFoundError and so on.
            LlmError::Io { ref path, ref reason } | LlmError::Write { ref path, ref reason } => {
                let arguments = (reason.raw_os_error(), reason.to_string(), path.display().to_string());
                match arguments.0 {
                    Some(number) => Error(PyOSError::new_err((number, arguments.1, arguments.2))),
                    None => Error(PyOSError::new_err(error.to_string())),
                }
            }
            error => Error(PyValueError::new_err(error.to_string())),
        }
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        let text = error.to_string();
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

/// A ValueError.
pub fn value<T>(text: impl Into<String>) -> Result<T> {
    Err(Error(PyValueError::new_err(text.into())))
}

/// A TypeError.
pub fn wrong_type<T>(text: impl Into<String>) -> Result<T> {
    Err(Error(pyo3::exceptions::PyTypeError::new_err(text.into())))
}
