//! Ollama's interface.

use crate::common::{options, serve};
use serde_json::json;

#[test]
fn empty_requests_load_and_unload() {
    let server = serve(options(), |_| ());
    let cases = [
        ("/api/generate", json!({"model": "tiny"}), "load"),
        ("/api/generate", json!({"model": "tiny", "prompt": "", "keep_alive": 0, "stream": false}), "unload"),
        ("/api/chat", json!({"model": "tiny", "messages": []}), "load"),
        ("/api/chat", json!({"model": "tiny", "messages": [], "keep_alive": "0s"}), "unload"),
    ];
    for (path, body, reason) in cases {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        // One object, streamed or not.
        let value = answer.json();
        assert_eq!((&value["done"], &value["done_reason"]), (&json!(true), &json!(reason)), "{value}");
        let text = if path == "/api/chat" { &value["message"]["content"] } else { &value["response"] };
        assert_eq!((text, &value["model"]), (&json!(""), &json!("tiny")));
    }
    // A model that is never unloaded.
    let running = server.get("/api/ps").json();
    let model = &running["models"][0];
    assert_eq!((running["models"].as_array().unwrap().len(), &model["name"]), (1, &json!("tiny")), "{running}");
    assert!(model["size"].as_u64() > Some(1000) && model["size_vram"] == 0, "{model}");
    assert!(model["expires_at"].as_str() > Some("2300-"), "{model}");
    let unknown = server.post("/api/generate", &json!({"model": "other"}));
    assert_eq!(unknown.status, 404);
    let asked = server.post("/api/chat", &json!({
        "model": "tiny", "stream": false, "options": {"num_predict": 3, "temperature": 0}, "messages": [{"role": "user", "content": "Hello"}],
    }));
    assert_eq!((asked.status, &asked.json()["done_reason"]), (200, &json!("length")), "{}", asked.body);
}
