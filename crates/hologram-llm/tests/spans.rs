//! The spans that a subscriber of `tracing` sees: loading, compiling, steps, runs and requests.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hologram_core::{Executor, Tensor};
use hologram_llm::{Engine, EngineOptions, Event, Logits, Model, Request, SessionOptions};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// A span as it was seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    target: &'static str,
    fields: BTreeMap<&'static str, String>,
    follows: usize,
    closed: bool,
}

/// Collects all spans.
#[derive(Clone, Default)]
struct Collector {
    seen: Arc<Mutex<HashMap<u64, Seen>>>,
    next: Arc<AtomicU64>,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Collector {
    fn change(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        self.seen.lock().unwrap().entry(id.into_u64()).and_modify(change);
    }

    /// The spans of this name, oldest first; forgets all.
    fn take(&self, name: &str) -> Vec<Seen> {
        let mut all: Vec<(u64, Seen)> = self.seen.lock().unwrap().drain().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, seen)| seen).filter(|seen| seen.name == name).collect()
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("hologram")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let metadata = attributes.metadata();
        let mut seen = Seen { name: metadata.name(), target: metadata.target(), ..Seen::default() };
        attributes.record(&mut Fields(&mut seen.fields));
        self.seen.lock().unwrap().insert(id, seen);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.change(id, |seen| values.record(&mut Fields(&mut seen.fields)));
    }

    fn record_follows_from(&self, id: &Id, _: &Id) {
        self.change(id, |seen| seen.follows += 1);
    }

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    // No span is cloned.
    fn try_close(&self, id: Id) -> bool {
        self.change(&id, |seen| seen.closed = true);
        true
    }
}

#[test]
fn a_subscriber_sees_what_is_done() {
    let spans = Collector::default();
    // For all threads: the engine has its own.
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let field = |seen: &Seen, name: &str| seen.fields.get(name).cloned().unwrap_or_default();

    // An operation on tensors is compiled once and runs twice.
    let x = Tensor::from_slice(&executor, &[3], &[1f32, 2.0, 3.0]).unwrap();
    spans.take("");
    let double = || (&x + &x).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(double(), [2.0, 4.0, 6.0]);
    let compiled = spans.take("compile");
    assert_eq!((compiled.len(), field(&compiled[0], "device")), (1, "cpu".into()), "{compiled:?}");
    assert_eq!(compiled[0].target, "hologram_core::graph::compile");
    double();
    let runs = spans.take("run");
    assert_eq!((runs.len(), field(&runs[0], "launches")), (1, "1".into()), "{runs:?}");

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama-tiny.gguf");
    let model = Arc::new(Model::load_on(path, &executor).unwrap());
    let loaded = spans.take("load");
    assert!(field(&loaded[0], "model").ends_with("llama-tiny.gguf") && loaded[0].closed, "{loaded:?}");

    let mut session = model.session(SessionOptions { context: 16, ..SessionOptions::default() }).unwrap();
    session.feed(0, &[1, 5, 9], Logits::Last).unwrap();
    let feeds = spans.take("feed");
    assert_eq!((feeds.len(), field(&feeds[0], "tokens")), (1, "3".into()), "{feeds:?}");

    let mut options = EngineOptions::for_model(&model);
    options.context = 32;
    let engine = Engine::new(model, options).unwrap();
    let mut request = Request::new(vec![1, 5, 9]);
    (request.max_tokens, request.ignore_end) = (Some(4), true);
    spans.take("");
    let mut events = engine.submit(request).unwrap();
    let finished = std::iter::from_fn(|| events.next_blocking()).any(|event| matches!(event, Event::Finished { .. }));
    drop(engine);
    assert!(finished);
    let all = spans.seen.lock().unwrap().clone();
    let steps = all.values().filter(|seen| seen.name == "step");
    assert!(steps.clone().count() > 0 && steps.clone().all(|step| step.follows == 1 && step.closed), "{all:?}");
    let request = all.values().find(|seen| seen.name == "request").unwrap();
    let figures = ["prompt_tokens", "cached_tokens", "generated_tokens"].map(|name| field(request, name));
    assert!(figures == ["3", "0", "4"] && request.closed, "{request:?}");
}
