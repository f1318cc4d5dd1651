//! `hologram imatrix`: the importance of a model's columns for a text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use hologram_llm::LoadOptions;
use hologram_llm::gguf::GgufWriter;

use super::perplexity::DEFAULT_WINDOW;
use super::run::beyond_trained;
use super::shipped;
use crate::args::{ImatrixArgs, LoraArgs};
use crate::output;
use crate::progress::Progress;
use crate::status::{Interrupted, status};
use crate::text::{counted, read_text};

/// Maximum bytes of a text.
const MAX_TEXT: u64 = 1 << 30;

/// Runs the command.
///
/// # Errors
/// When the text is not UTF-8 or shorter than a window, the device or the model fails, or the result cannot be written.
pub fn run(args: &ImatrixArgs) -> anyhow::Result<()> {
    output::check_is_file(&args.out)?;
    let model = args.model.required()?;
    let (name, text) = read_text(&args.file, MAX_TEXT)?;
    let executor = args.device.open()?;
    let files = shipped::open(Some(model))?;
    output::check_not_read(&args.out, Some(&files), [args.file.as_path()])?;
    // Not after minutes of computing.
    GgufWriter::check(&args.out)?;
    let model = shipped::load(files, &LoraArgs::default(), LoadOptions::default(), &executor)?;
    let tokenizer = model.tokenizer()?;
    for note in tokenizer.notes() {
        status!("note: {note}\n");
    }
    let mut tokens = tokenizer.encode(&text, true)?;
    let size = args.ctx.map_or(DEFAULT_WINDOW.min(model.config().context), |ctx| ctx as usize);
    ensure!(
        tokens.len() >= size,
        "{name} has {}, fewer than a window of {size}: use a longer text or a smaller --ctx",
        counted(tokens.len(), "token")
    );
    if let Some(windows) = args.chunks {
        tokens.truncate((windows as usize).saturating_mul(size));
    }
    if let Some(note) = beyond_trained(size, model.config().context) {
        status!("note: {note}\n");
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    let mut progress = Progress::new("measuring", "tokens");
    let sums = model.importance(&tokens, size, bos, &mut |done, of| {
        progress.at(done as u64, of as u64);
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    drop(progress);
    let Some(sums) = sums else { return Err(Interrupted.into()) };
    sums.write(&args.out, &name)?;
    let windows = counted(tokens.len() / size, "window");
    status!("{}: {} matrices, {windows} of {size} tokens\n", args.out.display(), sums.len());
    let unused = sums.unused_experts();
    if unused > 0 {
        status!("note: {unused} matrices of experts were not used: their columns count alike; use a longer text\n");
    }
    Ok(())
}
