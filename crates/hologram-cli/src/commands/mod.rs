//! The commands, one file each.

mod asm;
mod bench;
mod bench_bytes;
mod bench_dry;
mod bench_engine;
mod bench_ops;
mod bench_tests;
mod cache;
mod chat;
mod check;
mod devices;
mod doctor;
mod embed;
mod exec;
mod exec_help;
mod imatrix;
mod inspect;
mod load;
mod logits;
mod models;
mod perplexity;
mod program;
mod quantize;
pub mod run;
mod selftest;
mod serve;
mod serve_models;
mod shell;
mod shipped;
mod text;
mod thinking;
mod tokenize;
mod words;

use crate::args::{BenchCommand, Cli, Command, check_command, print_help_or_reject};

/// Runs the command.
///
/// # Errors
/// One sentence with its causes.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        None => run::sample(),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Chat(args)) => chat::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Load(args)) => load::run(&args),
        Some(Command::Bench(args)) => match &args.what {
            Some(BenchCommand::Ops(args)) => bench_ops::run(args),
            None => bench::run(&args),
        },
        Some(Command::Logits(args)) => logits::run(&args),
        Some(Command::Embed(args)) => embed::run(&args),
        Some(Command::Rerank(args)) => embed::rerank(&args),
        Some(Command::Imatrix(args)) => imatrix::run(&args),
        Some(Command::Perplexity(args)) => perplexity::run(&args),
        Some(Command::Tokenize(args)) => tokenize::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Quantize(args)) => quantize::run(&args),
        Some(Command::Pull(args)) => models::pull(&args),
        Some(Command::Models(args)) => models::list(&args),
        Some(Command::Rm(args)) => models::remove(&args),
        Some(Command::Exec(args)) => exec::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Asm(args)) => asm::asm(&args),
        Some(Command::Disasm(args)) => asm::disasm(&args),
        Some(Command::Devices(args)) => devices::run(&args),
        Some(Command::Cache(args)) => cache::run(&args),
        Some(Command::Selftest(args)) => selftest::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Completions(args)) => shell::completions(&args),
        Some(Command::Man(args)) => shell::man(&args),
        Some(Command::Help(args)) => {
            check_command(&args.command)?;
            let words = std::iter::once("hologram").chain(args.command.iter().map(String::as_str)).chain(["--help"]);
            match Cli::of_words(words) {
                // A command with its own help.
                Ok(cli) => run(cli),
                Err(e) => print_help_or_reject(&e, &[]),
            }
        }
    }
}
