//! Notes of devices for the user, besides errors.

use std::sync::{Mutex, PoisonError};

static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds a note, unless the same one is pending.
pub fn note(text: String) {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// The notes of this process's devices since the last call, such as native kernels that are disabled because they
/// failed a self-test. For the user interface: each note is returned once.
pub fn take_notes() -> Vec<String> {
    std::mem::take(&mut NOTES.lock().unwrap_or_else(PoisonError::into_inner))
}
