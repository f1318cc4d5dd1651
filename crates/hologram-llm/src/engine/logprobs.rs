//! Probabilities of tokens.

use crate::tokenizer::Tokenizer;

use super::events::{Logprob, TokenLogprobs};

/// The probability of `chosen` and of the `top` best tokens. `logits` must not be empty.
pub(super) fn logprobs(logits: &[f32], chosen: u32, top: usize, tokenizer: Option<&Tokenizer>) -> TokenLogprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let one = |id: u32, before: usize| {
        let bytes = tokenizer.map(|t| t.token_bytes(id)).unwrap_or_default();
        Logprob { id, logprob: (f64::from(logit(id)) - log_sum) as f32, rank: before + 1, bytes }
    };
    let mut best: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b));
    if top > 0 && top < best.len() {
        best.select_nth_unstable_by(top - 1, order);
    }
    best.truncate(top);
    best.sort_unstable_by(order);
    let before = (0..logits.len() as u32).filter(|id| order(id, &chosen).is_lt()).count();
    let top = best.into_iter().enumerate().map(|(i, id)| one(id, i)).collect();
    TokenLogprobs { token: one(chosen, before), top }
}

/// The probability of `chosen` and of the `top` best tokens among those that it was drawn from.
pub(super) fn drawn(from: &[(u32, f64)], chosen: u32, top: usize, tokenizer: Option<&Tokenizer>) -> TokenLogprobs {
    let one = |(before, (id, p)): (usize, (u32, f64))| {
        let bytes = tokenizer.map(|t| t.token_bytes(id)).unwrap_or_default();
        Logprob { id, logprob: p.ln() as f32, rank: before + 1, bytes }
    };
    let token = from.iter().copied().find(|(id, _)| *id == chosen).unwrap_or((chosen, 0.0));
    let mut best: Vec<(u32, f64)> = from.iter().copied().filter(|(_, p)| *p > 0.0).collect();
    let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    best.sort_unstable_by(order);
    let before = best.partition_point(|other| order(other, &token).is_lt());
    best.truncate(top);
    TokenLogprobs { token: one((before, token)), top: best.into_iter().enumerate().map(one).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_of_the_softmax() {
        let logits = [1000.0, 1000.0 + 3f32.ln(), f32::NEG_INFINITY, 1000.0];
        let got = logprobs(&logits, 3, 3, None);
        let top: Vec<u32> = got.top.iter().map(|t| t.id).collect();
        assert_eq!((got.token.id, top), (3, vec![1, 0, 3]));
        // The softmax is 1/5, 3/5, 0, 1/5.
        assert!((got.token.logprob - 0.2f32.ln()).abs() < 1e-4, "{got:?}");
        assert!((got.top[0].logprob - 0.6f32.ln()).abs() < 1e-4, "{got:?}");
        // The token with 0 is as probable and comes first.
        let ranks = [got.token.rank, got.top[0].rank, got.top[1].rank, got.top[2].rank];
        assert_eq!(ranks, [3, 1, 2, 3]);
        let never = logprobs(&logits, 2, 0, None).token;
        assert_eq!((never.logprob, never.rank), (f32::NEG_INFINITY, 4));
        assert_eq!(drawn(&[(7, 0.25), (2, 0.5), (1, 0.25)], 7, 1, None).token.rank, 3);
    }
}
