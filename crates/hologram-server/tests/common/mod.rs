//! A server on a free port, and a client that writes its own bytes.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hologram_core::Executor;
use hologram_llm::{EngineOptions, Model};
use hologram_server::{Limits, Listen, Options, Served, Server};
use serde_json::Value;

/// A fixture of hologram-llm.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hologram-llm/tests/fixtures").join(name)
}

/// A running server.
pub struct Running {
    pub server: Option<Server>,
    pub port: u16,
}

/// Options of tests: a free port, short times.
pub fn options() -> Options {
    let limits = Limits {
        body: 1 << 20,
        head_time: Duration::from_millis(700),
        body_time: Duration::from_millis(700),
        read_time: Duration::from_secs(2),
        sequences: 8,
        drain_time: Duration::from_secs(20),
        ..Limits::default()
    };
    Options { listen: Listen::Tcp("127.0.0.1".into(), 0), limits, ..Options::default() }
}

/// A server without a model.
pub fn loading(options: Options) -> Running {
    let server = Server::start(options).unwrap();
    let port = server.addresses()[0].rsplit_once(':').unwrap().1.parse().unwrap();
    Running { server: Some(server), port }
}

/// A server of the tiny chat model, called `tiny` and `alias`.
pub fn serve(options: Options, engine: impl FnOnce(&mut EngineOptions)) -> Running {
    serve_with(options, engine, None)
}

/// As [`serve`], with another chat template.
pub fn serve_with(options: Options, engine: impl FnOnce(&mut EngineOptions), template: Option<&str>) -> Running {
    serve_file("chat-tiny.gguf", options, engine, template)
}

/// As [`serve_with`], with another fixture of hologram-llm.
pub fn serve_file(
    name: &str,
    options: Options,
    engine: impl FnOnce(&mut EngineOptions),
    template: Option<&str>,
) -> Running {
    let running = loading(options);
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let model = Arc::new(Model::load_on(fixture(name), &executor).unwrap());
    let template = template.map(|source| ("template.jinja".as_ref(), source));
    let mut options = EngineOptions::for_model(&model);
    engine(&mut options);
    let served = Served::new(vec!["tiny".into(), "alias".into()], model, options, template);
    let served = served.unwrap();
    running.server.as_ref().unwrap().provide(served);
    running
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|l| l.split(':').next().is_some_and(|n| n.eq_ignore_ascii_case(name)))?;
        Some(line.split_once(':')?.1.trim())
    }

    /// The data of server-sent events but for `[DONE]`, which must be last.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{}", self.body);
        let mut data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"));
        data.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }
}

impl Running {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends these bytes and reads until the server closes.
    pub fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// Sends a request with these further headers, each with its line end.
    pub fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        answer(&self.raw(&[head.as_bytes(), body].concat()))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, "content-type: application/json\r\n", body.to_string().as_bytes())
    }
}

/// Takes a response apart.
pub fn answer(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no status: {head}"));
    let mut answer = Answer { status, head: head.into(), body: body.into() };
    if answer.header("transfer-encoding") == Some("chunked") {
        let (mut rest, mut whole) = (body, String::new());
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).unwrap();
            whole += &after[..size];
            rest = after[size..].strip_prefix("\r\n").unwrap();
        }
        answer.body = whole;
    }
    answer
}
