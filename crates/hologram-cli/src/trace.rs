//! `--profile OUT.json`: a timeline of host and device for <https://ui.perfetto.dev> and `chrome://tracing`.
//!
//! The format is Chrome's Trace Event Format: complete events with times in microseconds, on one track for the host and
//! one for the device. The host's events are the calls of [`Backend`], recorded by a wrapper that forwards them to the
//! real one. While tracing, the launches of a list run one at a time and each is measured (`Measure::profile`) for
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

/// The tracks.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// What an event is.
#[derive(Clone, Copy)]
enum Kind {
    /// A call of the host.
    Host,
    /// A native kernel.
    Kernel,
    /// A program, where no native kernel serves.
    Program,
}

/// An event; times in seconds since the start of the trace.
struct Span {
    kind: Kind,
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
        let name = |what: &str, tid: u32, name: &str| json!({"name": what, "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}});
        writeln!(out, "{{\"displayTimeUnit\": \"ns\", \"traceEvents\": [")?;
        writeln!(out, "{},", name("process_name", HOST, "hologram"))?;
        writeln!(out, "{},", name("thread_name", HOST, "host"))?;
        write!(out, "{}", name("thread_name", DEVICE, &state.device))?;
        for span in &state.spans {
            let us = |seconds: f64| (seconds * 1e9).round() / 1e3;
            let (cat, tid) = match span.kind {
                Kind::Host => ("host", HOST),
                Kind::Kernel => ("kernel", DEVICE),
                Kind::Program => ("program", DEVICE),
            };
            let mut event = json!({
                "name": &*span.name,
                "cat": cat,
                "ph": "X",
                "ts": us(span.start),
                "dur": us(span.seconds),
                "pid": 1,
                "tid": tid,
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
        self.state().add(Span { kind: Kind::Host, name: name.into(), start, seconds, bytes });
        done
    }

    /// Adds launches that ran one after another and have just ended.
    fn launches(&self, times: Vec<(KernelName, f64)>) {
        let end = self.now();
        let mut state = self.state();
        // The device idles before the first launch, not after the last.
        let mut start = (end - times.iter().map(|t| t.1).sum::<f64>()).max(state.device_end);
        for (name, seconds) in times {
            let kind = if name.is_program { Kind::Program } else { Kind::Kernel };
            state.add(Span { kind, name: name.text, start, seconds, bytes: None });
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
    pass_on!(self => self.inner;
        info is_available policy measure streams owns available_memory wrap_pointer clear_error is_behind);

    fn kernels(&self) -> &dyn Kernels {
        self
    }

    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.trace.host("allocate", Some(bytes), || self.inner.allocate_buffer(bytes))
    }

    fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        self.trace.host("allocate", Some(bytes), || self.inner.allocate_pool(bytes))
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
            self.inner.measure().profile(list)
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
}

impl Kernels for Traced {
    pass_on!(self => self.inner.kernels(); prefers_fixed expect_weights);

    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.trace.host(&format!("compile {}", program.name), None, || self.inner.compile(program))
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        self.trace.host(&format!("find kernel {}", spec.op), None, || self.inner.kernels().native(spec))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        self.trace.host("find kernel of a group", None, || self.inner.kernels().native_group(group))
    }
}
