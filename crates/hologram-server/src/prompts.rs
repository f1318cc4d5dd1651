//! Prompts in the forms of OpenAI and of llama.cpp.

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::openai::messages;
use crate::params::token;
use crate::served::Served;

/// A text, or tokens that were given instead.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Its tokens, at least one.
    pub tokens: Vec<u32>,
}

/// Reads a member with one or several prompts: a text, tokens, texts among tokens, an object with the text as
/// `prompt_string` or in parts as `content`; or a list of these. `blank`: whether a text may be empty, which then
/// begins with BOS alone.
///
/// # Errors
/// Names the prompt at fault.
pub fn prompts(fields: &mut Fields, name: &str, served: &Served, max: usize, blank: bool) -> Result<Vec<Prompt>> {
    let Some(value) = fields.take(name) else { return Err(ApiError::invalid(name, format!("{name} is required"))) };
    let list = match value {
        // A list with numbers is one prompt.
        Value::Array(list) if !list.is_empty() && !list.iter().any(Value::is_number) => list,
        one => return Ok(vec![prompt(one, served, name, blank)?]),
    };
    if list.len() > max {
        return Err(ApiError::invalid(name, format!("at most {max} texts are supported")));
    }
    list.into_iter().enumerate().map(|(i, value)| prompt(value, served, &format!("{name}[{i}]"), blank)).collect()
}

fn prompt(value: Value, served: &Served, name: &str, blank: bool) -> Result<Prompt> {
    let empty = || Err(ApiError::invalid(name, format!("{name} must not be empty")));
    match value {
        Value::String(text) if !blank && text.trim().is_empty() => empty(),
        Value::String(text) => Ok(Prompt { tokens: served.encode(&text, name)?, text }),
        Value::Array(pieces) if pieces.is_empty() => empty(),
        Value::Array(pieces) => {
            let tokens = mixed(&pieces, served, name)?;
            Ok(Prompt { text: served.tokenizer()?.decode(&tokens, true), tokens })
        }
        Value::Object(_) => object(value, served, name, blank),
        other => Err(wrong(name, "a string or a list of tokens", &other)),
    }
}

/// The tokens of texts among tokens. A text at the beginning begins with BOS if the model expects it.
///
/// # Errors
/// Names the piece at fault.
pub fn mixed(pieces: &[Value], served: &Served, name: &str) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        match piece {
            Value::String(text) if i == 0 => tokens.extend(served.encode(text, name)?),
            Value::String(text) => tokens.extend(served.encode_part(text, true, name)?),
            id => tokens.push(token(id, name, served.vocab())?),
        }
    }
    Ok(tokens)
}

fn object(value: Value, served: &Served, name: &str, blank: bool) -> Result<Prompt> {
    let mut fields = Fields::of(value, name)?;
    let text = match (fields.text("prompt_string")?, fields.list("content")?) {
        (Some(text), None) => text,
        (None, Some(parts)) => messages::text(parts.into(), &fields.name("content"))?,
        _ => {
            let message = format!("{name} has either a prompt_string or a content");
            return Err(ApiError::invalid(name, message));
        }
    };
    fields.finish()?;
    prompt(text.into(), served, name, blank)
}
