//! A running model: its KV cache and the compiled plans of its step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use hologram_backends::{Extent, Format, KernelName, KernelSpec, Operation, TensorSpec};
use hologram_core::{Executor, Plan};

use crate::error::{LlmError, Result};
use crate::kv::KvCache;
use crate::models::decoder::{Bucket, Decoder};
use crate::sampling::{Sampler, SamplerConfig};

/// How a session is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions that a sequence can hold.
    pub context: usize,
    /// The most tokens in one step; longer prompts take several.
    pub batch: usize,
    /// Sequences held at the same time.
    pub sequences: usize,
    /// Elements of the KV cache: [`Format::F32`], [`Format::F16`] or, for heads of whole blocks of 32 elements, 8 bits
    /// ([`Format::Q8Planes`]); by default what suits the device, and [`Format::F32`] for models
    /// whose matrices are in `F32` or `F16` or ternary.
    pub kv: Option<Format>,
    /// Whether [`Session::sample`] chooses tokens on the device, so that only they come back, instead of on the host from all logits;
    /// `None` for where the device has a kernel of its own for it.
    pub device_sampling: Option<bool>,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { context: 4096, batch: 512, sequences: 1, kv: None, device_sampling: None }
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
    /// The tokens of each sequence.
    held: Vec<Vec<u32>>,
    options: SessionOptions,
    /// Plans by the greatest sizes of their steps, powers of two; each is made when the first such step runs.
    plans: HashMap<Bucket, Plan>,
    /// Whether steps of exactly so many tokens, in a fixed precision or none, have plans of their own, where that was
    /// asked.
    prefers_fixed: HashMap<(usize, Option<usize>), bool>,
    /// The tokens, a bucket's, of the steps in whose precision all are computed.
    precision: Option<usize>,
    device_sampling: bool,
    /// The plan of the last step.
    last: Option<Bucket>,
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
    /// How the wanted tokens are chosen, and what was.
    numbers: Vec<f32>,
    words: Vec<u32>,
    chosen: Vec<u32>,
}

/// What a run gives for its wanted tokens.
#[derive(Clone, Copy)]
enum Give<'a> {
    Logits,
    Tokens(&'a SamplerConfig),
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
        let kv = options.kv.unwrap_or_else(|| decoder.cache_format(&**executor.backend()));
        if !matches!(kv, Format::F32 | Format::F16 | Format::Q8Planes) {
            let reason = format!("is {}, but must be f32, f16 or q8", kv.name());
            return Err(LlmError::Option { option: "kv", reason });
        }
        let head_dim = decoder.config.head_dim;
        if !head_dim.is_multiple_of(kv.block_len()) {
            let reason = format!("is q8, but heads of {head_dim} elements are not whole blocks of {}", kv.block_len());
            return Err(LlmError::Option { option: "kv", reason });
        }
        if let Some(limit) = decoder.config.context_limit().filter(|limit| options.context > *limit) {
            let reason =
                format!("is {}, but with rope scaling of the kind dynamic the most is {limit}", options.context);
            return Err(LlmError::Option { option: "ctx", reason });
        }
        let cache = KvCache::new(executor, &decoder.config, options.sequences, options.context, kv)?;
        // A model whose weights do not fit together is refused here, not at the first step.
        decoder.graph(
            executor,
            &cache,
            Bucket { tokens: 1, full: false, outputs: 1, sampled: false, precision: None },
        )?;
        let device_sampling = options.device_sampling.unwrap_or_else(|| has_sampling(executor, decoder.config.vocab));
        let (executor, decoder) = (executor.clone(), decoder.clone());
        let (plans, prefers_fixed, scratch) = (HashMap::new(), HashMap::new(), Scratch::default());
        let held = vec![Vec::new(); options.sequences];
        Ok(Session {
            executor,
            decoder,
            cache,
            held,
            options,
            plans,
            prefers_fixed,
            precision: None,
            last: None,
            device_sampling,
            scratch,
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

    /// Bytes of keys and values that a step reads for tokens of one sequence at these positions, each at least once.
    pub fn cache_bytes(&self, positions: Range<usize>) -> u64 {
        let end = positions.end.min(self.context());
        if positions.start >= end {
            return 0;
        }
        let config = &self.decoder.config;
        let seen = |layer: usize| match config.windows.get(layer).copied().flatten() {
            Some(window) => end - (positions.start + 1).saturating_sub(window as usize),
            None => end,
        };
        (0..config.layers).map(|layer| (seen(layer) * self.cache.bytes_per_position(layer)) as u64).sum()
    }

    /// The most tokens in one step.
    pub(crate) fn batch(&self) -> usize {
        self.options.batch
    }

    /// Tokens in the vocabulary: the length of a row of logits.
    pub fn vocab(&self) -> usize {
        self.decoder.config.vocab
    }

    /// Computes the steps that follow in the precision of steps of `tokens` tokens, whatever their own number; with
    /// `None` each in that of its own number, as at first.
    ///
    /// Where the formats of a model's weights leave a choice, a device computes activations and attention of a prompt
    /// in another precision than those of a few tokens, because that is faster there. So what else is in a step has a
    /// part in a token's logits. With a fixed number it has none but for the order of sums.
    pub fn fix_precision(&mut self, tokens: Option<usize>) {
        self.precision = tokens.map(|n| self.bucket_size(n));
    }

    /// The greatest number of tokens, or outputs, that shares a plan with this one.
    fn bucket_size(&self, n: usize) -> usize {
        n.max(1).checked_next_power_of_two().unwrap_or(usize::MAX).min(self.options.batch)
    }

    /// Shortens a sequence to its first `len` positions.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        if let Some(held) = self.held.get_mut(sequence) {
            held.truncate(len);
            self.cache.truncate(sequence, len);
        }
    }

    /// Shortens a sequence to what it has in common with these tokens from their start, but for the last of them, and returns how many
    /// that are: `tokens[n..]` is what remains to be fed. So a prompt that continues or changes an earlier one reuses what is cached.
    pub fn keep_prefix(&mut self, sequence: usize, tokens: &[u32]) -> usize {
        let Some(held) = self.held.get(sequence) else { return 0 };
        let alike = held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let n = alike.min(tokens.len().saturating_sub(1));
        self.truncate(sequence, n);
        n
    }

    /// The tokens that a sequence holds.
    pub fn tokens(&self, sequence: usize) -> &[u32] {
        self.held.get(sequence).map_or(&[], Vec::as_slice)
    }

    /// Appends tokens to a sequence and computes them in steps of at most a batch. Returns the wanted logits, row-major
    /// `[wanted tokens, vocabulary]`.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, the context is full or the device fails; the sequence is then as it was before.
    pub fn feed(&mut self, sequence: usize, tokens: &[u32], logits: Logits) -> Result<&[f32]> {
        self.scratch.fed.clear();
        self.scratch.fed.extend(tokens.iter().map(|token| (sequence, *token)));
        self.run(logits, Give::Logits)?;
        Ok(&self.scratch.logits[..self.scratch.filled])
    }

    /// Appends tokens, at least one, to a sequence and chooses the token that follows them, for its position.
    ///
    /// # Errors
    /// As [`Session::feed`]; logits that no token can be chosen from. The sequence is then as it was before.
    pub fn sample(&mut self, sequence: usize, tokens: &[u32], sampler: &mut Sampler) -> Result<u32> {
        self.scratch.fed.clear();
        self.scratch.fed.extend(tokens.iter().map(|token| (sequence, *token)));
        self.choose(Logits::Last, sampler)?;
        self.scratch
            .chosen
            .first()
            .copied()
            .ok_or_else(|| LlmError::Option { option: "tokens", reason: "are none".into() })
    }

    /// Appends one token to each of several sequences, as [`Session::feed_batch`] does, and chooses the tokens that follow them.
    ///
    /// # Errors
    /// As [`Session::sample`].
    pub fn sample_batch(&mut self, tokens: &[(usize, u32)], sampler: &mut Sampler) -> Result<&[u32]> {
        self.scratch.fed.clear();
        self.scratch.fed.extend_from_slice(tokens);
        self.choose(Logits::All, sampler)?;
        Ok(&self.scratch.chosen)
    }

    /// Appends one token to each of several sequences and computes them together, in steps of at most a batch. Returns their logits in
    /// order, row-major `[tokens, vocabulary]`. A sequence may come several times; its tokens follow each other.
    ///
    /// # Errors
    /// As [`Session::feed`]; all sequences are then as they were before.
    pub fn feed_batch(&mut self, tokens: &[(usize, u32)]) -> Result<&[f32]> {
        self.scratch.fed.clear();
        self.scratch.fed.extend_from_slice(tokens);
        self.run(Logits::All, Give::Logits)?;
        Ok(&self.scratch.logits[..self.scratch.filled])
    }

    /// Computes what is in `scratch.fed` and chooses a token for each wanted one of it.
    fn choose(&mut self, wanted: Logits, sampler: &mut Sampler) -> Result<()> {
        let chosen = if self.device_sampling && sampler.config().fits_device() {
            self.run(wanted, Give::Tokens(sampler.config())).and_then(|()| self.check_chosen(wanted))
        } else {
            self.run(wanted, Give::Logits).and_then(|()| self.choose_on_host(wanted, sampler))
        };
        if chosen.is_err() {
            self.restore();
        }
        chosen
    }

    fn choose_on_host(&mut self, wanted: Logits, sampler: &mut Sampler) -> Result<()> {
        let s = &mut self.scratch;
        s.chosen.clear();
        let rows = s.logits[..s.filled].chunks(self.decoder.config.vocab.max(1));
        for (row, (sequence, position)) in rows.zip(wanted_positions(&s.growth, &s.fed, wanted)) {
            let held = &self.held[sequence];
            s.chosen.push(sampler.sample_after(row, &held[..held.len().min(position as usize)], position)?);
        }
        Ok(())
    }

    /// Whether the device found a token everywhere.
    fn check_chosen(&self, wanted: Logits) -> Result<()> {
        let s = &self.scratch;
        let vocab = self.vocab();
        let bad = s.chosen.iter().zip(wanted_positions(&s.growth, &s.fed, wanted)).find(|(t, _)| **t as usize >= vocab);
        match bad {
            None => Ok(()),
            Some((_, (_, position))) => {
                let reason = "one is NaN or infinite, or none is above negative infinity".into();
                Err(LlmError::Logits { position, reason })
            }
        }
    }

    /// Shortens the sequences to what they were before the last run. A device that is lost says so at the next run.
    fn restore(&mut self) {
        for (sequence, (before, _)) in self.scratch.growth.iter().enumerate() {
            self.cache.truncate(sequence, *before);
            self.held[sequence].truncate(*before);
        }
        let _ = self.cache.clear_errors();
    }

    /// Runs the kernels of the last step once more, one by one, and gives for each its name and the seconds it took on the device. What
    /// the session holds stays as it is; before the first step there is nothing.
    ///
    /// # Errors
    /// A device that cannot measure them; an error of the run.
    pub fn profile(&self) -> Result<Vec<(KernelName, f64)>> {
        match self.last.and_then(|bucket| self.plans.get(&bucket)) {
            Some(plan) => Ok(plan.profile()?),
            None => Ok(Vec::new()),
        }
    }

    /// Computes what is in `scratch.fed`.
    fn run(&mut self, logits: Logits, give: Give<'_>) -> Result<()> {
        self.scratch.filled = 0;
        self.scratch.chosen.clear();
        self.check()?;
        let (fed, batch) = (self.scratch.fed.len(), self.options.batch);
        for start in (0..fed).step_by(batch) {
            let step = start..(start + batch).min(fed);
            let wanted = match logits {
                Logits::None => 0,
                Logits::Last => usize::from(step.end == fed),
                Logits::All => step.len(),
            };
            let done = self.step(step.clone(), wanted, give).and_then(|()| match step.end == fed && wanted == 0 {
                true => Ok(self.executor.backend().synchronize()?),
                false => Ok(()),
            });
            if let Err(e) = done {
                self.restore();
                return Err(e);
            }
        }
        Ok(())
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

    /// One run of the graph: appends tokens to their sequences and adds what the last `wanted` give to the scratch.
    fn step(&mut self, range: Range<usize>, wanted: usize, give: Give<'_>) -> Result<()> {
        let (tokens, outputs) = (self.bucket_size(range.len()), self.bucket_size(wanted));
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
            self.held[*sequence].push(*token);
        }
        s.rows.extend((fed.len() - wanted..fed.len()).map(|r| r as u32));
        self.cache.write_table(&mut s.table);

        let sampled = wanted > 0 && matches!(give, Give::Tokens(_));
        let (decoder, backend, precision) = (&self.decoder, self.executor.backend(), self.precision);
        let prefers_fixed = || decoder.prefers_fixed(&**backend, tokens, precision);
        let full = fed.len() == tokens && *self.prefers_fixed.entry((tokens, precision)).or_insert_with(prefers_fixed);
        let bucket = Bucket { tokens, full, outputs, sampled, precision };
        self.last = Some(bucket);
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
        if !full {
            plan.set_extent("tokens", fed.len())?;
        }
        plan.set_extent("outputs", wanted)?;
        if let (true, Give::Tokens(config)) = (sampled, give) {
            s.numbers.clear();
            s.words.clear();
            for position in &s.positions[fed.len() - wanted..] {
                let (numbers, words) = config.row(u64::from(*position) + 1);
                s.numbers.extend(numbers);
                s.words.extend(words);
            }
            plan.write("sampling_numbers", &s.numbers)?;
            plan.write("sampling_words", &s.words)?;
            plan.run()?;
            let from = s.chosen.len();
            s.chosen.resize(from + wanted, 0);
            return Ok(plan.read_into("chosen", &mut s.chosen[from..])?);
        }
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

/// The sequences and positions at which the tokens that follow the wanted ones will stand.
fn wanted_positions(
    growth: &[(usize, usize)],
    fed: &[(usize, u32)],
    wanted: Logits,
) -> impl Iterator<Item = (usize, u64)> {
    let mut next: Vec<u64> = growth.iter().map(|(before, _)| *before as u64).collect();
    let mut positions: Vec<(usize, u64)> = Vec::with_capacity(fed.len());
    for (sequence, _) in fed {
        if let Some(next) = next.get_mut(*sequence) {
            *next += 1;
            positions.push((*sequence, *next));
        }
    }
    let skip = match wanted {
        Logits::All => 0,
        Logits::Last => positions.len().saturating_sub(1),
        Logits::None => positions.len(),
    };
    positions.into_iter().skip(skip)
}

/// Whether the device has a kernel of its own that chooses tokens.
fn has_sampling(executor: &Executor, vocab: usize) -> bool {
    let tensor =
        |format, shape: &[usize]| TensorSpec { format, shape: shape.iter().map(|n| Extent::Fixed(*n)).collect() };
    let spec = KernelSpec {
        op: Operation::Sample,
        inputs: vec![tensor(Format::F32, &[1, vocab]), tensor(Format::F32, &[1, 2]), tensor(Format::U32, &[1, 4])],
        output: tensor(Format::U32, &[1]),
        in_place: None,
    };
    executor.backend().kernels().native(&spec).is_some()
}
