//! Several models of one server: loaded by their first request, unloaded when idle or when another needs the place.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Running, answer, fixture, loading, options};
use hologram_core::Executor;
use hologram_llm::{EngineOptions, Model};
use hologram_server::{Keys, Options, Served, Source};
use serde_json::{Value, json};

/// What the loaders did.
#[derive(Default)]
struct Loads {
    of: [AtomicUsize; 3],
    /// Models that may still be in memory.
    models: Mutex<Vec<Weak<Model>>>,
    /// The most that were at once.
    most: AtomicUsize,
}

impl Loads {
    fn of(&self, index: usize) -> usize {
        self.of[index].load(Ordering::SeqCst)
    }
}

/// A server of the models `a` (alias `org/first`), `b` and `broken`.
fn serve(options: Options) -> (Running, Arc<Loads>) {
    let loads = Arc::new(Loads::default());
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let source = |index: usize, names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let (own, loads, executor) = (names.clone(), loads.clone(), executor.clone());
        let load = move || {
            loads.of[index].fetch_add(1, Ordering::SeqCst);
            if own[0] == "broken" {
                return Err("/secret/path is damaged".into());
            }
            let model = Arc::new(Model::load_on(fixture("chat-tiny.gguf"), &executor).unwrap());
            let mut models = loads.models.lock().unwrap();
            models.retain(|model| model.strong_count() > 0);
            models.push(Arc::downgrade(&model));
            loads.most.fetch_max(models.len(), Ordering::SeqCst);
            let mut options = EngineOptions::for_model(&model);
            options.max_sequences = 8;
            // The same text in any batch.
            options.deterministic = true;
            Served::new(own.clone(), model, options, None).map_err(|e| e.to_string())
        };
        Source::new(names, 1234, Some("llama".into()), load)
    };
    let sources = vec![source(0, &["a", "org/first"]), source(1, &["b"]), source(2, &["broken"])];
    let running = loading(options);
    running.server.as_ref().unwrap().offer(sources);
    (running, loads)
}

fn chat(model: &str, tokens: usize) -> Value {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": true})
}

fn status(server: &Running, name: &str) -> String {
    let model = server.get(&format!("/v1/models/{name}")).json();
    model["status"]["value"].as_str().unwrap().into()
}

/// Waits until a model has this status.
fn wait_for(server: &Running, name: &str, want: &str) {
    let begin = Instant::now();
    while status(server, name) != want {
        assert!(begin.elapsed() < Duration::from_secs(20), "{name} is {}, not {want}", status(server, name));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn models_are_loaded_by_their_first_request() {
    let (server, loads) = serve(options());
    assert_eq!(server.get("/ready").status, 200);
    let list = server.get("/v1/models").json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["a", "org/first", "b", "broken"]);
    assert_eq!((status(&server, "org/first"), status(&server, "b")), ("unloaded".into(), "unloaded".into()));
    let unknown = server.post("/v1/chat/completions", &chat("c", 4));
    let error = &unknown.json()["error"];
    assert_eq!((unknown.status, &error["code"]), (404, &json!("model_not_found")));
    assert!(error["message"].as_str().unwrap().ends_with(r#"these are: "a", "org/first", "b", "broken""#), "{error}");
    // Clients may escape a name in a path.
    for path in ["/v1/models/org%2Ffirst", "/v1/models/org%2ffirst", "/v1/models/org/first"] {
        let model = server.get(path).json();
        assert_eq!((&model["id"], &model["root"]), (&json!("org/first"), &json!("a")), "{path}: {model}");
    }
    let unknown = server.get("/v1/models/org%2Fno%20such");
    let message = unknown.json()["error"]["message"].to_string();
    assert!(unknown.status == 404 && message.contains("org/no such"), "{}", unknown.body);
    assert_eq!(loads.of(0) + loads.of(1), 0);

    let answer = server.post("/v1/chat/completions", &chat("b", 4));
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("b")), "{}", answer.body);
    assert_eq!((status(&server, "b"), status(&server, "a")), ("loaded".into(), "unloaded".into()));
    // Every route finds its model by its name, and the first one without a name.
    for (path, body, want) in [
        ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 2}), "a"),
        ("/v1/completions", json!({"model": "org/first", "prompt": "Hi", "max_tokens": 2}), "a"),
        ("/v1/embeddings", json!({"model": "b", "input": "Hi"}), "b"),
        ("/v1/responses", json!({"model": "b", "input": "Hi", "max_output_tokens": 2}), "b"),
        ("/v1/messages", json!({"model": "b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}), "b"),
        ("/api/generate", json!({"model": "b:latest", "prompt": "Hi", "stream": false}), "b"),
    ] {
        let answer = server.post(path, &body);
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(want)), "{path}: {}", answer.body);
    }
    for (path, body) in [
        ("/tokenize", json!({"model": "c", "prompt": "Hi"})),
        ("/detokenize", json!({"model": "c", "tokens": [1]})),
        ("/apply-template", json!({"model": "c", "messages": []})),
        ("/v1/messages/count_tokens", json!({"model": "c", "messages": []})),
        ("/api/show", json!({"name": "c:latest"})),
    ] {
        assert_eq!(server.post(path, &body).status, 404, "{path}");
    }
    assert_eq!(server.get("/props?model=b").json()["model_alias"], "b");
    assert_eq!(server.get("/props?model=c").status, 404);
    assert_eq!(server.get("/slots?model=broken").json(), json!([]));
    assert_eq!((loads.of(0), loads.of(1)), (1, 1));
    // Each family of metrics has one head and a line for every model.
    let metrics = server.get("/metrics").body;
    assert_eq!(metrics.matches("# TYPE vllm:num_requests_running gauge").count(), 1);
    assert_eq!(metrics.matches("# TYPE vllm:request_prompt_tokens histogram").count(), 1);
    for (model, n) in [("a", 2), ("b", 4), ("broken", 0)] {
        let line = format!("vllm:e2e_request_latency_seconds_count{{model_name=\"{model}\"}} {n}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

#[test]
fn a_key_guards_all_models() {
    let keys = Keys::new(&["secret".into()], None).unwrap();
    let (server, loads) = serve(Options { keys, ..options() });
    assert_eq!(server.post("/v1/chat/completions", &chat("b", 4)).status, 401);
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/props?model=b").status, 401);
    assert_eq!(loads.of(1), 0);
}

#[test]
fn a_model_that_fails_to_load_disturbs_no_other() {
    let (server, loads) = serve(options());
    for _ in 0..2 {
        let answer = server.post("/v1/chat/completions", &chat("broken", 4));
        assert_eq!(answer.status, 500);
        assert!(answer.body.contains("broken") && !answer.body.contains("/secret"), "{}", answer.body);
    }
    // The second request did not read the file again at once.
    assert_eq!(loads.of(2), 1);
    assert_eq!(server.post("/v1/chat/completions", &chat("b", 4)).status, 200);
}

#[test]
fn one_place_is_shared_by_busy_models() {
    let (server, loads) = serve(Options { max_loaded: 1, ..options() });
    let texts: Vec<String> = thread::scope(|scope| {
        let ask = |i: u32| {
            let (server, model) = (&server, if i.is_multiple_of(3) { "b" } else { "a" });
            scope.spawn(move || {
                let answer = server.post("/v1/chat/completions", &chat(model, 40));
                assert_eq!(answer.status, 200, "{}", answer.body);
                let answer = answer.json();
                assert_eq!(answer["model"], model);
                answer["choices"][0]["message"]["content"].as_str().unwrap().to_string()
            })
        };
        let asked: Vec<_> = (0..24).map(ask).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(!texts[0].is_empty() && texts.iter().all(|text| *text == texts[0]));
    assert_eq!(loads.most.load(Ordering::SeqCst), 1);
    // Those who ask together are answered together.
    assert!((1..=4).contains(&loads.of(0)) && (1..=4).contains(&loads.of(1)), "{} {}", loads.of(0), loads.of(1));
}

#[test]
fn a_model_in_use_stays_until_its_last_request_ends() {
    let (server, loads) = serve(Options { max_loaded: 1, ..options() });
    let mut body = chat("a", 3000);
    (body["n"], body["stream"]) = (json!(8), json!(true));
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(20));
    let body = body.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length";
    let mut stream = server.connect();
    write!(stream, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
    wait_for(&server, "a", "loaded");
    thread::scope(|scope| {
        let other = scope.spawn(|| server.post("/v1/chat/completions", &chat("b", 4)).status);
        // Nobody reads the stream, which is longer than the system's buffers: its request goes on.
        thread::sleep(Duration::from_millis(900));
        assert_eq!((status(&server, "a"), status(&server, "b")), ("loaded".into(), "unloaded".into()));
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let whole = answer(&bytes);
        assert!(whole.events().len() > 1000, "{}", whole.events().len());
        assert_eq!(other.join().unwrap(), 200);
    });
    assert_eq!((status(&server, "a"), status(&server, "b")), ("unloaded".into(), "loaded".into()));
    assert_eq!(loads.most.load(Ordering::SeqCst), 1);
}

#[test]
fn idle_models_are_unloaded_and_come_again() {
    let (server, loads) = serve(Options { unload_after: Some(Duration::from_millis(300)), ..options() });
    let text = |server: &Running| {
        let answer = server.post("/v1/chat/completions", &chat("a", 12));
        answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_string()
    };
    let first = text(&server);
    assert_eq!(status(&server, "a"), "loaded");
    wait_for(&server, "a", "unloaded");
    assert!(loads.models.lock().unwrap().iter().all(|model| model.strong_count() == 0));
    assert_eq!(text(&server), first);
    assert_eq!((loads.of(0), loads.of(1)), (2, 0));
}

/// Ollama's `keep_alive`: at once, after a time, never; whatever `--unload-after` says.
#[test]
fn clients_say_how_long_a_model_stays() {
    let (server, loads) = serve(Options { unload_after: Some(Duration::from_millis(400)), ..options() });
    let ask = |model: &str, prompt: &str, keep: Value| {
        let body = json!({"model": model, "prompt": prompt, "stream": false, "options": {"num_predict": 1, "temperature": 0}, "keep_alive": keep});
        let answer = server.post("/api/generate", &body);
        (answer.status, answer.json()["done_reason"].as_str().unwrap_or_default().to_string())
    };
    let done = |reason: &str| (200, reason.to_string());
    // To unload what is not loaded loads nothing.
    assert_eq!((ask("a", "", json!(0)), loads.of(0)), (done("unload"), 0));
    assert_eq!(ask("c", "", json!(0)).0, 404);
    // At once after the reply.
    assert_eq!(ask("a", "Hi", json!(0)), done("length"));
    wait_for(&server, "a", "unloaded");
    // For ever, beside one that goes.
    let running = || {
        let list = server.get("/api/ps").json()["models"].clone();
        let of = |model: &Value| ["name", "expires_at"].map(|key| model[key].as_str().unwrap().to_string());
        list.as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(running(), [[""; 2]; 0]);
    assert_eq!(ask("a", "", json!("1h")), done("load"));
    let [name, expires] = &running()[0];
    // An hour from now lies in another hour of the same day, or in the next day; it is not 292 years ahead.
    assert!(name == "a" && expires.as_str() < "2300-" && expires.ends_with('Z'), "{name} {expires}");
    assert_eq!(ask("a", "", json!(-1)), done("load"));
    assert!(running().len() == 1 && running()[0][1].as_str() > "2300-", "{:?}", running());
    assert_eq!(ask("b", "Hi", json!("1ms")), done("length"));
    wait_for(&server, "b", "unloaded");
    assert_eq!(server.post("/api/chat", &json!({"model": "b", "messages": []})).json()["done_reason"], "load");
    // As the server's option says.
    wait_for(&server, "b", "unloaded");
    // Many times as long as `b` stayed: nothing tells that a model is not going to be unloaded.
    thread::sleep(Duration::from_millis(300));
    assert_eq!((status(&server, "a"), loads.of(0), loads.of(1)), ("loaded".into(), 2, 2));
    assert_eq!(ask("a", "", json!("0s")), done("unload"));
    wait_for(&server, "a", "unloaded");
    assert!(loads.models.lock().unwrap().iter().all(|model| model.strong_count() == 0));
    for wrong in [json!("soon"), json!(true), json!("5d")] {
        assert_eq!(ask("a", "Hi", wrong).0, 400);
    }

    // Without the option, too.
    let (server, _) = serve(options());
    let body = json!({"model": "a", "prompt": "Hi", "stream": false, "keep_alive": "50ms"});
    assert_eq!(server.post("/api/generate", &body).status, 200);
    wait_for(&server, "a", "unloaded");
}
