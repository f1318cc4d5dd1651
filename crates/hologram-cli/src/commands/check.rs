//! `hologram check`: parses and verifies programs.

use std::io::Write;

use anyhow::{Context, anyhow};

use crate::args::CheckArgs;
use crate::status::status;
use crate::text::{MESSAGE, printable, read_file};

/// Bytes of a program's text.
const MAX_PROGRAM: u64 = 16 << 20;

/// Runs the command: every file is checked, whatever becomes of the others.
///
/// # Errors
/// When a file cannot be read or its program is rejected.
pub fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let mut failed = 0;
    let mut out = std::io::stdout().lock();
    for path in &args.files {
        match load(path) {
            Ok(program) => writeln!(out, "{}: {} is valid", path.display(), program.name)?,
            Err(e) if args.files.len() == 1 => return Err(e),
            Err(e) => {
                failed += 1;
                status!("hologram: {}\n", printable(&format!("{e:#}"), MESSAGE));
            }
        }
    }
    match failed {
        0 => Ok(()),
        n => Err(anyhow!("{n} of {} programs rejected", args.files.len())),
    }
}

/// Reads a program.
///
/// # Errors
/// With the file and the line.
pub fn load(path: &std::path::Path) -> anyhow::Result<hologram_isa::Program> {
    let bytes = read_file(path, MAX_PROGRAM)?;
    let text = String::from_utf8(bytes).with_context(|| format!("cannot read {}", path.display()))?;
    let parse = || {
        let program = hologram_isa::parse(&text)?;
        hologram_isa::verify(&program)?;
        Ok::<_, hologram_isa::IsaError>(program)
    };
    parse().with_context(|| path.display().to_string())
}
