//! The server's state. None of these routes waits for the engine.

use hyper::{Response, StatusCode};
use serde_json::json;

use crate::body::{self, Body};
use crate::error::Result;
use crate::routes::{Call, status};

/// Alive, also while loading and draining.
pub fn health() -> Response<Body> {
    body::json(StatusCode::OK, &status("ok"))
}

/// Whether requests are taken.
///
/// # Errors
/// 503 while loading and draining.
pub fn ready(call: &Call) -> Result<Response<Body>> {
    call.shared.served()?;
    Ok(body::json(StatusCode::OK, &status("ready")))
}

/// The version.
pub fn version() -> Response<Body> {
    body::json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// The server, its model and its engine.
///
/// # Errors
/// 503 while loading.
pub fn server(call: &Call) -> Result<Response<Body>> {
    let served = call.shared.loaded()?;
    let (options, stats) = (served.engine.options(), served.engine.stats());
    let model = served.engine.model();
    let device = model.executor().info();
    let value = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": { "names": served.names, "architecture": model.config().architecture.names.first(), "vocab": served.vocab() },
        "device": { "backend": device.backend.to_string(), "name": device.name },
        "engine": {
            "context": options.context,
            "max_sequences": options.max_sequences,
            "step_tokens": options.step_tokens,
            "max_waiting": options.max_waiting,
            "deterministic": options.deterministic,
            "prefix_cache": options.prefix_cache,
            "block_tokens": stats.block_tokens,
            "blocks": stats.blocks_total,
        },
    });
    Ok(body::json(StatusCode::OK, &value))
}

/// The model's properties, in llama.cpp's form.
///
/// # Errors
/// 503 while loading.
pub fn props(call: &Call) -> Result<Response<Body>> {
    let served = call.shared.loaded()?;
    let tokenizer = served.tokenizer()?;
    let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    let value = json!({
        "default_generation_settings": { "n_ctx": served.context },
        "total_slots": served.engine.options().max_sequences,
        "model_alias": served.names[0],
        "chat_template": served.template().map(|template| template.source()).ok(),
        "bos_token": spelled(tokenizer.bos()),
        "eos_token": spelled(tokenizer.eos()),
        "build_info": concat!("hologram ", env!("CARGO_PKG_VERSION")),
    });
    Ok(body::json(StatusCode::OK, &value))
}

/// Places for texts, in llama.cpp's form. A text has no fixed place: the first ones are those in use.
///
/// # Errors
/// 503 while loading.
pub fn slots(call: &Call) -> Result<Response<Body>> {
    let served = call.shared.loaded()?;
    let running = served.engine.stats().running;
    let slot = |id: usize| json!({ "id": id, "n_ctx": served.context, "is_processing": id < running });
    let slots: Vec<_> = (0..served.engine.options().max_sequences).map(slot).collect();
    Ok(body::json(StatusCode::OK, &slots.into()))
}
