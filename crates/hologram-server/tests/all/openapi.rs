//! `/openapi.json`: its schemas are those of what the server takes and answers.

use crate::common::{Answer, Running, options, serve, serve_with};
use serde_json::{Map, Value, json};

fn server() -> Running {
    serve(options(), |engine| engine.max_sequences = 8)
}

/// The document, with the checks of values by its schemas.
struct Document(Value);

impl Document {
    fn of(server: &Running) -> Document {
        Document(server.get("/openapi.json").json())
    }

    fn schema(&self, name: &str) -> &Value {
        let schema = &self.0["components"]["schemas"][name];
        assert!(schema.is_object(), "{name}");
        schema
    }

    /// What is wrong with a value. A member that its schema does not name is wrong, too.
    fn faults(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        if let Some(path) = schema["$ref"].as_str() {
            return self.faults(self.schema(path.rsplit('/').next().unwrap()), value, at);
        }
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(format!("{at}: {what}"));
        for (word, limit) in schema.as_object().unwrap() {
            match word.as_str() {
                "description" | "properties" | "additionalProperties" | "items" => {}
                "type" => {
                    let known = |name: &Value| match name.as_str().unwrap() {
                        "null" => value.is_null(),
                        "boolean" => value.is_boolean(),
                        "integer" => value.is_i64() || value.is_u64(),
                        "number" => value.is_number(),
                        "string" => value.is_string(),
                        "array" => value.is_array(),
                        "object" => value.is_object(),
                        other => panic!("{other}"),
                    };
                    if !(if let Value::Array(names) = limit { names.iter().any(known) } else { known(limit) }) {
                        fault(format!("{value} is not {limit}"));
                    }
                }
                "enum" if !limit.as_array().unwrap().contains(value) => fault(format!("{value} is none of {limit}")),
                "enum" => {}
                "anyOf" => {
                    let any = limit.as_array().unwrap().iter().any(|one| self.faults(one, value, at).is_empty());
                    if !any {
                        fault(format!("{value} is none of {limit}"));
                    }
                }
                "required" => {
                    for name in limit.as_array().unwrap() {
                        if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
                            fault(format!("{name} is missing"));
                        }
                    }
                }
                "minimum" if value.as_f64() < limit.as_f64() => fault(format!("{value} is below {limit}")),
                "minimum" => {}
                "maxItems" if value.as_array().map(Vec::len) > limit.as_u64().map(|n| n as usize) => {
                    fault(format!("{value} has more than {limit} items"));
                }
                "maxItems" => {}
                other => panic!("{at}: {other} is not checked here"),
            }
        }
        for (i, item) in value.as_array().into_iter().flatten().enumerate() {
            if schema.get("items").is_some() {
                faults.extend(self.faults(&schema["items"], item, &format!("{at}[{i}]")));
            }
        }
        // An alternative names the members.
        let named = schema.get("properties").is_some() || schema["type"].to_string().contains("object");
        for (name, member) in value.as_object().into_iter().flatten().filter(|_| named) {
            match (schema["properties"].get(name), schema.get("additionalProperties")) {
                (Some(own), _) => faults.extend(self.faults(own, member, &format!("{at}.{name}"))),
                (None, Some(Value::Bool(true))) => {}
                (None, Some(other)) => faults.extend(self.faults(other, member, &format!("{at}.{name}"))),
                (None, None) => faults.push(format!("{at}: the schema has no {name}")),
            }
        }
        faults
    }

    fn check(&self, name: &str, value: &Value) {
        let faults = self.faults(self.schema(name), value, name);
        assert!(faults.is_empty(), "{faults:#?}\n{value}");
    }

    /// The name of the schema of a body.
    fn name(&self, method: &str, path: &str, part: &str, kind: &str) -> String {
        let operation = &self.0["paths"][path][method];
        let body = if part == "request" { &operation["requestBody"] } else { &operation["responses"][part] };
        let reference = body["content"][kind]["schema"]["$ref"].as_str();
        let reference = reference.unwrap_or_else(|| panic!("{method} {path} {part} {kind}: {body}"));
        reference.rsplit('/').next().unwrap().into()
    }
}

fn with(mut body: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn chat(extra: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}), extra)
}

/// The data of a stream, whatever its form.
fn pieces(answer: &Answer) -> (&'static str, Vec<Value>) {
    let lines = answer.header("content-type") == Some("application/x-ndjson");
    let texts = answer.body.lines().filter_map(|line| if lines { Some(line) } else { line.strip_prefix("data: ") });
    let texts = texts.filter(|text| !text.is_empty() && *text != "[DONE]");
    let kind = if lines { "application/x-ndjson" } else { "text/event-stream" };
    (kind, texts.map(|text| serde_json::from_str(text).unwrap()).collect())
}

#[test]
fn answers_keep_their_schemas() {
    // A template with tools.
    let template = "{% for tool in tools %}<tool_call>{{ tool | tojson }}{% endfor %}{% for m in messages %}\
                    {{ m.role }}: {{ m.content }}\n{% endfor %}";
    let server = serve_with(options(), |engine| engine.max_sequences = 8, Some(template));
    let document = Document::of(&server);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false,
    }}}]);
    let told = json!({"return_token_ids": true, "return_tokens_as_token_ids": true});
    let completion = |extra| with(json!({"prompt": "Hello", "max_tokens": 4}), extra);
    let message = |extra| with(json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}), extra);
    let ollama = |extra| with(json!({"model": "tiny", "options": {"num_predict": 4}}), extra);
    let calls = |extra| with(chat(json!({"tools": tools, "max_tokens": 80})), extra);
    let cases = [
        ("/v1/chat/completions", calls(json!({"tool_choice": "required"}))),
        ("/v1/chat/completions", chat(json!({}))),
        ("/v1/chat/completions", chat(json!({"logprobs": true, "top_logprobs": 2, "n": 2}))),
        ("/v1/chat/completions", chat(with(told.clone(), json!({"logprobs": true})))),
        ("/v1/chat/completions", chat(json!({"timings_per_token": true, "return_progress": true, "stop": "a"}))),
        ("/v1/completions", completion(json!({}))),
        ("/v1/completions", completion(with(told, json!({"logprobs": 2, "echo": true, "n": 2})))),
        ("/v1/responses", json!({"input": "Hello", "max_output_tokens": 4})),
        ("/v1/messages", message(json!({}))),
        ("/completion", json!({"prompt": "Hello", "n_predict": 4, "n_probs": 2, "return_tokens": true})),
        ("/api/chat", ollama(json!({"messages": [{"role": "user", "content": "Hello"}], "stream": false}))),
        ("/api/generate", ollama(json!({"prompt": "Hello", "stream": false}))),
    ];
    for (path, body) in cases {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
        document.check(&document.name("post", path, "200", "application/json"), &answer.json());
        let streamed = server.post(path, &with(body.clone(), json!({"stream": true})));
        let (kind, all) = pieces(&streamed);
        assert!(!all.is_empty(), "{path} {body}: {}", streamed.body);
        let name = document.name("post", path, "200", kind);
        all.iter().for_each(|piece| document.check(&name, piece));
    }
    let usage = json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    for chunk in server.post("/v1/chat/completions", &chat(usage)).events() {
        document.check("ChatCompletionChunk", &chunk);
    }
    let messages = json!([{"role": "user", "content": "Hello"}]);
    for (path, body) in [
        ("/v1/chat/completions", chat(json!({"prompt_logprobs": 2, "verbose": true}))),
        ("/v1/completions", completion(json!({"prompt_logprobs": 2, "verbose": true}))),
        ("/v1/embeddings", json!({"input": ["a", "b"]})),
        ("/v1/embeddings", json!({"input": "a", "encoding_format": "base64"})),
        ("/embedding", json!({"content": "a"})),
        ("/tokenize", json!({"prompt": "a b", "return_token_strs": true})),
        ("/tokenize", json!({"content": "a b", "with_pieces": true})),
        ("/detokenize", json!({"tokens": [70, 71]})),
        ("/apply-template", json!({"messages": messages})),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
        ("/v1/chat/completions/input_tokens", json!({"messages": messages})),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
        document.check(&document.name("post", path, "200", "application/json"), &answer.json());
    }
    for path in ["/v1/models", "/health", "/ready", "/version", "/api/version", "/load"] {
        document.check(&document.name("get", path, "200", "application/json"), &server.get(path).json());
    }
    document.check("Model", &server.get("/v1/models/tiny").json());
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/completion"] {
        for body in [json!({"model": "tiny"}), json!({"model": "tiny", "prompt": vec![70; 9000]})] {
            let answer = server.post(path, &body);
            assert!(answer.status >= 400, "{path} {body}: {}", answer.body);
            document.check(&document.name("post", path, "default", "application/json"), &answer.json());
        }
    }
}

/// A value that a schema accepts.
fn example(document: &Document, schema: &Value) -> Value {
    if let Some(path) = schema["$ref"].as_str() {
        return example(document, document.schema(path.rsplit('/').next().unwrap()));
    }
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    if let Some(first) = schema["anyOf"].as_array().and_then(|schemas| schemas.first()) {
        return example(document, first);
    }
    match schema["type"].as_str().or(schema["type"][0].as_str()) {
        Some("boolean") => false.into(),
        Some("integer" | "number") => {
            let most = schema["maximum"].as_f64().unwrap_or(1.0);
            json!(schema["minimum"].as_f64().unwrap_or(1.0).max(1.0).min(most) as i64)
        }
        Some("string") => "x".into(),
        Some("array") => json!([]),
        _ => json!({}),
    }
}

/// What a request needs beside a member.
fn minimal(request: &str, member: &str) -> Value {
    if ["add_special", "parse_special", "with_pieces"].contains(&member) {
        return json!({"content": "x"});
    }
    let messages = json!([{"role": "user", "content": "Hello"}]);
    match request {
        "ChatRequest" => json!({"messages": messages, "max_tokens": 1}),
        "CompletionRequest" => json!({"prompt": "Hello", "max_tokens": 1}),
        "NativeCompletionRequest" => json!({"prompt": "Hello", "n_predict": 1}),
        "ResponsesRequest" => json!({"input": "Hello", "max_output_tokens": 1}),
        "MessagesRequest" => json!({"messages": messages, "max_tokens": 1}),
        "EmbeddingsRequest" | "NativeEmbeddingRequest" => json!({"input": "Hello"}),
        "TokenizeRequest" | "ApplyTemplateRequest" | "CountTokensRequest" => json!({"messages": messages}),
        "DetokenizeRequest" => json!({"tokens": [70]}),
        "OllamaChatRequest" => json!({"model": "tiny", "messages": messages, "options": {"num_predict": 1}}),
        "OllamaGenerateRequest" => json!({"model": "tiny", "prompt": "x", "options": {"num_predict": 1}}),
        other => panic!("{other}"),
    }
}

#[test]
fn requests_keep_their_schemas() {
    let server = server();
    let document = Document::of(&server);
    let mut checked = [0; 3];
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/completion",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/embedding",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/api/chat",
        "/api/generate",
    ] {
        let request = document.name("post", path, "request", "application/json");
        let members: &Map<String, Value> = document.schema(&request)["properties"].as_object().unwrap();
        let send = |name: &str, value: &Value| {
            let body = with(minimal(&request, name), json!({name: value}));
            let answer = server.post(path, &body);
            (answer.status, answer.body)
        };
        for (name, schema) in members {
            // Accepted, or refused for its value, but not as unknown.
            let value = if name == "keep_alive" { json!("5m") } else { example(&document, schema) };
            let (status, text) = send(name, &value);
            let unknown = text.contains(&format!("the parameter {name} is not supported"));
            assert!(matches!(status, 200 | 400 | 404) && !unknown, "{path} {name}: {value}: {status} {text}");
            checked[0] += 1;
            // null counts as absent.
            let required =
                document.schema(&request)["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
            if !required && minimal(&request, name).get(name).is_none() {
                let (status, text) = send(name, &Value::Null);
                assert_eq!(status, 200, "{path} {name}: null: {text}");
            }
            let kinds = schema["type"].to_string();
            let wrong = [
                ("boolean", json!(true)),
                ("string", json!("x")),
                ("object", json!({"x": 1})),
                ("array", json!([[[]]])),
            ];
            for (_, value) in wrong.iter().filter(|(kind, _)| schema.get("type").is_some() && !kinds.contains(kind)) {
                let (status, text) = send(name, value);
                assert!((400..500).contains(&status), "{path} {name}: {value}: {status} {text}");
                checked[1] += 1;
            }
            let beyond = [("minimum", -1.0), ("maximum", 1.0)].map(|(word, by)| Some(schema[word].as_f64()? + by));
            for value in beyond.into_iter().flatten().filter(|value| value.abs() < 1e15) {
                let (status, text) = send(name, &json!(value));
                assert_eq!(status, 400, "{path} {name}: {value}: {text}");
                checked[2] += 1;
            }
        }
        let (status, text) = send("no_such_member", &json!(1));
        assert!(status == 400 && text.contains("the parameter no_such_member is not supported"), "{path}: {text}");
    }
    assert!(checked[0] > 200 && checked[1] > 300 && checked[2] > 60, "{checked:?}");
}
