//! Encrypted connections.

#[cfg(not(feature = "tls"))]
use std::io::Result;
#[cfg(not(feature = "tls"))]
use std::path::Path;

use crate::listen::Stream;

/// A certificate and its key.
#[derive(Clone)]
pub struct Tls {
    #[cfg(feature = "tls")]
    acceptor: tokio_rustls::TlsAcceptor,
    #[cfg(not(feature = "tls"))]
    never: std::convert::Infallible,
}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// Not in this build.
    ///
    /// # Errors
    /// Always.
    pub fn from_files(_: &Path, _: &Path) -> Result<Tls> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this build has no TLS"))
    }

    pub(crate) fn secure(&self, _: tokio::net::TcpStream) -> Box<dyn Stream> {
        match self.never {}
    }
}

#[cfg(feature = "tls")]
mod with_rustls {
    use std::future::Future;
    use std::io::{Error, ErrorKind, Result};
    use std::path::Path;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, ready};

    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::net::TcpStream;
    use tokio_rustls::server::TlsStream;
    use tokio_rustls::{Accept, TlsAcceptor};

    use super::{Stream, Tls};

    impl Tls {
        /// Reads a certificate, with those that sign it after it, and its key, both in PEM.
        ///
        /// # Errors
        /// When a file cannot be read or holds something else, or the key is another certificate's.
        pub fn from_files(certificate: &Path, key: &Path) -> Result<Tls> {
            let fail = |file: &Path, e: &dyn std::fmt::Display| {
                Error::new(ErrorKind::InvalidData, format!("{}: {e}", file.display()))
            };
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
            let chain = chain.map_err(|e| fail(certificate, &e))?;
            if chain.is_empty() {
                return Err(fail(certificate, &"has no certificate"));
            }
            let private = PrivateKeyDer::from_pem_file(key).map_err(|e| fail(key, &e))?;
            let config = ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
                .with_safe_default_protocol_versions()
                .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private))
                .map_err(|e| fail(key, &e))?;
            Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)) })
        }

        pub(crate) fn secure(&self, stream: TcpStream) -> Box<dyn Stream> {
            Box::new(Secured::Opening(Box::new(self.acceptor.accept(stream))))
        }
    }

    /// A connection that is encrypted before anything is read: the time limit for headers is that of the handshake too.
    enum Secured {
        /// The handshake.
        Opening(Box<Accept<TcpStream>>),
        /// After it.
        Open(Box<TlsStream<TcpStream>>),
    }

    impl Secured {
        fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Pin<&mut TlsStream<TcpStream>>>> {
            if let Secured::Opening(accept) = self {
                let stream = ready!(Pin::new(&mut **accept).poll(cx))?;
                *self = Secured::Open(Box::new(stream));
            }
            match self {
                Secured::Open(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
                Secured::Opening(_) => Poll::Ready(Err(ErrorKind::NotConnected.into())),
            }
        }
    }

    impl AsyncRead for Secured {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
            ready!(self.poll_open(cx))?.poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Secured {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            ready!(self.poll_open(cx))?.poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
            match &mut *self {
                // Nothing was written yet.
                Secured::Opening(_) => Poll::Ready(Ok(())),
                Secured::Open(stream) => Pin::new(&mut **stream).poll_flush(cx),
            }
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
            match &mut *self {
                Secured::Opening(_) => Poll::Ready(Ok(())),
                Secured::Open(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            }
        }
    }
}
