//! The user's lines: from a line editor on a terminal, or from standard input.

use std::io::{BufRead, ErrorKind, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use crate::status::{INTERRUPTED, status};

/// Maximum bytes of a line.
const MAX_LINE: u64 = 16 << 20;

/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// What was typed.
pub enum Typed {
    /// A line, which may be a command.
    Line(String),
    /// The text between `"""` and `"""`.
    Block(String),
    /// Bytes that are not UTF-8.
    NotText,
}

/// What a line of input is.
enum Line {
    Text(String),
    /// Ctrl-C on a terminal.
    Interrupted,
    End,
    NotText,
}

/// A source of messages.
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

    /// The next message, or `None` at the end: a line; the lines between `"""` and `"""`; on a terminal also lines that
    /// end in `\\`, with the next one.
    ///
    /// # Errors
    /// When standard input fails, or ends between `"""` and `"""`.
    pub fn message(&mut self) -> anyhow::Result<Option<Typed>> {
        loop {
            match self.line("> ")? {
                Line::Text(line) => match self.rest(line)? {
                    // Ctrl-C took back what was typed.
                    None => continue,
                    message => return Ok(message),
                },
                Line::Interrupted => status!("(/quit or Ctrl-D to quit)\n"),
                Line::NotText => return Ok(Some(Typed::NotText)),
                Line::End => return Ok(None),
            }
        }
    }

    /// The message that begins with a line; `None` if Ctrl-C takes it back.
    fn rest(&mut self, line: String) -> anyhow::Result<Option<Typed>> {
        let mut text = line;
        if let Some(first) = text.trim_start().strip_prefix(QUOTES) {
            text = first.to_string();
            let mut readable = true;
            while !text.trim_end().ends_with(QUOTES) {
                match self.line("… ")? {
                    Line::Text(next) => text = text + "\n" + &next,
                    Line::NotText => readable = false,
                    Line::Interrupted => return Ok(None),
                    // What was to come is unknown, so that a part of it is not answered.
                    Line::End => bail!("the input ends within a message: {QUOTES} must end what {QUOTES} begins"),
                }
            }
            if !readable {
                return Ok(Some(Typed::NotText));
            }
            let text = text.trim_end();
            return Ok(Some(Typed::Block(text[..text.len() - QUOTES.len()].trim_matches('\n').into())));
        }
        while self.is_terminal()
            && let Some(line) = text.strip_suffix('\\')
        {
            match self.line("… ")? {
                Line::Text(next) => text = format!("{line}\n{next}"),
                Line::NotText => return Ok(Some(Typed::NotText)),
                Line::Interrupted => return Ok(None),
                Line::End => return Ok(Some(Typed::Line(line.into()))),
            }
        }
        Ok(Some(Typed::Line(text)))
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<Line> {
        match self {
            Input::Terminal(editor) => loop {
                match editor.readline(prompt) {
                    Ok(line) => return Ok(Line::Text(line)),
                    Err(ReadlineError::Interrupted) => return Ok(Line::Interrupted),
                    Err(ReadlineError::Eof) => return Ok(Line::End),
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
                Ok(match String::from_utf8(line) {
                    Ok(line) if read > 0 => Line::Text(line.trim_end_matches(['\n', '\r']).to_string()),
                    Ok(_) => Line::End,
                    Err(_) => Line::NotText,
                })
            }
        }
    }
}
