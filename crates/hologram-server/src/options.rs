//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

use crate::keys::Keys;
use crate::tls::Tls;

/// Where the server listens.
#[derive(Clone, Debug)]
pub enum Listen {
    /// Hosts, by names or addresses with commas between them, and a port; port 0 is any free one.
    Tcp(String, u16),
    /// A Unix socket. A stale one of a server that was killed is replaced.
    Unix(PathBuf),
}

/// Limits on what a client may take of the server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Bytes of a request's line and headers, at least 8192.
    pub head: usize,
    /// Number of headers.
    pub headers: usize,
    /// Open connections; further ones wait.
    pub connections: usize,
    /// Time for a request's line and headers, also between requests of a connection.
    pub head_time: Duration,
    /// Time for a request's body.
    pub body_time: Duration,
    /// Time in which a client must read something of what it is sent.
    pub read_time: Duration,
    /// Sequences of one request: prompts times `n`.
    pub sequences: usize,
    /// Time for which a request waits until its model is loaded.
    pub load_time: Duration,
    /// Time for requests to end after SIGTERM.
    pub drain_time: Duration,
}

impl Default for Limits {
    /// 16 MiB of body, 64 KiB of headers, 100 headers, 2048 connections, 15 s for headers, 30 s for bodies and readers,
    /// 128 sequences, 300 s for loading, 120 s for draining.
    fn default() -> Limits {
        Limits {
            body: 16 << 20,
            head: 64 << 10,
            headers: 100,
            connections: 2048,
            head_time: Duration::from_secs(15),
            body_time: Duration::from_secs(30),
            read_time: Duration::from_secs(30),
            sequences: 128,
            load_time: Duration::from_secs(300),
            drain_time: Duration::from_secs(120),
        }
    }
}

/// Options of a server.
#[derive(Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: Listen,
    /// Encrypts TCP connections; `None`: they are not.
    pub tls: Option<Tls>,
    /// Its keys.
    pub keys: Keys,
    /// Origins whose pages may call it from a browser; `*` is any.
    pub origins: Vec<String>,
    /// Host names by which it may be called besides addresses and `localhost`; `*` is any. Without this check any web
    /// page could call a server on the reader's machine, by a name that it lets resolve to that machine. A server with
    /// keys takes any name.
    pub hosts: Vec<String>,
    /// A part that paths may begin with, such as `/llm`: where a proxy passes them on as they are. Empty: none.
    pub root_path: String,
    /// Models that are in memory at once, at least one.
    pub max_loaded: usize,
    /// Models that were idle for so long are unloaded; `None`: they stay.
    pub unload_after: Option<Duration>,
    /// Where `/slots/{id}` keeps conversations; `None`: nowhere.
    pub slot_folder: Option<PathBuf>,
    /// What is not offered.
    pub without: Vec<Part>,
    /// Limits.
    pub limits: Limits,
}

/// A part that a server can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The page for people.
    Page,
    /// `/slots`.
    Slots,
    /// `/metrics`.
    Metrics,
}

impl Default for Options {
    /// 127.0.0.1, port 8080, no keys, all models at once.
    fn default() -> Options {
        Options {
            listen: Listen::Tcp("127.0.0.1".into(), 8080),
            tls: None,
            keys: Keys::default(),
            origins: Vec::new(),
            hosts: Vec::new(),
            root_path: String::new(),
            max_loaded: usize::MAX,
            unload_after: None,
            slot_folder: None,
            without: Vec::new(),
            limits: Limits::default(),
        }
    }
}
