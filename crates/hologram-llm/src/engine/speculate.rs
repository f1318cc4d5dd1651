//! Speculation: tokens that may come next are computed along with the last one. They are kept as far as the model
//! itself chooses the same: a token depends on the logits of its place, the seed and the position alone, so guesses
//! change how many steps a text takes, not what it says.

use std::collections::HashMap;

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

/// Guesses are told apart by how many came true in a row before them: 0, 1, 2 to 3, 4 to 7, more.
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

    /// The tokens that should follow, each with a chance of at least `least`, as many as `most`.
    pub fn guess(&self, tokens: &[u32], least: f64, most: usize) -> Vec<u32> {
        let mut guesses: Vec<u32> = Vec::new();
        let (Some(next), true) = (self.next, self.seen == tokens.len()) else { return guesses };
        let mut chance = 1.0;
        while guesses.len() < most {
            chance *= self.rates[class(self.run + guesses.len())];
            if chance < least {
                break;
            }
            // A text that repeats itself continues in its own guesses.
            let at = next + guesses.len();
            let Some(token) = tokens.get(at).or_else(|| guesses.get(at.checked_sub(tokens.len())?)) else { break };
            guesses.push(*token);
        }
        guesses
    }
}

fn class(run: usize) -> usize {
    (usize::BITS - run.leading_zeros()).min(CLASSES as u32 - 1) as usize
}

fn average(of: &mut f64, value: f64) {
    *of += (value - *of) * WEIGHT;
}

/// What steps cost, as measured.
#[derive(Default)]
pub(super) struct Pace {
    /// Seconds of a step without guesses, by its number of sequences.
    plain: HashMap<usize, f64>,
    /// Seconds for a guess.
    guess: Option<f64>,
    /// Seconds of a round of the draft model, for each of its sequences.
    draft: Option<f64>,
    /// Sizes of steps whose plans exist: the first step of a size compiles.
    sizes: Vec<usize>,
}

/// What a guess costs, as a share of a token without guesses, until it is known.
const UNKNOWN: f64 = 0.3;

impl Pace {
    /// Takes the time of a step with a token of each of `sequences` and this many guesses.
    pub fn measure(&mut self, sequences: usize, guesses: usize, seconds: f64) {
        let size = (sequences + guesses).next_power_of_two();
        if !self.sizes.contains(&size) {
            self.sizes.push(size);
            return;
        }
        if guesses == 0 {
            average(self.plain.entry(sequences).or_insert(seconds), seconds);
        } else if let Some(plain) = self.plain.get(&sequences) {
            let each = (seconds - plain).max(0.0) / guesses as f64;
            average(self.guess.get_or_insert(each), each);
        }
    }

    /// Takes the time of a round of the draft model.
    pub fn measure_draft(&mut self, sequences: usize, seconds: f64) {
        let each = seconds / sequences.max(1) as f64;
        average(self.draft.get_or_insert(each), each);
    }

    /// The least chance with which a guess pays, among this many sequences, if it comes from the text or from the draft
    /// model. `None`: not yet known.
    pub fn least(&self, sequences: usize, draft: bool) -> Option<f64> {
        let plain = self.plain.get(&sequences)? / sequences.max(1) as f64;
        let guess = self.guess.unwrap_or(plain * UNKNOWN);
        let draft = if draft { self.draft.unwrap_or(plain * UNKNOWN) } else { 0.0 };
        // Below the highest, so that times measured wrongly are measured again.
        Some(((guess + draft) / plain.max(1e-9)).clamp(0.02, 0.95))
    }
}

/// How often a draft model's guesses for a sequence come true.
pub(super) struct DraftRate {
    rate: f64,
    /// Tokens since the last guess.
    idle: usize,
}

impl Default for DraftRate {
    fn default() -> DraftRate {
        DraftRate { rate: 0.7, idle: 0 }
    }
}

/// Tokens after which the draft model is tried again where it does not pay.
const RETRY: usize = 64;

impl DraftRate {
    /// How many guesses pay if each must have at least this chance.
    pub fn depth(&mut self, least: f64, most: usize) -> usize {
        let depth = (least.ln() / self.rate.clamp(1e-6, 0.99).ln()).floor() as usize;
        self.idle += 1;
        if depth == 0 && self.idle < RETRY {
            return 0;
        }
        self.idle = 0;
        depth.clamp(1, MAX_GUESSES).min(most)
    }

    /// Of the guesses for a step the first `right` came true.
    pub fn observe(&mut self, guesses: usize, right: usize) {
        (0..right).for_each(|_| average(&mut self.rate, 1.0));
        if right < guesses {
            average(&mut self.rate, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_guessed() {
        let mut lookup = Lookup::default();
        let text: Vec<u32> = (0..20).chain([3, 4, 5]).collect();
        lookup.observe(&text, text.len());
        assert_eq!(lookup.guess(&text, 0.0, 4), [6, 7, 8, 9]);
        // The first is right with a chance of 0.4, the second with half of that.
        assert_eq!(lookup.guess(&text, 0.3, 4), [6]);
        assert!(lookup.guess(&text, 0.5, 4).is_empty());
        let mut grown = text.clone();
        for token in 6..14 {
            grown.push(token);
            lookup.observe(&grown, text.len());
        }
        assert!(lookup.guess(&grown, 0.5, 6).len() >= 3, "{:?}", lookup.rates);
        // A miss ends it; the rate of later runs is as it was.
        grown.push(99);
        lookup.observe(&grown, text.len());
        assert!(lookup.guess(&grown, 0.0, 4).is_empty());
        // A period shorter than the guesses.
        let period = [1, 2, 3, 1, 2, 3, 1, 2, 3];
        let mut lookup = Lookup::default();
        lookup.observe(&period, 0);
        assert_eq!(lookup.guess(&period, 0.0, 7), [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn guesses_must_pay() {
        let mut pace = Pace::default();
        assert_eq!(pace.least(1, false), None);
        for _ in 0..200 {
            pace.measure(1, 0, 0.010);
            pace.measure(1, 4, 0.018);
        }
        let least = pace.least(1, false).unwrap();
        assert!((least - 0.2).abs() < 0.01, "{least}");
        for _ in 0..200 {
            pace.measure_draft(1, 0.003);
        }
        assert!((pace.least(1, true).unwrap() - 0.5).abs() < 0.01);
        let mut rate = DraftRate::default();
        assert_eq!(rate.depth(0.5, 8), 1);
        (0..60).for_each(|_| rate.observe(2, 2));
        assert!(rate.depth(0.5, 8) == 8, "{}", rate.rate);
        (0..60).for_each(|_| rate.observe(2, 0));
        // Tried again after a while.
        let depths: Vec<usize> = (0..2 * RETRY).map(|_| rate.depth(0.5, 8)).collect();
        assert_eq!(depths.iter().sum::<usize>(), 2, "{depths:?}");
    }
}
