//! Requests in Anthropic's form.

use hologram_llm::Conversation;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::options::Limits;
use crate::params::{MAX_TOKENS, Params};
use crate::served::Served;
use crate::talk::Talk;
use crate::tools::{Choice, Tool, Tools};

/// A request, ready for the engine.
pub struct Messages {
    /// The conversation.
    pub talk: Talk,
    /// Whether to stream.
    pub streams: bool,
}

/// Reads a request.
///
/// # Errors
/// Names the member at fault.
pub fn parse(served: &Served, _: &Limits, mut fields: Fields) -> Result<Messages> {
    let Some(max_tokens) = fields.integer("max_tokens", 1..=MAX_TOKENS)? else {
        return Err(ApiError::invalid("max_tokens", "max_tokens is required"));
    };
    let stop = fields.take("stop_sequences");
    let (conversation, tools) = conversation(&mut fields, served)?;
    let streams = fields.boolean("stream")?.unwrap_or(false);
    fields.ignore(&["metadata"]);
    fields.only("service_tier", &["auto".into(), "standard_only".into()])?;
    // The rest has OpenAI's names.
    let mut sampling = Map::new();
    for name in ["temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "ignore_eos"] {
        sampling.extend(fields.take(name).map(|value| (name.into(), value)));
    }
    sampling.extend(stop.map(|stop| ("stop".into(), stop)));
    fields.finish()?;
    let params = Params::parse(&mut Fields::new(sampling), served, 1).map_err(|e| match e.param.as_deref() {
        Some("stop") => ApiError { param: Some("stop_sequences".into()), ..e },
        _ => e,
    })?;
    let params = Params { max_tokens: Some(max_tokens as usize), ..params };
    Ok(Messages { talk: Talk::new(served, conversation, &tools, params)?, streams })
}

/// The number of tokens of a conversation.
///
/// # Errors
/// Names the member at fault.
pub fn count(served: &Served, _: &Limits, mut fields: Fields) -> Result<usize> {
    let (conversation, tools) = conversation(&mut fields, served)?;
    fields.finish()?;
    let params = Params::parse(&mut Fields::new(Map::new()), served, 1)?;
    Ok(Talk::new(served, conversation, &tools, params)?.prompt.len())
}

fn conversation(fields: &mut Fields, served: &Served) -> Result<(Conversation, Tools)> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        let text = texts(system, "system")?;
        messages.push(json!({ "role": "system", "content": text }));
    }
    let Some(list) = fields.list("messages")? else {
        return Err(ApiError::invalid("messages", "messages are required"));
    };
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "messages must not be empty"));
    }
    for (i, value) in list.into_iter().enumerate() {
        message(value, &format!("messages[{i}]"), &mut messages)?;
    }
    let mut variables = Map::new();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.one_of("type", &["enabled", "disabled", "adaptive"])?;
        // The template has a switch, but no budget.
        thinking.ignore(&["budget_tokens", "display"]);
        thinking.finish()?;
        let template = served.template()?;
        // A template without a switch either always lets the model think or never.
        let thinks = template.source().contains("think>");
        match kind {
            _ if template.has_thinking_switch() => {
                variables.insert("enable_thinking".into(), (kind != Some("disabled")).into());
            }
            Some("enabled") if !thinks => {
                let message = "the model's chat template cannot turn thinking on";
                return Err(ApiError::unsupported("thinking", message));
            }
            Some("disabled") if thinks => {
                let message = "the model's chat template cannot turn thinking off";
                return Err(ApiError::unsupported("thinking", message));
            }
            _ => {}
        }
    }
    let tools = tools(fields)?;
    Ok((Conversation { messages, variables, ..Conversation::default() }, tools))
}

/// A message becomes one or, with results of calls, several.
fn message(value: Value, name: &str, messages: &mut Vec<Value>) -> Result<()> {
    let mut fields = Fields::of(value, name)?;
    let Some(role) = fields.one_of("role", &["user", "assistant", "system"])? else {
        return Err(ApiError::invalid(format!("{name}.role"), "every message has a role"));
    };
    let content = fields.take("content");
    fields.finish()?;
    let name = format!("{name}.content");
    let blocks = match content {
        Some(Value::String(text)) => {
            messages.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        Some(other) => return Err(wrong(&name, "a string or a list of blocks", &other)),
        None => return Err(ApiError::invalid(name, "every message has content")),
    };
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let name = format!("{name}[{i}]");
        let mut block = Fields::of(block, &name)?;
        block.ignore(&["cache_control", "citations"]);
        let required = |value: Option<String>, what: &str| {
            value.ok_or_else(|| ApiError::invalid(format!("{name}.{what}"), format!("a block of this type has {what}")))
        };
        match block.text("type")?.as_deref() {
            Some("text") => text += &required(block.text("text")?, "text")?,
            Some("thinking") if role == "assistant" => {
                thought += &required(block.text("thinking")?, "thinking")?;
                block.ignore(&["signature"]);
            }
            Some("tool_use") if role == "assistant" => {
                let (id, called) = (required(block.text("id")?, "id")?, required(block.text("name")?, "name")?);
                let input = block.map("input")?.unwrap_or_default();
                let function = json!({ "name": called, "arguments": input });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            Some("tool_result") if role == "user" => {
                let id = required(block.text("tool_use_id")?, "tool_use_id")?;
                let content =
                    block.take("content").map_or(Ok(String::new()), |c| texts(c, &format!("{name}.content")))?;
                let content =
                    if block.boolean("is_error")? == Some(true) { format!("Error: {content}") } else { content };
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            _ => {
                let message = "blocks of this type are not supported here";
                return Err(ApiError::unsupported(format!("{name}.type"), message));
            }
        }
        block.finish()?;
    }
    let only_results = text.is_empty() && calls.is_empty() && messages.last().is_some_and(|m| m["role"] == "tool");
    if role == "user" && only_results {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": text });
    if !thought.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    messages.push(message);
    Ok(())
}

/// A text, or blocks of text.
fn texts(value: Value, name: &str) -> Result<String> {
    crate::openai::messages::text(value, name)
}

fn tools(fields: &mut Fields) -> Result<Tools> {
    let list = fields.list("tools")?.unwrap_or_default();
    let tool = |(i, value): (usize, Value)| {
        let param = format!("tools[{i}]");
        let mut tool = Fields::of(value, &param)?;
        tool.one_of("type", &["custom"])?;
        tool.ignore(&["cache_control"]);
        let Some(name) = tool.text("name")? else {
            return Err(ApiError::invalid(format!("{param}.name"), "a tool has a name"));
        };
        let tool_ = Tool::new(name, tool.text("description")?, tool.take("input_schema"), &param)?;
        let strict = tool.boolean("strict")?.unwrap_or(false);
        tool.finish()?;
        Ok(Tool { strict, ..tool_ })
    };
    let list = list.into_iter().enumerate().map(tool).collect::<Result<Vec<_>>>()?;
    let mut parallel = true;
    let choice = match fields.object("tool_choice")? {
        None => Choice::Auto,
        Some(mut choice) => {
            parallel = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
            let name = choice.text("name")?;
            let word = choice.one_of("type", &["auto", "any", "none", "tool"])?;
            choice.finish()?;
            match (word, name) {
                (Some("tool"), Some(name)) => Choice::Named(name),
                (Some("tool"), None) => {
                    return Err(ApiError::invalid("tool_choice.name", "the choice has a tool's name"));
                }
                (Some("any"), _) => Choice::Required,
                (Some("none"), _) => Choice::None,
                _ => Choice::Auto,
            }
        }
    };
    Tools::new(list, choice, parallel)
}
