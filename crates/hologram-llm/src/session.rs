//! A running model: its KV cache and the compiled plans of its step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use hologram_backends::Format;
use hologram_core::{Executor, Plan};

use crate::error::{LlmError, Result};
use crate::kv::KvCache;
use crate::models::decoder::{Bucket, Decoder};

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
    decoder: Arc<Decoder>,
    cache: KvCache,
    options: SessionOptions,
    /// Plans by the greatest sizes of their steps, powers of two; each is made when the first such step runs.
    plans: HashMap<Bucket, Plan>,
    scratch: Scratch,
}

/// Host copies of what steps take and give, kept to avoid allocation.
#[derive(Default)]
struct Scratch {
    /// What is fed: sequences and tokens.
    fed: Vec<(usize, u32)>,
    /// By sequence, its length before and the tokens that it gets.
    growth: Vec<(usize, usize)>,
    ids: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    slots: Vec<u32>,
    rows: Vec<u32>,
    table: Vec<u32>,
    /// Memory of logits, of which the first `filled` belong to the last call.
    logits: Vec<f32>,
    filled: usize,
}

impl Session {
    pub(crate) fn new(executor: &Executor, decoder: &Arc<Decoder>, options: SessionOptions) -> Result<Session> {
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
        // A model whose weights do not fit together is refused here, not at the first step.
        decoder.graph(executor, &cache, Bucket { tokens: 1, outputs: 1 })?;
        let (executor, decoder) = (executor.clone(), decoder.clone());
        Ok(Session { executor, decoder, cache, options, plans: HashMap::new(), scratch: Scratch::default() })
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
        self.decoder.config.vocab
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
        self.scratch.fed.clear();
        self.scratch.fed.extend(tokens.iter().map(|token| (sequence, *token)));
        self.run(logits)
    }

    /// Appends one token to each of several sequences and computes them together, in steps of at most a batch. Returns their logits in
    /// order, row-major `[tokens, vocabulary]`. A sequence may come several times; its tokens follow each other.
    ///
    /// # Errors
    /// As [`Session::feed`]; all sequences are then as they were before.
    pub fn feed_batch(&mut self, tokens: &[(usize, u32)]) -> Result<&[f32]> {
        self.scratch.fed.clear();
        self.scratch.fed.extend_from_slice(tokens);
        self.run(Logits::All)
    }

    /// Computes what is in `scratch.fed`.
    fn run(&mut self, logits: Logits) -> Result<&[f32]> {
        self.scratch.filled = 0;
        self.check()?;
        let (fed, batch) = (self.scratch.fed.len(), self.options.batch);
        for start in (0..fed).step_by(batch) {
            let step = start..(start + batch).min(fed);
            let wanted = match logits {
                Logits::None => 0,
                Logits::Last => usize::from(step.end == fed),
                Logits::All => step.len(),
            };
            let done = self.step(step.clone(), wanted).and_then(|()| match step.end == fed && wanted == 0 {
                true => Ok(self.executor.backend().synchronize()?),
                false => Ok(()),
            });
            if let Err(e) = done {
                for (sequence, (before, _)) in self.scratch.growth.iter().enumerate() {
                    self.cache.truncate(sequence, *before);
                }
                return Err(e);
            }
        }
        Ok(&self.scratch.logits[..self.scratch.filled])
    }

    /// Whether what is fed exists and fits; notes how the sequences grow.
    fn check(&mut self) -> Result<()> {
        let (sequences, vocab, context) = (self.cache.max_sequences(), self.vocab(), self.context());
        let growth = &mut self.scratch.growth;
        growth.clear();
        growth.extend((0..sequences).map(|s| (self.cache.len(s), 0)));
        for (sequence, token) in &self.scratch.fed {
            let Some((before, added)) = growth.get_mut(*sequence) else {
                let reason = format!("{sequence} is not one of {sequences} sequences");
                return Err(LlmError::Option { option: "sequence", reason });
            };
            if *token as usize >= vocab {
                let reason = format!("has token {token}, but the vocabulary has {vocab} tokens");
                return Err(LlmError::Option { option: "tokens", reason });
            }
            *added += 1;
            if *before + *added > context {
                return Err(LlmError::ContextFull { context });
            }
        }
        Ok(())
    }

    /// One run of the graph: appends tokens to their sequences and adds the logits of the last `wanted` to the scratch.
    fn step(&mut self, range: Range<usize>, wanted: usize) -> Result<()> {
        let s = &mut self.scratch;
        let fed = &s.fed[range];
        for list in [&mut s.ids, &mut s.positions, &mut s.sequences, &mut s.slots, &mut s.rows] {
            list.clear();
        }
        for (sequence, token) in fed {
            s.ids.push(*token);
            s.sequences.push(*sequence as u32);
            s.positions.push(self.cache.len(*sequence) as u32);
            s.slots.push(self.cache.append(*sequence)?);
        }
        s.rows.extend((fed.len() - wanted..fed.len()).map(|r| r as u32));
        self.cache.write_table(&mut s.table);

        let size = |n: usize| n.max(1).next_power_of_two().min(self.options.batch);
        let bucket = Bucket { tokens: size(fed.len()), outputs: size(wanted) };
        let plan = match self.plans.entry(bucket) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => {
                let graph = self.decoder.graph(&self.executor, &self.cache, bucket)?;
                e.insert(graph.compile(&self.executor, &[])?)
            }
        };
        plan.write("ids", &s.ids)?;
        plan.write("positions", &s.positions)?;
        plan.write("sequences", &s.sequences)?;
        plan.write("slots", &s.slots)?;
        plan.write("rows", &s.rows)?;
        plan.write("block_table", &s.table)?;
        plan.set_extent("tokens", fed.len())?;
        plan.set_extent("outputs", wanted)?;
        plan.run()?;
        if wanted > 0 {
            let end = s.filled + wanted * self.decoder.config.vocab;
            // Not cleared between calls: half a megabyte a token would be.
            s.logits.resize(end.max(s.logits.len()), 0.0);
            plan.read_into("logits", &mut s.logits[s.filled..end])?;
            s.filled = end;
        }
        Ok(())
    }
}
