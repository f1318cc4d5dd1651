//! `POST /embedding` and `/embeddings`: llama.cpp's own form, a list of vectors per text.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::options::Limits;
use crate::prompts::{Prompt, prompts};
use crate::routes::{Call, model_name};
use crate::served::Served;

/// The vectors of texts; with `--pooling none` one of each token, as it is.
///
/// # Errors
/// When the request is at fault, or the device fails.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let shared = call.shared.clone();
    let _running = shared.running()?;
    let ((value, texts), ready) = call.prepare(model_name, answer).await?;
    ready.model.metrics().embedded(&texts);
    Ok(body::json(StatusCode::OK, &value))
}

fn answer(served: &Served, limits: &Limits, mut fields: Fields) -> Result<(Value, Vec<Prompt>)> {
    let name = if fields.peek("content").is_some() { "content" } else { "input" };
    let texts = prompts(&mut fields, name, served, limits.sequences, false)?;
    fields.only("encoding_format", &["float".into()])?;
    fields.finish()?;
    if let Some(long) = texts.iter().find(|text| text.tokens.len() > served.context) {
        return Err(ApiError::context_exceeded(name, long.tokens.len(), served.context));
    }
    let vectors = texts.iter().enumerate().map(|(index, text)| {
        let vectors = served.embed(&text.tokens)?;
        Ok(json!({ "index": index, "embedding": vectors }))
    });
    let vectors = vectors.collect::<Result<Value>>()?;
    Ok((vectors, texts))
}
