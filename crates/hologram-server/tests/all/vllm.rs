//! What vLLM's clients add to OpenAI's interface, with a tiny model.

use std::io::Write;
use std::time::Duration;

use crate::common::{Running, options, serve};
use hologram_server::Options;
use serde_json::{Value, json};

// Texts of several requests at once are those of one.
fn server() -> Running {
    serve(options(), |engine| {
        engine.max_sequences = 8;
        engine.deterministic = true;
    })
}

/// A request that gives the same text each time.
fn completion(extra: &Value) -> Value {
    with(json!({"prompt": "Hello", "temperature": 0, "max_tokens": 6, "ignore_eos": true}), extra)
}

fn chat(extra: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    with(json!({"messages": messages, "temperature": 0, "max_tokens": 6, "ignore_eos": true}), extra)
}

fn with(mut body: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().map(|id| id.as_u64().unwrap()).collect()
}

/// What the server answers.
fn ask(server: &Running, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.json()
}

#[test]
fn prompts_have_probabilities() {
    let server = server();
    let body = completion(&json!({"prompt_logprobs": 3, "logprobs": 1, "echo": true, "return_token_ids": true}));
    let choice = ask(&server, "/v1/completions", &body)["choices"][0].clone();
    let (prompt, rows) = (ids(&choice["prompt_token_ids"]), choice["prompt_logprobs"].as_array().unwrap());
    assert_eq!(rows.len(), prompt.len());
    assert!(rows[0].is_null() && prompt.len() > 3);
    for (i, row) in rows.iter().enumerate().skip(1) {
        let own = &row[prompt[i].to_string()];
        // The same number as the other form has.
        assert_eq!(own["logprob"], choice["logprobs"]["token_logprobs"][i], "{choice}");
        assert_eq!(own["decoded_token"], choice["logprobs"]["tokens"][i]);
        let rank = own["rank"].as_u64().unwrap();
        let row = row.as_object().unwrap();
        assert_eq!(row.len() as u64, if rank <= 3 { 3 } else { 4 }, "{row:?}");
        let mut best: Vec<(u64, f64)> =
            row.values().map(|t| (t["rank"].as_u64().unwrap(), t["logprob"].as_f64().unwrap())).collect();
        best.sort_by_key(|(rank, _)| *rank);
        assert!(best.is_sorted_by(|a, b| a.1 >= b.1) && best[2].0 == 3, "{best:?}");
        // The other form has as many alternatives as it was asked for.
        assert!(choice["logprobs"]["top_logprobs"][i].as_object().unwrap().len() <= 2);
    }
    // Asked for alone, they change nothing else; each prompt has its own.
    let body = completion(&json!({"prompt": ["Hello", "World!!"], "n": 2, "prompt_logprobs": 0}));
    let two = ask(&server, "/v1/completions", &body);
    for i in 0..4 {
        let choice = &two["choices"][i];
        assert!(choice["logprobs"].is_null() && choice["prompt_token_ids"].is_null() && choice["token_ids"].is_null());
        let rows = choice["prompt_logprobs"].as_array().unwrap();
        assert!(rows[1..].iter().all(|row| row.as_object().unwrap().len() == 1));
        // Choices of one prompt may be computed in different steps, whose sums differ in the last bits.
        let others = two["choices"][i / 2 * 2]["prompt_logprobs"].as_array().unwrap();
        assert_eq!(rows.len(), others.len());
        for (row, other) in rows.iter().zip(others).skip(1) {
            let (id, own) = row.as_object().unwrap().iter().next().unwrap();
            let apart = own["logprob"].as_f64().unwrap() - other[id]["logprob"].as_f64().unwrap();
            assert!(apart.abs() < 1e-4, "{row} {other}");
            assert_eq!(own["decoded_token"], other[id]["decoded_token"]);
        }
    }
    let asked = ask(&server, "/v1/chat/completions", &chat(&json!({"prompt_logprobs": 2, "n": 2})));
    let tokens = ask(&server, "/tokenize", &json!({"messages": [{"role": "user", "content": "Hello"}]}));
    let rows = asked["prompt_logprobs"].as_array().unwrap();
    assert_eq!(rows.len() as u64, tokens["count"].as_u64().unwrap());
    assert!(rows[1..].iter().all(|row| (2..=3).contains(&row.as_object().unwrap().len())), "{asked}");
    assert!(asked["choices"][0]["logprobs"].is_null());
    assert!(ask(&server, "/v1/chat/completions", &chat(&json!({})))["prompt_logprobs"].is_null());
}

#[test]
fn answers_have_their_tokens() {
    let server = server();
    let told = json!({"return_token_ids": true, "n": 2, "temperature": 1, "seed": 3});
    let whole = ask(&server, "/v1/completions", &completion(&told));
    let usage = whole["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| ids(&choice["token_ids"]).len()).sum::<usize>(), usage);
    let text = ask(&server, "/detokenize", &json!({"tokens": choices[0]["token_ids"]}));
    assert_eq!(text["prompt"], choices[0]["text"]);
    let prompt = ids(&ask(&server, "/tokenize", &json!({"prompt": "Hello"}))["tokens"]);
    assert_eq!(ids(&choices[0]["prompt_token_ids"]), prompt);
    // In a stream the prompt's come first, once, and the rest with their texts.
    let chunks = server.post("/v1/completions", &completion(&with(told.clone(), &json!({"stream": true})))).events();
    for (i, choice) in choices.iter().enumerate() {
        let own: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == i).collect();
        assert_eq!(ids(&own[0]["prompt_token_ids"]), prompt);
        assert!(own[1..].iter().all(|c| c.get("prompt_token_ids").is_none()));
        assert_eq!(own.iter().flat_map(|c| ids(&c["token_ids"])).collect::<Vec<_>>(), ids(&choice["token_ids"]));
        // The last piece of the text has the reason of its end.
        assert!(own[..own.len() - 1].iter().all(|c| c["finish_reason"].is_null()));
        let last = own.last().unwrap();
        assert_eq!((&last["finish_reason"], last["text"] == ""), (&json!("length"), false), "{last}");
    }

    let whole = ask(&server, "/v1/chat/completions", &chat(&told));
    let prompt = ask(&server, "/tokenize", &json!({"messages": [{"role": "user", "content": "Hello"}]}));
    assert_eq!(whole["prompt_token_ids"], prompt["tokens"]);
    let chunks = server.post("/v1/chat/completions", &chat(&with(told, &json!({"stream": true})))).events();
    for i in 0..2 {
        let own: Vec<&Value> = chunks.iter().filter(|c| c["choices"][0]["index"] == i).collect();
        assert_eq!(own[0]["prompt_token_ids"], prompt["tokens"]);
        assert!(own[1..].iter().all(|c| c.get("prompt_token_ids").is_none()));
        let sent = own.iter().filter_map(|c| c["choices"][0].get("token_ids")).flat_map(ids).collect::<Vec<_>>();
        assert_eq!(sent, ids(&whole["choices"][i]["token_ids"]));
    }
    let silent = ask(&server, "/v1/chat/completions", &chat(&json!({})));
    assert!(silent["prompt_token_ids"].is_null() && silent["choices"][0]["token_ids"].is_null());
}

/// The token that ends a text is one of its tokens; of the request's own ones the answer tells which it was.
#[test]
fn the_end_of_a_text_is_told() {
    let server = server();
    let tokens = ids(
        &ask(&server, "/v1/completions", &completion(&json!({"return_token_ids": true})))["choices"][0]["token_ids"],
    );
    let stop = tokens[3];
    let at = tokens.iter().position(|id| *id == stop).unwrap();
    let body = completion(&json!({"stop_token_ids": [stop], "return_token_ids": true}));
    let ended = ask(&server, "/v1/completions", &body);
    let choice = &ended["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    assert_eq!(ids(&choice["token_ids"]), tokens[..=at]);
    assert_eq!(ended["usage"]["completion_tokens"], at + 1);
    let each = json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let chunks = server.post("/v1/completions", &with(body, &each)).events();
    let last = chunks.iter().rev().find(|chunk| chunk["choices"] != json!([])).unwrap();
    assert_eq!(last["choices"][0]["stop_reason"], stop, "{last}");
    assert_eq!(last["usage"]["completion_tokens"], at + 1);
    let sent: Vec<u64> = chunks.iter().filter_map(|c| c["choices"][0].get("token_ids")).flat_map(ids).collect();
    assert_eq!(sent, tokens[..=at]);

    let whole = ask(&server, "/v1/chat/completions", &chat(&json!({})));
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(whole["choices"][0]["stop_reason"].is_null());
    let stop: String = text.chars().skip(2).take(1).collect();
    let ended = ask(&server, "/v1/chat/completions", &chat(&json!({"stop": stop})));
    assert_eq!(ended["choices"][0]["stop_reason"], stop);
}

#[test]
fn tokens_can_be_called_by_their_numbers() {
    let server = server();
    let named = json!({"return_tokens_as_token_ids": true, "return_token_ids": true});
    let choice = ask(
        &server,
        "/v1/completions",
        &completion(&with(named.clone(), &json!({"logprobs": 2, "echo": true}))),
    )["choices"][0]
        .clone();
    let number = |name: &Value| name.as_str().unwrap().strip_prefix("token_id:").unwrap().parse::<u64>().unwrap();
    let called: Vec<u64> = choice["logprobs"]["tokens"].as_array().unwrap().iter().map(number).collect();
    assert_eq!(called, [ids(&choice["prompt_token_ids"]), ids(&choice["token_ids"])].concat());
    let top = choice["logprobs"]["top_logprobs"][1].as_object().unwrap();
    assert!(top.len() >= 2 && top.keys().all(|name| name.starts_with("token_id:")), "{top:?}");
    let body = chat(&with(named, &json!({"logprobs": true, "top_logprobs": 2})));
    let choice = ask(&server, "/v1/chat/completions", &body)["choices"][0].clone();
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.iter().map(|token| number(&token["token"])).collect::<Vec<_>>(), ids(&choice["token_ids"]));
    assert!(content.iter().all(|token| number(&token["top_logprobs"][1]["token"]) < 1 << 32));
}

#[test]
fn a_reply_continues_the_last_message() {
    let server = server();
    let messages = json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The sea is"}]);
    let open = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
    let text = ask(&server, "/apply-template", &open)["prompt"].clone();
    assert!(text.as_str().unwrap().ends_with("The sea is"), "{text}");
    let closed = json!({"messages": messages, "add_generation_prompt": false});
    let closed = ask(&server, "/apply-template", &closed)["prompt"].clone();
    assert!(closed.as_str().unwrap().starts_with(text.as_str().unwrap()) && closed != text, "{closed}");
    let tokens = ask(&server, "/tokenize", &open)["tokens"].clone();
    let told = chat(&with(open.clone(), &json!({"return_token_ids": true})));
    let whole = ask(&server, "/v1/chat/completions", &told);
    assert_eq!(whole["prompt_token_ids"], tokens);
    let added = whole["choices"][0]["message"]["content"].as_str().unwrap().to_string();
    let echoed = ask(&server, "/v1/chat/completions", &chat(&with(open.clone(), &json!({"echo": true}))));
    assert_eq!(echoed["choices"][0]["message"]["content"], format!("The sea is{added}"));
    let chunks =
        server.post("/v1/chat/completions", &chat(&with(open, &json!({"echo": true, "stream": true})))).events();
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, format!("The sea is{added}"));
    // Control tokens that a message spells out are text also there.
    let end = server.get("/props").json()["eos_token"].clone();
    let said = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": end}]);
    let said = json!({"messages": said, "continue_final_message": true});
    let (many, one) = (ask(&server, "/tokenize", &said), ask(&server, "/tokenize", &json!({"content": end})));
    assert!(ids(&many["tokens"]).last() != ids(&one["tokens"]).last(), "{many}");
}

#[test]
fn control_tokens_are_spelled_out_on_request() {
    let server = server();
    let end = server.get("/props").json()["eos_token"].as_str().unwrap().to_string();
    let id = ask(&server, "/tokenize", &json!({"content": end}))["tokens"][0].to_string();
    let forced = json!({"logit_bias": {id: 100}, "max_tokens": 2});
    let hidden = ask(&server, "/v1/completions", &completion(&forced));
    let spelled = ask(&server, "/v1/completions", &completion(&with(forced, &json!({"skip_special_tokens": false}))));
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap().to_string();
    assert_eq!((text(&hidden), text(&spelled)), (String::new(), end.repeat(2)));
}

#[test]
fn paths_may_begin_with_the_proxys_part() {
    let server = serve(Options { root_path: "/llm".into(), ..options() }, |_| ());
    for path in ["/v1/models", "/llm/v1/models", "/llm/health", "/llm/"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in ["/llm", "/llmv1/models", "/llm/llm/v1/models", "/other/v1/models"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    // Errors keep the form of the path below.
    assert_eq!(server.post("/llm/v1/messages", &json!({})).json()["type"], "error");
    assert_eq!(server.get("/openapi.json").json()["servers"][0]["url"], "/llm");
}

#[test]
fn the_load_is_told() {
    let server = server();
    let load = || server.get("/load").json()["server_load"].as_u64().unwrap();
    assert_eq!(load(), 0);
    // A client that reads nothing holds its request up.
    let body = completion(&json!({"max_tokens": 2000, "n": 8, "logprobs": 20, "stream": true})).to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut client = server.connect();
    client.write_all([head, body].concat().as_bytes()).unwrap();
    let until = |want: u64| {
        (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            load() == want
        })
    };
    assert!(until(1));
    drop(client);
    assert!(until(0));
}
