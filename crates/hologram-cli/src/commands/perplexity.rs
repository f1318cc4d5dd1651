//! `hologram perplexity`: how well a model predicts a text.
//!
//! The method is llama.cpp's: the tokens are split into windows without overlap; each is computed separately, with the
//! first token replaced by BOS if the model expects one; the tokens after the middle of each window count.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use hologram_llm::{Logits, SessionOptions};
use serde_json::json;

use super::run::beyond_trained;
use super::shipped;
use crate::args::{Kv, PerplexityArgs};
use crate::progress::Progress;
use crate::status::status;
use crate::text::{NAME, printable, read_file, read_input};

/// Maximum bytes of a text.
const MAX_TEXT: u64 = 1 << 30;

/// Tokens whose logits are read at once.
const STEP: usize = 64;

/// Runs the command.
///
/// # Errors
/// When the text is not UTF-8 or shorter than a window, or the device or the model fails.
pub fn run(args: &PerplexityArgs) -> anyhow::Result<()> {
    let model = args.model.required()?;
    let (name, bytes) = match args.file.as_path() {
        path if path == Path::new("-") => ("standard input".to_string(), read_input(path, MAX_TEXT)?),
        path => (path.display().to_string(), read_file(path, MAX_TEXT)?),
    };
    let text = String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))?;
    let executor = args.device.open()?;
    let model = shipped::load(shipped::open(Some(model))?, &executor)?;
    let tokenizer = model.tokenizer()?;
    for note in tokenizer.notes() {
        status!("note: {note}\n");
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut tokens = tokenizer.encode(&text, true)?;
    let size = args.ctx as usize;
    ensure!(
        tokens.len() >= size,
        "{name} has {} tokens, fewer than a window of {size}: use a longer text or a smaller --ctx",
        tokens.len()
    );
    if let Some(note) = beyond_trained(size, model.config().context) {
        status!("note: {note}\n");
    }
    let options = SessionOptions { context: size, kv: args.kv.map(Kv::format), ..SessionOptions::default() };
    let mut session = model.session(options)?;
    let vocab = session.vocab();
    if !args.json {
        let model = printable(&model.config().name, NAME);
        status!("{model} on {} ({})\n", executor.info().backend, executor.info().name);
    }

    let started = Instant::now();
    let mut progress = Progress::new("measuring", "tokens");
    let (windows, middle) = (tokens.len() / size, size / 2);
    let (mut sum, mut squares, mut count) = (0.0f64, 0.0f64, 0usize);
    for (n, window) in tokens.chunks_exact_mut(size).enumerate() {
        if let Some(bos) = bos {
            window[0] = bos;
        }
        session.truncate(0, 0);
        session.feed(0, &window[..middle], Logits::None)?;
        // Row i predicts token i + 1; the last row predicts a token outside the window.
        for start in (middle..size - 1).step_by(STEP) {
            let end = (start + STEP).min(size - 1);
            progress.at((n * size + start) as u64, (windows * size) as u64);
            let logits = session.feed(0, &window[start..end], Logits::All)?;
            let costs = costs(logits, vocab, &window[start + 1..=end]);
            for cost in costs {
                ensure!(cost.is_finite(), "the logits of window {} contain NaN or infinity", n + 1);
                sum += cost;
                squares += cost * cost;
                count += 1;
            }
        }
    }
    drop(progress);
    let mean = sum / count as f64;
    let perplexity = mean.exp();
    // The standard error of the mean, propagated to the perplexity.
    let variance = (squares / count as f64 - mean * mean).max(0.0);
    let error = perplexity * (variance / (count as f64 - 1.0).max(1.0)).sqrt();
    let seconds = started.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    if args.json {
        let object = json!({
            "model": model.config().name,
            "device": executor.info().backend.to_string(),
            "file": name,
            "tokens": tokens.len(),
            "ctx": size,
            "windows": windows,
            "counted_tokens": count,
            "nll": mean,
            "perplexity": perplexity,
            "error": error,
            "seconds": seconds,
        });
        return Ok(writeln!(out, "{object}")?);
    }
    writeln!(out, "perplexity {perplexity:.4} ± {error:.4}")?;
    let rate = (windows * size) as f64 / seconds.max(1e-9);
    status!("{count} tokens counted in {windows} windows of {size}; {rate:.1} tokens/s\n");
    Ok(())
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
