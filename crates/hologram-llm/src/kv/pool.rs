//! The blocks of a cache: which are free, how many sequences use each, and which can be found again by their content.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

/// Blocks with reference counts.
///
/// A full block may be published under the hash of its tokens and all tokens before it. A published block that no
/// sequence uses keeps its content until its place is needed: the least recently used goes first.
pub(crate) struct BlockPool {
    /// Per block the sequences that use it.
    users: Vec<u32>,
    free: Vec<u32>,
    /// Per block what it is published as.
    published: Vec<Option<Published>>,
    by_hash: HashMap<u128, u32>,
    /// Published blocks without users, by the time of their release.
    idle: BTreeMap<u64, u32>,
    /// Per block its time in `idle`.
    released: Vec<u64>,
    clock: u64,
}

struct Published {
    hash: u128,
    tokens: Box<[u32]>,
}

impl BlockPool {
    pub fn new(blocks: usize) -> BlockPool {
        BlockPool {
            users: vec![0; blocks],
            free: (0..blocks as u32).rev().collect(),
            published: (0..blocks).map(|_| None).collect(),
            by_hash: HashMap::new(),
            idle: BTreeMap::new(),
            released: vec![0; blocks],
            clock: 0,
        }
    }

    /// All blocks.
    pub fn total(&self) -> usize {
        self.users.len()
    }

    /// Blocks that can be allocated: free ones and published ones without users.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Takes a block for one user. `None`: all are in use.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.idle.pop_first()?;
                if let Some(published) = self.published[block as usize].take() {
                    self.by_hash.remove(&published.hash);
                }
                block
            }
        };
        self.users[block as usize] = 1;
        Some(block)
    }

    /// Adds a user to a block that has some or is published.
    pub fn share(&mut self, block: u32) {
        let at = block as usize;
        if self.users[at] == 0 {
            self.idle.remove(&self.released[at]);
        }
        self.users[at] += 1;
    }

    /// Removes a user.
    pub fn release(&mut self, block: u32) {
        let at = block as usize;
        self.users[at] -= 1;
        if self.users[at] > 0 {
            return;
        }
        if self.published[at].is_some() {
            self.clock += 1;
            self.released[at] = self.clock;
            self.idle.insert(self.clock, block);
        } else {
            self.free.push(block);
        }
    }

    /// Publishes a block in use, unless it or another with the same content is published.
    pub fn publish(&mut self, block: u32, hash: u128, tokens: &[u32]) {
        let at = block as usize;
        if self.published[at].is_some() || self.by_hash.contains_key(&hash) {
            return;
        }
        self.published[at] = Some(Published { hash, tokens: tokens.into() });
        self.by_hash.insert(hash, block);
    }

    /// Publishes a block in use that is not full, in place of another one after the same blocks.
    pub fn publish_rest(&mut self, block: u32, hash: u128, tokens: &[u32]) {
        if let Some(old) = self.by_hash.get(&hash) {
            self.forget(*old);
        }
        self.publish(block, hash, tokens);
    }

    /// The unused block published under a hash, and how many of its tokens are the first of these.
    pub fn find_rest(&self, hash: u128, tokens: &[u32]) -> Option<(u32, usize)> {
        let block = *self.by_hash.get(&hash)?;
        let published = self.published[block as usize].as_ref().filter(|_| self.is_idle(block))?;
        let alike = published.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        (alike > 0).then_some((block, alike))
    }

    /// Takes an unused published block for one user, who will change it: nobody else finds it any more.
    pub fn claim(&mut self, block: u32) {
        self.forget(block);
        // Forgotten last.
        self.free.pop_if(|last| *last == block);
        self.users[block as usize] = 1;
    }

    /// Makes a published block that no sequence uses free.
    pub fn forget(&mut self, block: u32) {
        let at = block as usize;
        if self.users[at] == 0
            && let Some(published) = self.published[at].take()
        {
            self.by_hash.remove(&published.hash);
            self.idle.remove(&self.released[at]);
            self.free.push(block);
        }
    }

    /// The block published under a hash, if it really holds these tokens.
    pub fn find(&self, hash: u128, tokens: &[u32]) -> Option<u32> {
        let block = *self.by_hash.get(&hash)?;
        let published = self.published[block as usize].as_ref()?;
        (*published.tokens == *tokens).then_some(block)
    }

    /// Whether no sequence uses the block.
    pub fn is_idle(&self, block: u32) -> bool {
        self.users[block as usize] == 0
    }
}

/// Hashes of blocks, each of which covers the blocks before it. Their keys are random, so that nobody can prepare two
/// prompts with the same hash.
pub(crate) struct PrefixHasher([RandomState; 2]);

impl PrefixHasher {
    pub fn new() -> PrefixHasher {
        PrefixHasher([RandomState::new(), RandomState::new()])
    }

    /// The hash before the first block. Those of different tenants differ.
    pub fn root(&self, tenant: Option<&str>) -> u128 {
        self.hash(tenant)
    }

    /// The hash of a block after the one of hash `before`.
    pub fn next(&self, before: u128, tokens: &[u32]) -> u128 {
        self.hash((before, tokens))
    }

    /// The hash of what follows the block of hash `before` without filling a block.
    pub fn rest(&self, before: u128) -> u128 {
        self.next(before, &[])
    }

    fn hash(&self, value: impl Hash) -> u128 {
        let half = |state: &RandomState| u128::from(state.hash_one(&value));
        half(&self.0[0]) << 64 | half(&self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_until_their_place_is_needed() {
        let (mut pool, hasher) = (BlockPool::new(3), PrefixHasher::new());
        let root = hasher.root(None);
        assert_ne!(root, hasher.root(Some("")));
        let (a, b) = (hasher.next(root, &[1, 2]), hasher.next(hasher.next(root, &[1, 2]), &[3, 4]));
        let (first, second) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish(first, a, &[1, 2]);
        pool.publish(second, b, &[3, 4]);
        // A second block of the same content stays unpublished, and is free once released.
        let copy = pool.allocate().unwrap();
        pool.publish(copy, a, &[1, 2]);
        assert_eq!((pool.find(a, &[1, 2]), pool.allocate()), (Some(first), None));
        pool.release(copy);
        assert_eq!((pool.find(a, &[1, 3]), pool.find(b, &[3, 4])), (None, Some(second)));
        pool.share(first);
        pool.release(first);
        pool.release(second);
        pool.release(first);
        assert_eq!((pool.available(), pool.is_idle(first)), (3, true));
        // The free block goes first, then the second, which was released before the first.
        assert_eq!((pool.allocate(), pool.allocate()), (Some(copy), Some(second)));
        assert_eq!((pool.find(a, &[1, 2]), pool.find(b, &[3, 4])), (Some(first), None));
        pool.share(first);
        assert_eq!((pool.available(), pool.allocate()), (0, None));
    }

    #[test]
    fn a_part_of_a_block_goes_to_one_other() {
        let (mut pool, hasher) = (BlockPool::new(2), PrefixHasher::new());
        let rest = hasher.rest(hasher.root(None));
        let (first, second) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish_rest(first, rest, &[1, 2, 3]);
        assert_eq!(pool.find_rest(rest, &[1, 2]), None, "it is in use");
        pool.release(first);
        assert_eq!((pool.find_rest(rest, &[1, 2, 4]), pool.find_rest(rest, &[2])), (Some((first, 2)), None));
        // A later one takes its place.
        pool.publish_rest(second, rest, &[1, 5]);
        pool.release(second);
        assert_eq!((pool.find_rest(rest, &[1, 5]), pool.available()), (Some((second, 2)), 2));
        pool.claim(second);
        assert_eq!((pool.find_rest(rest, &[1]), pool.available(), pool.allocate()), (None, 1, Some(first)));
    }
}
