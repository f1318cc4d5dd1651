//! `/metrics`: Prometheus's text format, with vLLM's names, which routers and dashboards know, and llama.cpp's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hologram_llm::engine::{EngineStats, Event, Timings, Usage};
use hyper::header::HeaderName;
use hyper::{Response, StatusCode};

use crate::body::{self, Body};
use crate::error::Result;
use crate::llamacpp::metrics::{self as llamacpp, Totals};
use crate::openai::finish_reason;
use crate::prompts::Prompt;
use crate::registry::Summary;
use crate::routes::Call;

/// Bounds for times, in seconds.
const TIMES: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Bounds for numbers of tokens.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0,
];

/// A distribution.
struct Histogram {
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    /// Values up to each bound and above the last before, then the rest.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Histogram {
        Histogram { name, help, bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    fn write(&self, model: &str, out: &mut String) {
        let mut count = 0;
        for (i, n) in self.counts.iter().enumerate() {
            count += n;
            let bound = self.bounds.get(i).map_or("+Inf".into(), |bound| format!("{bound:?}"));
            let _ = writeln!(out, "{}_bucket{{model_name=\"{model}\",le=\"{bound}\"}} {count}", self.name);
        }
        let _ = writeln!(out, "{}_sum{{model_name=\"{model}\"}} {}", self.name, self.sum);
        let _ = writeln!(out, "{}_count{{model_name=\"{model}\"}} {count}", self.name);
    }
}

/// What the server counts of a model's requests, besides the engine.
pub struct Metrics(Mutex<Counts>);

struct Counts {
    first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt: Histogram,
    generated: Histogram,
    /// Requests by their end.
    finished: BTreeMap<&'static str, u64>,
    prompt_tokens: u64,
    generated_tokens: u64,
    cached_tokens: u64,
    /// Generated tokens after the first of each text.
    later_tokens: u64,
    /// Tokens of the longest text.
    longest: usize,
    /// Texts that were embedded, and their tokens.
    embedded: (u64, u64),
}

impl Default for Metrics {
    fn default() -> Metrics {
        let time = |name, help| Histogram::new(name, help, TIMES);
        let counts = Counts {
            first_token: time("vllm:time_to_first_token_seconds", "Time from a request to its first token"),
            between_tokens: time("vllm:inter_token_latency_seconds", "Time from a token to the next"),
            per_token: time("vllm:request_time_per_output_token_seconds", "Mean time per token after the first"),
            whole: time("vllm:e2e_request_latency_seconds", "Time of a whole request"),
            queue: time("vllm:request_queue_time_seconds", "Time that a request waited"),
            prefill: time("vllm:request_prefill_time_seconds", "Time from a request's start to its first token"),
            decode: time("vllm:request_decode_time_seconds", "Time from a request's first token to its end"),
            inference: time("vllm:request_inference_time_seconds", "Time from a request's start to its end"),
            prompt: Histogram::new("vllm:request_prompt_tokens", "Tokens of a prompt", TOKENS),
            generated: Histogram::new("vllm:request_generation_tokens", "Tokens of a reply", TOKENS),
            finished: BTreeMap::from([("stop", 0), ("length", 0)]),
            prompt_tokens: 0,
            generated_tokens: 0,
            cached_tokens: 0,
            later_tokens: 0,
            longest: 0,
            embedded: (0, 0),
        };
        Metrics(Mutex::new(counts))
    }
}

/// The times of a reply so far.
pub struct Clock {
    submitted: Instant,
    /// Of the last token.
    token: Option<Instant>,
}

impl Clock {
    /// A request that is submitted now.
    pub fn start() -> Clock {
        Clock { submitted: Instant::now(), token: None }
    }
}

impl Metrics {
    /// Counts an event of a reply.
    pub fn observe(&self, event: &Event, clock: &mut Clock) {
        match event {
            Event::Token { ids, .. } if !ids.is_empty() => {
                let now = Instant::now();
                let mut counts = self.counts();
                match clock.token.replace(now) {
                    None => counts.first_token.add((now - clock.submitted).as_secs_f64()),
                    Some(last) => counts.between_tokens.add((now - last).as_secs_f64() / ids.len() as f64),
                }
            }
            Event::Finished { reason, usage, timings, .. } => {
                let reason = finish_reason(Some(*reason));
                self.counts().finish(reason, usage, timings, clock.submitted.elapsed().as_secs_f64());
            }
            _ => {}
        }
    }

    /// Counts texts that were embedded.
    pub fn embedded(&self, texts: &[Prompt]) {
        let tokens = texts.iter().map(|text| text.tokens.len());
        let mut counts = self.counts();
        counts.embedded.0 += texts.len() as u64;
        counts.embedded.1 += tokens.clone().sum::<usize>() as u64;
        counts.longest = tokens.fold(counts.longest, usize::max);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Valid at any time, also after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model's numbers.
struct Row<'a> {
    /// Its name, escaped.
    name: String,
    stats: EngineStats,
    counts: MutexGuard<'a, Counts>,
}

/// A name, what it says, and its value of a model.
type Family<T> = (&'static str, &'static str, fn(&T) -> f64);

/// Writes all models' numbers: a family's head once, then a line or a group of lines per model.
fn write(rows: &[Row]) -> String {
    let mut out = String::new();
    let gauges: [Family<EngineStats>; 4] = [
        ("vllm:num_requests_running", "Texts that are being generated", |s| s.running as f64),
        ("vllm:num_requests_waiting", "Requests that wait", |s| s.waiting as f64),
        ("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all", cache_usage),
        ("vllm:gpu_cache_usage_perc", "The same by its older name", cache_usage),
    ];
    for (name, help, value) in gauges {
        head(name, help, "gauge", &mut out);
        rows.iter().for_each(|row| line(name, &row.name, value(&row.stats), &mut out));
    }
    head("vllm:cache_config_info", "The KV cache", "gauge", &mut out);
    for Row { name, stats, .. } in rows {
        let (size, blocks) = (stats.block_tokens, stats.blocks_total);
        let labels = format!("model_name=\"{name}\",block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"");
        let _ = writeln!(out, "vllm:cache_config_info{{{labels}}} 1");
    }
    let counters: [Family<Row>; 12] = [
        ("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache", |r| r.stats.prefix_queries as f64),
        ("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache", |r| r.stats.prefix_hits as f64),
        ("vllm:num_preemptions_total", "Texts that gave up their cache for others", |r| r.stats.preemptions as f64),
        ("vllm:admission_rejections_total", "Requests rejected because too many waited", |r| r.stats.rejected as f64),
        ("vllm:prompt_tokens_total", "Tokens of finished requests' prompts", |r| r.counts.prompt_tokens as f64),
        ("vllm:generation_tokens_total", "Tokens of finished requests' replies", |r| r.counts.generated_tokens as f64),
        ("vllm:spec_decode_num_draft_tokens_total", "Tokens guessed", |r| r.stats.guessed_tokens as f64),
        ("vllm:spec_decode_num_accepted_tokens_total", "Guesses that were right", |r| r.stats.accepted_tokens as f64),
        ("hologram:requests_failed_total", "Requests that failed", |r| r.stats.failed as f64),
        ("hologram:requests_cancelled_total", "Requests whose client left", |r| r.stats.cancelled as f64),
        ("hologram:step_seconds_total", "Time while a step was on the device", |r| r.stats.step_time.as_secs_f64()),
        ("hologram:host_seconds_total", "Time without a step while sequences ran", |r| r.stats.host_time.as_secs_f64()),
    ];
    for (name, help, value) in counters {
        head(name, help, "counter", &mut out);
        rows.iter().for_each(|row| line(name, &row.name, value(row), &mut out));
    }
    head("vllm:request_success_total", "Requests that finished", "counter", &mut out);
    for Row { name, counts, .. } in rows {
        for (reason, n) in &counts.finished {
            let labels = format!("model_name=\"{name}\",finished_reason=\"{reason}\"");
            let _ = writeln!(out, "vllm:request_success_total{{{labels}}} {n}");
        }
    }
    // The engine keeps only the sums.
    let name = "vllm:iteration_tokens_total";
    head(name, "Tokens per step", "histogram", &mut out);
    for Row { name: model, stats, .. } in rows {
        let _ = writeln!(out, "{name}_bucket{{model_name=\"{model}\",le=\"+Inf\"}} {}", stats.steps);
        let _ = writeln!(out, "{name}_sum{{model_name=\"{model}\"}} {}", stats.step_tokens);
        let _ = writeln!(out, "{name}_count{{model_name=\"{model}\"}} {}", stats.steps);
    }
    let histograms: [fn(&Counts) -> &Histogram; 10] = [
        |c| &c.first_token,
        |c| &c.between_tokens,
        |c| &c.per_token,
        |c| &c.whole,
        |c| &c.queue,
        |c| &c.prefill,
        |c| &c.decode,
        |c| &c.inference,
        |c| &c.prompt,
        |c| &c.generated,
    ];
    for of in histograms {
        for (i, row) in rows.iter().enumerate() {
            let histogram = of(&row.counts);
            if i == 0 {
                head(histogram.name, histogram.help, "histogram", &mut out);
            }
            histogram.write(&row.name, &mut out);
        }
    }
    llamacpp::write(&totals(rows), &mut out);
    out
}

/// The sums of all models.
fn totals(rows: &[Row]) -> Totals {
    let mut totals = Totals::default();
    for Row { stats, counts, .. } in rows {
        totals.prompt_tokens += counts.prompt_tokens - counts.cached_tokens + counts.embedded.1;
        totals.cached_tokens += counts.cached_tokens;
        totals.prompt_seconds += counts.prefill.sum;
        totals.predicted_tokens += counts.generated_tokens;
        totals.predicted_steps += counts.later_tokens;
        totals.predicted_seconds += counts.decode.sum;
        totals.decodes += stats.steps + counts.embedded.0;
        totals.step_texts += stats.step_sequences + counts.embedded.0;
        totals.longest = totals.longest.max(counts.longest as u64);
        totals.guesses += stats.guesses;
        totals.guessed += stats.guessed_tokens;
        totals.accepted += stats.accepted_tokens;
        totals.processing += stats.running as u64;
        totals.deferred += stats.waiting as u64;
    }
    totals
}

fn cache_usage(stats: &EngineStats) -> f64 {
    stats.blocks_used as f64 / stats.blocks_total.max(1) as f64
}

fn line(name: &str, model: &str, value: f64, out: &mut String) {
    let _ = writeln!(out, "{name}{{model_name=\"{model}\"}} {value}");
}

impl Counts {
    fn finish(&mut self, reason: &'static str, usage: &Usage, timings: &Timings, whole: f64) {
        *self.finished.entry(reason).or_default() += 1;
        self.prompt_tokens += usage.prompt_tokens as u64;
        self.generated_tokens += usage.generated_tokens as u64;
        self.cached_tokens += usage.cached_tokens as u64;
        self.later_tokens += usage.generated_tokens.saturating_sub(1) as u64;
        self.longest = self.longest.max(usage.prompt_tokens + usage.generated_tokens);
        self.prompt.add(usage.prompt_tokens as f64);
        self.generated.add(usage.generated_tokens as f64);
        self.whole.add(whole);
        let (prompt, decode) = (timings.prompt.as_secs_f64(), timings.decode.as_secs_f64());
        self.queue.add(timings.queued.as_secs_f64());
        self.prefill.add(prompt);
        self.decode.add(decode);
        self.inference.add(prompt + decode);
        if usage.generated_tokens > 1 {
            self.per_token.add(decode / (usage.generated_tokens - 1) as f64);
        }
    }
}

fn head(name: &str, help: &str, kind: &str, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

fn row(summary: Summary<'_>) -> Row<'_> {
    Row {
        name: summary.names[0].replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"),
        stats: summary.loaded.map(|served| served.engine.stats()).unwrap_or_default(),
        counts: summary.metrics.counts(),
    }
}

/// The metrics of all models. An unloaded one has no engine, so that those numbers begin again at 0.
///
/// # Errors
/// 503 while loading.
pub fn get(call: &Call) -> Result<Response<Body>> {
    let rows: Vec<Row> = call.shared.all_models()?.list().map(row).collect();
    let mut response = body::response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", write(&rows));
    // llama.cpp's clients tell a restart by it.
    let name = HeaderName::from_static("process-start-time-unix");
    response.headers_mut().insert(name, call.shared.started.into());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_all_values_up_to_their_bound() {
        let mut histogram = Histogram::new("h", "Help", &[1.0, 2.5]);
        [0.5, 1.0, 1.5, 2.5, 9.0].into_iter().for_each(|value| histogram.add(value));
        let mut out = String::new();
        histogram.write("m", &mut out);
        let want = "h_bucket{model_name=\"m\",le=\"1.0\"} 2\nh_bucket{model_name=\"m\",le=\"2.5\"} 4\n\
                    h_bucket{model_name=\"m\",le=\"+Inf\"} 5\nh_sum{model_name=\"m\"} 14.5\nh_count{model_name=\"m\"} 5\n";
        assert_eq!(out, want);
    }
}
