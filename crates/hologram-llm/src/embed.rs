//! Embeddings: a text as one vector, from the hidden states of a decoder.

use crate::error::Result;
use crate::files::ModelFiles;
use crate::model::Model;
use crate::session::{Logits, Session, SessionOptions};

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token, which has seen all others.
    Last,
    /// Their mean.
    Mean,
}

impl Pooling {
    /// What the model's file says (`pooling_type` of GGUF); most say nothing.
    pub fn of(model: &Model) -> Option<Pooling> {
        let Some(ModelFiles::Gguf(file)) = model.files() else { return None };
        let architecture = file.get_opt::<&str>("general.architecture").ok()??;
        // Llama.cpp's numbers.
        match file.get_opt::<u32>(&format!("{architecture}.pooling_type")).ok()?? {
            1 => Some(Pooling::Mean),
            3 => Some(Pooling::Last),
            _ => None,
        }
    }
}

/// Tokens of a step.
const STEP: usize = 256;

/// Computes embeddings, one text at a time, in a KV cache of its own.
pub struct Embedder {
    session: Session,
    width: usize,
}

impl Embedder {
    /// For texts of at most `context` tokens.
    ///
    /// # Errors
    /// When the device lacks the memory.
    pub fn new(model: &Model, context: usize) -> Result<Embedder> {
        let session = model.session(SessionOptions { context, batch: STEP, ..SessionOptions::default() })?;
        Ok(Embedder { session, width: model.config().width })
    }

    /// The vector of a text, of length 1 and as many numbers as the model is wide. `tokens` must not be empty.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, there are more than the context holds, or the device fails.
    pub fn embed(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>> {
        self.session.truncate(0, 0);
        let mut sum = vec![0.0f64; self.width];
        let mut steps = tokens.chunks(STEP).peekable();
        while let Some(step) = steps.next() {
            let outputs = match pooling {
                Pooling::Mean => Logits::All,
                Pooling::Last if steps.peek().is_none() => Logits::Last,
                Pooling::Last => Logits::None,
            };
            for state in self.session.feed_hidden(0, step, outputs)?.chunks(self.width.max(1)) {
                sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        // A mean and a sum have the same direction.
        Ok(normalised(sum.iter().copied()))
    }
}

/// The vector of length 1 in this direction; zeros stay zeros.
fn normalised(vector: impl Iterator<Item = f64> + Clone) -> Vec<f32> {
    let length = vector.clone().map(|v| v * v).sum::<f64>().sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    vector.map(|v| (v * scale) as f32).collect()
}

/// The first `n` numbers of an embedding, again with length 1.
pub fn shortened(embedding: &[f32], n: usize) -> Vec<f32> {
    normalised(embedding.iter().take(n).map(|v| f64::from(*v)))
}
