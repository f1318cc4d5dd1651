//! Calls that must be made: the beginning of the reply is given, and the rest conforms to a schema.

use hologram_llm::engine::Constraint;
use serde_json::{Value, json};

use super::{Choice, Format, Tools};
use crate::error::{ApiError, Result};

/// The beginning of a reply that must call a tool, and the schema of its rest. `None`: it need not.
///
/// # Errors
/// 400 when one of several tools must be called, but the format has no schema for that.
pub fn required(tools: &Tools, format: Format) -> Result<Option<(String, Constraint)>> {
    let chosen = |name: &str| match &tools.choice {
        Choice::Named(chosen) => chosen == name,
        _ => true,
    };
    if matches!(tools.choice, Choice::Auto | Choice::None) {
        return Ok(None);
    }
    if format == Format::MistralArgs {
        let mut all = tools.list.iter().filter(|tool| chosen(&tool.name));
        let (Some(tool), None) = (all.next(), all.next()) else {
            let message = "the form of the model's tool calls lets only one tool be required: name it";
            return Err(ApiError::unsupported("tool_choice", message));
        };
        let begin = format!("{}{}[ARGS]", format.begin(), tool.name);
        return Ok(Some((begin, Constraint::JsonSchema(tool.parameters().clone()))));
    }
    let mut definitions = serde_json::Map::new();
    let mut calls = Vec::new();
    for (i, tool) in tools.list.iter().enumerate().filter(|(_, tool)| chosen(&tool.name)) {
        let own = format!("tool{i}");
        let mut arguments = tool.parameters().clone();
        // Its references begin at its own root, which moves.
        if point_below(&mut arguments, &format!("#/$defs/{own}")) {
            definitions.insert(own.clone(), arguments);
            arguments = json!({ "$ref": format!("#/$defs/{own}") });
        }
        let key = format.arguments();
        calls.push(json!({
            "type": "object",
            "properties": { "name": { "const": tool.name }, key: arguments },
            "required": ["name", key],
            "additionalProperties": false,
        }));
    }
    let call = if calls.len() == 1 { calls.remove(0) } else { json!({ "anyOf": calls }) };
    let mut schema = match format {
        Format::Mistral => {
            let most = if tools.parallel { 8 } else { 1 };
            json!({ "type": "array", "items": call, "minItems": 1, "maxItems": most })
        }
        Format::Hermes | Format::Llama | Format::MistralArgs => call,
    };
    if !definitions.is_empty() {
        schema["$defs"] = definitions.into();
    }
    Ok(Some((format.begin().into(), Constraint::JsonSchema(schema))))
}

/// Lets the references of a schema begin at another place. Returns whether there are any.
fn point_below(schema: &mut Value, root: &str) -> bool {
    match schema {
        Value::Object(members) => {
            let mut any = false;
            for (key, value) in members.iter_mut() {
                match value {
                    Value::String(reference) if key == "$ref" => {
                        if let Some(path) = reference.strip_prefix('#') {
                            *reference = format!("{root}{path}");
                        }
                        any = true;
                    }
                    // Data, not schemas.
                    _ if matches!(key.as_str(), "const" | "enum" | "default" | "examples") => {}
                    value => any |= point_below(value, root),
                }
            }
            any
        }
        Value::Array(items) => items.iter_mut().fold(false, |any, item| point_below(item, root) | any),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tool;
    use super::*;

    #[test]
    fn schemas_keep_their_references() {
        let tree = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": {"const": "$ref"}}});
        let plain = json!({"type": "object"});
        let tool = |name: &str, schema: &Value| Tool::new(name.into(), None, Some(schema.clone()), "t").unwrap();
        let list = vec![tool("f", &plain), tool("g", &tree)];
        let named = |choice| required(&Tools::new(list.clone(), choice, true).unwrap(), Format::Hermes).unwrap();
        assert!(named(Choice::Auto).is_none() && named(Choice::None).is_none());
        let (begin, constraint) = named(Choice::Named("f".into())).unwrap();
        let want = json!({
            "type": "object", "properties": {"name": {"const": "f"}, "arguments": plain},
            "required": ["name", "arguments"], "additionalProperties": false,
        });
        assert_eq!((&*begin, constraint), ("<tool_call>", Constraint::JsonSchema(want)));
        let Some((_, Constraint::JsonSchema(schema))) = named(Choice::Required) else { panic!() };
        assert_eq!(schema["anyOf"][1]["properties"]["arguments"], json!({"$ref": "#/$defs/tool1"}));
        assert_eq!(schema["$defs"]["tool1"]["properties"]["x"]["$ref"], "#/$defs/tool1/$defs/node");
    }
}
