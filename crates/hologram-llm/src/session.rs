//! A running model: its KV cache and the compiled plans of its step.

use std::collections::HashMap;

use hologram_backends::Format;
use hologram_core::{Executor, Graph, Plan};

use crate::error::{LlmError, Result};
use crate::kv::KvCache;
use crate::models::decoder::Decoder;

/// How a session is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions that a sequence can hold.
    pub context: usize,
    /// The most tokens in one step; longer prompts take several.
    pub batch: usize,
    /// Sequences held at the same time.
    pub sequences: usize,
    /// Elements of the KV cache: [`Format::F32`] or [`Format::F16`].
    pub kv: Format,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { context: 4096, batch: 512, sequences: 1, kv: Format::F32 }
    }
}

/// Which tokens of a step get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None.
    None,
    /// The last one.
    Last,
    /// All.
    All,
}

/// A running model: sequences in a KV cache, extended step by step.
pub struct Session {
    executor: Executor,
    graph: Graph,
    cache: KvCache,
    options: SessionOptions,
    vocab: usize,
    /// Plans by bucket: the greatest tokens and outputs of a step, powers of two.
    plans: HashMap<(usize, usize), Plan>,
    scratch: Scratch,
}

/// Host copies of a step's inputs, kept to avoid allocation.
#[derive(Default)]
struct Scratch {
    positions: Vec<u32>,
    sequences: Vec<u32>,
    slots: Vec<u32>,
    rows: Vec<u32>,
    table: Vec<u32>,
    logits: Vec<f32>,
}

impl Session {
    pub(crate) fn new(executor: &Executor, decoder: &Decoder, options: SessionOptions) -> Result<Session> {
        let check = |option, value: usize, max: usize| match value {
            v if (1..=max).contains(&v) => Ok(()),
            v => Err(LlmError::Option { option, reason: format!("is {v}, but must be from 1 to {max}") }),
        };
        check("ctx", options.context, 1 << 24)?;
        check("batch", options.batch, 1 << 16)?;
        check("sequences", options.sequences, 1 << 16)?;
        if options.kv != Format::F32 && options.kv != Format::F16 {
            let reason = format!("is {}, but must be f32 or f16", options.kv.name());
            return Err(LlmError::Option { option: "kv", reason });
        }
        let cache = KvCache::new(executor, &decoder.config, options.sequences, options.context, options.kv)?;
        let graph = decoder.graph(&cache, options.batch)?;
        Ok(Session {
            executor: executor.clone(),
            graph,
            cache,
            options,
            vocab: decoder.config.vocab,
            plans: HashMap::new(),
            scratch: Scratch::default(),
        })
    }

    /// Positions in use in a sequence.
    pub fn len(&self, sequence: usize) -> usize {
        if sequence < self.cache.max_sequences() { self.cache.len(sequence) } else { 0 }
    }

    /// Whether no sequence holds a position.
    pub fn is_empty(&self) -> bool {
        (0..self.cache.max_sequences()).all(|s| self.cache.len(s) == 0)
    }

    /// Positions that a sequence can hold.
    pub fn context(&self) -> usize {
        self.options.context.min(self.cache.context())
    }

    /// Tokens in the vocabulary: the length of a row of logits.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Shortens a sequence to its first `len` positions.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        if sequence < self.cache.max_sequences() {
            self.cache.truncate(sequence, len);
        }
    }

    /// Appends tokens to a sequence and computes them in steps of at most a batch. Returns the wanted logits, row-major
    /// `[wanted tokens, vocabulary]`.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, the context is full or the device fails; the sequence is then as it was before.
    pub fn feed(&mut self, sequence: usize, tokens: &[u32], logits: Logits) -> Result<&[f32]> {
        self.scratch.logits.clear();
        if sequence >= self.cache.max_sequences() {
            let reason = format!("{sequence} is not one of {} sequences", self.cache.max_sequences());
            return Err(LlmError::Option { option: "sequence", reason });
        }
        if let Some(token) = tokens.iter().find(|t| **t as usize >= self.vocab) {
            let reason = format!("has token {token}, but the vocabulary has {} tokens", self.vocab);
            return Err(LlmError::Option { option: "tokens", reason });
        }
        let before = self.cache.len(sequence);
        if before + tokens.len() > self.context() {
            return Err(LlmError::ContextFull { context: self.context() });
        }
        let mut done = 0;
        for chunk in tokens.chunks(self.options.batch) {
            done += chunk.len();
            let wanted = match logits {
                Logits::None => 0,
                Logits::Last => usize::from(done == tokens.len()),
                Logits::All => chunk.len(),
            };
            if let Err(e) = self.step(sequence, chunk, wanted) {
                self.cache.truncate(sequence, before);
                return Err(e);
            }
        }
        Ok(&self.scratch.logits)
    }

    /// One run of the graph: appends a chunk to a sequence and adds the logits of its last `wanted` tokens to the scratch.
    fn step(&mut self, sequence: usize, chunk: &[u32], wanted: usize) -> Result<()> {
        let s = &mut self.scratch;
        let first = self.cache.len(sequence);
        s.positions.clear();
        s.positions.extend((first..first + chunk.len()).map(|p| p as u32));
        s.sequences.clear();
        s.sequences.resize(chunk.len(), sequence as u32);
        s.slots.clear();
        for _ in chunk {
            s.slots.push(self.cache.append(sequence)?);
        }
        s.rows.clear();
        s.rows.extend((chunk.len() - wanted..chunk.len()).map(|r| r as u32));
        self.cache.write_table(&mut s.table);

        let bucket = (chunk.len().next_power_of_two(), wanted.max(1).next_power_of_two());
        let bucket = (bucket.0.min(self.options.batch), bucket.1.min(self.options.batch));
        let plan = match self.plans.entry(bucket) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => {
                let bounds = [("tokens", bucket.0), ("outputs", bucket.1)];
                e.insert(self.graph.compile(&self.executor, &bounds)?)
            }
        };
        plan.write("ids", chunk)?;
        plan.write("positions", &s.positions)?;
        plan.write("sequences", &s.sequences)?;
        plan.write("slots", &s.slots)?;
        plan.write("rows", &s.rows)?;
        plan.write("block_table", &s.table)?;
        plan.set_extent("tokens", chunk.len())?;
        plan.set_extent("outputs", wanted)?;
        plan.run()?;
        if wanted > 0 {
            let at = s.logits.len();
            s.logits.resize(at + wanted * self.vocab, 0.0);
            plan.read_into("logits", &mut s.logits[at..])?;
        } else {
            self.executor.backend().synchronize()?;
        }
        Ok(())
    }
}
