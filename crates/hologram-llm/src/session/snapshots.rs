//! Sequences that leave a session and come back.

use super::Session;
use crate::error::{LlmError, Result};
use crate::kv::PrefixHasher;
use crate::snapshot::Snapshot;

impl Session {
    /// Copies a sequence: its tokens and what the cache holds of them. The sequence does not change.
    ///
    /// # Errors
    /// When there is no such sequence or the device fails.
    pub fn snapshot(&self, sequence: usize) -> Result<Snapshot> {
        self.check_sequence(sequence)?;
        let (computed, bytes) = self.cache.read_sequence(sequence)?;
        Ok(Snapshot::new(self.identity.get(), self.cache.format(), self.tokens(sequence), computed, bytes))
    }

    /// Replaces a sequence by the computed tokens of a snapshot, whose next token then is the same as if the sequence
    /// had gone on. Returns their number; the snapshot may have more tokens, which remain to be fed.
    ///
    /// # Errors
    /// When the snapshot is of another model or kind of cache, longer than the context, or damaged; when the cache has
    /// no room. In the last case the sequence is empty, otherwise unchanged.
    pub fn restore(&mut self, sequence: usize, snapshot: &Snapshot) -> Result<usize> {
        self.check_sequence(sequence)?;
        let bytes = snapshot.bytes_for(self.identity.get(), self.cache.format(), self.vocab())?;
        let computed = snapshot.computed();
        if computed > self.context() {
            return Err(LlmError::ContextFull { context: self.context() });
        }
        match self.cache.write_sequence(sequence, computed, bytes) {
            Ok(true) => {
                let cached = &mut self.cached[sequence];
                cached.clear();
                cached.extend_from_slice(&snapshot.tokens()[..computed]);
                Ok(computed)
            }
            Ok(false) => Err(snapshot.damaged()),
            Err(e) => {
                self.cached[sequence].clear();
                Err(e)
            }
        }
    }

    fn check_sequence(&self, sequence: usize) -> Result<()> {
        match self.cached.len() {
            sequences if sequence >= sequences => Err(LlmError::Option {
                option: "sequence",
                reason: format!("{sequence} does not exist; there are {sequences}, counted from 0"),
            }),
            _ => Ok(()),
        }
    }

    /// Copies what other sequences can find of these tokens.
    pub(crate) fn snapshot_prefix(
        &self,
        hasher: &PrefixHasher,
        tenant: Option<&str>,
        tokens: &[u32],
    ) -> Result<Snapshot> {
        let (computed, bytes) = self.cache.read_prefix(hasher, tenant, tokens)?;
        Ok(Snapshot::new(self.identity.get(), self.cache.format(), tokens, computed, bytes))
    }

    /// Lets other sequences find the computed tokens of a snapshot. Returns how many they can.
    pub(crate) fn restore_prefix(
        &mut self,
        hasher: &PrefixHasher,
        tenant: Option<&str>,
        snapshot: &Snapshot,
    ) -> Result<usize> {
        let bytes = snapshot.bytes_for(self.identity.get(), self.cache.format(), self.vocab())?;
        let tokens = &snapshot.tokens()[..snapshot.computed()];
        self.cache.write_prefix(hasher, tenant, tokens, bytes)?.ok_or_else(|| snapshot.damaged())
    }

    /// Forgets what other sequences could find of these tokens; see [`KvCache::forget_prefix`](crate::kv::KvCache).
    pub(crate) fn forget_prefix(&mut self, hasher: &PrefixHasher, tenant: Option<&str>, tokens: &[u32]) -> usize {
        self.cache.forget_prefix(hasher, tenant, tokens)
    }

    /// Forgets the states saved under a hash.
    pub(crate) fn forget_state(&mut self, hash: u128) {
        self.cache.forget_state(hash);
    }
}
