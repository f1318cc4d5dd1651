//! `hologram load`: puts a load on any server of OpenAI's interface, and reports how it performs.

mod http;
mod plan;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::bench_engine::milliseconds;
use crate::args::LoadArgs;
use crate::text::read_file;
use http::{Target, line};
use plan::Plan;

/// Maximum bytes of a key's file.
const MAX_KEY: u64 = 64 << 10;

/// Requests that an open loop leaves unanswered at once; a further one counts as failed.
const MAX_OPEN: usize = 4096;

/// What a client saw of a request.
struct Answer {
    /// From the start to the first piece of text.
    first: Option<Duration>,
    /// Between pieces.
    gaps: Vec<Duration>,
    total: Duration,
    prompt_tokens: u64,
    tokens: u64,
}

/// Runs the command.
///
/// # Errors
/// When the server cannot be reached, or no request succeeds.
pub fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let key = match &args.api_key_file {
        None => None,
        Some(path) => {
            let text = String::from_utf8_lossy(&read_file(path, MAX_KEY)?).into_owned();
            Some(text.lines().next().unwrap_or_default().trim().to_string())
        }
    };
    let target = Arc::new(Target::new(&args.url, key, Duration::from_secs(args.timeout.into()))?);
    let model = match &args.model {
        Some(name) => name.clone(),
        None => first_model(&target)?,
    };
    let plan = Arc::new(Plan::new(args, model.clone())?);
    let requests = args.requests as usize;
    // The first one connects and warms up, and is not counted.
    ask(&target, &plan, requests)?;
    let started = Instant::now();
    let answers = match args.rate {
        Some(rate) => open_loop(&target, &plan, requests, rate),
        None => closed_loop(&target, &plan, requests, args.users as usize),
    };
    let report = Report::new(answers, started.elapsed());
    let load = match args.rate {
        Some(rate) => format!("{rate} requests/s"),
        None => format!("{} users", args.users),
    };
    report.print(args, &model, &load)?;
    ensure!(report.answered > 0, "no request succeeded");
    Ok(())
}

fn first_model(target: &Target) -> anyhow::Result<String> {
    let response = target.send("models", None)?;
    let list: Value = serde_json::from_reader(response).context("the list of models is not JSON")?;
    let name = list["data"][0]["id"].as_str();
    name.map(String::from).context("the server lists no model; give one with --model")
}

/// Each user sends the next request when the last is answered.
fn closed_loop(target: &Target, plan: &Plan, requests: usize, users: usize) -> Vec<anyhow::Result<Answer>> {
    let next = AtomicUsize::new(0);
    let user = || {
        let mut answers = Vec::new();
        loop {
            let request = next.fetch_add(1, Ordering::Relaxed);
            if request >= requests {
                return answers;
            }
            answers.push(ask(target, plan, request));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..users.min(requests)).map(|_| scope.spawn(user)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// Requests are sent at their times.
fn open_loop(target: &Target, plan: &Plan, requests: usize, rate: f64) -> Vec<anyhow::Result<Answer>> {
    let (answers, open) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let started = Instant::now();
    let keep = |answer| answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
    std::thread::scope(|scope| {
        for (request, at) in plan.times(requests, rate).into_iter().enumerate() {
            std::thread::sleep(at.saturating_sub(started.elapsed()));
            if open.load(Ordering::Relaxed) >= MAX_OPEN {
                keep(Err(anyhow::anyhow!("not sent: {MAX_OPEN} requests were unanswered")));
                continue;
            }
            open.fetch_add(1, Ordering::Relaxed);
            let (keep, open) = (&keep, &open);
            scope.spawn(move || {
                keep(ask(target, plan, request));
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a request and reads its answer.
fn ask(target: &Target, plan: &Plan, request: usize) -> anyhow::Result<Answer> {
    let body = plan.body(request);
    let started = Instant::now();
    let mut response = target.send(plan.path(), Some(&body))?;
    let (mut first, mut gaps, mut last) = (None, Vec::new(), started);
    let (mut pieces, mut usage, mut done) = (0, Value::Null, false);
    while !done {
        let line = line(&mut response)?;
        let Some(data) = line.strip_prefix("data:").map(str::trim_start) else {
            // Between events are empty lines; at the end there is no more data.
            ensure!(!line.is_empty() || !is_at_end(&mut response)?, "the stream ended without [DONE]");
            continue;
        };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let now = Instant::now();
        let chunk: Value = serde_json::from_str(data).context("a chunk is not JSON")?;
        if let Some(message) = chunk["error"]["message"].as_str() {
            anyhow::bail!("an error in the stream: {message}");
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        let texts = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        if texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty())) {
            pieces += 1;
            match first {
                None => first = Some(now - started),
                Some(_) => gaps.push(now - last),
            }
            last = now;
        }
    }
    let count = |name: &str, default: u64| usage[name].as_u64().unwrap_or(default);
    Ok(Answer {
        first,
        gaps,
        total: started.elapsed(),
        prompt_tokens: count("prompt_tokens", 0),
        // A server that tells no numbers is taken to send a token at a time.
        tokens: count("completion_tokens", pieces),
    })
}

fn is_at_end(reader: &mut impl std::io::BufRead) -> anyhow::Result<bool> {
    Ok(reader.fill_buf().context("the server stopped sending")?.is_empty())
}

/// What a load gave.
struct Report {
    answered: usize,
    seconds: f64,
    prompt_tokens: u64,
    tokens: u64,
    /// Sorted times by name.
    times: [(&'static str, Vec<Duration>); 3],
    /// Reasons of failures, and how many requests have each.
    failures: BTreeMap<String, usize>,
}

impl Report {
    fn new(answers: Vec<anyhow::Result<Answer>>, elapsed: Duration) -> Report {
        let mut report = Report {
            answered: 0,
            seconds: elapsed.as_secs_f64(),
            prompt_tokens: 0,
            tokens: 0,
            times: [("first token", Vec::new()), ("between pieces", Vec::new()), ("whole answer", Vec::new())],
            failures: BTreeMap::new(),
        };
        for answer in answers {
            match answer {
                Ok(answer) => {
                    report.answered += 1;
                    report.prompt_tokens += answer.prompt_tokens;
                    report.tokens += answer.tokens;
                    report.times[0].1.extend(answer.first);
                    report.times[1].1.extend(answer.gaps);
                    report.times[2].1.push(answer.total);
                }
                Err(e) => *report.failures.entry(format!("{e:#}")).or_default() += 1,
            }
        }
        report.times.iter_mut().for_each(|(_, times)| times.sort_unstable());
        report
    }

    fn print(&self, args: &LoadArgs, model: &str, load: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        let [tokens, requests] = [self.tokens as f64, self.answered as f64].map(|n| n / self.seconds);
        let failed: usize = self.failures.values().sum();
        if args.json {
            let percentiles = |times: &[Duration]| {
                let [p50, p90, p99] = [50, 90, 99].map(|p| milliseconds(times, p));
                json!({ "p50": p50, "p90": p90, "p99": p99 })
            };
            let [first, gap, total] = [0, 1, 2].map(|i| percentiles(&self.times[i].1));
            let line = json!({
                "model": model, "users": args.rate.is_none().then_some(args.users), "rate": args.rate,
                "answered": self.answered, "failed": failed, "failures": self.failures, "seconds": self.seconds,
                "prompt_tokens": self.prompt_tokens, "tokens": self.tokens, "tokens_per_s": tokens,
                "requests_per_s": requests, "first_token_ms": first, "gap_ms": gap, "answer_ms": total,
            });
            return writeln!(out, "{line}");
        }
        writeln!(out, "{model}: {} requests, {load}, {:.2} s", self.answered + failed, self.seconds)?;
        writeln!(out, "{tokens:>12.2} tokens/s generated, {requests:.2} requests/s")?;
        writeln!(out, "{:>12} tokens in, {} out", self.prompt_tokens, self.tokens)?;
        writeln!(out, "{:>12} {:>10} {:>10} {:>10}", "ms", "50 %", "90 %", "99 %")?;
        for (name, times) in &self.times {
            let [p50, p90, p99] = [50, 90, 99].map(|p| milliseconds(times, p));
            writeln!(out, "{name:>14} {p50:>8.2} {p90:>10.2} {p99:>10.2}")?;
        }
        for (reason, count) in &self.failures {
            writeln!(out, "{count:>12} failed: {reason}")?;
        }
        Ok(())
    }
}
