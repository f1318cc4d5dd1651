//! `--profile OUT.json`: a timeline of host and device for <https://ui.perfetto.dev> and `chrome://tracing`.
//!
//! The format is Chrome's Trace Event Format: complete events with times in microseconds, on one track for the host and
//! one for the device. The host's events are the calls of [`Backend`], recorded by a wrapper that forwards them to the
//! real one. While tracing, the launches of a list run one at a time and each is measured ([`Backend::profile`]) for
//! the device's track, which takes longer than the normal replay of the whole list.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hologram_backends::*;
use hologram_core::Executor;
use hologram_isa::Program;
use serde_json::json;

use crate::args::DeviceArgs;
use crate::output::Output;
use crate::status::status;

/// Maximum events of a trace: more than viewers handle well.
const MAX_EVENTS: usize = 1 << 20;

/// The track that an event is on.
#[derive(Clone, Copy)]
enum Track {
    Host = 1,
    Device = 2,
}

/// An event; times in seconds since the start of the trace.
struct Span {
    track: Track,
    name: Arc<str>,
    start: f64,
    seconds: f64,
    /// Bytes moved.
    bytes: Option<usize>,
}

struct State {
    /// In the order in which they ended.
    spans: Vec<Span>,
    /// Events beyond [`MAX_EVENTS`].
    left_out: usize,
    /// When the device's last launch ended.
    device_end: f64,
    /// The device's name.
    device: String,
}

/// A trace in progress.
pub struct Trace {
    path: PathBuf,
    output: Output,
    begin: Instant,
    on: AtomicBool,
    state: Mutex<State>,
}

impl Trace {
    /// Starts a trace if a file was given.
    ///
    /// # Errors
    /// When the file cannot be written, which is reported before the work.
    pub fn create(path: Option<&Path>) -> anyhow::Result<Option<Arc<Trace>>> {
        let Some(path) = path else { return Ok(None) };
        let output = Output::create(path)?;
        let state = State { spans: Vec::new(), left_out: 0, device_end: 0.0, device: "device".into() };
        Ok(Some(Arc::new(Trace {
            path: path.into(),
            output,
            begin: Instant::now(),
            on: AtomicBool::new(true),
            state: Mutex::new(state),
        })))
    }

    /// Turns tracing on or off.
    pub fn turn(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Writes the file, which keeps its old content until then.
    ///
    /// # Errors
    /// When that fails.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.output.write(|out| self.write(out))?;
        let state = self.state();
        status!("wrote {} ({} events", self.path.display(), state.spans.len());
        match state.left_out {
            0 => status!(")\n"),
            more => status!("; {more} more were dropped)\n"),
        }
        Ok(())
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let state = self.state();
        let name = |what: &str, tid: Track, name: &str| json!({"name": what, "ph": "M", "pid": 1, "tid": tid as u32, "args": {"name": name}});
        writeln!(out, "{{\"displayTimeUnit\": \"ns\", \"traceEvents\": [")?;
        writeln!(out, "{},", name("process_name", Track::Host, "hologram"))?;
        writeln!(out, "{},", name("thread_name", Track::Host, "host"))?;
        write!(out, "{}", name("thread_name", Track::Device, &state.device))?;
        for span in &state.spans {
            let us = |seconds: f64| (seconds * 1e9).round() / 1e3;
            let mut event = json!({
                "name": &*span.name,
                "cat": if matches!(span.track, Track::Host) { "host" } else { "kernel" },
                "ph": "X",
                "ts": us(span.start),
                "dur": us(span.seconds),
                "pid": 1,
                "tid": span.track as u32,
            });
            if let Some(bytes) = span.bytes {
                event["args"] = json!({"bytes": bytes});
            }
            write!(out, ",\n{event}")?;
        }
        writeln!(out, "\n]}}")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Runs a step of a command, shown on the host's track around its calls.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        self.host(name, None, work)
    }

    /// Runs something that the host's track shows.
    fn host<T>(&self, name: &str, bytes: Option<usize>, work: impl FnOnce() -> T) -> T {
        if !self.is_on() {
            return work();
        }
        let start = self.now();
        let done = work();
        let seconds = self.now() - start;
        self.state().add(Span { track: Track::Host, name: name.into(), start, seconds, bytes });
        done
    }

    /// Adds launches that ran one after another and have just ended.
    fn launches(&self, times: Vec<(Arc<str>, f64)>) {
        let end = self.now();
        let mut state = self.state();
        // The device idles before the first launch, not after the last.
        let mut start = (end - times.iter().map(|t| t.1).sum::<f64>()).max(state.device_end);
        for (name, seconds) in times {
            state.add(Span { track: Track::Device, name, start, seconds, bytes: None });
            start += seconds;
        }
        state.device_end = start;
    }
}

impl State {
    fn add(&mut self, span: Span) {
        if self.spans.len() < MAX_EVENTS { self.spans.push(span) } else { self.left_out += 1 }
    }
}

/// Runs a step of a command, shown on the host's track if there is a trace.
pub fn step<T>(trace: &Option<Arc<Trace>>, name: &str, work: impl FnOnce() -> T) -> T {
    match trace {
        Some(trace) => trace.step(name, work),
        None => work(),
    }
}

/// Opens the device, wrapped for a trace if there is one.
///
/// # Errors
/// As [`DeviceArgs::open`].
pub fn open(device: &DeviceArgs, trace: &Option<Arc<Trace>>) -> anyhow::Result<Executor> {
    let executor = step(trace, "open the device", || device.open())?;
    let Some(trace) = trace else { return Ok(executor) };
    let info = executor.info();
    trace.state().device = format!("{}: {}", info.backend, info.name);
    let (inner, trace) = (executor.backend().clone(), trace.clone());
    Ok(Executor::from_backend(Arc::new(Traced { inner, trace })))
}

/// A backend that records calls and forwards them.
struct Traced {
    inner: Arc<dyn Backend>,
    trace: Arc<Trace>,
}

impl Backend for Traced {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn is_available(&self) -> bool {
        self.inner.is_available()
    }

    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.trace.host("allocate", Some(bytes), || self.inner.allocate_buffer(bytes))
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        self.inner.owns(buffer)
    }

    fn free_buffer(&self, buffer: Buffer) {
        self.inner.free_buffer(buffer);
    }

    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        self.trace.host("wrap host memory", None, || self.inner.wrap(memory))
    }

    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        self.trace.host("copy to device", Some(data.len()), || self.inner.copy_to_buffer(buffer, offset, data))
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        self.trace.host("copy from device", Some(data.len()), || self.inner.copy_from_buffer(buffer, offset, data))
    }

    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
        self.inner.clear_error(buffer, offset, bytes)
    }

    fn copy_buffer(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let copy = || self.inner.copy_buffer(from, from_offset, to, to_offset, bytes);
        self.trace.host("copy on device", Some(bytes), copy)
    }

    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.trace.host(&format!("compile {}", program.name), None, || self.inner.compile(program))
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        self.trace.host(&format!("find kernel {}", spec.op), None, || self.inner.native(spec))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        self.trace.host("find kernel of a group", None, || self.inner.native_group(group))
    }

    fn prefers_fixed(&self, spec: &KernelSpec) -> bool {
        self.inner.prefers_fixed(spec)
    }

    fn shares_host_memory(&self) -> bool {
        self.inner.shares_host_memory()
    }

    fn available_memory(&self) -> Option<u64> {
        self.inner.available_memory()
    }

    fn weight_layout(&self, format: Format) -> Format {
        self.inner.weight_layout(format)
    }

    fn expect_weights(&self, layout: Format) {
        self.inner.expect_weights(layout);
    }

    fn activations(&self, weights: Format, tokens: usize, choices: &[Format]) -> Option<Format> {
        self.inner.activations(weights, tokens, choices)
    }

    fn attention_products(&self, tokens: usize, choices: &[Format]) -> Option<Format> {
        self.inner.attention_products(tokens, choices)
    }

    fn elements_per_thread(&self) -> u32 {
        self.inner.elements_per_thread()
    }

    fn cache_format(&self, choices: &[Format]) -> Option<Format> {
        self.inner.cache_format(choices)
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        self.trace.host("record launches", None, || self.inner.record(launches))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        if !self.trace.is_on() {
            return self.inner.submit(list);
        }
        let times = self.trace.host("run launches", None, || {
            // Earlier work is not part of these launches.
            self.inner.synchronize()?;
            self.inner.profile(list)
        })?;
        self.trace.launches(times);
        // An event that has already happened.
        Ok(Event(0))
    }

    fn wait(&self, event: Event) -> Result<()> {
        self.trace.host("wait", None, || self.inner.wait(event))
    }

    fn synchronize(&self) -> Result<()> {
        self.trace.host("wait", None, || self.inner.synchronize())
    }

    fn profile(&self, list: &CommandList) -> Result<Vec<(Arc<str>, f64)>> {
        self.inner.profile(list)
    }

    fn verdicts(&self) -> Option<&dyn Verdicts> {
        self.inner.verdicts()
    }

    fn capture(&self, path: &Path, work: &mut dyn FnMut()) -> Result<()> {
        self.inner.capture(path, work)
    }

    fn metrics(&self) -> Metrics {
        self.inner.metrics()
    }

    fn read_bandwidth(&self) -> Result<f64> {
        self.trace.host("measure the read bandwidth", None, || self.inner.read_bandwidth())
    }

    fn copy_bandwidth(&self) -> Result<f64> {
        self.trace.host("measure the copy bandwidth", None, || self.inner.copy_bandwidth())
    }

    fn ceiling(&self, kind: CeilingKind) -> Result<Option<Ceiling>> {
        self.inner.ceiling(kind)
    }

    fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        self.trace.host("allocate", Some(bytes), || self.inner.allocate_pool(bytes))
    }

    fn free_pool(&self, pool: Pool) {
        self.inner.free_pool(pool);
    }

    fn copy_to_pool(&self, pool: &Pool, offset: usize, data: &[u8]) -> Result<()> {
        self.trace.host("copy to device", Some(data.len()), || self.inner.copy_to_pool(pool, offset, data))
    }

    fn copy_from_pool(&self, pool: &Pool, offset: usize, data: &mut [u8]) -> Result<()> {
        self.trace.host("copy from device", Some(data.len()), || self.inner.copy_from_pool(pool, offset, data))
    }
}

#[cfg(test)]
mod tests {
    /// A default method of the trait would not reach the device behind the trace, and so change its behaviour.
    #[test]
    fn every_call_is_passed_on() {
        let definition = include_str!("../../hologram-backends/src/backend.rs");
        let body = definition.split_once("pub trait Backend").unwrap().1.split_once("\n}\n").unwrap().0;
        let here = include_str!("trace.rs").split_once("impl Backend for Traced").unwrap().1;
        let methods: Vec<&str> = body.split("\n    fn ").skip(1).map(|m| m.split_once('(').unwrap().0).collect();
        assert!(methods.len() > 25, "{methods:?}");
        for method in methods {
            // Composed of other methods.
            if method != "execute_program" {
                assert!(here.contains(&format!("\n    fn {method}(")), "{method} is not passed on");
            }
        }
    }
}
