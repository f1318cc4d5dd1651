//! The waiting list, and the bell that wakes the engine's thread.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tracing::Span;
use tracing::field::Empty;

use super::events::{Event, Failure, Sender};
use super::grammar::Grammar;
use super::lock;
use super::options::EngineOptions;
use super::request::{Request, SubmitError};
use super::worker::Worker;

/// Wakes the engine's thread.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *lock(&self.rung) = true;
        self.changed.notify_one();
    }

    /// Waits until the bell rings, at most for `timeout`. Returns at once if it rang since the last call.
    pub fn wait(&self, timeout: Option<Duration>) {
        let mut rung = lock(&self.rung);
        if !*rung {
            rung = match timeout {
                Some(timeout) => match self.changed.wait_timeout_while(rung, timeout, |rung| !*rung) {
                    Ok((rung, _)) => rung,
                    Err(e) => e.into_inner().0,
                },
                None => self.changed.wait_while(rung, |rung| !*rung).unwrap_or_else(|e| e.into_inner()),
            };
        }
        *rung = false;
    }
}

/// Work for the engine's thread between two steps.
pub(super) type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// A request that waits.
pub(super) struct Waiting {
    /// Counts submissions.
    pub number: u64,
    pub request: Request,
    pub grammar: Option<Grammar>,
    pub sender: Sender,
    pub submitted: Instant,
    /// From here to the end of the request.
    pub span: Span,
}

/// What the engine's users and its thread share.
pub(super) struct Queue {
    state: Mutex<State>,
    pub bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// What the engine's thread does before its next step.
    jobs: Vec<Job>,
    /// Tokens of the waiting prompts.
    tokens: usize,
    /// Requests that no longer wait, and have not ended.
    started: usize,
    submitted: u64,
    rejected: u64,
    phase: Phase,
    /// When each tenant was last served, in number of requests served.
    served: HashMap<Option<String>, u64>,
    turn: u64,
}

/// What the engine still does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    #[default]
    Running,
    /// It accepts no more requests.
    Draining,
    /// It ends all requests.
    Stopping,
    /// Its thread has ended.
    Stopped,
}

/// Tenants whose turns are remembered.
const MAX_TENANTS: usize = 4096;

impl Queue {
    pub fn new() -> Queue {
        Queue { state: Mutex::default(), bell: Arc::default() }
    }

    /// Adds a request.
    pub fn push(
        &self,
        request: Request,
        grammar: Option<Grammar>,
        sender: Sender,
        options: &EngineOptions,
    ) -> Result<(), SubmitError> {
        let span = tracing::debug_span!(
            "request",
            prompt_tokens = request.prompt.len(),
            cached_tokens = Empty,
            generated_tokens = Empty
        );
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Running => {}
            Phase::Draining => return Err(SubmitError::Draining),
            Phase::Stopping | Phase::Stopped => return Err(SubmitError::Stopped),
        }
        let (waiting, tokens) = (state.waiting.len(), state.tokens.saturating_add(request.prompt.len()));
        // The engine may not have looked yet at those that will start at once.
        let free = options.max_sequences.saturating_sub(state.started);
        let full = waiting >= options.max_waiting.saturating_add(free);
        if full || (waiting > 0 && tokens > options.max_waiting_tokens) {
            state.rejected += 1;
            return Err(SubmitError::QueueFull { waiting, limit: options.max_waiting });
        }
        let number = state.submitted;
        state.submitted += 1;
        state.tokens = tokens;
        state.waiting.push_back(Waiting { number, request, grammar, sender, submitted: Instant::now(), span });
        drop(state);
        self.bell.ring();
        Ok(())
    }

    /// Adds a job, unless nobody will do it.
    pub fn push_job(&self, job: Job) {
        let mut state = lock(&self.state);
        if state.phase < Phase::Stopping {
            state.jobs.push(job);
            drop(state);
            self.bell.ring();
        }
    }

    /// Takes the jobs.
    pub fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut lock(&self.state).jobs)
    }

    /// Enters a later phase.
    pub fn enter(&self, phase: Phase) {
        let mut state = lock(&self.state);
        state.phase = state.phase.max(phase);
        drop(state);
        self.bell.ring();
    }

    /// Tells how many requests have started and not ended.
    pub fn set_started(&self, started: usize) {
        lock(&self.state).started = started;
    }

    pub fn phase(&self) -> Phase {
        lock(&self.state).phase
    }

    /// Requests that wait, requests submitted and requests rejected.
    pub fn counts(&self) -> (usize, u64, u64) {
        let state = lock(&self.state);
        (state.waiting.len(), state.submitted, state.rejected)
    }

    /// Removes requests that are cancelled or have waited too long. Returns the numbers of both.
    pub fn sweep(&self) -> (u64, u64) {
        let (mut cancelled, mut expired) = (0, 0);
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.waiting.retain(|w| {
            let waited = w.submitted.elapsed();
            let limit = [w.request.queue_timeout, w.request.timeout].into_iter().flatten().min();
            if w.sender.is_cancelled() {
                cancelled += 1;
            } else if limit.is_some_and(|limit| waited >= limit) {
                w.sender.send(Event::Failed(Failure::QueueTimeout { waited }));
                expired += 1;
            } else {
                return true;
            }
            state.tokens -= w.request.prompt.len();
            false
        });
        (cancelled, expired)
    }

    /// Removes all requests and jobs.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        state.tokens = 0;
        let dropped = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.jobs));
        drop(state);
        drop(dropped);
    }

    /// When the next request has waited too long.
    pub fn next_deadline(&self) -> Option<Instant> {
        let state = lock(&self.state);
        let deadlines = state.waiting.iter().filter_map(|w| {
            let limit = [w.request.queue_timeout, w.request.timeout].into_iter().flatten().min()?;
            w.submitted.checked_add(limit)
        });
        deadlines.min()
    }

    /// Shows the request whose turn it is to `take`, and removes it if that returns true: of the highest priority, of
    /// the tenant that was served the longest ago, the first. `above`: only of a higher priority than this.
    pub fn take_next(&self, above: Option<i32>, take: impl FnOnce(&Request) -> bool) -> Option<Waiting> {
        let mut state = lock(&self.state);
        let turn = |w: &Waiting| state.served.get(&w.request.tenant).copied().unwrap_or(0);
        let next = state.waiting.iter().enumerate();
        let (at, next) = next.min_by_key(|(_, w)| (-i64::from(w.request.priority), turn(w), w.number))?;
        if above.is_some_and(|least| next.request.priority <= least) || !take(&next.request) {
            return None;
        }
        let waiting = state.waiting.remove(at)?;
        state.tokens -= waiting.request.prompt.len();
        state.started += 1;
        if state.served.len() >= MAX_TENANTS {
            state.served.clear();
        }
        state.turn += 1;
        let turn = state.turn;
        state.served.insert(waiting.request.tenant.clone(), turn);
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::channel;
    use super::*;

    #[test]
    fn priorities_go_first_and_tenants_take_turns() {
        let queue = Queue::new();
        let options = EngineOptions { max_waiting_tokens: 8, ..EngineOptions::of_sizes(1, 64) };
        let jobs = [("a", 0), ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("c", 1), ("a", 1)];
        let mut events = Vec::new();
        let mut push = |tenant: &str, priority, tokens| {
            let (sender, reader) = channel(1, &queue.bell);
            events.push(reader);
            let request = Request { tenant: Some(tenant.into()), priority, ..Request::new(vec![0; tokens]) };
            queue.push(request, None, sender, &options)
        };
        for (tenant, priority) in jobs {
            push(tenant, priority, 1).unwrap();
        }
        // Eight tokens may wait.
        assert_eq!(push("d", 9, 2), Err(SubmitError::QueueFull { waiting: 7, limit: 512 }));
        assert!(queue.take_next(Some(1), |_| true).is_none());
        assert!(queue.take_next(None, |_| false).is_none());
        let order: Vec<u64> = std::iter::from_fn(|| queue.take_next(None, |_| true)).map(|w| w.number).collect();
        // Those of priority 1 in their order; then b, whose tenant had no turn yet, then a and b in turn.
        assert_eq!(order, [5, 6, 3, 0, 4, 1, 2]);
        // A longer prompt may wait alone.
        assert_eq!((push("d", 0, 100), queue.counts()), (Ok(()), (1, 8, 1)));
    }

    #[test]
    fn places_that_are_free_count() {
        let queue = Queue::new();
        let options = EngineOptions { max_waiting: 1, ..EngineOptions::of_sizes(2, 64) };
        let mut events = Vec::new();
        let mut push = || {
            let (sender, reader) = channel(1, &queue.bell);
            events.push(reader);
            queue.push(Request::new(vec![0]), None, sender, &options).is_ok()
        };
        assert_eq!([push(), push(), push(), push()], [true, true, true, false]);
        // One starts, and its place is no longer free.
        assert!(queue.take_next(None, |_| true).is_some());
        assert!(!push());
        queue.set_started(0);
        assert!(push());
    }
}
