//! `POST /slots/{id}`: conversations in files.

use std::path::Path;

use crate::common::{Answer, Running, options, serve};
use hologram_server::{Keys, Options};
use serde_json::{Value, json};

fn folder(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("hologram-slots-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn server(folder: &Path) -> Running {
    let keys = Keys::new(&["one".into(), "two".into()], None).unwrap();
    serve(Options { slot_folder: Some(folder.into()), keys, ..options() }, |engine| engine.max_sequences = 2)
}

fn post(server: &Running, key: &str, path: &str, body: &Value) -> Answer {
    let headers = format!("content-type: application/json\r\nauthorization: Bearer {key}\r\n");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    server.request("POST", path, &headers, body.as_bytes())
}

/// The reply to a long prompt, and how many of its tokens the cache had.
fn complete(server: &Running, key: &str, prompt: &str) -> (String, u64) {
    let body = json!({"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true});
    let answer = post(server, key, "/v1/completions", &body).json();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (answer["choices"][0]["text"].as_str().unwrap().to_string(), cached)
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let folder = folder("saved");
    let prompt = "One two three four five six seven. ".repeat(8);
    let first = server(&folder);
    let file = json!({"filename": "talk.bin"});
    let nothing = post(&first, "one", "/slots/0?action=save", &file);
    assert_eq!((nothing.status, &nothing.json()["error"]["param"]), (400, &json!("id_slot")));
    let (text, cached) = complete(&first, "one", &prompt);
    assert_eq!(cached, 0);
    // The slot's text is that of another key.
    assert_eq!(post(&first, "two", "/slots/0?action=save", &file).status, 400);
    let saved = post(&first, "one", "/slots/0?action=save", &file).json();
    let bytes = std::fs::metadata(folder.join("talk.bin")).unwrap().len();
    let tokens = saved["n_saved"].as_u64().unwrap();
    assert!(tokens >= 64 && tokens.is_multiple_of(32), "{saved}");
    assert_eq!(
        (&saved["id_slot"], &saved["filename"], &saved["n_written"]),
        (&json!(0), &file["filename"], &json!(bytes))
    );

    std::fs::create_dir(folder.join("other")).unwrap();
    let onto = post(&first, "one", "/slots/0?action=save", &json!({"filename": "other"}));
    assert!(onto.status == 400 && onto.body.contains("it is not a regular file"), "{}", onto.body);
    std::fs::remove_dir(folder.join("other")).unwrap();

    let second = server(&folder);
    let restored = post(&second, "one", "/slots/1?action=restore", &file).json();
    assert_eq!(
        (&restored["n_restored"], &restored["n_read"], &restored["id_slot"]),
        (&json!(tokens), &json!(bytes), &json!(1))
    );
    assert_eq!(complete(&second, "two", &prompt).1, 0, "another key finds nothing");
    let (again, cached) = complete(&second, "one", &prompt);
    assert!(again == text && cached >= tokens.min(64), "{cached} of {tokens}: {again:?}, not {text:?}");
    let erased = post(&second, "one", "/slots/1?action=erase", &Value::Null).json();
    assert!(erased["n_erased"].as_u64().unwrap() >= 64, "{erased}");
    assert_eq!(post(&second, "one", "/slots/1?action=erase", &json!({})).json()["n_erased"], 0);

    let outside = folder.parent().unwrap().join("outside.bin");
    std::fs::copy(folder.join("talk.bin"), &outside).unwrap();
    std::fs::write(folder.join("damaged"), &std::fs::read(&outside).unwrap()[..bytes as usize - 1]).unwrap();
    for (path, body, part) in [
        ("/slots/0?action=restore", json!({"filename": "../outside.bin"}), "plain name"),
        ("/slots/0?action=restore", json!({"filename": outside}), "plain name"),
        ("/slots/0?action=restore", json!({"filename": "none"}), "there is no such file"),
        ("/slots/0?action=restore", json!({"filename": "damaged"}), "damaged or incomplete"),
        ("/slots/0?action=save", json!({}), "filename is required"),
        ("/slots/0?action=save", json!({"filename": "a", "more": 1}), "more"),
        ("/slots/2?action=erase", json!({}), "below 2"),
        ("/slots/x?action=erase", json!({}), "below 2"),
        ("/slots/0?action=move", json!({}), "action must be one of"),
        ("/slots/0", json!({}), "action must be one of"),
    ] {
        let answer = post(&second, "one", path, &body);
        assert!(answer.status == 400 && answer.body.contains(part), "{path} {body}: {}", answer.body);
        assert!(!answer.body.contains(folder.to_str().unwrap()), "{}", answer.body);
    }
    assert_eq!(second.request("POST", "/slots/0?action=erase", "", b"").status, 401);
    std::fs::remove_file(outside).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn without_a_folder_nothing_is_kept() {
    let server = serve(options(), |_| ());
    let answer = server.post("/slots/0?action=save", &json!({"filename": "a"}));
    assert!(answer.status == 501 && answer.body.contains("--slot-save-path"), "{}", answer.body);
    assert_eq!(server.post("/slots/0?action=erase", &json!({})).status, 200);
}
