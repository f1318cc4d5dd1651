//! The user's lines: from a line editor on a terminal, or from standard input.

use std::io::{BufRead, ErrorKind, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use crate::status::{INTERRUPTED, status};

/// Maximum bytes of a line.
const MAX_LINE: u64 = 16 << 20;

/// A source of lines.
pub enum Input {
    /// A terminal, with editing and history.
    Terminal(Box<Editor<(), MemHistory>>),
    /// Anything else. The flag is set while the program waits for input, when Ctrl-C may end it.
    Lines(Arc<AtomicBool>),
}

impl Input {
    /// Opens standard input; Ctrl-C sets `interrupted`.
    ///
    /// # Errors
    /// When the terminal or the signal handler cannot be set up.
    pub fn open(interrupted: &Arc<AtomicBool>) -> anyhow::Result<Input> {
        let input = if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            let config = Config::builder().auto_add_history(true).build();
            Input::Terminal(Box::new(Editor::with_history(config, MemHistory::new())?))
        } else {
            let waiting = Arc::new(AtomicBool::new(false));
            let end = signal_hook::flag::register_conditional_shutdown;
            end(signal_hook::consts::SIGINT, INTERRUPTED.into(), waiting.clone()).context("cannot watch for Ctrl-C")?;
            Input::Lines(waiting)
        };
        signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())
            .context("cannot watch for Ctrl-C")?;
        Ok(input)
    }

    /// Whether input comes from a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next line, or `None` at the end.
    ///
    /// # Errors
    /// When standard input fails, or is not UTF-8.
    pub fn line(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Input::Terminal(editor) => loop {
                match editor.readline("> ") {
                    Ok(line) => return Ok(Some(line)),
                    Err(ReadlineError::Interrupted) => status!("(/quit or Ctrl-D to quit)\n"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => {
                        status!("(ignored a line that is not UTF-8)\n");
                    }
                    Err(e) => return Err(e).context("cannot read from the terminal"),
                }
            },
            Input::Lines(waiting) => {
                let mut line = Vec::new();
                waiting.store(true, Ordering::Relaxed);
                let read = std::io::stdin().lock().take(MAX_LINE + 1).read_until(b'\n', &mut line);
                waiting.store(false, Ordering::Relaxed);
                let read = read.context("cannot read from standard input")?;
                ensure!(read as u64 <= MAX_LINE, "a line on standard input is longer than {} MiB", MAX_LINE >> 20);
                let line = String::from_utf8(line).context("a line on standard input is not UTF-8")?;
                Ok((read > 0).then(|| line.trim_end_matches(['\n', '\r']).to_string()))
            }
        }
    }
}
