//! Looks up strings of a mapped file by their bytes.

use crate::gguf::Strings;
use std::hash::{BuildHasher, RandomState};

/// A hash table over an array of strings that stay in the file. A slot holds an index and some bits of the hash. The
/// standard library's map would copy some 400,000 strings of a common vocabulary, which takes longer than a small model
/// takes to start. The hash is keyed at random, so that no file can force collisions.
pub(super) struct StringIndex {
    strings: Strings,
    hasher: RandomState,
    /// A string's index plus 1 (0: free) and the upper bits of its hash. The length is a power of two.
    slots: Vec<(u32, u32)>,
}

impl StringIndex {
    /// Indexes the strings whose index passes `wanted`. Of equal strings the first is found.
    pub fn new(strings: Strings, wanted: impl Fn(usize) -> bool) -> StringIndex {
        let slots = vec![(0, 0); (strings.len() + strings.len() / 2 + 1).next_power_of_two()];
        let mut index = StringIndex { strings, hasher: RandomState::new(), slots };
        // There are fewer strings than bytes in the file. Indices beyond u32 could not be token ids.
        for i in (0..index.strings.len()).take(u32::MAX as usize - 1).filter(|&i| wanted(i)) {
            let Some(text) = index.strings.get(i) else { continue };
            let (slot, tag, found) = index.find(text);
            if found.is_none() {
                index.slots[slot] = (i as u32 + 1, tag);
            }
        }
        index
    }

    /// The index of the string with these bytes.
    pub fn get(&self, text: &[u8]) -> Option<u32> {
        self.find(text).2
    }

    /// The slot of the text, or the free slot for it, its tag, and its index if present. There are more slots than
    /// strings, so one is always free.
    fn find(&self, text: &[u8]) -> (usize, u32, Option<u32>) {
        let hash = self.hasher.hash_one(text);
        let (tag, mask) = ((hash >> 32) as u32, self.slots.len() - 1);
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                (0, _) => return (slot, tag, None),
                (id, t) if t == tag && self.strings.get(id as usize - 1) == Some(text) => {
                    return (slot, tag, Some(id - 1));
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}
