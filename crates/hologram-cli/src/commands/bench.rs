//! `hologram bench`: prefill and decode speed, beside the memory bandwidth measured in the same run.

use std::io::Write;
use std::time::Instant;

use hologram_backends::{BackendType, Format};
use hologram_core::Executor;
use hologram_isa::Type;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Logits, Model, SHAPES, Session, SessionOptions, Shape};
use serde_json::json;

use super::shipped;
use crate::args::{BenchArgs, usage};
use crate::text::{NAME, printable};

/// One line of the table.
struct Measurement {
    test: String,
    /// Tokens per second of each repetition, in ascending order.
    rates: Vec<f64>,
    /// Bytes of weights read for each token.
    bytes_per_token: f64,
}

/// Runs the command.
///
/// # Errors
/// When an option is out of range, or the device or the model fails.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let (prompt, decode) = (args.prompt as usize, args.decode as usize);
    if prompt == 0 && decode == 0 {
        return usage("nothing to measure: -p and -n are both 0");
    }
    let random = match (&args.shape, &args.format) {
        (Some(shape), Some(format)) => Some((parse_shape(shape)?, parse_format(format)?)),
        _ => None,
    };
    let executor = args.device.open()?;
    let (model, name) = match random {
        Some((shape, format)) => {
            eprintln!("making random weights …");
            (Model::random(shape, format, &executor)?, format!("{} {}", shape.name, format.name().to_uppercase()))
        }
        None => {
            let model = Model::from_gguf(shipped::open(args.model.as_deref())?, &executor)?;
            let name = printable(&model.config().name, NAME);
            (model, name)
        }
    };
    let context = prompt.max(decode);
    let mut session = model.session(SessionOptions { context, ..SessionOptions::default() })?;
    let tokens: Vec<u32> = (0..context).map(|i| (i * 7919 % model.config().vocab) as u32).collect();

    let mut tests: Vec<(&[u32], bool, Measurement)> = Vec::new();
    let bytes = model.bytes_per_token() as f64;
    let measurement = |test: String, bytes_per_token| Measurement { test, rates: Vec::new(), bytes_per_token };
    if prompt > 0 {
        // A step reads the weights once for all its tokens.
        let steps = prompt.div_ceil(SessionOptions::default().batch) as f64;
        let m = measurement(format!("pp{}", prompt), bytes * steps / prompt as f64);
        tests.push((&tokens[..prompt], true, m));
    }
    if decode > 0 {
        tests.push((&tokens[..decode], false, measurement(format!("tg{}", decode), bytes)));
    }
    // The first round compiles and warms up and is not counted. Bandwidth and tests take turns, so that all see the same machine.
    let (mut bandwidths, mut bound) = (Vec::new(), "");
    for round in 0..=args.repetitions {
        let (kind, bandwidth) = ceiling(&executor)?;
        bound = kind;
        if round > 0 {
            bandwidths.push(bandwidth);
        }
        for (tokens, prefill, m) in &mut tests {
            let warm_up = if round == 0 && !*prefill { &tokens[..tokens.len().min(4)] } else { tokens };
            let rate = measure(&mut session, warm_up, *prefill)?;
            if round > 0 {
                m.rates.push(rate);
            }
        }
    }
    bandwidths.sort_by(f64::total_cmp);
    let bandwidth = median(&bandwidths);
    let info = executor.info();
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(out, "{name} on {} ({}), {} threads", info.backend, info.name, info.parallelism)?;
        let (weights, read) = (model.weight_bytes() as f64 / 1e6, bytes / 1e6);
        writeln!(
            out,
            "weights {weights:.1} MB, {read:.1} MB read a token; {bound} bandwidth {:.1} GB/s",
            bandwidth / 1e9
        )?;
        writeln!(out, "{:<8} {:>12} {:>10} {:>10} {:>8} {:>7}", "test", "tokens/s", "min", "max", "GB/s", "share")?;
    }
    let profiled: Vec<_> = tests.iter().map(|(tokens, prefill, m)| (m.test.clone(), *tokens, *prefill)).collect();
    for (_, _, mut m) in tests {
        m.rates.sort_by(f64::total_cmp);
        let rate = median(&m.rates);
        let (min, max) = (m.rates.first().copied().unwrap_or(0.0), m.rates.last().copied().unwrap_or(0.0));
        let achieved = rate * m.bytes_per_token;
        if args.json {
            let line = json!({
                "model": name,
                "test": m.test,
                "device": info.backend.name(),
                "threads": info.parallelism,
                "tokens_per_s": rate,
                "min": min,
                "max": max,
                "bytes_per_token": m.bytes_per_token,
                "gb_per_s": achieved / 1e9,
                "share": achieved / bandwidth,
            });
            writeln!(out, "{line}")?;
        } else {
            let share = 100.0 * achieved / bandwidth;
            writeln!(out, "{:<8} {rate:>12.2} {min:>10.2} {max:>10.2} {:>8.1} {share:>6.0}%", m.test, achieved / 1e9)?;
        }
    }
    drop(out);
    if args.profile {
        for (test, tokens, prefill) in profiled {
            measure(&mut session, tokens, prefill)?;
            print_profile(&test, &session)?;
        }
    }
    Ok(())
}

/// What bounds kernels that wait for memory: its kind, and bytes per second. A GPU's is that of copies, which the device's own engine
/// makes; a CPU's that of reads.
fn ceiling(executor: &Executor) -> anyhow::Result<(&'static str, f64)> {
    let backend = executor.backend();
    Ok(match backend.info().backend {
        BackendType::Cuda => ("copy", backend.copy_bandwidth()?),
        _ => ("read", backend.read_bandwidth()?),
    })
}

/// How often the last step is profiled; the median of each kernel counts.
const PROFILES: usize = 7;

/// The kernels of a session's last step: those of one name together, the longest first.
fn print_profile(test: &str, session: &Session) -> anyhow::Result<()> {
    let runs = (0..PROFILES).map(|_| session.profile()).collect::<Result<Vec<_>, _>>()?;
    let mut kernels: Vec<(&str, usize, f64)> = Vec::new();
    for (i, (name, _)) in runs[0].iter().enumerate() {
        let mut times: Vec<f64> = runs.iter().map(|run| run[i].1).collect();
        times.sort_by(f64::total_cmp);
        match kernels.iter_mut().find(|k| k.0 == &**name) {
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
    writeln!(out, "\n{test}, the last step: {launches} kernels one by one, {:.1} us", all * 1e6)?;
    writeln!(out, "{:>7} {:>10} {:>9} {:>6}  kernel", "count", "total us", "each us", "share")?;
    for (name, count, seconds) in kernels {
        let (us, share) = (seconds * 1e6, 100.0 * seconds / all);
        writeln!(out, "{count:>7} {us:>10.1} {:>9.2} {share:>5.1}%  {name}", us / count as f64)?;
    }
    Ok(())
}

/// Runs one test from an empty context and gives its tokens per second.
fn measure(session: &mut Session, tokens: &[u32], prefill: bool) -> anyhow::Result<f64> {
    session.truncate(0, 0);
    let started = Instant::now();
    if prefill {
        session.feed(0, tokens, Logits::Last)?;
    } else {
        // The most probable token is chosen, as a generation would, but the test goes on with tokens of its own.
        let mut sampler = Sampler::new(SamplerConfig::GREEDY)?;
        for token in tokens {
            session.sample(0, &[*token], &mut sampler)?;
        }
    }
    Ok(tokens.len() as f64 / started.elapsed().as_secs_f64())
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn parse_shape(name: &str) -> anyhow::Result<&'static Shape> {
    match Shape::find(name) {
        Some(shape) => Ok(shape),
        None => {
            let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
            usage(format!("--shape is {name}, but must be one of {}", names.join(", ")))
        }
    }
}

fn parse_format(name: &str) -> anyhow::Result<Format> {
    let formats = [Format::F32, Format::F16, Format::Plain(Type::BF16), Format::Q8_0, Format::Q4_0, Format::TQ2_0];
    match formats.into_iter().find(|f| f.name().eq_ignore_ascii_case(name)) {
        Some(format) => Ok(format),
        None => {
            let names = formats.map(|f| f.name().to_uppercase());
            usage(format!("--type is {name}, but must be one of {}", names.join(", ")))
        }
    }
}
