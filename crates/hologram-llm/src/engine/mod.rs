//! An engine: one model for many users at once.
//!
//! Requests wait in a bounded list. The engine's thread owns the model's [`Session`](crate::Session) and computes all
//! running sequences together, step by step: one token for each text, and pieces of prompts within the step's budget.
//! All sequences share one pool of cache blocks. A sequence gives its blocks up if others need them, and is computed
//! again later; prompts that start alike share blocks.
//!
//! ```no_run
//! use std::sync::Arc;
//! use hologram_llm::{Engine, EngineOptions, Event, Model, Request};
//! let model = Arc::new(Model::load("model.gguf")?);
//! let engine = Engine::new(model.clone(), EngineOptions::for_model(&model))?;
//! let prompt = model.tokenizer()?.encode("Once upon a time", true)?;
//! let mut events = engine.submit(Request::new(prompt)).expect("the engine is idle");
//! while let Some(event) = events.next_blocking() {
//!     if let Event::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), hologram_llm::LlmError>(())
//! ```

mod draft;
mod events;
mod gbnf;
mod grammar;
mod limits;
mod logprobs;
mod options;
mod queue;
mod request;
mod sequence;
mod snapshots;
mod speculate;
mod stats;
mod step;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::error::{LlmError, Result};
use crate::model::Model;

pub use events::{Event, Events, Failure, Logprob, Timings, TokenLogprobs, Usage};
pub use options::EngineOptions;
pub use request::{Constraint, MAX_TOP_LOGPROBS, Request, SubmitError};
pub use speculate::Speculation;
pub use stats::EngineStats;

#[cfg(test)]
pub(crate) use logprobs::logprobs;

use grammar::Compiler;
use queue::{Phase, Queue};
use worker::Worker;

/// An engine. Clones share it; the last one dropped ends all requests.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    model: Arc<Model>,
    options: EngineOptions,
    shared: Arc<Shared>,
    compiler: Compiler,
    thread: Option<JoinHandle<()>>,
}

/// What the engine's users and its thread share.
struct Shared {
    queue: Queue,
    /// As of the last step.
    stats: Mutex<EngineStats>,
}

impl Engine {
    /// Starts an engine: allocates the KV cache and a thread.
    ///
    /// # Errors
    /// When an option is out of range or the device lacks the memory.
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Result<Engine> {
        Engine::with_draft(model, options, None)
    }

    /// As [`Engine::new`], with a smaller model of the same vocabulary that guesses tokens; see [`Speculation`].
    ///
    /// # Errors
    /// As [`Engine::new`], and when the vocabularies differ.
    pub fn with_draft(model: Arc<Model>, options: EngineOptions, draft: Option<&Model>) -> Result<Engine> {
        let (options, blocks) = options.resolve(&model)?;
        let shared = Arc::new(Shared { queue: Queue::new(), stats: Mutex::default() });
        let worker = Worker::new(model.clone(), options.clone(), blocks, shared.clone(), draft)?;
        let thread = std::thread::Builder::new().name("hologram-engine".into()).spawn(move || worker.run());
        let thread =
            thread.map_err(|e| LlmError::Option { option: "engine", reason: format!("has no thread: {e}") })?;
        Ok(Engine {
            inner: Arc::new(Inner { model, options, shared, compiler: Compiler::default(), thread: Some(thread) }),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.inner.model
    }

    /// The options in effect: what [`Engine::new`] was given, completed.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// Adds a request to the waiting list. Returns at once, or, if the request has a new constraint, when that is
    /// compiled: after at most 2 seconds.
    ///
    /// # Errors
    /// When the request is invalid, its constraint is not supported, the waiting list is full, or the engine accepts no
    /// more requests.
    pub fn submit(&self, request: Request) -> std::result::Result<Events, SubmitError> {
        let Inner { model, options, shared, compiler, .. } = &*self.inner;
        request.check(model, options)?;
        let grammar = match &request.constraint {
            Some(constraint) => Some(compiler.compile(constraint, model)?),
            None => None,
        };
        let (sender, events) = events::channel(options.unread_events, &shared.queue.bell);
        // Who has read the end of a request finds its place free.
        drop(lock(&shared.stats));
        shared.queue.push(request, grammar, sender, options)?;
        Ok(events)
    }

    /// Compiles a constraint, as [`Engine::submit`] does, and keeps it for requests with the same one. Takes at most 2
    /// seconds.
    ///
    /// # Errors
    /// When the constraint is not supported.
    pub fn check_constraint(&self, constraint: &Constraint) -> std::result::Result<(), SubmitError> {
        self.inner.compiler.compile(constraint, &self.inner.model).map(drop)
    }

    /// What the engine does, as of its last step. Never waits for a step.
    pub fn stats(&self) -> EngineStats {
        let shared = &self.inner.shared;
        let (waiting, requests, rejected) = shared.queue.counts();
        let stats = *lock(&shared.stats);
        EngineStats { waiting: stats.waiting + waiting, requests, rejected, ..stats }
    }

    /// Accepts no more requests. Those that wait or run are finished.
    pub fn drain(&self) {
        self.inner.shared.queue.enter(Phase::Draining);
    }

    /// Whether the engine accepts requests or finishes them. It is not after it failed: a new one is needed then.
    pub fn is_alive(&self) -> bool {
        self.inner.shared.queue.phase() < Phase::Stopping
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.enter(Phase::Stopping);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended its requests.
            let _ = thread.join();
        }
    }
}

/// Locks a mutex. What it guards is valid at any time, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
