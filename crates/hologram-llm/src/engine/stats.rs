//! Counters of an engine.

use std::time::Duration;

/// What an engine does now, and what it has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Sequences that run.
    pub running: usize,
    /// Requests that wait, preempted ones included.
    pub waiting: usize,
    /// Blocks of the KV cache that sequences use.
    pub blocks_used: usize,
    /// Blocks of the KV cache.
    pub blocks_total: usize,
    /// Positions of a block.
    pub block_tokens: usize,
    /// Requests accepted.
    pub requests: u64,
    /// Requests rejected because too many waited.
    pub rejected: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests whose reader left.
    pub cancelled: u64,
    /// Sequences that gave up their blocks for others.
    pub preemptions: u64,
    /// Tokens of started prompts that were looked up in the cache.
    pub prefix_queries: u64,
    /// Those that were found.
    pub prefix_hits: u64,
    /// Tokens of started prompts.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Times that tokens of a sequence were guessed.
    pub guesses: u64,
    /// Tokens guessed.
    pub guessed_tokens: u64,
    /// Guesses that came true.
    pub accepted_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Those that were submitted before the results of the one before were known.
    pub overlapped_steps: u64,
    /// Sequences computed in all steps.
    pub step_sequences: u64,
    /// Tokens computed in all steps.
    pub step_tokens: u64,
    /// Time while a step was submitted and not finished.
    pub step_time: Duration,
    /// Time for everything else while sequences ran.
    pub host_time: Duration,
}
