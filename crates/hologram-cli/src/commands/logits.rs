//! `hologram logits`: the logits of given tokens, for comparison with other engines.

use hologram_core::npy::{self, Array};
use hologram_llm::{Logits, SessionOptions};

use super::run::beyond_trained;
use super::shipped;
use crate::args::LogitsArgs;
use crate::output;
use crate::status::status;

/// Tokens per step, which bounds the memory of a step's logits.
const BATCH: usize = 64;

/// Runs the command.
///
/// # Errors
/// When a token is not in the vocabulary, or the device, the model or the output file fails.
pub fn run(args: &LogitsArgs) -> anyhow::Result<()> {
    let model = args.model.required()?;
    let executor = args.device.open()?;
    let files = shipped::open(Some(model))?;
    output::check_not_read(&args.out, Some(&files), args.lora.paths())?;
    let model = shipped::load(files, &args.lora, args.experts.options(args.device.threads()), &executor)?;
    if let Some(note) = beyond_trained(args.tokens.len(), model.config().context) {
        status!("note: {note}\n");
    }
    let options = SessionOptions { context: args.tokens.len(), batch: Some(BATCH), ..SessionOptions::default() };
    let mut session = model.session(options)?;
    let logits = session.feed(0, &args.tokens, Logits::All)?;
    let shape = vec![args.tokens.len(), model.config().vocab];
    let array = Array::from_f32(shape.clone(), logits);
    output::save(&args.out, &npy::to_bytes(&array), &format!("float32 {shape:?}"))?;
    let broken = logits.iter().filter(|l| !l.is_finite()).count();
    if broken > 0 {
        status!("note: {broken} logits are NaN or infinite\n");
    }
    Ok(())
}
