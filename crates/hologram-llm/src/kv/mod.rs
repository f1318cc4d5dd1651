//! The paged KV cache: a pool of blocks per layer, assigned to sequences as they grow.

mod contents;
mod pool;
mod states;

use hologram_backends::DType;
use hologram_core::{Executor, Tensor};

use pool::BlockPool;
pub(crate) use pool::PrefixHasher;
pub(crate) use states::LayerState;
use states::States;

use crate::error::{LlmError, Result};
use crate::models::HeadSizes;
use crate::models::config::Config;

/// Positions per block.
pub const BLOCK_SIZE: usize = 32;

/// The element types of caches, by the names that options have.
pub const CACHE_TYPES: [(&str, DType); 5] =
    [("f32", DType::F32), ("f16", DType::F16), ("f8", DType::F8), ("q8", DType::Q8Planes), ("q4", DType::Q4Planes)];

/// Keys and values of every layer in device memory at fixed addresses. The host tracks which sequence owns which block.
pub(crate) struct KvCache {
    format: DType,
    /// Per layer the keys and the values: `[blocks, kv heads, BLOCK_SIZE, head_dim]`; `None` for layers without.
    layers: Vec<Option<(Tensor, Tensor)>>,
    /// The states of recurrent layers.
    states: Option<States>,
    blocks_per_sequence: usize,
    pool: BlockPool,
    sequences: Vec<Sequence>,
    /// Grows with each look at the block table's changes, so that later ones have greater numbers.
    now: u64,
}

/// A sequence's blocks in order, and the number of positions in use.
#[derive(Clone, Debug, Default)]
struct Sequence {
    blocks: Vec<u32>,
    /// When each block took its place, in ascending order.
    since: Vec<u64>,
    len: usize,
}

impl Sequence {
    fn push(&mut self, block: u32, now: u64) {
        self.blocks.push(block);
        self.since.push(now);
    }
}

impl KvCache {
    /// A cache for `max_sequences` sequences of up to `context` positions each, with elements of `format` (one of
    /// [`CACHE_TYPES`]). The sequences share `blocks` blocks; by default there are enough for all. Up to
    /// `saved_states` states of recurrent layers are kept for other sequences.
    ///
    /// # Errors
    /// [`LlmError::CacheTooLarge`].
    pub fn new(
        executor: &Executor,
        config: &Config,
        (max_sequences, context, blocks, saved_states): (usize, usize, Option<usize>, usize),
        format: DType,
    ) -> Result<KvCache> {
        let blocks_per_sequence = context.div_ceil(BLOCK_SIZE).max(1);
        let blocks = blocks.unwrap_or(blocks_per_sequence * max_sequences);
        let bytes = blocks as u128 * block_bytes(config, format);
        let too_large = |cause| LlmError::CacheTooLarge { sequences: max_sequences, context, bytes, cause };
        let tensor = |layer: usize| {
            let HeadSizes { kv_heads, head_dim } = config.heads_of(layer);
            Tensor::empty(executor, format, &[blocks, kv_heads, BLOCK_SIZE, head_dim]).map_err(too_large)
        };
        let pair = |layer: usize| match config.has_cache(layer) {
            true => {
                let keys = tensor(layer)?;
                // Latent vectors are keys and values.
                let values = if config.latent.is_some() { keys.clone() } else { tensor(layer)? };
                Ok(Some((keys, values)))
            }
            false => Ok(None),
        };
        let layers = (0..config.layers).map(pair).collect::<Result<Vec<_>>>()?;
        Ok(KvCache {
            format,
            layers,
            states: States::new(executor, config, max_sequences, saved_states)?,
            blocks_per_sequence,
            pool: BlockPool::new(blocks),
            sequences: vec![Sequence::default(); max_sequences],
            now: 1,
        })
    }

    /// Clears the errors of a failed run, once the sequences are truncated to their state before it. That state is
    /// intact.
    ///
    /// # Errors
    /// Those of the device.
    pub fn clear_errors(&self) -> Result<()> {
        for (keys, values) in self.layers.iter().flatten() {
            keys.clear_error()?;
            values.clear_error()?;
        }
        self.states.as_ref().map_or(Ok(()), States::clear_errors)
    }

    /// The keys and values of a layer, if it has them.
    pub fn layer(&self, index: usize) -> Option<(&Tensor, &Tensor)> {
        self.layers.get(index)?.as_ref().map(|(keys, values)| (keys, values))
    }

    /// The state of a recurrent layer, if it has one.
    pub fn state(&self, layer: usize) -> Option<&LayerState> {
        self.states.as_ref()?.layer(layer)
    }

    /// Whether the model has states, of which those of earlier lengths do not exist.
    pub fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// The slots of the states that a step reads and writes for a sequence, all of whose new tokens are appended.
    pub fn step_state(&mut self, sequence: usize) -> Option<[u32; 2]> {
        let len = self.sequences[sequence].len;
        Some(self.states.as_mut()?.step(sequence, len))
    }

    /// Bytes of keys and values per position in a layer.
    pub fn bytes_per_position(&self, layer: usize) -> usize {
        let Some((keys, values)) = self.layer(layer) else { return 0 };
        let positions = self.pool.total() * BLOCK_SIZE;
        let values = if values.same_memory(keys) { 0 } else { values.bytes() };
        (keys.bytes() + values) / positions.max(1)
    }

    /// The maximum number of sequences.
    pub fn max_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Columns of the block table.
    pub fn blocks_per_sequence(&self) -> usize {
        self.blocks_per_sequence
    }

    /// The context length of a sequence in positions.
    pub fn context(&self) -> usize {
        self.blocks_per_sequence * BLOCK_SIZE
    }

    /// Positions in use.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].len
    }

    /// Appends a position to a sequence and returns its slot, block · BLOCK_SIZE + offset.
    ///
    /// # Errors
    /// When the sequence or the pool is full.
    pub fn append(&mut self, sequence: usize) -> Result<u32> {
        let s = &mut self.sequences[sequence];
        let (block, offset) = (s.len / BLOCK_SIZE, s.len % BLOCK_SIZE);
        if offset == 0 {
            if block >= self.blocks_per_sequence {
                return Err(LlmError::ContextFull { context: self.blocks_per_sequence * BLOCK_SIZE });
            }
            let positions = self.pool.total() * BLOCK_SIZE;
            s.push(self.pool.allocate().ok_or(LlmError::CacheFull { positions })?, self.now);
        }
        s.len += 1;
        Ok(s.blocks[block] * BLOCK_SIZE as u32 + offset as u32)
    }

    /// Truncates a sequence to at most `len` positions and frees the blocks that it no longer needs. A model with
    /// states goes back to a length of which a state exists, which may be 0.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        let len = match &mut self.states {
            Some(states) => states.truncate(sequence, len),
            None => len,
        };
        let s = &mut self.sequences[sequence];
        s.len = s.len.min(len);
        let keep = s.len.div_ceil(BLOCK_SIZE);
        // The last first: of idle blocks, those that a prefix needs least are evicted first.
        for block in s.blocks.drain(keep.min(s.blocks.len())..).rev() {
            self.pool.release(block);
        }
        s.since.truncate(keep);
    }

    /// Blocks that sequences can still take.
    pub fn available_blocks(&self) -> usize {
        self.pool.available()
    }

    /// The number of blocks of a sequence.
    pub fn blocks_of(&self, sequence: usize) -> usize {
        self.sequences[sequence].blocks.len()
    }

    /// Makes the block `index` of a sequence, which is full of `tokens`, available to others under this hash.
    pub fn publish(&mut self, sequence: usize, index: usize, hash: u128, tokens: &[u32]) {
        if let Some(block) = self.sequences[sequence].blocks.get(index) {
            self.pool.publish(*block, hash, tokens);
        }
    }

    /// Makes the last block of a sequence, which `tokens` do not fill, available to one other that begins like it. A
    /// sequence with states could not go on from the middle of a block.
    pub fn publish_rest(&mut self, sequence: usize, hash: u128, tokens: &[u32]) {
        if let (Some(block), None) = (self.sequences[sequence].blocks.last(), &self.states) {
            self.pool.publish_rest(*block, hash, tokens);
        }
    }

    /// The published blocks that hold the start of `tokens` and leave a token to compute: whole blocks, and after the
    /// last a part of one that no sequence uses.
    pub fn find_prefix(&self, hasher: &PrefixHasher, tenant: Option<&str>, tokens: &[u32]) -> Prefix {
        let mut found = Prefix { hash: hasher.root(tenant), blocks: Vec::new(), idle: 0, rest: None };
        let most = tokens.len().saturating_sub(1) / BLOCK_SIZE;
        // A model with states needs the state after the prefix as well.
        let (mut hash, mut usable) = (found.hash, 0);
        for of_block in tokens.chunks_exact(BLOCK_SIZE).take(most) {
            hash = hasher.next(hash, of_block);
            let Some(block) = self.pool.find(hash, of_block) else { break };
            found.blocks.push(block);
            if self.states.as_ref().is_none_or(|states| states.has(hash)) {
                (found.hash, usable) = (hash, found.blocks.len());
            }
        }
        found.blocks.truncate(usable);
        found.idle = found.blocks.iter().filter(|block| self.pool.is_idle(**block)).count();
        let left = tokens.get(found.tokens()..tokens.len().saturating_sub(1)).unwrap_or_default();
        found.rest = self.pool.find_rest(hasher.rest(found.hash), left);
        found
    }

    /// Gives an empty sequence the blocks of a prefix.
    pub fn adopt(&mut self, sequence: usize, prefix: &Prefix) {
        self.truncate(sequence, 0);
        for block in &prefix.blocks {
            self.pool.share(*block);
        }
        if let Some((block, _)) = prefix.rest {
            self.pool.claim(block);
        }
        let s = &mut self.sequences[sequence];
        prefix
            .blocks
            .iter()
            .copied()
            .chain(prefix.rest.map(|(block, _)| block))
            .for_each(|block| s.push(block, self.now));
        s.len = prefix.tokens();
        if let Some(states) = &mut self.states {
            states.adopt(sequence, prefix.hash, prefix.tokens());
        }
    }

    /// Makes the states of a sequence after `len` tokens available to others, under the hash of the last block of them.
    pub fn save_state(&mut self, sequence: usize, hash: u128, len: usize) {
        if let Some(states) = &mut self.states {
            states.save(sequence, hash, len);
        }
    }

    /// The entries of the block table that changed after `seen`, which becomes now; 0: all. Each with the place of the
    /// first in the row-major table; unused entries are never read.
    pub fn table_changes(&mut self, seen: &mut u64) -> impl Iterator<Item = (usize, &[u32])> {
        let after = std::mem::replace(seen, self.now);
        self.now += 1;
        let columns = self.blocks_per_sequence;
        self.sequences.iter().enumerate().filter_map(move |(i, s)| {
            let first = s.since.partition_point(|since| *since <= after);
            let new = s.blocks.get(first..).filter(|new| !new.is_empty())?;
            Some((i * columns + first, new))
        })
    }

    /// Writes the block table, row-major `[sequences, blocks_per_sequence]`; unused entries are 0 and never read.
    pub fn write_table(&self, table: &mut Vec<u32>) {
        table.clear();
        for s in &self.sequences {
            table.extend_from_slice(&s.blocks);
            table.resize(table.len() + self.blocks_per_sequence - s.blocks.len(), 0);
        }
    }
}

/// Blocks that already hold the start of a prompt.
pub(crate) struct Prefix {
    /// The hash of the last block, or that before the first.
    pub hash: u128,
    blocks: Vec<u32>,
    /// How many of the blocks no sequence uses now.
    pub idle: usize,
    /// A block after them that no sequence uses, and how many of its positions hold tokens of the prompt.
    rest: Option<(u32, usize)>,
}

impl Prefix {
    /// The tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.blocks.len() * BLOCK_SIZE + self.rest.map_or(0, |(_, tokens)| tokens)
    }
}

/// Bytes of a block in all layers.
pub(crate) fn block_bytes(config: &Config, format: DType) -> u128 {
    let elements = (config.cache_elements() * BLOCK_SIZE) as u128;
    elements * format.block_bytes() as u128 / format.block_len() as u128
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::Shape;

    /// Two plans that look at different times have the whole table, although each gets only changes.
    #[test]
    fn changes_of_the_table_add_up_to_it() {
        let executor = Executor::open("cpu", Some(1)).unwrap();
        let shape = Shape { layers: 1, vocab: 8, ..Shape::find("tinyllama-1.1b").unwrap().clone() };
        let mut cache = KvCache::new(&executor, &shape.config(), (5, 300, Some(30), 0), DType::F32).unwrap();
        let columns = cache.blocks_per_sequence();
        let mut plans = [(0u64, vec![0u32; 5 * columns]), (0, vec![0; 5 * columns])];
        let (mut seed, mut written, mut whole) = (1u64, 0, Vec::new());
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((seed >> 33) % n) as usize
        };
        for _ in 0..3000 {
            let sequence = draw(5);
            match draw(40) {
                0 => cache.truncate(sequence, draw(300)),
                _ => drop(cache.append(sequence)),
            }
            let (seen, table) = &mut plans[draw(2)];
            for (first, blocks) in cache.table_changes(seen) {
                written += blocks.len();
                table[first..first + blocks.len()].copy_from_slice(blocks);
            }
            cache.write_table(&mut whole);
            for (i, used) in cache.sequences.iter().map(|s| s.blocks.len()).enumerate() {
                let row = i * columns..i * columns + used;
                assert_eq!(table[row.clone()], whole[row]);
            }
        }
        // A block is written once for each plan, and few are taken.
        assert!(written < 1500, "{written} entries");
    }
}
