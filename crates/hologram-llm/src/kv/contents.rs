//! What a cache holds, as bytes: blocks in order, in each the keys and values of every layer; then a state.

use hologram_backends::DType;
use hologram_core::Tensor;

use super::{BLOCK_SIZE, KvCache, PrefixHasher};
use crate::error::Result;

/// The bytes of each block, and of a state.
type Parts<'a> = (Vec<&'a [u8]>, &'a [u8]);

impl KvCache {
    /// The element type of keys and values.
    pub fn format(&self) -> DType {
        self.format
    }

    /// The tensors of keys and values; the first dimension of each is the block.
    fn blocks(&self) -> impl Iterator<Item = &Tensor> {
        let layers = self.layers.iter().flatten();
        layers.flat_map(|(keys, values)| std::iter::once(keys).chain((!values.same_memory(keys)).then_some(values)))
    }

    /// The bytes of a block and of a state.
    fn sizes(&self) -> Result<(usize, usize)> {
        let of_state = self.states.as_ref().map_or(Ok(0), |states| KvCache::row_bytes(states.tensors()))?;
        Ok((KvCache::row_bytes(self.blocks())?, of_state))
    }

    fn row_bytes<'a>(mut tensors: impl Iterator<Item = &'a Tensor>) -> Result<usize> {
        tensors.try_fold(0, |sum, tensor| Ok(sum + tensor.row_bytes()?))
    }

    fn read(&self, blocks: &[u32], state: Option<u32>) -> Result<Vec<u8>> {
        let (of_block, of_state) = self.sizes()?;
        let mut bytes = Vec::with_capacity(blocks.len() * of_block + of_state);
        for block in blocks {
            for tensor in self.blocks() {
                tensor.read_rows(*block as usize..*block as usize + 1, &mut bytes)?;
            }
        }
        if let (Some(states), Some(slot)) = (&self.states, state) {
            for tensor in states.tensors() {
                tensor.read_rows(slot as usize..slot as usize + 1, &mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Writes the bytes of one block, or of one state.
    fn write<'a>(tensors: impl Iterator<Item = &'a Tensor>, row: u32, mut bytes: &[u8]) -> Result<()> {
        for tensor in tensors {
            let (own, rest) = bytes.split_at(tensor.row_bytes()?.min(bytes.len()));
            tensor.write_rows(row as usize..row as usize + 1, own)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Cuts the bytes of `blocks` blocks, and of a state if there are tokens and states. `None`: they are not so many.
    fn parts<'a>(&self, blocks: usize, bytes: &'a [u8]) -> Result<Option<Parts<'a>>> {
        let (of_block, of_state) = self.sizes()?;
        let of_state = if blocks > 0 { of_state } else { 0 };
        let Some((all, state)) = blocks.checked_mul(of_block).and_then(|n| bytes.split_at_checked(n)) else {
            return Ok(None);
        };
        let one = |i: usize| &all[i * of_block..(i + 1) * of_block];
        Ok((state.len() == of_state).then(|| ((0..blocks).map(one).collect(), state)))
    }

    /// What a sequence has computed: its length and the bytes.
    pub fn read_sequence(&self, sequence: usize) -> Result<(usize, Vec<u8>)> {
        let own = &self.sequences[sequence];
        let state = self.states.as_ref().and_then(|states| states.latest(sequence));
        Ok((own.len, self.read(&own.blocks, state)?))
    }

    /// Replaces a sequence by one of `len` positions with these bytes. Returns false if they are not of such a one.
    ///
    /// # Errors
    /// When the pool has not enough blocks, or the device fails. The sequence is then empty.
    pub fn write_sequence(&mut self, sequence: usize, len: usize, bytes: &[u8]) -> Result<bool> {
        let Some((blocks, state)) = self.parts(len.div_ceil(BLOCK_SIZE), bytes)? else { return Ok(false) };
        self.truncate(sequence, 0);
        let written = (|| {
            (0..len).try_for_each(|_| self.append(sequence).map(drop))?;
            for (row, bytes) in self.sequences[sequence].blocks.iter().zip(blocks) {
                KvCache::write(self.blocks(), *row, bytes)?;
            }
            if let (Some(states), 1..) = (&mut self.states, len) {
                let [_, slot] = states.step(sequence, len);
                KvCache::write(states.tensors(), slot, state)?;
            }
            Ok(true)
        })();
        if written.is_err() {
            self.truncate(sequence, 0);
        }
        written
    }

    /// What others can find of these tokens: how many, and the bytes.
    pub fn read_prefix(&self, hasher: &PrefixHasher, tenant: Option<&str>, tokens: &[u32]) -> Result<(usize, Vec<u8>)> {
        // A prefix leaves a token to compute; here nothing is.
        let prefix = self.find_prefix(hasher, tenant, &[tokens, &[0]].concat());
        let state = self.states.as_ref().and_then(|states| states.saved(prefix.hash));
        // Whole blocks: the rest of another could hold what is left of somebody else's text.
        Ok((prefix.blocks.len() * BLOCK_SIZE, self.read(&prefix.blocks, state)?))
    }

    /// Lets others find these whole blocks of tokens with these bytes, as many as there is room for. Returns the number
    /// of tokens, or `None` if the bytes are not theirs.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write_prefix(
        &mut self,
        hasher: &PrefixHasher,
        tenant: Option<&str>,
        tokens: &[u32],
        bytes: &[u8],
    ) -> Result<Option<usize>> {
        let blocks = tokens.len().div_ceil(BLOCK_SIZE);
        let Some((parts, state)) = self.parts(blocks, bytes)? else { return Ok(None) };
        if self.has_states() && (!tokens.len().is_multiple_of(BLOCK_SIZE) || blocks > self.pool.available()) {
            return Ok(Some(0));
        }
        let (mut hash, mut held) = (hasher.root(tenant), Vec::new());
        let written = (|| {
            for (of_block, bytes) in tokens.chunks_exact(BLOCK_SIZE).zip(parts) {
                let next = hasher.next(hash, of_block);
                if let Some(block) = self.pool.find(next, of_block) {
                    self.pool.share(block);
                    held.push(block);
                } else {
                    let Some(block) = self.pool.allocate() else { break };
                    held.push(block);
                    KvCache::write(self.blocks(), block, bytes)?;
                    self.pool.publish(block, next, of_block);
                }
                hash = next;
            }
            if let (Some(states), 1..) = (&mut self.states, blocks) {
                match states.place(hash) {
                    Some(slot) => KvCache::write(states.tensors(), slot, state)?,
                    None => return Ok(Some(0)),
                }
            }
            Ok(Some(held.len() * BLOCK_SIZE))
        })();
        if written.is_err() {
            self.forget_state(hash);
        }
        // The last first, as `truncate` does.
        held.into_iter().rev().for_each(|block| self.pool.release(block));
        written
    }

    /// Forgets what others could find of these tokens, unless a sequence uses it. Returns the number of tokens.
    pub fn forget_prefix(&mut self, hasher: &PrefixHasher, tenant: Option<&str>, tokens: &[u32]) -> usize {
        let (mut hash, mut forgotten) = (hasher.root(tenant), 0);
        for of_block in tokens.chunks_exact(BLOCK_SIZE) {
            hash = hasher.next(hash, of_block);
            let Some(block) = self.pool.find(hash, of_block) else { break };
            if self.pool.is_idle(block) {
                self.pool.forget(block);
                forgotten += BLOCK_SIZE;
            }
            self.forget_state(hash);
        }
        let left = &tokens[tokens.len() / BLOCK_SIZE * BLOCK_SIZE..];
        if let Some((block, alike)) = self.pool.find_rest(hasher.rest(hash), left) {
            self.pool.forget(block);
            forgotten += alike;
        }
        forgotten
    }

    /// Forgets the state saved under a hash.
    pub fn forget_state(&mut self, hash: u128) {
        if let Some(states) = &mut self.states {
            states.forget(hash);
        }
    }
}
