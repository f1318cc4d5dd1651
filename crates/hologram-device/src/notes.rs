//! Notes of devices for the user, besides errors.

use std::sync::{Mutex, OnceLock, PoisonError};

static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds a note, unless the same one is pending.
pub fn note(text: String) {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// What shows a device's work that keeps the user waiting; `None` when it is done.
type Watcher = fn(Option<&str>);

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Sets what shows work that keeps the user waiting, such as kernels compiled at a first start: it is called with what
/// is done, and with `None` when it is done. The first call counts.
pub fn watch(watcher: fn(Option<&str>)) {
    let _ = WATCHER.set(watcher);
}

/// Says what the user waits for; nobody listens if [`watch`] was not called.
pub fn busy(what: Option<&str>) {
    if let Some(watcher) = WATCHER.get() {
        watcher(what);
    }
}

/// The notes of this process's devices since the last call, such as native kernels that are disabled because they
/// failed a self-test. For the user interface: each note is returned once.
pub fn take_notes() -> Vec<String> {
    std::mem::take(&mut NOTES.lock().unwrap_or_else(PoisonError::into_inner))
}
