//! The bytes that a test of `hologram bench` reads from memory, and which figures cannot be.

use std::ops::Range;

use hologram_backends::BackendType;

/// Bytes that the caches of a GPU hold together at most: an NVIDIA B200 has 126 MB of L2.
const GPU_CACHES: f64 = 128.0 * 1024.0 * 1024.0;

/// As [`GPU_CACHES`], for the processors of a machine: two AMD EPYC 9684X have 1152 MiB of L3 and 96 MiB of L2 each.
const CPU_CACHES: f64 = 2.0 * 1248.0 * 1024.0 * 1024.0;

/// How much faster than the ceiling a test may read, as a share of it: reads alone are up to a tenth faster than a
/// copy's mixture of reads and writes, and on a shared machine the ceiling is another a moment later.
const MARGIN: f64 = 1.1;

/// Bytes that the caches of a device hold together at most.
pub(super) fn caches(device: BackendType) -> f64 {
    match device {
        BackendType::Cuda | BackendType::Metal => GPU_CACHES,
        BackendType::Cpu | BackendType::Reference => CPU_CACHES,
    }
}

/// What a test reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reads {
    /// Tokens of all sequences together.
    tokens: f64,
    /// Steps in which they are computed.
    steps: f64,
    /// Bytes of weights of all steps.
    weights: f64,
    /// Bytes of keys and values of all steps.
    cache: f64,
}

impl Reads {
    /// Of a prompt at these positions, in steps of at most `batch` tokens, which each read the weights once. `cache`
    /// says what a step reads of the cache for the tokens of a sequence at some positions.
    pub fn prompt(positions: Range<usize>, batch: usize, weights: usize, cache: impl Fn(Range<usize>) -> u64) -> Reads {
        let (mut steps, mut bytes) = (0.0, 0.0);
        for start in positions.clone().step_by(batch.max(1)) {
            steps += 1.0;
            bytes += cache(start..(start + batch).min(positions.end)) as f64;
        }
        Reads { tokens: positions.len() as f64, steps, weights: steps * weights as f64, cache: bytes }
    }

    /// Of as many sequences that are extended at once, a token each, at these positions one after the other.
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

    /// Bytes for each token.
    pub fn per_token(&self) -> f64 {
        (self.weights + self.cache) / self.tokens
    }

    /// Bytes of keys and values among them.
    pub fn cache_per_token(&self) -> f64 {
        self.cache / self.tokens
    }

    /// Why so many tokens per second cannot be, where memory gives no more than `ceiling` bytes per second and caches
    /// keep up to `caches` bytes from one step to the next; `None` where they can.
    pub fn impossible(&self, tokens_per_s: f64, ceiling: f64, caches: f64) -> Option<String> {
        let steps_per_s = tokens_per_s * self.steps / self.tokens;
        let from_memory = ((self.weights + self.cache) / self.steps - caches).max(0.0) * steps_per_s;
        (from_memory > MARGIN * ceiling).then(|| {
            format!(
                "{tokens_per_s:.1} tokens/s cannot be right, because they read at least {:.1} GB/s from memory, which gives {:.1} GB/s",
                from_memory / 1e9,
                ceiling / 1e9
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 bytes a position: a step reads those of all up to its last token.
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
        // Sequences share the weights of a step, up to the size of one, but not what they have cached.
        let six = Reads::decode(10..13, 6, 512, 6000, cache);
        assert_eq!((six.per_token(), six.cache_per_token()), (2_200.0, 1_200.0));
        let in_two_steps = Reads::decode(10..13, 6, 4, 6000, cache);
        assert_eq!(in_two_steps.per_token(), 3_200.0);
    }

    #[test]
    fn figures_beyond_what_memory_gives_are_refused() {
        // A step reads 1 GB of weights and 0.2 GB of cache for each of 5 sequences.
        let reads = Reads::decode(0..1, 5, 512, 1_000_000_000, |_| 200_000_000);
        let ceiling = 100e9;
        // At 50 steps a second all that memory gives is read.
        assert_eq!(reads.impossible(250.0, ceiling, 0.0), None);
        assert_eq!(reads.impossible(274.0, ceiling, 0.0), None);
        let sentence = reads.impossible(280.0, ceiling, 0.0).unwrap();
        assert_eq!(
            sentence,
            "280.0 tokens/s cannot be right, because they read at least 112.0 GB/s from memory, which gives 100.0 GB/s"
        );
        // Half of it may come from caches.
        assert_eq!(reads.impossible(280.0, ceiling, 1e9), None);
        assert!(reads.impossible(560.0, ceiling, 1e9).unwrap().contains("at least 112.0 GB/s"));
        // All of it.
        assert_eq!(reads.impossible(1e9, ceiling, 2e9), None);
    }

    #[test]
    fn caches_are_no_smaller_than_those_of_devices() {
        assert!(caches(BackendType::Cuda) >= 126e6 && caches(BackendType::Metal) >= 96e6);
        assert!(caches(BackendType::Cpu) > 2.0 * 1152.0 * 1048576.0);
    }
}
