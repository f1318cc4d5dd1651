//! The `hologram` command; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(hologram_cli::run(std::env::args_os()))
}
