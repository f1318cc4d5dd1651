//! `hologram asm` and `hologram disasm`: convert a program from text to binary form and back.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use hologram_isa::binary;

use super::program::{Source, read};
use crate::args::{AsmArgs, DisasmArgs, usage};
use crate::output;

/// The default extension of binary programs.
const ENDING: &str = "atlasb";

/// Writes a text program in binary form.
///
/// # Errors
/// When the program is rejected or already binary, when it comes from standard input without `-o`, or when a file
/// cannot be read or written.
pub fn asm(args: &AsmArgs) -> anyhow::Result<()> {
    if args.out.is_none() && args.file == Path::new("-") {
        return usage("a program from standard input has no file name: give the output file with -o");
    }
    let source = read(&args.file)?;
    if matches!(source, Source::Binary(_)) {
        bail!("{} is already in binary form; `hologram disasm` prints it as text", args.file.display());
    }
    let bytes = binary::encode(&source.program(&args.file)?);
    let out = args.out.clone().unwrap_or_else(|| args.file.with_extension(ENDING));
    output::check_not_read(&out, None, [args.file.as_path()])?;
    output::save(&out, &bytes, &format!("{} bytes", bytes.len()))
}

/// Prints a binary program as text.
///
/// # Errors
/// When the program is damaged, rejected or already text, or the file cannot be read.
pub fn disasm(args: &DisasmArgs) -> anyhow::Result<()> {
    let source = read(&args.file)?;
    if matches!(source, Source::Text(_)) {
        bail!("{} is not a binary program; `hologram asm` converts text to binary form", args.file.display());
    }
    let text = hologram_isa::print(&source.program(&args.file)?);
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
