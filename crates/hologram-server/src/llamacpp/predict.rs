//! `POST /predict`: several requests in one, in the form of Google Cloud's Vertex AI.

use std::future::Future;
use std::pin::Pin;

use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::openapi;
use crate::routes::{self, Call, Route, TABLE};

/// Answers requests together. An error of one is its answer. Boxed: it runs routes, of which it is one.
///
/// # Errors
/// When the request as a whole is at fault.
pub fn run(call: Call) -> Pin<Box<dyn Future<Output = Result<Response<Body>>> + Send>> {
    Box::pin(all(call))
}

async fn all(call: Call) -> Result<Response<Body>> {
    let most = call.shared.options.limits.sequences;
    let mut fields = Fields::new(crate::json::object(&call.body)?).known_as(call.accepts);
    let Some(instances) = fields.list("instances")? else {
        return Err(ApiError::invalid("instances", "instances are required"));
    };
    // Vertex AI adds them, and they request nothing.
    fields.ignore(&["parameters"]);
    fields.finish()?;
    if instances.len() > most {
        return Err(ApiError::invalid("instances", format!("at most {most} instances are supported")));
    }
    let mut answers = vec![Value::Null; instances.len()];
    let mut tasks = JoinSet::new();
    for (i, instance) in instances.into_iter().enumerate() {
        let call =
            Call { shared: call.shared.clone(), tenant: call.tenant, query: None, body: Vec::new(), accepts: "" };
        tasks.spawn(async move {
            let answer = one(call, instance, i).await;
            (i, answer.unwrap_or_else(|error| super::error(&error)))
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (i, answer) = done.map_err(|_| ApiError::internal("the server failed to answer an instance"))?;
        answers[i] = answer;
    }
    Ok(body::json(StatusCode::OK, &json!({ "predictions": answers })))
}

async fn one(call: Call, instance: Value, index: usize) -> Result<Value> {
    let name = format!("instances[{index}]");
    let Value::Object(mut members) = instance else {
        return Err(ApiError::invalid(name, "an instance is an object"));
    };
    let format = members.shift_remove("@requestFormat");
    let Some(format) = format.as_ref().and_then(Value::as_str) else {
        return Err(ApiError::invalid(format!("{name}.@requestFormat"), "an instance has a @requestFormat"));
    };
    if members.get("stream").is_some_and(|stream| *stream != false) {
        return Err(ApiError::unsupported(format!("{name}.stream"), "instances are not streamed"));
    }
    let row = TABLE.iter().find(|row| row.method == Method::POST && [row.path, &*camel(row.path)].contains(&format));
    let accepts = row.map_or("", |row| openapi::bodies(row.path).request);
    let route = row.map(|row| routes::find(&Method::POST, row.path)).transpose()?.map(|(_, route)| route);
    let Some(route) = route.filter(|route| !matches!(route, Route::Predict | Route::Slot(_))) else {
        return Err(ApiError::invalid(format!("{name}.@requestFormat"), "there is no such format"));
    };
    let call = Call { body: Value::Object(members).to_string().into_bytes(), accepts, ..call };
    match routes::run(route, call).await?.into_body() {
        Body::Whole(bytes) => serde_json::from_slice(&bytes.unwrap_or_default())
            .map_err(|_| ApiError::unsupported(format!("{name}.@requestFormat"), "its answers are not JSON")),
        Body::Stream(_) => Err(ApiError::unsupported(format!("{name}.stream"), "instances are not streamed")),
    }
}

/// The name of a path's form: `chatCompletions` of `/v1/chat/completions`.
fn camel(path: &str) -> String {
    let path = path.strip_prefix("/v1").unwrap_or(path).trim_start_matches('/');
    let (mut out, mut upper) = (String::new(), false);
    for c in path.chars() {
        match c {
            '/' | '-' | '_' => upper = true,
            c if std::mem::take(&mut upper) => out.push(c.to_ascii_uppercase()),
            c => out.push(c),
        }
    }
    out
}
