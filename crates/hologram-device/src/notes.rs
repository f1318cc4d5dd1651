//! What devices have to say to the user besides errors.

use std::sync::{Mutex, PoisonError};

static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds a note, unless it waits already.
pub fn note(text: String) {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// What devices of this process have noted since the last call, such as native kernels that are not used because they failed a self-test.
/// For whoever talks to the user: each note is given once.
pub fn take_notes() -> Vec<String> {
    std::mem::take(&mut NOTES.lock().unwrap_or_else(PoisonError::into_inner))
}
