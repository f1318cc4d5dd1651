//! What vLLM's clients may add to requests, and SageMaker's names of routes, which vLLM has too.

use hologram_llm::engine::Constraint;
use hyper::Response;
use serde_json::Value;

use crate::body::Body;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::llamacpp::gbnf;
use crate::openai::{chat, completions, embeddings};
use crate::params::Params;
use crate::routes::Call;

/// The most texts to choose from.
const MAX_CHOICES: usize = 1024;

/// Reads `structured_outputs`: one of a JSON schema, a regular expression, texts to choose from, or a grammar in the
/// form of llama.cpp, Lark or vLLM's backends.
///
/// # Errors
/// Names the member at fault.
pub fn structured_outputs(fields: &mut Fields, params: &mut Params) -> Result<()> {
    const NAME: &str = "structured_outputs";
    let Some(mut outputs) = fields.object(NAME)? else { return Ok(()) };
    let mut found = Vec::new();
    if let Some(schema) = outputs.take("json") {
        let schema = match schema {
            Value::String(text) => crate::json::object(text.as_bytes())
                .map_err(|e| ApiError::invalid(outputs.name("json"), e.message))?
                .into(),
            schema => schema,
        };
        found.push(Constraint::JsonSchema(schema));
    }
    found.extend(outputs.boolean("json_object")?.filter(|wanted| *wanted).map(|_| Constraint::JsonObject));
    found.extend(outputs.text("regex")?.map(Constraint::Regex));
    if let Some(choices) = outputs.list("choice")? {
        found.push(Constraint::Lark(choice(&choices, &outputs.name("choice"))?));
    }
    if let Some(grammar) = outputs.text("grammar")? {
        let lark = if grammar.contains("::=") { gbnf::to_lark(&grammar) } else { Ok(grammar) };
        found.push(Constraint::Lark(lark.map_err(|reason| ApiError::invalid(outputs.name("grammar"), reason))?));
    }
    outputs.finish()?;
    match (found.pop(), found.is_empty(), params.constraint.is_none()) {
        (Some(constraint), true, true) => {
            (params.constraint, params.constraint_name) = (Some(constraint), NAME);
            Ok(())
        }
        _ => Err(ApiError::invalid(NAME, "structured_outputs has one of json, json_object, regex, choice and grammar")),
    }
}

/// A grammar of texts to choose from.
fn choice(choices: &[Value], name: &str) -> Result<String> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        return Err(ApiError::invalid(name, format!("{name} has from 1 to {MAX_CHOICES} texts")));
    }
    let text = |choice: &Value| match choice {
        // JSON's form of a text is Lark's.
        Value::String(text) => Ok(Value::from(text.as_str()).to_string()),
        other => Err(wrong(name, "a list of strings", other)),
    };
    let texts = choices.iter().map(text).collect::<Result<Vec<_>>>()?;
    Ok(format!("start: {}\n", texts.join(" | ")))
}

/// `POST /invocations`: what a request is for follows from what it has.
///
/// # Errors
/// As of the route that it is for, and 400 if it is for none.
pub async fn invocations(call: Call) -> Result<Response<Body>> {
    let body = crate::json::object(&call.body)?;
    let has = |name| body.get(name).is_some_and(|value: &Value| !value.is_null());
    match (has("messages"), has("prompt"), has("input")) {
        (true, ..) => chat::run(call).await,
        (_, true, _) => completions::run(call).await,
        (_, _, true) => embeddings::run(call).await,
        _ => Err(ApiError::bad_request("an invocation has messages, a prompt or an input")),
    }
}
