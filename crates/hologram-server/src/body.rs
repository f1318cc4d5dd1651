//! Bodies: of requests, read within limits, and of responses, whole or streamed.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::{ApiError, Result};
use crate::options::Limits;

/// Where the pieces of a streamed response come from. It is dropped when the client goes away.
pub trait Pieces: Send {
    /// The next piece, or `None` at the end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// The body of a response.
pub enum Body {
    /// All of it; `None` after it was sent.
    Whole(Option<Bytes>),
    /// Pieces as they come.
    Stream(Box<dyn Pieces>),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Stream(pieces) => pieces.poll(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}

/// A response with this content type.
pub fn response(status: StatusCode, content: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let bytes = bytes.into();
    let mut response = Response::new(Body::Whole((!bytes.is_empty()).then_some(bytes)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}

/// A JSON response.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    response(status, "application/json", value.to_string())
}

/// A streamed response with this content type.
pub fn stream(content: &'static str, pieces: impl Pieces + 'static) -> Response<Body> {
    let mut response = Response::new(Body::Stream(Box::new(pieces)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would collect the pieces.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Bytes that are read and dropped of a body that is too long, so that the client gets to read the error before the
/// connection closes.
const DRAINED: usize = 64 << 20;
/// The time for that.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Reads a request's body.
///
/// # Errors
/// 413 when it is too long, 408 when it is too slow, 400 when it breaks off.
pub async fn read(body: Incoming, limits: &Limits, waits_for_continue: bool) -> Result<Vec<u8>> {
    let declared = body.size_hint().lower();
    if declared > limits.body as u64 {
        if !waits_for_continue && declared <= DRAINED as u64 {
            let _ = timeout(DRAIN_TIME, collect(body, 0)).await;
        }
        return Err(ApiError::large_body(limits.body));
    }
    timeout(limits.body_time, collect(body, limits.body)).await.unwrap_or_else(|_| Err(ApiError::slow_body()))
}

async fn collect(body: Incoming, limit: usize) -> Result<Vec<u8>> {
    let mut body = pin!(body);
    let (mut bytes, mut total) = (Vec::new(), 0);
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|_| ApiError::bad_request("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        total += data.len();
        if total > limit {
            bytes = Vec::new();
            if total > limit.saturating_add(DRAINED) {
                break;
            }
        } else {
            bytes.extend_from_slice(&data);
        }
    }
    if total > limit { Err(ApiError::large_body(limit)) } else { Ok(bytes) }
}
