//! A shared array that knows who touched what since the last barrier.

use crate::SharedArray;

/// More than one thread.
const MANY: u32 = u32::MAX;

/// The elements of one shared array of one workgroup.
pub(super) struct Shared {
    elements: Vec<Element>,
}

#[derive(Clone, Copy, Default)]
struct Element {
    /// The value; `None` until a thread writes it.
    word: Option<u64>,
    /// Who wrote it, and in which phase (the number of barriers before, plus 1).
    written: (u32, u32),
    /// Who read it, and in which phase.
    read: (u32, u32),
}

impl Shared {
    /// An array with undefined content.
    pub(super) fn new(array: &SharedArray) -> Shared {
        Shared { elements: vec![Element::default(); array.len as usize] }
    }

    /// The value that `thread` reads.
    ///
    /// # Errors
    /// What is wrong, to follow "element … of shared array …".
    pub(super) fn load(&mut self, index: u32, thread: u32, phase: u32) -> Result<u64, String> {
        let len = self.elements.len();
        let Some(e) = self.elements.get_mut(index as usize) else { return Err(outside(len)) };
        let Some(word) = e.word else { return Err("is read before anything was stored there".into()) };
        let (writer, when) = e.written;
        if when == phase && writer != thread && writer != MANY {
            return Err(format!("is read without a barrier after thread {writer} stored it"));
        }
        e.read = (if e.read.1 == phase && e.read.0 != thread { MANY } else { thread }, phase);
        Ok(word)
    }

    /// Sets an element. Several threads may store the same value between two barriers.
    ///
    /// # Errors
    /// What is wrong, to follow "element … of shared array …".
    pub(super) fn store(&mut self, index: u32, word: u64, thread: u32, phase: u32) -> Result<(), String> {
        let len = self.elements.len();
        let Some(e) = self.elements.get_mut(index as usize) else { return Err(outside(len)) };
        let (reader, when) = e.read;
        if when == phase && reader != thread {
            let who = if reader == MANY { "other threads".into() } else { format!("thread {reader}") };
            return Err(format!("is stored without a barrier after {who} read it"));
        }
        let (writer, when) = e.written;
        let again = when == phase && writer != thread;
        if again && e.word != Some(word) {
            return Err("is stored by several threads with different values and no barrier between".into());
        }
        *e = Element { word: Some(word), written: (if again { MANY } else { thread }, phase), read: e.read };
        Ok(())
    }
}

/// The message for an index beyond an array or a buffer of `len` elements.
pub(super) fn outside(len: usize) -> String {
    format!("is outside: it has {len} elements")
}
