//! Speculation: tokens that may come next are computed along with the last one. They are kept as far as the model
//! itself chooses the same: a token depends on the logits of its place, the seed and the position alone, so guesses
//! change how many steps a text takes, not what it says.

use std::collections::{HashMap, HashSet};

use crate::plan_size::plan_within;

/// How an engine guesses tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Speculation {
    /// Not at all.
    Off,
    /// As many as their success so far and the measured times of steps justify.
    #[default]
    Auto,
    /// Always this many, whether or not it pays; fewer where nothing suggests a guess.
    Fixed(usize),
}

/// Most guesses of a sequence in a step.
pub(super) const MAX_GUESSES: usize = 15;

/// Tokens that must occur in the text already for what followed them to be guessed.
const MATCH: usize = 3;

/// Guesses are grouped by the number of accepted ones directly before them: 0, 1, 2 to 3, 4 to 7, more.
const CLASSES: usize = 5;

/// The weight of the newest observation in an average.
const WEIGHT: f64 = 0.1;

/// Guesses what a text repeats. Watches how often it would have been right, also while nothing is computed for it.
pub(super) struct Lookup {
    /// Where the last occurrence of these tokens ended.
    ends: HashMap<[u32; MATCH], u32>,
    seen: usize,
    /// The position of the token that the next one should repeat.
    next: Option<usize>,
    /// Guesses that came true in a row.
    run: usize,
    /// The share of guesses that come true, by class.
    rates: [f64; CLASSES],
}

impl Default for Lookup {
    fn default() -> Lookup {
        Lookup { ends: HashMap::new(), seen: 0, next: None, run: 0, rates: [0.4, 0.5, 0.7, 0.8, 0.9] }
    }
}

impl Lookup {
    /// Takes the tokens that were added to a text. Those of the prompt, up to `own`, say nothing about the model.
    pub fn observe(&mut self, tokens: &[u32], own: usize) {
        for at in self.seen..tokens.len() {
            if let Some(next) = self.next.take() {
                let hit = tokens[next] == tokens[at];
                if at >= own {
                    average(&mut self.rates[class(self.run)], if hit { 1.0 } else { 0.0 });
                }
                self.run = if hit { self.run + 1 } else { 0 };
                self.next = hit.then_some(next + 1);
            }
            let end = at + 1;
            let Some(key) = tokens[..end].last_chunk::<MATCH>() else { continue };
            let before = self.ends.insert(*key, end as u32);
            self.next = self.next.or(before.map(|at| at as usize));
        }
        self.seen = tokens.len();
    }

    /// The tokens that should follow, at most `most`.
    pub fn guess(&self, tokens: &[u32], most: usize) -> Guesses {
        let mut guesses = Guesses::default();
        let (Some(next), true) = (self.next, self.seen == tokens.len()) else { return guesses };
        let mut chance = 1.0;
        while guesses.tokens.len() < most {
            chance *= self.rates[class(self.run + guesses.tokens.len())];
            // A text that repeats itself continues in its own guesses.
            let at = next + guesses.tokens.len();
            let token = tokens.get(at).or_else(|| guesses.tokens.get(at.checked_sub(tokens.len())?));
            let Some(token) = token.copied().filter(|_| chance >= LEAST) else { break };
            guesses.tokens.push(token);
            guesses.chances.push(chance);
        }
        guesses
    }
}

/// What may come next in a sequence.
#[derive(Default)]
pub(super) struct Guesses {
    /// The tokens, unless the draft model is still to guess them.
    pub tokens: Vec<u32>,
    /// The chance that each and all before it are right.
    pub chances: Vec<f64>,
}

fn class(run: usize) -> usize {
    (usize::BITS - run.leading_zeros()).min(CLASSES as u32 - 1) as usize
}

fn average(of: &mut f64, value: f64) {
    *of += (value - *of) * WEIGHT;
}

/// Follows the short ones of measured times: what else the machine does makes others longer.
fn shortest(of: &mut f64, value: f64) {
    *of += (value - *of) * if value < *of { 2.0 * WEIGHT } else { WEIGHT / 10.0 };
}

/// What steps cost, as measured.
#[derive(Default)]
pub(super) struct Pace {
    /// Seconds of a step by its number of tokens.
    steps: HashMap<usize, f64>,
    /// Sizes of steps that ran: the first of a size compiles.
    sizes: HashSet<usize>,
    /// Seconds of a round of the draft model.
    round: Option<f64>,
    /// Seconds of a step without pieces of prompts, of late.
    text: Option<f64>,
    /// Seconds that a token of a prompt adds to a step, of late.
    prompt_token: Option<f64>,
}

/// A step with a piece of a long prompt may take this many times as long as one without.
const STALL: f64 = 2.5;

/// The least tokens of a piece: kernels compute as many at a time.
const PIECE_UNIT: usize = 64;

/// What a guess costs, as a share of a token without guesses, until it is known. Low, so that it is tried.
const UNKNOWN: f64 = 0.3;

/// Guesses that are less likely are not made.
const LEAST: f64 = 0.05;

/// Guesses that a sequence may have, of which the one that pays best is chosen. With the last token these are powers of
/// two, which steps are compiled for.
const DEPTHS: [usize; 4] = [1, 3, 7, 15];

impl Pace {
    /// Takes the time of a step.
    pub fn measure(&mut self, tokens: usize, seconds: f64) {
        let size = size(tokens);
        if !self.sizes.insert(size) {
            shortest(self.steps.entry(size).or_insert(seconds), seconds);
        }
    }

    /// Takes the time of a step with `prompt` tokens of pieces of prompts, beside texts or not.
    pub fn measure_piece(&mut self, prompt: usize, beside: bool, seconds: f64) {
        let late = |of: &mut Option<f64>, value: f64| *of = Some(of.map_or(value, |old| old + (value - old) / 4.0));
        if prompt == 0 {
            late(&mut self.text, seconds);
        } else if prompt >= PIECE_UNIT {
            let text = self.text.filter(|_| beside).unwrap_or(0.0);
            late(&mut self.prompt_token, (seconds - text).max(seconds / 4.0) / prompt as f64);
        }
    }

    /// How many tokens of long prompts a step may have beside so many texts, whose next tokens wait for it: with the
    /// texts as many as a plan has, of which an eighth of the largest step is the least. The first token of a piece costs
    /// most, so that short pieces would only delay the texts more often.
    pub fn piece(&self, step_tokens: usize, texts: usize) -> usize {
        let tokens = match (self.text, self.prompt_token) {
            (Some(text), Some(token)) if token > 0.0 => (STALL - 1.0) * text / token,
            _ => step_tokens as f64 / 4.0,
        };
        let all = plan_within((tokens as usize + texts).max(step_tokens / 8).min(step_tokens));
        all.saturating_sub(texts).max(PIECE_UNIT)
    }

    /// Takes the time of rounds of the draft model.
    pub fn measure_draft(&mut self, rounds: usize, seconds: f64) {
        let each = seconds / rounds.max(1) as f64;
        shortest(self.round.get_or_insert(each), each);
    }

    /// How many guesses of each sequence pay best: those of the text, and those that the draft model would make.
    pub fn depth(&mut self, text: &[&[f64]], draft: &[&[f64]], sequences: usize) -> usize {
        let Some(plain) = self.steps.get(&size(sequences)).copied() else { return 0 };
        let (mut best, mut most) = (0, sequences as f64 / plain);
        for depth in DEPTHS {
            let all = || text.iter().chain(draft).map(|chances| &chances[..chances.len().min(depth)]);
            let guesses: usize = all().map(<[f64]>::len).sum();
            if guesses == 0 {
                break;
            }
            let unknown = plain * (1.0 + UNKNOWN * guesses as f64 / sequences as f64);
            let step = self.steps.entry(size(sequences + guesses)).or_insert(unknown);
            let rounds = draft.iter().map(|chances| chances.len().min(depth)).max().unwrap_or(0);
            let round = self.round.unwrap_or(plain * UNKNOWN);
            let tokens = sequences as f64 + all().flatten().sum::<f64>();
            let rate = tokens / (*step + rounds as f64 * round);
            // A little: a step of another size has further costs, such as cold code.
            if rate > 1.02 * most {
                (best, most) = (depth, rate);
            } else {
                // So that what was measured at a bad time is measured again.
                *step += (unknown.min(*step) - *step) / 1000.0;
            }
        }
        best
    }
}

/// Steps of nearly the same size count as one.
fn size(tokens: usize) -> usize {
    if tokens <= 16 { tokens } else { tokens.next_power_of_two() }
}

/// How often a draft model's guesses for a sequence come true.
pub(super) struct DraftRate(f64);

impl Default for DraftRate {
    fn default() -> DraftRate {
        DraftRate(0.7)
    }
}

impl DraftRate {
    /// The chances of so many guesses.
    pub fn chances(&mut self, most: usize) -> Vec<f64> {
        // Slowly forgets, so that the draft model is tried again.
        self.0 += (0.6 - self.0) / 500.0;
        (1..=most as i32).map(|n| self.0.powi(n)).take_while(|chance| *chance >= LEAST).collect()
    }

    /// Of the guesses for a step the first `right` came true.
    pub fn observe(&mut self, guesses: usize, right: usize) {
        (0..right).for_each(|_| average(&mut self.0, 1.0));
        if right < guesses {
            average(&mut self.0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_long_prompts_take_a_bounded_time() {
        let mut pace = Pace::default();
        assert_eq!((pace.piece(2048, 0), pace.piece(16, 0)), (512, PIECE_UNIT));
        // 5 ms a step of texts, to which a prompt adds 20 us a token: 375 tokens take 1.5 times as long.
        pace.measure_piece(0, true, 5e-3);
        pace.measure_piece(2048, true, 5e-3 + 2048.0 * 20e-6);
        assert_eq!((pace.piece(2048, 0), pace.piece(256, 0)), (320, 256));
        // With the texts a step has as many tokens as a plan.
        assert_eq!((pace.piece(2048, 10), pace.piece(2048, 20)), (374, 364));
        // The same cost, from a step without texts; then a slower device.
        pace.measure_piece(1000, false, 20e-3);
        assert_eq!(pace.piece(2048, 0), 320);
        (0..50).for_each(|_| pace.measure_piece(320, true, 1.0));
        assert_eq!((pace.piece(2048, 31), pace.piece(2048, 250), pace.piece(256, 2)), (225, PIECE_UNIT, PIECE_UNIT));
    }

    #[test]
    fn repetitions_are_guessed() {
        let mut lookup = Lookup::default();
        let text: Vec<u32> = (0..20).chain([3, 4, 5]).collect();
        lookup.observe(&text, text.len());
        let guesses = lookup.guess(&text, 4);
        // Before anything came true, the later ones are unlikely.
        assert_eq!((&guesses.tokens[..], &guesses.chances[..2]), (&[6, 7, 8, 9][..], &[0.4, 0.2][..]));
        let mut grown = text.clone();
        for token in 6..14 {
            grown.push(token);
            lookup.observe(&grown, text.len());
        }
        let guesses = lookup.guess(&grown, 6);
        assert!(guesses.tokens == [14, 15, 16, 17, 18, 19] && guesses.chances[3] > 0.5, "{:?}", lookup.rates);
        // A miss ends it.
        grown.push(99);
        lookup.observe(&grown, text.len());
        assert!(lookup.guess(&grown, 4).tokens.is_empty());
        // A period shorter than the guesses.
        let period = [1, 2, 3, 1, 2, 3, 1, 2, 3];
        let mut lookup = Lookup::default();
        lookup.observe(&period, 0);
        assert_eq!(lookup.guess(&period, 7).tokens, [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn guesses_must_pay() {
        let mut pace = Pace::default();
        let (good, bad) = ([0.95f64, 0.9, 0.86, 0.81, 0.77, 0.74, 0.7], [0.3, 0.1]);
        assert_eq!(pace.depth(&[&good], &[], 1), 0);
        for (tokens, seconds) in [(1, 0.010), (2, 0.019), (4, 0.022), (8, 0.030), (16, 0.05)] {
            (0..99).for_each(|_| pace.measure(tokens, seconds));
            // Times in which the machine did something else count little.
            pace.measure(tokens, 0.1);
        }
        assert_eq!(pace.depth(&[&good], &[], 1), 7);
        assert_eq!(pace.depth(&[&bad], &[], 1), 0);
        assert_eq!(pace.depth(&[], &[], 1), 0);
        (0..99).for_each(|_| pace.measure_draft(1, 0.008));
        assert_eq!(pace.depth(&[], &[&good], 1), 0);
        (0..999).for_each(|_| pace.measure_draft(1, 0.0005));
        assert_eq!(pace.depth(&[], &[&good], 1), 7);
    }

    #[test]
    fn drafts_are_tried_again() {
        let mut rate = DraftRate::default();
        assert_eq!(rate.chances(2).len(), 2);
        (0..60).for_each(|_| rate.observe(2, 0));
        assert!(rate.chances(4).is_empty());
        (0..500).for_each(|_| drop(rate.chances(4)));
        assert!(!rate.chances(4).is_empty());
    }
}
