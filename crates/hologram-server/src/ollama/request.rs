//! Requests in Ollama's form.

use hologram_llm::Conversation;
use hologram_llm::engine::Constraint;
use serde_json::{Map, Value, json};

use super::keep;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::job::Names;
use crate::options::Limits;
use crate::params::Params;
use crate::registry::Keep;
use crate::reply::Splitter;
use crate::served::Served;
use crate::talk::Talk;
use crate::tools::Tools;

/// A request, ready for the engine.
pub struct Request {
    /// The conversation, or the text to continue.
    pub talk: Talk,
    /// Whether to stream.
    pub streams: bool,
    /// Whether the reply is a message.
    pub is_chat: bool,
}

/// What a request asks for.
pub enum Asked {
    /// A reply.
    Reply(Box<Request>),
    /// Nothing: without a prompt, Ollama's clients load a model, or with `keep_alive: 0` unload it.
    Nothing,
}

/// How long the model then stays, if the request says so, and what it asks for.
pub type Kept = (Option<Keep>, Asked);

/// Reads a request of `/api/chat`.
///
/// # Errors
/// Names the member at fault.
pub fn chat(served: &Served, _: &Limits, mut fields: Fields) -> Result<Kept> {
    let keep = keep::take(&mut fields)?;
    let (params, streams, variables) = common(&mut fields, served)?;
    let Some(list) = fields.list("messages")? else {
        return Err(ApiError::invalid("messages", "messages are required"));
    };
    let mut messages = Vec::new();
    for (i, value) in list.into_iter().enumerate() {
        messages.push(message(value, &format!("messages[{i}]"))?);
    }
    let tools = Tools::parse(&mut fields)?;
    fields.finish()?;
    if messages.is_empty() {
        return Ok((keep, Asked::Nothing));
    }
    let talk = Talk::new(served, Conversation { messages, variables, ..Conversation::default() }, &tools, params)?;
    Ok((keep, Asked::Reply(Box::new(Request { talk, streams, is_chat: true }))))
}

fn message(value: Value, name: &str) -> Result<Value> {
    let mut fields = Fields::of(value, name)?;
    let Some(role) = fields.one_of("role", &["system", "user", "assistant", "tool"])? else {
        return Err(ApiError::invalid(format!("{name}.role"), "every message has a role"));
    };
    let mut message = json!({ "role": role, "content": fields.text("content")?.unwrap_or_default() });
    if let Some(thought) = fields.text("thinking")? {
        message["reasoning_content"] = thought.into();
    }
    if let Some(calls) = fields.list("tool_calls")? {
        let call = |value: Value| json!({ "type": "function", "function": value["function"] });
        message["tool_calls"] = calls.into_iter().map(call).collect();
    }
    if let Some(tool) = fields.text("tool_name")?.or(fields.text("name")?) {
        message["name"] = tool.into();
    }
    fields.finish()?;
    Ok(message)
}

/// Reads a request of `/api/generate`.
///
/// # Errors
/// Names the member at fault.
pub fn generate(served: &Served, _: &Limits, mut fields: Fields) -> Result<Kept> {
    let keep = keep::take(&mut fields)?;
    let (params, streams, variables) = common(&mut fields, served)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let system = fields.text("system")?;
    let raw = fields.boolean("raw")?.unwrap_or(false);
    fields.finish()?;
    if prompt.is_empty() {
        return Ok((keep, Asked::Nothing));
    }
    let talk = if raw || served.template().is_err() {
        if system.is_some() {
            return Err(ApiError::unsupported("system", "a text that is continued has no system message"));
        }
        let names = Names { prompt: "prompt", constraint: "format" };
        let splitter = Splitter::new("", None, None);
        Talk { prompt: served.encode(&prompt, "prompt")?, params, splitter, names }
    } else {
        let mut messages: Vec<Value> =
            system.map(|text| json!({ "role": "system", "content": text })).into_iter().collect();
        messages.push(json!({ "role": "user", "content": prompt }));
        Talk::new(served, Conversation { messages, variables, ..Conversation::default() }, &Tools::default(), params)?
    };
    Ok((keep, Asked::Reply(Box::new(Request { talk, streams, is_chat: false }))))
}

/// Reads a request of `/api/show`, except the model's name.
///
/// # Errors
/// Names the member at fault.
pub fn show(mut fields: Fields) -> Result<()> {
    fields.only("verbose", &[false.into()])?;
    fields.finish()
}

/// Takes the model's name, which is required. Ollama's names have a tag, which may be left out.
///
/// # Errors
/// 400 without a name.
pub fn name(fields: &mut Fields) -> Result<Option<String>> {
    let Some(name) = fields.text("model")? else { return Err(ApiError::invalid("model", "a model is required")) };
    Ok(Some(name.strip_suffix(":latest").unwrap_or(&name).into()))
}

/// As [`name`], for `/api/show`, which has an older member for it.
///
/// # Errors
/// 400 without a name.
pub fn name_to_show(fields: &mut Fields) -> Result<Option<String>> {
    let older = fields.text("name")?;
    match fields.peek("model") {
        Some(_) => name(fields),
        None => Ok(older.map(|name| name.strip_suffix(":latest").unwrap_or(&name).into())),
    }
}

/// Reads what both routes have: model, options, format, thoughts, whether to stream.
fn common(fields: &mut Fields, served: &Served) -> Result<(Params, bool, Map<String, Value>)> {
    let mut options = fields.map("options")?.unwrap_or_default();
    let limit = options.shift_remove("num_predict").filter(|v| !v.is_null());
    let limit = limit.map(|v| crate::fields::integer(&v, "options.num_predict", -2..=1 << 31)).transpose()?;
    if let Some(context) = options.shift_remove("num_ctx").filter(|v| !v.is_null()) {
        // A smaller one is no promise that needs keeping; a larger one would be.
        crate::fields::integer(&context, "options.num_ctx", 1..=served.context as i64)?;
    }
    for (name, default) in [("temperature", json!(0.8)), ("top_k", json!(40)), ("top_p", json!(0.9))] {
        options.entry(name).or_insert(default);
    }
    let prefixed = |e: ApiError| ApiError { param: e.param.map(|p| format!("options.{p}")), ..e };
    let mut options = Fields::new(options).known_as("OllamaOptions");
    let mut params = Params::parse(&mut options, served, 1).map_err(prefixed)?;
    options.finish().map_err(prefixed)?;
    params.max_tokens = limit.and_then(|n| usize::try_from(n).ok());
    params.constraint = match fields.take("format") {
        None => None,
        Some(Value::String(word)) if word.is_empty() => None,
        Some(Value::String(word)) if word == "json" => Some(Constraint::JsonObject),
        Some(schema @ Value::Object(_)) => Some(Constraint::JsonSchema(schema)),
        Some(other) => return Err(wrong("format", "\"json\" or a schema", &other)),
    };
    let mut variables = Map::new();
    if let Some(think) = fields.boolean("think")? {
        let has_switch = served.template().is_ok_and(|template| template.has_thinking_switch());
        if think && !has_switch {
            return Err(ApiError::unsupported("think", "the model's chat template cannot turn thinking on"));
        }
        variables.insert("enable_thinking".into(), think.into());
    }
    let streams = fields.boolean("stream")?.unwrap_or(true);
    Ok((params, streams, variables))
}
