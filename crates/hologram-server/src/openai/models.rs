//! `GET /v1/models` and `GET /v1/models/{model}`.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::routes::Call;
use crate::served::Served;

/// All names of the model, its own first.
///
/// # Errors
/// 503 while loading.
pub fn list(call: &Call) -> Result<Response<Body>> {
    let served = call.shared.served()?;
    let models: Vec<Value> = served.names.iter().map(|name| model(served, name)).collect();
    Ok(body::json(StatusCode::OK, &json!({ "object": "list", "data": models })))
}

/// One name.
///
/// # Errors
/// 404 for an unknown one, 503 while loading.
pub fn get(call: &Call, name: &str) -> Result<Response<Body>> {
    let served = call.shared.served()?;
    // Names such as owner/name may be escaped.
    let name = name.replace("%2F", "/").replace("%2f", "/");
    match served.names.iter().find(|n| **n == name) {
        Some(name) => Ok(body::json(StatusCode::OK, &model(served, name))),
        None => Err(ApiError::no_model(&name, &served.names[0])),
    }
}

fn model(served: &Served, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "hologram",
        "root": served.names[0],
        "max_model_len": served.context,
    })
}
