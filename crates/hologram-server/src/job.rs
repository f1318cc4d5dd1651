//! From a request's prompts to the engine, and the engine's events back.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use hologram_llm::Finish;
use hologram_llm::engine::{Event, Events, Failure, Request, SubmitError, Timings, TokenLogprobs, Usage};

use crate::error::{ApiError, Result};
use crate::metrics::Clock;
use crate::registry::Lease;
use crate::routes::Ready;
use crate::server::Running;

/// The replies to a request that are being generated. Dropping it cancels them.
pub struct Replies {
    /// `None`: the reply has ended.
    events: Vec<Option<Events>>,
    /// Read before the response began.
    first: Vec<(usize, Event)>,
    /// The reply that is asked first, so that none waits for others.
    turn: usize,
    clocks: Vec<Clock>,
    model: Arc<Lease>,
    _running: Running,
}

/// The parameters that errors of the engine are about.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Holds the prompt.
    pub prompt: &'static str,
    /// Holds the constraint.
    pub constraint: &'static str,
}

/// Submits requests. Returns when all have started or one has failed, so that the response begins with the right
/// status.
///
/// # Errors
/// When the engine does not take one, or one fails at once.
pub async fn submit(ready: Ready, requests: Vec<Request>, names: Names) -> Result<Replies> {
    let running = ready.shared.running()?;
    let model = Arc::new(ready.model);
    let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let most = model.engine.options().max_waiting_tokens;
    if requests.len() > 1 && tokens > most {
        let message = format!("the prompts have {tokens} tokens, counted for each text, but at most {most} can wait");
        return Err(ApiError::invalid(names.prompt, message));
    }
    let taken = |e| rejected(e, names);
    let submit = move |model: &Lease, requests: Vec<Request>| -> Vec<std::result::Result<Events, SubmitError>> {
        requests.into_iter().map(|request| model.engine.submit(request)).collect()
    };
    let submitted = match requests.iter().any(|request| request.constraint.is_some()) {
        false => submit(&model, requests),
        // Compiling a constraint takes long.
        true => {
            let model = model.clone();
            let submitted = tokio::task::spawn_blocking(move || submit(&model, requests)).await;
            submitted.map_err(|_| ApiError::internal("the server failed to submit the request"))?
        }
    };
    let events = submitted.into_iter().map(|events| events.map(Some).map_err(taken)).collect::<Result<Vec<_>>>()?;
    let waiting = events.len();
    let clocks = events.iter().map(|_| Clock::start()).collect();
    let mut replies = Replies { events, first: Vec::new(), turn: 0, clocks, model, _running: running };
    let mut first = Vec::new();
    let mut started = 0;
    while started < waiting {
        match replies.next().await {
            Some((_, Event::Failed(failure))) => {
                let error = failed(&failure);
                let of_constraint = matches!(failure, Failure::Constraint { .. });
                let param = if of_constraint { Some(names.constraint.into()) } else { error.param };
                return Err(ApiError { param, ..error });
            }
            Some((choice, event)) => {
                started += usize::from(matches!(event, Event::Started { .. }));
                first.push((choice, event));
            }
            None => break,
        }
    }
    first.reverse();
    replies.first = first;
    Ok(replies)
}

impl Replies {
    /// The next event and the number of its reply; `None` when all have ended.
    pub async fn next(&mut self) -> Option<(usize, Event)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Replies::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        if let Some(event) = self.first.pop() {
            return Poll::Ready(Some(event));
        }
        let n = self.events.len();
        let mut all_ended = true;
        for i in 0..n {
            let choice = (self.turn + i) % n;
            let Some(events) = &mut self.events[choice] else { continue };
            match events.poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
                        self.events[choice] = None;
                    }
                    self.turn = choice + 1;
                    self.model.metrics().observe(&event, &mut self.clocks[choice]);
                    return Poll::Ready(Some((choice, event)));
                }
                Poll::Ready(None) => self.events[choice] = None,
                Poll::Pending => all_ended = false,
            }
        }
        if all_ended { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// A complete reply.
#[derive(Debug, Default)]
pub struct Text {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The slot that it took.
    pub slot: usize,
    /// Probabilities of its tokens, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Probabilities of the prompt's tokens, if asked for.
    pub prompt: Vec<Option<TokenLogprobs>>,
    /// Why it ended.
    pub reason: Option<Finish>,
    /// The stop text that ended it.
    pub stop: Option<String>,
    /// The token that ended it, which has no text.
    pub end: Option<u32>,
    /// Numbers of tokens.
    pub usage: Usage,
    /// Where the time went.
    pub timings: Timings,
}

impl Replies {
    /// Waits for all replies.
    ///
    /// # Errors
    /// When one fails.
    pub async fn collect(mut self) -> Result<Vec<Text>> {
        let mut texts: Vec<Text> = self.events.iter().map(|_| Text::default()).collect();
        while let Some((reply, event)) = self.next().await {
            let text = &mut texts[reply];
            match event {
                Event::Started { slot, .. } => text.slot = slot,
                Event::Progress { .. } => {}
                Event::Prompt { logprobs } => text.prompt = logprobs,
                Event::Token { text: piece, logprobs, ids } => {
                    text.text += &piece;
                    text.ids.extend(ids);
                    text.logprobs.extend(logprobs);
                }
                Event::Finished { reason, stop, end, usage, timings } => {
                    (text.reason, text.stop, text.end) = (Some(reason), stop, end);
                    (text.usage, text.timings) = (usage, timings);
                }
                Event::Failed(failure) => return Err(failed(&failure)),
            }
        }
        Ok(texts)
    }
}

/// Seconds after which a client should try again when the server is full.
const RETRY: u32 = 1;

/// Why the engine did not take a request.
pub fn rejected(error: SubmitError, names: Names) -> ApiError {
    let message = error.to_string();
    match error {
        SubmitError::ContextFull { prompt: tokens, context } => {
            ApiError::context_exceeded(names.prompt, tokens, context)
        }
        SubmitError::QueueFull { .. } => ApiError::unavailable(message, RETRY),
        SubmitError::Draining => ApiError::unavailable(message, RETRY),
        SubmitError::Invalid { field, reason } => {
            let param = param(field, names);
            ApiError::invalid(&param, format!("{param} {reason}"))
        }
        SubmitError::Unsupported { field, reason } => {
            let param = param(field, names);
            ApiError::unsupported(&param, format!("{param} is not supported: {reason}"))
        }
        _ => ApiError::internal(message),
    }
}

/// The parameter of a field of [`Request`].
fn param(field: &str, names: Names) -> String {
    match field {
        "prompt" => names.prompt.into(),
        "constraint" => names.constraint.into(),
        "top-p" | "typical-p" | "min-p" | "repeat-penalty" | "presence-penalty" | "frequency-penalty" => {
            field.replace('-', "_")
        }
        other => other.into(),
    }
}

/// A request failed after it was taken.
pub fn failed(failure: &Failure) -> ApiError {
    let message = failure.to_string();
    match failure {
        Failure::QueueTimeout { .. } | Failure::Stopped => ApiError::unavailable(message, RETRY),
        Failure::Constraint { .. } => ApiError::invalid("response_format", message),
        Failure::NoToken => ApiError::invalid("logit_bias", message),
        _ => ApiError::internal(message),
    }
}
