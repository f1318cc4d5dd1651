//! Messages on stderr beside a command's output.

use std::io::IsTerminal;

/// Writes to stderr. A closed or full stderr is ignored.
macro_rules! status {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($arg)*));
    }};
}

pub(crate) use status;

/// A line on the terminal that says what a device keeps the user waiting with; `None` erases it.
pub fn waiting(what: Option<&str>) {
    if std::io::stderr().is_terminal() {
        // Without line wrapping, which would leave more than a line.
        status!("\r\x1b[?7l{}\x1b[K\x1b[?7h", what.unwrap_or_default());
    }
}

/// The exit code after Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The exit code when the reader of standard output has gone: that of a shell for programs which SIGPIPE ends.
pub const BROKEN_PIPE: u8 = 141;

/// Ctrl-C ended the work; the results so far are written.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The command failed, and its log says why.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub struct Logged;
