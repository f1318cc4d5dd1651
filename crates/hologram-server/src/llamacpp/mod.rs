//! llama.cpp's own forms of requests and answers.

pub mod completion;
pub mod count;
pub mod embedding;
pub mod extras;
pub mod infill;
pub mod metrics;
pub mod predict;
pub mod reply;
mod request;
mod settings;

use serde_json::{Value, json};

use crate::error::ApiError;

/// An error in llama.cpp's form.
pub fn error(error: &ApiError) -> Value {
    let kind = match (error.status.as_u16(), &error.context) {
        (_, Some(_)) => "exceed_context_size_error",
        (501, _) => "not_supported_error",
        (503, _) => "unavailable_error",
        _ => error.kind,
    };
    let message = match &error.context {
        Some(_) => format!("the request exceeds the available context size: {}", error.message),
        None => error.message.clone(),
    };
    let mut value = json!({ "code": error.status.as_u16(), "message": message, "type": kind, "param": error.param });
    if let Some([prompt, context]) = error.context.as_deref() {
        value["n_prompt_tokens"] = (*prompt).into();
        value["n_ctx"] = (*context).into();
    }
    json!({ "error": value })
}
