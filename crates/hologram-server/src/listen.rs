//! Sockets: accepts connections within limits and serves HTTP/1.1 on them.

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use crate::options::{Limits, Listen};
use crate::server::Shared;
use crate::tls::Tls;

/// An open socket.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

/// A connection of any kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    /// Opens the sockets: every address of a name.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub async fn open(listen: &Listen) -> Result<Vec<Listener>> {
        match listen {
            Listen::Tcp(host, port) => {
                let mut listeners = Vec::new();
                let mut port = *port;
                let mut addresses = Vec::new();
                for host in host.split(',') {
                    addresses.extend(tokio::net::lookup_host((host.trim(), port)).await?);
                }
                for address in addresses {
                    // `localhost` is also an IPv6 address, which a container may lack.
                    match TcpListener::bind((address.ip(), port)).await {
                        Ok(listener) => {
                            port = listener.local_addr()?.port();
                            listeners.push(Listener::Tcp(listener));
                        }
                        Err(e) if address.is_ipv6() && e.kind() == ErrorKind::AddrNotAvailable => {}
                        Err(e) => return Err(e),
                    }
                }
                if listeners.is_empty() { Err(ErrorKind::AddrNotAvailable.into()) } else { Ok(listeners) }
            }
            #[cfg(unix)]
            Listen::Unix(path) => {
                use std::os::unix::fs::FileTypeExt;
                let stale = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
                if stale {
                    if std::os::unix::net::UnixStream::connect(path).is_ok() {
                        return Err(ErrorKind::AddrInUse.into());
                    }
                    std::fs::remove_file(path)?;
                }
                Ok(vec![Listener::Unix(tokio::net::UnixListener::bind(path)?)])
            }
            #[cfg(not(unix))]
            Listen::Unix(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// The address: a URL, or a socket's path. `tls`: whether connections are encrypted.
    pub fn address(&self, tls: bool) -> String {
        let scheme = if tls { "https" } else { "http" };
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|e| e.to_string(), |a| format!("{scheme}://{a}"))
            }
            #[cfg(unix)]
            Listener::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|a| a.as_pathname());
                format!("unix:{}", path.unwrap_or("".as_ref()).display())
            }
        }
    }

    async fn accept(&self, tls: Option<&Tls>) -> Result<Box<dyn Stream>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small and must not wait for each other.
                stream.set_nodelay(true)?;
                Ok(match tls {
                    Some(tls) => tls.secure(stream),
                    None => Box::new(stream),
                })
            }
            #[cfg(unix)]
            Listener::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }

    /// Accepts and serves connections until the server stops, then lets them end.
    pub async fn serve(self, shared: Arc<Shared>) {
        let limits = shared.options.limits.clone();
        let slots = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        let graceful = GracefulShutdown::new();
        let mut stop = shared.stopped();
        loop {
            let slot = tokio::select! {
                slot = slots.clone().acquire_owned() => slot,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let stream = tokio::select! {
                stream = self.accept(shared.options.tls.as_ref()) => stream,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let stream = match stream {
                Ok(stream) => stream,
                Err(e) => {
                    tracing::warn!(error = %e, "cannot accept a connection");
                    // Without file descriptors the next call would fail at once.
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let unix = !matches!(self, Listener::Tcp(_));
            let connection = connection(stream, &limits, unix, shared.clone());
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                // Errors are of this connection alone: a client went away or sent something that is not HTTP.
                if let Err(e) = connection.await {
                    tracing::debug!(error = %e, "a connection ended");
                }
                drop(slot);
            });
        }
        drop(self);
        let _ = tokio::time::timeout(Duration::from_secs(5), graceful.shutdown()).await;
    }
}

/// Serves one connection.
fn connection(
    stream: Box<dyn Stream>,
    limits: &Limits,
    unix: bool,
    shared: Arc<Shared>,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + use<> {
    let io = TokioIo::new(Watched { stream, time: limits.read_time, stalled: None });
    let service = service_fn(move |request: Request<Incoming>| crate::guard::respond(shared.clone(), request, unix));
    http1::Builder::new()
        .timer(TokioTimer::new())
        // Some clients look for names as llama.cpp writes them.
        .title_case_headers(true)
        .header_read_timeout(limits.head_time)
        .max_headers(limits.headers)
        .max_buf_size(limits.head.max(8192))
        .serve_connection(io, service)
}

/// A connection that fails when its client stops reading.
struct Watched {
    stream: Box<dyn Stream>,
    time: Duration,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let time = self.time;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(time)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client stopped reading"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
