//! The server: its state, its start and its end.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::error::{ApiError, Result};
use crate::listen::Listener;
use crate::openai::now;
use crate::options::Options;
use crate::registry::{Registry, Source};
use crate::served::Served;

/// What all requests share.
pub struct Shared {
    /// The options.
    pub options: Options,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    models: OnceLock<Arc<Registry>>,
    draining: AtomicBool,
    running: AtomicUsize,
    stop: watch::Sender<bool>,
    ids: AtomicU64,
    random: RandomState,
}

impl Shared {
    /// The models, while requests are taken.
    ///
    /// # Errors
    /// 503 until there are models, and while the server drains.
    pub fn models(&self) -> Result<&Arc<Registry>> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(ApiError::unavailable("the server is shutting down", 10));
        }
        self.all_models()
    }

    /// The models, also while the server drains.
    ///
    /// # Errors
    /// 503 until there are models.
    pub fn all_models(&self) -> Result<&Arc<Registry>> {
        self.models.get().ok_or_else(|| ApiError::unavailable("the model is loading", 2))
    }

    /// Counts a request until the guard is dropped.
    ///
    /// # Errors
    /// 503 while the server drains.
    pub fn running(self: &Arc<Shared>) -> Result<Running> {
        // Counted first: draining begins before it looks at the count.
        self.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(self.clone());
        self.models()?;
        Ok(running)
    }

    /// A name that occurs once: this and 32 hexadecimal digits, as in `chatcmpl-1a2b…`.
    pub fn new_id(&self, prefix: &str) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{number:016x}", self.random.hash_one(number))
    }

    /// Requests that are answered now.
    pub fn load(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Tells when the sockets are to close.
    pub fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// A request that is being answered.
pub struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server. It answers `/health` from its start, and everything else when it has models.
pub struct Server {
    runtime: Runtime,
    shared: Arc<Shared>,
    addresses: Vec<String>,
    listeners: Vec<tokio::task::JoinHandle<()>>,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All requests were answered.
    Drained,
    /// Some were cut off: the time was over, or a second signal came.
    CutOff,
}

impl Server {
    /// Opens the sockets and begins to answer.
    ///
    /// # Errors
    /// When a socket cannot be opened, or there are no threads.
    pub fn start(options: Options) -> std::io::Result<Server> {
        // The engine has its own thread. These only pass bytes, so two suffice.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(4)
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            options,
            started: now(),
            models: OnceLock::new(),
            draining: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            stop: watch::Sender::new(false),
            ids: AtomicU64::new(0),
            random: RandomState::new(),
        });
        let open = runtime.block_on(Listener::open(&shared.options.listen))?;
        let tls = shared.options.tls.is_some();
        let addresses = open.iter().map(|listener| listener.address(tls)).collect();
        let serve = |listener: Listener| runtime.spawn(listener.serve(shared.clone()));
        let listeners = open.into_iter().map(serve).collect();
        Ok(Server { runtime, shared, addresses, listeners })
    }

    /// The addresses: URLs, or a Unix socket's path after `unix:`.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Serves this model from now on, as [`Server::offer`] does with a list of one.
    pub fn provide(&self, served: Served) {
        self.offer(vec![served.into()]);
    }

    /// Serves these models from now on. Requests without a model's name get the first; of two with the same name the
    /// earlier has it. A second list, or an empty one, is dropped.
    pub fn offer(&self, sources: Vec<Source>) {
        let models = Registry::new(sources, &self.shared.options);
        if models.list().next().is_some() && self.shared.models.set(models.clone()).is_ok() {
            self.runtime.spawn(models.unload_idle());
        }
    }

    /// Serves until SIGTERM or SIGINT, then drains; a second signal cuts the rest off.
    ///
    /// # Errors
    /// When signals cannot be watched.
    pub fn run(self) -> std::io::Result<End> {
        let mut signals = self.runtime.block_on(async { Signals::new() })?;
        self.runtime.block_on(signals.next());
        tracing::info!(running = self.shared.load(), "draining");
        Ok(self.drain_until(async move { signals.next().await }))
    }

    /// Answers what was asked and takes no more.
    pub fn drain(self) -> End {
        self.drain_until(std::future::pending())
    }

    fn drain_until(self, cut: impl Future<Output = ()>) -> End {
        self.shared.draining.store(true, Ordering::SeqCst);
        if let Some(models) = self.shared.models.get() {
            models.drain();
        }
        let end = self.runtime.block_on(async {
            // New requests get their 503 meanwhile.
            let idle = async {
                while self.shared.load() > 0 {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let end = tokio::select! {
                idle = timeout(self.shared.options.limits.drain_time, idle) => {
                    if idle.is_ok() { End::Drained } else { End::CutOff }
                }
                () = cut => End::CutOff,
            };
            self.shared.stop.send_replace(true);
            if end == End::Drained {
                for listener in self.listeners {
                    let _ = listener.await;
                }
            }
            end
        });
        for address in &self.addresses {
            if let Some(path) = address.strip_prefix("unix:") {
                let _ = std::fs::remove_file(path);
            }
        }
        self.runtime.shutdown_timeout(Duration::from_millis(100));
        end
    }
}

/// The signals that end a server.
struct Signals {
    #[cfg(unix)]
    all: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    #[cfg(unix)]
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { all: [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?] })
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {})
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        {
            let [terminate, interrupt] = &mut self.all;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}
