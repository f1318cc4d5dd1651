//! `hologram completions` and `hologram man`: what shells and `man` know of the command, from the table of its help.

use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};

/// Prints the completions of a shell.
///
/// # Errors
/// When standard output fails.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hologram", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// Writes a page per command and names the folder.
///
/// # Errors
/// When the folder or a page cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let folder = &args.folder;
    let cannot = || format!("cannot write man pages into {}", folder.display());
    std::fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(cannot)?;
    writeln!(std::io::stdout(), "wrote hologram.1 and a page per command into {}", folder.display())?;
    Ok(())
}
