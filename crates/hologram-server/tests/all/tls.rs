//! HTTPS, with the certificate of hologram-hub's tests.
#![cfg(feature = "tls")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Running, answer, options, serve};
use hologram_server::{Options, Tls};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hologram-hub/tests/tls").join(name)
}

/// Sends bytes over a connection that trusts the tests' authority, and reads until the end.
fn secured(server: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let name = "127.0.0.1".try_into().unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config.with_no_client_auth()), name).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, server.connect());
    stream.write_all(bytes).unwrap();
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    read
}

#[test]
fn connections_are_encrypted() {
    let tls = Tls::from_files(&file("server.pem"), &file("server.key")).unwrap();
    let server = serve(Options { tls: Some(tls), ..options() }, |_| ());
    assert!(server.server.as_ref().unwrap().addresses()[0].starts_with("https://127.0.0.1:"));
    // Without `ignore_eos`, a text may end with its first token, in one event.
    let body = json!({"prompt": "Hello", "max_tokens": 4, "ignore_eos": true, "temperature": 0, "stream": true});
    let body = body.to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let got = secured(&server, format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let got = answer(&got);
    assert_eq!(got.status, 200, "{}", got.body);
    assert!(got.events().len() >= 2, "{}", got.body);
    // Who speaks no TLS gets no HTTP.
    let plain = server.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(!plain.starts_with(b"HTTP/"), "{plain:?}");
    // Who is silent, or stops within the handshake, is not waited for longer than for headers.
    for begin in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let started = Instant::now();
        let mut stream: TcpStream = server.connect();
        stream.write_all(begin).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(started.elapsed() < Duration::from_secs(5), "{begin:?}");
    }
}

#[test]
fn files_are_checked() {
    let [certificate, key] = ["server.pem", "server.key"].map(file);
    for (of, with, named) in [
        (&key, &key, "server.key: has no certificate"),
        (&certificate, &certificate, "server.pem: "),
        (&file("missing.pem"), &key, "missing.pem: "),
        (&file("ca.pem"), &key, "server.key: "),
    ] {
        let error = Tls::from_files(of, with).err().unwrap().to_string();
        assert!(error.contains(named), "{error}");
    }
}
