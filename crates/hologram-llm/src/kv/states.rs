//! The states of recurrent layers: slots that sequences take in turn.
//!
//! A step reads a sequence's state in one slot and writes the state after its tokens to another. The one before stays,
//! so that a step can be taken back. States of earlier lengths are gone unless they were saved for the starts of other
//! sequences; a sequence that is cut back further is computed again from a state that exists, or from its first token.

use std::collections::HashMap;

use hologram_backends::DType;
use hologram_core::{Executor, Tensor};

use crate::error::{LlmError, Result};
use crate::models::config::Config;

/// A layer's tensors: the last inputs of its convolution `[slots, inputs, channels]` and, of a linear recurrence, the
/// state `[slots, heads, value, key]`.
#[derive(Debug)]
pub(crate) struct LayerState {
    pub conv: Tensor,
    pub heads: Option<Tensor>,
}

/// The states of all layers, and which sequence uses which slot.
pub(crate) struct States {
    /// By layer; `None` for layers without a state.
    layers: Vec<Option<LayerState>>,
    /// Users of each slot: a sequence's latest state and the one before, and what is saved.
    users: Vec<u32>,
    free: Vec<u32>,
    sequences: Vec<Slots>,
    /// States that other sequences may start from, by the hash of their tokens, with the time of their last use.
    saved: HashMap<u128, (u32, u64)>,
    clock: u64,
}

/// A sequence's latest state and the one before the last step: slot and length in tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    latest: Option<(u32, usize)>,
    before: Option<(u32, usize)>,
}

/// A slot that the states do not have: all of it is zero.
const ZERO: u32 = u32::MAX;

impl States {
    /// The states of a model; `None` if it has none. Up to `saved` states are kept for other sequences.
    ///
    /// # Errors
    /// [`LlmError::CacheTooLarge`].
    pub fn new(executor: &Executor, config: &Config, sequences: usize, saved: usize) -> Result<Option<States>> {
        let Some(recurrent) = &config.recurrent else { return Ok(None) };
        let slots = 2 * sequences + saved;
        let bytes = slots as u128 * config.state_bytes() as u128;
        let tensor = |shape: &[usize]| {
            let too_large = |cause| LlmError::CacheTooLarge { sequences, context: config.context, bytes, cause };
            Tensor::empty(executor, DType::F32, shape).map_err(too_large)
        };
        let layer = |recurs: &bool| -> Result<Option<LayerState>> {
            if !recurs {
                return Ok(None);
            }
            let conv = tensor(&[slots, recurrent.conv - 1, recurrent.channels])?;
            let heads = recurrent.heads.map(|h| tensor(&[slots, h.heads, h.value, h.key])).transpose()?;
            Ok(Some(LayerState { conv, heads }))
        };
        Ok(Some(States {
            layers: config.recurs.iter().map(layer).collect::<Result<_>>()?,
            users: vec![0; slots],
            free: (0..slots as u32).rev().collect(),
            sequences: vec![Slots::default(); sequences],
            saved: HashMap::new(),
            clock: 0,
        }))
    }

    /// Clears the errors of a failed run.
    ///
    /// # Errors
    /// Those of the device.
    pub fn clear_errors(&self) -> Result<()> {
        for state in self.layers.iter().flatten() {
            state.conv.clear_error()?;
            state.heads.iter().try_for_each(Tensor::clear_error)?;
        }
        Ok(())
    }

    /// The state of a layer, if it has one.
    pub fn layer(&self, index: usize) -> Option<&LayerState> {
        self.layers.get(index)?.as_ref()
    }

    /// All tensors; the first dimension of each is the slot.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flatten().flat_map(|state| std::iter::once(&state.conv).chain(&state.heads))
    }

    /// The slots that a step reads and writes for a sequence, which then has `len` tokens.
    pub fn step(&mut self, sequence: usize, len: usize) -> [u32; 2] {
        let Slots { latest, before } = std::mem::take(&mut self.sequences[sequence]);
        self.release(before);
        let to = self.take();
        self.sequences[sequence] = Slots { latest: Some((to, len)), before: latest };
        [latest.map_or(ZERO, |(slot, _)| slot), to]
    }

    /// Cuts a sequence back to at most `len` tokens. Returns how many it then has.
    pub fn truncate(&mut self, sequence: usize, len: usize) -> usize {
        let fits = |state: &Option<(u32, usize)>| state.is_none_or(|(_, own)| own <= len);
        let slots = &mut self.sequences[sequence];
        let mut dropped = [None; 2];
        if !fits(&slots.latest) {
            dropped[0] = std::mem::replace(&mut slots.latest, slots.before.take());
        }
        if !fits(&slots.latest) {
            dropped[1] = slots.latest.take();
        }
        let now = slots.latest.map_or(0, |(_, own)| own);
        dropped.into_iter().for_each(|state| self.release(state));
        now
    }

    /// Forgets the states of a sequence.
    fn clear(&mut self, sequence: usize) {
        let Slots { latest, before } = std::mem::take(&mut self.sequences[sequence]);
        self.release(latest);
        self.release(before);
    }

    /// Saves the state of a sequence after `len` tokens under their hash, if it is the latest or that before the last
    /// step.
    pub fn save(&mut self, sequence: usize, hash: u128, len: usize) {
        let (kept, Slots { latest, before }) = (self.kept(), self.sequences[sequence]);
        let Some((slot, _)) = [latest, before].into_iter().flatten().find(|(_, own)| kept > 0 && *own == len) else {
            return;
        };
        if self.saved.contains_key(&hash) {
            return;
        }
        while self.saved.len() >= kept {
            self.forget_oldest();
        }
        self.clock += 1;
        self.users[slot as usize] += 1;
        self.saved.insert(hash, (slot, self.clock));
    }

    /// The slot of a sequence's latest state.
    pub fn latest(&self, sequence: usize) -> Option<u32> {
        self.sequences[sequence].latest.map(|(slot, _)| slot)
    }

    /// The slot of the state saved under a hash.
    pub fn saved(&self, hash: u128) -> Option<u32> {
        self.saved.get(&hash).map(|(slot, _)| *slot)
    }

    /// A slot for a state that is to be saved under a hash, unless one is. `None`: none may be kept.
    pub fn place(&mut self, hash: u128) -> Option<u32> {
        let kept = self.kept();
        if self.has(hash) || kept == 0 {
            return self.saved(hash);
        }
        while self.saved.len() >= kept {
            self.forget_oldest();
        }
        let slot = self.take();
        self.clock += 1;
        self.saved.insert(hash, (slot, self.clock));
        Some(slot)
    }

    /// Forgets the state saved under a hash. Sequences that use it keep it.
    pub fn forget(&mut self, hash: u128) {
        if let Some((slot, _)) = self.saved.remove(&hash) {
            self.release(Some((slot, 0)));
        }
    }

    /// How many states may be kept: the slots of sequences suffice for all of them, and only the others are left.
    fn kept(&self) -> usize {
        self.users.len() - 2 * self.sequences.len()
    }

    /// Whether a state is saved under this hash.
    pub fn has(&self, hash: u128) -> bool {
        self.saved.contains_key(&hash)
    }

    /// Starts a sequence from the state saved under a hash, of this length.
    pub fn adopt(&mut self, sequence: usize, hash: u128, len: usize) {
        self.clear(sequence);
        self.clock += 1;
        if let Some((slot, used)) = self.saved.get_mut(&hash) {
            *used = self.clock;
            self.users[*slot as usize] += 1;
            self.sequences[sequence].latest = Some((*slot, len));
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.saved.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash) {
            self.forget(oldest);
        }
    }

    /// Takes a free slot. There is one: each sequence has at most two, and what is saved at most the rest.
    fn take(&mut self) -> u32 {
        while self.free.is_empty() && !self.saved.is_empty() {
            self.forget_oldest();
        }
        let slot = self.free.pop().unwrap_or(0);
        self.users[slot as usize] = 1;
        slot
    }

    fn release(&mut self, state: Option<(u32, usize)>) {
        let Some((slot, _)) = state else { return };
        let users = &mut self.users[slot as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(sequences: usize, saved: usize) -> States {
        let slots = 2 * sequences + saved;
        States {
            layers: Vec::new(),
            users: vec![0; slots],
            free: (0..slots as u32).rev().collect(),
            sequences: vec![Slots::default(); sequences],
            saved: HashMap::new(),
            clock: 0,
        }
    }

    #[test]
    fn one_step_is_taken_back() {
        let mut s = states(2, 0);
        assert_eq!((s.step(0, 5), s.step(1, 3), s.step(0, 6)), ([ZERO, 0], [ZERO, 1], [0, 2]));
        // Longer than it is: unchanged. One step: the state before it. More: nothing is left.
        assert_eq!((s.truncate(0, 9), s.truncate(0, 5), s.truncate(0, 4)), (6, 5, 0));
        assert_eq!((s.step(0, 4)[0], s.step(1, 4)[0]), (ZERO, 1));
        s.clear(0);
        s.clear(1);
        assert_eq!(s.free.len(), 4);
    }

    #[test]
    fn saved_states_are_found_until_their_place_is_needed() {
        let mut s = states(1, 2);
        for (len, hash) in [(32, 1), (64, 2), (96, 3)] {
            s.step(0, len);
            s.save(0, hash, len);
        }
        assert_eq!([1, 2, 3].map(|hash| s.has(hash)), [false, true, true]);
        let [of_three, _] = s.step(0, 97);
        s.adopt(0, 2, 64);
        let [of_two, to] = s.step(0, 65);
        assert!(of_two != of_three && to != of_two && to != of_three);
        s.step(0, 66);
        // The last use of 2 is after that of 3.
        s.save(0, 4, 66);
        // Neither its latest state nor that before the last step.
        s.save(0, 5, 64);
        assert!(!s.has(5));
        assert_eq!([2, 3, 4].map(|hash| s.has(hash)), [true, false, true]);
        s.clear(0);
        assert_eq!(s.free.len(), 2);
    }
}
