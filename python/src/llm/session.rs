//! Sessions that are extended by hand, and samplers.

use super::*;

/// A running text: its KV cache, extended by hand.
#[pyclass(frozen, name = "Session", module = "hologram.llm")]
pub struct PySession {
    pub(super) session: Arc<Mutex<Session>>,
    pub(super) context: usize,
    pub(super) vocab: usize,
    /// Nanoseconds per token at the last call.
    pub(super) per_token: AtomicU64,
    pub(super) closed: Arc<AtomicBool>,
    pub(super) generation: u32,
}

impl PySession {
    /// Checks that the session can be used.
    fn alive(&self) -> Result<()> {
        device::alive(self.generation)?;
        if self.closed.load(Ordering::Relaxed) { value("the model is closed") } else { Ok(()) }
    }

    /// The result of short work, which may have to wait for tokens that another thread feeds.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Result<T> {
        if let Ok(mut session) = self.session.try_lock() {
            return Ok(work(&mut session));
        }
        let session = self.session.clone();
        interruptible(py, move || work(&mut lock(&session)))
    }
}

/// Feeds tokens in pieces until `ended`. What was fed in part is taken back, so that the session can be used on.
fn feed(
    session: &Mutex<Session>,
    tokens: &[u32],
    wanted: Logits,
    ended: &AtomicBool,
) -> hologram_llm::Result<Vec<f32>> {
    let mut session = lock(session);
    let before = session.len(0);
    let mut out = Vec::new();
    let mut pieces = tokens.chunks(PIECE).peekable();
    while let Some(piece) = pieces.next().filter(|_| !ended.load(Ordering::Relaxed)) {
        let now = if wanted == Logits::Last && pieces.peek().is_some() { Logits::None } else { wanted };
        match session.feed(0, piece, now) {
            Ok(logits) => out.extend_from_slice(logits),
            Err(error) => {
                session.truncate(0, before);
                return Err(error);
            }
        }
    }
    if ended.swap(true, Ordering::AcqRel) {
        session.truncate(0, before);
    }
    Ok(out)
}

#[pymethods]
impl PySession {
    /// Appends tokens. Returns the logits after the last one (`float32 [vocab]`), after each (`[n, vocab]`, `logits =
    /// "all"`), or nothing ("none"), in the host's memory.
    #[pyo3(signature = (tokens, logits="last"))]
    fn feed(&self, py: Python<'_>, tokens: Vec<i64>, logits: &str) -> Result<Option<PyTensor>> {
        self.alive()?;
        let wanted = match logits {
            "none" => Logits::None,
            "last" => Logits::Last,
            "all" => Logits::All,
            other => return value(format!("logits is {other:?}, but must be \"last\", \"all\" or \"none\"")),
        };
        if tokens.is_empty() {
            return value("there are no tokens to feed");
        }
        let tokens = checked(&tokens, self.vocab)?;
        let (count, start) = (tokens.len(), Instant::now());
        let (session, ended) = (self.session.clone(), Arc::new(AtomicBool::new(false)));
        let expected = self.per_token.load(Ordering::Relaxed).saturating_mul(count as u64);
        let fed = if Duration::from_nanos(expected) < SOON {
            py.detach(|| feed(&session, &tokens, wanted, &ended)).map_err(Error::from)
        } else {
            let (of, end) = (session.clone(), ended.clone());
            interruptible(py, move || feed(&of, &tokens, wanted, &end)).and_then(|fed| Ok(fed?))
        };
        let fed = fed.and_then(|out| Ok(py.check_signals().map(|()| out)?));
        if fed.is_err() && ended.swap(true, Ordering::AcqRel) {
            // The tokens were all fed when Ctrl-C came.
            py.detach(|| {
                let mut session = lock(&session);
                let before = session.len(0).saturating_sub(count);
                session.truncate(0, before);
            });
        }
        let out = fed?;
        let per_token = start.elapsed().as_nanos() / count as u128;
        self.per_token.store(u64::try_from(per_token).unwrap_or(u64::MAX), Ordering::Relaxed);
        match wanted {
            Logits::None => Ok(None),
            Logits::Last => host_tensor(py, &[self.vocab], &out).map(Some),
            Logits::All => host_tensor(py, &[count, self.vocab], &out).map(Some),
        }
    }

    /// Forgets the tokens from this position on.
    fn truncate(&self, py: Python<'_>, length: i64) -> Result<()> {
        self.alive()?;
        let cut = self.with(py, move |session| {
            let now = session.len(0);
            let length = usize::try_from(length).ok().filter(|length| *length <= now);
            length.map(|length| session.truncate(0, length)).ok_or(now)
        })?;
        cut.map(drop)
            .or_else(|now| value(format!("length is {length}, but must be from 0 to {now}, the tokens so far")))
    }

    /// The tokens so far.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Result<Vec<u32>> {
        self.with(py, |session| session.tokens(0).to_vec())
    }

    /// The most tokens that fit.
    #[getter]
    fn context(&self) -> usize {
        self.context
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        self.with(py, |session| session.len(0))
    }
}

/// Chooses tokens from logits on the host.
#[pyclass(frozen, name = "Sampler", module = "hologram._native")]
pub struct PySampler {
    sampler: Mutex<Sampler>,
}

#[pymethods]
impl PySampler {
    #[new]
    fn new(options: &Bound<'_, PyDict>) -> Result<PySampler> {
        let mut config = SamplerConfig::default();
        for (key, object) in options.iter() {
            let key = key.extract::<String>()?;
            if !object.is_none() && !sampling(&mut config, &key, &object)? {
                return wrong_type(format!("there is no option {key:?} of sampling"));
            }
        }
        Ok(PySampler { sampler: Mutex::new(Sampler::new(config)?) })
    }

    /// The token for `position` after `tokens`.
    fn sample(&self, py: Python<'_>, logits: &PyTensor, tokens: Vec<u32>, position: u64) -> Result<u32> {
        let logits = logits.get()?;
        crate::tape::refuse("reading elements", &[&logits])?;
        let x = logits.tensor.clone();
        let numbers = logits.awaited(py, 0, move || x.cast(hologram_isa::Type::F32)?.to_vec::<f32>())??;
        Ok(py.detach(|| lock(&self.sampler).sample_after(&numbers, &tokens, position))?)
    }
}
