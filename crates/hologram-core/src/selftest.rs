//! Self-tests of native kernels that are compiled where they run: before one serves an operation, some of the operation's conformance cases
//! run with it, and the device keeps the verdict. One that fails is not used; the operation's program is.

use std::cell::Cell;
use std::sync::Arc;

use hologram_backends::{Backend, BackendError, Pipeline};

use crate::conformance;
use crate::error::Result;
use crate::executor::Executor;

/// Which native kernels the graphs get that this thread compiles.
#[derive(Clone, Copy)]
enum Scope {
    /// Those whose verdict is good, which is found out where nobody knows it.
    Judged,
    /// All.
    All,
    /// All; a graph is of no use that needs a program, or whose kernels (up to now) do not include this text.
    Test { text: &'static str, met: bool },
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope::Judged) };
}

/// The scope before, which comes back at the end.
struct Before(Scope);

impl Drop for Before {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

fn within<T>(scope: Scope, work: impl FnOnce() -> T) -> T {
    let _before = Before(SCOPE.replace(scope));
    work()
}

/// Does some work with native kernels of whatever verdict: the conformance suite finds them out itself.
pub(crate) fn with_all<T>(work: impl FnOnce() -> T) -> T {
    match SCOPE.get() {
        Scope::Judged => within(Scope::All, work),
        Scope::All | Scope::Test { .. } => work(),
    }
}

/// The kernel, if it may serve an operation.
pub(crate) fn admit(backend: &Arc<dyn Backend>, op: &'static str, kernel: Pipeline) -> Option<Pipeline> {
    let Some(verdicts) = backend.kernels().verdicts() else { return Some(kernel) };
    let texts = verdicts.texts(&kernel);
    match SCOPE.get() {
        Scope::All => {}
        Scope::Test { text, met } => SCOPE.set(Scope::Test { text, met: met || texts.contains(&text) }),
        Scope::Judged => {
            let right = |text: &'static str| verdicts.get(text, op).unwrap_or_else(|| test(backend, text, op));
            // Each is tested, whatever the others are.
            if texts.into_iter().filter(|text| !right(text)).count() > 0 {
                return None;
            }
        }
    }
    Some(kernel)
}

/// Tests the kernels of a text in an operation.
fn test(backend: &Arc<dyn Backend>, text: &'static str, op: &'static str) -> bool {
    let executor = Executor::from_backend(backend.clone());
    let verdict = within(Scope::Test { text, met: false }, || conformance::self_test(&executor, op));
    let Some(verdicts) = backend.kernels().verdicts() else { return true };
    match verdict {
        Ok(verdict) => verdicts.put(text, op, verdict),
        // The device fails in other ways: whoever uses the kernel is told.
        Err(_) => true,
    }
}

/// Begins the choice of a graph's kernels.
pub(crate) fn begin() {
    if let Scope::Test { text, .. } = SCOPE.get() {
        SCOPE.set(Scope::Test { text, met: false });
    }
}

/// Before an operation's program is compiled.
///
/// # Errors
/// [`BackendError::Unsupported`] in a self-test, where programs prove nothing.
pub(crate) fn before_program(backend: &Arc<dyn Backend>) -> Result<()> {
    match SCOPE.get() {
        Scope::Test { .. } => Err(useless(backend)),
        _ => Ok(()),
    }
}

/// Ends the choice of a graph's kernels.
///
/// # Errors
/// As [`before_program`], where none of them is of the text that is tested.
pub(crate) fn end(backend: &Arc<dyn Backend>) -> Result<()> {
    match SCOPE.get() {
        Scope::Test { met: false, .. } => Err(useless(backend)),
        _ => Ok(()),
    }
}

fn useless(backend: &Arc<dyn Backend>) -> crate::CoreError {
    let (device, what) = (backend.info().backend.to_string(), "this case's native kernel".into());
    BackendError::Unsupported { device, what }.into()
}
