//! `hologram tokenize`: splits a text into tokens.

use std::io::Write;

use hologram_llm::tokenizer::Tokenizer;
use serde_json::json;

use super::run::read_text;
use super::shipped;
use crate::args::{TokenizeArgs, usage};
use crate::status::status;
use crate::text::shown;

/// Runs the command. The tokens are the same as `run` uses, with BOS if the model expects it.
///
/// # Errors
/// When the model has no tokenizer, or the text is not UTF-8.
pub fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let (model, text) = match (&args.model, &args.words[..]) {
        (Some(model), []) => (model.clone(), None),
        (Some(model), [text]) => (model.clone(), Some(text)),
        (None, [model]) => (model.into(), None),
        (None, [model, text]) => (model.into(), Some(text)),
        (None, []) => return usage("give a model: a .gguf file, a folder with tokenizer.json, or hf:OWNER/NAME"),
        (_, [.., last]) => return usage(format!("unexpected argument {}; put the text in quotes", shown(last))),
    };
    let model = shipped::path(&model)?;
    // A folder's tokenizer does not need the weights.
    let tokenizer = match model.is_dir() {
        true => Tokenizer::from_folder(&model)?,
        false => shipped::open(Some(&model))?.tokenizer()?,
    };
    let text = match text {
        Some(text) => text.clone(),
        None => read_text("text")?,
    };
    for note in tokenizer.notes() {
        status!("note: {note}\n");
    }
    let ids = tokenizer.encode(&text, true)?;
    let pieces: Vec<String> = ids.iter().map(|id| tokenizer.token_text(*id).unwrap_or_default().into_owned()).collect();
    let mut out = std::io::stdout().lock();
    if args.json {
        return Ok(writeln!(out, "{}", json!({ "ids": ids, "pieces": pieces }))?);
    }
    for (id, piece) in ids.iter().zip(pieces) {
        writeln!(out, "{id:>8}  {piece:?}")?;
    }
    Ok(())
}
