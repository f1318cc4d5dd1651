//! Anthropic's interface: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod request;
mod stream;

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use hologram_llm::Finish;
use hologram_llm::engine::Usage;

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::job::{self, Text};
use crate::reply::{Delta, Splitter, drop_cut};
use crate::routes::{Call, model_name};
use crate::stream::sse;
use crate::talk::Talk;

/// An error in Anthropic's form.
pub fn error(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        400..=499 => "invalid_request_error",
        503 => "overloaded_error",
        _ => "api_error",
    };
    let message = match &error.param {
        Some(param) if !error.message.contains(param.as_str()) => format!("{param}: {}", error.message),
        _ => error.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

/// Answers a request.
///
/// # Errors
/// When it is at fault, or the engine does not take it.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (request::Messages { talk, streams }, ready) = call.prepare(model_name, request::parse).await?;
    let Talk { params, prompt, splitter, names } = talk;
    let prompt_tokens = prompt.len();
    let (id, model) = (ready.shared.new_id("msg_"), ready.model.names[0].clone());
    let requests = vec![ready.request(&params, prompt, 0)];
    let replies = job::submit(ready, requests, names).await?;
    if streams {
        return Ok(sse(replies, stream::Events::new(id, model, splitter, prompt_tokens)));
    }
    let text = replies.collect().await?.pop().unwrap_or_default();
    let (content, has_calls) = content(&text, splitter);
    let value = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason(text.reason, text.stop.as_deref(), has_calls),
        "stop_sequence": text.stop,
        "usage": usage(text.usage),
    });
    Ok(body::json(StatusCode::OK, &value))
}

/// The number of tokens of a conversation.
///
/// # Errors
/// When the request is at fault.
pub async fn count(call: Call) -> Result<Response<Body>> {
    let (tokens, _) = call.prepare(model_name, request::count).await?;
    Ok(body::json(StatusCode::OK, &json!({ "input_tokens": tokens })))
}

/// Why a reply ended.
fn stop_reason(reason: Option<Finish>, stop: Option<&str>, has_calls: bool) -> &'static str {
    match reason {
        Some(Finish::EndOfText | Finish::Stop) if has_calls => "tool_use",
        Some(Finish::Stop) if stop.is_some() => "stop_sequence",
        Some(Finish::EndOfText | Finish::Stop) => "end_turn",
        _ => "max_tokens",
    }
}

/// Numbers of tokens. Those from the cache count apart.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated_tokens,
    })
}

/// The blocks of a complete reply, and whether it has calls.
fn content(text: &Text, mut splitter: Splitter) -> (Vec<Value>, bool) {
    let (mut thought, mut answer, mut calls) = (String::new(), String::new(), Vec::<(String, String, String)>::new());
    for delta in splitter.push(&text.text).into_iter().chain(splitter.finish(text.reason)) {
        match delta {
            Delta::Thought(piece) => thought += &piece,
            Delta::Answer(piece) => answer += &piece,
            Delta::Call { id, name, .. } => calls.push((id, name, String::new())),
            Delta::Arguments { index, text } => calls[index].2 += &text,
        }
    }
    drop_cut(&mut calls, text.reason, |(_, _, arguments)| arguments);
    let has_calls = !calls.is_empty();
    let mut blocks = Vec::new();
    if !thought.is_empty() {
        blocks.push(json!({ "type": "thinking", "thinking": thought, "signature": "" }));
    }
    if !answer.is_empty() || !has_calls {
        blocks.push(json!({ "type": "text", "text": answer }));
    }
    blocks.extend(calls.into_iter().map(|(id, name, arguments)| {
        // What the model wrote need not be JSON.
        let input = serde_json::from_str::<Value>(&arguments).unwrap_or_else(|_| json!({}));
        json!({ "type": "tool_use", "id": id, "name": name, "input": input })
    }));
    (blocks, has_calls)
}
