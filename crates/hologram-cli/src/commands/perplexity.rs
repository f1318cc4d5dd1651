//! `hologram perplexity`: how well a model predicts a text.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::{Context, ensure};
use hologram_llm::Perplexity;
use serde_json::json;

use super::run::beyond_trained;
use super::shipped;
use crate::args::{Kv, PerplexityArgs};
use crate::progress::Progress;
use crate::status::status;
use crate::text::{NAME, printable, read_text};

/// Tokens of a window unless the command line says otherwise, as in llama.cpp.
pub const DEFAULT_WINDOW: usize = 512;

/// Maximum bytes of a text.
const MAX_TEXT: u64 = 1 << 30;

/// Runs the command.
///
/// # Errors
/// When the text is not UTF-8 or shorter than a window, or the device or the model fails.
pub fn run(args: &PerplexityArgs) -> anyhow::Result<()> {
    let model = args.model.given();
    let (name, text) = read_text(&args.file, MAX_TEXT)?;
    let executor = args.device.open()?;
    let model =
        shipped::load(shipped::open(model)?, &args.lora, args.experts.options(args.device.threads()), &executor)?;
    let tokenizer = model.tokenizer()?;
    for note in tokenizer.notes() {
        status!("note: {note}\n");
    }
    let tokens = tokenizer.encode(&text, true)?;
    let size = args.ctx.map_or(DEFAULT_WINDOW.min(model.config().context), |ctx| ctx as usize);
    ensure!(
        tokens.len() >= size,
        "{name} has {} tokens, fewer than a window of {size}: use a longer text or a smaller --ctx",
        tokens.len()
    );
    if let Some(note) = beyond_trained(size, model.config().context) {
        status!("note: {note}\n");
    }
    if !args.json {
        let model = printable(&model.config().name, NAME);
        status!("{model} on {} ({})\n", executor.info().backend, executor.info().name);
    }

    let started = Instant::now();
    let mut progress = Progress::new("measuring", "tokens");
    let mut show = |done: usize, of: usize| {
        progress.at(done as u64, of as u64);
        ControlFlow::Continue(())
    };
    let measured = model.perplexity(&tokens, size, args.kv.map(Kv::format), &mut show)?;
    drop(progress);
    let Perplexity { windows, counted: count, mean, perplexity, error } =
        measured.context("the measurement ended early")?;
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
