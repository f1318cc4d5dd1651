//! `POST /chat/completions/input_tokens`: the number of tokens of a conversation.

use hyper::{Response, StatusCode};
use serde_json::json;

use crate::body::{self, Body};
use crate::error::Result;
use crate::openai::chat;
use crate::routes::{Call, model_name};

/// Counts the tokens of a request of chat completions.
///
/// # Errors
/// When the request is at fault.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (chat, _) = call.prepare(model_name, chat::parse).await?;
    Ok(body::json(StatusCode::OK, &json!({ "object": "response.input_tokens", "input_tokens": chat.prompt_tokens() })))
}
