//! Messages on stderr beside a command's output.

/// Writes to stderr. A closed or full stderr is ignored.
macro_rules! status {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($arg)*));
    }};
}

pub(crate) use status;

/// The exit code after Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Ctrl-C ended the work; the results so far are written.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The command failed, and its log says why.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub struct Logged;
