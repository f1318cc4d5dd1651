//! `/tokenize`, `/detokenize` and `/apply-template`, in the forms of vLLM and of llama.cpp.

use hologram_llm::{Conversation, Written};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::openai::messages;
use crate::options::Limits;
use crate::params::token;
use crate::routes::{Call, model_name};
use crate::served::Served;
use crate::talk;

async fn answer(call: Call, parse: fn(&Served, &Limits, Fields) -> Result<Value>) -> Result<Response<Body>> {
    let (value, _) = call.prepare(model_name, parse).await?;
    Ok(body::json(StatusCode::OK, &value))
}

/// The tokens of a text (`prompt`, or llama.cpp's `content`) or of a conversation (`messages`).
///
/// # Errors
/// Names the parameter at fault.
pub async fn tokenize(call: Call) -> Result<Response<Body>> {
    answer(call, |served, _, mut fields| match fields.text("content")? {
        Some(text) => tokenize_content(served, fields, &text),
        None => tokenize_prompt(served, fields),
    })
    .await
}

/// llama.cpp's form.
fn tokenize_content(served: &Served, mut fields: Fields, text: &str) -> Result<Value> {
    let special = fields.boolean("add_special")?.unwrap_or(false);
    let parse = fields.boolean("parse_special")?.unwrap_or(true);
    let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let tokenizer = served.tokenizer()?;
    let tokens = tokenizer.encode_with(text, special, parse);
    let tokens = tokens.map_err(|e| ApiError::of_model("content", e))?;
    if !pieces {
        return Ok(json!({ "tokens": tokens }));
    }
    let piece = |id: u32| {
        // Bytes where they are not text.
        let bytes = tokenizer.token_bytes(id);
        let piece = std::str::from_utf8(&bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    Ok(json!({ "tokens": tokens.into_iter().map(piece).collect::<Vec<_>>() }))
}

/// vLLM's form.
fn tokenize_prompt(served: &Served, mut fields: Fields) -> Result<Value> {
    let spell = fields.boolean("return_token_strs")?.unwrap_or(false);
    let special = fields.boolean("add_special_tokens")?;
    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let tokens = served.tokenizer()?.encode_with(&text, special.unwrap_or(true), true);
            tokens.map_err(|e| ApiError::of_model("prompt", e))?
        }
        None => {
            let text = conversation(served, &mut fields)?;
            served.encode_written(&text, special.unwrap_or(false), "messages")?
        }
    };
    fields.finish()?;
    let tokenizer = served.tokenizer()?;
    let spelled = spell.then(|| tokens.iter().map(|id| tokenizer.token_text(*id)).collect::<Vec<_>>());
    Ok(json!({ "count": tokens.len(), "max_model_len": served.context, "tokens": tokens, "token_strs": spelled }))
}

/// The text of tokens.
///
/// # Errors
/// Names the parameter at fault.
pub async fn detokenize(call: Call) -> Result<Response<Body>> {
    answer(call, |served, _, mut fields| {
        let Some(ids) = fields.list("tokens")? else { return Err(ApiError::invalid("tokens", "tokens are required")) };
        fields.finish()?;
        let ids = ids.iter().map(|id| token(id, "tokens", served.vocab())).collect::<Result<Vec<_>>>()?;
        let text = served.tokenizer()?.decode(&ids, true);
        // vLLM's name and llama.cpp's.
        Ok(json!({ "prompt": text, "content": text }))
    })
    .await
}

/// The text of a conversation.
///
/// # Errors
/// Names the parameter at fault.
pub async fn apply_template(call: Call) -> Result<Response<Body>> {
    answer(call, |served, _, mut fields| {
        let text = conversation(served, &mut fields)?;
        fields.finish()?;
        Ok(json!({ "prompt": text.text() }))
    })
    .await
}

fn conversation(served: &Served, fields: &mut Fields) -> Result<Written> {
    let messages = messages::parse(fields)?;
    let tools = fields.list("tools")?.unwrap_or_default();
    let variables = talk::variables(fields, served)?;
    let open = fields.boolean("continue_final_message")?.unwrap_or(false);
    let reply = fields.boolean("add_generation_prompt")?;
    let conversation = Conversation { messages, tools, variables };
    match (open, reply) {
        (true, Some(true)) => Err(ApiError::invalid(
            "continue_final_message",
            "the text ends with the last message, or where a reply begins (add_generation_prompt)",
        )),
        (true, _) => served.render_open(&conversation),
        (false, reply) => served.render(&conversation, reply.unwrap_or(true)),
    }
}
