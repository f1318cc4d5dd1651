//! `hologram bench --concurrency N`: the engine under N users, each of whom sends the next request when the last is
//! answered.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{Engine, EngineOptions, Event, Model, Request};
use serde_json::json;

use super::bench_tests::Sizes;
use super::devices::workers;
use super::shipped;
use crate::args::{BenchArgs, Kv, usage};

/// What a user saw of a request.
struct Answer {
    /// From the submission to the first token.
    first: Duration,
    /// Between tokens.
    gaps: Vec<Duration>,
}

/// Measures and prints.
///
/// # Errors
/// When the requests do not fit the model or one fails.
pub fn run(args: &BenchArgs, users: u32, model: Model, name: &str) -> anyhow::Result<()> {
    let prompt = Sizes::only("-p", &args.prompt)?;
    let decode = Sizes::only("-n", args.decode.as_deref().unwrap_or(&[128]))?;
    let rounds = args.repetitions;
    if prompt == 0 {
        return usage("--concurrency measures requests, and each has a prompt: -p must be at least 1");
    }
    if decode == 0 {
        return usage("--concurrency measures generated tokens: -n must be at least 1");
    }
    let own = model.config().context;
    if prompt + decode > args.ctx.map_or(own, |ctx| ctx as usize) {
        let limit = args.ctx.map_or(format!("the model has {own}"), |ctx| format!("--ctx is {ctx}"));
        return usage(format!("a request takes {} tokens of context, but {limit}", prompt + decode));
    }
    let model = Arc::new(model);
    let mut options = EngineOptions::for_model(&model);
    options.context = args.ctx.map_or(prompt + decode, |ctx| ctx as usize);
    options.kv = args.kv.map(Kv::format);
    options.max_sequences = users as usize;
    options.max_waiting = users as usize;
    options.max_waiting_tokens = usize::MAX;
    options.overlap &= !args.no_overlap;
    options.deterministic = args.deterministic;
    options.speculation = args.speculation.chosen()?;
    let draft = shipped::draft(&args.speculation, model.executor())?;
    let engine = Engine::with_draft(model.clone(), options, draft.as_ref())?;
    if engine.options().context < prompt + decode {
        bail!("the free memory holds a cache of {} tokens only", engine.options().context);
    }
    let logprobs = args.logprobs.map(|n| n as usize);
    let all = |decode, number| round(&engine, users, Work { prompt, decode, logprobs }, number);
    // The first round compiles and warms up and is not counted.
    all(decode.min(4), 0)?;
    let before = engine.stats();
    let (mut seconds, mut answers) = (0.0, Vec::new());
    for i in 1..=rounds {
        let started = Instant::now();
        answers.extend(all(decode, i)?);
        seconds += started.elapsed().as_secs_f64();
    }
    let stats = engine.stats();
    let generated = (stats.generated_tokens - before.generated_tokens) as f64 / seconds;
    let requests = answers.len() as f64 / seconds;
    let steps = stats.steps - before.steps;
    let host = (stats.host_time - before.host_time).as_secs_f64() / steps.max(1) as f64;
    let mut first: Vec<Duration> = answers.iter().map(|a| a.first).collect();
    let mut gaps: Vec<Duration> = answers.into_iter().flat_map(|a| a.gaps).collect();
    first.sort_unstable();
    gaps.sort_unstable();
    let [first_50, first_99] = [50, 99].map(|p| milliseconds(&first, p));
    let [gap_50, gap_99] = [50, 99].map(|p| milliseconds(&gaps, p));
    let info = model.executor().info();
    let mut out = std::io::stdout().lock();
    if args.json {
        let line = json!({
            "model": name,
            "test": format!("pp{prompt}+tg{decode} x{users}"),
            "concurrency": users,
            "deterministic": args.deterministic,
            "logprobs": args.logprobs,
            "requests": first.len(),
            "device": info.backend.name(),
            "threads": info.parallelism,
            "tokens_per_s": generated,
            "requests_per_s": requests,
            "first_token_ms": {"p50": first_50, "p99": first_99},
            "gap_ms": {"p50": gap_50, "p99": gap_99},
            "steps": steps,
            "overlapped_steps": stats.overlapped_steps - before.overlapped_steps,
            "host_us_per_step": host * 1e6,
            "guessed_tokens": stats.guessed_tokens - before.guessed_tokens,
            "accepted_tokens": stats.accepted_tokens - before.accepted_tokens,
            "preemptions": stats.preemptions - before.preemptions,
        });
        writeln!(out, "{line}")?;
        return Ok(());
    }
    let workers = workers(info).map(|w| format!(", {w}")).unwrap_or_default();
    writeln!(out, "{name} on {} ({}){workers}", info.backend, info.name)?;
    let how = if args.deterministic { ", deterministic" } else { "" };
    let with = args.logprobs.map(|n| format!(", log-probabilities of the {n} best")).unwrap_or_default();
    writeln!(out, "{} requests of {users} users at once: {prompt} tokens in, {decode} out{how}{with}", first.len())?;
    writeln!(out, "{generated:>10.2} tokens/s generated, {requests:.2} requests/s")?;
    writeln!(out, "{first_50:>10.2} ms to the first token (99 %: {first_99:.2} ms)")?;
    writeln!(out, "{gap_50:>10.2} ms between tokens (99 %: {gap_99:.2} ms)")?;
    let (guessed, right) =
        (stats.guessed_tokens - before.guessed_tokens, stats.accepted_tokens - before.accepted_tokens);
    if guessed > 0 {
        writeln!(out, "{right:>10} of {guessed} guessed tokens were right")?;
    }
    let overlapped = stats.overlapped_steps - before.overlapped_steps;
    writeln!(
        out,
        "{:>10.1} us a step without work for the device, {steps} steps, {overlapped} overlapped",
        host * 1e6
    )?;
    Ok(())
}

/// A request: tokens in and out, and [`Request::logprobs`].
#[derive(Clone, Copy)]
struct Work {
    prompt: usize,
    decode: usize,
    logprobs: Option<usize>,
}

/// One request of each user at once.
fn round(engine: &Engine, users: u32, work: Work, round: u32) -> anyhow::Result<Vec<Answer>> {
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..users).map(|user| scope.spawn(move || ask(engine, work, user, round))).collect();
        answers.into_iter().map(|answer| answer.join().ok().context("a user's thread panicked")?).collect()
    })
}

/// Sends a request and reads its answer.
fn ask(engine: &Engine, work: Work, user: u32, round: u32) -> anyhow::Result<Answer> {
    let Work { prompt, decode, logprobs } = work;
    let vocab = engine.model().config().vocab as u32;
    // Prompts differ from the first token on, so that none reuses another's blocks.
    let seed = (round << 16 | user).wrapping_mul(0x9e37_79b1);
    let token = |i: usize| ((i as u32 + 1).wrapping_mul(0x85eb_ca6b) ^ seed) % vocab;
    let mut request = Request::new((0..prompt).map(token).collect::<Vec<u32>>());
    (request.max_tokens, request.ignore_end, request.sampling) = (Some(decode), true, SamplerConfig::GREEDY);
    request.logprobs = logprobs;
    let mut last = Instant::now();
    let mut events = engine.submit(request)?;
    let (mut first, mut gaps) = (None, Vec::with_capacity(decode));
    while let Some(event) = events.next_blocking() {
        match event {
            Event::Token { ids, .. } if !ids.is_empty() => {
                let gap = last.elapsed();
                last += gap;
                match first {
                    None => first = Some(gap),
                    Some(_) => gaps.push(gap),
                }
            }
            Event::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    Ok(Answer { first: first.context("a request gave no token")?, gaps })
}

/// A percentile of sorted times, in milliseconds.
pub fn milliseconds(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}
