//! The server's state. None of these routes waits for an engine; `/props` may wait for its model to load.

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::body::{self, Body};
use crate::error::Result;
use crate::routes::{Call, status};
use crate::served::Served;

/// Alive, also while loading and draining.
pub fn health() -> Response<Body> {
    body::json(StatusCode::OK, &status("ok"))
}

/// Whether requests are taken.
///
/// # Errors
/// 503 while loading and draining.
pub fn ready(call: &Call) -> Result<Response<Body>> {
    call.shared.models()?.check()?;
    Ok(body::json(StatusCode::OK, &status("ready")))
}

/// The version.
pub fn version() -> Response<Body> {
    body::json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// The number of requests that are answered.
pub fn load(call: &Call) -> Response<Body> {
    body::json(StatusCode::OK, &json!({ "server_load": call.shared.load() }))
}

/// The server, its models, and the engine of the one that `?model=` names, else of the first.
///
/// # Errors
/// 503 while loading, 404 for an unknown model.
pub fn server(call: &Call) -> Result<Response<Body>> {
    let models = call.shared.all_models()?;
    let all: Vec<Value> = models.list().map(|m| json!({ "names": m.names, "status": m.status })).collect();
    let mut value = json!({ "version": env!("CARGO_PKG_VERSION"), "models": all });
    if let (Some(served), Some(map)) = (models.find(call.model_of_query().as_deref())?.loaded, value.as_object_mut()) {
        map.extend(of_loaded(&served));
    }
    Ok(body::json(StatusCode::OK, &value))
}

/// A loaded model, its device and its engine.
fn of_loaded(served: &Served) -> Map<String, Value> {
    let (options, stats) = (served.engine.options(), served.engine.stats());
    let model = served.engine.model();
    let device = model.executor().info();
    let value = json!({
        "model": { "names": served.names, "architecture": model.config().architecture.names.first(), "vocab": served.vocab() },
        "device": { "backend": device.backend.to_string(), "name": device.name },
        "engine": {
            "context": options.context,
            "max_sequences": options.max_sequences,
            "step_tokens": options.step_tokens,
            "max_waiting": options.max_waiting,
            "deterministic": options.deterministic,
            "overlap": options.overlap,
            "prefix_cache": options.prefix_cache,
            "block_tokens": stats.block_tokens,
            "blocks": stats.blocks_total,
        },
    });
    if let Value::Object(map) = value { map } else { Map::new() }
}

/// The properties of the model that `?model=` names, else of the first, in llama.cpp's form. Loads it if need be.
///
/// # Errors
/// 503 while loading, 404 for an unknown model.
pub async fn props(call: &Call) -> Result<Response<Body>> {
    let models = call.shared.all_models()?;
    let name = call.model_of_query();
    // Who only looks does not keep a model loaded.
    let value = match models.find(name.as_deref())?.loaded {
        Some(served) => properties(&served)?,
        None => properties(&*models.lease(name.as_deref()).await?)?,
    };
    Ok(body::json(StatusCode::OK, &value))
}

fn properties(served: &Served) -> Result<Value> {
    let tokenizer = served.tokenizer()?;
    let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    Ok(json!({
        "default_generation_settings": { "n_ctx": served.context },
        "total_slots": served.engine.options().max_sequences,
        "model_alias": served.names[0],
        "chat_template": served.template().map(|template| template.source()).ok(),
        "bos_token": spelled(tokenizer.bos()),
        "eos_token": spelled(tokenizer.eos()),
        "build_info": concat!("hologram ", env!("CARGO_PKG_VERSION")),
    }))
}

/// Places for texts of the model that `?model=` names, else of the first, in llama.cpp's form: none while it is not
/// loaded. A text has no fixed place: the first ones are those in use.
///
/// # Errors
/// 503 while loading, 404 for an unknown model.
pub fn slots(call: &Call) -> Result<Response<Body>> {
    let models = call.shared.all_models()?;
    let Some(served) = models.find(call.model_of_query().as_deref())?.loaded else {
        return Ok(body::json(StatusCode::OK, &json!([])));
    };
    let running = served.engine.stats().running;
    let slot = |id: usize| json!({ "id": id, "n_ctx": served.context, "is_processing": id < running });
    let slots: Vec<_> = (0..served.engine.options().max_sequences).map(slot).collect();
    Ok(body::json(StatusCode::OK, &slots.into()))
}
