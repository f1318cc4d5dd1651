//! llama.cpp's own forms over real sockets with a tiny model.

use crate::common::{Answer, Running, options, serve, serve_file};
use hologram_server::{Options, Part};
use serde_json::{Value, json};

fn server() -> Running {
    serve(options(), |engine| engine.max_sequences = 4)
}

fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": "Hello", "temperature": 0, "n_predict": 12, "ignore_eos": true});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn data(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{}", answer.body);
    let lines = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|text| serde_json::from_str(text).unwrap()).collect()
}

#[test]
fn completions_have_llama_cpps_members() {
    let server = server();
    let answer = server.post("/completion", &completion(json!({"return_tokens": true, "seed": 7})));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let want = json!({
        "index": 0, "id_slot": 0, "stop": true, "model": "tiny", "tokens_predicted": 12, "truncated": false,
        "stop_type": "limit", "stopping_word": "",
    });
    for (name, value) in want.as_object().unwrap() {
        assert_eq!(answer[name], *value, "{name}");
    }
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(server.post("/detokenize", &json!({"tokens": answer["tokens"]})).json()["content"], answer["content"]);
    let settings = &answer["generation_settings"];
    assert_eq!((&settings["n_predict"], &settings["seed"], &settings["top_k"]), (&json!(12), &json!(7), &json!(40)));
    assert_eq!(settings["logit_bias"][0]["bias"], Value::Null, "ends are banned: {settings}");
    let timings = &answer["timings"];
    let cached = timings["cache_n"].as_u64().unwrap();
    assert_eq!(timings["prompt_n"].as_u64().unwrap() + cached, answer["tokens_evaluated"].as_u64().unwrap());
    let rate = 1e3 / timings["predicted_ms"].as_f64().unwrap() * 11.0;
    assert!((timings["predicted_per_second"].as_f64().unwrap() - rate).abs() < 1e-6, "{timings}");
}

/// The text of a stream is that of a whole answer; each chunk but the last has one token.
#[test]
fn streams_equal_whole_completions() {
    let server = server();
    for extra in [json!({}), json!({"n_probs": 3}), json!({"stop": ["e"], "n_predict": 60}), json!({"n_cmpl": 2})] {
        let whole = server.post("/completions", &completion(extra.clone())).json();
        let mut request = completion(extra.clone());
        request["stream"] = true.into();
        request["timings_per_token"] = true.into();
        let chunks = data(&server.post("/completion", &request));
        let whole = if whole.is_array() { whole } else { json!([whole]) };
        for (i, whole) in whole.as_array().unwrap().iter().enumerate() {
            let own: Vec<&Value> = chunks.iter().filter(|chunk| chunk["index"] == i).collect();
            let (last, tokens) = own.split_last().unwrap();
            let text: String = own.iter().map(|chunk| chunk["content"].as_str().unwrap()).collect();
            assert_eq!(text, whole["content"], "{extra}");
            assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &whole["stop_type"]));
            assert_eq!(last["generation_settings"]["n_predict"], whole["generation_settings"]["n_predict"]);
            for chunk in tokens {
                assert!(chunk["stop"] == false && chunk["timings"]["predicted_n"].is_u64(), "{chunk}");
                let probabilities = chunk["completion_probabilities"].as_array().map_or(0, Vec::len);
                assert_eq!(probabilities, if extra["n_probs"].is_null() { 0 } else { 1 }, "{chunk}");
            }
        }
    }
}

#[test]
fn prompts_have_many_forms() {
    let server = server();
    let tokens = server.post("/tokenize", &json!({"content": "Hello", "add_special": true})).json()["tokens"].clone();
    let text = server.post("/completion", &completion(json!({}))).json()["content"].clone();
    for (prompt, answers) in [
        (json!(tokens), 1),
        (json!([tokens, "Hello"]), 2),
        (json!({"prompt_string": "Hello"}), 1),
        (json!(["Hello", {"prompt_string": "Hello"}, {"content": [{"type": "text", "text": "Hello"}]}]), 3),
    ] {
        let answer = server.post("/completion", &completion(json!({"prompt": prompt}))).json();
        let all = if answers == 1 { vec![answer] } else { answer.as_array().unwrap().clone() };
        assert_eq!(all.len(), answers);
        assert!(all.iter().all(|answer| answer["content"] == text), "{prompt}");
    }
    let mixed = completion(json!({"prompt": ["Hello", 5, "there", 6]}));
    let evaluated = server.post("/completion", &mixed).json()["tokens_evaluated"].as_u64().unwrap();
    assert!(evaluated > tokens.as_array().unwrap().len() as u64 + 2);
}

/// The probabilities after sampling are those of the few tokens that were left, and sum to 1.
#[test]
fn probabilities_before_and_after_sampling() {
    let server = server();
    let ask = |extra: Value| {
        let answer = server.post("/completion", &completion(extra)).json();
        answer["completion_probabilities"].as_array().unwrap().clone()
    };
    for token in ask(json!({"n_probs": 4, "temperature": 0})) {
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"], "greedy: {token}");
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 4);
    }
    for token in ask(json!({"n_probs": 9, "temperature": 1.5, "top_k": 3, "min_p": 0, "post_sampling_probs": true})) {
        let top = token["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|one| one["prob"].as_f64().unwrap()).sum();
        assert!(top.len() <= 3 && (sum - 1.0).abs() < 1e-5, "{token}");
        assert!(top.iter().any(|one| one["id"] == token["id"] && one["prob"] == token["prob"]), "{token}");
    }
    for token in ask(json!({"n_probs": 2, "temperature": 0, "post_sampling_probs": true})) {
        assert_eq!((&token["prob"], token["top_probs"].as_array().unwrap().len()), (&json!(1.0), 1));
    }
}

#[test]
fn grammars_schemas_and_biases_hold() {
    let server = server();
    let content = |path: &str, extra: Value| {
        let answer = server.post(path, &completion(extra));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["content"].as_str().unwrap().to_string()
    };
    let text =
        content("/completion", json!({"grammar": "root ::= x{3} [0-9]\nx ::= \"ab\" | \"ba\"", "ignore_eos": false}));
    assert_eq!(text.len(), 7, "{text}");
    assert!(text.as_bytes()[..6].chunks(2).all(|two| two == b"ab" || two == b"ba"), "{text}");
    for grammar in ["root ::= (\"a\" | .) [^\\x00-\\x7f_-]{0,2} |", "%llguidance {}\nstart: /[0-9]/"] {
        let text = content("/completion", json!({"grammar": grammar, "n_predict": 40}));
        assert!(text.chars().count() <= 3, "{grammar}: {text:?}");
    }
    assert_eq!(content("/completion", json!({"json_schema": {"const": "42"}})), "\"42\"");
    let first = |biases: Value| {
        let body = completion(json!({"logit_bias": biases, "n_predict": 1, "return_tokens": true}));
        server.post("/completion", &body).json()["tokens"][0].clone()
    };
    let likeliest = first(json!([]));
    assert_ne!(first(json!([[likeliest, false], ["e", -5.5]])), likeliest);
    let chat = json!({
        "messages": [{"role": "user", "content": "Hi"}], "grammar": "root ::= \"yes\" | \"no\"", "id_slot": 1,
        "verbose": true, "cache_prompt": false, "n_predict": 9,
    });
    let answer = server.post("/chat/completions", &chat).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{answer}");
    assert_eq!(answer["__verbose"]["id_slot"], 1);
    assert!(answer["__verbose"]["prompt"].as_str().unwrap().contains("Hi"));
    assert!(answer["timings"]["predicted_n"].is_u64() && answer["system_fingerprint"].is_string());
}

#[test]
fn a_stream_tells_how_far_the_prompt_is() {
    let server = serve(options(), |engine| (engine.max_sequences, engine.step_tokens) = (2, 16));
    let body = json!({
        "prompt": "One two three four five six seven eight nine ten eleven.", "n_predict": 2, "stream": true,
        "return_progress": true, "cache_prompt": false,
    });
    let progress = |path: &str, body: &Value| -> Vec<Value> {
        let chunks = data(&server.post(path, body));
        chunks.iter().filter_map(|chunk| chunk.get("prompt_progress").cloned()).collect()
    };
    let told = progress("/completion", &body);
    let processed: Vec<u64> = told.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
    let total = told[0]["total"].as_u64().unwrap();
    assert!(processed.len() > 2 && processed[0] == 0 && processed.is_sorted(), "{processed:?}");
    assert_eq!(processed.last(), Some(&total));
}

#[test]
fn faulty_requests_are_named() {
    let server = server();
    for (path, body, status, part) in [
        ("/completion", json!({}), 400, "prompt is required"),
        ("/completion", completion(json!({"mirostat": 2})), 400, "mirostat"),
        ("/completion", completion(json!({"samplers": ["infill"]})), 400, "samplers"),
        ("/completion", completion(json!({"samplers": ["temperature", "top_k"]})), 400, "order"),
        ("/completion", completion(json!({"nonsense": 1})), 400, "nonsense"),
        ("/completion", completion(json!({"id_slot": 4})), 400, "id_slot"),
        ("/completion", completion(json!({"n_probs": 21})), 400, "n_probs"),
        ("/completion", completion(json!({"grammar": "root ::= ("})), 400, "grammar"),
        (
            "/completion",
            completion(json!({"prompt": {"prompt_string": "a", "multimodal_data": "x"}})),
            400,
            "multimodal_data",
        ),
        ("/completion", completion(json!({"prompt": "ab ".repeat(900)})), 400, "exceed_context_size_error"),
        ("/infill", json!({"input_suffix": ""}), 400, "input_prefix is required"),
        ("/infill", json!({"input_prefix": "", "input_suffix": "", "input_extra": [{}]}), 400, "input_extra[0].text"),
        ("/infill", json!({"input_prefix": "", "input_suffix": ""}), 501, "no tokens for that"),
        (
            "/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "verbose": true, "stream": true}),
            400,
            "verbose",
        ),
        ("/predict", json!({}), 400, "instances"),
    ] {
        let answer = server.post(path, &body);
        assert!(answer.status == status && answer.body.contains(part), "{path}: {}", answer.body);
        assert_eq!(answer.json()["error"]["code"], status, "{}", answer.body);
    }
}

#[test]
fn samplers_that_are_not_named_are_off() {
    let server = server();
    let settings = |extra: Value| server.post("/completion", &completion(extra)).json();
    let some = settings(json!({"samplers": ["top_k", "temperature"], "top_k": 1, "temperature": 0.5, "seed": -1}));
    let all = settings(json!({"top_k": 1}));
    assert_eq!(some["content"], all["content"]);
    let (some, all) = (&some["generation_settings"], &all["generation_settings"]);
    assert_eq!((&some["min_p"], &some["top_p"], &some["temperature"]), (&json!(0.0), &json!(1.0), &json!(0.5)));
    assert!(all["min_p"].as_f64().unwrap() > 0.04);
}

#[test]
fn answers_can_be_reduced_to_members() {
    let fields = json!({"response_fields": ["content", "generation_settings/n_predict", "none"]});
    let answer = server().post("/completion", &completion(fields)).json();
    assert_eq!(answer.as_object().unwrap().len(), 2, "{answer}");
    assert_eq!(answer["generation_settings/n_predict"], 12);
}

#[test]
fn several_requests_in_one() {
    let server = server();
    let message = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"instances": [
        {"@requestFormat": "chatCompletions", "messages": message, "max_tokens": 4},
        {"@requestFormat": "/tokenize", "content": "Hi"},
        {"@requestFormat": "chatCompletions", "messages": message, "stream": true},
        {"@requestFormat": "predict", "instances": []},
        {"messages": message},
        5,
    ]});
    let answer = server.post("/predict", &body).json();
    let all = answer["predictions"].as_array().unwrap();
    assert_eq!(all[0]["choices"][0]["message"]["role"], "assistant");
    assert!(all[1]["tokens"].is_array());
    assert!(all[2..].iter().all(|answer| answer["error"]["code"] == 400) && all.len() == 6, "{answer}");
    let counted = server.post("/chat/completions/input_tokens", &json!({"messages": message})).json();
    assert!(counted["input_tokens"].as_u64().unwrap() > 3);
}

#[test]
fn vectors_in_llama_cpps_form() {
    let server = serve_file("chat-tiny.gguf", options(), |_| (), None);
    let answer = server.post("/embeddings", &json!({"input": ["Hi", [5, "there"]]})).json();
    let own = server.post("/v1/embeddings", &json!({"input": "Hi"})).json();
    assert_eq!((&answer[0]["embedding"][0], &answer[1]["index"]), (&own["data"][0]["embedding"], &json!(1)));
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("\nllamacpp:n_decode_total 3\n"), "{metrics}");
}

#[test]
fn metrics_have_llama_cpps_names() {
    let server = server();
    let mut sums = [0, 0, 0];
    for _ in 0..2 {
        let timings =
            &server.post("/completion", &completion(json!({"prompt": "One two. ".repeat(12)}))).json()["timings"];
        for (sum, name) in sums.iter_mut().zip(["prompt_n", "cache_n", "predicted_n"]) {
            *sum += timings[name].as_u64().unwrap();
        }
    }
    assert!(sums[1] > 0);
    let metrics = server.get("/metrics");
    assert!(metrics.header("process-start-time-unix").is_some());
    for (name, sum) in ["prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total"].iter().zip(sums)
    {
        let line = format!("# TYPE llamacpp:{name} counter\nllamacpp:{name} {sum}\n");
        assert!(metrics.body.contains(&line), "{line} in {}", metrics.body);
    }
}

#[test]
fn parts_can_be_left_out() {
    let without = vec![Part::Page, Part::Slots, Part::Metrics];
    let server = serve(Options { without, ..options() }, |_| ());
    let status = |path| server.get(path).status;
    assert_eq!((status("/"), status("/slots"), status("/metrics"), status("/health")), (404, 501, 501, 200));
}
