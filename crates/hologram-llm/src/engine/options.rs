//! Options of an engine.

use std::time::Duration;

use hologram_backends::{BackendType, DType};

use crate::error::{LlmError, Result};
use crate::kv::{BLOCK_SIZE, block_bytes};
use crate::model::Model;

use super::speculate::Speculation;

/// Options of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Maximum number of sequences that run at once.
    pub max_sequences: usize,
    /// Context length of a sequence in tokens, prompt and text together.
    pub context: usize,
    /// Bytes of the KV cache, which all sequences share. `None`: what all need at full length, or nearly all free
    /// memory (half of it on the CPU) if that is less; the context is then shortened to what fits.
    pub kv_memory: Option<u64>,
    /// Engines that are to share the device's free memory, this one included: without `kv_memory` each takes its part.
    pub engines: usize,
    /// Element type of the KV cache; see [`SessionOptions::kv`](crate::SessionOptions::kv).
    pub kv: Option<DType>,
    /// Maximum tokens per step: one for each text, the rest pieces of prompts. At least one per sequence.
    pub step_tokens: usize,
    /// Maximum number of requests that wait.
    pub max_waiting: usize,
    /// Maximum tokens of the prompts that wait. A single longer prompt may wait alone.
    pub max_waiting_tokens: usize,
    /// Whether prompts reuse what the cache still holds of earlier ones with the same start and tenant.
    pub prefix_cache: bool,
    /// Whether the bits of a token depend only on its request, not on what the engine computes beside it, has cached,
    /// has guessed or computes again. Each piece of a prompt is then computed by itself, from one multiple of a fixed
    /// number of tokens to the next; of earlier texts only whole pieces of prompts are reused; and the tokens of texts
    /// are computed together by kernels that give each the same bits whatever the others are. They depend on
    /// `step_tokens`, `max_sequences`, `context` and `kv`, on the device and on its number of threads.
    pub deterministic: bool,
    /// Whether tokens are guessed and computed together.
    pub speculation: Speculation,
    /// Whether a step is submitted before the results of the one before are known, of the tokens that the device has
    /// chosen itself. Texts are the same. On a device that works beside the host it never waits for the host; on
    /// others a text that ends costs a token more. Needs a device that samples, and steps without guesses and without
    /// requests whose tokens the host chooses.
    pub overlap: bool,
    /// Whether tokens are sampled on the device where possible; see
    /// [`SessionOptions::device_sampling`](crate::SessionOptions::device_sampling).
    pub device_sampling: Option<bool>,
    /// Events that a request's reader may leave unread before its sequence pauses.
    pub unread_events: usize,
    /// How long a sequence pauses for its reader before it is cancelled.
    pub slow_reader: Duration,
}

/// The share of free memory for the KV cache, in percent.
const SHARE: u64 = 85;

/// As [`SHARE`], on the CPU, where other programs need memory too.
const SHARE_OF_HOST: u64 = 50;

impl EngineOptions {
    /// What suits a model and its device.
    pub fn for_model(model: &Model) -> EngineOptions {
        let gpu = matches!(model.executor().backend().info().backend, BackendType::Cuda | BackendType::Metal);
        let limit = model.config().context_limit().unwrap_or(usize::MAX);
        let context = model.config().context.min(limit).clamp(1, 8192);
        EngineOptions {
            step_tokens: if gpu { 2048 } else { 256 },
            overlap: gpu,
            ..EngineOptions::of_sizes(if gpu { 256 } else { 16 }, context)
        }
    }

    /// The defaults that depend on no model.
    pub(super) fn of_sizes(max_sequences: usize, context: usize) -> EngineOptions {
        EngineOptions {
            max_sequences,
            context,
            kv_memory: None,
            engines: 1,
            kv: None,
            step_tokens: 256,
            max_waiting: 512,
            max_waiting_tokens: 1 << 21,
            prefix_cache: true,
            deterministic: false,
            speculation: Speculation::Auto,
            overlap: false,
            device_sampling: None,
            unread_events: 64,
            slow_reader: Duration::from_secs(30),
        }
    }

    /// States of recurrent layers that are kept for prompts with the same start: for each sequence one of the prompt
    /// and one of the text.
    pub(super) fn saved_states(&self) -> usize {
        (2 * self.max_sequences).min(16)
    }

    /// Checks the options and completes them: a step has a token for each sequence, and the context fits the cache.
    /// Also returns the number of blocks of the cache.
    pub(super) fn resolve(&self, model: &Model) -> Result<(EngineOptions, usize)> {
        let mut options = self.clone();
        let fail = |option, reason: &str| Err(LlmError::Option { option, reason: reason.into() });
        if options.max_sequences == 0 {
            return fail("sequences", "is 0, but must be at least 1");
        }
        if options.context == 0 {
            return fail("ctx", "is 0, but must be at least 1");
        }
        if options.unread_events == 0 {
            return fail("unread-events", "is 0, but must be at least 1");
        }
        options.step_tokens = options.step_tokens.max(options.max_sequences);
        let kv = options.kv.unwrap_or_else(|| model.default_cache_format());
        let bytes = block_bytes(model.config(), kv).max(1);
        let of_one = options.context.div_ceil(BLOCK_SIZE);

        let fitting = |memory: u64| usize::try_from(u128::from(memory) / bytes).unwrap_or(usize::MAX);
        let backend = model.executor().backend();
        let share = if backend.info().backend == BackendType::Cpu { SHARE_OF_HOST } else { SHARE };
        let mut free = backend.available_memory().map(|free| free / 100 * share / options.engines.max(1) as u64);
        let state = model.config().state_bytes() as u64;
        if let (Some(free), 1..) = (&mut free, state) {
            // States get up to a third of the memory: two for each sequence, and those that are kept.
            let most = usize::try_from(*free / 3 / (4 * state)).unwrap_or(usize::MAX).max(1);
            options.max_sequences = options.max_sequences.min(most);
            let slots = 2 * options.max_sequences + options.saved_states();
            *free = free.saturating_sub(slots as u64 * state);
        }
        let of_all = of_one.saturating_mul(options.max_sequences);
        if let Some(memory) = options.kv_memory {
            let blocks = fitting(memory).min(of_all);
            if blocks < of_one {
                let reason = format!(
                    "is {memory} bytes, but a context of {} tokens needs {}: use a shorter context or more memory",
                    options.context,
                    of_one as u128 * bytes
                );
                return Err(LlmError::Option { option: "kv-memory", reason });
            }
            return Ok((options, blocks));
        }
        let blocks = match free {
            Some(free) => fitting(free).min(of_all).max(1),
            None => of_all,
        };
        options.context = options.context.min(blocks.saturating_mul(BLOCK_SIZE));
        Ok((options, blocks))
    }
}
