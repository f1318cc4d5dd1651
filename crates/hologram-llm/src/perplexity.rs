//! Perplexity: how well a model predicts a text.
//!
//! The method is llama.cpp's: the tokens are split into windows without overlap; each is computed separately, with the
//! first token replaced by BOS if the model expects one; the tokens after the middle of each window count.

use std::ops::ControlFlow;

use hologram_backends::DType;

use crate::error::{LlmError, Result};
use crate::model::Model;
use crate::session::{Logits, SessionOptions};

/// Tokens whose logits are read at once.
const STEP: usize = 64;

/// What [`Model::perplexity`] measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// The number of windows.
    pub windows: usize,
    /// The number of tokens that count.
    pub counted: usize,
    /// The mean of their negative log-probabilities, in nats.
    pub mean: f64,
    /// e to the power of the mean.
    pub perplexity: f64,
    /// The standard error of the mean, propagated to the perplexity.
    pub error: f64,
}

/// Checks the length of windows over a text of `n` tokens.
///
/// # Errors
/// When a window has fewer than 2 tokens, or more than the text.
pub(crate) fn check_window(context: usize, n: usize) -> Result<()> {
    if context < 2 || n < context {
        let reason = format!("is {context}, but must be from 2 to {n}, the number of the text's tokens");
        return Err(LlmError::Option { option: "ctx", reason });
    }
    Ok(())
}

impl Model {
    /// The perplexity of a text (its tokens) in windows of `context` tokens. `progress` gets the tokens done and those
    /// of all windows; it can end the measurement, which then gives `None`.
    ///
    /// # Errors
    /// When the text is shorter than a window, the logits are invalid, or the device fails.
    pub fn perplexity(
        &self,
        tokens: &[u32],
        context: usize,
        kv: Option<DType>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<Perplexity>> {
        check_window(context, tokens.len())?;
        let bos = self.tokenizer()?;
        let bos = bos.bos().filter(|_| bos.adds_bos());
        let mut session = self.session(SessionOptions { context, kv, ..SessionOptions::default() })?;
        let vocab = session.vocab();
        // Of two tokens the second counts.
        let (windows, middle) = (tokens.len() / context, (context / 2).min(context - 2));
        let (mut sum, mut squares, mut counted) = (0.0f64, 0.0f64, 0usize);
        for (n, window) in tokens.chunks_exact(context).enumerate() {
            let mut window = window.to_vec();
            if let Some(bos) = bos {
                window[0] = bos;
            }
            session.truncate(0, 0);
            if middle > 0 {
                session.feed(0, &window[..middle], Logits::None)?;
            }
            // Row i predicts token i + 1; the last row predicts a token outside the window.
            for start in (middle..context - 1).step_by(STEP) {
                let end = (start + STEP).min(context - 1);
                if progress(n * context + start, windows * context).is_break() {
                    return Ok(None);
                }
                let logits = session.feed(0, &window[start..end], Logits::All)?;
                for cost in costs(logits, vocab, &window[start + 1..=end]) {
                    if !cost.is_finite() {
                        let reason = format!("those of window {} contain NaN or infinity", n + 1);
                        return Err(LlmError::Logits { position: (n * context + start) as u64, reason });
                    }
                    sum += cost;
                    squares += cost * cost;
                    counted += 1;
                }
            }
        }
        let mean = sum / counted as f64;
        let perplexity = mean.exp();
        let variance = (squares / counted as f64 - mean * mean).max(0.0);
        let error = perplexity * (variance / (counted as f64 - 1.0).max(1.0)).sqrt();
        Ok(Some(Perplexity { windows, counted, mean, perplexity, error }))
    }
}

/// −ln of each token's probability by its row of logits, on all threads of the machine.
fn costs(logits: &[f32], vocab: usize, targets: &[u32]) -> Vec<f64> {
    let cost = |row: &[f32], target: u32| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = row.iter().map(|l| f64::from((l - max).exp())).sum();
        let own = row.get(target as usize).copied().unwrap_or(f32::NEG_INFINITY);
        total.ln() - f64::from(own - max)
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let share = targets.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = logits
            .chunks(share * vocab)
            .zip(targets.chunks(share))
            .map(|(rows, targets)| {
                scope.spawn(move || rows.chunks(vocab).zip(targets).map(|(row, t)| cost(row, *t)).collect::<Vec<f64>>())
            })
            .collect();
        // A thread never panics; if it did, its result would be NaN.
        parts.into_iter().flat_map(|p| p.join().unwrap_or_else(|_| vec![f64::NAN])).collect()
    })
}
