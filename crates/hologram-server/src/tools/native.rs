//! Conversations as particular templates expect them.

use std::borrow::Cow;

use hologram_llm::Conversation;
use serde_json::{Map, Value, json};

use super::format::deepseek;

/// A conversation as a template with this text expects it.
pub fn adapted<'a>(conversation: &'a Conversation, source: &str) -> Cow<'a, Conversation> {
    let mut conversation = Cow::Borrowed(conversation);
    if source.contains("tool_responses") && conversation.messages.iter().any(|m| m["role"] == "tool") {
        merge_results(&mut conversation.to_mut().messages);
    }
    if !conversation.tools.is_empty() && source.contains(deepseek::BEGIN) && !source.contains("tools") {
        let text = described(&conversation.tools, source.contains(deepseek::FENCE));
        add_system(&mut conversation.to_mut().messages, &text);
    }
    conversation
}

/// The conversation with the arguments of calls as JSON texts, which some templates append to texts. `None`: it has no
/// calls.
pub fn with_text_arguments(conversation: &Conversation) -> Option<Conversation> {
    let mut conversation = conversation.clone();
    let mut any = false;
    for message in &mut conversation.messages {
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(arguments @ Value::Object(_)) = call.pointer_mut("/function/arguments") {
                *arguments = arguments.to_string().into();
                any = true;
            }
        }
    }
    any.then_some(conversation)
}

/// Gemma 4's templates write the results of calls within the message that called.
fn merge_results(messages: &mut Vec<Value>) {
    let mut merged: Vec<Value> = Vec::new();
    for message in messages.drain(..) {
        let calls = merged.last().and_then(|last| last["tool_calls"].as_array()).cloned();
        let (Some(calls), true) = (calls, message["role"] == "tool") else {
            merged.push(message);
            continue;
        };
        let called = calls.iter().find(|call| call["id"] == message["tool_call_id"]);
        let name = called.map_or(Value::Null, |call| call["function"]["name"].clone());
        let text = message["content"].as_str().unwrap_or_default();
        // An object is written member by member.
        let object = serde_json::from_str::<Map<String, Value>>(text).map(Value::Object);
        let response = json!({ "name": name, "response": object.unwrap_or_else(|_| text.into()) });
        if let Some(Value::Object(last)) = merged.last_mut() {
            let responses = last.entry("tool_responses").or_insert_with(|| json!([]));
            responses.as_array_mut().into_iter().for_each(|list| list.push(response.clone()));
        }
    }
    *messages = merged;
}

/// Tells a model of tools whose template does not.
fn described(tools: &[Value], fenced: bool) -> String {
    let mut text = "## Tools\n\nThese functions can be called:\n".to_string();
    for tool in tools {
        let function = &tool["function"];
        text += &format!("\n### {}\n", function["name"].as_str().unwrap_or_default());
        if let Some(description) = function["description"].as_str() {
            text += &format!("{description}\n");
        }
        text += &format!("Parameters, as a JSON schema: {}\n", function["parameters"]);
    }
    let (head, tail) = match fenced {
        true => (format!("function{}NAME\n{}\n", deepseek::SEPARATOR, deepseek::FENCE), "\n```"),
        false => (format!("NAME{}", deepseek::SEPARATOR), ""),
    };
    let call = format!("{}{head}ARGUMENTS{tail}{}", deepseek::CALL, deepseek::CALL_END);
    text += &format!(
        "\nTo call functions, write exactly this, with a call for each, and nothing after it:\n{}{call}{}\n\
         ARGUMENTS is a JSON object that the function's schema accepts.",
        deepseek::BEGIN,
        deepseek::END
    );
    text
}

/// Appends to the system's message, which is made if there is none.
fn add_system(messages: &mut Vec<Value>, text: &str) {
    let own = messages.first().filter(|m| m["role"] == "system").and_then(|m| m["content"].as_str());
    match own.map(|own| format!("{own}\n\n{text}")) {
        Some(both) => messages[0]["content"] = both.into(),
        None => messages.insert(0, json!({ "role": "system", "content": text })),
    }
}
