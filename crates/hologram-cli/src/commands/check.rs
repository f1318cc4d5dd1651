//! `hologram check`: parses and verifies programs.

use std::io::Write;

use anyhow::anyhow;
use hologram_isa::Warning;

use super::program::load;
use crate::args::CheckArgs;
use crate::status::status;
use crate::text::{MESSAGE, printable};

/// Runs the command. Every file is checked, even after errors.
///
/// # Errors
/// When a file cannot be read or its program is rejected.
pub fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let mut failed = 0;
    let mut out = std::io::stdout().lock();
    for path in &args.files {
        match load(path) {
            Ok(program) => {
                writeln!(out, "{}: {} is valid", path.display(), program.name)?;
                for Warning { line, message } in hologram_isa::lint(&program) {
                    let line = if line > 0 { format!(", line {line}") } else { String::new() };
                    status!("warning: {}{line}: {message}\n", path.display());
                }
            }
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
