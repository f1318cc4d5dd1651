//! Requests of `/v1/responses`.

use hologram_llm::Conversation;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::openai::messages;
use crate::options::Limits;
use crate::params::{self, MAX_TOKENS, Params};
use crate::served::Served;
use crate::talk::{Talk, effort_variables};
use crate::tools::{Choice, Tools, function_of, word_of};

/// A request, ready for the engine.
pub struct Request {
    /// The conversation.
    pub talk: Talk,
    /// Whether to stream.
    pub streams: bool,
    /// What the response repeats.
    pub echo: Map<String, Value>,
}

/// Reads a request.
///
/// # Errors
/// Names the member at fault.
pub fn parse(served: &Served, _: &Limits, mut fields: Fields) -> Result<Request> {
    let echo = echo(&fields);
    let mut messages = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        messages.push(json!({ "role": "system", "content": text }));
    }
    match fields.take("input") {
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (i, item) in items.into_iter().enumerate() {
                self::item(item, &format!("input[{i}]"), &mut messages)?;
            }
        }
        Some(Value::Array(_)) => return Err(ApiError::invalid("input", "input must not be empty")),
        Some(other) => return Err(wrong("input", "a string or a list of items", &other)),
        None => return Err(ApiError::invalid("input", "input is required")),
    }
    let max_tokens = fields.integer("max_output_tokens", 1..=MAX_TOKENS)?.map(|n| n as usize);
    let tools = tools(&mut fields)?;
    let constraint = match fields.object("text")? {
        None => None,
        Some(mut text) => {
            text.only("verbosity", &["medium".into()])?;
            let format = text.take("format");
            text.finish()?;
            format.map(text_format).transpose()?.flatten()
        }
    };
    let mut variables = Map::new();
    if let Some(mut reasoning) = fields.object("reasoning")? {
        let effort = reasoning.one_of("effort", &["none", "minimal", "low", "medium", "high", "xhigh"])?;
        // There is no summary: thoughts are sent as they are.
        reasoning.ignore(&["summary", "generate_summary"]);
        reasoning.finish()?;
        if let Some(effort) = effort {
            effort_variables(effort, served, &mut variables).ok_or_else(|| {
                ApiError::unsupported("reasoning.effort", "the model's chat template has no such setting")
            })?;
        }
    }
    let streams = fields.boolean("stream")?.unwrap_or(false);
    params::labels(&mut fields)?;
    fields.only("background", &[false.into()])?;
    fields.only("truncation", &["disabled".into()])?;
    fields.only("top_logprobs", &[0.into()])?;
    // Thoughts are not encrypted.
    fields.only("include", &[json!([]), json!(["reasoning.encrypted_content"])])?;
    fields.only("stream_options", &[json!({}), json!({ "include_obfuscation": false })])?;
    let params = Params::parse(&mut fields, served, 1)?;
    fields.finish()?;
    let params = Params { max_tokens, constraint, ..params };
    let conversation = Conversation { messages, variables, ..Conversation::default() };
    let talk = Talk::new(served, conversation, &tools, params);
    let talk = talk.map_err(|e| match e.param.as_deref() {
        Some("messages") => ApiError { param: Some("input".into()), ..e },
        Some("response_format") => ApiError { param: Some("text.format".into()), ..e },
        _ => e,
    })?;
    Ok(Request { talk, streams, echo })
}

/// What a response repeats of its request, with defaults.
fn echo(request: &Fields) -> Map<String, Value> {
    let defaults = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("previous_response_id", Value::Null),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("store", false.into()),
        ("temperature", json!(1.0)),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_p", json!(1.0)),
        ("truncation", "disabled".into()),
    ];
    let of = |(name, default): (&str, Value)| {
        let given = request.peek(name);
        (name.to_string(), given.cloned().unwrap_or(default))
    };
    defaults.into_iter().map(of).collect()
}

/// An item becomes a message, or joins the one before.
fn item(value: Value, name: &str, messages: &mut Vec<Value>) -> Result<()> {
    let mut fields = Fields::of(value, name)?;
    let kinds = ["message", "function_call", "function_call_output", "reasoning"];
    let kind = fields.one_of("type", &kinds)?.unwrap_or("message");
    fields.ignore(&["id", "status"]);
    let required = |value: Option<String>, what: &str| {
        value.ok_or_else(|| ApiError::invalid(format!("{name}.{what}"), format!("an item of this type has {what}")))
    };
    match kind {
        "message" => {
            let Some(role) = fields.one_of("role", &["user", "assistant", "system", "developer"])? else {
                return Err(ApiError::invalid(format!("{name}.role"), "every message has a role"));
            };
            fields.ignore(&["phase"]);
            let Some(content) = fields.take("content") else {
                return Err(ApiError::invalid(format!("{name}.content"), "every message has content"));
            };
            let text = messages::text(content, &format!("{name}.content"))?;
            match messages.last_mut() {
                // Thoughts and their answer are one message.
                Some(last) if role == "assistant" && last["role"] == role && last["content"].is_null() => {
                    last["content"] = text.into();
                }
                _ => {
                    let role = if role == "developer" { "system" } else { role };
                    messages.push(json!({ "role": role, "content": text }));
                }
            }
        }
        "reasoning" => {
            let mut thought = String::new();
            for part in fields.list("content")?.into_iter().flatten() {
                thought += part["text"].as_str().unwrap_or_default();
            }
            fields.ignore(&["summary", "encrypted_content"]);
            messages.push(json!({ "role": "assistant", "content": null, "reasoning_content": thought }));
        }
        "function_call" => {
            let (id, called) = (required(fields.text("call_id")?, "call_id")?, required(fields.text("name")?, "name")?);
            let arguments = fields.text("arguments")?.unwrap_or_else(|| "{}".into());
            let arguments = crate::json::object(arguments.as_bytes()).map_err(|_| {
                ApiError::invalid(format!("{name}.arguments"), "arguments must be a JSON object in a string")
            })?;
            let function = json!({ "name": called, "arguments": arguments });
            let call = json!({ "id": id, "type": "function", "function": function });
            match messages.last_mut() {
                Some(last) if last["role"] == "assistant" => {
                    if last["content"].is_null() {
                        last["content"] = "".into();
                    }
                    match last["tool_calls"].as_array_mut() {
                        Some(calls) => calls.push(call),
                        None => last["tool_calls"] = json!([call]),
                    }
                }
                _ => messages.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
            }
        }
        _ => {
            let id = required(fields.text("call_id")?, "call_id")?;
            let Some(output) = fields.take("output") else {
                return Err(ApiError::invalid(format!("{name}.output"), "an item of this type has output"));
            };
            let text = messages::text(output, &format!("{name}.output"))?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
        }
    }
    fields.finish()
}

fn tools(fields: &mut Fields) -> Result<Tools> {
    let list = fields.list("tools")?.unwrap_or_default();
    let tool = |(i, value): (usize, Value)| {
        let name = format!("tools[{i}]");
        let mut tool = Fields::of(value, &name)?;
        tool.one_of("type", &["function"])?;
        function_of(tool, &name)
    };
    let list = list.into_iter().enumerate().map(tool).collect::<Result<Vec<_>>>()?;
    let choice = match fields.take("tool_choice") {
        None => Choice::Auto,
        Some(Value::String(word)) => word_of(&word)?,
        Some(value) => {
            let mut choice = Fields::of(value, "tool_choice")?;
            choice.one_of("type", &["function"])?;
            let name = choice.text("name")?;
            choice.finish()?;
            Choice::Named(
                name.ok_or_else(|| ApiError::invalid("tool_choice.name", "the choice has a function's name"))?,
            )
        }
    };
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Tools::new(list, choice, parallel)
}

/// `text.format`, whose schema is not nested as in chat completions.
fn text_format(format: Value) -> Result<Option<hologram_llm::engine::Constraint>> {
    let mut fields = Fields::of(format, "text.format")?;
    let kind = fields.text("type")?;
    let nested = match kind.as_deref() {
        Some("json_schema") => {
            let mut named = Map::new();
            for name in ["name", "schema", "strict", "description"] {
                named.extend(fields.take(name).map(|value| (name.into(), value)));
            }
            json!({ "type": kind, "json_schema": named })
        }
        _ => json!({ "type": kind }),
    };
    fields.finish()?;
    let mut outer = Fields::new(Map::from_iter([("response_format".to_string(), nested)]));
    let renamed = |e: ApiError| {
        let param = e
            .param
            .map(|p| p.replace("response_format.json_schema", "text.format").replace("response_format", "text.format"));
        ApiError { param, ..e }
    };
    params::response_format(&mut outer).map_err(renamed)
}
