//! Tools, schemas and thoughts, in OpenAI's and Anthropic's form.

use crate::common::{Answer, Running, options, serve_with};
use serde_json::{Value, json};

/// Writes tools and calls as Hermes and Qwen do.
const HERMES: &str = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";
const LLAMA: &str = "<|start_header_id|>{{ tools | length }} \"parameters\" {{ messages[0].content }}";
const MISTRAL: &str = "[TOOL_CALLS]{{ tools | length }}{{ messages[0].content }}";
/// Later Mistral.
const ARGS: &str = "[TOOL_CALLS][ARGS]{{ tools | length }}{{ messages[0].content }}";
/// The marks of other families' templates.
const CODER: &str = "<tool_call><function=x><parameter=y>{{ tools | length }}{{ messages[0].content }}";
const GLM: &str = "<tool_call><arg_key>{{ tools | length }}{{ messages[0].content }}";
const GEMMA: &str = "<|tool_call>call:{{ tools | length }}{{ messages[0].content }}";
const FUNCTION_GEMMA: &str = "<start_function_call>{{ tools | length }}{{ messages[0].content }}";
const HARMONY: &str =
    "<|channel|>commentary<|message|> functions {{ tools | length }}{{ messages[0].content }}<|start|>assistant";
const DEEPSEEK: &str = "{{ messages[0].content }}{# <｜tool▁calls▁begin｜> #}<｜Assistant｜>";
const DEEPSEEK_R1: &str = "{{ messages[0].content }}{# <｜tool▁calls▁begin｜>```json #}<｜Assistant｜>";
const ALL: [&str; 11] =
    [HERMES, LLAMA, MISTRAL, ARGS, CODER, GLM, GEMMA, FUNCTION_GEMMA, HARMONY, DEEPSEEK, DEEPSEEK_R1];

fn server(template: &str) -> Running {
    serve_with(options(), |engine| (engine.max_sequences, engine.context) = (4, 2048), Some(template))
}

fn weather() -> Value {
    json!({
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

fn openai(choice: Value, extra: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": weather()}});
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300, "temperature": 1.5, "seed": 3,
        "tools": [tool("weather"), tool("climate")], "tool_choice": choice,
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Checks arguments against the schema of [`weather`].
fn check(arguments: &Value) {
    assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
    assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
    assert_eq!(arguments.as_object().unwrap().len(), 2);
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn required_calls_keep_their_schema() {
    for template in ALL {
        let server = server(template);
        for (choice, names) in [
            (json!("required"), &["weather", "climate"][..]),
            (json!({"type": "function", "function": {"name": "climate"}}), &["climate"]),
        ] {
            let whole = server.post(CHAT, &openai(choice.clone(), json!({"parallel_tool_calls": false})));
            assert_eq!(whole.status, 200, "{template}: {}", whole.body);
            let whole = whole.json();
            let choice_of = &whole["choices"][0];
            assert_eq!(choice_of["finish_reason"], "tool_calls", "{template}: {whole}");
            assert!(choice_of["message"]["content"].is_null(), "{whole}");
            let calls = choice_of["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            let function = &calls[0]["function"];
            assert!(names.contains(&function["name"].as_str().unwrap()));
            check(&serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap());
            // The stream gives the same call in pieces.
            let stream = openai(choice, json!({"parallel_tool_calls": false, "stream": true}));
            let chunks = server.post(CHAT, &stream).events();
            let deltas: Vec<&Value> =
                chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].get(0)).collect();
            assert_eq!(deltas[0]["function"]["name"], function["name"]);
            assert!(deltas[0]["id"].is_string() && deltas.len() > 3);
            let pieces: String = deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
            assert_eq!(function["arguments"], pieces);
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        }
    }
}

#[test]
fn texts_and_nested_values_keep_their_schema() {
    let schema = json!({
        "type": "object",
        "properties": {
            "note": {"type": "string", "enum": ["a \"b\"", "c\nd"]},
            "when": {"type": "string", "pattern": "^[0-9]{4}$"},
            "place": {
                "type": "object",
                "properties": {"id": {"$ref": "#/$defs/id"}, "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2}},
                "required": ["id", "tags"],
                "additionalProperties": false,
            },
        },
        "required": ["note", "when", "place"],
        "additionalProperties": false,
        "$defs": {"id": {"enum": [7, null]}},
    });
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    for template in ALL {
        let server = server(template);
        let body = openai(json!("required"), json!({"tools": [tool]}));
        let answer = server.post(CHAT, &body);
        if [GEMMA, FUNCTION_GEMMA].contains(&template) {
            // Its own notation, which has no patterns: refused, not ignored.
            let error = answer.json()["error"].clone();
            assert_eq!((answer.status, &error["param"]), (400, &json!("tools")), "{error}");
            assert!(error["message"].as_str().unwrap().contains("in the schema of f"), "{error}");
            continue;
        }
        assert_eq!(answer.status, 200, "{template}: {}", answer.body);
        // White space in JSON is free, so the tiny model may take long.
        let done = (0..8).find_map(|seed| {
            let extra = json!({"tools": [tool], "seed": seed, "parallel_tool_calls": false, "temperature": 0.8});
            let choice = server.post(CHAT, &openai(json!("required"), extra)).json()["choices"][0].clone();
            (choice["finish_reason"] == "tool_calls").then_some(choice)
        });
        let calls = done.unwrap()["message"]["tool_calls"].clone();
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["a \"b\"", "c\nd"].contains(&arguments["note"].as_str().unwrap()), "{template}: {arguments}");
        assert!(arguments["when"].as_str().unwrap().parse::<u16>().is_ok(), "{template}: {arguments}");
        let place = &arguments["place"];
        assert!(place["id"] == 7 || place["id"].is_null(), "{arguments}");
        assert!((1..=2).contains(&place["tags"].as_array().unwrap().len()), "{arguments}");
    }
}

#[test]
fn optional_members_and_free_texts() {
    let schema = json!({
        "type": "object",
        "properties": {
            "b": {"type": "boolean"},
            "s": {"type": "string", "description": "any text"},
            "n": {"type": ["integer", "null"]},
            "l": {"type": "array", "items": {"type": "object", "properties": {"k": {"const": 1}}, "additionalProperties": false}},
        },
        "additionalProperties": false,
    });
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    for template in ALL {
        let server = server(template);
        for seed in 0..6 {
            let body = openai(json!("required"), json!({"tools": [tool], "seed": seed, "parallel_tool_calls": false}));
            let answer = server.post(CHAT, &body);
            assert_eq!(answer.status, 200, "{template}: {}", answer.body);
            let choice = answer.json()["choices"][0].clone();
            if choice["finish_reason"] == "length" {
                continue;
            }
            let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
            let arguments: Value =
                serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{template}: {e}: {arguments}"));
            for (key, value) in arguments.as_object().unwrap() {
                let fits = match key.as_str() {
                    "b" => value.is_boolean(),
                    "s" => value.is_string(),
                    // Of many digits, too.
                    "n" => value.as_f64().is_some_and(|n| n.fract() == 0.0) || value.is_null(),
                    "l" => value.as_array().unwrap().iter().all(|item| item == &json!({}) || item["k"] == 1),
                    _ => false,
                };
                assert!(fits, "{template}: {arguments}");
            }
        }
    }
}

#[test]
fn replies_are_calls_or_fulfil_the_schema() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "w", "schema": {"enum": ["yes", "no"]}}});
    let (mut calls, mut answers) = (0, 0);
    for template in ALL {
        let server = server(template);
        for seed in 0..8 {
            let extra = json!({"response_format": format, "seed": seed, "parallel_tool_calls": false});
            let choice = server.post(CHAT, &openai(json!("auto"), extra)).json()["choices"][0].clone();
            match choice["message"]["tool_calls"].as_array() {
                Some(list) => {
                    calls += 1;
                    check(&serde_json::from_str(list[0]["function"]["arguments"].as_str().unwrap()).unwrap());
                }
                None => {
                    answers += 1;
                    let text = choice["message"]["content"].as_str().unwrap();
                    assert!(["\"yes\"", "\"no\""].contains(&text.trim()), "{template}: {choice}");
                }
            }
        }
        // A required call is no answer, and none is one.
        let extra = json!({"response_format": format, "parallel_tool_calls": false});
        let required = server.post(CHAT, &openai(json!("required"), extra.clone())).json();
        assert_eq!(required["choices"][0]["finish_reason"], "tool_calls", "{required}");
        let none = server.post(CHAT, &openai(json!("none"), extra)).json();
        assert!(none["choices"][0]["message"]["tool_calls"].is_null(), "{none}");
    }
    // The tiny model chooses by chance.
    assert!(calls > 0 && answers > 0, "{calls} calls, {answers} answers");
}

#[test]
fn a_call_that_is_cut_off_is_none() {
    let (mut cut, mut whole) = (0, 0);
    for template in ALL {
        let server = server(template);
        for limit in [1, 3, 7, 12, 20, 30, 60, 120, 200, 300] {
            let body = openai(json!("required"), json!({"max_tokens": limit, "parallel_tool_calls": false}));
            let answer = server.post(CHAT, &body).json();
            let (choice, none) = (&answer["choices"][0], vec![]);
            let calls = choice["message"]["tool_calls"].as_array().unwrap_or(&none);
            for call in calls {
                whole += 1;
                check(&serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap());
            }
            if choice["finish_reason"] == "length" {
                cut += 1;
                // Nor is its beginning a text.
                let text = choice["message"]["content"].as_str().unwrap_or("");
                assert!(text.is_empty(), "{template} {limit}: {choice}");
            } else {
                assert_eq!((&choice["finish_reason"], calls.len()), (&json!("tool_calls"), 1), "{choice}");
            }
            // A stream has sent the beginning, and says that it was cut off.
            let mut body = body;
            body["stream"] = json!(true);
            let events = server.post(CHAT, &body).events();
            assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], choice["finish_reason"]);

            let tool = |name: &str| json!({"name": name, "input_schema": weather()});
            let extra = json!({
                "max_tokens": limit, "tools": [tool("weather"), tool("climate")], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            });
            let answer = server.post("/v1/messages", &anthropic(extra)).json();
            let blocks = answer["content"].as_array().unwrap();
            let uses = blocks.iter().filter(|block| block["type"] == "tool_use");
            uses.clone().for_each(|block| check(&block["input"]));
            let (n, texts) = (uses.count(), blocks.iter().filter(|block| block["text"].as_str() > Some("")).count());
            assert!(texts == 0 && (n == 1 || answer["stop_reason"] == "max_tokens"), "{template} {limit}: {answer}");
        }
    }
    assert!(cut > 20 && whole > 10, "{cut} cut off, {whole} whole");
}

/// A text of `stop` may end a reply within a call, of which a stream has sent the beginning.
#[test]
fn a_call_that_a_text_ends_is_cut_off() {
    for template in [HERMES, MISTRAL, ARGS, HARMONY, DEEPSEEK] {
        let server = server(template);
        let body = |stream: bool| openai(json!("required"), json!({"stop": ["days"], "stream": stream}));
        let choice = &server.post(CHAT, &body(false)).json()["choices"][0];
        assert!(choice["message"]["tool_calls"].is_null() && choice["finish_reason"] == "stop", "{template}: {choice}");
        let events = server.post(CHAT, &body(true)).events();
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length", "{template}");

        let tool = json!({"name": "weather", "input_schema": weather()});
        let extra = json!({
            "max_tokens": 300, "tools": [tool], "tool_choice": {"type": "any"}, "stop_sequences": ["days"], "stream": true,
        });
        let events = named(&server.post("/v1/messages", &anthropic(extra)));
        let reason = events.iter().find_map(|(_, event)| event["delta"]["stop_reason"].as_str());
        assert_eq!(reason, Some("max_tokens"), "{template}");
    }
}

/// A response lacks a call that a limit cut off, and its events do not say that the call is done.
#[test]
fn a_response_lacks_a_call_that_is_cut_off() {
    let (mut cut, mut whole) = (0, 0);
    for template in [HERMES, HARMONY] {
        let server = server(template);
        for limit in [16, 24, 32, 40, 60, 300] {
            let tool = json!({"type": "function", "name": "weather", "parameters": weather()});
            let body = |stream: bool| {
                json!({
                    "input": "Hello", "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
                    "max_output_tokens": limit, "temperature": 1.5, "stream": stream,
                })
            };
            let answer = server.post("/v1/responses", &body(false)).json();
            let calls = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call");
            calls.for_each(|call| check(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()));
            let events = named(&server.post("/v1/responses", &body(true)));
            let (name, last) = events.last().unwrap();
            let done = events.iter().filter(|(name, _)| name == "response.function_call_arguments.done").count();
            match name.as_str() {
                "response.completed" => {
                    assert_eq!(done, 1, "{template} {limit}");
                    whole += 1;
                }
                // Only the end of a whole call was cut off.
                "response.incomplete" if done == 1 => {
                    let arguments = last["response"]["output"][0]["arguments"].as_str().unwrap();
                    check(&serde_json::from_str(arguments).unwrap());
                }
                "response.incomplete" => {
                    assert_eq!(done, 0, "{template} {limit}: {last}");
                    assert!(!last["response"]["output"].to_string().contains("function_call"), "{last}");
                    cut += 1;
                }
                other => panic!("{other}"),
            }
        }
    }
    assert!(cut > 2 && whole > 1, "{cut} cut off, {whole} whole");
}

#[test]
fn strict_tools_keep_their_schema_in_free_replies() {
    let (mut calls, mut texts) = (0, 0);
    for template in ALL {
        let server = server(template);
        let mark = match template {
            HERMES | CODER | GLM => "<tool_call>",
            LLAMA => "{",
            MISTRAL | ARGS => "[TOOL_CALLS]",
            GEMMA => "<|tool_call>",
            FUNCTION_GEMMA => "<start_function_call>",
            HARMONY => "<|channel|>commentary to=functions.",
            _ => "<｜tool▁calls▁begin｜>",
        };
        for seed in 0..6 {
            let mut body =
                openai(json!("auto"), json!({"seed": seed, "parallel_tool_calls": false, "max_tokens": 200}));
            // Without `strict` the model may write anything; with it, only calls have a form.
            body["tools"][0]["function"]["strict"] = json!(true);
            body["tools"][1]["function"]["strict"] = json!(true);
            let answer = server.post(CHAT, &body);
            assert_eq!(answer.status, 200, "{template}: {}", answer.body);
            let choice = &answer.json()["choices"][0];
            match choice["message"]["tool_calls"].as_array() {
                Some(list) => {
                    calls += 1;
                    check(&serde_json::from_str(list[0]["function"]["arguments"].as_str().unwrap()).unwrap());
                }
                None => {
                    texts += 1;
                    let text = choice["message"]["content"].as_str().unwrap_or("");
                    assert!(!text.trim_start().starts_with(mark), "{template}: {choice}");
                }
            }
        }
    }
    // The tiny model chooses by chance.
    assert!(texts > 10, "{calls} calls, {texts} texts");
}

#[test]
fn several_calls_are_parallel() {
    for template in ALL {
        let server = server(template);
        let most = (0..8).map(|seed| {
            let choice = server.post(CHAT, &openai(json!("required"), json!({"max_tokens": 900, "seed": seed}))).json()
                ["choices"][0]
                .clone();
            let list = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            if choice["finish_reason"] == "tool_calls" {
                for call in &list {
                    check(&serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap());
                }
            }
            list.len()
        });
        // A message of harmony has one.
        assert_eq!(most.max().unwrap() > 1, template != HARMONY, "{template}");
    }
}

#[test]
fn schemas_hold_for_replies() {
    let server = server(HERMES);
    let format = json!({"type": "json_schema", "json_schema": {"name": "w", "strict": true, "schema": weather()}});
    let request = json!({
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 120, "temperature": 1.5, "n": 4, "seed": 1,
        "response_format": format,
    });
    let answer = server.post(CHAT, &request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    for choice in answer.json()["choices"].as_array().unwrap() {
        check(&serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap());
    }
    // What cannot be kept is refused before anything is generated.
    let refused = [
        (json!({"type": "integer", "minimum": 5, "maximum": 3}), "response_format"),
        (json!({"$ref": "https://example.org/schema"}), "response_format"),
        (json!({"type": "no such type"}), "response_format"),
    ];
    // In one sentence, without the library's own words.
    let loops = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    let one_of = json!({"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}]});
    for (schema, sentence) in [
        (json!({"$ref": "#"}), "it has the $ref \"#\", which refers only to itself"),
        (loops, "it has the $ref \"#/$defs/b\", which refers only to itself"),
        (
            json!({"$ref": "https://example.org/schema"}),
            "it has the $ref \"https://example.org/schema\"; only parts of the schema itself, #/…, can be referred to",
        ),
        (json!({"$ref": "#/$defs/none"}), "it has the $ref \"#/$defs/none\", but no such part"),
        (json!({"type": "string", "pattern": "("}), "a regular expression in it is faulty: unclosed group"),
        (one_of, "the alternatives of a oneOf must visibly exclude each other; anyOf has no such limit"),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "w", "schema": schema}});
        let body = json!({"messages": [{"role": "user", "content": "x"}], "response_format": format});
        let error = server.post(CHAT, &body).json()["error"].clone();
        let want = format!("response_format is not supported: {sentence}");
        assert_eq!((error["message"].as_str(), &error["param"]), (Some(&*want), &json!("response_format")));
    }
    // The message names the faulty schema, also with both a tool's schema and a response format.
    let tool = |schema: &Value| json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let (good, faulty) = (json!({"type": "object"}), json!({"type": "object", "properties": {"a": {"type": "none"}}}));
    for (of_tool, of_format, param) in [(&faulty, &good, "tools"), (&good, &faulty, "response_format")] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "w", "schema": of_format}});
        let messages = json!([{"role": "user", "content": "x"}]);
        let body = json!({"messages": messages, "response_format": format, "tools": [tool(of_tool)]});
        let answer = server.post(CHAT, &body);
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(param)), "{}", answer.body);
    }
    for (schema, param) in refused {
        let format = json!({"type": "json_schema", "json_schema": {"name": "w", "schema": schema}});
        let body = json!({"messages": [{"role": "user", "content": "x"}], "response_format": format});
        let answer = server.post(CHAT, &body);
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].as_str()),
            (400, Some(param)),
            "{schema}: {}",
            answer.body
        );
    }
}

#[test]
fn faulty_tools_are_named() {
    let server = server(HERMES);
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let many: Vec<Value> = (0..129).map(|i| function(json!({"name": format!("f{i}")}))[0].clone()).collect();
    let cases = [
        (json!({"tools": "x"}), "tools"),
        (json!({"tools": [{"type": "retrieval"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": function(json!({}))}), "tools[0].function.name"),
        (json!({"tools": function(json!({"name": "a b"}))}), "tools[0].function.name"),
        (json!({"tools": function(json!({"name": "f", "parameters": []}))}), "tools[0].function.parameters"),
        (json!({"tools": function(json!({"name": "f", "x": 1}))}), "tools[0].function.x"),
        (json!({"tools": many}), "tools"),
        (json!({"tool_choice": "any"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "none"}}}), "tool_choice"),
        (json!({"tools": null, "tool_choice": "required"}), "tool_choice"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ];
    for (extra, param) in cases {
        let answer = server.post(CHAT, &openai(json!("auto"), extra.clone()));
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].as_str()),
            (400, Some(param)),
            "{extra}: {}",
            answer.body
        );
    }
    let plain = crate::common::serve(options(), |_| ());
    let answer = plain.post(CHAT, &openai(json!("auto"), json!({})));
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("tools")));
}

#[test]
fn conversations_with_calls_are_written() {
    let server = server(HERMES);
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}});
    let body = json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ]});
    let text = server.post("/apply-template", &body).json()["prompt"].as_str().unwrap().to_string();
    let want = "user: Helloassistant: <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>\
                tool: sunassistant: ";
    assert_eq!(text, want);
    let tokens = server.post("/tokenize", &body).json();
    assert_eq!(tokens["count"].as_u64().unwrap() as usize, tokens["tokens"].as_array().unwrap().len());
    let back = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).json();
    assert_eq!(back["prompt"], want);
    let pieces = server.post("/tokenize", &json!({"content": "Hello", "with_pieces": true})).json();
    let spelled: String = pieces["tokens"].as_array().unwrap().iter().filter_map(|t| t["piece"].as_str()).collect();
    assert_eq!(spelled.trim_start(), "Hello");
}

#[test]
fn templates_get_what_they_expect() {
    let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"a\":1}"}});
    let body = json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call("1", "f"), call("2", "g")]},
        {"role": "tool", "tool_call_id": "2", "content": "sun"},
        {"role": "tool", "tool_call_id": "1", "content": "{\"t\": 2}"},
    ]});
    let cases = [
        // Arguments as a text, as DeepSeek's templates append them.
        (
            "{% for c in messages[1].tool_calls %}{{ '<' + c.function.arguments + '>' }}{% endfor %}",
            "<{\"a\":1}><{\"a\":1}>",
        ),
        // Results within the message that called, as in Gemma's.
        (
            "{% for m in messages %}{{ m.role }}{% for r in m.tool_responses %} {{ r.name }}:{{ r.response }}{% endfor %}.{% endfor %}",
            "user.assistant g:sun f:{'t': 2}.",
        ),
    ];
    for (template, want) in cases {
        let answer = server(template).post("/apply-template", &body);
        let text = answer.json()["prompt"].as_str().unwrap_or_else(|| panic!("{}", answer.body)).replace('"', "'");
        assert_eq!(text, want.replace('"', "'"));
    }
    // Tools that the template does not tell of are in the system's message.
    for (template, form) in [(DEEPSEEK, "NAME<｜tool▁sep｜>"), (DEEPSEEK_R1, "function<｜tool▁sep｜>NAME\n```json")]
    {
        let mut body = openai(json!("auto"), json!({"messages": [{"role": "system", "content": "Be brief."}]}));
        ["max_tokens", "temperature", "seed", "tool_choice"]
            .iter()
            .for_each(|key| drop(body.as_object_mut().unwrap().remove(*key)));
        let text = server(template).post("/apply-template", &body).json()["prompt"].as_str().unwrap().to_string();
        assert!(text.starts_with("Be brief.") && text.contains("### climate") && text.contains(form), "{text}");
    }
}

fn anthropic(extra: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "max_tokens": 120, "temperature": 1.5, "seed": 3, "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "Hello"}],
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Names and data of events.
fn named(answer: &Answer) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    for event in answer.body.split("\n\n").filter(|e| !e.is_empty()) {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
        events.push((data["type"].as_str().unwrap().to_string(), data));
    }
    events
}

#[test]
fn anthropic_messages() {
    let server = server(HERMES);
    let whole = server.post("/v1/messages", &anthropic(json!({"max_tokens": 10})));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let count = server.post("/v1/messages/count_tokens", &{
        let mut body = anthropic(json!({}));
        ["max_tokens", "temperature", "seed"].iter().for_each(|key| drop(body.as_object_mut().unwrap().remove(*key)));
        body
    });
    let usage = &whole["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count.json()["input_tokens"], input);
    assert_eq!((&whole["type"], &whole["content"][0]["type"]), (&json!("message"), &json!("text")));
    let streamed = named(&server.post("/v1/messages", &anthropic(json!({"max_tokens": 10, "stream": true}))));
    assert_eq!((streamed[0].0.as_str(), streamed.last().unwrap().0.as_str()), ("message_start", "message_stop"));
    let text: String = streamed.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(whole["content"][0]["text"], text);
    let end = &streamed[streamed.len() - 2].1;
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&whole["stop_reason"], &usage["output_tokens"])
    );
    // A call, whole and streamed, and its result.
    let tools = json!({"tools": [{"name": "weather", "input_schema": weather()}], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}});
    let called = server.post("/v1/messages", &anthropic(tools.clone())).json();
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    check(&called["content"][0]["input"]);
    let mut streaming = anthropic(tools);
    streaming["stream"] = true.into();
    let events = named(&server.post("/v1/messages", &streaming));
    let input: String = events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), called["content"][0]["input"]);
    let back = anthropic(json!({"max_tokens": 1, "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": called["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sun"}]}]},
    ]}));
    assert_eq!(server.post("/v1/messages", &back).status, 200);
    let cases = [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"stop_sequences": [""]}), "stop"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "messages[0].content[0].type"),
        (json!({"container": "x"}), "container"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), "thinking"),
    ];
    for (extra, named) in cases {
        let answer = server.post("/v1/messages", &anthropic(extra));
        let error = answer.json();
        assert_eq!(
            (answer.status, &error["type"], &error["error"]["type"]),
            (400, &json!("error"), &json!("invalid_request_error"))
        );
        assert!(error["error"]["message"].as_str().unwrap().contains(named), "{error}");
    }
}

#[test]
fn thoughts_are_apart() {
    // The template begins them, and the tiny model never ends them.
    let thinking = "{{ messages[0].content }}<think>\n{# think> #}";
    let server = server(thinking);
    let body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let answer = server.post(CHAT, &body).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "");
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty());
    // A constraint leaves no room for them.
    let mut body = body;
    body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "yes"}}});
    let answer = server.post(CHAT, &body).json();
    let message = &answer["choices"][0]["message"];
    assert!(message["content"].as_str().unwrap().starts_with("\"yes"), "{answer}");
    assert!(message["reasoning_content"].is_null());
}
