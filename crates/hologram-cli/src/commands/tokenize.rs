//! `hologram tokenize`: splits a text into tokens.

use std::io::Write;

use hologram_llm::tokenizer::Tokenizer;
use serde_json::json;

use super::run::read_text;
use super::shipped;
use super::words::model_and_text;
use crate::args::TokenizeArgs;
use crate::status::status;

/// Runs the command. The tokens are the same as `run` uses, with BOS if the model expects it.
///
/// # Errors
/// When the model has no tokenizer, or the text is not UTF-8.
pub fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let (model, text) = model_and_text(&args.words, args.model.as_deref())?;
    let model = model.map(|model| shipped::path(&model)).transpose()?;
    // A folder's tokenizer does not need the weights.
    let tokenizer = match &model {
        Some(folder) if folder.is_dir() => Tokenizer::from_folder(folder)?,
        model => shipped::open(model.as_deref())?.tokenizer()?,
    };
    let text = match text {
        Some(text) => text,
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
