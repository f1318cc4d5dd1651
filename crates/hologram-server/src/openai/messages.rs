//! The messages of a conversation, as chat templates see them.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};

/// Reads `messages`.
///
/// # Errors
/// Names the member at fault.
pub fn parse(fields: &mut Fields) -> Result<Vec<Value>> {
    let name = fields.name("messages");
    let Some(list) = fields.list("messages")? else {
        return Err(ApiError::invalid(name, "messages are required"));
    };
    if list.is_empty() {
        return Err(ApiError::invalid(name, "messages must not be empty"));
    }
    list.into_iter().enumerate().map(|(i, value)| message(value, &format!("{name}[{i}]"))).collect()
}

fn message(value: Value, name: &str) -> Result<Value> {
    let mut fields = Fields::of(value, name)?.known_as("ChatMessage");
    let role = fields.one_of("role", &["system", "developer", "user", "assistant", "tool"])?;
    let Some(role) = role else { return Err(ApiError::invalid(format!("{name}.role"), "every message has a role")) };
    let mut message = Map::new();
    // Templates know no other name for the operator.
    message.insert("role".into(), if role == "developer" { "system" } else { role }.into());
    let calls = if role == "assistant" { tool_calls(&mut fields)? } else { None };
    match fields.take("content") {
        Some(content) => {
            message.insert("content".into(), text(content, &format!("{name}.content"))?.into());
        }
        None if calls.is_some() => {
            message.insert("content".into(), "".into());
        }
        None => return Err(ApiError::invalid(format!("{name}.content"), format!("{name} has no content"))),
    }
    if let Some(calls) = calls {
        message.insert("tool_calls".into(), calls);
    }
    if role == "assistant" {
        let thought = fields.text("reasoning_content")?.or(fields.text("reasoning")?);
        message.extend(thought.map(|thought| ("reasoning_content".into(), thought.into())));
        fields.only("refusal", &[])?;
        fields.only("audio", &[])?;
        fields.only("annotations", &[json!([])])?;
    }
    if role == "tool" {
        let Some(id) = fields.text("tool_call_id")? else {
            let param = format!("{name}.tool_call_id");
            return Err(ApiError::invalid(param, "a tool's message has the id of its call"));
        };
        message.insert("tool_call_id".into(), id.into());
    }
    message.extend(fields.text("name")?.map(|name| ("name".into(), name.into())));
    fields.finish()?;
    Ok(message.into())
}

/// A content's text: a string, or a list of parts that are texts.
///
/// # Errors
/// Names the part that is not a text.
pub fn text(content: Value, name: &str) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, "a string or a list of parts", &other)),
    };
    let mut text = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let name = format!("{name}[{i}]");
        let mut part = Fields::of(part, &name)?.known_as("ContentPart");
        match part.text("type")?.as_deref() {
            Some("text" | "input_text" | "output_text") => {}
            _ => {
                let name = format!("{name}.type");
                return Err(ApiError::unsupported(name, "only parts of type \"text\" are supported"));
            }
        }
        let Some(piece) = part.text("text")? else {
            return Err(ApiError::invalid(format!("{name}.text"), "a part of type \"text\" has a text"));
        };
        text += &piece;
        part.ignore(&["annotations", "logprobs", "cache_control"]);
        part.finish()?;
    }
    Ok(text)
}

/// The calls of an assistant's message. Arguments, a JSON text, become an object, which is what templates expect.
fn tool_calls(fields: &mut Fields) -> Result<Option<Value>> {
    let name = fields.name("tool_calls");
    let Some(list) = fields.list("tool_calls")? else { return Ok(None) };
    let mut calls = Vec::new();
    for (i, value) in list.into_iter().enumerate() {
        let name = format!("{name}[{i}]");
        let mut call = Fields::of(value, &name)?.known_as("ToolCall");
        let id = call.text("id")?;
        call.only("type", &["function".into()])?;
        call.ignore(&["index"]);
        let Some(mut function) = call.object("function")? else {
            return Err(ApiError::invalid(format!("{name}.function"), "a call has a function"));
        };
        let Some(called) = function.text("name")? else {
            return Err(ApiError::invalid(function.name("name"), "a function has a name"));
        };
        let arguments = function.text("arguments")?.unwrap_or_default();
        let arguments = if arguments.trim().is_empty() { "{}" } else { &arguments };
        let arguments = crate::json::object(arguments.as_bytes()).map_err(|_| {
            ApiError::invalid(function.name("arguments"), "arguments must be a JSON object in a string")
        })?;
        function.finish()?;
        call.finish()?;
        calls.push(json!({ "id": id, "type": "function", "function": { "name": called, "arguments": arguments } }));
    }
    Ok((!calls.is_empty()).then(|| calls.into()))
}
