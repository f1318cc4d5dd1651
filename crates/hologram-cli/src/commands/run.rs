//! `hologram run`: continues a prompt.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{Finish, GenerateOptions, Model};

use super::shipped;
use crate::args::{DeviceArgs, RunArgs, usage};
use crate::status::status;
use crate::text::{NAME, counted, printable, read_bounded};
use crate::trace::{self, Trace, step};

/// Bytes of a prompt on standard input: many times any context.
const MAX_PROMPT: u64 = 64 << 20;

/// What the shipped model continues when nobody gives it a prompt.
const SAMPLE_PROMPT: &str = "A closure in Rust is";

/// The program called without a command.
///
/// # Errors
/// When the device or the model fails.
pub fn sample() -> anyhow::Result<()> {
    let options = GenerateOptions {
        sampling: SamplerConfig { seed: fresh_seed(), ..SamplerConfig::default() },
        ..GenerateOptions::default()
    };
    let device = DeviceArgs { device: "auto".into(), threads: None };
    stream(None, SAMPLE_PROMPT, &options, &device, &None)
}

/// Runs the command.
///
/// # Errors
/// When an option is out of range, or the device or the model fails.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let sampling = SamplerConfig {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed.unwrap_or_else(fresh_seed),
    };
    if let Err(e) = sampling.validate() {
        return usage(format!("--{e}"));
    }
    let options = GenerateOptions { max_tokens: args.max_tokens, sampling, context: args.ctx.map(|n| n as usize) };
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None if std::io::stdin().is_terminal() => match args.model {
            None => SAMPLE_PROMPT.into(),
            Some(_) => return usage("give a prompt, as an argument or on standard input"),
        },
        None => {
            let bytes = read_bounded(std::io::stdin().lock(), MAX_PROMPT);
            let bytes = bytes.context("cannot read the prompt from standard input")?;
            let text = String::from_utf8(bytes).context("the prompt on standard input is not UTF-8")?;
            // The newline that ends a line of input is not part of the prompt.
            text.strip_suffix('\n').map(|t| t.strip_suffix('\r').unwrap_or(t)).unwrap_or(&text).to_string()
        }
    };
    let trace = Trace::create(args.profile.profile.as_deref())?;
    stream(args.model.as_deref(), &prompt, &options, &args.device, &trace)
}

/// Prints the prompt's continuation as it is generated, and the figures at the end.
fn stream(
    path: Option<&Path>,
    prompt: &str,
    options: &GenerateOptions,
    device: &DeviceArgs,
    trace: &Option<Arc<Trace>>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let executor = trace::open(device, trace)?;
    let mut model = step(trace, "load the model", || anyhow::Ok(Model::from_files(shipped::open(path)?, &executor)?))?;
    let mut notes = model.tokenizer()?.notes().to_vec();
    let trained = model.config().context;
    if options.context.is_some_and(|n| n > trained) {
        notes.push(format!("the model was trained for {trained} positions; text beyond them gets worse"));
    }
    let mut generation = model.generate(prompt, options)?;
    let name = printable(&generation.model().config().name, NAME);
    status!("{name} on {} ({})\n", executor.info().backend, executor.info().name);
    for note in notes {
        status!("note: {note}\n");
    }
    let mut out = std::io::stdout().lock();
    // The prompt is no output: on a terminal it stands before its continuation all the same.
    status!("\n{prompt}");
    let mut first_token = None;
    let mut print = || -> anyhow::Result<()> {
        let mut name = "prompt";
        while let Some(piece) = step(trace, name, || generation.next()) {
            name = "token";
            write!(out, "{}", piece?.text)?;
            out.flush()?;
            first_token.get_or_insert_with(|| started.elapsed());
        }
        Ok(writeln!(out)?)
    };
    let printed = print();
    status!("\n");
    printed?;
    let stats = generation.stats();
    let tokens = |n: usize| counted(n, "token");
    let rate = |n: usize, time: Duration| match n {
        0 => String::new(),
        n => format!(", {:.1} tokens/s", n as f64 / time.as_secs_f64().max(1e-9)),
    };
    let mut figures = format!("prompt: {}", tokens(stats.prompt_tokens));
    if stats.generated_tokens > 0 {
        figures += &rate(stats.prompt_tokens, stats.prompt_time);
    }
    figures += &format!("; generated: {}", tokens(stats.generated_tokens));
    figures += &rate(stats.decode_steps, stats.decode_time);
    if let Some(time) = first_token {
        figures += &format!("; first token after {:.0} ms", time.as_secs_f64() * 1e3);
    }
    if generation.finish() == Some(Finish::ContextFull) {
        figures += "; stopped because the context is full (see --ctx)";
    }
    status!("{figures}\n");
    trace.as_ref().map_or(Ok(()), |trace| trace.finish())
}

/// A seed that differs between runs.
fn fresh_seed() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |d| d.as_nanos() as u64)
}
