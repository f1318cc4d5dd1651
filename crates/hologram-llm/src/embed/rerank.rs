//! Rerankers: how well texts answer a query.

use super::encoder::{Encoder, EncoderText, Wanted};
use super::{STEP, check, fitting};
use crate::error::{LlmError, Result};
use crate::files::ModelFiles;
use crate::model::Model;
use crate::session::{Logits, Session, SessionOptions};

/// Scores texts against a query: with an encoder that has a head for sequences, or with a decoder that answers yes or
/// no.
pub struct Reranker<'a> {
    model: &'a Model,
    context: usize,
    runner: Runner,
}

enum Runner {
    /// A text is read together with the query. The head takes the mean of all states, or the first.
    Pairs { encoder: Box<Encoder>, of_mean: bool },
    /// The tokens before the query and the text, and those after them; the tokens "yes" and "no".
    Judge { session: Box<Session>, before: Vec<u32>, after: Vec<u32>, answers: [u32; 2] },
}

/// What Qwen3-Reranker was trained on (Zhang et al., 2025, arXiv:2506.05176).
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
    Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The default instruction of a decoder.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Whether the head of a folder's model takes the mean of all states (`classifier_pooling`), instead of the first.
fn takes_mean(model: &Model) -> Result<bool> {
    const KEY: &str = "classifier_pooling";
    let Some(ModelFiles::Folder(folder)) = model.files() else { return Ok(false) };
    match folder.config_json().get(KEY) {
        Some(pooling) if pooling == "mean" => Ok(true),
        Some(pooling) if pooling != "cls" && !pooling.is_null() => Err(LlmError::Unsupported {
            path: folder.path().into(),
            what: format!("{KEY} {pooling}"),
            supported: "cls, mean".into(),
        }),
        _ => Ok(false),
    }
}

/// The mean of states of `width` elements.
fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let rows = states.chunks_exact(width.max(1));
    let count = rows.len().max(1) as f32;
    let mut sums = vec![0.0; width];
    rows.for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v));
    sums.iter().map(|sum| sum / count).collect()
}

impl<'a> Reranker<'a> {
    /// For queries with texts of at most `context` tokens together.
    ///
    /// # Errors
    /// When the model is no reranker, or the device lacks the memory.
    pub fn new(model: &'a Model, context: usize) -> Result<Reranker<'a>> {
        let (decoder, config) = (model.decoder(), model.config());
        let no = |what: &str| LlmError::Unsupported {
            path: config.name.clone().into(),
            what: format!("reranking with a model that has no {what}"),
            supported: "encoders with a head for one score, decoders with the tokens yes and no".into(),
        };
        let outputs = if decoder.head.0.is_empty() { None } else { Some(decoder.head.outputs(0)) };
        let runner = if config.bidirectional {
            if outputs != Some(1) {
                return Err(no("head for one score"));
            }
            Runner::Pairs { encoder: Box::new(Encoder::new(model, context)?), of_mean: takes_mean(model)? }
        } else {
            let tokenizer = model.tokenizer()?;
            let answer = |text: &str| tokenizer.token_id(text).ok_or_else(|| no("tokens yes and no"));
            let answers = [answer("yes")?, answer("no")?];
            let spelled = |text: &str| tokenizer.encode_with(text, false, true);
            let (before, after) = (spelled(BEFORE)?, spelled(AFTER)?);
            if outputs.is_some_and(|n| n != 2) {
                return Err(no("head for yes and no"));
            }
            let session = model.session(SessionOptions { context, batch: Some(STEP), ..SessionOptions::default() })?;
            Runner::Judge { session: Box::new(session), before, after, answers }
        };
        Ok(Reranker { model, context, runner })
    }

    /// A score for each text. Those of encoders are the head's numbers; those of decoders are the logarithms of the
    /// odds of "yes". [`probability`](Reranker::probability) maps both to 0 to 1.
    ///
    /// # Errors
    /// When a text is too long for the context, or the device fails.
    pub fn scores(&mut self, query: &str, texts: &[&str]) -> Result<Vec<f32>> {
        let tokenizer = self.model.tokenizer()?;
        let decoder = self.model.decoder();
        match &mut self.runner {
            Runner::Pairs { encoder, of_mean } => {
                let pairs = texts.iter().map(|text| tokenizer.encode_pair(query, text)).collect::<Result<Vec<_>>>()?;
                let pairs: Vec<EncoderText<'_>> =
                    pairs.iter().map(|(tokens, segments)| EncoderText { tokens, segments }).collect();
                check(&pairs, self.context)?;
                let width = self.model.config().width;
                let mut states = Vec::with_capacity(pairs.len());
                let mut rest = &pairs[..];
                while !rest.is_empty() {
                    let (batch, later) = rest.split_at(fitting(rest, encoder.batch()));
                    let of_batch = encoder.run(batch, if *of_mean { Wanted::All } else { Wanted::First })?;
                    states.extend(of_batch.into_iter().map(|own| mean(&own, width)));
                    rest = later;
                }
                let scores = decoder.head.apply(self.model.executor(), states)?;
                Ok(scores.into_iter().filter_map(|score| score.first().copied()).collect())
            }
            Runner::Judge { session, before, after, answers } => {
                let mut scores = Vec::with_capacity(texts.len());
                for (index, text) in texts.iter().enumerate() {
                    let asked = format!("<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {text}");
                    let asked = tokenizer.encode_with(&asked, false, false)?;
                    let tokens = [before.as_slice(), &asked, after].concat();
                    if tokens.len() > self.context {
                        return Err(LlmError::TextLength { index, tokens: tokens.len(), most: self.context });
                    }
                    // The start is the same for all texts of a query.
                    let kept = session.keep_prefix(0, &tokens);
                    let [yes, no] = if decoder.head.0.is_empty() {
                        let logits = session.feed(0, &tokens[kept..], Logits::Last)?;
                        answers.map(|id| logits.get(id as usize).copied().unwrap_or(0.0))
                    } else {
                        let state = session.feed_hidden(0, &tokens[kept..], Logits::Last)?.to_vec();
                        let both = decoder.head.apply(self.model.executor(), vec![state])?.concat();
                        [both[0], both[1]]
                    };
                    scores.push(yes - no);
                }
                Ok(scores)
            }
        }
    }

    /// A score as a number from 0 to 1.
    pub fn probability(score: f32) -> f32 {
        1.0 / (1.0 + (-score).exp())
    }
}
