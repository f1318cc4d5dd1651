//! What is sent, and when: prompts of given lengths and random times, both from a seed.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::args::{LoadArgs, usage};
use crate::text::read_file;

/// Maximum bytes of a file of lengths.
const MAX_FILE: u64 = 256 << 20;

/// Common words: with the space before them, a token each in most vocabularies.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you", "were", "all",
    "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no", "more", "if",
    "out", "so", "up", "said", "what", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new",
    "some",
];

/// A prompt, or its length.
enum Prompt {
    Text(String),
    Tokens(usize),
}

/// The requests of a run.
pub struct Plan {
    lengths: Vec<(Prompt, u64)>,
    shared_percent: usize,
    seed: u64,
    model: String,
    chat: bool,
    ignore_eos: bool,
}

impl Plan {
    /// The requests that the options describe.
    ///
    /// # Errors
    /// When the file of lengths cannot be read, or a line of it is faulty.
    pub fn new(args: &LoadArgs, model: String) -> anyhow::Result<Plan> {
        let lengths = match &args.lengths {
            None => vec![(Prompt::Tokens(args.prompt_tokens as usize), args.max_tokens.into())],
            Some(path) => {
                let text = String::from_utf8(read_file(path, MAX_FILE)?);
                let text = text.with_context(|| format!("{} is not UTF-8", path.display()))?;
                let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
                let lengths = lines.map(|(i, line)| {
                    let value: Value = serde_json::from_str(line).unwrap_or_default();
                    let prompt = match (value["prompt"].as_str(), value["prompt_tokens"].as_u64()) {
                        (Some(text), None) => Some(Prompt::Text(text.into())),
                        (None, Some(n @ 1..=0x10_0000)) => Some(Prompt::Tokens(n as usize)),
                        _ => None,
                    };
                    match (prompt, value["max_tokens"].as_u64()) {
                        (Some(prompt), Some(max @ 1..)) => Ok((prompt, max)),
                        _ => {
                            let form =
                                "{\"prompt_tokens\": N, \"max_tokens\": N} or {\"prompt\": TEXT, \"max_tokens\": N}";
                            usage(format!("line {} of {} must be {form}", i + 1, path.display()))
                        }
                    }
                });
                lengths.collect::<anyhow::Result<Vec<_>>>()?
            }
        };
        if lengths.is_empty() {
            return usage("the file of lengths is empty");
        }
        let (shared_percent, seed) = (args.shared_prefix as usize, args.seed);
        Ok(Plan { lengths, shared_percent, seed, model, chat: args.chat, ignore_eos: args.ignore_eos })
    }

    /// The path of the requests.
    pub fn path(&self) -> &'static str {
        if self.chat { "chat/completions" } else { "completions" }
    }

    /// The body of a request.
    pub fn body(&self, request: usize) -> String {
        let (prompt, max_tokens) = &self.lengths[request % self.lengths.len()];
        let text = match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(n) => {
                let shared = n * self.shared_percent / 100;
                let (mut all, mut own) = (Random(self.seed), Random(self.seed ^ (request as u64 + 1) << 20));
                let word =
                    |i: usize| WORDS[(if i < shared { &mut all } else { &mut own }).next() as usize % WORDS.len()];
                (0..*n).map(word).collect::<Vec<_>>().join(" ")
            }
        };
        let mut body = json!({
            "model": self.model, "max_tokens": max_tokens, "stream": true, "stream_options": { "include_usage": true },
            "temperature": 0.8, "seed": self.seed.wrapping_add(request as u64) >> 11,
        });
        match self.chat {
            true => body["messages"] = json!([{ "role": "user", "content": text }]),
            false => body["prompt"] = text.into(),
        }
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        body.to_string()
    }

    /// When each request is sent, at `rate` a second on average: independent of each other, so that the times between
    /// them follow an exponential distribution.
    pub fn times(&self, requests: usize, rate: f64) -> Vec<Duration> {
        let mut random = Random(self.seed ^ 0x5eed);
        let mut at = 0.0;
        let mut next = || {
            let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
            at -= (1.0 - uniform).ln() / rate;
            Duration::from_secs_f64(at)
        };
        (0..requests).map(|_| next()).collect()
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::args::{Cli, Command};

    fn plan(options: &str) -> Plan {
        let words = format!("hologram load {options}");
        let Ok(Cli { command: Some(Command::Load(args)) }) = Cli::of_words(words.split_whitespace()) else {
            panic!("{options}");
        };
        Plan::new(&args, "m".into()).unwrap()
    }

    #[test]
    fn prompts_have_their_lengths_and_their_common_part() {
        let prompt = |plan: &Plan, i| {
            let body: Value = serde_json::from_str(&plan.body(i)).unwrap();
            body["prompt"].as_str().unwrap().split(' ').map(String::from).collect::<Vec<_>>()
        };
        let plan = plan("--prompt-tokens 100 --shared-prefix 90");
        let (a, b) = (prompt(&plan, 0), prompt(&plan, 1));
        assert_eq!((a.len(), &a[..90]), (100, &b[..90]));
        assert_ne!(a[90..], b[90..]);
        assert_eq!(a, prompt(&plan, 0));
    }

    #[test]
    fn times_keep_the_rate() {
        let times = plan("--rate 50").times(10_000, 50.0);
        assert!(times.is_sorted());
        // 200 s, with a standard deviation of 2 s.
        let last = times.last().unwrap().as_secs_f64();
        assert!((190.0..210.0).contains(&last), "{last}");
    }
}
