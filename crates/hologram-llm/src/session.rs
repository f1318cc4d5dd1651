//! A running model: its KV cache and the compiled plans of its step.

mod changes;
mod flight;
mod snapshots;
mod sums;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use hologram_backends::{DType, Extent, KernelName, KernelSpec, Operation, TensorSpec};
use hologram_core::{Event, Executor, Plan};

use crate::error::{LlmError, Result};
use crate::kv::{BLOCK_SIZE, KvCache, Prefix};
use crate::models::decoder::{Bucket, Decoder, Results, SumName};
use crate::sampling::{Sampler, SamplerConfig};
use crate::snapshot::Identity;

use changes::Sampling;
pub(crate) use changes::{Change, MAX_ENTRIES, TokenChange};
use flight::{Chosen, Flight};
pub(crate) use flight::{Gives, NEXT, Next};

/// Options of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Context length of a sequence in tokens.
    pub context: usize,
    /// Maximum tokens per step; longer prompts take several steps.
    pub batch: usize,
    /// Number of concurrent sequences.
    pub sequences: usize,
    /// Element type of the KV cache: [`DType::F32`], [`DType::F16`], or 8 or 4 bits ([`DType::Q8Planes`],
    /// [`DType::Q4Planes`], for heads of whole blocks of 32 elements). Default: what suits the device, or
    /// [`DType::F32`] if the model's matrices are in `F32`, in `F16` or ternary.
    pub kv: Option<DType>,
    /// Whether [`Session::sample`] samples on the device, which returns only tokens, or on the host from all logits.
    /// `None`: on the device if it has a native kernel for it.
    pub device_sampling: Option<bool>,
    /// Blocks of [`BLOCK_SIZE`] positions in the KV cache, which the sequences share. `None`: enough for all to reach
    /// the context length.
    pub blocks: Option<usize>,
    /// States of recurrent layers that are kept for sequences with the same start.
    pub saved_states: usize,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            context: 4096,
            batch: 512,
            sequences: 1,
            kv: None,
            device_sampling: None,
            blocks: None,
            saved_states: 0,
        }
    }
}

/// What a step adds to a sequence: a piece of a prompt, or the last token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'a> {
    /// The sequence.
    pub sequence: usize,
    /// The tokens to append.
    pub tokens: &'a [u32],
    /// Which of them get logits.
    pub logits: Logits,
}

/// Which tokens of a step get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None.
    None,
    /// The last.
    Last,
    /// All.
    All,
}

/// A running model: sequences in a KV cache, extended step by step.
pub struct Session {
    executor: Executor,
    decoder: Arc<Decoder>,
    identity: Arc<Identity>,
    cache: KvCache,
    /// The cached tokens of each sequence.
    cached: Vec<Vec<u32>>,
    options: SessionOptions,
    /// Compiled plans. Sizes are rounded up to powers of two; each plan is compiled on first use.
    plans: HashMap<Bucket, StepPlan>,
    /// The weights with sums in the plans that have them.
    sum_names: Vec<SumName>,
    /// Cached answers of [`Decoder::prefers_fixed`], by tokens and precision.
    prefers_fixed: HashMap<(usize, Option<usize>), bool>,
    /// The step size that determines the precision of all steps.
    precision: Option<usize>,
    device_sampling: bool,
    /// The bucket of the last step's plan.
    last: Option<Bucket>,
    scratch: Scratch,
    /// Steps begun and not finished, the oldest first.
    flights: VecDeque<Flight>,
    /// What the device has chosen in the last two of them.
    chosen: Option<[Chosen; 2]>,
    /// The plans of steps that are sampled apart.
    sampling: Sampling,
}

/// A compiled step.
struct StepPlan {
    plan: Plan,
    /// The changes of the block table that it has.
    table: u64,
}

/// Host buffers for inputs and outputs of steps, kept to avoid allocation.
#[derive(Default)]
struct Scratch {
    /// Input tokens with their sequences.
    input: Vec<(usize, u32)>,
    /// Indices of the input tokens that get an output, in ascending order.
    wanted: Vec<usize>,
    growth: Vec<Growth>,
    ids: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    slots: Vec<u32>,
    /// The step's tokens by sequence, for models with states: the list of runs and the run of each token.
    runs: Vec<u32>,
    token_runs: Vec<u32>,
    rows: Vec<u32>,
    /// Buffer of logits or hidden states, of which the first `filled` belong to the last call.
    logits: Vec<f32>,
    filled: usize,
    /// Sampling parameters of the output tokens, and the tokens chosen.
    numbers: Vec<f32>,
    words: Vec<u32>,
    chosen: Vec<u32>,
}

/// How a sequence grows in a run.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// Its tokens before.
    len: usize,
    /// Those of which keys, values and states exist; the others are computed again.
    computed: usize,
    /// The tokens computed in this run.
    added: usize,
}

/// The output of a run. Tokens are sampled with the settings of each output in turn; the last ones serve all further
/// outputs.
#[derive(Clone, Copy)]
enum Output<'a> {
    Logits,
    Tokens(&'a [SamplerConfig]),
    Both(&'a [SamplerConfig]),
    Hidden,
    Sums,
}

/// The outputs of [`Session::rows`].
pub(crate) struct Rows<'a> {
    /// The tokens that the device sampled; empty if it does not sample. One outside of the vocabulary: the logits are
    /// invalid.
    pub chosen: &'a [u32],
    /// Row-major `[outputs, vocabulary]`; empty if not wanted and the device samples.
    pub logits: &'a [f32],
}

impl Session {
    pub(crate) fn new(
        executor: &Executor,
        decoder: &Arc<Decoder>,
        identity: &Arc<Identity>,
        options: SessionOptions,
    ) -> Result<Session> {
        let check = |option, value: usize, max: usize| match value {
            v if (1..=max).contains(&v) => Ok(()),
            v => Err(LlmError::Option { option, reason: format!("is {v}, but must be from 1 to {max}") }),
        };
        check("ctx", options.context, 1 << 24)?;
        check("batch", options.batch, 1 << 16)?;
        check("sequences", options.sequences, 1 << 16)?;
        let kv = options.kv.unwrap_or_else(|| decoder.cache_format(&**executor.backend()));
        if !matches!(kv, DType::F32 | DType::F16 | DType::Q8Planes | DType::Q4Planes) {
            let reason = format!("is {}, but must be f32, f16, q8 or q4", kv.name());
            return Err(LlmError::Option { option: "kv", reason });
        }
        let mut sizes = decoder.config.windowed.map(|own| own.head_dim).into_iter().chain([decoder.config.head_dim]);
        if let Some(head_dim) = sizes.find(|n| !n.is_multiple_of(kv.block_len())) {
            let name = if kv == DType::Q8Planes { "q8" } else { "q4" };
            let reason = format!("is {name}, but the head size {head_dim} is not a multiple of {}", kv.block_len());
            return Err(LlmError::Option { option: "kv", reason });
        }
        if let Some(limit) = decoder.config.context_limit().filter(|limit| options.context > *limit) {
            let reason = format!("is {}, but must be at most {limit} with dynamic rope scaling", options.context);
            return Err(LlmError::Option { option: "ctx", reason });
        }
        if let Some(blocks) = options.blocks {
            check("blocks", blocks, 1 << 27)?;
        }
        let saved = options.saved_states;
        let sizes = (options.sequences, options.context, options.blocks, saved);
        let cache = KvCache::new(executor, &decoder.config, sizes, kv)?;
        // Reports weights that do not fit together here, not at the first step.
        let one = Bucket { tokens: 1, full: false, outputs: 1, results: Results::Logits, precision: None };
        decoder.graph(executor, &cache, one)?;
        let device_sampling = options.device_sampling.unwrap_or_else(|| has_sampling(executor, decoder.config.vocab));
        let (executor, decoder, identity) = (executor.clone(), decoder.clone(), identity.clone());
        let (plans, prefers_fixed, scratch) = (HashMap::new(), HashMap::new(), Scratch::default());
        let cached = vec![Vec::new(); options.sequences];
        Ok(Session {
            executor,
            decoder,
            identity,
            cache,
            cached,
            options,
            plans,
            sum_names: Vec::new(),
            prefers_fixed,
            precision: None,
            last: None,
            device_sampling,
            scratch,
            flights: VecDeque::new(),
            chosen: None,
            sampling: Sampling::default(),
        })
    }

    /// The number of cached tokens of a sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.tokens(sequence).len()
    }

    /// Whether no sequence has cached tokens.
    pub fn is_empty(&self) -> bool {
        self.cached.iter().all(Vec::is_empty)
    }

    /// The context length of a sequence.
    pub fn context(&self) -> usize {
        self.options.context.min(self.cache.context())
    }

    /// Bytes of keys and values that a step reads for tokens of one sequence at these positions, each counted at least
    /// once.
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

    /// Maximum tokens per step.
    pub(crate) fn batch(&self) -> usize {
        self.options.batch
    }

    /// Tokens in the vocabulary: the length of a row of logits.
    pub fn vocab(&self) -> usize {
        self.decoder.config.vocab
    }

    /// Computes the following steps in the precision of steps of `tokens` tokens, whatever their size. `None`: each in
    /// that of its own size, the default.
    ///
    /// Some weight formats leave a choice of precision, and devices compute the activations and attention of long steps
    /// in another precision than those of short ones because that is faster. A token's logits thus depend on the size
    /// of its step. With a fixed precision they depend on it only through the order of sums.
    pub fn fix_precision(&mut self, tokens: Option<usize>) {
        self.precision = tokens.map(|n| self.bucket_size(n));
    }

    /// Rounds a number of tokens or outputs up to the size of its plan.
    fn bucket_size(&self, n: usize) -> usize {
        n.max(1).checked_next_power_of_two().unwrap_or(usize::MAX).min(self.options.batch)
    }

    /// Truncates a sequence to its first `len` tokens.
    ///
    /// Models with states keep those of the last two steps. Tokens of which no state is left are computed again with
    /// the next ones.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        if let Some(cached) = self.cached.get_mut(sequence) {
            cached.truncate(len);
            self.cache.truncate(sequence, len);
        }
    }

    /// Truncates the cache to the longest common prefix with `tokens`, leaving at least one token to feed. Returns its
    /// length: `tokens[n..]` remains to be input.
    pub fn keep_prefix(&mut self, sequence: usize, tokens: &[u32]) -> usize {
        let Some(cached) = self.cached.get(sequence) else { return 0 };
        let alike = cached.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let n = alike.min(tokens.len().saturating_sub(1));
        self.truncate(sequence, n);
        // What would be computed again counts as new.
        let n = n.min(self.cache.len(sequence));
        self.truncate(sequence, n);
        n
    }

    /// The cached tokens of a sequence.
    pub fn tokens(&self, sequence: usize) -> &[u32] {
        self.cached.get(sequence).map_or(&[], Vec::as_slice)
    }

    /// Appends tokens to a sequence and computes them in steps of at most `batch` tokens. Returns the requested logits,
    /// row-major `[outputs, vocabulary]`.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, the context is full or the device fails. The sequence is then unchanged.
    pub fn feed(&mut self, sequence: usize, tokens: &[u32], logits: Logits) -> Result<&[f32]> {
        self.feed_inputs(&[Input { sequence, tokens, logits }])
    }

    /// As [`Session::feed`], but returns hidden states instead of logits: what the output matrix would be applied to,
    /// after the output norm. Row-major `[outputs, width]`.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_hidden(&mut self, sequence: usize, tokens: &[u32], outputs: Logits) -> Result<&[f32]> {
        self.feed_hidden_inputs(&[Input { sequence, tokens, logits: outputs }])
    }

    /// As [`Session::feed_inputs`], but returns hidden states instead of logits.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_hidden_inputs(&mut self, inputs: &[Input<'_>]) -> Result<&[f32]> {
        self.set_inputs(inputs);
        self.run(Output::Hidden)?;
        Ok(&self.scratch.logits[..self.scratch.filled])
    }

    /// Appends tokens to several sequences and computes them together, in steps of at most `batch` tokens: pieces of
    /// prompts and single tokens, in any mixture. Returns the requested logits in order, row-major
    /// `[outputs, vocabulary]`. If a sequence occurs several times, its tokens follow each other.
    ///
    /// # Errors
    /// As [`Session::feed`]. All sequences are then unchanged.
    pub fn feed_inputs(&mut self, inputs: &[Input<'_>]) -> Result<&[f32]> {
        self.set_inputs(inputs);
        self.run(Output::Logits)?;
        Ok(&self.scratch.logits[..self.scratch.filled])
    }

    /// As [`Session::feed_inputs`], but samples on the device if it can: output `i` with `configs[i]`, of which only
    /// what [`SamplerConfig::row`] contains has an effect. `logits`: whether the caller needs them too.
    ///
    /// # Errors
    /// As [`Session::feed_inputs`].
    pub(crate) fn rows(&mut self, inputs: &[Input<'_>], configs: &[SamplerConfig], logits: bool) -> Result<Rows<'_>> {
        self.set_inputs(inputs);
        self.run(self.output(configs, logits))?;
        Ok(self.results())
    }

    /// What a step gives that samples with these settings.
    fn output<'a>(&self, configs: &'a [SamplerConfig], logits: bool) -> Output<'a> {
        match (self.device_sampling, logits) {
            (true, true) => Output::Both(configs),
            (true, false) => Output::Tokens(configs),
            (false, _) => Output::Logits,
        }
    }

    /// The outputs of the step finished last.
    pub(crate) fn results(&self) -> Rows<'_> {
        Rows { chosen: &self.scratch.chosen, logits: &self.scratch.logits[..self.scratch.filled] }
    }

    /// The KV cache.
    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Makes a full block of a sequence available to other sequences; see [`KvCache::publish`].
    pub(crate) fn publish(&mut self, sequence: usize, index: usize, hash: u128) {
        let range = index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE;
        if let Some(tokens) = self.cached.get(sequence).and_then(|cached| cached.get(range)) {
            self.cache.publish(sequence, index, hash, tokens);
        }
    }

    /// Makes the part of a block at the end of a sequence available to others; `hash` is that of the blocks before.
    pub(crate) fn publish_rest(&mut self, sequence: usize, hash: u128) {
        let tokens =
            self.cached.get(sequence).map_or(&[][..], |cached| &cached[cached.len() / BLOCK_SIZE * BLOCK_SIZE..]);
        if !tokens.is_empty() {
            self.cache.publish_rest(sequence, hash, tokens);
        }
    }

    /// Saves the states of a sequence after `len` tokens, whole blocks, under the hash of the last; see
    /// [`KvCache::save_state`].
    pub(crate) fn save_state(&mut self, sequence: usize, hash: u128, len: usize) {
        self.cache.save_state(sequence, hash, len);
    }

    /// Starts a sequence with the prefix of `tokens` that other sequences computed.
    pub(crate) fn adopt(&mut self, sequence: usize, prefix: &Prefix, tokens: &[u32]) {
        self.cache.adopt(sequence, prefix);
        self.cached[sequence].clear();
        self.cached[sequence].extend_from_slice(&tokens[..prefix.tokens()]);
    }

    fn set_inputs(&mut self, inputs: &[Input<'_>]) {
        let s = &mut self.scratch;
        s.input.clear();
        s.wanted.clear();
        for Input { sequence, tokens, logits } in inputs {
            s.input.extend(tokens.iter().map(|token| (*sequence, *token)));
            let skip = match logits {
                Logits::None => tokens.len(),
                Logits::Last => tokens.len().saturating_sub(1),
                Logits::All => 0,
            };
            s.wanted.extend(s.input.len() - tokens.len() + skip..s.input.len());
        }
    }

    fn set_tokens(&mut self, tokens: &[(usize, u32)]) {
        let s = &mut self.scratch;
        s.input.clear();
        s.input.extend_from_slice(tokens);
        s.wanted.clear();
        s.wanted.extend(0..tokens.len());
    }

    /// Appends at least one token to a sequence and samples the token that follows.
    ///
    /// # Errors
    /// As [`Session::feed`], and when the logits are invalid. The sequence is then unchanged.
    pub fn sample(&mut self, sequence: usize, tokens: &[u32], sampler: &mut Sampler) -> Result<u32> {
        self.set_inputs(&[Input { sequence, tokens, logits: Logits::Last }]);
        self.choose(sampler)?;
        self.scratch
            .chosen
            .first()
            .copied()
            .ok_or_else(|| LlmError::Option { option: "tokens", reason: "must not be empty".into() })
    }

    /// Appends one token to each of several sequences, as [`Session::feed_batch`], and samples the tokens that follow.
    ///
    /// # Errors
    /// As [`Session::sample`].
    pub fn sample_batch(&mut self, tokens: &[(usize, u32)], sampler: &mut Sampler) -> Result<&[u32]> {
        self.set_tokens(tokens);
        self.choose(sampler)?;
        Ok(&self.scratch.chosen)
    }

    /// Appends one token to each of several sequences and computes them together, in steps of at most `batch` tokens.
    /// Returns their logits in order, row-major `[tokens, vocabulary]`. If a sequence occurs several times, its tokens
    /// follow each other.
    ///
    /// # Errors
    /// As [`Session::feed`]. All sequences are then unchanged.
    pub fn feed_batch(&mut self, tokens: &[(usize, u32)]) -> Result<&[f32]> {
        self.set_tokens(tokens);
        self.run(Output::Logits)?;
        Ok(&self.scratch.logits[..self.scratch.filled])
    }

    /// Computes the input tokens and samples a token for each output.
    fn choose(&mut self, sampler: &mut Sampler) -> Result<()> {
        let chosen = if self.device_sampling && sampler.config().fits_device() {
            self.run(Output::Tokens(&[*sampler.config()])).and_then(|()| self.check_chosen())
        } else {
            self.run(Output::Logits).and_then(|()| self.choose_on_host(sampler))
        };
        if chosen.is_err() {
            self.undo_run();
        }
        chosen
    }

    fn choose_on_host(&mut self, sampler: &mut Sampler) -> Result<()> {
        let s = &mut self.scratch;
        s.chosen.clear();
        let rows = s.logits[..s.filled].chunks(self.decoder.config.vocab.max(1));
        for (row, (sequence, position)) in rows.zip(output_positions(&s.growth, &s.input, &s.wanted)) {
            let cached = &self.cached[sequence];
            s.chosen.push(sampler.sample_after(row, &cached[..cached.len().min(position as usize)], position)?);
        }
        Ok(())
    }

    /// Checks that the device found a token for every output.
    fn check_chosen(&self) -> Result<()> {
        let s = &self.scratch;
        let vocab = self.vocab();
        let positions = output_positions(&s.growth, &s.input, &s.wanted);
        match s.chosen.iter().zip(positions).find(|(token, _)| **token as usize >= vocab) {
            None => Ok(()),
            Some((_, (_, position))) => Err(LlmError::Logits { position, reason: NO_TOKEN.into() }),
        }
    }

    /// Truncates the sequences to their state before the last run.
    fn undo_run(&mut self) {
        let growth = std::mem::take(&mut self.scratch.growth);
        self.undo(&growth);
        self.scratch.growth = growth;
    }

    /// Truncates the sequences to their state before a run. A lost device is reported by the next run.
    fn undo(&mut self, growth: &[Growth]) {
        for (sequence, growth) in growth.iter().enumerate() {
            if self.cache.has_states() && growth.added > 0 {
                // A step that failed may have written the states before it, too: slots are used again.
                self.cache.truncate(sequence, 0);
            }
            self.cache.truncate(sequence, growth.computed);
            self.cached[sequence].truncate(growth.len);
        }
        let _ = self.cache.clear_errors();
    }

    /// Runs the kernels of the last step again, one by one. Returns each kernel's name and seconds on the device;
    /// nothing before the first step. The cached tokens do not change.
    ///
    /// # Errors
    /// When the device cannot measure times or the run fails.
    pub fn profile(&self) -> Result<Vec<(KernelName, f64)>> {
        match self.last.and_then(|bucket| self.plans.get(&bucket)) {
            Some(step) => Ok(step.plan.profile()?),
            None => Ok(Vec::new()),
        }
    }

    /// Computes the input tokens.
    fn run(&mut self, output: Output<'_>) -> Result<()> {
        self.scratch.filled = 0;
        self.scratch.chosen.clear();
        self.add_lost();
        self.check(&[])?;
        let (count, batch) = (self.scratch.input.len(), self.options.batch);
        for start in (0..count).step_by(batch) {
            let step = start..(start + batch).min(count);
            let last = step.end == count;
            let outputs = {
                let wanted = &self.scratch.wanted;
                wanted.partition_point(|at| *at < step.start)..wanted.partition_point(|at| *at < step.end)
            };
            let wait = last && outputs.is_empty();
            let requested = outputs.len();
            let done = self.step(step, outputs, output, &[]).and_then(|(bucket, _)| match wait {
                true => Ok(self.executor.backend().synchronize()?),
                false => self.collect(bucket, requested),
            });
            if let Err(e) = done {
                self.undo_run();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Puts tokens whose state is lost before the input tokens of their sequences.
    fn add_lost(&mut self) {
        let lost = |s: usize| self.cached.get(s).is_some_and(|cached| self.cache.len(s) < cached.len());
        if !self.cache.has_states() || !self.scratch.input.iter().any(|(sequence, _)| lost(*sequence)) {
            return;
        }
        let s = &mut self.scratch;
        let (given, wanted) = (std::mem::take(&mut s.input), std::mem::take(&mut s.wanted));
        let (mut done, mut wanted) = (HashSet::new(), wanted.into_iter().peekable());
        for (at, (sequence, token)) in given.into_iter().enumerate() {
            if lost(sequence) && done.insert(sequence) {
                let tokens = self.cached[sequence][self.cache.len(sequence)..].iter();
                s.input.extend(tokens.map(|token| (sequence, *token)));
            }
            if wanted.next_if_eq(&at).is_some() {
                s.wanted.push(s.input.len());
            }
            s.input.push((sequence, token));
        }
    }

    /// Checks the input tokens and counts how the sequences grow. `next`: those that the device has chosen.
    fn check(&mut self, next: &[Next]) -> Result<()> {
        if self.decoder.config.bidirectional {
            return Err(LlmError::Encoder { path: self.decoder.config.name.clone().into() });
        }
        let (sequences, vocab, context) = (self.cache.max_sequences(), self.vocab(), self.context());
        let growth = &mut self.scratch.growth;
        growth.clear();
        let now = |s: usize| Growth { len: self.cached[s].len(), computed: self.cache.len(s), added: 0 };
        growth.extend((0..sequences).map(now));
        for (sequence, token) in &self.scratch.input {
            let Some(growth) = growth.get_mut(*sequence) else {
                let reason = format!("{sequence} does not exist; there are {sequences}, counted from 0");
                return Err(LlmError::Option { option: "sequence", reason });
            };
            let chosen = *token == NEXT && next.iter().any(|next| next.sequence == *sequence);
            if *token as usize >= vocab && !chosen {
                let reason = format!("must be below {vocab}, the size of the vocabulary, but one is {token}");
                return Err(LlmError::Option { option: "tokens", reason });
            }
            growth.added += 1;
            if growth.computed + growth.added > context {
                return Err(LlmError::ContextFull { context });
            }
        }
        Ok(())
    }

    /// Submits a run of the graph: appends `range` of the input tokens and computes the outputs `wanted`, a range of
    /// those of the run. `next` are the input tokens that the device has chosen in the step before. Returns the plan's
    /// bucket and the end of the run.
    fn step(
        &mut self,
        range: Range<usize>,
        wanted: Range<usize>,
        output: Output<'_>,
        next: &[Next],
    ) -> Result<(Bucket, Event)> {
        let requested = wanted.len();
        // Sums are over all tokens of a plan.
        let exact = matches!(output, Output::Sums);
        let tokens = if exact { range.len() } else { self.bucket_size(range.len()) };
        let outputs = self.bucket_size(requested);
        let s = &mut self.scratch;
        if self.cache.has_states() {
            // Layers with states take the tokens of a sequence as one run.
            let order = by_sequence(&mut s.input[range.clone()]);
            for at in &mut s.wanted[wanted.clone()] {
                *at = range.start + order[*at - range.start];
            }
        }
        let input = &s.input[range.clone()];
        for list in [&mut s.ids, &mut s.positions, &mut s.sequences, &mut s.slots, &mut s.rows] {
            list.clear();
        }
        for (sequence, token) in input {
            s.ids.push(if *token == NEXT { 0 } else { *token });
            s.sequences.push(*sequence as u32);
            s.positions.push(self.cache.len(*sequence) as u32);
            s.slots.push(self.cache.append(*sequence)?);
            // Tokens that are computed again are there already.
            if self.cached[*sequence].len() < self.cache.len(*sequence) {
                self.cached[*sequence].push(*token);
            }
        }
        s.runs.clear();
        s.token_runs.clear();
        let mut first = 0;
        for run in input.chunk_by(|(a, _), (b, _)| a == b) {
            let Some([from, to]) = self.cache.step_state(run[0].0) else { break };
            s.token_runs.extend(run.iter().map(|_| (s.runs.len() / 4) as u32));
            s.runs.extend([first as u32, run.len() as u32, from, to]);
            first += run.len();
        }
        s.rows.extend(s.wanted[wanted.clone()].iter().map(|at| (at - range.start) as u32));

        let _feed = tracing::trace_span!("feed", tokens = range.len(), outputs = requested).entered();
        let results = match output {
            Output::Tokens(_) if requested > 0 => Results::Tokens,
            Output::Both(_) if requested > 0 => Results::Both,
            Output::Hidden => Results::Hidden,
            Output::Sums => Results::Sums,
            _ => Results::Logits,
        };
        let (decoder, backend, precision) = (&self.decoder, self.executor.backend(), self.precision);
        let prefers_fixed = || decoder.prefers_fixed(&**backend, tokens, precision);
        let full = exact
            || input.len() == tokens && *self.prefers_fixed.entry((tokens, precision)).or_insert_with(prefers_fixed);
        let bucket = Bucket { tokens, full, outputs, results, precision };
        self.last = Some(bucket);
        let StepPlan { plan, table } = match self.plans.entry(bucket) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => {
                let (graph, names) = self.decoder.graph_with_sums(&self.executor, &self.cache, bucket)?;
                if exact {
                    self.sum_names = names;
                }
                e.insert(StepPlan { plan: graph.compile(&self.executor, &[])?, table: 0 })
            }
        };
        plan.write("ids", &s.ids)?;
        plan.write("positions", &s.positions)?;
        plan.write("sequences", &s.sequences)?;
        plan.write("slots", &s.slots)?;
        plan.write("rows", &s.rows)?;
        for (first, blocks) in self.cache.table_changes(table) {
            plan.write_at("block_table", first, blocks)?;
        }
        if !full {
            plan.set_extent("tokens", input.len())?;
        }
        if !s.runs.is_empty() {
            plan.write("runs", &s.runs)?;
            plan.write("token_runs", &s.token_runs)?;
            plan.set_extent("runs", s.runs.len() / 4)?;
        }
        plan.set_extent("outputs", requested)?;
        if let (true, Output::Tokens(configs) | Output::Both(configs)) = (results.has_tokens(), output) {
            s.numbers.clear();
            s.words.clear();
            for (row, at) in s.rows.iter().zip(wanted) {
                let Some(config) = configs.get(at).or(configs.last()) else { continue };
                let (numbers, words) = config.row(u64::from(s.positions[*row as usize]) + 1);
                s.numbers.extend(numbers);
                s.words.extend(words);
            }
            plan.write("sampling_numbers", &s.numbers)?;
            plan.write("sampling_words", &s.words)?;
        }
        if let (Some(chosen), false) = (&self.chosen, next.is_empty()) {
            let place = self.flights.back().map_or(0, |flight| flight.place);
            flight::write_next(plan, input, next, &chosen[place].next)?;
        }
        Ok((bucket, plan.submit()?))
    }

    /// Waits for a run of a plan and stores its outputs behind those stored.
    fn collect(&mut self, bucket: Bucket, requested: usize) -> Result<()> {
        let (results, s) = (bucket.results, &mut self.scratch);
        let Some(StepPlan { plan, .. }) = self.plans.get(&bucket) else { return Ok(()) };
        if results.has_tokens() {
            let from = s.chosen.len();
            s.chosen.resize(from + requested, 0);
            plan.read_into("chosen", &mut s.chosen[from..])?;
        }
        self.collect_rows(bucket, requested)
    }

    /// As [`Session::collect`], of logits and hidden states alone.
    fn collect_rows(&mut self, bucket: Bucket, requested: usize) -> Result<()> {
        let s = &mut self.scratch;
        let Some(StepPlan { plan, .. }) = self.plans.get(&bucket) else { return Ok(()) };
        if let Some((name, width)) = bucket.results.rows(&self.decoder.config).filter(|_| requested > 0) {
            let end = s.filled + requested * width;
            // Not cleared between calls: that would write half a megabyte per token.
            s.logits.resize(end.max(s.logits.len()), 0.0);
            plan.read_into(name, &mut s.logits[s.filled..end])?;
            s.filled = end;
        }
        Ok(())
    }
}

/// Sorts tokens by sequence, those of each in their order. Returns the new place of each.
fn by_sequence(input: &mut [(usize, u32)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..input.len()).collect();
    order.sort_by_key(|at| input[*at].0);
    let sorted: Vec<(usize, u32)> = order.iter().map(|at| input[*at]).collect();
    input.copy_from_slice(&sorted);
    let mut places = vec![0; order.len()];
    order.into_iter().enumerate().for_each(|(place, at)| places[at] = place);
    places
}

/// Why the device found no token.
pub(crate) const NO_TOKEN: &str = "one logit is NaN or infinite, or none is above negative infinity";

/// The sequences and positions of the tokens to sample: those after the input tokens `wanted`.
fn output_positions<'a>(
    growth: &[Growth],
    input: &'a [(usize, u32)],
    wanted: &'a [usize],
) -> impl Iterator<Item = (usize, u64)> + use<'a> {
    let mut next: Vec<u64> = growth.iter().map(|growth| growth.computed as u64).collect();
    let position = |(sequence, _): &(usize, u32)| {
        next.get_mut(*sequence).map_or(0, |position| {
            *position += 1;
            *position
        })
    };
    let positions: Vec<u64> = input.iter().map(position).collect();
    wanted.iter().filter_map(move |at| Some((input.get(*at)?.0, *positions.get(*at)?)))
}

/// Whether the device has a native kernel for sampling.
fn has_sampling(executor: &Executor, vocab: usize) -> bool {
    let tensor =
        |format, shape: &[usize]| TensorSpec { format, shape: shape.iter().map(|n| Extent::Fixed(*n)).collect() };
    let spec = KernelSpec {
        op: Operation::Sample,
        inputs: vec![tensor(DType::F32, &[1, vocab]), tensor(DType::F32, &[1, 3]), tensor(DType::U32, &[1, 4])],
        output: tensor(DType::U32, &[1]),
        in_place: None,
    };
    executor.backend().kernels().native(&spec).is_some()
}
