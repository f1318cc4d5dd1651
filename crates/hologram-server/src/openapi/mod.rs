//! `/openapi.json`, written from the table of routes and from the schemas of bodies. What a request's schema does not
//! name is not read: see [`Fields`](crate::fields::Fields).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::routes::{Protocol, TABLE};

/// Members of an object and their schemas.
pub type Members = Map<String, Value>;

/// Schemas of bodies by name. In the file, `allOf` names schemas whose members one has too.
struct Schemas {
    requests: Map<String, Value>,
    answers: Map<String, Value>,
}

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    // A test reads them all.
    let read = |text| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let mut requests = read(include_str!("requests.json"));
    for name in requests.keys().cloned().collect::<Vec<_>>() {
        let members = members_of(&requests, &name);
        let Some(Value::Object(schema)) = requests.get_mut(&name) else { continue };
        if schema.shift_remove("allOf").is_some() {
            schema.insert("properties".into(), members.into());
        }
    }
    Schemas { requests, answers: read(include_str!("answers.json")) }
});

/// A schema's members and those of the schemas that it names.
fn members_of(schemas: &Map<String, Value>, name: &str) -> Members {
    let schema = &schemas[name];
    let named = schema["allOf"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut members: Members = named.flat_map(|name| members_of(schemas, name)).collect();
    members.extend(schema["properties"].as_object().cloned().unwrap_or_default());
    members
}

/// The members of a request's schema. `None`: it has none.
pub fn members(name: &str) -> Option<&'static Members> {
    SCHEMAS.requests.get(name)?.get("properties")?.as_object()
}

/// The members of the object that a member holds. `None`: nothing is said about them.
pub fn members_within(members: &'static Members, name: &str) -> Option<&'static Members> {
    let schema = members.get(name)?;
    match schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        Some(name) => self::members(name),
        None => schema.get("properties")?.as_object(),
    }
}

/// The schemas of a route's bodies; empty names: none.
#[derive(Clone, Copy, Default)]
pub struct Bodies {
    /// Of its requests.
    pub request: &'static str,
    /// Of its answers.
    pub answer: &'static str,
    /// Of the events, or with Ollama of the lines, of streamed answers.
    pub piece: &'static str,
}

/// The schemas of the bodies of a path.
pub fn bodies(path: &str) -> Bodies {
    let (request, answer, piece) = match path {
        "/v1/chat/completions" | "/chat/completions" => ("ChatRequest", "ChatCompletion", "ChatCompletionChunk"),
        "/v1/completions" => ("CompletionRequest", "Completion", "Completion"),
        "/v1/embeddings" => ("EmbeddingsRequest", "Embeddings", ""),
        "/v1/responses" | "/responses" => ("ResponsesRequest", "Response", "ResponseEvent"),
        "/v1/messages" => ("MessagesRequest", "Message", "MessageEvent"),
        "/v1/messages/count_tokens" => ("CountTokensRequest", "TokenCount", ""),
        "/chat/completions/input_tokens" | "/v1/chat/completions/input_tokens" => ("ChatRequest", "TokenCount", ""),
        "/completion" | "/completions" => ("NativeCompletionRequest", "NativeCompletion", "NativeCompletion"),
        "/infill" => ("InfillRequest", "NativeCompletion", "NativeCompletion"),
        "/embedding" | "/embeddings" => ("NativeEmbeddingRequest", "NativeEmbeddings", ""),
        "/tokenize" => ("TokenizeRequest", "Tokens", ""),
        "/detokenize" => ("DetokenizeRequest", "Text", ""),
        "/apply-template" => ("ApplyTemplateRequest", "Text", ""),
        "/predict" => ("PredictRequest", "Predictions", ""),
        "/slots/{id}" => ("SlotRequest", "", ""),
        "/api/chat" => ("OllamaChatRequest", "OllamaReply", "OllamaReply"),
        "/api/generate" => ("OllamaGenerateRequest", "OllamaReply", "OllamaReply"),
        "/api/show" => ("OllamaShowRequest", "", ""),
        "/v1/models" | "/models" => ("", "Models", ""),
        "/v1/models/{model}" => ("", "Model", ""),
        "/health" | "/ready" | "/ping" => ("", "Status", ""),
        "/version" | "/api/version" => ("", "Version", ""),
        "/load" => ("", "Load", ""),
        _ => ("", "", ""),
    };
    Bodies { request, answer, piece }
}

/// A reference to a schema.
fn schema(name: &str) -> Value {
    match name {
        "" => json!({}),
        name => json!({ "$ref": format!("#/components/schemas/{name}") }),
    }
}

/// Lets each member of a request be `null`, which counts as absent, unless it is required.
fn with_null(schema: &mut Value) {
    let required: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, member) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if member.get("properties").is_some() {
            with_null(member);
        }
        if required.iter().any(|own| own == name) {
            continue;
        }
        if let Some(values) = member.get_mut("enum").and_then(Value::as_array_mut) {
            values.push(Value::Null);
            values.dedup();
        }
        match member.get("type").cloned() {
            Some(Value::Array(several)) => member["type"] = [several, vec!["null".into()]].concat().into(),
            Some(one) => member["type"] = json!([one, "null"]),
            None if member.get("$ref").is_some() => *member = json!({ "anyOf": [member, { "type": "null" }] }),
            None => {
                if let Some(several) = member.get_mut("anyOf").and_then(Value::as_array_mut) {
                    several.push(json!({ "type": "null" }));
                }
            }
        }
    }
}

/// The document. `root`: the beginning of paths, if they have one.
pub fn document(root: &str) -> Value {
    let mut paths = Map::new();
    for row in TABLE {
        let Bodies { request, answer, piece } = bodies(row.path);
        let error = match Protocol::of(row.path) {
            Protocol::OpenAi => "Error",
            Protocol::Anthropic => "AnthropicError",
            Protocol::Ollama => "OllamaError",
            Protocol::LlamaCpp => "NativeError",
        };
        let mut operation = json!({
            "summary": row.summary,
            "responses": {
                "200": { "description": "Success" },
                "default": {
                    "description": "An error",
                    "content": { "application/json": { "schema": schema(error) } },
                },
            },
        });
        let mut content = BTreeMap::new();
        if !answer.is_empty() {
            content.insert("application/json", json!({ "schema": schema(answer) }));
        }
        if !piece.is_empty() {
            let kind = if error == "OllamaError" { "application/x-ndjson" } else { "text/event-stream" };
            content.insert(kind, json!({ "schema": schema(piece) }));
        }
        if !content.is_empty() {
            operation["responses"]["200"]["content"] = json!(content);
        }
        if row.path.contains('{') {
            let name = row.path.split(['{', '}']).nth(1);
            operation["parameters"] =
                json!([{ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        if row.takes_body() {
            let any = ["ChatRequest", "CompletionRequest", "EmbeddingsRequest"].map(schema);
            let of = if request.is_empty() { json!({ "anyOf": any }) } else { schema(request) };
            operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": of } } });
        }
        if row.is_open() {
            operation["security"] = json!([]);
        }
        let methods = paths.entry(row.path).or_insert_with(|| json!({}));
        methods[row.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = SCHEMAS.requests.clone();
    schemas.values_mut().for_each(with_null);
    schemas.extend(SCHEMAS.answers.clone());
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Hologram", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "schemas": schemas, "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } },
        "security": [{ "key": [] }, {}],
    });
    if !root.is_empty() {
        document["servers"] = json!([{ "url": root }, { "url": "/" }]);
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `visit` with each object within a value.
    fn each(value: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(map) => {
                visit(map);
                map.values().for_each(|value| each(value, visit));
            }
            Value::Array(items) => items.iter().for_each(|item| each(item, visit)),
            _ => {}
        }
    }

    #[test]
    fn all_names_have_a_schema() {
        let document = document("/llm");
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(!SCHEMAS.requests.is_empty() && !SCHEMAS.answers.is_empty());
        assert_eq!(schemas.len(), SCHEMAS.requests.len() + SCHEMAS.answers.len(), "two have the same name");
        let mut named = 0;
        each(&document, &mut |map| {
            assert!(!map.contains_key("allOf"), "{map:?}");
            if let Some(Value::String(path)) = map.get("$ref") {
                assert!(schemas.contains_key(path.rsplit('/').next().unwrap()), "{path}");
                named += 1;
            }
            for name in map.get("required").and_then(Value::as_array).into_iter().flatten() {
                let members = map["properties"].as_object().unwrap();
                assert!(members.contains_key(name.as_str().unwrap()), "{name} of {map:?}");
            }
        });
        assert!(named > 100);
        for row in TABLE.iter().filter(|row| row.takes_body() && row.path != "/invocations") {
            assert!(members(bodies(row.path).request).is_some(), "{}", row.path);
        }
    }

    #[test]
    fn members_are_found_within_members() {
        let chat = members("ChatRequest").unwrap();
        assert!(chat.contains_key("temperature") && chat.contains_key("messages") && !chat.contains_key("prompt"));
        let options = members_within(chat, "stream_options").unwrap();
        assert!(options.contains_key("include_usage"));
        let format = members_within(members_within(chat, "response_format").map(|_| chat).unwrap(), "response_format");
        assert!(members_within(format.unwrap(), "json_schema").unwrap().contains_key("strict"));
        assert!(members_within(chat, "chat_template_kwargs").is_none() && members_within(chat, "none").is_none());
    }
}
