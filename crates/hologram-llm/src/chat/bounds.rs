//! Bounds of what a template may do: a few characters can ask for more text than there is memory.
//!
//! Bounded are its own length and depth, the text, each part of it that a template keeps for later, what filters make of numbers, the steps and the time; and,
//! where the system tells it (Linux), the memory, which texts joined again and again would exhaust within those bounds.

use std::fmt::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use minijinja_contrib::pycompat;

/// Bytes of a conversation's text: many times the longest context.
pub(super) const MAX_TEXT: usize = 64 << 20;

/// The widest indentation or field, and the most parts of a list, that a filter is asked for.
const MAX_COUNT: i64 = 10_000;

/// Bytes of a template: many times those of models. However nested, so long a one is compiled within [`STACK`].
pub(super) const MAX_SOURCE: usize = 256 << 10;

/// The stack of a template: it is compiled as deep as it is long, and lists in lists, as deep as the steps allow, are freed on it.
const STACK: usize = 1 << 30;

/// How long a rendering is waited for, and by how many bytes the process may grow meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    time: Duration,
    memory: u64,
}

/// Texts take a millisecond and less than a megabyte.
pub(super) const LIMITS: Limits = Limits { time: Duration::from_secs(20), memory: 1 << 30 };

/// How often time and memory are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A text that takes no more than [`MAX_TEXT`].
#[derive(Default)]
pub(super) struct Bounded(String);

impl Bounded {
    /// Appends so many spaces.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn spaces(&mut self, n: usize) -> fmt::Result {
        self.room(n)?;
        self.0.extend(std::iter::repeat_n(' ', n));
        Ok(())
    }

    pub fn into_text(self) -> String {
        self.0
    }

    fn room(&self, n: usize) -> fmt::Result {
        if n <= MAX_TEXT.saturating_sub(self.0.len()) { Ok(()) } else { Err(fmt::Error) }
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.room(text.len())?;
        self.0.push_str(text);
        Ok(())
    }
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(std::io::Error::other)?;
        self.write_str(text).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes of values written in one rendering, those that are kept for later included.
#[derive(Default)]
struct Written(usize);

/// Puts the bounds on values and filters.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_formatter(|out, state, value| {
        let written = state.get_or_insert_extension(Written::default());
        written.0 = written.0.saturating_add(value.as_str().map_or(0, str::len));
        if written.0 > MAX_TEXT {
            return Err(ErrorKind::WriteFailure.into());
        }
        escape_formatter(out, state, value)
    });
    environment.set_unknown_method_callback(|state, value, method, args| {
        if method == "format" {
            narrow(value)?;
        }
        pycompat::unknown_method_callback(state, value, method, args)
    });
    let format = Value::from_function(filters::format);
    environment.add_filter("format", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        args.first().map_or(Ok(()), narrow)?;
        format.call(state, &args)
    });
    environment.add_filter("indent", bounded(Value::from_function(filters::indent)));
    environment.add_filter("batch", bounded(Value::from_function(filters::batch)));
    environment.add_filter("slice", bounded(Value::from_function(filters::slice)));
}

/// Refuses a format with wide fields, or with fields whose width is an argument.
fn narrow(format: &Value) -> Result<(), Error> {
    let text = format.as_str().unwrap_or_default();
    let digits = |run: &[u8]| run.iter().all(u8::is_ascii_digit);
    if text.contains('*') || text.as_bytes().windows(5).any(digits) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a format takes no widths beyond 9999"));
    }
    Ok(())
}

/// A filter that refuses great numbers among its arguments.
fn bounded(filter: Value) -> impl Fn(&mut State<'_, '_>, Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let too_great = |value: &Value| i64::try_from(value.clone()).is_ok_and(|n| n > MAX_COUNT);
    move |state, args| {
        let args = args.into_values();
        let named = |value: &Value| -> Result<bool, Error> {
            let named = Kwargs::try_from(value.clone())?;
            Ok(named.args().any(|name| named.peek(name).is_ok_and(|v| too_great(&v))))
        };
        for value in &args {
            if if value.is_kwargs() { named(value)? } else { too_great(value) } {
                let reason = format!("a filter takes numbers up to {MAX_COUNT}");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        filter.call(state, &args)
    }
}

/// Why there is no text.
pub(super) enum Failure {
    /// The template is at fault, or refuses.
    Template(Error),
    /// It was not waited for: it takes more than this.
    Runaway(String),
}

/// The text that `write` gives, as [`apart`].
///
/// # Errors
/// As there, or when the text is too long.
pub(super) fn render(
    limits: Limits,
    write: impl FnOnce(&mut Bounded) -> Result<(), Error> + Send + 'static,
) -> Result<String, Failure> {
    apart(limits, move || {
        let mut text = Bounded::default();
        write(&mut text)?;
        Ok(text.into_text())
    })
}

/// What `work` gives, on a thread with a stack of its own, which is left to itself when it takes too long or too much.
///
/// # Errors
/// When the template fails or is not waited for.
pub(super) fn apart<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    let failed = |e: String| Failure::Template(Error::new(ErrorKind::InvalidOperation, e));
    let (send, receive) = channel();
    let work = move || {
        let _ = send.send(work());
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
    thread.map_err(|e| failed(format!("there is no thread for it ({e})")))?;
    let (start, before) = (Instant::now(), resident());
    loop {
        match receive.recv_timeout(LOOK) {
            Ok(result) => return result.map_err(Failure::Template),
            Err(RecvTimeoutError::Disconnected) => return Err(failed("a panic".into())),
            Err(RecvTimeoutError::Timeout) if start.elapsed() > limits.time => {
                return Err(Failure::Runaway(format!("{} seconds", limits.time.as_secs())));
            }
            Err(RecvTimeoutError::Timeout) if resident() > before.saturating_add(limits.memory) => {
                return Err(Failure::Runaway(format!("{} MiB of memory", limits.memory >> 20)));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Bytes of memory that the process uses; 0 where that cannot be known.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_away_is_left() {
        let runs = |limits: Limits, bytes: usize| {
            // Held until the test is over.
            let (end, wait) = channel::<()>();
            let result = render(limits, move |_| {
                let held = vec![1u8; bytes];
                let _ = wait.recv();
                drop(held);
                Ok(())
            });
            drop(end);
            match result {
                Err(Failure::Runaway(limit)) => limit,
                Err(Failure::Template(e)) => e.to_string(),
                Ok(text) => text,
            }
        };
        assert_eq!(runs(Limits { time: Duration::from_secs(1), memory: u64::MAX }, 0), "1 seconds");
        if cfg!(target_os = "linux") {
            assert_eq!(runs(Limits { time: Duration::from_secs(60), memory: 64 << 20 }, 256 << 20), "64 MiB of memory");
        }
        let text = render(LIMITS, |text| Ok(text.spaces(3)?));
        assert!(matches!(text, Ok(text) if text == "   "));
        let panic = render(LIMITS, |_| panic!("planted"));
        assert!(matches!(panic, Err(Failure::Template(e)) if e.to_string().contains("a panic")));
    }
}
