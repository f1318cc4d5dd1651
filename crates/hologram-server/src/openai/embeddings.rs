//! `POST /v1/embeddings`.

use hologram_llm::shortened;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::options::Limits;
use crate::prompts::{Prompt, prompts};
use crate::routes::{Call, model_name};
use crate::served::Served;

/// The vectors of texts. They are computed beside the engine, one after the other.
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
    if !served.pools() {
        let message = "with --pooling none a text has no vector of its own: its tokens' are at /embeddings";
        return Err(ApiError::invalid("model", message));
    }
    let width = served.engine.model().config().width;
    let texts = prompts(&mut fields, "input", served, limits.sequences, false)?;
    let base64 = fields.one_of("encoding_format", &["float", "base64"])? == Some("base64");
    let dimensions = fields.integer("dimensions", 1..=width as i64)?.map(|n| n as usize);
    fields.ignore(&["user"]);
    fields.finish()?;
    let tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
    if let Some(long) = texts.iter().find(|text| text.tokens.len() > served.context) {
        return Err(ApiError::context_exceeded("input", long.tokens.len(), served.context));
    }
    let mut data = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let mut vector = served.embed(&text.tokens)?.pop().unwrap_or_default();
        if let Some(n) = dimensions.filter(|n| *n < width) {
            vector = shortened(&vector, n);
        }
        let embedding = if base64 { encode(&vector).into() } else { json!(vector) };
        data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
    }
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok((json!({ "object": "list", "data": data, "model": served.names[0], "usage": usage }), texts))
}

/// The little-endian bytes of the numbers in base64.
fn encode(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63] as char;
            text.push(if i <= three.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn vectors_in_base64() {
        let cases =
            [(&[][..], ""), (&[1.0], "AACAPw=="), (&[1.0, -2.0], "AACAPwAAAMA="), (&[0.5; 3], "AAAAPwAAAD8AAAA/")];
        for (vector, want) in cases {
            assert_eq!(encode(vector), want);
        }
    }
}
