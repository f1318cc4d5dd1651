//! The log: one JSON object per line on standard error, from `tracing`'s events.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub use tracing::Level;

/// Writes events up to this level to standard error from now on.
///
/// # Errors
/// When another subscriber was installed.
pub fn install(level: Level) -> Result<(), tracing::subscriber::SetGlobalDefaultError> {
    tracing::subscriber::set_global_default(Lines { level })
}

/// Logs that something failed.
pub fn error(message: &str) {
    tracing::error!("{message}");
}

/// Logs what may be amiss.
pub fn warn(message: &str) {
    tracing::warn!("{message}");
}

/// Logs what happened.
pub fn info(message: &str) {
    tracing::info!("{message}");
}

struct Lines {
    level: Level,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level && metadata.target().starts_with("hologram")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Map::new();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        line.insert("time".into(), ((time * 1e3).round() / 1e3).into());
        line.insert("level".into(), event.metadata().level().as_str().to_ascii_lowercase().into());
        event.record(&mut Members(&mut line));
        let mut line = Value::from(line).to_string();
        line.push('\n');
        // One call, so that lines of several threads do not mix. A closed stderr is ignored.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    // Events only.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Members<'a>(&'a mut Map<String, Value>);

impl Members<'_> {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl Visit for Members<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, (value * 1e3).round() / 1e3);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.add(field, text);
    }
}
