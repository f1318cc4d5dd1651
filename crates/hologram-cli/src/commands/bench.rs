//! `hologram bench`: prefill and decode speed, with the memory bandwidth measured in the same run and the bytes read of
//! weights and cache.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use hologram_backends::BackendType;
use hologram_llm::{Model, SHAPES, Shape, WeightTypes};
use serde_json::json;

use super::bench_tests::{self, Results, Sizes, median};
use super::devices::workers;
use super::{bench_bytes, bench_engine, shipped};
use crate::args::{BenchArgs, usage};
use crate::capture::Capture;
use crate::output;
use crate::status::status;
use crate::text::{NAME, printable, shown, size};
use crate::trace::{self, Trace};

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
    let sizes = Sizes::of(args)?;
    if args.model.given().is_some_and(|m| m == Path::new("ops") && !m.exists()) {
        return usage("give the options of `bench ops` after it: hologram bench ops [OPTIONS]");
    }
    let of_engine = [
        ("--speculate", args.speculation.speculate.is_some()),
        ("--draft", args.speculation.draft.is_some()),
        ("--no-overlap", args.no_overlap),
        ("--deterministic", args.deterministic),
        ("--logprobs", args.logprobs.is_some()),
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
    let options = args.experts.options(args.device.threads());
    let (model, name) = match random {
        Some((shape, types)) => {
            status!("creating random weights …\n");
            let model = Model::random_with(shape, types, &executor, &options).map_err(shipped::as_option)?;
            shipped::note_experts(&model);
            (model, format!("{} {}", shape.name, types.name()))
        }
        None => {
            let files = shipped::open(args.model.given())?;
            if let Some(out) = &args.profile {
                output::check_not_read(out, Some(&files), args.lora.paths())?;
            }
            let model = shipped::load(files, &args.lora, options, &executor)?;
            let name = printable(&model.config().name, NAME);
            (model, name)
        }
    };
    let encoder = model.config().bidirectional;
    if let Some(users) = args.concurrency {
        if encoder {
            return usage(format!("{name} is an encoder, which --concurrency cannot measure: it continues no text"));
        }
        bench_engine::run(args, users, model, &name)?;
        return Ok(Vec::new());
    }
    let mut results = Results::default();
    let measured = match encoder {
        true => bench_tests::encoder(args, &sizes, &model, &mut results),
        false => bench_tests::decoder(args, &sizes, &model, (trace.as_deref(), &capture), &mut results),
    };
    // What was measured before an error counts.
    let impossible = if results.rows.is_empty() { Vec::new() } else { print(args, &model, &name, &mut results)? };
    measured?;
    if let Some(trace) = trace {
        trace.finish()?;
    }
    Ok(impossible)
}

/// Prints the table or the objects. Returns a sentence per impossible result.
fn print(args: &BenchArgs, model: &Model, name: &str, results: &mut Results) -> anyhow::Result<Vec<String>> {
    let (bandwidth, best) = results.bandwidth();
    let info = model.executor().info();
    let caches = bench_bytes::caches(info.backend);
    let mut impossible = Vec::new();
    let mut out = std::io::stdout().lock();
    let width = results.rows.iter().map(|row| row.name.len()).fold(8, usize::max);
    let texts = results.rows.iter().any(|row| row.text.is_some());
    if !args.json {
        let workers = workers(info).map(|w| format!(", {w}")).unwrap_or_default();
        writeln!(out, "{name} on {} ({}){workers}", info.backend, info.name)?;
        let (weights, read) = (size(model.weight_bytes() as u64), size(model.bytes_per_token() as u64));
        let bound = results.bound;
        writeln!(out, "weights {weights}, {read} read per token; {bound} bandwidth {:.1} GB/s", bandwidth / 1e9)?;
        let of_texts = if texts { "    texts/s" } else { "" };
        writeln!(
            out,
            "{:<width$} {:>12} {:>10} {:>10} {:>8} {:>7}{of_texts}",
            "test", "tokens/s", "min", "max", "GB/s", "share"
        )?;
    }
    for row in &results.rows {
        let rate = median(&row.rates);
        let (min, max) = (row.rates.first().copied().unwrap_or(0.0), row.rates.last().copied().unwrap_or(0.0));
        let achieved = rate * row.reads.per_token();
        let texts = row.text.map(|tokens| rate / tokens as f64);
        impossible.extend(row.reads.impossible(rate, best, caches).map(|why| format!("{}: {why}", row.name)));
        if args.json {
            let mut line = json!({
                "model": name,
                "test": row.name,
                "depth": row.depth,
                "batch": row.batch,
                "device": info.backend.name(),
                "threads": info.parallelism,
                "tokens_per_s": rate,
                "min": min,
                "max": max,
                "bytes_per_token": row.reads.per_token(),
                "cache_bytes_per_token": row.reads.cache_per_token(),
                "gb_per_s": achieved / 1e9,
                "share": achieved / bandwidth,
            });
            if let Some(texts) = texts {
                line["texts_per_s"] = json!(texts);
            }
            writeln!(out, "{line}")?;
        } else {
            let share = 100.0 * achieved / bandwidth;
            let gb_per_s = achieved / 1e9;
            let texts = texts.map(|texts| format!(" {texts:>10.2}")).unwrap_or_default();
            let name = &row.name;
            writeln!(out, "{name:<width$} {rate:>12.2} {min:>10.2} {max:>10.2} {gb_per_s:>8.1} {share:>6.0}%{texts}")?;
        }
    }
    if !args.json {
        results.rows.iter().try_for_each(|row| write!(out, "{}", row.profile))?;
    }
    let above = |row: &bench_tests::Row| median(&row.rates) * row.reads.per_token() > bandwidth;
    if impossible.is_empty() && results.rows.iter().any(above) {
        status!("note: a share above 100 % is of a step that the device's caches hold, which are faster than memory\n");
    }
    Ok(impossible)
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
