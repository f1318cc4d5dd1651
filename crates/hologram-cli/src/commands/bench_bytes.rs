//! The bytes that a test of `hologram bench` reads from memory, and a check for impossible results.

use std::ops::Range;

use hologram_backends::BackendType;

/// Upper bound of a GPU's caches in bytes: an NVIDIA B200 has 126 MB of L2.
const GPU_CACHES: f64 = 128.0 * 1024.0 * 1024.0;

/// As [`GPU_CACHES`] for all processors of a machine: two AMD EPYC 9684X have 1152 MiB of L3 and 96 MiB of L2 each.
const CPU_CACHES: f64 = 2.0 * 1248.0 * 1024.0 * 1024.0;

/// The factor by which a test may exceed the ceiling: reads alone are up to a tenth faster than a copy's mixture of
/// reads and writes, and on a shared machine the ceiling varies over time.
const MARGIN: f64 = 1.1;

/// Upper bound of a device's caches in bytes.
pub(super) fn caches(device: BackendType) -> f64 {
    match device {
        BackendType::Cpu | BackendType::Reference => CPU_CACHES,
        _ => GPU_CACHES,
    }
}

/// The bytes that a test reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reads {
    /// Tokens of all sequences.
    tokens: f64,
    /// Number of steps.
    steps: f64,
    /// Bytes of weights, over all steps.
    weights: f64,
    /// Bytes of keys and values, over all steps.
    cache: f64,
}

impl Reads {
    /// For a prompt at these positions, in steps of at most `batch` tokens, each of which reads the weights once.
    /// `cache` returns the cache bytes that a step reads for a sequence's tokens at some positions.
    pub fn prompt(positions: Range<usize>, batch: usize, weights: usize, cache: impl Fn(Range<usize>) -> u64) -> Reads {
        let (mut steps, mut bytes) = (0.0, 0.0);
        for start in positions.clone().step_by(batch.max(1)) {
            steps += 1.0;
            bytes += cache(start..(start + batch).min(positions.end)) as f64;
        }
        Reads { tokens: positions.len() as f64, steps, weights: steps * weights as f64, cache: bytes }
    }

    /// For `batch` sequences, each extended by one token per step, at these positions.
    pub fn decode(
        positions: Range<usize>,
        sequences: usize,
        batch: usize,
        weights: usize,
        cache: impl Fn(Range<usize>) -> u64,
    ) -> Reads {
        let steps = (positions.len() * sequences.div_ceil(batch.max(1))) as f64;
        let of_one: f64 = positions.clone().map(|at| cache(at..at + 1) as f64).sum();
        Reads {
            tokens: (positions.len() * sequences) as f64,
            steps,
            weights: steps * weights as f64,
            cache: sequences as f64 * of_one,
        }
    }

    /// For `texts` texts of `tokens` tokens each, of which a step takes at most `per_step`.
    pub fn texts(texts: usize, tokens: usize, per_step: usize, weights: usize) -> Reads {
        let steps = texts.div_ceil(per_step.max(1)) as f64;
        Reads { tokens: (texts * tokens) as f64, steps, weights: steps * weights as f64, cache: 0.0 }
    }

    /// Bytes per token.
    pub fn per_token(&self) -> f64 {
        (self.weights + self.cache) / self.tokens
    }

    /// Bytes of keys and values per token.
    pub fn cache_per_token(&self) -> f64 {
        self.cache / self.tokens
    }

    /// Why this speed is impossible if memory delivers at most `ceiling` bytes per second and caches keep up to
    /// `caches` bytes between steps; `None` if it is possible.
    pub fn impossible(&self, tokens_per_s: f64, ceiling: f64, caches: f64) -> Option<String> {
        let steps_per_s = tokens_per_s * self.steps / self.tokens;
        let from_memory = ((self.weights + self.cache) / self.steps - caches).max(0.0) * steps_per_s;
        (from_memory > MARGIN * ceiling).then(|| {
            format!(
                "{tokens_per_s:.1} tokens/s is impossible: it needs {:.1} GB/s from memory, which delivers {:.1} GB/s",
                from_memory / 1e9,
                ceiling / 1e9
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 bytes per position: a step reads all up to its last token.
    fn cache(positions: Range<usize>) -> u64 {
        100 * positions.end as u64
    }

    #[test]
    fn a_prompt_reads_weights_and_what_was_before_once_a_step() {
        // 512, 512 and 176 tokens after 300: caches of 812, 1324 and 1500 positions.
        let reads = Reads::prompt(300..1500, 512, 6000, cache);
        assert_eq!(reads, Reads { tokens: 1200.0, steps: 3.0, weights: 18_000.0, cache: 363_600.0 });
        assert_eq!((reads.per_token(), reads.cache_per_token()), (318.0, 303.0));
    }

    #[test]
    fn decoding_reads_the_cache_of_each_sequence() {
        // Positions 10, 11 and 12 see 11, 12 and 13.
        let alone = Reads::decode(10..13, 1, 512, 6000, cache);
        assert_eq!(alone, Reads { tokens: 3.0, steps: 3.0, weights: 18_000.0, cache: 3_600.0 });
        assert_eq!(alone.per_token(), 7_200.0);
        // Sequences share the weights of a step, up to its size, but not their caches.
        let six = Reads::decode(10..13, 6, 512, 6000, cache);
        assert_eq!((six.per_token(), six.cache_per_token()), (2_200.0, 1_200.0));
        let in_two_steps = Reads::decode(10..13, 6, 4, 6000, cache);
        assert_eq!(in_two_steps.per_token(), 3_200.0);
    }

    #[test]
    fn texts_share_the_weights_of_their_step() {
        let reads = Reads::texts(5, 100, 2, 6000);
        assert_eq!(reads, Reads { tokens: 500.0, steps: 3.0, weights: 18_000.0, cache: 0.0 });
    }

    #[test]
    fn results_beyond_the_bandwidth_are_rejected() {
        // A step reads 1 GB of weights and 0.2 GB of cache per sequence.
        let reads = Reads::decode(0..1, 5, 512, 1_000_000_000, |_| 200_000_000);
        let ceiling = 100e9;
        // 50 steps per second use the full bandwidth.
        assert_eq!(reads.impossible(250.0, ceiling, 0.0), None);
        assert_eq!(reads.impossible(274.0, ceiling, 0.0), None);
        let sentence = reads.impossible(280.0, ceiling, 0.0).unwrap();
        assert_eq!(
            sentence,
            "280.0 tokens/s is impossible: it needs 112.0 GB/s from memory, which delivers 100.0 GB/s"
        );
        // Half of it may come from caches.
        assert_eq!(reads.impossible(280.0, ceiling, 1e9), None);
        assert!(reads.impossible(560.0, ceiling, 1e9).unwrap().contains("needs 112.0 GB/s"));
        // All of it.
        assert_eq!(reads.impossible(1e9, ceiling, 2e9), None);
    }

    #[test]
    fn caches_are_no_smaller_than_those_of_devices() {
        assert!(caches(BackendType::Cuda) >= 126e6 && caches(BackendType::Metal) >= 96e6);
        assert!(caches(BackendType::Cpu) > 2.0 * 1152.0 * 1048576.0);
    }
}
