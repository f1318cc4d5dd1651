//! `hologram completions` and `hologram man`: what shells and `man` know of the command, from the table of its help.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

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
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages(command, folder).with_context(cannot)?;
    writeln!(std::io::stdout(), "wrote hologram.1 and a page per command into {}", folder.display())?;
    Ok(())
}

/// The pages of a command and of those below it, with the version at the foot of each.
fn pages(command: Command, folder: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages(below.clone(), folder)?;
    }
    Man::new(command).source(concat!("hologram ", env!("CARGO_PKG_VERSION"))).generate_to(folder)?;
    Ok(())
}
