//! `hologram bench`: prefill and decode speed, with the memory bandwidth measured in the same run and the bytes read of
//! weights and cache.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use hologram_backends::{BackendType, KernelName};
use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Logits, Model, SHAPES, Session, SessionOptions, Shape, WeightTypes};
use serde_json::json;

use super::bench_bytes::{self, Reads};
use super::bench_engine;
use super::devices::workers;
use super::shipped;
use crate::args::{BenchArgs, usage};
use crate::capture::{self, Capture};
use crate::status::status;
use crate::text::{NAME, printable, shown, size};
use crate::trace::{self, Trace};

/// One line of the table.
struct Test {
    /// The name, as in `llama-bench`.
    name: String,
    /// The input tokens: fed at once, or one by one.
    tokens: Vec<u32>,
    prefill: bool,
    /// Tokens in the context before the test.
    depth: usize,
    /// Sequences.
    batch: usize,
    /// What it reads.
    reads: Reads,
    /// Tokens per second of each repetition, summed over all sequences, in ascending order.
    rates: Vec<f64>,
}

/// Runs the command.
///
/// # Errors
/// When an option is out of range, the device or the model fails, or a result is impossible.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match measure_all(args)?.first() {
        Some(impossible) => bail!("{impossible}"),
        None => Ok(()),
    }
}

/// Measures and prints. Returns a sentence per impossible result.
fn measure_all(args: &BenchArgs) -> anyhow::Result<Vec<String>> {
    let (prompt, decode) = (args.prompt as usize, args.decode as usize);
    if prompt == 0 && decode == 0 {
        return usage("nothing to measure: -p and -n are both 0");
    }
    if args.model.given().is_some_and(|m| m == Path::new("ops") && !m.exists()) {
        return usage("give the options of `bench ops` after it: hologram bench ops [OPTIONS]");
    }
    let of_engine = [
        ("--speculate", args.speculation.speculate.is_some()),
        ("--draft", args.speculation.draft.is_some()),
        ("--no-overlap", args.no_overlap),
    ];
    if let (None, Some((option, _))) = (args.concurrency, of_engine.iter().rfind(|option| option.1)) {
        return usage(format!("{option} needs --concurrency, which measures the engine"));
    }
    args.speculation.chosen()?;
    if args.dry_run {
        return super::bench_dry::run(args).map(|()| Vec::new());
    }
    let random = random_weights(args)?;
    let trace = Trace::create(args.profile.as_deref())?;
    let executor = trace::open(&args.device, &trace)?;
    if executor.info().backend == BackendType::Reference {
        bail!("the reference interpreter is too slow to benchmark; choose another device");
    }
    let capture = Capture::of(args.capture.as_deref(), &executor)?;
    // Tracing serialises launches, so traced steps are not timed.
    if let Some(trace) = &trace {
        trace.turn(false);
    }
    let (model, name) = match random {
        Some((shape, types)) => {
            status!("creating random weights …\n");
            (Model::random(shape, types, &executor)?, format!("{} {}", shape.name, types.name()))
        }
        None => {
            let model =
                Model::adapted(shipped::open(args.model.given())?, &args.lora.open()?, &executor, &mut |_, _| ())?;
            let name = printable(&model.config().name, NAME);
            (model, name)
        }
    };
    if model.config().bidirectional {
        bail!("{name} is an encoder, which continues no text: bench measures decoders");
    }
    if let Some(users) = args.concurrency {
        bench_engine::run(args, users, model, &name)?;
        return Ok(Vec::new());
    }
    let (depth, batch) = (args.depth as usize, args.batch as usize);
    let options = SessionOptions { context: depth + prompt.max(decode), sequences: batch, ..SessionOptions::default() };
    let context = model.config().context;
    if options.context > context {
        let tests = if depth > 0 { format!("-d {depth} and the test take") } else { "the test takes".into() };
        return usage(format!("{tests} {} tokens of context, but the model has {context}", options.context));
    }
    let mut session = model.session(options)?;
    let token = |i: usize| (i * 7919 % model.config().vocab) as u32;

    let mut tests: Vec<Test> = Vec::new();
    let weights = model.bytes_per_token();
    let cache = |positions| session.cache_bytes(positions);
    let mut test = |name: String, n: usize, prefill: bool, batch: usize, reads: Reads| {
        let name = if depth > 0 { format!("{name} @ d{depth}") } else { name };
        let tokens = (depth..depth + n).map(token).collect();
        tests.push(Test { name, tokens, prefill, depth, batch, reads, rates: Vec::new() });
    };
    if prompt > 0 {
        let reads = Reads::prompt(depth..depth + prompt, options.batch, weights, cache);
        test(format!("pp{prompt}"), prompt, true, 1, reads);
    }
    if decode > 0 {
        let name = if batch > 1 { format!("tg{decode} x{batch}") } else { format!("tg{decode}") };
        let reads = Reads::decode(depth..depth + decode, batch, options.batch, weights, cache);
        test(name, decode, false, batch, reads);
    }
    if depth > 0 {
        let context: Vec<u32> = (0..depth).map(token).collect();
        for sequence in 0..batch {
            session.feed(sequence, &context, Logits::None)?;
        }
    }
    // The first round compiles and warms up and is not counted. Bandwidth and tests alternate, so that all see the same
    // state of the machine.
    let (mut bandwidths, mut bound) = (Vec::new(), "");
    for round in 0..=args.repetitions {
        let (kind, bandwidth) = ceiling(&executor)?;
        bound = kind;
        if round > 0 {
            bandwidths.push(bandwidth);
        }
        for test in &mut tests {
            let few = test.tokens.len().min(4);
            let tokens = if round == 0 && !test.prefill { &test.tokens[..few] } else { &test.tokens };
            let rate = measure(&mut session, test, tokens)?;
            if round > 0 {
                test.rates.push(rate);
            }
        }
    }
    bandwidths.sort_by(f64::total_cmp);
    let bandwidth = median(&bandwidths);
    // No test can exceed the best bandwidth.
    let best = bandwidths.last().copied().unwrap_or(0.0);
    let info = executor.info();
    let caches = bench_bytes::caches(info.backend);
    let mut impossible = Vec::new();
    let mut out = std::io::stdout().lock();
    let width = tests.iter().map(|t| t.name.len()).fold(8, usize::max);
    if !args.json {
        let workers = workers(info).map(|w| format!(", {w}")).unwrap_or_default();
        writeln!(out, "{name} on {} ({}){workers}", info.backend, info.name)?;
        let (weights, read) = (size(model.weight_bytes() as u64), size(weights as u64));
        writeln!(out, "weights {weights}, {read} read per token; {bound} bandwidth {:.1} GB/s", bandwidth / 1e9)?;
        writeln!(
            out,
            "{:<width$} {:>12} {:>10} {:>10} {:>8} {:>7}",
            "test", "tokens/s", "min", "max", "GB/s", "share"
        )?;
    }
    for test in &mut tests {
        test.rates.sort_by(f64::total_cmp);
        let rate = median(&test.rates);
        let (min, max) = (test.rates.first().copied().unwrap_or(0.0), test.rates.last().copied().unwrap_or(0.0));
        let achieved = rate * test.reads.per_token();
        impossible.extend(test.reads.impossible(rate, best, caches).map(|why| format!("{}: {why}", test.name)));
        if args.json {
            let line = json!({
                "model": name,
                "test": test.name,
                "depth": test.depth,
                "batch": test.batch,
                "device": info.backend.name(),
                "threads": info.parallelism,
                "tokens_per_s": rate,
                "min": min,
                "max": max,
                "bytes_per_token": test.reads.per_token(),
                "cache_bytes_per_token": test.reads.cache_per_token(),
                "gb_per_s": achieved / 1e9,
                "share": achieved / bandwidth,
            });
            writeln!(out, "{line}")?;
        } else {
            let share = 100.0 * achieved / bandwidth;
            let gb_per_s = achieved / 1e9;
            writeln!(out, "{:<width$} {rate:>12.2} {min:>10.2} {max:>10.2} {gb_per_s:>8.1} {share:>6.0}%", test.name)?;
        }
    }
    drop(out);
    if let (Some(_), Some(test)) = (&capture, tests.last()) {
        let last = last_steps(&mut session, test)?;
        capture::around(&capture, &executor, || extend(&mut session, test, last))?;
    }
    let Some(trace) = trace else { return Ok(impossible) };
    for test in &tests {
        let traced = last_steps(&mut session, test)?;
        trace.turn(true);
        trace.step(&test.name, || extend(&mut session, test, traced))?;
        trace.turn(false);
        if !args.json {
            print_profile(&test.name, &session)?;
        }
    }
    trace.finish()?;
    Ok(impossible)
}

/// The memory ceiling: its kind and bytes per second. For a GPU, copies by its copy engine; for a CPU, reads.
fn ceiling(executor: &Executor) -> anyhow::Result<(&'static str, f64)> {
    let backend = executor.backend();
    Ok(match backend.info().backend {
        BackendType::Cuda | BackendType::Metal => ("copy", backend.measure().copy_bandwidth()?),
        _ => ("read", backend.measure().read_bandwidth()?),
    })
}

/// Steps of a decode test in a trace or capture.
const TRACED_STEPS: usize = 4;

/// Number of times that the last step is profiled; each kernel's median counts.
const PROFILES: usize = 7;

/// Prints the kernels of a session's last step, grouped by name, slowest first.
fn print_profile(test: &str, session: &Session) -> anyhow::Result<()> {
    let runs = (0..PROFILES).map(|_| session.profile()).collect::<Result<Vec<_>, _>>()?;
    let mut kernels: Vec<(&KernelName, usize, f64)> = Vec::new();
    for (i, (name, _)) in runs[0].iter().enumerate() {
        let mut times: Vec<f64> = runs.iter().map(|run| run[i].1).collect();
        times.sort_by(f64::total_cmp);
        match kernels.iter_mut().find(|k| k.0 == name) {
            Some(kernel) => {
                kernel.1 += 1;
                kernel.2 += median(&times);
            }
            None => kernels.push((name, 1, median(&times))),
        }
    }
    kernels.sort_by(|a, b| b.2.total_cmp(&a.2));
    let all: f64 = kernels.iter().map(|k| k.2).sum();
    let launches: usize = kernels.iter().map(|k| k.1).sum();
    let mut out = std::io::stdout().lock();
    let programs: usize = kernels.iter().filter(|k| k.0.is_program).map(|k| k.1).sum();
    write!(out, "\n{test}, the last step: {launches} kernels one by one, {:.1} us", all * 1e6)?;
    match programs {
        0 => writeln!(out, "; all native")?,
        1 => writeln!(out, "; 1 runs as a program")?,
        _ => writeln!(out, "; {programs} run as programs")?,
    }
    writeln!(out, "{:>7} {:>10} {:>9} {:>6}  kernel", "count", "total us", "each us", "share")?;
    for (name, count, seconds) in kernels {
        let (us, share) = (seconds * 1e6, 100.0 * seconds / all);
        let program = if name.is_program { " (program)" } else { "" };
        writeln!(out, "{count:>7} {us:>10.1} {:>9.2} {share:>5.1}%  {name}{program}", us / count as f64)?;
    }
    Ok(())
}

/// Feeds these tokens of a test. Returns the tokens per second of all sequences.
fn measure(session: &mut Session, test: &Test, tokens: &[u32]) -> anyhow::Result<f64> {
    rewind(session, test);
    let started = Instant::now();
    extend(session, test, tokens)?;
    Ok((tokens.len() * test.batch) as f64 / started.elapsed().as_secs_f64())
}

/// Resets the sequences to the start of a test.
fn rewind(session: &mut Session, test: &Test) {
    for sequence in 0..test.batch {
        session.truncate(sequence, test.depth);
    }
}

/// Feeds a test's tokens except those of the last steps, which it returns.
fn last_steps<'a>(session: &mut Session, test: &'a Test) -> anyhow::Result<&'a [u32]> {
    let before = if test.prefill { 0 } else { test.tokens.len().saturating_sub(TRACED_STEPS) };
    let (before, last) = test.tokens.split_at(before);
    rewind(session, test);
    if !before.is_empty() {
        extend(session, test, before)?;
    }
    Ok(last)
}

/// Feeds tokens of a test.
fn extend(session: &mut Session, test: &Test, tokens: &[u32]) -> anyhow::Result<()> {
    // Samples like a generation, but continues with the test's own tokens.
    let mut sampler = Sampler::new(SamplerConfig::GREEDY)?;
    if test.prefill {
        session.sample(0, tokens, &mut sampler)?;
        return Ok(());
    }
    let mut step = Vec::with_capacity(test.batch);
    for token in tokens {
        step.clear();
        step.extend((0..test.batch).map(|sequence| (sequence, *token)));
        session.sample_batch(&step, &mut sampler)?;
    }
    Ok(())
}

pub(super) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The shape and types of random weights, if requested.
///
/// # Errors
/// A usage error for an unknown shape or type, or if the type is missing.
pub(super) fn random_weights(args: &BenchArgs) -> anyhow::Result<Option<(&'static Shape, WeightTypes)>> {
    let Some(shape) = &args.shape else {
        return match &args.format {
            Some(_) => usage("--type sets the type of random weights and requires --shape; a file has its own types"),
            None => Ok(None),
        };
    };
    let shape = parse_shape(shape)?;
    match &args.format {
        Some(types) => Ok(Some((shape, parse_types(types)?))),
        None => usage(format!("--shape {} requires a type of weights, for example --type Q8_0", shape.name)),
    }
}

fn parse_shape(name: &str) -> anyhow::Result<&'static Shape> {
    match Shape::find(name) {
        Some(shape) => Ok(shape),
        None => {
            let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
            usage(format!("--shape is {}, but must be one of {}", shown(name), names.join(", ")))
        }
    }
}

fn parse_types(name: &str) -> anyhow::Result<WeightTypes> {
    match WeightTypes::all().find(|types| types.name().eq_ignore_ascii_case(name)) {
        Some(types) => Ok(types),
        None => {
            // Some are only what files' formats become in memory; their names end so.
            let names = WeightTypes::all().map(WeightTypes::name).filter(|name| !name.ends_with("_N"));
            let names: Vec<String> = names.collect();
            usage(format!("--type is {}, but must be one of {}", shown(name), names.join(", ")))
        }
    }
}
