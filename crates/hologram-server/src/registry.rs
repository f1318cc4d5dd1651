//! The models of a server by name: loaded by their first request, unloaded when idle or when another needs the place.
//!
//! A slot's state changes under one lock. Loading and unloading take long and have threads of their own; requests that
//! wait for them watch a counter of changes. Fairness: a model that must make room takes no new requests, so a busy
//! model cannot keep another one out forever.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::openai::now;
use crate::options::Options;
use crate::served::Served;

/// Loads a model. Runs on a thread of its own; what it returns as an error is logged, never sent to a client.
type Loader = dyn Fn() -> std::result::Result<Served, String> + Send + Sync;

/// Requests that may wait for models to load.
const MAX_WAITING: usize = 512;
/// After a failure a model is not loaded again for so long.
const FAILED: Duration = Duration::from_secs(5);

/// The least and the most time that a loaded model stays when another needs its place; between them, as long as it took
/// to load.
const STAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Requests that wait look again after so long, also without a change.
const LOOK: Duration = Duration::from_millis(200);

/// An alias that stands for every name that no model has.
pub const ANY_NAME: &str = "*";

/// A model that a server offers.
pub struct Source {
    names: Vec<String>,
    /// Bytes of its weights.
    bytes: u64,
    family: Option<String>,
    load: Option<Box<Loader>>,
    served: Option<Served>,
}

impl Source {
    /// A model that is loaded by its first request. `names` are its own name and its aliases, at least one; `bytes` is
    /// the size of its weights and `family` its architecture, both for lists of models.
    pub fn new(
        names: Vec<String>,
        bytes: u64,
        family: Option<String>,
        load: impl Fn() -> std::result::Result<Served, String> + Send + Sync + 'static,
    ) -> Source {
        let names = if names.is_empty() { vec!["model".into()] } else { names };
        Source { names, bytes, family, load: Some(Box::new(load)), served: None }
    }

    /// The same model, loaded already. It must have the source's names.
    #[must_use]
    pub fn with_loaded(self, served: Served) -> Source {
        Source { served: Some(served), ..self }
    }
}

/// A loaded model that is never unloaded.
impl From<Served> for Source {
    fn from(served: Served) -> Source {
        let config = served.engine.model().config();
        Source {
            names: served.names.clone(),
            bytes: served.engine.model().weight_bytes() as u64,
            family: config.architecture.names.first().map(ToString::to_string),
            load: None,
            served: Some(served),
        }
    }
}

/// How long a model stays in memory after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So long.
    For(Duration),
    /// Until another needs its place.
    Forever,
}

/// Where a model is.
enum Stage {
    /// Not in memory.
    Absent,
    /// A thread loads it.
    Loading,
    /// Takes requests.
    Loaded(Arc<Served>),
    /// Finishes its requests to make room.
    Leaving(Arc<Served>),
    /// A thread frees it.
    Unloading,
    /// Loading failed then.
    Failed(Instant),
}

impl Stage {
    fn served(&self) -> Option<&Arc<Served>> {
        match self {
            Stage::Loaded(served) | Stage::Leaving(served) => Some(served),
            _ => None,
        }
    }

    /// Whether it needs memory.
    fn is_present(&self) -> bool {
        !matches!(self, Stage::Absent | Stage::Failed(_))
    }
}

struct State {
    stage: Stage,
    /// Requests that use it.
    users: usize,
    /// When its last request ended, or it was loaded.
    used: Instant,
    /// How long it stays, if a request said so; otherwise as the server's options say.
    keep: Option<Keep>,
    /// Until then it does not make room: those who waited for it come first, and the time is not all spent on loading.
    stays: Instant,
}

struct Slot {
    names: Vec<String>,
    created: u64,
    bytes: u64,
    family: Option<String>,
    load: Option<Box<Loader>>,
    metrics: Metrics,
    state: Mutex<State>,
}

/// What lists of models say of one.
pub struct Summary<'a> {
    /// Its own name, then its aliases.
    pub names: &'a [String],
    /// When it was offered, in seconds since 1970.
    pub created: u64,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Its architecture.
    pub family: Option<&'a str>,
    /// What requests of it did.
    pub metrics: &'a Metrics,
    /// The model, while it is loaded.
    pub loaded: Option<Arc<Served>>,
    /// `unloaded`, `loading` or `loaded`, which are llama.cpp's words, or `unloading`.
    pub status: &'static str,
}

/// The models of a server.
pub struct Registry {
    slots: Vec<Slot>,
    max_loaded: usize,
    unload_after: Option<Duration>,
    load_time: Duration,
    /// Held while a slot begins to load or to leave, so that the number of loaded models stays in its limit.
    placing: Mutex<()>,
    changes: watch::Sender<u64>,
    waiting: AtomicUsize,
    closed: AtomicBool,
}

impl Registry {
    /// The models that a server offers; the first is the default.
    pub fn new(sources: Vec<Source>, options: &Options) -> Arc<Registry> {
        let slot = |source: Source| {
            let stage = source.served.map_or(Stage::Absent, |served| Stage::Loaded(Arc::new(served)));
            Slot {
                names: source.names,
                created: now(),
                bytes: source.bytes,
                family: source.family,
                load: source.load,
                metrics: Metrics::default(),
                state: Mutex::new(State { stage, users: 0, used: Instant::now(), keep: None, stays: Instant::now() }),
            }
        };
        Arc::new(Registry {
            slots: sources.into_iter().map(slot).collect(),
            max_loaded: options.max_loaded.max(1),
            unload_after: options.unload_after,
            load_time: options.limits.load_time,
            placing: Mutex::new(()),
            changes: watch::Sender::new(0),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// The models in the order in which they were offered.
    pub fn list(&self) -> impl Iterator<Item = Summary<'_>> {
        self.slots.iter().map(Slot::summary)
    }

    /// The models in memory, each with the time after which it is unloaded if nobody uses it; `None`: it stays.
    pub fn running(&self) -> impl Iterator<Item = (Summary<'_>, Option<Duration>)> {
        let left = |slot: &Slot| {
            let state = slot.state();
            let time = self.stays(&state).filter(|_| slot.load.is_some())?;
            Some(if state.users > 0 { time } else { time.saturating_sub(state.used.elapsed()) })
        };
        let all = self.slots.iter().map(move |slot| (slot.summary(), left(slot)));
        all.filter(|(summary, _)| summary.loaded.is_some())
    }

    /// Whether requests can be answered.
    ///
    /// # Errors
    /// 500 when an engine has stopped that cannot be started again.
    pub fn check(&self) -> Result<()> {
        let stopped = |slot: &Slot| slot.load.is_none() && slot.summary().loaded.is_some_and(|s| !s.engine.is_alive());
        if self.slots.iter().any(stopped) { Err(ApiError::internal("the engine has stopped")) } else { Ok(()) }
    }

    /// A model by its name, without waiting for it; the first without a name.
    ///
    /// # Errors
    /// 404 for an unknown name.
    pub fn find(&self, name: Option<&str>) -> Result<Summary<'_>> {
        Ok(self.slots[self.index(name)?].summary())
    }

    fn index(&self, name: Option<&str>) -> Result<usize> {
        let Some(name) = name else { return Ok(0) };
        let named = |name: &str| self.slots.iter().position(|slot| slot.names.iter().any(|own| own == name));
        named(name)
            .or_else(|| named(ANY_NAME))
            .ok_or_else(|| ApiError::no_model(name, self.slots.iter().flat_map(|slot| &slot.names)))
    }

    /// A model for a request, loaded if need be; the first without a name. It stays loaded while the lease lives.
    ///
    /// # Errors
    /// 404 for an unknown name, 500 when it cannot be loaded, 503 when too many requests wait or it takes too long.
    pub async fn lease(self: &Arc<Registry>, name: Option<&str>) -> Result<Lease> {
        let index = self.index(name)?;
        // From before the first look, so that no change is missed.
        let mut changes = self.changes.subscribe();
        if let Some(lease) = self.attempt(index)? {
            return Ok(lease);
        }
        let _waiting = Waiting::new(&self.waiting)?;
        let wait = async {
            loop {
                let _ = timeout(LOOK, changes.changed()).await;
                if let Some(lease) = self.attempt(index)? {
                    return Ok(lease);
                }
            }
        };
        let late =
            || ApiError::unavailable(format!("the model {:?} is not loaded yet", self.slots[index].names[0]), 10);
        timeout(self.load_time, wait).await.unwrap_or_else(|_| Err(late()))
    }

    /// The model if it is there; otherwise sees to it that it comes.
    fn attempt(self: &Arc<Registry>, index: usize) -> Result<Option<Lease>> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(ApiError::unavailable("the server is shutting down", 10));
        }
        let slot = &self.slots[index];
        {
            let mut state = slot.state();
            match &state.stage {
                Stage::Loaded(served) if served.engine.is_alive() => {
                    let served = served.clone();
                    state.users += 1;
                    return Ok(Some(Lease { served, user: User { registry: self.clone(), index } }));
                }
                Stage::Loaded(_) if slot.load.is_none() => return Err(ApiError::internal("the engine has stopped")),
                // Another engine takes its place.
                Stage::Loaded(_) => {
                    self.leave(index, &mut state);
                    return Ok(None);
                }
                Stage::Loading | Stage::Leaving(_) | Stage::Unloading => return Ok(None),
                Stage::Failed(at) if at.elapsed() < FAILED => {
                    let message =
                        format!("the model {:?} could not be loaded; the server's log says why", slot.names[0]);
                    return Err(ApiError::internal(message));
                }
                Stage::Absent | Stage::Failed(_) => {}
            }
        }
        self.place(index);
        Ok(None)
    }

    /// Begins to load a model if there is room, or asks the one that was unused for longest to leave.
    fn place(self: &Arc<Registry>, index: usize) {
        let _placing = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.slots.iter().filter(|slot| slot.state().stage.is_present()).count();
        if present < self.max_loaded {
            let mut state = self.slots[index].state();
            // Another request may have been faster.
            if !state.stage.is_present() {
                let begun = self.spawn(index, Registry::load);
                state.stage = if begun { Stage::Loading } else { Stage::Failed(Instant::now()) };
            }
            return;
        }
        // One leaves at a time; the next waiter asks again when it is gone.
        let is_going = |slot: &Slot| matches!(slot.state().stage, Stage::Leaving(_) | Stage::Unloading);
        if self.slots.iter().any(is_going) {
            return;
        }
        let candidates = self.slots.iter().enumerate().filter(|(i, slot)| *i != index && slot.load.is_some());
        let loaded = candidates.filter_map(|(i, slot)| {
            let state = slot.state();
            let key = (state.users > 0, state.used);
            let may_leave = matches!(state.stage, Stage::Loaded(_)) && state.stays <= Instant::now();
            may_leave.then_some((key, i))
        });
        if let Some((_, victim)) = loaded.min() {
            self.leave(victim, &mut self.slots[victim].state());
        }
    }

    /// Lets a loaded model take no more requests, and go after its last.
    fn leave(self: &Arc<Registry>, index: usize, state: &mut State) {
        state.stage = match std::mem::replace(&mut state.stage, Stage::Absent) {
            Stage::Loaded(served) if state.users == 0 => self.unload(index, served),
            Stage::Loaded(served) => Stage::Leaving(served),
            other => other,
        };
    }

    /// Frees an unused model. Returns the new stage of its slot.
    fn unload(self: &Arc<Registry>, index: usize, served: Arc<Served>) -> Stage {
        let begun = self.spawn(index, move |registry, index| {
            // Ends the engine's thread and frees the memory.
            drop(served);
            let slot = &registry.slots[index];
            tracing::info!(model = slot.names[0], "unloaded");
            let mut state = slot.state();
            (state.stage, state.keep) = (Stage::Absent, None);
        });
        // Without a thread the work was dropped, and the model with it.
        if begun { Stage::Unloading } else { Stage::Absent }
    }

    fn load(&self, index: usize) {
        let slot = &self.slots[index];
        let (name, started) = (&slot.names[0], Instant::now());
        tracing::info!(model = name, "loading");
        let load = slot.load.as_deref();
        // A panic would leave the slot loading for ever, and its requests waiting.
        let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| load.map(|load| load())));
        let stage = match loaded {
            Ok(Some(Ok(served))) => {
                tracing::info!(model = name, ms = started.elapsed().as_secs_f64() * 1e3, "loaded");
                Stage::Loaded(Arc::new(served))
            }
            Ok(Some(Err(error))) => {
                tracing::error!(model = name, error, "cannot load the model");
                Stage::Failed(Instant::now())
            }
            _ => Stage::Failed(Instant::now()),
        };
        let (mut state, now) = (slot.state(), Instant::now());
        (state.stage, state.used, state.stays) = (stage, now, now + started.elapsed().clamp(STAYS.0, STAYS.1));
        if let (true, Some(served)) = (self.closed.load(Ordering::SeqCst), state.stage.served()) {
            served.engine.drain();
        }
    }

    /// Runs long work on a slot beside the requests, and tells those that wait. Returns whether it has a thread.
    fn spawn(self: &Arc<Registry>, index: usize, work: impl FnOnce(&Registry, usize) + Send + 'static) -> bool {
        let registry = self.clone();
        let run = move || {
            work(&registry, index);
            registry.tell();
        };
        let thread = std::thread::Builder::new().name("hologram-load".into()).spawn(run);
        thread.inspect_err(|error| tracing::error!(%error, "cannot start a thread")).is_ok()
    }

    fn tell(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Unloads models that were idle for long, until the server ends.
    pub async fn unload_idle(self: Arc<Registry>) {
        let mut changes = self.changes.subscribe();
        while !self.closed.load(Ordering::SeqCst) {
            let shortest = self.slots.iter().filter_map(|slot| self.stays(&slot.state())).min();
            let tick = shortest.map(|time| (time / 8).clamp(Duration::from_millis(20), Duration::from_secs(10)));
            // A request may set another time.
            let changed = async { changes.changed().await.is_ok() };
            match tick {
                Some(tick) => drop(timeout(tick, changed).await),
                None => drop(changed.await),
            }
            for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.load.is_some()) {
                let mut state = slot.state();
                if state.users == 0 && self.stays(&state).is_some_and(|time| state.used.elapsed() >= time) {
                    self.leave(index, &mut state);
                }
            }
        }
    }

    /// How long a model stays in memory after its last request; `None`: until another needs its place.
    fn stays(&self, state: &State) -> Option<Duration> {
        match state.keep {
            None => self.unload_after,
            Some(Keep::For(time)) => Some(time),
            Some(Keep::Forever) => None,
        }
    }

    /// Takes no more requests; those of loaded models are finished.
    pub fn drain(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for slot in &self.slots {
            if let Some(served) = slot.state().stage.served() {
                served.engine.drain();
            }
        }
        self.tell();
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        // Valid at any time, also after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn summary(&self) -> Summary<'_> {
        let state = self.state();
        let status = match &state.stage {
            Stage::Loaded(_) | Stage::Leaving(_) => "loaded",
            Stage::Loading => "loading",
            Stage::Unloading => "unloading",
            Stage::Absent | Stage::Failed(_) => "unloaded",
        };
        Summary {
            names: &self.names,
            created: self.created,
            bytes: self.bytes,
            family: self.family.as_deref(),
            metrics: &self.metrics,
            loaded: state.stage.served().cloned(),
            status,
        }
    }
}

/// A request that waits for a model.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Result<Waiting<'a>> {
        let waiting = Waiting(count);
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            return Err(ApiError::unavailable("too many requests wait for models to load: try again later", 10));
        }
        Ok(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A loaded model in use by a request.
pub struct Lease {
    // Dropped before the user, so that a model that goes is freed by the thread for it.
    served: Arc<Served>,
    user: User,
}

impl Lease {
    /// Sets how long the model stays in memory after its last request.
    pub fn keep(&self, keep: Keep) {
        let User { registry, index } = &self.user;
        registry.slots[*index].state().keep = Some(keep);
        registry.tell();
    }

    /// What requests of the model did.
    pub fn metrics(&self) -> &Metrics {
        &self.user.registry.slots[self.user.index].metrics
    }
}

impl Deref for Lease {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

struct User {
    registry: Arc<Registry>,
    index: usize,
}

impl Drop for User {
    fn drop(&mut self) {
        let registry = &self.registry;
        let mut state = registry.slots[self.index].state();
        state.users -= 1;
        state.used = Instant::now();
        if state.users > 0 {
            return;
        }
        let at_once = state.keep == Some(Keep::For(Duration::ZERO)) && registry.slots[self.index].load.is_some();
        state.stage = match std::mem::replace(&mut state.stage, Stage::Absent) {
            Stage::Leaving(served) => registry.unload(self.index, served),
            Stage::Loaded(served) if at_once => registry.unload(self.index, served),
            other => other,
        };
    }
}
