//! Streamed responses: the engine's events, written in a protocol's form as they come.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hologram_llm::Event;
use hyper::Response;
use hyper::body::Bytes;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{self, Body, Pieces};
use crate::job::Replies;

/// Events that are ready are sent together up to this many bytes.
const PIECE: usize = 16 << 10;
/// After so much silence a comment is sent, so that proxies do not close the connection.
const PING: Duration = Duration::from_secs(15);

/// Writes events in a protocol's form.
pub trait Writer: Send {
    /// Appends what an event of a reply adds to the response.
    fn event(&mut self, reply: usize, event: Event, out: &mut String);

    /// Appends what was held back to go with a next event, which is not there yet.
    fn flush(&mut self, _: &mut String) {}

    /// Appends the response's end.
    fn end(&mut self, out: &mut String);
}

/// A response of server-sent events.
pub fn sse(replies: Replies, writer: impl Writer + 'static) -> Response<Body> {
    let ping = Box::pin(sleep(PING));
    body::stream("text/event-stream", Streamed { replies: Some(replies), writer, ping: Some(ping) })
}

/// A response of one JSON object per line.
pub fn lines(replies: Replies, writer: impl Writer + 'static) -> Response<Body> {
    body::stream("application/x-ndjson", Streamed { replies: Some(replies), writer, ping: None })
}

/// Appends a server-sent event.
pub fn data(value: &Value, out: &mut String) {
    *out += &format!("data: {value}\n\n");
}

/// Appends a server-sent event with a name.
pub fn named(name: &str, value: &Value, out: &mut String) {
    *out += &format!("event: {name}\ndata: {value}\n\n");
}

struct Streamed<W> {
    /// `None`: everything was sent.
    replies: Option<Replies>,
    writer: W,
    /// Lines have no comments.
    ping: Option<Pin<Box<Sleep>>>,
}

impl<W: Writer> Pieces for Streamed<W> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(replies) = &mut self.replies else { return Poll::Ready(None) };
        let mut out = String::new();
        while out.len() < PIECE {
            match replies.poll_next(cx) {
                Poll::Ready(Some((reply, event))) => self.writer.event(reply, event, &mut out),
                Poll::Ready(None) => {
                    self.writer.end(&mut out);
                    self.replies = None;
                    break;
                }
                Poll::Pending => break,
            }
        }
        if self.replies.is_some() {
            self.writer.flush(&mut out);
            if out.is_empty() {
                let Some(ping) = &mut self.ping else { return Poll::Pending };
                match ping.as_mut().poll(cx) {
                    Poll::Ready(()) => out += ": waiting\n\n",
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
        if let Some(ping) = &mut self.ping {
            ping.as_mut().reset(Instant::now() + PING);
        }
        Poll::Ready((!out.is_empty()).then(|| out.into()))
    }
}
