//! A shared array that tracks accesses since the last barrier.

use crate::SharedArray;

/// More than one thread.
const MANY: u32 = u32::MAX;

/// The elements of a workgroup's shared array.
pub(super) struct Shared {
    elements: Vec<Element>,
}

#[derive(Clone, Copy, Default)]
struct Element {
    /// The value; `None` until a thread writes it.
    word: Option<u64>,
    /// The thread that wrote it, and the phase (number of barriers before, plus 1).
    written: (u32, u32),
    /// The thread that read it, and the phase.
    read: (u32, u32),
    /// The thread that updated it atomically, and the phase.
    updated: (u32, u32),
}

impl Shared {
    /// An array with undefined content.
    pub(super) fn new(array: &SharedArray) -> Shared {
        Shared { elements: vec![Element::default(); array.len as usize] }
    }

    /// The value that `thread` reads.
    ///
    /// # Errors
    /// The end of "element … of shared array …".
    pub(super) fn load(&mut self, index: u32, thread: u32, phase: u32) -> Result<u64, String> {
        let len = self.elements.len();
        let Some(e) = self.elements.get_mut(index as usize) else { return Err(outside(len)) };
        let Some(word) = e.word else { return Err("is read before anything was stored there".into()) };
        let (writer, when) = e.written;
        if when == phase && writer != thread && writer != MANY {
            return Err(format!("is read without a barrier after thread {writer} stored it"));
        }
        let (updater, when) = e.updated;
        if when == phase && updater != thread {
            return Err(format!("is read without a barrier after {} updated it", who(updater)));
        }
        e.read = (if e.read.1 == phase && e.read.0 != thread { MANY } else { thread }, phase);
        Ok(word)
    }

    /// Sets an element. Several threads may store the same value between two barriers.
    ///
    /// # Errors
    /// The end of "element … of shared array …".
    pub(super) fn store(&mut self, index: u32, word: u64, thread: u32, phase: u32) -> Result<(), String> {
        let len = self.elements.len();
        let Some(e) = self.elements.get_mut(index as usize) else { return Err(outside(len)) };
        let (reader, when) = e.read;
        if when == phase && reader != thread {
            return Err(format!("is stored without a barrier after {} read it", who(reader)));
        }
        let (updater, when) = e.updated;
        if when == phase && updater != thread {
            return Err(format!("is stored without a barrier after {} updated it", who(updater)));
        }
        let (writer, when) = e.written;
        let again = when == phase && writer != thread;
        if again && e.word != Some(word) {
            return Err("is stored by several threads with different values and no barrier in between".into());
        }
        e.word = Some(word);
        e.written = (if again { MANY } else { thread }, phase);
        Ok(())
    }

    /// Updates an element atomically, which several threads may do between two barriers. Returns the previous value.
    ///
    /// # Errors
    /// The end of "element … of shared array …".
    pub(super) fn update(
        &mut self,
        index: u32,
        thread: u32,
        phase: u32,
        new: impl FnOnce(u64) -> Result<u64, String>,
    ) -> Result<u64, String> {
        let len = self.elements.len();
        let Some(e) = self.elements.get_mut(index as usize) else { return Err(outside(len)) };
        let Some(old) = e.word else { return Err("is updated before anything was stored there".into()) };
        for ((other, when), what) in [(e.written, "stored"), (e.read, "read")] {
            if when == phase && other != thread {
                return Err(format!("is updated without a barrier after {} {what} it", who(other)));
            }
        }
        e.word = Some(new(old)?);
        e.updated = (if e.updated.1 == phase && e.updated.0 != thread { MANY } else { thread }, phase);
        Ok(old)
    }
}

fn who(thread: u32) -> String {
    if thread == MANY { "other threads".into() } else { format!("thread {thread}") }
}

/// The message for an index out of bounds.
pub(super) fn outside(len: usize) -> String {
    format!("is outside: it has {len} elements")
}
