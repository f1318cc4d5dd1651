//! A running model: its KV cache and the compiled plans of its step.

mod changes;
mod flight;
mod parts;
mod probabilities;
mod run;
mod snapshots;
mod sums;
mod typical;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use hologram_backends::{DType, Extent, KernelName, KernelSpec, Operation, TensorSpec};
use hologram_core::{Executor, Plan};

use crate::error::{LlmError, Result};
use crate::kv::{BLOCK_SIZE, CACHE_TYPES, KvCache, Prefix};
use crate::models::decoder::{Bucket, Decoder, Results, SumName};
use crate::plan_size::plan_size;
use crate::sampling::{Sampler, SamplerConfig};
use crate::snapshot::Identity;

use changes::Sampling;
pub(crate) use changes::{Change, MAX_ENTRIES, TokenChange};
use flight::{Chosen, Flight};
pub(crate) use flight::{Gives, NEXT, Next};
pub(crate) use probabilities::Probabilities;

/// Options of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Context length of a sequence in tokens.
    pub context: usize,
    /// Maximum tokens per step; longer prompts take several steps. `None`: what suits the device.
    pub batch: Option<usize>,
    /// Number of concurrent sequences.
    pub sequences: usize,
    /// Element type of the KV cache: [`DType::F32`], [`DType::F16`], floats of 8 bits ([`DType::F8`]), or 8 or 4 bits
    /// with scales ([`DType::Q8Planes`], [`DType::Q4Planes`], for heads of whole blocks of 32 elements). Default: what
    /// suits the device, or [`DType::F32`] if the model's matrices are in `F32`, in `F16` or ternary.
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
            batch: None,
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
    /// Maximum tokens per step.
    batch: usize,
    /// Compiled plans by their sizes; see [`plan_size`]. Each plan is compiled on first use.
    plans: HashMap<Bucket, StepPlan>,
    /// The weights with sums in the plans that have them.
    sum_names: Vec<SumName>,
    /// Cached answers of [`Decoder::prefers_fixed`], by tokens and precision.
    prefers_fixed: HashMap<(usize, Option<usize>), bool>,
    /// The step size that determines the precision of all steps.
    precision: Option<usize>,
    /// See [`Session::separate_steps`].
    separate: bool,
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
        let batch = options.batch.unwrap_or(executor.backend().policy().prompt_tokens);
        check("batch", batch, 1 << 16)?;
        check("sequences", options.sequences, 1 << 16)?;
        let kv = options.kv.unwrap_or_else(|| decoder.cache_format(&**executor.backend()));
        let Some((name, _)) = CACHE_TYPES.into_iter().find(|(_, format)| *format == kv) else {
            let names = CACHE_TYPES.map(|(name, _)| name).join(", ");
            let reason = format!("is {}, but must be one of {names}", kv.name());
            return Err(LlmError::Option { option: "kv", reason });
        };
        let mut sizes = decoder.config.windowed.map(|own| own.head_dim).into_iter().chain([decoder.config.head_dim]);
        if let Some(head_dim) = sizes.find(|n| !n.is_multiple_of(kv.block_len())) {
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
        let one = Bucket {
            tokens: 1,
            full: false,
            outputs: 1,
            results: Results::Logits,
            precision: None,
            independent: false,
            pieces: false,
        };
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
            batch,
            plans,
            sum_names: Vec::new(),
            prefers_fixed,
            precision: None,
            separate: false,
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
    pub fn batch(&self) -> usize {
        self.batch
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
        plan_size(n).min(self.batch)
    }

    /// Truncates a sequence to its first `len` tokens.
    ///
    /// Models with states keep those of the last two steps. Tokens of which no state is left are computed again with
    /// the next ones.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        if let Some(cached) = self.cached.get_mut(sequence) {
            cached.truncate(len);
            self.cache.truncate(sequence, len);
            if self.separate {
                cached.truncate(self.cache.len(sequence));
            }
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
            self.cached[sequence].truncate(if self.separate { self.cache.len(sequence) } else { growth.len });
        }
        let _ = self.cache.clear_errors();
        for logits in self.sampling.logits.values() {
            let _ = logits.clear_error();
        }
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
