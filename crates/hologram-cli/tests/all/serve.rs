//! `hologram serve`: its one line, its answers, its end.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

const HOLOGRAM: &str = env!("CARGO_BIN_EXE_hologram");

/// A server that is killed with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn request(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    write!(
        stream,
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_built_in_model_is_served_until_a_signal() {
    let command = ["serve", "--port", "0", "--device", "cpu", "--threads", "1", "--log", "info"];
    let mut child = Command::new(HOLOGRAM).args(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut server = Server(child);
    let mut lines = BufReader::new(stdout).lines();
    let address = lines.next().unwrap().unwrap();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    assert!(request(&address, "GET /ready", "").starts_with("HTTP/1.1 200 OK"));
    let text = request(&address, "POST /v1/completions", r#"{"prompt": "A closure in Rust is", "max_tokens": 4}"#);
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("\"model\":\"rust-docs-bitnet\""), "{text}");
    // It has no chat template, and says so.
    let chat = request(&address, "POST /v1/chat/completions", r#"{"messages": [{"role": "user", "content": "Hi"}]}"#);
    assert!(chat.starts_with("HTTP/1.1 400") && chat.contains("/v1/completions"), "{chat}");
    loads_are_measured(&address);
    // The port is taken.
    let port = address.rsplit_once(':').unwrap().1;
    let other = Command::new(HOLOGRAM).args(["serve", "--port", port]).output().unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains(&format!("cannot listen on 127.0.0.1, port {port}")));
    let pid = server.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    assert!(lines.next().is_none(), "more than one line on standard output");
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    // With --log every line is an object.
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let requests = lines.iter().filter(|line| line["path"].as_str().is_some_and(|path| path.starts_with("/v1/")));
    assert!(requests.count() > 2, "{log}");
    assert!(lines[0]["message"].as_str().unwrap().starts_with("rust-docs-bitnet on cpu"), "{log}");
}

#[test]
fn several_models_are_loaded_by_their_first_requests() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures");
    let (chat, other) = (format!("{fixtures}/chat-tiny.gguf"), format!("org/other={fixtures}/llama-tiny.gguf"));
    let models = ["-m", &chat, "-m", &other, "--max-loaded", "1", "--unload-after", "1"];
    let command = ["serve", "--port", "0", "--device", "cpu", "--threads", "1", "--log", "info"];
    let mut child = Command::new(HOLOGRAM);
    child.args(command).args(models).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut server = Server(child);
    let address = BufReader::new(stdout).lines().next().unwrap().unwrap();
    let list = request(&address, "GET /v1/models", "");
    assert!(list.contains("\"id\":\"chat-tiny\"") && list.contains("\"id\":\"org/other\""), "{list}");
    assert_eq!(list.matches("{\"value\":\"unloaded\"}").count(), 2, "{list}");
    for name in ["org/other", "chat-tiny"] {
        let body = format!(r#"{{"model": "{name}", "prompt": "Hi", "max_tokens": 4}}"#);
        let text = request(&address, "POST /v1/completions", &body);
        assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains(&format!("\"model\":\"{name}\"")), "{text}");
        let list = request(&address, "GET /v1/models", "");
        assert_eq!(list.matches("{\"value\":\"loaded\"}").count(), 1, "{list}");
    }
    let begin = std::time::Instant::now();
    while request(&address, "GET /v1/models", "").matches("{\"value\":\"unloaded\"}").count() != 2 {
        assert!(begin.elapsed().as_secs() < 20, "no model was unloaded");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(Command::new("kill").args(["-TERM", &server.0.id().to_string()]).status().unwrap().success());
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    // With --log every line is an object.
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let loaded = lines.iter().filter(|line| line["message"] == "loaded").map(|line| &line["model"]);
    assert_eq!(loaded.collect::<Vec<_>>(), ["org/other", "chat-tiny"], "{log}");
}

/// Closed and open loops against the server.
fn loads_are_measured(address: &str) {
    let run = |options: &str| {
        let options = options.split_whitespace();
        let output = Command::new(HOLOGRAM).args(["load", address, "--ignore-eos"]).args(options).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let lengths = std::env::temp_dir().join(format!("hologram-lengths-{}", std::process::id()));
    std::fs::write(&lengths, "{\"prompt_tokens\": 3, \"max_tokens\": 2}\n{\"prompt\": \"Rust\", \"max_tokens\": 5}\n")
        .unwrap();
    for (options, tokens) in [
        ("--users 2 -n 5 -p 8 --max-tokens 4 --json", 20),
        ("--rate 100 -n 4 -p 8 --max-tokens 4 --json", 16),
        (&*format!("-n 4 --json --lengths {}", lengths.display()), 14),
    ] {
        let (code, out, err) = run(options);
        assert_eq!(code, Some(0), "{options}: {err}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&report["tokens"], &report["failed"]), (&tokens.into(), &0.into()), "{report}");
        let first = &report["first_token_ms"];
        assert!(first["p50"].as_f64() <= first["p99"].as_f64() && first["p50"].as_f64() > Some(0.0), "{report}");
        assert!(report["answer_ms"]["p50"].as_f64() >= first["p50"].as_f64(), "{report}");
    }
    std::fs::remove_file(lengths).unwrap();
    let (code, out, _) = run("-n 2 -p 8 --max-tokens 2");
    assert!(
        code == Some(0) && out.starts_with("rust-docs-bitnet: 2 requests, 1 users") && out.contains("99 %"),
        "{out}"
    );
    // The built-in model has no chat template: the server's reason is told.
    let (code, _, err) = run("--chat -n 2");
    assert!(code == Some(1) && err.contains("status 400") && err.contains("/v1/completions"), "{err}");
}

#[test]
fn faulty_options_are_usage_errors() {
    let faulty = [
        &["--port", "x"][..],
        &["--unix-socket", "s", "--port", "1"],
        &["--api-key", ""],
        &["--ctx", "-1"],
        &["--cors-origin", "foo"],
        &["--cors-origin", "https://a.example/path"],
    ];
    for options in faulty {
        let output = Command::new(HOLOGRAM).arg("serve").args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let bench =
        Command::new(HOLOGRAM).args(["bench", "--concurrency", "2", "-p", "0", "--device", "cpu"]).output().unwrap();
    assert_eq!(bench.status.code(), Some(2), "{}", String::from_utf8_lossy(&bench.stderr));
    let missing = Command::new(HOLOGRAM).args(["serve", "--api-key-file", "no-such-file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
}
