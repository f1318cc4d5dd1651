//! Calls into a library that panics on some damaged files.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of `call`, or `None` when it panics.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}
