//! `hologram asm` and `hologram disasm`: a program from text to its binary form, and back.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use hologram_isa::binary;

use super::program::{Source, read};
use crate::args::{AsmArgs, DisasmArgs, usage};
use crate::output;
use crate::status::status;

/// The ending of binary programs, where the user gives no name.
const ENDING: &str = "atlasb";

/// Writes a text's program in binary form.
///
/// # Errors
/// When the program is rejected, or is in binary form already, or comes from standard input and `-o` is missing, or a file cannot be read or written.
pub fn asm(args: &AsmArgs) -> anyhow::Result<()> {
    if args.out.is_none() && args.file == Path::new("-") {
        return usage("a program from standard input has no name: say where its binary form goes with -o");
    }
    let source = read(&args.file)?;
    if matches!(source, Source::Binary(_)) {
        bail!("{} is in binary form already; `hologram disasm` prints it as text", args.file.display());
    }
    let bytes = binary::encode(&source.program(&args.file)?);
    if args.out.as_deref() == Some(Path::new("-")) {
        return Ok(std::io::stdout().lock().write_all(&bytes)?);
    }
    let out = args.out.clone().unwrap_or_else(|| args.file.with_extension(ENDING));
    if out == args.file {
        bail!("the binary program would replace its text {}: give another name with -o", out.display());
    }
    output::write(&out, &bytes)?;
    status!("wrote {} ({} bytes)\n", out.display(), bytes.len());
    Ok(())
}

/// Prints a binary program as text.
///
/// # Errors
/// When the program is damaged or rejected, or is text already, or the file cannot be read.
pub fn disasm(args: &DisasmArgs) -> anyhow::Result<()> {
    let source = read(&args.file)?;
    if matches!(source, Source::Text(_)) {
        bail!("{} is no binary program; `hologram asm` makes one of a text", args.file.display());
    }
    let text = hologram_isa::print(&source.program(&args.file)?);
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
