//! Limits on a template's resources: a few characters can request more text than there is memory.
//!
//! Limited are the source and its nesting ([`source`](super::source)), the number of steps (the engine's fuel), the
//! output text, and the bytes and nesting of values. Values are counted where they can grow: when they are written,
//! when `set` or an operator copies them, and before a filter or method makes one whose size the template chooses.

use std::fmt::{self, Write};

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use minijinja_contrib::pycompat;

use super::python;

/// Maximum bytes of text: many times the longest context.
pub(super) const MAX_TEXT: usize = 64 << 20;

/// Maximum bytes of values made by one rendering, including those that it drops.
const MAX_VALUES: usize = 512 << 20;

/// Bytes counted for each value besides its text: about the size of a list with one item.
const VALUE: usize = 128;

/// Maximum nesting of lists and objects.
const MAX_DEPTH: usize = 100;

/// Maximum width or count that a filter accepts.
const MAX_COUNT: usize = 10_000;

/// Maximum bytes of a template's source: many times those of published models.
pub(super) const MAX_SOURCE: usize = 256 << 10;

/// Maximum nesting of macro calls, loops and blocks while rendering. A macro call counts as several levels.
const MAX_CALLS: usize = 200;

/// The stack for compiling and rendering; only the part in use takes memory. The limits on nesting keep it to a few
/// MiB, but the caller's own stack may be smaller.
const STACK: usize = 64 << 20;

/// The name of the filter that counts a value and returns it.
pub(super) const KEPT: &str = "hologram_kept";

/// The name of the filter that counts this many bytes of raw text and returns an empty text.
pub(super) const RAW: &str = "hologram_raw";

/// A text of at most [`MAX_TEXT`] bytes.
#[derive(Default)]
pub(super) struct Bounded(String);

impl Bounded {
    /// Appends `n` spaces.
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

/// Bytes made by one rendering.
#[derive(Default)]
struct Made {
    /// Written text, including text that a template captures.
    text: usize,
    values: usize,
}

impl Made {
    /// Counts text.
    fn text(&mut self, bytes: usize) -> Result<(), Error> {
        self.text = self.text.saturating_add(bytes);
        if self.text > MAX_TEXT { Err(ErrorKind::WriteFailure.into()) } else { Ok(()) }
    }

    /// Counts bytes of values.
    fn bytes(&mut self, bytes: usize) -> Result<(), Error> {
        self.values = self.values.saturating_add(bytes);
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        let reason = format!("its values exceed {} MiB", MAX_VALUES >> 20);
        Err(Error::new(ErrorKind::InvalidOperation, reason))
    }

    /// Counts a value and everything in it. An item that occurs several times counts several times.
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::OutOfFuel, format!("lists are nested more than {MAX_DEPTH} deep")));
        }
        self.bytes(VALUE + value.as_str().map_or(0, str::len))?;
        match (value.kind(), value.as_object()) {
            (ValueKind::Map, Some(object)) => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    self.value(&key, depth + 1)?;
                    self.value(&value, depth + 1)?;
                }
            }
            (ValueKind::Seq | ValueKind::Iterable, Some(object)) => {
                for item in object.try_iter().into_iter().flatten() {
                    self.value(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn made<'s>(state: &'s mut State<'_, '_>) -> &'s mut Made {
    state.get_or_insert_extension(Made::default())
}

/// Installs the limits on values, filters and methods.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_recursion_limit(MAX_CALLS);
    environment.set_formatter(|out, state, value| {
        match value.as_str() {
            Some(text) => made(state).text(text.len())?,
            None => made(state).value(value, 0)?,
        }
        escape_formatter(out, state, value)
    });
    environment.set_unknown_method_callback(|state, value, method, args| {
        let mut all = vec![value.clone()];
        all.extend_from_slice(args);
        if method == "join" {
            all.swap(0, 1.min(args.len()));
        }
        count(state, method, &all)?;
        pycompat::unknown_method_callback(state, value, method, args)
    });
    environment
        .add_filter(KEPT, |state: &mut State<'_, '_>, value: Value| made(state).value(&value, 0).map(|()| value));
    environment.add_filter(RAW, |state: &mut State<'_, '_>, bytes: usize| made(state).text(bytes).map(|()| ""));
    for (name, filter) in [
        ("batch", Value::from_function(filters::batch)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("format", Value::from_function(filters::format)),
        ("groupby", Value::from_function(filters::groupby)),
        ("indent", Value::from_function(filters::indent)),
        ("join", Value::from_function(filters::join)),
        ("list", Value::from_function(filters::list)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("pprint", Value::from_function(filters::pprint)),
        ("replace", Value::from_function(filters::replace)),
        ("slice", Value::from_function(filters::slice)),
        ("sort", Value::from_function(filters::sort)),
        ("string", Value::from_function(filters::string)),
        ("tojson", Value::from_function(python::tojson)),
        ("unique", Value::from_function(filters::unique)),
        ("zip", Value::from_function(filters::zip)),
    ] {
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            count(state, name, &args)?;
            filter.call(state, &args)
        });
    }
}

/// Counts the result of a filter or method before it is made, from its arguments; the first one is the value it is
/// applied to. Rejects widths and counts beyond [`MAX_COUNT`].
fn count(state: &mut State<'_, '_>, name: &str, args: &[Value]) -> Result<(), Error> {
    let rejected = |reason: String| Err(Error::new(ErrorKind::InvalidOperation, reason));
    let made = made(state);
    let text = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or_default();
    if name == "list" {
        // The items are shared, not copied.
        let items = args.first().and_then(Value::len).unwrap_or(0);
        return made.bytes(items.saturating_mul(VALUE));
    }
    args.iter().try_for_each(|value| made.value(value, 0))?;
    let bytes = match name {
        "replace" => text(0).matches(text(1)).count().saturating_mul(text(2).len()),
        "join" => args.first().and_then(Value::len).unwrap_or(0).saturating_mul(text(1).len()),
        "format" => {
            let width = text(0).split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(n.len() * MAX_COUNT));
            let width = width.max().unwrap_or(0);
            if text(0).contains('*') || width >= MAX_COUNT {
                return rejected(format!("a format's width must be below {MAX_COUNT}"));
            }
            let longest = (0..args.len()).map(|i| text(i).len()).max().unwrap_or(0);
            text(0).matches(['%', '{']).count().saturating_mul(width.max(longest))
        }
        "batch" | "indent" | "slice" => {
            let number = |v: &Value| usize::try_from(v.clone()).unwrap_or(0);
            let named = |v: &Value| v.try_iter().into_iter().flatten().filter_map(|k| v.get_item(&k).ok()).collect();
            let numbers = |v: &Value| if v.is_kwargs() { named(v) } else { vec![v.clone()] };
            let most = args.iter().flat_map(numbers).map(|v| number(&v)).max().unwrap_or(0);
            if most > MAX_COUNT {
                return rejected(format!("a filter's number must be at most {MAX_COUNT}"));
            }
            most.saturating_mul(text(0).matches('\n').count() + 1)
        }
        _ => 0,
    };
    made.bytes(bytes)
}

/// Runs `write` on a stack that is deep enough and returns the text.
///
/// # Errors
/// As [`on_a_stack`]; when the text is too long.
pub(super) fn render(write: impl FnOnce(&mut Bounded) -> Result<(), Error> + Send) -> Result<String, Error> {
    on_a_stack(|| {
        let mut text = Bounded::default();
        write(&mut text)?;
        Ok(text.into_text())
    })
}

/// Runs `work` on a thread with a stack that suffices for every template within the limits, and joins the thread.
///
/// # Errors
/// When the template fails or the thread cannot start.
pub(super) fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let failed = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| failed(format!("cannot start a thread for it ({e})")))?;
        thread.join().unwrap_or_else(|_| Err(failed("a panic".into())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let text = render(|text| Ok(text.spaces(3)?));
        assert_eq!(text.unwrap(), "   ");
        assert!(render(|_| panic!("planted")).unwrap_err().to_string().contains("a panic"));
    }
}
