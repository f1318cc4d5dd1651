//! What is said on standard error beside a command's output.

/// Writes to standard error; that nobody reads there, or that it is full, changes nothing.
macro_rules! status {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($arg)*));
    }};
}

pub(crate) use status;

/// The exit code of a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

/// Ctrl-C ended the work; what was done till then is written.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
