//! Status codes, and the message of a thread's last failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hologram_core::CoreError;
use hologram_llm::LlmError;

/// The result of a call. `hologram_last_error` has the reason in words.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HologramStatus {
    /// Done.
    Ok = 0,
    /// An argument is NULL, out of range or does not fit the others.
    InvalidArgument = 1,
    /// A device, a tensor operation or a program failed.
    Compute = 2,
    /// A model's files, tokens, template or generation failed.
    Model = 3,
    /// The caller's callback ended the work.
    Stopped = 4,
    /// A defect of the library. Objects of the call may be in any state; others are not affected.
    Internal = 5,
}

/// Why a call failed.
pub struct Failure {
    status: HologramStatus,
    message: String,
}

pub type Result<T = ()> = std::result::Result<T, Failure>;

impl From<CoreError> for Failure {
    fn from(e: CoreError) -> Failure {
        Failure { status: HologramStatus::Compute, message: e.to_string() }
    }
}

impl From<hologram_backends::BackendError> for Failure {
    fn from(e: hologram_backends::BackendError) -> Failure {
        Failure { status: HologramStatus::Compute, message: e.to_string() }
    }
}

impl From<LlmError> for Failure {
    fn from(e: LlmError) -> Failure {
        Failure { status: HologramStatus::Model, message: e.to_string() }
    }
}

/// Fails because of an argument.
pub fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure { status: HologramStatus::InvalidArgument, message: message.into() })
}

/// Fails because the callback ended the work.
pub fn stopped<T>() -> Result<T> {
    Err(Failure { status: HologramStatus::Stopped, message: "the callback ended the generation".into() })
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call's body: keeps its message, and catches panics.
pub fn guard(body: impl FnOnce() -> Result) -> HologramStatus {
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let message = format!("the library failed: {}", said.unwrap_or("a panic without a message"));
        Err(Failure { status: HologramStatus::Internal, message })
    });
    match done {
        Ok(()) => HologramStatus::Ok,
        Err(Failure { status, message }) => {
            let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
            LAST.with_borrow_mut(|last| *last = message);
            status
        }
    }
}

/// One sentence about the calling thread's last failure; empty if nothing failed. Valid until the thread's next call
/// that fails.
#[unsafe(no_mangle)]
pub extern "C" fn hologram_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// The name of a status, such as "invalid argument".
#[unsafe(no_mangle)]
pub extern "C" fn hologram_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"ok",
        1 => c"invalid argument",
        2 => c"compute",
        3 => c"model",
        4 => c"stopped",
        5 => c"internal",
        _ => c"unknown status",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn panics_and_failures_become_statuses_with_a_message() {
        let said = || {
            // SAFETY: the message lives until the thread's next failure.
            unsafe { CStr::from_ptr(hologram_last_error()) }.to_str().unwrap().to_string()
        };
        assert_eq!((guard(|| Ok(())), said().as_str()), (HologramStatus::Ok, ""));
        let panicked = guard(|| panic!("index {} of 3", 7));
        assert_eq!((panicked, said().as_str()), (HologramStatus::Internal, "the library failed: index 7 of 3"));
        assert_eq!((guard(|| invalid("a\0b")), said().as_str()), (HologramStatus::InvalidArgument, "a\u{fffd}b"));
        // Success leaves the message alone, and other threads have their own.
        assert_eq!((guard(|| Ok(())), said().as_str()), (HologramStatus::Ok, "a\u{fffd}b"));
        assert_eq!(std::thread::spawn(said).join().unwrap(), "");
    }
}
