//! Language models: an engine behind `generate` and `stream`, sessions, tokenizers.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hologram_core::{DType, Tensor};
use hologram_llm::engine::{Constraint, Logprob, TokenLogprobs};
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::tokenizer::TokenDecoder;
use hologram_llm::{
    Adapter, CACHE_TYPES, ChatTemplate, Conversation, Embedder, Engine, EngineOptions, Event, Events, ExpertPlace,
    Finish, LoadOptions, Logits, Model, ModelFiles, Pooling, Request, Session, SessionOptions,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::device;
use crate::error::{Error, Result, value, wrong_type};
use crate::tensor::PyTensor;
use crate::wait::{Bell, interruptible};

mod session;
mod tokenizer;

pub use session::{PySampler, PySession};
pub use tokenizer::{PyDecoder, PyTokenizer};

/// Tokens of a piece of a prompt, after which Ctrl-C ends the rest.
const PIECE: usize = 64;

/// Bytes of a text, or tokens, from which a tokenizer works on another thread: some milliseconds.
const LONG: usize = 64 << 10;

/// How long a call feeds tokens on its own thread.
const SOON: Duration = Duration::from_millis(20);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tokens of a vocabulary.
fn checked(tokens: &[i64], vocab: usize) -> Result<Vec<u32>> {
    let one = |id: &i64| match u32::try_from(*id).ok().filter(|id| (*id as usize) < vocab) {
        Some(id) => Ok(id),
        None => value(format!(
            "tokens must be from 0 to {}, the size of the vocabulary less one, but one is {id}",
            vocab - 1
        )),
    };
    tokens.iter().map(one).collect()
}

fn kv_format(name: Option<&str>) -> Result<Option<DType>> {
    let Some(name) = name else { return Ok(None) };
    match CACHE_TYPES.into_iter().find(|(known, _)| *known == name) {
        Some((_, format)) => Ok(Some(format)),
        None => {
            let names = CACHE_TYPES.map(|(known, _)| format!("{known:?}")).join(", ");
            value(format!("kv is {name:?}, but must be one of {names}"))
        }
    }
}

fn expert_place(name: Option<&str>) -> Result<ExpertPlace> {
    match name {
        None | Some("auto") => Ok(ExpertPlace::Auto),
        Some("gpu") => Ok(ExpertPlace::Gpu),
        Some("cpu") => Ok(ExpertPlace::Cpu),
        Some(other) => value(format!("experts is {other:?}, but must be \"auto\", \"gpu\" or \"cpu\"")),
    }
}

/// A language model on a device.
#[pyclass(frozen, name = "Model", module = "hologram._native")]
pub struct PyModel {
    state: Mutex<Option<State>>,
    device: String,
    /// Seen by the model's sessions.
    closed: Arc<AtomicBool>,
    generation: u32,
}

#[derive(Clone)]
struct State {
    model: Arc<Model>,
    options: EngineOptions,
    engine: Option<Engine>,
}

impl PyModel {
    fn state(&self) -> Result<State> {
        device::alive(self.generation)?;
        match &*lock(&self.state) {
            Some(state) => Ok(state.clone()),
            None => value("the model is closed"),
        }
    }

    fn model(&self) -> Result<Arc<Model>> {
        Ok(self.state()?.model)
    }

    /// The engine, started when it is first used.
    fn engine(&self, py: Python<'_>) -> Result<Engine> {
        let state = self.state()?;
        if let Some(engine) = state.engine.filter(Engine::is_alive) {
            return Ok(engine);
        }
        let engine = interruptible(py, move || Engine::new(state.model, state.options))??;
        let old = match &mut *lock(&self.state) {
            Some(state) => state.engine.replace(engine.clone()),
            None => None,
        };
        // Dropping an engine waits for its thread.
        py.detach(|| drop(old));
        Ok(engine)
    }
}

#[pymethods]
impl PyModel {
    /// Loads a GGUF file or a folder, with adapters and their scales.
    #[allow(clippy::too_many_arguments)]
    #[new]
    #[pyo3(signature = (path, device=None, ctx=None, kv=None, sequences=None, kv_memory=None, lora=Vec::new(), experts=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        device: Option<&Bound<'_, PyAny>>,
        ctx: Option<usize>,
        kv: Option<&str>,
        sequences: Option<usize>,
        kv_memory: Option<u64>,
        lora: Vec<(PathBuf, f32)>,
        experts: Option<&str>,
    ) -> Result<PyModel> {
        let (kv, experts) = (kv_format(kv)?, expert_place(experts)?);
        let (name, executor) = device::open(py, device::name_of(device)?.as_deref())?;
        let load = move || {
            let open = |(path, scale): (PathBuf, f32)| Adapter::open(path, scale);
            let adapters = lora.into_iter().map(open).collect::<hologram_llm::Result<Vec<_>>>()?;
            let options = LoadOptions { adapters: &adapters, experts, ..LoadOptions::default() };
            Model::load_with(ModelFiles::open(path)?, &executor, &options, &mut |_, _| ())
        };
        let model = Arc::new(interruptible(py, load)??);
        let mut options = EngineOptions::for_model(&model);
        options.context = ctx.unwrap_or(options.context);
        options.max_sequences = sequences.unwrap_or(options.max_sequences);
        options.kv = kv;
        options.kv_memory = kv_memory;
        // Python reads when it likes.
        options.unread_events = 1 << 20;
        options.slow_reader = Duration::from_secs(365 * 24 * 3600);
        options.max_waiting = 1 << 16;
        options.max_waiting_tokens = 1 << 28;
        let state = State { model, options, engine: None };
        let closed = Arc::default();
        Ok(PyModel { state: Mutex::new(Some(state)), device: name, closed, generation: device::generation() })
    }

    /// Frees the model's memory; running generations and sessions fail.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Relaxed);
        let state = lock(&self.state).take();
        if self.generation != device::generation() {
            // The engine's thread stayed with the parent.
            std::mem::forget(state);
            return;
        }
        py.detach(|| drop(state));
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.state).is_none()
    }

    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    /// What the model's file says about it.
    #[getter]
    fn config(&self, py: Python<'_>) -> Result<Py<PyDict>> {
        let state = self.state()?;
        let config = state.model.config();
        let dict = PyDict::new(py);
        dict.set_item("name", &config.name)?;
        dict.set_item("vocab", config.vocab)?;
        dict.set_item("width", config.width)?;
        dict.set_item("context", config.context)?;
        dict.set_item("weight_bytes", state.model.weight_bytes())?;
        dict.set_item("ctx", state.options.context)?;
        Ok(dict.unbind())
    }

    /// The tokenizer.
    fn tokenizer(&self) -> Result<PyTokenizer> {
        let model = self.model()?;
        model.tokenizer()?;
        Ok(PyTokenizer { model, template: Mutex::new(None) })
    }

    /// Starts a request; its events come from the result.
    fn submit(&self, py: Python<'_>, tokens: Vec<u32>, options: &Bound<'_, PyDict>) -> Result<PyEvents> {
        let mut request = Request::new(tokens);
        apply(&mut request, options)?;
        let engine = self.engine(py)?;
        let events = py.detach(|| engine.submit(request))?;
        Ok(PyEvents { events: Mutex::new(Some(events)), bell: Arc::default(), generation: self.generation })
    }

    /// A session: a KV cache of one text, fed by hand.
    #[pyo3(signature = (ctx=None, kv=None))]
    fn session(&self, py: Python<'_>, ctx: Option<usize>, kv: Option<&str>) -> Result<PySession> {
        let state = self.state()?;
        let kv = kv_format(kv)?.or(state.options.kv);
        let context = ctx.unwrap_or(state.options.context);
        let options = SessionOptions { context, kv, ..SessionOptions::default() };
        let session = interruptible(py, move || state.model.session(options))??;
        let (vocab, per_token) = (session.vocab(), AtomicU64::new(u64::MAX));
        let (session, closed) = (Arc::new(Mutex::new(session)), self.closed.clone());
        Ok(PySession { session, context, vocab, per_token, closed, generation: self.generation })
    }

    /// Perplexity of tokens: (perplexity, its error, mean, counted tokens, windows).
    fn perplexity(&self, py: Python<'_>, tokens: Vec<u32>, ctx: usize) -> Result<(f64, f64, f64, usize, usize)> {
        let state = self.state()?;
        let stop = StopOnDrop::default();
        let stopped = stop.0.clone();
        let measured = interruptible(py, move || {
            state.model.perplexity(&tokens, ctx, state.options.kv, &mut |_, _| match stopped.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        })??;
        match measured {
            Some(m) => Ok((m.perplexity, m.error, m.mean, m.counted, m.windows)),
            None => Err(PyRuntimeError::new_err("the measurement was ended").into()),
        }
    }

    /// A vector for each text (its tokens), pooled as the model's files say unless `pooling` does.
    fn embed(&self, py: Python<'_>, texts: Vec<Vec<u32>>, pooling: Option<&str>) -> Result<PyTensor> {
        let model = self.model()?;
        let pooling = match pooling {
            None => None,
            Some("last") => Some(Pooling::Last),
            Some("mean") => Some(Pooling::Mean),
            Some("cls") => Some(Pooling::Cls),
            Some(other) => return value(format!("pooling is {other:?}, but must be \"last\", \"mean\" or \"cls\"")),
        };
        if texts.iter().any(Vec::is_empty) || texts.is_empty() {
            return value("an embedding takes at least one token");
        }
        let context = texts.iter().map(Vec::len).max().unwrap_or(0);
        let vectors = interruptible(py, move || {
            let mut embedder = Embedder::new(&model, context)?;
            let pooling = pooling.unwrap_or(embedder.pooling());
            embedder.embed(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>(), pooling)
        })??;
        let width = vectors.first().map_or(0, Vec::len);
        host_tensor(py, &[vectors.len(), width], &vectors.concat())
    }

    /// The engine's counters.
    fn stats(&self, py: Python<'_>) -> Result<String> {
        Ok(format!("{:?}", self.engine(py)?.stats()))
    }
}

impl Drop for PyModel {
    fn drop(&mut self) {
        let state = lock(&self.state).take();
        if self.generation != device::generation() {
            std::mem::forget(state);
            return;
        }
        // The engine's thread needs no interpreter, so that waiting for it here cannot lock up.
        drop(state);
    }
}

/// Ends work on another thread when its reader is gone.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn host_tensor(py: Python<'_>, shape: &[usize], numbers: &[f32]) -> Result<PyTensor> {
    let (name, executor) = device::open(py, Some("cpu"))?;
    Ok(PyTensor::new(Tensor::from_slice(&executor, shape, numbers)?, name.into()))
}

/// Sets the fields of a request that `options` names.
fn apply(request: &mut Request, options: &Bound<'_, PyDict>) -> Result<()> {
    let mut of_prompt = false;
    for (key, object) in options.iter() {
        let key = key.extract::<String>()?;
        if object.is_none() || sampling(&mut request.sampling, &key, &object)? {
            continue;
        }
        match key.as_str() {
            "max_tokens" => request.max_tokens = Some(object.extract()?),
            "stop" => request.stop = object.extract()?,
            "stop_tokens" => request.stop_tokens = object.extract()?,
            "ignore_eos" => request.ignore_end = object.extract()?,
            "min_tokens" => request.min_tokens = object.extract()?,
            "logprobs" => request.logprobs = Some(object.extract()?),
            "prompt_logprobs" => of_prompt = object.extract()?,
            "logit_bias" => request.logit_bias = object.extract()?,
            "priority" => request.priority = object.extract()?,
            "tenant" => request.tenant = Some(object.extract()?),
            "timeout" => request.timeout = Some(seconds(object.extract()?)?),
            "show_control" => request.show_control = object.extract()?,
            "json_object" => request.constraint = Some(Constraint::JsonObject),
            "json_schema" => {
                let schema = serde_json::from_str(&object.extract::<String>()?);
                let schema = schema.or_else(|e| value(format!("the schema is no JSON: {e}")))?;
                request.constraint = Some(Constraint::JsonSchema(schema));
            }
            "regex" => request.constraint = Some(Constraint::Regex(object.extract()?)),
            "grammar" => {
                request.constraint = Some(Constraint::grammar(&object.extract::<String>()?).or_else(value)?);
            }
            other => return wrong_type(format!("there is no option {other:?}")),
        }
    }
    // With as many alternatives as the generated tokens.
    request.prompt_logprobs = of_prompt.then(|| request.logprobs.unwrap_or(0));
    Ok(())
}

fn seconds(number: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(number)
        .or_else(|_| value(format!("timeout is {number}, but must be a number of seconds")))
}

/// Sets a field of the sampling; returns whether there is one of this name.
fn sampling(config: &mut SamplerConfig, key: &str, object: &Bound<'_, PyAny>) -> Result<bool> {
    match key {
        "temperature" => config.temperature = object.extract()?,
        "top_k" => config.top_k = object.extract()?,
        "top_p" => config.top_p = object.extract()?,
        "min_p" => config.min_p = object.extract()?,
        "repeat_penalty" => config.repeat_penalty = object.extract()?,
        "presence_penalty" => config.presence_penalty = object.extract()?,
        "frequency_penalty" => config.frequency_penalty = object.extract()?,
        "seed" => config.seed = object.extract()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The events of a request. Dropping or closing it cancels the request.
#[pyclass(frozen, name = "Events", module = "hologram._native")]
pub struct PyEvents {
    events: Mutex<Option<Events>>,
    bell: Arc<Bell>,
    generation: u32,
}

fn logprob<'py>(py: Python<'py>, one: &Logprob) -> PyResult<(u32, f32, Bound<'py, PyBytes>)> {
    Ok((one.id, one.logprob, PyBytes::new(py, &one.bytes)))
}

fn logprobs<'py>(py: Python<'py>, token: &TokenLogprobs) -> PyResult<Bound<'py, PyAny>> {
    let top = token.top.iter().map(|one| logprob(py, one)).collect::<PyResult<Vec<_>>>()?;
    Ok((logprob(py, &token.token)?, top).into_pyobject(py)?.into_any())
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText => "end",
        Finish::MaxTokens => "length",
        Finish::ContextFull => "context",
        Finish::Stop => "stop",
        Finish::Deadline => "timeout",
        _ => "other",
    }
}

fn event<'py>(py: Python<'py>, event: Event) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match event {
        Event::Started { prompt_tokens, cached_tokens, .. } => {
            dict.set_item("kind", "started")?;
            dict.set_item("prompt_tokens", prompt_tokens)?;
            dict.set_item("cached_tokens", cached_tokens)?;
        }
        Event::Progress { computed } => {
            dict.set_item("kind", "progress")?;
            dict.set_item("computed", computed)?;
        }
        Event::Prompt { logprobs: all } => {
            dict.set_item("kind", "prompt")?;
            let all = all.iter().map(|one| match one {
                Some(one) => logprobs(py, one),
                None => Ok(py.None().into_bound(py)),
            });
            dict.set_item("logprobs", PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)?)?;
        }
        Event::Token { ids, text, logprobs: all } => {
            dict.set_item("kind", "token")?;
            dict.set_item("ids", ids)?;
            dict.set_item("text", text)?;
            let all = all.iter().map(|one| logprobs(py, one)).collect::<PyResult<Vec<_>>>()?;
            dict.set_item("logprobs", PyList::new(py, all)?)?;
        }
        Event::Finished { reason, stop, usage, timings, .. } => {
            dict.set_item("kind", "finished")?;
            dict.set_item("finish", finish_name(reason))?;
            dict.set_item("stop", stop)?;
            dict.set_item("prompt_tokens", usage.prompt_tokens)?;
            dict.set_item("cached_tokens", usage.cached_tokens)?;
            dict.set_item("generated_tokens", usage.generated_tokens)?;
            dict.set_item("queued", timings.queued.as_secs_f64())?;
            dict.set_item("prompt", timings.prompt.as_secs_f64())?;
            dict.set_item("decode", timings.decode.as_secs_f64())?;
        }
        Event::Failed(failure) => return Err(failure.into()),
    }
    Ok(dict)
}

#[pymethods]
impl PyEvents {
    /// The next event; `None` after the last. Ctrl-C ends the wait.
    fn next<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyDict>>> {
        device::alive(self.generation)?;
        let waker = self.bell.waker();
        loop {
            // The lock is not held while this thread waits, so that `close` works from another.
            let polled = match &mut *lock(&self.events) {
                Some(events) => events.poll_next(&mut Context::from_waker(&waker)),
                None => Poll::Ready(None),
            };
            match polled {
                Poll::Ready(None) => return Ok(None),
                Poll::Ready(Some(next)) => return event(py, next).map(Some),
                Poll::Pending => py.detach(|| self.bell.wait()),
            }
            if let Err(signal) = py.check_signals() {
                self.close();
                return Err(signal.into());
            }
        }
    }

    /// Cancels the request.
    fn close(&self) {
        let events = lock(&self.events).take();
        if self.generation == device::generation() { drop(events) } else { std::mem::forget(events) }
    }
}
