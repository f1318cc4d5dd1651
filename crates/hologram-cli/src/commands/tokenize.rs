//! `hologram tokenize`: how a model cuts a text into tokens.

use std::io::Write;

use hologram_llm::tokenizer::Tokenizer;
use serde_json::json;

use super::run::read_text;
use super::shipped;
use crate::args::TokenizeArgs;
use crate::status::status;

/// Runs the command: the tokens are those that `run` gives to the model, with BOS where the model expects it.
///
/// # Errors
/// When the model has no tokenizer, or the text is not UTF-8.
pub fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    // A folder's tokenizer needs no weights beside it.
    let tokenizer = match args.model.is_dir() {
        true => Tokenizer::from_folder(&args.model)?,
        false => shipped::open(Some(&args.model))?.tokenizer()?,
    };
    let text = match &args.text {
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
