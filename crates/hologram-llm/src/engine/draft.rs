//! A smaller model that guesses the tokens of a larger one.

use std::sync::Arc;

use crate::error::{LlmError, Result};
use crate::model::Model;
use crate::sampling::{Sampler, SamplerConfig};
use crate::session::{Input, Logits, Session, SessionOptions};

/// The draft model of an engine, with a sequence for each of the engine's.
pub(super) struct Draft {
    session: Session,
    sampler: Sampler,
}

/// A sequence that wants guesses.
pub(super) struct Wanted<'a> {
    pub slot: usize,
    pub tokens: &'a [u32],
    pub sampling: SamplerConfig,
    /// How many.
    pub most: usize,
}

impl Draft {
    /// Starts a draft model.
    pub fn new(draft: &Model, model: &Arc<Model>, options: SessionOptions) -> Result<Draft> {
        check(draft, model)?;
        let context = options.context.min(draft.config().context);
        let session = draft.session(SessionOptions { context, kv: None, ..options })?;
        Ok(Draft { session, sampler: Sampler::new(SamplerConfig::GREEDY)? })
    }

    /// Guesses tokens. Returns them for each sequence, and the number of rounds.
    pub fn guess(&mut self, wanted: &[Wanted<'_>]) -> Result<(Vec<Vec<u32>>, usize)> {
        let mut guesses = vec![Vec::new(); wanted.len()];
        let mut rounds = 0;
        loop {
            let mut inputs = Vec::new();
            let mut of = Vec::new();
            for (at, one) in wanted.iter().enumerate() {
                let guessed: &[u32] = &guesses[at];
                if guessed.len() >= one.most || one.tokens.len() + guessed.len() > self.session.context() {
                    continue;
                }
                let tokens = match guessed.last() {
                    Some(_) => &guessed[guessed.len() - 1..],
                    None => &one.tokens[self.session.keep_prefix(one.slot, one.tokens)..],
                };
                inputs.push(Input { sequence: one.slot, tokens, logits: Logits::Last });
                of.push(at);
            }
            if inputs.is_empty() {
                return Ok((guesses, rounds));
            }
            rounds += 1;
            let configs: Vec<SamplerConfig> = of.iter().map(|at| wanted[*at].sampling).collect();
            let host = configs.iter().any(|config| !config.fits_device());
            let vocab = self.session.vocab();
            let rows = self.session.rows(&inputs, &configs, host)?;
            let (chosen, logits) = (rows.chosen.to_vec(), rows.logits.to_vec());
            for (row, at) in of.into_iter().enumerate() {
                let one = &wanted[at];
                let guess = match chosen.get(row) {
                    Some(id) if one.sampling.fits_device() => *id,
                    _ => {
                        let tokens = self.session.tokens(one.slot);
                        self.sampler.set_config(one.sampling);
                        let row = &logits[row * vocab..(row + 1) * vocab];
                        self.sampler.sample_after(row, tokens, tokens.len() as u64)?
                    }
                };
                if guess as usize >= vocab {
                    return Err(LlmError::Logits {
                        position: one.tokens.len() as u64,
                        reason: crate::session::NO_TOKEN.into(),
                    });
                }
                guesses[at].push(guess);
            }
        }
    }
}

/// Both must have the same tokens.
fn check(draft: &Model, model: &Model) -> Result<()> {
    let fail = |reason: String| Err(LlmError::Option { option: "draft", reason });
    let (own, other) = (draft.config().vocab, model.config().vocab);
    if own != other {
        return fail(format!("has a vocabulary of {own} tokens, but the model has {other}"));
    }
    if let (Ok(own), Ok(other)) = (draft.tokenizer(), model.tokenizer()) {
        let differs = |id: &u32| own.token_bytes(*id) != other.token_bytes(*id);
        if let Some(id) = (0..draft.config().vocab as u32).find(differs) {
            return fail(format!("has another vocabulary than the model: token {id} differs"));
        }
    }
    Ok(())
}
