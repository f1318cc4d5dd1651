//! Typical sampling on the device: see [`SamplerConfig::typical_p`].

use hologram_backends::DType;
use hologram_core::ops::Reduction;
use hologram_core::{Dim, Graph, NodeId};

use super::changes::{along, broadcast};
use crate::error::Result;
use crate::sampling::SamplerConfig;

/// Most tokens that are found without a sort of the row.
const FEW: usize = 256;

/// Whether it decides a row.
fn decides(config: &SamplerConfig) -> bool {
    config.typical_p < 1.0 && !config.takes_best()
}

/// The best tokens among which it decides all rows: those that their `top_k` keep, or the whole vocabulary. 0: no row
/// has it.
pub(super) fn candidates<'a>(configs: impl Iterator<Item = &'a SamplerConfig>, vocab: usize) -> usize {
    let of = |config: &SamplerConfig| if (1..=FEW).contains(&config.top_k) { config.top_k } else { vocab };
    let most = configs.filter(|config| decides(config)).map(of).max().unwrap_or(0);
    let few = if most == 0 { 0 } else { most.next_power_of_two().max(64) };
    if most <= FEW { few.min(vocab) } else { vocab }
}

/// The inputs of a row: its probability to keep and its `top_k`.
pub(super) fn row(config: Option<&SamplerConfig>, vocab: usize) -> (f32, u32) {
    let all = vocab as u32;
    match config.filter(|config| decides(config)) {
        Some(SamplerConfig { typical_p, top_k: 0, .. }) => (*typical_p, all),
        Some(SamplerConfig { typical_p, top_k, .. }) => (*typical_p, (*top_k).min(vocab) as u32),
        None => (1.0, all),
    }
}

/// The logits `x` (`f32 [rows, vocab]`), of which those that typical sampling leaves out are −∞. Inputs: `typical`
/// (`f32 [rows, 1]`, the probability to keep; 1 leaves a row as it is) and `typical_k` (`u32 [rows, 1]`, how many of
/// the best tokens compete, at least 1, as top-k keeps them).
///
/// Of the `candidates` best, the nearest to the entropy are kept until their probabilities reach the one to keep. Where
/// two are equally near the better one comes first.
pub(super) fn keep(g: &mut Graph, x: NodeId, (rows, vocab): (usize, usize), candidates: usize) -> Result<NodeId> {
    let dims = |n: usize| [Dim::Fixed(rows), Dim::Fixed(n)];
    let (one, some, all) = (dims(1), dims(candidates), dims(vocab));
    let (share, k) = (g.input("typical", DType::F32, &one)?, g.input("typical_k", DType::U32, &one)?);
    let zero = broadcast(g, DType::F32, 0.0, &some)?;
    let infinity = broadcast(g, DType::F32, f64::INFINITY, &some)?;
    let sum = |g: &mut Graph, terms: NodeId| -> Result<NodeId> {
        let sum = g.reduce(terms, Reduction::Sum, 1)?;
        Ok(g.reshape(sum, &one)?)
    };

    let (best, tokens) = g.top_k(x, candidates)?;
    let max = g.slice(best, 1, 0, 1)?;
    let max = g.broadcast_to(max, &some)?;
    let (place, k) = (along(g, rows, candidates)?, g.broadcast_to(k, &some)?);
    let competes = g.lt(place, k)?;
    let below = g.sub(best, max)?;
    let mass = g.exp(below)?;
    let mass = g.select(competes, mass, zero)?;
    let total = sum(g, mass)?;
    let log_total = g.log(total)?;
    let (total, log_total) = (g.broadcast_to(total, &some)?, g.broadcast_to(log_total, &some)?);
    let probability = g.div(mass, total)?;
    let information = g.sub(log_total, below)?;
    let terms = g.mul(probability, information)?;
    let possible = g.gt(probability, zero)?;
    let terms = g.select(possible, terms, zero)?;
    let entropy = sum(g, terms)?;
    let entropy = g.broadcast_to(entropy, &some)?;
    let distance = g.sub(information, entropy)?;
    let distance = g.abs(distance)?;
    let distance = g.select(competes, distance, infinity)?;

    let nearest = g.arg_sort(distance, 1, false)?;
    let probability = g.take_along(probability, nearest, 1)?;
    let reached = g.cumsum(probability, 1)?;
    let before = g.sub(reached, probability)?;
    let of_row = g.broadcast_to(share, &some)?;
    let near = g.lt(before, of_row)?;
    let certain = broadcast(g, DType::F32, 1.0, &some)?;
    let unlimited = g.ge(of_row, certain)?;
    let kept = g.or(near, unlimited)?;
    let (logits, tokens) = (g.take_along(best, nearest, 1)?, g.take_along(tokens, nearest, 1)?);
    let none = broadcast(g, DType::F32, f64::NEG_INFINITY, &some)?;
    let logits = g.select(kept, logits, none)?;

    let certain = broadcast(g, DType::F32, 1.0, &all)?;
    let share = g.broadcast_to(share, &all)?;
    let limited = g.lt(share, certain)?;
    let none = broadcast(g, DType::F32, f64::NEG_INFINITY, &all)?;
    let rest = g.select(limited, none, x)?;
    Ok(g.scatter(rest, tokens, logits, 1)?)
}

#[cfg(test)]
pub(super) mod tests {
    use hologram_core::ops::philox4x32_10;
    use hologram_core::{Executor, Tensor};

    use super::*;
    use crate::sampling::Sampler;

    /// Rows with many equal logits, both zeros and negative infinity; some are far from zero.
    pub fn logits(rows: usize, vocab: usize) -> Vec<f32> {
        let one = |i: usize| {
            let (row, at) = (i / vocab, i % vocab);
            let bits = philox4x32_10([i as u32, 0, 0, 0], [7, 7])[0];
            let value = (bits >> 8) as f32 / (1 << 24) as f32 * 12.0 - 6.0;
            match row % 4 {
                _ if at > 0 && bits.is_multiple_of(9) => f32::NEG_INFINITY,
                0 => value,
                1 => value.round() + 1000.0,
                2 => [0.0, -0.0, 1.0][bits as usize % 3],
                _ => value * 3.0,
            }
        };
        (0..rows * vocab).map(one).collect()
    }

    /// The tokens are the host's, for rows of any settings side by side.
    #[test]
    fn tokens_are_the_hosts() {
        let executor = Executor::open("cpu", Some(2)).unwrap();
        let (mut same, mut all) = (0, 0);
        for (rows, vocab, few) in [(1, 1, true), (12, 77, true), (12, 77, false), (33, 5000, true), (9, 5000, false)] {
            let logits = logits(rows, vocab);
            let config = |row: usize| SamplerConfig {
                temperature: [1.0, 0.0, 0.7, 1.5, 3.0][row % 5],
                typical_p: [0.51, 1.0, 0.21, 0.9, 0.999, 1e-6, 0.95][row % 7],
                top_k: [40, 5, 1, 200, 3][row % 5] * usize::from(few || row % 2 == 1),
                top_p: [1.0, 0.9, 0.5][row % 3],
                min_p: [0.0, 0.1][row / 3 % 2],
                seed: row as u64,
                ..SamplerConfig::GREEDY
            };
            let configs: Vec<SamplerConfig> = (0..rows).map(config).collect();
            let some = candidates(configs.iter(), vocab);
            assert_eq!(some == vocab, !few || vocab <= 256, "{some}");
            let mut g = Graph::new();
            let x = Tensor::from_slice(&executor, &[rows, vocab], &logits).unwrap();
            let x = g.state(&x).unwrap();
            let x = keep(&mut g, x, (rows, vocab), some).unwrap();
            let numbers = g.input("numbers", DType::F32, &[Dim::Fixed(rows), Dim::Fixed(3)]).unwrap();
            let words = g.input("words", DType::U32, &[Dim::Fixed(rows), Dim::Fixed(4)]).unwrap();
            let chosen = g.sample(x, numbers, words).unwrap();
            g.output("chosen", chosen).unwrap();
            let mut plan = g.compile(&executor, &[]).unwrap();
            let (shares, best): (Vec<f32>, Vec<u32>) = configs.iter().map(|c| row(Some(c), vocab)).unzip();
            plan.write("typical", &shares).unwrap();
            plan.write("typical_k", &best).unwrap();
            for position in 0..24 {
                let of_rows: Vec<_> = configs.iter().map(|config| config.row(position)).collect();
                plan.write("numbers", &of_rows.iter().flat_map(|(n, _)| *n).collect::<Vec<f32>>()).unwrap();
                plan.write("words", &of_rows.iter().flat_map(|(_, w)| *w).collect::<Vec<u32>>()).unwrap();
                plan.run().unwrap();
                let got = plan.read::<u32>("chosen").unwrap();
                for (row, logits) in logits.chunks(vocab).enumerate() {
                    let want = Sampler::new(configs[row]).unwrap().sample(logits, position).unwrap();
                    all += 1;
                    same += usize::from(got[row] == want);
                }
            }
        }
        // Sums of other roundings may end at another token.
        assert!(same * 1000 >= all * 998, "{same} of {all}");
    }

    /// What the host finds invalid gives no token.
    #[test]
    fn invalid_rows_have_no_token() {
        let executor = Executor::open("cpu", Some(1)).unwrap();
        let rows = [[1.0, f32::NAN, 0.0], [f32::INFINITY, 1.0, 0.0], [f32::NEG_INFINITY; 3], [1.0, 2.0, 0.0]];
        let mut g = Graph::new();
        let x = g.state(&Tensor::from_slice(&executor, &[4, 3], &rows.concat()).unwrap()).unwrap();
        let x = keep(&mut g, x, (4, 3), 3).unwrap();
        g.output("kept", x).unwrap();
        let mut plan = g.compile(&executor, &[]).unwrap();
        plan.write("typical", &[0.3f32; 4]).unwrap();
        plan.write("typical_k", &[3u32; 4]).unwrap();
        plan.run().unwrap();
        let kept = plan.read::<f32>("kept").unwrap();
        assert!(kept[..9].iter().all(|x| *x == f32::NEG_INFINITY), "{kept:?}");
        assert!(kept[9..].iter().any(|x| x.is_finite()), "{kept:?}");
    }
}
