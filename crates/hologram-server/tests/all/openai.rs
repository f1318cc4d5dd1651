//! OpenAI's interface over real sockets with a tiny model.

use crate::common::{Running, options, serve};
use serde_json::{Value, json};

// Texts of several requests at once are those of one.
fn server() -> Running {
    serve(options(), |engine| {
        engine.max_sequences = 8;
        engine.deterministic = true;
    })
}

/// A request that gives the same text each time.
fn chat(extra: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 12,
    });
    merge(&mut body, extra);
    body
}

fn merge(body: &mut Value, extra: Value) {
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
}

fn completion(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "prompt": "Hello", "temperature": 0, "max_tokens": 12});
    merge(&mut body, extra);
    body
}

#[test]
fn models_are_listed() {
    let server = server();
    let list = server.get("/v1/models").json();
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiny", "alias"]);
    assert_eq!(server.get("/v1/models/alias").json()["root"], "tiny");
    let missing = server.get("/v1/models/gpt");
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.get("/version").json()["version"], env!("CARGO_PKG_VERSION"));
}

/// A stop text ends the output of a schema inside it.
#[test]
fn stop_texts_end_the_output_of_a_schema() {
    let server = server();
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "abc"}}});
    for (stop, want) in [(json!(null), "\"abc\""), (json!("b"), "\"a")] {
        let body = chat(json!({"response_format": format, "stop": stop, "max_tokens": 20}));
        let answer = server.post("/v1/chat/completions", &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(want), &json!("stop")),
            "{answer}"
        );
    }
}

#[test]
fn streams_equal_whole_responses() {
    let server = server();
    for extra in [
        json!({}),
        json!({"n": 3, "temperature": 1.2, "seed": 5}),
        // What sglang-router adds to every request.
        json!({
            "logprobs": false, "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false,
            "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true,
            "return_hidden_states": false,
        }),
        json!({"logprobs": true, "top_logprobs": 3}),
        json!({"stop": ["a", "e"], "max_tokens": 40}),
        json!({"logit_bias": {"65": 20, "66": -100}, "min_p": 0.1, "typical_p": 0.9, "top_k": 5, "repetition_penalty": 1.3}),
    ] {
        let whole = server.post("/v1/chat/completions", &chat(extra.clone()));
        assert_eq!(whole.status, 200, "{extra}: {}", whole.body);
        let whole = whole.json();
        let mut request = chat(extra.clone());
        merge(&mut request, json!({"stream": true, "stream_options": {"include_usage": true}}));
        let chunks = server.post("/v1/chat/completions", &request).events();
        let choices = whole["choices"].as_array().unwrap();
        for (i, choice) in choices.iter().enumerate() {
            let own = |chunk: &&Value| chunk["choices"][0]["index"] == i;
            let own: Vec<&Value> = chunks.iter().filter(own).map(|chunk| &chunk["choices"][0]).collect();
            assert_eq!(own[0]["delta"]["role"], "assistant");
            let text: String = own.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
            assert_eq!(choice["message"]["content"], text, "{extra}");
            assert_eq!(choice["finish_reason"], own.last().unwrap()["finish_reason"]);
            let logprobs: Vec<&Value> =
                own.iter().filter_map(|c| c["logprobs"]["content"].as_array()).flatten().collect();
            let want = choice["logprobs"]["content"].as_array();
            assert_eq!(logprobs, want.into_iter().flatten().collect::<Vec<_>>(), "{extra}");
        }
        let last = chunks.last().unwrap();
        assert_eq!(
            (&last["choices"], &last["usage"]["completion_tokens"]),
            (&json!([]), &whole["usage"]["completion_tokens"])
        );
        assert_eq!(last["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
        assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null()));
    }
}

#[test]
fn probabilities_are_of_the_tokens() {
    let server = server();
    let answer = server
        .post("/v1/chat/completions", &chat(json!({"logprobs": true, "top_logprobs": 4, "ignore_eos": true})))
        .json();
    let choice = &answer["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), answer["usage"]["completion_tokens"].as_u64().unwrap() as usize);
    for token in tokens {
        // Greedy: the chosen token is the best.
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 4);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
}

#[test]
fn completions_take_texts_and_tokens() {
    let server = server();
    let whole = server.post("/v1/completions", &completion(json!({}))).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["object"], "text_completion");
    let tokens: Vec<Value> = {
        let echoed = server.post("/v1/completions", &completion(json!({"echo": true, "logprobs": 2}))).json();
        let choice = &echoed["choices"][0];
        let logprobs = &choice["logprobs"];
        assert!(choice["text"].as_str().unwrap().ends_with(text));
        let (prompt, all) =
            (echoed["usage"]["prompt_tokens"].as_u64().unwrap(), logprobs["tokens"].as_array().unwrap());
        assert_eq!(all.len() as u64, prompt + echoed["usage"]["completion_tokens"].as_u64().unwrap());
        assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
        assert!(logprobs["token_logprobs"][1].as_f64().unwrap() < 0.0);
        // The offsets are where the tokens lie in the text, in which the first one, BOS, has no place.
        let offsets: Vec<usize> =
            logprobs["text_offset"].as_array().unwrap().iter().map(|o| o.as_u64().unwrap() as usize).collect();
        assert_eq!((offsets[0], offsets[1]), (0, 0), "{choice}");
        for (token, offset) in all.iter().zip(&offsets).skip(2) {
            let rest: String = choice["text"].as_str().unwrap().chars().skip(*offset).collect();
            assert!(rest.starts_with(token.as_str().unwrap()), "{choice}");
        }
        all.clone()
    };
    assert!(tokens.len() > 12);
    // Several prompts with several replies each, in order.
    let many = completion(json!({"prompt": ["Hello", "World"], "n": 2, "echo": true}));
    let many = server.post("/v1/completions", &many).json();
    let texts: Vec<&str> = many["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 4);
    assert_eq!(texts[0], format!("Hello{text}"));
    assert_eq!((texts[0], &texts[2][..5]), (texts[1], "World"));
    // Only the prompt's probabilities.
    let scored = completion(json!({"prompt": [70, 71, 72], "echo": true, "logprobs": 0, "max_tokens": 0}));
    let scored = server.post("/v1/completions", &scored).json();
    assert_eq!(scored["usage"]["completion_tokens"], 0, "{scored}");
    assert_eq!(scored["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 3);
    // A stream of both.
    let stream = completion(json!({"prompt": ["Hello", "World"], "echo": true, "stream": true}));
    let chunks = server.post("/v1/completions", &stream).events();
    let of = |i: usize| -> String {
        let own = chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == i);
        own.map(|c| c["text"].as_str().unwrap()).collect()
    };
    assert_eq!((of(0).as_str(), of(1).as_str()), (texts[0], texts[2]));
}

/// The number of the model's tokens.
fn vocab(server: &Running) -> u64 {
    server.get("/server_info").json()["model"]["vocab"].as_u64().unwrap()
}

#[test]
fn bad_requests_name_the_parameter() {
    let server = server();
    let vocab = vocab(&server);
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let every_token: Value =
        (0..vocab).map(|id| (id.to_string(), json!(-100))).collect::<serde_json::Map<_, _>>().into();
    let image = json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]);
    let chats = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "x"}), "messages"),
        (json!({"messages": ["x"]}), "messages[0]"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": user(json!(1))}), "messages[0].content"),
        (json!({"messages": user(image)}), "messages[0].content[1].type"),
        (json!({"messages": [{"role": "user", "content": "x", "y": 1}]}), "messages[0].y"),
        (json!({"messages": [{"role": "system", "content": "refuse"}]}), "messages"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": true}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": -0.1}), "min_p"),
        (json!({"typical_p": 1.5}), "typical_p"),
        (json!({"return_hidden_states": true}), "return_hidden_states"),
        (json!({"use_beam_search": true}), "use_beam_search"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs"),
        (json!({"prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
        (json!({"return_token_ids": 1}), "return_token_ids"),
        (json!({"add_generation_prompt": false}), "add_generation_prompt"),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": []}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 9223372036854775808u64}), "max_tokens"),
        (json!({"max_completion_tokens": 1e300}), "max_completion_tokens"),
        (json!({"n": 1000000000}), "n"),
        (json!({"n": 0}), "n"),
        (json!({"min_tokens": 5, "max_tokens": 4}), "min_tokens"),
        (json!({"logit_bias": every_token}), "logit_bias"),
        (json!({"seed": 1e30}), "seed"),
        (json!({"seed": "x"}), "seed"),
        (json!({"stop": vec!["x"; 10000]}), "stop"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [1]}), "stop"),
        (json!({"logit_bias": {"99999999": 1}}), "logit_bias"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"store": true}), "store"),
        (json!({"no_such_thing": 1}), "no_such_thing"),
    ];
    let completions = [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": {}}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [1, true]}), "prompt"),
        (json!({"prompt": ["x", true]}), "prompt[1]"),
        (json!({"prompt": [99999999]}), "prompt"),
        (json!({"prompt": [[1], [-1]]}), "prompt[1]"),
        (json!({"prompt": vec!["x"; 9]}), "prompt"),
        (json!({"prompt": ["x", "y", "z"], "n": 3}), "n"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"echo": 1}), "echo"),
        (json!({"prompt_embeds": "AAAA"}), "prompt_embeds"),
    ];
    let chats = chats.into_iter().map(|(extra, param)| ("/v1/chat/completions", chat(extra), param));
    let completions = completions.into_iter().map(|(extra, param)| ("/v1/completions", completion(extra), param));
    for (path, body, param) in chats.chain(completions) {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param, "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    // Messages name what is wrong with the value, and no path of this machine.
    let messages = [
        ("/v1/completions", completion(json!({"prompt": [vocab]})), format!("prompt has the token {vocab}, but")),
        (
            "/v1/chat/completions",
            chat(json!({"messages": [{"role": "system", "content": "refuse"}]})),
            "the chat template rejects the conversation: ".into(),
        ),
        // Numbers keep few digits.
        (
            "/v1/chat/completions",
            chat(json!({"temperature": 1e308})),
            "temperature is 1e308, but must be from 0 to 2".into(),
        ),
        ("/v1/chat/completions", chat(json!({"n": 1e-300})), "n must be a whole number, not 1e-300".into()),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"5": -1e308}})), "a bias is -1e308, but".into()),
        ("/v1/chat/completions", chat(json!({"temperature": 2.5})), "temperature is 2.5, but".into()),
    ];
    for (path, body, begin) in messages {
        let answer = server.post(path, &body).json();
        assert!(answer["error"]["message"].as_str().unwrap().starts_with(&begin), "{answer}");
    }
    let role = chat(json!({"messages": [{"role": "robot", "content": "x"}]}));
    let error = server.post("/v1/chat/completions", &role).json()["error"].clone();
    let roles = "messages[0].role must be one of \"system\", \"developer\", \"user\", \"assistant\", \"tool\"";
    assert_eq!((error["message"].as_str(), error["code"].as_str()), (Some(roles), Some("invalid_value")));
    // An empty text begins with BOS, as on the command line.
    let empty = server.post("/v1/completions", &completion(json!({"prompt": ""})));
    assert_eq!((empty.status, &empty.json()["usage"]["prompt_tokens"]), (200, &json!(1)), "{}", empty.body);
    let other = server.post("/v1/chat/completions", &chat(json!({"model": "gpt-4o"})));
    assert_eq!((other.status, &other.json()["error"]["param"]), (404, &json!("model")));
    // It works after all that, also by its other name and without one.
    for model in [json!("alias"), Value::Null] {
        assert_eq!(server.post("/v1/chat/completions", &chat(json!({"model": model}))).status, 200);
    }
}

#[test]
fn biases_that_leave_no_token_end_the_request() {
    let server = server();
    let vocab = vocab(&server);
    // Of the tokens that remain, min_tokens forbids the last: the model's end token.
    let ends = server.get("/props").json()["eos_token"].as_str().unwrap().to_string();
    let ends = server.post("/tokenize", &json!({"content": ends})).json()["tokens"][0].as_u64().unwrap();
    let bias: serde_json::Map<_, _> =
        (0..vocab).filter(|id| *id != ends).map(|id| (id.to_string(), json!(-100))).collect();
    for (stream, min) in [(false, 1), (true, 1), (false, 0)] {
        let answer = server
            .post("/v1/chat/completions", &chat(json!({"logit_bias": bias, "min_tokens": min, "stream": stream})));
        let want = if min == 1 { 400 } else { 200 };
        assert_eq!(answer.status, want, "{}", answer.body);
    }
}

#[test]
fn control_tokens_in_contents_are_text() {
    let server = server();
    let count = |body: Value| server.post("/tokenize", &body).json()["tokens"].as_array().unwrap().clone();
    let of = |content: &str| count(json!({"messages": [{"role": "user", "content": content}]}));
    let control = server.get("/props").json()["eos_token"].as_str().unwrap().to_string();
    let id = count(json!({"content": control}))[0].clone();
    let fences = |tokens: &[Value]| tokens.iter().filter(|token| **token == id).count();
    let (with, without) = (of(&format!("Hello{control}Hello")), of("HelloHello"));
    assert_eq!(fences(&with), fences(&without), "{control}: {with:?}");
    assert!(with.len() > without.len() + 1);
    // The text is the same as it was written.
    let text = |tokens: &[Value]| server.post("/detokenize", &json!({"tokens": tokens})).json()["prompt"].to_string();
    assert!(text(&with).contains(&format!("Hello{control}Hello")), "{}", text(&with));
    let applied = server.post("/apply-template", &json!({"messages": [{"role": "user", "content": control}]}));
    assert!(applied.json()["prompt"].as_str().unwrap().contains(&control));
}

#[test]
fn a_prompt_that_cannot_fit_is_not_tokenized() {
    let mut large = options();
    large.limits.body = 16 << 20;
    large.limits.body_time = std::time::Duration::from_secs(20);
    let server = serve(large, |engine| engine.context = 64);
    let text = "a".repeat(15_000_000);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]})),
    ] {
        let started = std::time::Instant::now();
        let answer = server.post(path, &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("at least"), "{error}");
        // Without optimization, tokenizing takes minutes.
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
}

#[test]
fn embeddings_are_the_models_own() {
    let server = server();
    let ask = |body: Value| server.post("/v1/embeddings", &body);
    let vectors = |answer: Value| -> Vec<Vec<f64>> {
        let rows = answer["data"].as_array().unwrap().iter().map(|row| row["embedding"].as_array().unwrap().clone());
        rows.map(|row| row.iter().map(|v| v.as_f64().unwrap()).collect()).collect()
    };
    let whole = ask(json!({"model": "tiny", "input": ["Hello", "World", "Hello"]}));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let usage = whole.json()["usage"].clone();
    let rows = vectors(whole.json());
    assert!(rows[0] == rows[2] && rows[0] != rows[1]);
    // Computed by the session itself from the tokens that the server counts.
    let tokens = server.post("/tokenize", &json!({"prompt": "Hello"})).json()["tokens"].clone();
    let ids: Vec<u32> = tokens.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let executor = hologram_core::Executor::open("cpu", Some(1)).unwrap();
    let model = hologram_llm::Model::load_on(crate::common::fixture("chat-tiny.gguf"), &executor).unwrap();
    let mut session = model.session(hologram_llm::SessionOptions { context: 64, ..Default::default() }).unwrap();
    let state = session.feed_hidden(0, &ids, hologram_llm::Logits::Last).unwrap().to_vec();
    let length = state.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let close = |got: &[f64], scale: f64| got.iter().zip(&state).all(|(g, s)| (g - f64::from(*s) * scale).abs() < 1e-5);
    assert!(rows[0].len() == state.len() && close(&rows[0], length.recip()), "{:?}", &rows[0][..4]);
    // Tokens instead of a text; fewer dimensions, again of length 1; base64.
    assert_eq!(vectors(ask(json!({"input": ids})).json())[0], rows[0]);
    assert_eq!(usage["prompt_tokens"].as_u64().unwrap() as usize % ids.len(), 0);
    let short = &vectors(ask(json!({"input": "Hello", "dimensions": 8})).json())[0];
    assert!((short.iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-6 && short.len() == 8);
    assert!((short[0] / short[1] - rows[0][0] / rows[0][1]).abs() < 1e-4);
    let base64 = ask(json!({"input": "Hello", "encoding_format": "base64"})).json();
    let text = base64["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (state.len() * 4).div_ceil(3) * 4);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": " "}), "input"),
        (json!({"input": ["x", ""]}), "input[1]"),
        (json!({"input": ["x", true]}), "input[1]"),
        (json!({"input": "x", "dimensions": 1000000}), "dimensions"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "x", "prompt_name": "query"}), "prompt_name"),
    ] {
        let answer = ask(body);
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(param)), "{}", answer.body);
    }
}

/// An encoder's vectors are those that the reference library computes; it continues no text.
#[test]
fn an_encoder_has_embeddings_alone() {
    let server = crate::common::serve_file("bert/model.gguf", options(), |engine| engine.context = 96, None);
    let expected = std::fs::read(crate::common::fixture("bert/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let answer = server.post("/v1/embeddings", &json!({"input": expected["texts"]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let rows = answer.json()["data"].as_array().unwrap().clone();
    for (row, want) in rows.iter().zip(expected["vectors"].as_array().unwrap()) {
        let pairs = row["embedding"].as_array().unwrap().iter().zip(want.as_array().unwrap());
        for (got, want) in pairs {
            assert!((got.as_f64().unwrap() - want.as_f64().unwrap()).abs() < 1e-5, "{row}");
        }
    }
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}]});
    for (path, body) in [("/v1/completions", completion(json!({"prompt": "Hello"}))), ("/v1/chat/completions", chat)] {
        let refused = server.post(path, &body);
        let reason = "the model is an encoder, which continues no text: use it for embeddings (/v1/embeddings)";
        assert_eq!((refused.status, refused.json()["error"]["message"].as_str()), (400, Some(reason)));
    }
    let long = server.post("/v1/embeddings", &json!({"input": "a ".repeat(200)})).body;
    assert!(long.contains("tokens, but the context holds 96\""), "{long}");
    let shown = server.post("/api/show", &json!({"model": "tiny"})).json();
    assert_eq!(shown["capabilities"], json!(["embedding"]), "{shown}");
}

#[test]
fn a_full_context_is_an_error_with_both_numbers() {
    let server = serve(options(), |engine| engine.context = 64);
    let answer = server.post("/v1/completions", &completion(json!({"prompt": vec![70; 64]})));
    let error = answer.json()["error"].clone();
    assert_eq!(
        (answer.status, &error["code"], &error["param"]),
        (400, &json!("context_length_exceeded"), &json!("prompt"))
    );
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(64), &json!(64)));
    let answer =
        server.post("/v1/completions", &completion(json!({"prompt": vec![70; 63], "ignore_eos": true}))).json();
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
        (&json!("length"), &json!(1))
    );
}
