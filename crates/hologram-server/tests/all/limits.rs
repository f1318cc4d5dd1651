//! What clients may not do: keys, hosts, origins, sizes, times, queues; and how a server ends.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::common::{Running, answer, loading, options, serve};
use hologram_server::{End, Keys};
use serde_json::{Value, json};

/// A request whose text is long: the tiny model needs about a second for it.
fn long(stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2000, "ignore_eos": true, "stream": stream,
    })
}

/// A request that is answered at once.
fn short() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
}

const CHAT: &str = "/v1/chat/completions";

/// Opens a stream and reads its beginning.
fn open(server: &Running, body: &Value) -> std::net::TcpStream {
    let mut stream = server.connect();
    let body = body.to_string();
    write!(stream, "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    stream
}

#[test]
fn keys_guard_every_route_but_health() {
    let keys = Keys::new(&["secret".into(), "other".into()], None).unwrap();
    let server = serve(hologram_server::Options { keys, ..options() }, |_| ());
    let routes = [
        ("GET", "/ready"),
        ("GET", "/version"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("GET", "/none"),
        ("DELETE", "/health"),
    ];
    for (method, path) in routes {
        for headers in
            ["", "authorization: Bearer wrong\r\n", "authorization: Basic secret\r\n", "authorization: secret\r\n"]
        {
            let answer = server.request(method, path, headers, b"");
            assert_eq!(answer.status, 401, "{method} {path} {headers}");
            assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        for headers in ["authorization: Bearer secret\r\n", "authorization: bearer other\r\n", "x-api-key: other\r\n"] {
            assert_ne!(server.request(method, path, headers, b"").status, 401, "{method} {path} {headers}");
        }
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn other_sites_are_kept_out() {
    let mut options = options();
    options.origins = vec!["https://good.example".into()];
    options.hosts = vec!["named.example".into()];
    let server = serve(options, |_| ());
    let host = |host: &str| {
        answer(&server.raw(format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes()))
    };
    for name in ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.168.1.7", "named.example"] {
        assert_eq!(host(name).status, 200, "{name}");
    }
    for name in ["evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io"] {
        assert_eq!(host(name).status, 403, "{name}");
    }
    let from =
        |origin: &str| server.request("POST", CHAT, &format!("origin: {origin}\r\n"), short().to_string().as_bytes());
    let evil = from("https://evil.example");
    assert_eq!((evil.status, evil.header("access-control-allow-origin")), (403, None));
    assert_eq!(from("null").status, 403);
    let good = from("https://good.example");
    assert_eq!((good.status, good.header("access-control-allow-origin")), (200, Some("https://good.example")));
    let own = from("http://localhost");
    assert_eq!((own.status, own.header("access-control-allow-origin")), (200, None));
    // Clients' libraries have headers of their own.
    let wanted = "x-stainless-os, anthropic-dangerous-direct-browser-access, authorization";
    let asks = format!("origin: https://good.example\r\naccess-control-request-headers: {wanted}\r\n");
    for (headers, allowed) in [(asks.as_str(), wanted), ("origin: https://good.example\r\n", "authorization")] {
        let preflight = server.request("OPTIONS", CHAT, headers, b"");
        assert_eq!(preflight.status, 200);
        assert_eq!(preflight.header("access-control-allow-origin"), Some("https://good.example"));
        assert!(preflight.header("access-control-allow-headers").unwrap().contains(allowed), "{}", preflight.head);
    }
    let evil = server.request("OPTIONS", CHAT, "origin: https://evil.example\r\n", b"");
    assert_eq!((evil.status, evil.header("access-control-allow-origin")), (200, None));
    assert_eq!(evil.header("access-control-allow-headers"), None);
}

#[test]
fn pages_of_this_machine_can_be_allowed() {
    let server = loading(hologram_server::Options { origins: vec!["localhost".into()], ..options() });
    let allowed = |origin: &str| {
        let answer = server.request("OPTIONS", CHAT, &format!("origin: {origin}\r\n"), b"");
        answer.header("access-control-allow-origin").map(String::from)
    };
    for origin in ["http://localhost", "http://localhost:3000", "https://127.0.0.1:1", "http://[::1]:3000"] {
        assert_eq!(allowed(origin).as_deref(), Some(origin));
    }
    for origin in ["http://localhost.evil.example", "http://notlocalhost", "http://10.0.0.1", "null", "localhost"] {
        assert_eq!(allowed(origin), None, "{origin}");
    }
}

#[test]
fn request_ids_come_back() {
    let server = loading(options());
    let id = |headers: &str| server.request("GET", "/health", headers, b"").header("x-request-id").map(String::from);
    assert_eq!(id("x-request-id: abc-1\r\n").unwrap(), "abc-1");
    let (one, two) = (id("").unwrap(), id("x-request-id: with space\r\n").unwrap());
    assert!(one.len() == 32 && two.len() == 32 && one != two);
    // Also of errors.
    assert!(server.get("/none").header("x-request-id").is_some());
}

#[test]
fn faulty_bytes_end_only_their_connection() {
    let server = serve(options(), |_| ());
    let post = |body: &[u8]| server.request("POST", CHAT, "", body);
    let nested = "[".repeat(200_000);
    for body in [&b""[..], b"{", b"[]", b"{\"messages\": \xff}", b"{\"n\": NaN}", b"{\"n\": 1e400}", nested.as_bytes()]
    {
        assert_eq!(post(body).status, 400);
    }
    assert_eq!(post(b"{\"n\": 1, \"n\": 2}").status, 400);
    // Longer than the limit of 1 MiB, declared and not.
    let large = vec![b' '; 33_000_000];
    let answered = post(&large);
    assert_eq!((answered.status, answered.header("connection")), (413, Some("close")));
    let mut chunked =
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..20 {
        chunked.extend(b"20000\r\n");
        chunked.extend(vec![b' '; 0x20000]);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    assert_eq!(answer(&server.raw(&chunked)).status, 413);
    let huge = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000000000\r\n\r\n");
    assert_eq!(answer(&server.raw(huge.as_bytes())).status, 413);
    // Headers: too long, too many.
    let long = format!("x-long: {}\r\n", "a".repeat(1 << 20));
    let many = "a: b\r\n".repeat(10_000);
    for headers in [&long, &many] {
        let bytes = server.raw(format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes());
        // The rest of the request may reset the connection before the response arrives.
        assert!(bytes.is_empty() || answer(&bytes).status == 431);
    }
    // Below the parser's buffer, but over the limit of 64 KiB; and a request that names no host, or two.
    for (headers, status) in [
        (format!("host: localhost\r\nx-long: {}\r\n", "a".repeat(66_000)), 431),
        (format!("host: localhost\r\nx-long: {}\r\n", "a".repeat(60_000)), 200),
        ("accept: */*\r\n".into(), 400),
        ("host: localhost\r\nhost: localhost\r\n".into(), 400),
    ] {
        let bytes = server.raw(format!("GET /health HTTP/1.1\r\nconnection: close\r\n{headers}\r\n").as_bytes());
        assert_eq!(answer(&bytes).status, status, "{headers:.80}");
    }
    assert_eq!(answer(&server.raw(b"GET /health HTTP/1.0\r\n\r\n")).status, 200);
    // Other protocols, and noise.
    let mut state = 1u64;
    let mut noise = |n: usize| -> Vec<u8> {
        let byte = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        (0..n).map(byte).collect()
    };
    let others = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00".to_vec(),
        noise(10),
        noise(100_000),
    ];
    for bytes in others {
        let bytes = server.raw(&bytes);
        assert!(bytes.is_empty() || answer(&bytes).status >= 400, "{}", String::from_utf8_lossy(&bytes));
    }
    assert_eq!(server.post(CHAT, &short()).status, 200);
}

#[test]
fn slow_clients_are_closed() {
    let server = serve(options(), |_| ());
    let slow = |bytes: &[u8]| {
        let started = Instant::now();
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        got
    };
    // Headers that do not end.
    let got = slow(b"GET /health HTTP/1.1\r\nhost: lo");
    assert!(got.is_empty() || answer(&got).status == 408);
    // A body that does not.
    let got = slow(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{");
    assert_eq!(answer(&got).status, 408);
    // Nothing after a request.
    let got = slow(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(answer(&got).status, 200);
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let server = serve(options(), |engine| (engine.max_sequences, engine.max_waiting) = (1, 1));
    let streaming = open(&server, &long(true));
    drop(streaming);
    let (mut whole, body) = (server.connect(), long(false).to_string());
    write!(whole, "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(whole);
    // Both would take the only place for longer than this.
    let started = Instant::now();
    while server.post(CHAT, &short()).status != 200 {
        assert!(started.elapsed() < Duration::from_secs(10), "the place is still taken");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_queue_says_when_to_try_again() {
    let server = serve(options(), |engine| (engine.max_sequences, engine.max_waiting) = (1, 1));
    let streams: Vec<_> = (0..1).map(|_| open(&server, &long(true))).collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| server.post(CHAT, &short()))).collect();
        std::thread::sleep(Duration::from_millis(300));
        drop(streams);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let full: Vec<_> = answers.iter().filter(|a| a.status == 503).collect();
    assert!(!full.is_empty() && answers.iter().all(|a| [200, 503].contains(&a.status)));
    for answer in full {
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.json()["error"]["type"], "overloaded_error");
    }
    assert!(answers.iter().any(|a| a.status == 200));
}

#[test]
fn all_places_are_given_and_more_are_never_promised() {
    let server = serve(options(), |engine| (engine.max_sequences, engine.max_waiting) = (2, 2));
    let several = |n: usize| {
        let mut body = short();
        body["n"] = n.into();
        server.post(CHAT, &body)
    };
    // Two run and two wait, whether or not the engine has looked at the first ones.
    for _ in 0..20 {
        let answer = several(4);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let never = several(5);
    assert_eq!((never.status, &never.json()["error"]["param"]), (400, &json!("n")), "{}", never.body);
    let prompts = server.post("/v1/completions", &json!({"prompt": ["x", "x", "x", "x", "x"], "max_tokens": 1}));
    assert_eq!((prompts.status, &prompts.json()["error"]["param"]), (400, &json!("prompt")));
}

#[test]
fn loading_and_draining_are_alive_but_not_ready() {
    let server = loading(options());
    assert_eq!((server.get("/health").status, server.get("/ready").status), (200, 503));
    assert_eq!(server.post(CHAT, &short()).status, 503);
    drop(server);

    let mut server = serve(options(), |_| ());
    let mut stream = open(
        &server,
        &json!({
            "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300, "ignore_eos": true, "stream": true,
        }),
    );
    let draining = server.server.take().unwrap();
    let end = std::thread::spawn(move || draining.drain());
    // It still answers, but takes no more.
    let started = Instant::now();
    while server.get("/ready").status == 200 {
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    let refused = server.post(CHAT, &short());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("10")));
    assert_eq!(server.get("/health").status, 200);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("data: [DONE]"));
    assert_eq!(end.join().unwrap(), End::Drained);
    assert!(std::net::TcpStream::connect(("127.0.0.1", server.port)).is_err());
}

#[cfg(unix)]
#[test]
fn unix_sockets_replace_stale_ones() {
    use std::os::unix::net::{UnixListener, UnixStream};
    let path = std::env::temp_dir().join(format!("hologram-serve-{}", std::process::id()));
    // A killed server leaves its socket.
    drop(UnixListener::bind(&path).unwrap());
    let listen = || hologram_server::Listen::Unix(path.clone());
    let server = hologram_server::Server::start(hologram_server::Options { listen: listen(), ..options() }).unwrap();
    assert_eq!(server.addresses(), [format!("unix:{}", path.display())]);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: any.example\r\nconnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(answer(&bytes).status, 200);
    // A living one is left alone.
    assert!(hologram_server::Server::start(hologram_server::Options { listen: listen(), ..options() }).is_err());
    assert_eq!(server.drain(), End::Drained);
    assert!(!path.exists());
}
