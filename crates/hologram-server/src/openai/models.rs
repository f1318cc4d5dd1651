//! `GET /v1/models` and `GET /v1/models/{model}`.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::error::Result;
use crate::registry::{ANY_NAME, Summary};
use crate::routes::{Call, unescaped};

/// All names of all models, each model's own first.
///
/// # Errors
/// 503 while loading.
pub fn list(call: &Call) -> Result<Response<Body>> {
    let all = call.shared.models()?.list();
    let of = |summary: Summary| {
        let names = summary.names.iter().filter(|name| **name != ANY_NAME);
        names.map(|name| model(&summary, name)).collect::<Vec<_>>()
    };
    let models: Vec<Value> = all.flat_map(of).collect();
    Ok(body::json(StatusCode::OK, &json!({ "object": "list", "data": models })))
}

/// One name.
///
/// # Errors
/// 404 for an unknown one, 503 while loading.
pub fn get(call: &Call, name: &str) -> Result<Response<Body>> {
    // Names such as owner/name may be escaped.
    let name = unescaped(name);
    let summary = call.shared.models()?.find(Some(&name))?;
    Ok(body::json(StatusCode::OK, &model(&summary, &name)))
}

fn model(summary: &Summary, name: &str) -> Value {
    let mut model = json!({
        "id": name,
        "object": "model",
        "created": summary.created,
        "owned_by": "hologram",
        "root": summary.names[0],
        // llama.cpp's form.
        "status": { "value": summary.status },
    });
    if let Some(served) = &summary.loaded {
        model["max_model_len"] = served.context.into();
    }
    model
}
