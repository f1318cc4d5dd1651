//! The client: HTTP/1.1 over TCP, one connection per request, with streamed responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::args::usage;

/// Maximum bytes of a line that a server sends.
const MAX_LINE: u64 = 16 << 20;

/// A server.
pub struct Target {
    authority: String,
    address: SocketAddr,
    /// The path before `/v1`.
    base: String,
    key: Option<String>,
    timeout: Duration,
}

impl Target {
    /// The server of a URL.
    ///
    /// # Errors
    /// When it is no URL of HTTP, or the host is unknown.
    pub fn new(url: &str, key: Option<String>, timeout: Duration) -> anyhow::Result<Target> {
        let Some(rest) = url.strip_prefix("http://") else {
            return usage(format!("the server must be http://HOST[:PORT], not {url}; for TLS, go through a proxy"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let with_port = if has_port { authority.to_string() } else { format!("{authority}:80") };
        let mut addresses = with_port.to_socket_addrs().with_context(|| format!("cannot find {authority}"))?;
        let address = addresses.next().with_context(|| format!("{authority} has no address"))?;
        let path = path.trim_end_matches('/');
        let base = path.strip_suffix("v1").unwrap_or(path).trim_end_matches('/');
        let base = if base.is_empty() { String::new() } else { format!("/{base}") };
        Ok(Target { authority: authority.into(), address, base, key, timeout })
    }

    /// Sends a request; without a body it is a GET. The response, when its status is 200.
    ///
    /// # Errors
    /// When the server cannot be reached, or answers with another status.
    pub fn send(&self, path: &str, body: Option<&str>) -> anyhow::Result<BufReader<Body>> {
        let unreachable = || format!("cannot reach {}", self.authority);
        let mut stream = TcpStream::connect_timeout(&self.address, self.timeout).with_context(unreachable)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.timeout))?;
        stream.set_write_timeout(Some(self.timeout))?;
        let method = if body.is_some() { "POST" } else { "GET" };
        let body = body.unwrap_or_default();
        let key = self.key.as_ref().map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {}/v1/{path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{key}content-length: {}\r\n\r\n",
            self.base,
            self.authority,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).context("the server does not read the request")?;
        let mut reader = BufReader::new(stream);
        let status = line(&mut reader)?;
        let status: u16 = status.split(' ').nth(1).and_then(|s| s.parse().ok()).context("the server speaks no HTTP")?;
        let mut left = Left::UntilClosed;
        loop {
            let header = line(&mut reader)?;
            let Some((name, value)) = header.split_once(':') else { break };
            match (name.to_ascii_lowercase().as_str(), value.trim()) {
                ("transfer-encoding", "chunked") => left = Left::Chunks(0),
                ("content-length", length) if !matches!(left, Left::Chunks(_)) => {
                    left = Left::Bytes(length.parse().context("the server sends no valid length")?);
                }
                _ => {}
            }
        }
        let mut response = BufReader::new(Body { reader, left });
        if status != 200 {
            let mut text = String::new();
            let _ = response.by_ref().take(1000).read_to_string(&mut text);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let message = value["error"]["message"].as_str().unwrap_or(text.trim());
            bail!("status {status}: {}", message.chars().take(200).collect::<String>());
        }
        Ok(response)
    }
}

/// A line without its end; empty at the end of the stream.
///
/// # Errors
/// When the connection fails, or the line is too long.
pub fn line(reader: &mut impl BufRead) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut bytes).context("the server stopped sending")?;
    ensure!((bytes.len() as u64) < MAX_LINE, "the server sends a line without end");
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\r', '\n']).into())
}

/// How much of a response is left.
enum Left {
    Bytes(u64),
    /// Bytes of the current chunk; others follow.
    Chunks(u64),
    UntilClosed,
}

/// The body of a response.
pub struct Body {
    reader: BufReader<TcpStream>,
    left: Left,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let invalid = |e: anyhow::Error| std::io::Error::other(e.to_string());
        if let Left::Chunks(0) = self.left {
            let size = line(&mut self.reader).map_err(invalid)?;
            // The line before a size ends the chunk before it.
            let size = if size.is_empty() { line(&mut self.reader).map_err(invalid)? } else { size };
            let digits = size.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(digits, 16).map_err(|_| std::io::Error::other("a chunk has no size"))?;
            self.left = if size == 0 { Left::Bytes(0) } else { Left::Chunks(size) };
        }
        let most = match self.left {
            Left::Bytes(n) | Left::Chunks(n) => usize::try_from(n).unwrap_or(usize::MAX).min(buffer.len()),
            Left::UntilClosed => buffer.len(),
        };
        if most == 0 {
            return Ok(0);
        }
        let read = self.reader.read(&mut buffer[..most])?;
        match &mut self.left {
            Left::Bytes(_) | Left::Chunks(_) if read == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Left::Bytes(n) | Left::Chunks(n) => *n -= read as u64,
            Left::UntilClosed => {}
        }
        Ok(read)
    }
}
