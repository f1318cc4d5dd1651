//! Atlas programs in files, as text or in binary form.

use std::path::Path;

use anyhow::{Context, anyhow};
use hologram_isa::{IsaError, Program, binary};

use crate::text::read_input;

/// Bytes of a program's file.
const MAX_PROGRAM: u64 = 16 << 20;

/// The content of a program's file.
pub enum Source {
    /// A text.
    Text(String),
    /// The binary form, damaged or not.
    Binary(Vec<u8>),
}

/// Reads a program's file, a pipe, or standard input (`-`). The content says which form it has, not the file's name.
///
/// # Errors
/// With the file's name: when it cannot be read, or is neither.
pub fn read(path: &Path) -> anyhow::Result<Source> {
    let bytes = read_input(path, MAX_PROGRAM)?;
    if binary::is_binary(&bytes) {
        return Ok(Source::Binary(bytes));
    }
    let text = String::from_utf8(bytes);
    text.map(Source::Text).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow!("{} is no binary program, and no text either: its byte {at} is not UTF-8", path.display())
    })
}

impl Source {
    /// The verified program.
    ///
    /// # Errors
    /// With the file and the line, or the byte of a binary program.
    pub fn program(&self, path: &Path) -> anyhow::Result<Program> {
        let load = || {
            let program = match self {
                Source::Text(text) => hologram_isa::parse(text)?,
                Source::Binary(bytes) => binary::decode(bytes)?,
            };
            hologram_isa::verify(&program)?;
            Ok::<_, IsaError>(program)
        };
        load().with_context(|| path.display().to_string())
    }
}

/// Reads and verifies a program.
///
/// # Errors
/// As [`read`] and [`Source::program`].
pub fn load(path: &Path) -> anyhow::Result<Program> {
    read(path)?.program(path)
}
