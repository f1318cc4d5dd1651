//! Runs models whose tokens see all of their text: each text in one step, several texts together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use hologram_core::{Executor, Plan};

use super::TEXTS;
use crate::error::{LlmError, Result};
use crate::kv::KvCache;
use crate::model::Model;
use crate::models::decoder::{Bucket, Decoder, Results};
use crate::plan_size::plan_size;

/// Fewest tokens of a step that a cache has room for.
const TOKENS: usize = 2048;

/// A text for an encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct EncoderText<'a> {
    /// At least one.
    pub tokens: &'a [u32],
    /// Per token its segment; empty: all in segment 0.
    pub segments: &'a [u32],
}

/// The tokens of a text whose hidden states are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    First,
    Last,
    All,
}

/// A model on a device with its plans.
pub(super) struct Encoder {
    executor: Executor,
    decoder: Arc<Decoder>,
    cache: KvCache,
    batch: usize,
    plans: HashMap<Bucket, Plan>,
}

impl Encoder {
    /// For texts of at most `context` tokens.
    ///
    /// # Errors
    /// When the device lacks the memory, or the model's learned positions are fewer.
    pub fn new(model: &Model, context: usize) -> Result<Encoder> {
        let (executor, decoder) = (model.executor().clone(), model.decoder().clone());
        let c = &decoder.config;
        if c.architecture.encoder.is_some_and(|parts| parts.positions) && context > c.context {
            let reason = format!("is {context}, but the model has only {} positions", c.context);
            return Err(LlmError::Option { option: "ctx", reason });
        }
        let batch = context.max(TOKENS);
        let format = decoder.cache_format(&**executor.backend());
        // A text may leave a part of its last block unused.
        let blocks = Some(batch.div_ceil(crate::kv::BLOCK_SIZE) + TEXTS);
        let cache = KvCache::new(&executor, c, (TEXTS, context, blocks, 0), format)?;
        Ok(Encoder { executor, decoder, cache, batch, plans: HashMap::new() })
    }

    /// The most tokens of a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The wanted hidden states of each text, after the output norm if there is one. There are at most [`TEXTS`] texts,
    /// of at most [`Encoder::batch`] tokens together.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the device fails.
    pub fn run(&mut self, texts: &[EncoderText<'_>], wanted: Wanted) -> Result<Vec<Vec<f32>>> {
        let c = &self.decoder.config;
        let (vocab, width, segments) = (c.vocab, c.width, c.segments);
        let half = c.windows.iter().flatten().map(|window| window / 2).next();
        let count: usize = texts.iter().map(|text| text.tokens.len()).sum();
        let mut lists: [Vec<u32>; 8] = std::array::from_fn(|_| Vec::with_capacity(count));
        let [ids, positions, sequences, slots, kinds, lasts, window_firsts, window_lasts] = &mut lists;
        let mut rows = Vec::new();
        for (sequence, text) in texts.iter().enumerate() {
            self.cache.truncate(sequence, 0);
            let (start, last) = (ids.len() as u32, (text.tokens.len() - 1) as u32);
            rows.extend(match wanted {
                Wanted::First => start..start + 1,
                Wanted::Last => start + last..start + last + 1,
                Wanted::All => start..start + last + 1,
            });
            for (position, token) in (0u32..).zip(text.tokens) {
                if *token as usize >= vocab {
                    let reason = format!("must be below {vocab}, the size of the vocabulary, but one is {token}");
                    return Err(LlmError::Option { option: "tokens", reason });
                }
                ids.push(*token);
                positions.push(position);
                sequences.push(sequence as u32);
                slots.push(self.cache.append(sequence)?);
                let segment = text.segments.get(position as usize).copied().unwrap_or(0);
                kinds.push(segment.min(segments.saturating_sub(1) as u32));
                lasts.push(last);
                window_firsts.push(position.saturating_sub(half.unwrap_or(last)));
                window_lasts.push(position.saturating_add(half.unwrap_or(last)).min(last));
            }
        }
        let mut table = Vec::new();
        self.cache.write_table(&mut table);
        let size = |n: usize| plan_size(n).min(self.batch);
        let (tokens, outputs) = (size(count), size(rows.len()));
        let bucket = Bucket {
            tokens,
            full: false,
            outputs,
            results: Results::Hidden,
            precision: None,
            independent: false,
            pieces: true,
        };
        let plan = match self.plans.entry(bucket) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => {
                let graph = self.decoder.graph(&self.executor, &self.cache, bucket)?;
                e.insert(graph.compile(&self.executor, &[])?)
            }
        };
        plan.write("ids", ids)?;
        plan.write("positions", positions)?;
        plan.write("sequences", sequences)?;
        plan.write("slots", slots)?;
        plan.write("lasts", lasts)?;
        if half.is_some() {
            plan.write("window_firsts", window_firsts)?;
            plan.write("window_lasts", window_lasts)?;
        }
        if segments > 0 {
            plan.write("segments", kinds)?;
        }
        plan.write("rows", &rows)?;
        plan.write("block_table", &table)?;
        plan.set_extent("tokens", count)?;
        plan.set_extent("outputs", rows.len())?;
        plan.run()?;
        let mut hidden = vec![0.0f32; rows.len() * width];
        plan.read_into("hidden", &mut hidden)?;
        for sequence in 0..texts.len() {
            self.cache.truncate(sequence, 0);
        }
        Ok(split(&hidden, texts, wanted))
    }
}

/// The rows of each text.
pub(super) fn split(rows: &[f32], texts: &[EncoderText<'_>], wanted: Wanted) -> Vec<Vec<f32>> {
    let of = |text: &EncoderText<'_>| if wanted == Wanted::All { text.tokens.len() } else { 1 };
    let width = rows.len() / texts.iter().map(of).sum::<usize>().max(1);
    let mut rest = rows;
    texts
        .iter()
        .map(|text| {
            let (own, later) = rest.split_at(of(text) * width);
            rest = later;
            own.to_vec()
        })
        .collect()
}
