//! What an engine answers: events in a bounded channel of each request.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::generate::Finish;

use super::lock;
use super::queue::Bell;

/// What happens to a request, in this order: [`Started`](Event::Started), any number of [`Progress`](Event::Progress)
/// and one [`Prompt`](Event::Prompt) if they were asked for, any number of [`Token`](Event::Token), then
/// [`Finished`](Event::Finished); or [`Failed`](Event::Failed) at any time, which is then the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request no longer waits.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Those that the cache already holds.
        cached_tokens: usize,
        /// The slot that the text takes, below the number of sequences that run at once.
        slot: usize,
    },
    /// More of the prompt is computed.
    Progress {
        /// Tokens of the prompt that are computed or were cached.
        computed: usize,
    },
    /// The tokens of the prompt.
    Prompt {
        /// Per token of the prompt its probability after those before it; none for the first.
        logprobs: Vec<Option<TokenLogprobs>>,
    },
    /// More text.
    Token {
        /// The generated tokens; none if this is the end of a text that was held back.
        ids: Vec<u32>,
        /// The text that they complete; empty while a character is incomplete or a stop text may follow.
        text: String,
        /// Per token its probability, if asked for.
        logprobs: Vec<TokenLogprobs>,
    },
    /// The text is complete.
    Finished {
        /// Why.
        reason: Finish,
        /// The stop text that was found.
        stop: Option<String>,
        /// The token that ended the text. It is counted, but has no text and no [`Token`](Event::Token).
        end: Option<u32>,
        /// Numbers of tokens.
        usage: Usage,
        /// Where the time went.
        timings: Timings,
    },
    /// The request failed.
    Failed(Failure),
}

/// A token's probability and its alternatives, from the model's own logits: before temperature, penalties, biases and
/// constraints; or after them, see [`Request::sampled_probabilities`](crate::Request::sampled_probabilities).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: Logprob,
    /// The most probable tokens in its place, the best first.
    pub top: Vec<Logprob>,
}

/// The probability of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// Its place among all tokens by probability, from 1.
    pub rank: usize,
    /// Its bytes, not necessarily whole characters; control tokens as the vocabulary spells them. Empty without a
    /// tokenizer.
    pub bytes: Vec<u8>,
}

/// Numbers of tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those that the cache already held.
    pub cached_tokens: usize,
    /// Tokens generated, the end token included.
    pub generated_tokens: usize,
}

/// Where the time of a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the submission to the start.
    pub queued: Duration,
    /// From the start to the first token.
    pub prompt: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It waited too long.
    #[error("the request waited for {} s without being started", waited.as_secs_f64())]
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },
    /// Its events were not read.
    #[error("the events of the request were not read for {} s", paused.as_secs_f64())]
    SlowReader {
        /// How long its sequence paused.
        paused: Duration,
    },
    /// The step that computed it failed.
    #[error("{reason}")]
    Step {
        /// The device's error, or what is wrong with the logits.
        reason: String,
    },
    /// The constraint cannot be kept.
    #[error("the constraint cannot be kept: {reason}")]
    Constraint {
        /// Why.
        reason: String,
    },
    /// The biases of the request leave no token.
    #[error("the biases forbid every token that could follow")]
    NoToken,
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

/// The events of a request. Dropping it cancels the request: its memory is free within a step.
pub struct Events {
    channel: Arc<Channel>,
    bell: Arc<Bell>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("unread", &lock(&self.channel.state).unread.len()).finish()
    }
}

/// The sending end of [`Events`].
pub(super) struct Sender {
    channel: Arc<Channel>,
    limit: usize,
}

struct Channel {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    unread: VecDeque<Event>,
    /// Whether `unread` reached the sender's limit.
    full: bool,
    /// Whether the last event was sent.
    ended: bool,
    cancelled: bool,
    waker: Option<Waker>,
}

/// A channel of which a sequence may leave `limit` events unread.
pub(super) fn channel(limit: usize, bell: &Arc<Bell>) -> (Sender, Events) {
    let channel = Arc::new(Channel { state: Mutex::default(), arrived: Condvar::new() });
    (Sender { channel: channel.clone(), limit }, Events { channel, bell: bell.clone() })
}

impl Events {
    /// The next event, or `None` after the last. Needs no particular runtime.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Events::next`], for streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = lock(&self.channel.state);
        match self.take(&mut state) {
            Some(event) => Poll::Ready(Some(event)),
            None if state.ended => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// As [`Events::next`], but blocks the thread.
    pub fn next_blocking(&mut self) -> Option<Event> {
        let mut state = lock(&self.channel.state);
        loop {
            if let Some(event) = self.take(&mut state) {
                return Some(event);
            }
            if state.ended {
                return None;
            }
            state = self.channel.arrived.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Waits until there is an event or the last one was read, at most for `timeout`. Returns whether it is so:
    /// [`Events::next_blocking`] then returns at once.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let quiet = |state: &mut State| state.unread.is_empty() && !state.ended;
        let state = lock(&self.channel.state);
        let waited = self.channel.arrived.wait_timeout_while(state, timeout, quiet);
        !quiet(&mut waited.unwrap_or_else(|e| e.into_inner()).0)
    }

    fn take(&self, state: &mut State) -> Option<Event> {
        let event = state.unread.pop_front()?;
        if std::mem::take(&mut state.full) {
            self.bell.ring();
        }
        Some(event)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let ended = {
            let mut state = lock(&self.channel.state);
            state.cancelled = true;
            state.ended
        };
        if !ended {
            self.bell.ring();
        }
    }
}

impl Sender {
    /// Sends an event, whatever is unread. Nothing follows the last.
    pub fn send(&self, event: Event) {
        self.send_all([event]);
    }

    /// As [`Sender::send`] with several events, which the reader finds together.
    pub fn send_all(&self, events: impl IntoIterator<Item = Event>) {
        let waker = {
            let mut state = lock(&self.channel.state);
            for event in events {
                if state.ended {
                    return;
                }
                state.ended = matches!(event, Event::Finished { .. } | Event::Failed(_));
                state.unread.push_back(event);
            }
            state.full = state.unread.len() >= self.limit;
            state.waker.take()
        };
        self.channel.arrived.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the reader has left as many events unread as it may.
    pub fn is_full(&self) -> bool {
        lock(&self.channel.state).full
    }

    /// Whether the reader is gone.
    pub fn is_cancelled(&self) -> bool {
        lock(&self.channel.state).cancelled
    }
}

impl Drop for Sender {
    /// A reader never waits in vain.
    fn drop(&mut self) {
        self.send(Event::Failed(Failure::Stopped));
    }
}
