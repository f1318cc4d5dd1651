//! A model hub on this machine, and one that misbehaves.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use graviola::hashing::sha2::Sha256Context;
use hologram_hub::Settings;

/// The commit of every repository here.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What a connection through the server as a proxy adds to the bytes sent.
pub const PROXIED: usize = 1 << 32;

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// Whether it is the first, second, … request of this path and range.
    pub attempt: usize,
}

/// What the server answers.
#[derive(Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub cut: Option<usize>,
    /// Wait before the body.
    pub delay: Duration,
}

impl Reply {
    pub fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Reply {
        self.headers.push((name.into(), value.to_string()));
        self
    }
}

/// A repository's files. Those over 100 bytes are large files, which have a SHA-256.
#[derive(Clone, Default)]
pub struct Repository {
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Repository {
    pub fn of(files: &[(&str, &[u8])]) -> Repository {
        Repository { files: files.iter().map(|(path, bytes)| (path.to_string(), bytes.to_vec())).collect() }
    }

    /// The list of files and the files.
    pub fn answer(&self, seen: &Seen) -> Reply {
        let path = seen.path.split('?').next().unwrap_or_default();
        if path == "/api/models/some/model/revision/main" {
            return Reply { status: 200, body: self.list().into_bytes(), ..Reply::default() };
        }
        let name = path.strip_prefix(&format!("/some/model/resolve/{COMMIT}/"));
        let Some(bytes) = name.and_then(|name| self.files.get(&name.replace("%20", " "))) else {
            return Reply::status(404).header("x-error-code", "EntryNotFound");
        };
        let Some(range) = seen.headers.get("range") else {
            return Reply { status: 200, body: bytes.clone(), ..Reply::default() };
        };
        let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
        let reply = Reply { status: 206, body: bytes[start..=end].to_vec(), ..Reply::default() };
        reply.header("content-range", format!("bytes {start}-{end}/{}", bytes.len()))
    }

    fn list(&self) -> String {
        let files = self.files.iter().map(|(path, bytes)| {
            let (git, size) = (git_id(bytes), bytes.len());
            let lfs = if size > 100 {
                format!(r#","lfs":{{"sha256":"{}","size":{size},"pointerSize":130}}"#, sha256(bytes))
            } else {
                String::new()
            };
            format!(r#"{{"rfilename":"{path}","size":{size},"blobId":"{git}"{lfs}}}"#)
        });
        format!(r#"{{"id":"some/model","sha":"{COMMIT}","siblings":[{}]}}"#, files.collect::<Vec<_>>().join(","))
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    let mut context = Sha256Context::new();
    context.update(bytes);
    context.finish().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn git_id(bytes: &[u8]) -> String {
    let mut sha1 = sha1_smol::Sha1::from(format!("blob {}\0", bytes.len()));
    sha1.update(bytes);
    sha1.digest().to_string()
}

/// Bytes that differ from place to place.
pub fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A server on a port of its own.
pub struct Server {
    pub address: String,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    /// Bytes of bodies sent of files.
    pub sent: Arc<AtomicUsize>,
}

type Handler = dyn Fn(&Seen) -> Reply + Send + Sync;

impl Server {
    pub fn start(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Server {
        Server::listen("http", Arc::new(handler), |stream| Some(Box::new(stream)))
    }

    /// A server that encrypts with the certificate in `tls/`.
    pub fn start_tls(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Server {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        let certificate = CertificateDer::from_pem_slice(include_bytes!("../tls/server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/server.key")).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
        Server::listen("https", Arc::new(handler), move |stream| {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            Some(Box::new(rustls::StreamOwned::new(connection, stream)))
        })
    }

    fn listen(
        scheme: &str,
        handler: Arc<Handler>,
        wrap: impl Fn(TcpStream) -> Option<Box<dyn Stream>> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("{scheme}://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let (seen, sent) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let server = Server { address, seen: seen.clone(), sent: sent.clone() };
        let wrap = Arc::new(wrap);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (handler, seen, sent, wrap) = (handler.clone(), seen.clone(), sent.clone(), wrap.clone());
                std::thread::spawn(move || {
                    let Some(stream) = stream.ok().and_then(|stream| wrap(stream)) else { return };
                    // A client that goes away is no failure of the server.
                    let _ = serve(stream, &*handler, &seen, &sent);
                });
            }
        });
        server
    }

    /// Settings for this server with a cache of its own: small pieces, little patience.
    pub fn settings(&self, cache: &Folder) -> Settings {
        let mut settings = Settings::new(&self.address, &cache.0);
        settings.proxies = false;
        settings.piece = 1000;
        settings.connections = 3;
        settings.patience = Duration::from_millis(400);
        settings.pause = Duration::from_millis(1);
        settings.attempts = 4;
        settings
    }

    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

fn serve(
    stream: Box<dyn Stream>,
    handler: &Handler,
    seen: &Mutex<Vec<Seen>>,
    sent: &AtomicUsize,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if line.starts_with("CONNECT ") {
        // As a proxy, which leads everywhere to itself.
        sent.fetch_add(PROXIED, Ordering::SeqCst);
        while !line.trim().is_empty() {
            line.clear();
            stream.read_line(&mut line)?;
        }
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        line.clear();
        stream.read_line(&mut line)?;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_string();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let request = {
        let mut seen = seen.lock().unwrap();
        let same = |other: &&Seen| other.path == path && other.headers.get("range") == headers.get("range");
        let attempt = seen.iter().filter(same).count() + 1;
        let request = Seen { path, headers, attempt };
        seen.push(request.clone());
        request
    };
    let reply = handler(&request);
    let stream = stream.get_mut();
    write!(stream, "HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status)?;
    if !reply.headers.iter().any(|(name, _)| name == "content-length") {
        write!(stream, "content-length: {}\r\n", reply.body.len())?;
    }
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n")?;
    stream.flush()?;
    std::thread::sleep(reply.delay);
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
    stream.write_all(body)?;
    if request.path.contains("/resolve/") {
        sent.fetch_add(body.len(), Ordering::SeqCst);
    }
    stream.flush()
}

/// A temporary folder, removed with its value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("hologram-hub-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Paths of all files that are not links, sorted.
    pub fn files(&self) -> Vec<String> {
        fn walk(root: &std::path::Path, folder: &std::path::Path, all: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    walk(root, &entry.path(), all);
                } else {
                    all.push(entry.path().strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
                }
            }
        }
        let mut all = Vec::new();
        walk(&self.0, &self.0, &mut all);
        all.sort();
        all
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
