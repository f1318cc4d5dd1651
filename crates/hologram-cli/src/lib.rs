//! The `hologram` command: runs language models and Atlas programs on the best device of the machine. A library too, so
//! that the Python package brings the command without a second binary.

mod args;
mod capture;
mod commands;
mod hints;
mod output;
mod progress;
mod status;
mod text;
mod trace;

use std::ffi::OsString;
use std::io::Write;

/// Runs the command with these words, of which the first is the program's name. Returns the exit status.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    // Messages give commands to type, whatever the file is called.
    let words: Vec<OsString> = std::iter::once("hologram".into()).chain(words.into_iter().skip(1)).collect();
    hologram_backends::watch(status::waiting);
    let result = match (hints::of_llama_cpp(&words), args::Cli::of_words(&words)) {
        (Some(hint), _) => args::usage(hint),
        (None, Ok(cli)) => commands::run(cli),
        (None, Err(e)) => args::print_help_or_reject(&e, &words),
    };
    match result {
        Ok(()) => {
            args::print_note();
            0
        }
        Err(e) if is_broken_pipe(&e) => status::BROKEN_PIPE,
        Err(e) if e.is::<status::Logged>() => 1,
        Err(e) => {
            // Other I/O errors already name their file; a bare one comes from standard output.
            let e = if e.chain().len() == 1 && e.is::<std::io::Error>() {
                e.context("cannot write to standard output")
            } else {
                e
            };
            // One sentence with its causes. A closed stderr is ignored.
            let _ = writeln!(std::io::stderr(), "hologram: {}", text::printable(&format!("{e:#}"), text::MESSAGE));
            if e.is::<args::UsageError>() {
                2
            } else if e.is::<status::Interrupted>() {
                status::INTERRUPTED
            } else {
                1
            }
        }
    }
}

/// Whether the reader of our output went away, as `head` does: nothing is said, as by programs that the signal ends.
fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
