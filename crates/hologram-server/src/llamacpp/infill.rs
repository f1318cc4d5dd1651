//! `POST /infill`: the text between a beginning and an end, by models that learned to fill gaps.

use hyper::Response;
use serde_json::Value;

use super::completion::Completion;
use crate::body::Body;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::options::Limits;
use crate::prompts::mixed;
use crate::routes::{Call, model_name};
use crate::served::Served;

/// How vocabularies spell the tokens before the beginning, before the end and before the gap.
const MARKS: [[&str; 3]; 8] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<|prefix|>", "<|suffix|>", "<|middle|>"],
];
/// The token before a repository's name.
const REPOSITORY: [&str; 6] = ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<repo_name>"];
/// The token before a file's name.
const FILE: [&str; 3] = ["<|file_sep|>", "<file_sep>", "<filename>"];
/// Before a file where the vocabulary has no token for it, as llama.cpp writes.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// The files of one request.
const MAX_FILES: usize = 1024;

/// Answers a request.
///
/// # Errors
/// When it is at fault, the model fills no gaps, or the engine does not take the request.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (completion, ready) = call.prepare(model_name, parse).await?;
    completion.answer(ready).await
}

fn parse(served: &Served, limits: &Limits, mut fields: Fields) -> Result<Completion> {
    served.check_generates()?;
    let (before, after) = (part(&mut fields, "input_prefix")?, part(&mut fields, "input_suffix")?);
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let files = files(&mut fields)?;
    let most = fields.peek("n_predict").and_then(Value::as_u64).map_or(0, |n| n as usize);
    let prompt = gap(served, &before, &after, &prompt, &files, most)?;
    Completion::new(fields, served, limits, vec![prompt])
}

/// The beginning or the end: a text, or texts among tokens.
fn part(fields: &mut Fields, name: &str) -> Result<Vec<Value>> {
    match fields.take(name) {
        None => Err(ApiError::invalid(name, format!("{name} is required"))),
        Some(Value::Array(pieces)) => Ok(pieces),
        Some(text @ Value::String(_)) => Ok(vec![text]),
        Some(other) => Err(wrong(name, "a string or a list of tokens", &other)),
    }
}

/// Other files: their names and texts.
fn files(fields: &mut Fields) -> Result<Vec<(String, String)>> {
    let list = fields.list("input_extra")?.unwrap_or_default();
    if list.len() > MAX_FILES {
        return Err(ApiError::invalid("input_extra", format!("at most {MAX_FILES} files are supported")));
    }
    let file = |(i, value)| {
        let mut file = Fields::of(value, &format!("input_extra[{i}]"))?;
        let (name, text) = (file.text("filename")?, file.text("text")?);
        let Some(text) = text else { return Err(ApiError::invalid(file.name("text"), "a file has a text")) };
        // llama.vim's.
        file.number("time", 0.0..=f64::MAX)?;
        file.finish()?;
        Ok((name.unwrap_or_else(|| "tmp".into()), text))
    };
    list.into_iter().enumerate().map(file).collect()
}

/// The prompt: other files, the beginning, the end, and what the gap begins with, cut to the context: first of the
/// other files, then of the beginning's and the end's far ends.
fn gap(
    served: &Served,
    before: &[Value],
    after: &[Value],
    prompt: &str,
    files: &[(String, String)],
    most: usize,
) -> Result<Vec<u32>> {
    let tokenizer = served.tokenizer()?;
    let marks = MARKS.iter().find_map(|[prefix, suffix, middle]| {
        Some([tokenizer.token_id(prefix)?, tokenizer.token_id(suffix)?, tokenizer.token_id(middle)?])
    });
    let Some([prefix, suffix, middle]) = marks else {
        return Err(ApiError::not_implemented("the model fills no gaps: its vocabulary has no tokens for that"));
    };
    let token = |names: &[&str]| names.iter().find_map(|name| tokenizer.token_id(name));
    let text = |text: &str, name: &str| served.encode_part(text, false, name);
    let pieces = |pieces: &[Value], name: &str| match pieces {
        [Value::String(one)] => served.encode_part(one, false, name),
        // A token first, so that no text begins with BOS.
        pieces => Ok(mixed(&[&[prefix.into()], pieces].concat(), served, name)?.split_off(1)),
    };
    let (mut before, mut after) = (pieces(before, "input_prefix")?, pieces(after, "input_suffix")?);
    let prompt = text(prompt, "prompt")?;
    // A long reply must leave room for what it is about.
    let most = most.clamp(1, (served.context / 2).max(1));
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    // Three marks and BOS.
    let room = served.context.saturating_sub(most + prompt.len() + 4);
    after.truncate(room / 4);
    before.drain(..before.len().saturating_sub(room - after.len()));

    let mut extra = Vec::new();
    if !files.is_empty() {
        if let Some(repository) = token(&REPOSITORY) {
            extra.push(repository);
            extra.extend(text("myproject\n", "input_extra")?);
        }
        let file = token(&FILE);
        for (name, content) in files {
            match file {
                Some(file) => {
                    extra.push(file);
                    extra.extend(text(&format!("{name}\n"), "input_extra")?);
                }
                None => extra.extend(text(SNIPPET, "input_extra")?),
            }
            extra.extend(text(content, "input_extra")?);
        }
        if let Some(file) = file {
            extra.push(file);
            extra.extend(text("filename\n", "input_extra")?);
        }
        extra.drain(..extra.len().saturating_sub(room - before.len() - after.len()));
    }
    let begin = [&bos.map_or(vec![], |bos| vec![bos])[..], &extra, &[prefix], &before, &[suffix], &after, &[middle]];
    Ok([&begin.concat()[..], &prompt].concat())
}
