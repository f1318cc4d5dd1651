//! A map with least-recently-used eviction.

use std::collections::HashMap;
use std::hash::Hash;

/// A map with a bounded number of entries. When it is full, the least recently used eighth is evicted.
#[derive(Debug)]
pub struct Lru<K, V> {
    entries: HashMap<K, (V, u64)>,
    capacity: usize,
    /// Counts the uses; an entry has the count of its last use.
    clock: u64,
    evicted: u64,
}

impl<K: Eq + Hash, V: Clone> Lru<K, V> {
    /// A map for up to `capacity` entries, at least one.
    pub fn new(capacity: usize) -> Lru<K, V> {
        Lru { entries: HashMap::new(), capacity: capacity.max(1), clock: 0, evicted: 0 }
    }

    /// The value of a key.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let (value, used) = self.entries.get_mut(key)?;
        self.clock += 1;
        *used = self.clock;
        Some(value.clone())
    }

    /// Inserts a value, unless the key has one already; returns the one that is kept.
    pub fn insert(&mut self, key: K, value: V) -> V {
        if let Some(value) = self.get(&key) {
            return value;
        }
        if self.entries.len() >= self.capacity {
            let mut uses: Vec<u64> = self.entries.values().map(|(_, used)| *used).collect();
            uses.sort_unstable();
            let last = uses[self.capacity / 8];
            self.entries.retain(|_, (_, used)| *used > last);
            self.evicted += (uses.len() - self.entries.len()) as u64;
        }
        self.clock += 1;
        self.entries.insert(key, (value.clone(), self.clock));
        value
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of evicted entries.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_number_is_bounded() {
        for capacity in [1, 2, 16, 100] {
            let mut map = Lru::new(capacity);
            for i in 0..1000u32 {
                assert_eq!(map.insert(i, i * 2), i * 2);
                assert_eq!(map.insert(i, 7), i * 2, "the first value stays");
                assert!(map.len() <= capacity);
                assert_eq!(map.get(&0).is_some(), capacity > 1 || i == 0, "{i}: the one that is used at every turn");
                assert_eq!(map.len() as u64 + map.evicted(), u64::from(i) + 1);
            }
        }
    }
}
