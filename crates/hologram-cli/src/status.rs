//! What is said on standard error beside a command's output.

/// Writes to standard error; that nobody reads there, or that it is full, changes nothing.
macro_rules! status {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($arg)*));
    }};
}

pub(crate) use status;
